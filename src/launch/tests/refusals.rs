//! What the launcher does not do, and for whom.
#![allow(clippy::unwrap_used, clippy::expect_used)] // Helpers of tests fail by panicking, as tests do.
mod common;

use std::time::{Duration, Instant};

use common::{Launcher, ParseId, SERVICE, SLEEP, listener, plan, receive};
use wire::id::LayerId;
use wire::launch::{Answer, Compression, Kind, MAX_MESSAGE, Network, Plan, Request};

fn field(answer: &Answer) -> &str {
    match answer {
        Answer::Refused { field, .. } => field,
        other => panic!("not refused: {other:?}"),
    }
}

#[test]
fn every_field_of_a_plan_is_checked_before_anything_is_done() {
    let launcher = Launcher::start(SLEEP, "slots = 4");
    let layer = LayerId::parse(&"a".repeat(64)).unwrap();
    type Change = fn(&mut Plan);
    let cases: [(&str, Change); 14] = [
        ("slot", |p| p.slot = 0),
        ("slot", |p| p.slot = 4),
        ("slot", |p| p.slot = u32::MAX),
        ("layers", |p| p.layers.clear()),
        ("layers", |p| p.layers = vec![p.layers[0].clone(); 129]),
        ("workspace_uid", |p| p.workspace_uid = 65_536),
        ("work_dir", |p| p.work_dir = "/proc/1".into()),
        ("work_dir", |p| p.work_dir = "/a/../..".into()),
        ("hostname", |p| p.hostname = "a b".into()),
        ("tmpfs_bytes", |p| p.tmpfs_bytes = Some(u64::MAX)),
        ("limits.pids", |p| p.limits.pids = Some(0)),
        ("limits.memory_bytes", |p| p.limits.memory_bytes = Some(0)),
        ("network", |p| p.network = Network::Host),
        ("network", |p| {
            p.network = Network::Host;
            p.kind = Kind::Build;
        }),
    ];
    for (name, change) in cases {
        let mut plan = plan("refused", 1, std::slice::from_ref(&layer));
        change(&mut plan);
        assert_eq!(field(&launcher.ask(&Request::Start { plan }, &[listener()])), name);
    }
    assert!(!launcher.cgroup_of("refused").exists());
    assert!(!launcher.state("sessions/refused").exists());
}

#[test]
fn only_the_service_is_served() {
    let launcher = Launcher::start(SLEEP, "");
    let socket = launcher.connect_as(0).expect("root may connect to any socket");
    // Nothing is sent: the launcher looks at who it is before it reads.
    assert_eq!(field(&receive(&socket).unwrap()), "peer");
    assert!(launcher.connect_as(SERVICE + 1).is_none(), "the socket is the service's alone");
}

#[test]
fn a_message_is_one_bounded_request_with_its_descriptors() {
    let launcher = Launcher::start(SLEEP, "");
    for bytes in
        [b"{".as_slice(), b"null", b"[]", br#"{"type":"mount"}"#, br#"{"type":"stop","id":"../x"}"#, b"\xff\xfe"]
    {
        assert_eq!(field(&launcher.ask_bytes(bytes, &[])), "message");
    }
    let stop = format!("{{\"type\":\"stop\",\"id\":\"x\"}}{}", " ".repeat(MAX_MESSAGE));
    assert_eq!(field(&launcher.ask_bytes(stop.as_bytes(), &[])), "message");
    let many: Vec<_> = (0..20).map(|_| listener()).collect();
    assert_eq!(field(&launcher.ask_bytes(br#"{"type":"list"}"#, &many)), "message");
    assert_eq!(field(&launcher.ask_bytes(br#"{"type":"list"}"#, &many[..1])), "descriptors");
    let start = Request::Start { plan: plan("x", 1, &[LayerId::parse(&"a".repeat(64)).unwrap()]) };
    assert_eq!(field(&launcher.ask(&start, &[])), "descriptors");
    let file = tempfile::tempfile().unwrap();
    assert_eq!(field(&launcher.ask(&start, &[file.into()])), "descriptors");
    let unpack = Request::Unpack { layer: LayerId::parse(&"a".repeat(64)).unwrap(), compression: Compression::None };
    assert_eq!(field(&launcher.ask(&unpack, &[listener()])), "descriptors");
    assert_eq!(field(&launcher.ask(&Request::Bootstrap { recipe: "../x".into() }, &[listener()])), "recipe");
}

#[test]
fn silent_connections_cost_nobody_else_anything() {
    let launcher = Launcher::start(SLEEP, "");
    let silent: Vec<_> = (0..64).map(|_| launcher.connect_as(SERVICE).unwrap()).collect();
    let begun = Instant::now();
    // All places are taken until the silent ones have run out of patience: five seconds.
    assert!(matches!(launcher.ask(&Request::List {}, &[]), Answer::Sandboxes { .. }));
    assert!(begun.elapsed() < Duration::from_secs(40));
    assert!(silent.iter().all(|socket| receive(socket).is_none()), "they were hung up on");
}

#[test]
fn a_workspace_that_is_not_the_services_is_not_mounted() {
    let launcher = Launcher::start(SLEEP, "");
    let base = launcher.base();
    let start =
        |id: &str| launcher.ask(&Request::Start { plan: plan(id, 1, std::slice::from_ref(&base)) }, &[listener()]);
    let workspaces = launcher.state("workspaces");
    std::fs::create_dir_all(workspaces.join("roots/workspace")).unwrap();
    std::fs::create_dir_all(workspaces.join("link")).unwrap();
    std::os::unix::fs::symlink("/etc", workspaces.join("link/workspace")).unwrap();
    std::os::unix::fs::symlink("/", workspaces.join("parent")).unwrap();
    for (id, words) in
        [("roots", "belongs to uid 0"), ("link", "symbolic"), ("parent", "symbolic"), ("missing", "No such")]
    {
        let Answer::Failed { step, message, .. } = start(id) else { panic!("{id} was mounted") };
        assert!(step.contains("workspace") && message.contains(words), "{id}: {message}");
        assert!(!launcher.cgroup_of(id).exists());
    }
}

#[test]
fn a_limit_that_cannot_be_enforced_is_named_where_it_must_be() {
    let launcher = Launcher::start(SLEEP, "");
    let config = std::fs::read_to_string(launcher.path("launch.toml")).unwrap();
    let controllers =
        std::fs::read_to_string(launcher.cgroup_of("x").parent().unwrap().join("cgroup.controllers")).unwrap();
    if controllers.contains("pids") {
        return; // A host that has them all is what tests/it in a machine is for.
    }
    std::fs::write(launcher.path("launch.toml"), config.replace("best-effort", "enforce")).unwrap();
    let mut launcher = launcher;
    launcher.restart();
    let mut plan = plan("limited", 1, &[launcher.base()]);
    plan.limits.pids = Some(100);
    let Answer::Failed { message, .. } = launcher.start_sandbox(&plan) else { panic!("it was started") };
    assert!(message.contains("pids.max") && message.contains("no pids controller"), "{message}");
    assert!(!launcher.cgroup_of("limited").exists());
}

#[test]
fn a_missing_layer_is_named() {
    let launcher = Launcher::start(SLEEP, "");
    let layer = "b".repeat(64);
    let answer = launcher.start_sandbox(&plan("x", 1, &[LayerId::parse(&layer).unwrap()]));
    let Answer::Failed { step, .. } = answer else { panic!("{answer:?}") };
    assert!(step.contains(&layer), "{step}");
    let freeze = launcher.ask(&Request::Freeze { id: "x".parse_id() }, &[]);
    assert!(matches!(freeze, Answer::Failed { errno: Some(2), .. }), "{freeze:?}");
}
