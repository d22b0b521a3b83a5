//! Sandboxes that another OCI runtime starts: what they look like from inside, how they live and end, and what is told
//! of a runtime that is not there. A runtime that is not installed is skipped, and said to be.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

use it::daemon::{Options, wait_for};
use it::host::running;
use it::pair::{Pair, Which};
use it::{Daemon, Session};
use serde_json::json;

use crate::inside;

/// An instance whose sandboxes `runtime` starts; none where that is not installed.
fn start(runtime: &str, more: &[(&str, &str)]) -> Option<Daemon> {
    if !installed(runtime) {
        return None;
    }
    let options = Options::new().env("SANDBOXD_OCI_RUNTIME", runtime).env("SANDBOXD_MAX_SESSIONS", "100");
    Some(more.iter().fold(options, |options, (name, value)| options.env(name, value)).start())
}

fn installed(runtime: &str) -> bool {
    let there = Path::new("/usr/bin").join(runtime).exists();
    if !there {
        it::skipped(&format!("{runtime} is not installed; apt-get install {runtime}"));
    }
    there
}

/// What is otherwise where gVisor is the kernel, and why.
const OTHERWISE_IN_GVISOR: &[(&str, &str)] = &[
    (
        "a_ready_made_image_runs_as_its_own_user_in_its_own_range",
        "its kernel shows no mapping; the host's processes are in one",
    ),
    ("every_sandbox_has_a_range_of_its_own", "likewise"),
    ("commands_have_no_privilege_and_gain_none", "it shows no ambient set and no NoNewPrivs; the other sets are empty"),
    ("there_is_loopback_and_nothing_else", "it answers EHOSTUNREACH, not ENETUNREACH"),
    ("the_namespaces_are_not_the_host_s", "it has no links for some namespaces"),
    ("no_other_process_is_seen", "its /proc knows no hidepid: a command sees the init's name"),
    ("the_devices_are_the_usual_ones", "it has its own /dev/fuse and /dev/net/tun, which are not the host's"),
    ("the_init_cannot_be_harmed", "its /proc shows the init's maps and environment, which hold nothing"),
    ("a_write_layer_is_one_session_s", "its statx of 2022 refuses what ls of Debian 12 asks for"),
];

fn inside(runtime: &str) {
    let Some(daemon) = start(runtime, &[]) else { return };
    for (name, check) in inside::ALL {
        let otherwise = OTHERWISE_IN_GVISOR.iter().find(|(known, _)| runtime == "runsc" && known == name);
        println!("{runtime}: {name}{}", otherwise.map_or_else(String::new, |(_, why)| format!(": not tried: {why}")));
        if otherwise.is_none() {
            check(&daemon);
        }
    }
    started_by(&daemon.session("python"), runtime);
}

/// They differ in small ways; otherwise a test of crun could be one of libcontainer.
fn started_by(s: &Session, runtime: &str) {
    let core = s.run(["test", "-L", "/dev/core"]).code() == Some(0);
    assert_eq!(core, runtime == "crun", "/dev/core is crun's");
    assert_eq!(
        s.run(["grep", "-q", "^none / 9p ", "/proc/mounts"]).code() == Some(0),
        runtime == "runsc",
        "9p is gVisor's"
    );
    let table = s.run(["grep", "-c", " /sys .* - sysfs sysfs ro", "/proc/self/mountinfo"]);
    assert_eq!(table.stdout() == "1\n", runtime == "runc", "a read-only file system for /sys is runc's");
}

fn commands(runtime: &str) {
    let Some(daemon) = start(runtime, &[]) else { return };
    let s = daemon.session("python");
    s.run(["echo", "one two"]).expect("one two\n");
    let outcome = s.sh("echo out; echo err >&2; exit 7");
    assert_eq!((outcome.expect_code(7).stdout(), outcome.stderr()), ("out\n", "err\n"));
    s.sh("kill -TERM $$").expect_code(143);
    // A deadline ends everything that the command has started.
    let mark = format!("72{}.{}", std::process::id(), runtime.bytes().map(u32::from).sum::<u32>());
    let line = format!("setsid sleep {mark} & setsid sleep {mark}");
    let stopped = s.run_with(["sh", "-c", &line], json!({"timeout_seconds": 1.0}));
    assert_eq!(stopped.body["timed_out"], true, "{:?}", stopped.body);
    let gone = || (running(&format!("sleep {mark}")).is_empty() && s.sh(&alive(&mark)).stdout() == "0\n").then_some(());
    assert!(wait_for(Duration::from_secs(5), gone).is_some());
    // What a command leaves behind goes on.
    s.sh("sleep 2 && echo later > /workspace/later &").expect("");
    s.write("/workspace/dir/file", b"by the API").expect(204);
    s.sh("cat dir/file; python3 -c 'import os; print(os.stat(\"dir/file\").st_uid)'").expect("by the API10001\n");
    s.sh("echo by a command > /workspace/other; mkfifo pipe").expect("");
    assert_eq!(s.file("read", "/workspace/other").expect(200).text(), "by a command\n");
    let later = || (s.file("read", "/workspace/later").status == 200).then_some(());
    assert!(wait_for(Duration::from_secs(10), later).is_some(), "the background process was ended");
}

/// A command line that counts processes of the sandbox which sleep for `mark`: on the host those of gVisor have no name.
fn alive(mark: &str) -> String {
    format!(
        "for p in /proc/[0-9]*; do tr '\\0' ' ' < $p/cmdline; echo; done 2>/dev/null | grep -c '^sleep {mark}'; true"
    )
}

fn sleeps(runtime: &str) {
    let clocks = [("SANDBOXD_HIBERNATE_AFTER", "1"), ("SANDBOXD_CLEANUP_INTERVAL", "1")];
    let Some(daemon) = start(runtime, &clocks) else { return };
    let s = daemon.session("python");
    s.sh("echo kept > note; echo kept > /home/agent/note").expect("");
    let asleep = || (s.client.get(&s.path("")).expect(200).json()["state"] == "hibernated").then_some(());
    wait_for(Duration::from_secs(20), asleep).expect("it falls asleep");
    s.sh("cat note /home/agent/note").expect("kept\nkept\n");
}

/// The service is killed and finds its sandbox again; the sandbox ends and nothing of it is left.
fn outlives_the_service(runtime: &str) {
    if !installed(runtime) {
        return;
    }
    let mut pair = Pair::start(&[("SANDBOXD_OCI_RUNTIME", runtime), ("SANDBOXD_DEFAULT_RUNTIME", "python")]);
    let opened = pair.client.post("/sessions", json!({"session_id": "oci"})).expect(200).json();
    let client = pair.client.with_token(opened["token"].as_str().unwrap());
    let mark = format!("73{}.{}", std::process::id(), runtime.bytes().map(u32::from).sum::<u32>());
    let run = |line: &str| {
        let body = json!({"argv": ["sh", "-c", line], "run_id": it::session::run_id()});
        client.post("/sessions/oci/run", body).expect(200).json()
    };
    run(&format!("sleep {mark} &"));
    pair.kill(Which::Both);
    pair.revive();
    assert_eq!(run(&alive(&mark))["stdout"], "1\n", "its background process");
    assert_eq!(run("echo on")["stdout"], "on\n");
    pair.client.delete("/sessions/oci?purge=true").expect(204);
    assert!(running(&format!("sleep {mark}")).is_empty());
    assert_eq!(pair.leaks(&[].into()), Vec::<String>::new(), "{}", pair.said());
    for path in ["/run", "/var/run"] {
        let notes = Path::new(path).join(runtime);
        let left = fs::read_dir(&notes).map_or(0, Iterator::count);
        assert_eq!(left, 0, "{} has notes of a container", notes.display());
    }
    for device in ["null", "zero", "full", "tty", "random", "urandom"] {
        let stat = fs::metadata(Path::new("/dev").join(device)).unwrap();
        assert_eq!((stat.uid(), stat.mode() & 0o777), (0, 0o666), "the host's /dev/{device}");
    }
}

fn many(runtime: &str) {
    let Some(daemon) = start(runtime, &[]) else { return };
    let begun = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..12 {
            scope.spawn(|| daemon.session("base").run(["echo", "here"]).expect("here\n").code());
        }
    });
    println!("{runtime}: 12 sessions at once in {:?}", begun.elapsed());
}

macro_rules! runtimes {
    ($($runtime:ident),*) => {$(
        mod $runtime {
            const NAME: &str = stringify!($runtime);

            #[test]
            fn inside() {
                super::inside(NAME);
            }

            #[test]
            fn commands_and_files() {
                super::commands(NAME);
            }

            #[test]
            fn sleeps_and_wakes() {
                super::sleeps(NAME);
            }

            #[test]
            fn outlives_the_service_and_leaves_nothing() {
                super::outlives_the_service(NAME);
            }

            #[test]
            fn many_at_once() {
                super::many(NAME);
            }
        }
    )*};
}

runtimes!(crun, runc, runsc);

#[test]
fn a_runtime_s_own_is_its_alone() {
    if !installed("crun") {
        return;
    }
    let runtimes = r#"{"by-crun": {"runtime": "python", "oci_runtime": "crun"}, "built-in": {"runtime": "python"}}"#;
    let daemon = Options::new().env("SANDBOXD_RUNTIMES", runtimes).start();
    let policy = daemon.client.get("/policy").expect(200).json();
    let named: Vec<_> = policy["runtimes"].as_array().unwrap().iter().map(|r| r["oci_runtime"].clone()).collect();
    assert_eq!((&policy["oci_runtime"], named), (&json!(null), vec![json!(null), json!("crun")]));
    started_by(&daemon.session("by-crun"), "crun");
    started_by(&daemon.session("built-in"), "builtin");
}

/// What the service says when it does not start because of this.
fn refusal(environment: &[(&str, &str)], launcher: &str) -> String {
    let mut pair = Pair::prepare(environment, None, None);
    let file = pair.state.join("run/launch.toml");
    let config = fs::read_to_string(&file).unwrap();
    fs::write(&file, format!("{config}\n{launcher}\n")).unwrap();
    pair.start_launcher(None);
    pair.begin_service(None);
    assert!(!pair.ready(), "it started");
    pair.said()
}

#[test]
fn a_runtime_that_is_missing_stops_the_start_with_one_line() {
    let nowhere = "oci_runtimes = { crun = \"/nonexistent/crun\" }";
    let runtimes = r#"{"base": {"runtime": "base", "oci_runtime": "crun"}}"#;
    for (environment, place) in [
        (("SANDBOXD_OCI_RUNTIME", "crun"), "SANDBOXD_OCI_RUNTIME: "),
        (("SANDBOXD_RUNTIMES", runtimes), "runtime base: field oci_runtime: "),
    ] {
        let said = refusal(&[environment], nowhere);
        let line = said.lines().find(|line| line.contains("/nonexistent/crun")).unwrap_or_else(|| panic!("{said}"));
        assert!(line.contains(place) && line.contains("apt-get install crun"), "{line}");
    }
    // Nor is one that others than root could have written.
    let own = std::env::temp_dir().join(format!("sandboxd-it-oci-{}", std::process::id()));
    fs::copy("/bin/true", &own).unwrap();
    fs::set_permissions(&own, std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
    let said = refusal(&[("SANDBOXD_OCI_RUNTIME", "runc")], &format!("oci_runtimes = {{ runc = {own:?} }}"));
    fs::remove_file(&own).unwrap();
    assert!(said.contains("SANDBOXD_OCI_RUNTIME: ") && said.contains("must belong to root"), "{said}");
}

#[test]
fn a_program_that_is_no_runtime_is_an_answer_with_its_words() {
    let mut pair = Pair::prepare(&[("SANDBOXD_OCI_RUNTIME", "runc")], None, None);
    let own = pair.state.join("run/false-runtime");
    fs::write(&own, "#!/usr/lib/no-such-interpreter\n").unwrap();
    fs::set_permissions(&own, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let file = pair.state.join("run/launch.toml");
    let config = fs::read_to_string(&file).unwrap();
    fs::write(&file, format!("{config}\noci_runtimes = {{ runc = {own:?} }}\n")).unwrap();
    pair.start_launcher(None);
    pair.start_service(None);
    let answer = pair.client.post("/sessions", json!({"session_id": "never", "runtime": "python"}));
    assert_eq!(answer.status, 502, "{}", answer.text());
    assert!(answer.text().contains("runc did not start the sandbox"), "{}", answer.text());
    assert_eq!(pair.leaks(&[].into()), Vec::<String>::new());
}
