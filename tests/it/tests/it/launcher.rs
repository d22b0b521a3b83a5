//! The launcher believes nobody: what a broken service, or another user, may ask of it.

use std::os::fd::OwnedFd;
use std::path::PathBuf;

use it::launcher::{Reply, speak};
use it::{Daemon, shared};
use serde_json::{Value, json};

fn socket(daemon: &Daemon) -> PathBuf {
    daemon.runtime_dir().join("launch.sock")
}

/// The user that the launcher's configuration names.
fn service_uid(daemon: &Daemon) -> u32 {
    let text = std::fs::read_to_string(daemon.runtime_dir().join("launch.toml")).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("service_uid")).unwrap();
    line.trim_start_matches([' ', '=']).trim().parse().unwrap()
}

fn ask(message: &str, descriptors: Vec<OwnedFd>) -> Reply {
    let daemon = shared();
    speak(&socket(daemon), service_uid(daemon), message.as_bytes(), descriptors)
}

fn listener() -> OwnedFd {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
    socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap()
}

/// A plan that is within every bound, except that its layer does not exist.
fn plan() -> Value {
    json!({
        "id": "it-plan", "kind": "session", "slot": 3900, "layers": ["0".repeat(64)], "workspace_uid": 10001,
        "work_dir": "/workspace", "hostname": "sandbox", "tmpfs_bytes": 65536,
        "limits": {"memory_bytes": null, "swap_bytes": null, "cpu_quota_us": null, "cpu_weight": null, "pids": null},
        "network": "none", "oci_runtime": "builtin",
    })
}

/// What the launcher says to that plan with one field changed.
fn start_with(field: &str, value: Value) -> Reply {
    let mut plan = plan();
    plan[field] = value;
    ask(&json!({"type": "start", "plan": plan}).to_string(), vec![listener()])
}

#[test]
fn the_service_s_user_is_answered() {
    let Reply::Answer(answer) = ask(r#"{"type": "list"}"#, vec![]) else { panic!() };
    assert_eq!(answer["type"], "sandboxes", "{answer}");
}

#[test]
fn nobody_else_is_answered() {
    let daemon = shared();
    for uid in [0, 1, 65534, 10001, service_uid(daemon) + 1] {
        let reply = speak(&socket(daemon), uid, br#"{"type": "list"}"#, vec![]);
        match reply {
            Reply::Nothing(_) => {}
            Reply::Answer(answer) => assert_eq!(answer["type"], "refused", "uid {uid} was answered {answer}"),
        }
    }
    assert!(matches!(ask(r#"{"type": "list"}"#, vec![]), Reply::Answer(_)), "it serves on");
}

#[test]
fn a_plan_outside_of_its_bounds_is_refused_by_field() {
    start_with("slot", json!(0)).expect_refused("slot");
    start_with("slot", json!(4_000_000)).expect_refused("slot");
    start_with("layers", json!([])).expect_refused("layers");
    start_with("layers", json!(vec!["0".repeat(64); 129])).expect_refused("layers");
    start_with("workspace_uid", json!(65536)).expect_refused("workspace_uid");
    for bad in [
        "/",
        "workspace",
        "/a/../b",
        "/a//b",
        "/proc/x",
        "/sys",
        "/dev/shm",
        "/tmp",
        "/etc/sandboxd",
        "/a\n",
        "/./x",
        "",
    ] {
        start_with("work_dir", json!(bad)).expect_refused("work_dir");
    }
    for bad in ["", "-x", "a b", "a\0", &"h".repeat(65)] {
        start_with("hostname", json!(bad)).expect_refused("hostname");
    }
    start_with("tmpfs_bytes", json!(1)).expect_refused("tmpfs_bytes");
    start_with("network", json!("host")).expect_refused("network");
    let unlimited =
        json!({"memory_bytes": 1, "swap_bytes": null, "cpu_quota_us": null, "cpu_weight": null, "pids": null});
    start_with("limits", unlimited).expect_refused("limits.memory_bytes");
}

#[test]
fn a_plan_can_name_no_path_of_the_host() {
    for (field, value) in [
        ("rootfs", json!("/")),
        ("mounts", json!([{"source": "/etc", "target": "/host"}])),
        ("id_base", json!(0)),
        ("cgroup", json!("/")),
    ] {
        start_with(field, value).expect_refused("message");
    }
    for id in ["../../etc", "a/b", "/", "", ".."] {
        start_with("id", json!(id)).expect_refused("message");
        ask(&json!({"type": "forget", "id": id}).to_string(), vec![]).expect_refused("message");
        ask(&json!({"type": "remove_workspace", "id": id}).to_string(), vec![]).expect_refused("message");
    }
    for layer in ["../../../etc", "0", &"G".repeat(64), &"0".repeat(63)] {
        start_with("layers", json!([layer])).expect_refused("message");
        ask(&json!({"type": "remove_layer", "layer": layer}).to_string(), vec![]).expect_refused("message");
    }
    for recipe in ["../../bin/sh", "/bin/sh", "_debian", "a b", "", "A"] {
        ask(&json!({"type": "bootstrap", "recipe": recipe}).to_string(), vec![listener()]).expect_refused("recipe");
    }
}

#[test]
fn a_message_that_is_none_is_refused() {
    for message in
        ["", "{", "null", "[]", r#"{"type": "mount"}"#, r#"{"type": "list", "root": "/"}"#, r#"{"type": "start"}"#]
    {
        match ask(message, vec![]) {
            Reply::Answer(answer) => assert_eq!(answer["type"], "refused", "{message}: {answer}"),
            Reply::Nothing(_) => assert_eq!(message, "", "no answer to {message}"),
        }
    }
    let long = format!("{{\"type\": \"stop\", \"id\": \"{}\"}}", "x".repeat(100_000));
    ask(&long, vec![]).expect_refused("message");
}

#[test]
fn descriptors_that_do_not_belong_are_refused() {
    ask(r#"{"type": "list"}"#, vec![listener()]).expect_refused("descriptors");
    ask(&json!({"type": "start", "plan": plan()}).to_string(), vec![]).expect_refused("descriptors");
    ask(&json!({"type": "start", "plan": plan()}).to_string(), vec![listener(), listener()])
        .expect_refused("descriptors");
}

#[test]
fn a_start_that_cannot_be_leaves_nothing() {
    let reply = ask(&json!({"type": "start", "plan": plan()}).to_string(), vec![listener()]);
    let Reply::Answer(answer) = reply else { panic!("{reply:?}") };
    assert!(["failed", "refused"].iter().any(|kind| answer["type"] == *kind), "{answer}");
    let Reply::Answer(list) = ask(r#"{"type": "list"}"#, vec![]) else { panic!() };
    assert!(!list.to_string().contains("it-plan"), "{list}");
    let left = it::host::Snapshot::take().mentioning("it-plan");
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn who_connects_and_says_nothing_holds_nobody_up() {
    let daemon = shared();
    let uid = service_uid(daemon);
    let path = socket(daemon);
    let (tell, told) = std::sync::mpsc::channel::<()>();
    std::thread::scope(|scope| {
        for _ in 0..8 {
            let path = path.clone();
            scope.spawn(move || it::launcher::connect_silently(&path, uid));
        }
        scope.spawn(move || {
            let s = shared().session("base");
            s.run(["echo", "hi"]).expect("hi\n");
            tell.send(()).unwrap();
        });
        told.recv_timeout(std::time::Duration::from_secs(60)).expect("a session opens meanwhile");
    });
}
