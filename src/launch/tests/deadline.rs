//! Requests that hang, or whose process dies: they are answered, and undone.
#![allow(clippy::unwrap_used, clippy::expect_used)] // Helpers of tests fail by panicking, as tests do.
mod common;

use std::time::{Duration, Instant};

use common::{Launcher, ParseId, SLEEP, plan, receive, send, wait_for};
use wire::launch::{Answer, Request};

/// Hold everything still that is born in the launcher's cgroups: a launch hangs at its first helper.
fn hold(launcher: &Launcher, still: bool) {
    let file = launcher.cgroup_of("x").parent().unwrap().join("cgroup.freeze");
    std::fs::write(file, if still { "1" } else { "0" }).unwrap();
}

#[test]
fn a_launch_that_hangs_is_undone() {
    let launcher = Launcher::start(SLEEP, "launch_timeout_seconds = 1");
    let plan = plan("slow", 1, &[launcher.base()]);
    hold(&launcher, true);
    let begun = Instant::now();
    let answer = launcher.start_sandbox(&plan);
    let Answer::Failed { step, message, .. } = answer else { panic!("{answer:?}") };
    assert_eq!(step, "start sandbox slow");
    assert!(message.contains("longer than 1 s"), "{message}");
    assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
    assert!(!launcher.cgroup_of("slow").exists());
    hold(&launcher, false);
    assert!(matches!(launcher.start_sandbox(&plan), Answer::Started { .. }));
}

#[test]
fn a_launcher_killed_in_the_middle_leaves_what_the_next_one_removes() {
    let mut launcher = Launcher::start(SLEEP, "launch_timeout_seconds = 1");
    let plan = plan("half", 1, &[launcher.base()]);
    launcher.make_workspace("half");
    hold(&launcher, true);
    let socket = launcher.connect_as(common::SERVICE).unwrap();
    send(&socket, &serde_json::to_vec(&Request::Start { plan: plan.clone() }).unwrap(), &[common::listener()]);
    wait_for("the launch has begun", || launcher.cgroup_of("half").exists());
    launcher.restart();
    assert_eq!(launcher.ask(&Request::Stop { id: "half".parse_id() }, &[]), Answer::Done);
    hold(&launcher, false);
    assert!(!matches!(receive(&socket), Some(Answer::Started { .. })));
    wait_for("nothing of it is left", || !launcher.cgroup_of("half").exists());
    assert!(matches!(launcher.start_sandbox(&plan), Answer::Started { .. }));
}

#[test]
fn a_request_whose_process_is_killed_is_answered() {
    let launcher = Launcher::start(SLEEP, "");
    let plan = plan("killed", 1, &[launcher.base()]);
    launcher.make_workspace("killed");
    hold(&launcher, true);
    let socket = launcher.connect_as(common::SERVICE).unwrap();
    send(&socket, &serde_json::to_vec(&Request::Start { plan }).unwrap(), &[common::listener()]);
    wait_for("the launch has begun", || launcher.cgroup_of("killed").exists());
    let children = format!("/proc/{0}/task/{0}/children", launcher.process.id());
    let children = std::fs::read_to_string(children).unwrap();
    for child in children.split_whitespace() {
        let pid = rustix::process::Pid::from_raw(child.parse().unwrap()).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    }
    let Some(Answer::Failed { message, .. }) = receive(&socket) else { panic!("no answer") };
    assert!(message.contains("died"), "{message}");
    assert!(!launcher.cgroup_of("killed").exists());
    hold(&launcher, false);
}

#[test]
fn recipes_print_a_file_system_or_say_why_not() {
    use std::io::Read;
    let launcher = Launcher::start(SLEEP, "bootstrap_timeout_seconds = 1");
    let recipe = |name: &str, text: &str, mode| {
        let path = launcher.path("recipes").join(name);
        std::fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
        common::chmod(&path, mode);
    };
    recipe("good", "echo out; echo > here; pwd; echo \"$0 $$ $(env | wc -l)\"; ls /proc/1/exe >/dev/null", 0o755);
    recipe("bad", "echo complaint >&2; exit 3", 0o755);
    recipe("theirs", "true", 0o777);
    recipe("slow", "sleep 100 & sleep 100; true", 0o755);
    let run = |name: &str| {
        let mut out = tempfile::tempfile().unwrap();
        let answer = launcher.ask(&Request::Bootstrap { recipe: name.into() }, &[out.try_clone().unwrap().into()]);
        let mut text = String::new();
        std::io::Seek::rewind(&mut out).unwrap();
        out.read_to_string(&mut text).unwrap();
        (answer, text)
    };
    let (answer, text) = run("good");
    assert_eq!(answer, Answer::Done);
    assert!(text.starts_with("out\n/tmp\n/tmp/recipes/good 2 "), "{text}");
    let (answer, _) = run("bad");
    let Answer::Failed { step, message, .. } = answer else { panic!("{answer:?}") };
    assert_eq!(step, "run recipe bad");
    assert!(message.contains("exit status: 3: complaint"), "{message}");
    let (answer, _) = run("theirs");
    assert!(
        matches!(&answer, Answer::Failed { message, .. } if message.contains("writable by nobody else")),
        "{answer:?}"
    );
    let (answer, _) = run("missing");
    assert!(matches!(answer, Answer::Failed { errno: Some(2), .. }), "{answer:?}");
    let (answer, _) = run("slow");
    assert!(matches!(&answer, Answer::Failed { message, .. } if message.contains("longer than 1 s")), "{answer:?}");
    wait_for("nothing of a recipe is left", || {
        ["bootstrap", ".trash"].iter().all(|dir| std::fs::read_dir(launcher.state(dir)).unwrap().count() == 0)
    });
    wait_for("no process of it is left", || {
        !std::fs::read_dir("/proc").unwrap().filter_map(Result::ok).any(|entry| {
            std::fs::read_to_string(entry.path().join("cmdline")).is_ok_and(|line| line.contains("recipes/slow"))
        })
    });
}

#[test]
fn an_unpacking_that_takes_too_long_is_ended() {
    let launcher = Launcher::start(SLEEP, "unpack_timeout_seconds = 1\nmax_layer_bytes = 1099511627776");
    // A device of 512 GiB, which is skipped by reading it: a file of one block and a hole.
    let size: u64 = 512 << 30;
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(tar::EntryType::Block);
    header.set_path("device").unwrap();
    header.set_size(size);
    header.set_cksum();
    let mut blob = tempfile::tempfile().unwrap();
    std::io::Write::write_all(&mut blob, header.as_bytes()).unwrap();
    blob.set_len(size + 2048).unwrap();
    std::io::Seek::rewind(&mut blob).unwrap();
    let layer = wire::id::LayerId::parse(&"e".repeat(64)).unwrap();
    let request = Request::Unpack { layer, compression: wire::launch::Compression::None };
    let answer = launcher.ask(&request, &[blob.into()]);
    assert!(matches!(&answer, Answer::Failed { message, .. } if message.contains("longer than 1 s")), "{answer:?}");
    let config = launcher.path("launch.toml");
    wait_for("nobody works on it any more", || {
        let ours = std::fs::read_dir("/proc").unwrap().filter_map(Result::ok).filter(|entry| {
            std::fs::read_to_string(entry.path().join("cmdline"))
                .is_ok_and(|line| line.contains(config.to_str().unwrap()))
        });
        ours.count() == 1
    });
    wait_for("nothing of it is left", || {
        ["images/layers", ".trash"].iter().all(|dir| std::fs::read_dir(launcher.state(dir)).unwrap().count() == 0)
    });
}
