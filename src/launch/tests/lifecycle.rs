//! A sandbox from start to removal, and that nothing of it is left.
#![allow(clippy::unwrap_used, clippy::expect_used)] // Helpers of tests fail by panicking, as tests do.
mod common;

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use common::{DISK, Launcher, ParseId, SLEEP, Tar, plan, wait_for};
use wire::id::LayerId;
use wire::launch::{Answer, Kind, Plan, Request};

fn started(answer: &Answer) -> &str {
    match answer {
        Answer::Started { cgroup, .. } => cgroup,
        other => panic!("not started: {other:?}"),
    }
}

/// Processes with an id of the sandbox's, or in its cgroup.
fn processes(launcher: &Launcher, id: &str) -> Vec<String> {
    let cgroup = format!("sandbox-{id}");
    std::fs::read_dir("/proc")
        .unwrap()
        .filter_map(|entry| {
            let path = entry.ok()?.path();
            let inside = std::fs::read_to_string(path.join("cgroup")).ok()?;
            let ours =
                inside.contains(&cgroup) && inside.contains(launcher.cgroup_of(id).parent()?.file_name()?.to_str()?);
            ours.then(|| std::fs::read_to_string(path.join("comm")).unwrap_or_default())
        })
        .collect()
}

fn mounts() -> BTreeSet<String> {
    let own = "launch-test-";
    let text = std::fs::read_to_string("/proc/mounts").unwrap();
    text.lines().filter(|line| line.contains(own)).map(str::to_owned).collect()
}

fn files(path: &std::path::Path) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut dirs = vec![path.to_owned()];
    while let Some(dir) = dirs.pop() {
        for entry in std::fs::read_dir(dir).unwrap() {
            let entry = entry.unwrap();
            if entry.file_type().unwrap().is_dir() {
                dirs.push(entry.path());
            }
            found.insert(entry.path().to_str().unwrap().to_owned());
        }
    }
    found
}

#[test]
fn start_stop_and_forget_leave_nothing() {
    let launcher = Launcher::start(SLEEP, "");
    let base = launcher.base();
    wait_for("the trash is empty", || std::fs::read_dir(launcher.state(".trash")).unwrap().count() == 0);
    let before = files(launcher.dir.path());
    for id in ["one", "two"] {
        let answer = launcher.start_sandbox(&plan(id, 1, std::slice::from_ref(&base)));
        assert_eq!(started(&answer), launcher.cgroup_of(id).to_str().unwrap());
        assert_eq!(processes(&launcher, id).len(), 1, "the init and nobody else");
        assert_eq!(mounts(), BTreeSet::new(), "the host sees no mount");
        launcher.stop(id);
        launcher.stop(id);
        wait_for("they are reaped", || processes(&launcher, id).is_empty());
        assert!(!launcher.cgroup_of(id).exists());
        assert!(launcher.state("sessions").join(id).join("upper").is_dir(), "the write layer stays");
        assert_eq!(launcher.ask(&Request::Forget { id: id.parse_id() }, &[]), Answer::Done);
        assert_eq!(launcher.ask(&Request::Forget { id: id.parse_id() }, &[]), Answer::Done);
        assert_eq!(launcher.ask(&Request::RemoveWorkspace { id: id.parse_id() }, &[]), Answer::Done);
    }
    wait_for("the trash is empty", || std::fs::read_dir(launcher.state(".trash")).unwrap().count() == 0);
    assert_eq!(files(launcher.dir.path()), before);
}

#[test]
fn a_failed_start_leaves_nothing() {
    let launcher = Launcher::start("exit 1", "");
    let (link, _) = launcher.unpack_tar(Tar::new().symlink("workspace", "/etc").done());
    let answer = launcher.start_sandbox(&plan("bad", 1, &[link, launcher.base()]));
    assert!(matches!(answer, Answer::Failed { .. }), "{answer:?}");
    assert!(!launcher.cgroup_of("bad").exists());
    assert_eq!(mounts(), BTreeSet::new());
    // No shell in the image: the init cannot be executed, libcontainer says so.
    let (empty, _) = launcher.unpack_tar(Tar::new().dir("bin").done());
    let answer = launcher.start_sandbox(&plan("empty", 1, &[empty]));
    let Answer::Failed { message, errno, .. } = answer else { panic!("{answer:?}") };
    assert_eq!((message.as_str(), errno), ("execute the init: No such file or directory (os error 2)", Some(2)));
    wait_for("they are reaped", || processes(&launcher, "empty").is_empty());
    assert!(!launcher.cgroup_of("empty").exists());
}

#[test]
fn what_a_session_writes_is_there_after_a_stop() {
    let script =
        "[ -e /kept ] && echo > /workspace/again; echo > /kept; echo > /workspace/done; exec busybox sleep 1000";
    let launcher = Launcher::start(script, "");
    let plan = plan("s", 1, &[launcher.base()]);
    for slot in [1, 2] {
        started(&launcher.start_sandbox(&Plan { slot, ..plan.clone() }));
        launcher.report("s", "done");
        launcher.stop("s");
        std::fs::remove_file(launcher.state("workspaces/s/workspace/done")).unwrap();
    }
    assert!(launcher.state("workspaces/s/workspace/again").exists(), "in another slot, too");
}

#[test]
fn one_sandbox_of_a_name_and_requests_for_it_in_turn() {
    let launcher = Launcher::start(SLEEP, "");
    let plan = plan("same", 1, &[launcher.base()]);
    launcher.make_workspace("same");
    let answers: Vec<Answer> = std::thread::scope(|scope| {
        let ask = || launcher.start_sandbox(&plan);
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(ask)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let count = answers.iter().filter(|answer| matches!(answer, Answer::Started { .. })).count();
    assert_eq!(count, 1, "{answers:?}");
    assert!(answers.iter().all(|answer| match answer {
        Answer::Failed { message, .. } => message.contains("is running"),
        _ => true,
    }));
    assert_eq!(processes(&launcher, "same").len(), 1);
    let busy = launcher.ask(&Request::Forget { id: "same".parse_id() }, &[]);
    assert!(matches!(busy, Answer::Failed { .. }), "a running session was forgotten: {busy:?}");
    let commit = Request::Commit { build: "same".parse_id(), layer: LayerId::parse(&"c".repeat(64)).unwrap() };
    assert!(matches!(launcher.ask(&commit, &[]), Answer::Failed { .. }));
}

#[test]
fn many_start_at_once() {
    let launcher = Launcher::start(SLEEP, "");
    let base = launcher.base();
    std::thread::scope(|scope| {
        for slot in 1..=24 {
            let (launcher, base) = (&launcher, &base);
            scope.spawn(move || {
                let answer = launcher.start_sandbox(&plan(&format!("many-{slot}"), slot, std::slice::from_ref(base)));
                started(&answer);
            });
        }
    });
    let Answer::Sandboxes { sandboxes } = launcher.ask(&Request::List {}, &[]) else { panic!() };
    assert_eq!(sandboxes.len(), 24);
    std::thread::scope(|scope| {
        for slot in 1..=24 {
            let launcher = &launcher;
            scope.spawn(move || launcher.stop(&format!("many-{slot}")));
        }
    });
    assert_eq!(launcher.ask(&Request::List {}, &[]), Answer::Sandboxes { sandboxes: vec![] });
}

#[test]
fn frozen_and_thawed() {
    let launcher = Launcher::start("while :; do echo >> /workspace/ticks; busybox usleep 1000; done", "");
    started(&launcher.start_sandbox(&plan("cold", 1, &[launcher.base()])));
    let ticks = || std::fs::metadata(launcher.state("workspaces/cold/workspace/ticks")).map_or(0, |m| m.len());
    wait_for("it ticks", || ticks() > 0);
    let list = || match launcher.ask(&Request::List {}, &[]) {
        Answer::Sandboxes { sandboxes } => sandboxes[0].frozen,
        other => panic!("{other:?}"),
    };
    assert_eq!(launcher.ask(&Request::Freeze { id: "cold".parse_id() }, &[]), Answer::Done);
    assert!(list());
    let before = ticks();
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(ticks(), before);
    assert_eq!(launcher.ask(&Request::Thaw { id: "cold".parse_id() }, &[]), Answer::Done);
    assert!(!list());
    wait_for("it ticks again", || ticks() > before);
    assert_eq!(launcher.ask(&Request::Freeze { id: "cold".parse_id() }, &[]), Answer::Done);
    launcher.stop("cold");
}

#[test]
fn a_build_becomes_a_layer() {
    let script = "echo built > /result; busybox chown 7:8 /result; echo cached > /var/cache/sandboxd-build/pip/wheel
        busybox ls /workspace 2>/nothing; echo \"$@\" > /arguments; busybox cat /etc/hosts > /hosts; echo > /finished; exec busybox sleep 1000";
    let launcher = Launcher::start(script, "allow_host_network_builds = true");
    let base = launcher.base();
    // As in images of systems with a resolver of their own.
    let (link, _) = launcher.unpack_tar(Tar::new().dir("etc").symlink("etc/hosts", "../run/hosts").done());
    let build = Plan {
        kind: Kind::Build,
        network: wire::launch::Network::Host,
        tmpfs_bytes: None,
        ..plan("build", 2, &[link, base.clone()])
    };
    started(&launcher.ask(&Request::Start { plan: build }, &[common::listener()]));
    let upper = launcher.state("sessions/build/upper");
    wait_for("it is built", || std::fs::read(upper.join("finished")).is_ok());
    let layer = LayerId::parse(&"d".repeat(64)).unwrap();
    launcher.stop("build");
    let commit = Request::Commit { build: "build".parse_id(), layer: layer.clone() };
    assert_eq!(launcher.ask(&commit, &[]), Answer::Done);
    assert_eq!(launcher.ask(&commit, &[]), Answer::Done);
    assert_eq!(launcher.ask(&Request::Forget { id: "build".parse_id() }, &[]), Answer::Done);
    let at = launcher.state("images/layers").join(layer.as_str());
    let metadata = std::fs::metadata(at.join("result")).unwrap();
    use std::os::unix::fs::MetadataExt;
    assert_eq!((metadata.uid(), metadata.gid()), (DISK + 7, DISK + 8));
    assert_eq!(std::fs::read_to_string(at.join("arguments")).unwrap(), "--build\n");
    assert_eq!(std::fs::read_to_string(at.join("hosts")).unwrap(), std::fs::read_to_string("/etc/hosts").unwrap());
    assert_eq!(std::fs::read(at.join("etc/hosts")).unwrap(), b"", "only the mount point is the layer's");
    assert_eq!(std::fs::read_to_string(launcher.state("cache/build/pip/wheel")).unwrap(), "cached\n");
    std::fs::write(
        launcher.path("init"),
        "#!/bin/busybox sh\nbusybox cp /result /workspace/\necho > /workspace/done\nexec busybox sleep 100\n",
    )
    .unwrap();
    started(&launcher.start_sandbox(&plan("use", 1, &[layer, base])));
    assert_eq!(launcher.report("use", "result"), "built\n");
}

#[test]
fn sandboxes_go_on_when_the_launcher_dies() {
    let mut launcher = Launcher::start(SLEEP, "");
    started(&launcher.start_sandbox(&plan("survivor", 1, &[launcher.base()])));
    std::fs::create_dir(launcher.state("images/layers/.staging-half")).unwrap();
    std::fs::create_dir(launcher.state("bootstrap/debian@1")).unwrap();
    std::fs::create_dir(launcher.cgroup_of("half")).unwrap();
    std::fs::create_dir_all(launcher.state(".trash/half/removed")).unwrap();
    launcher.restart();
    let Answer::Sandboxes { sandboxes } = launcher.ask(&Request::List {}, &[]) else { panic!() };
    assert_eq!(sandboxes.iter().map(|s| s.id.as_str()).collect::<Vec<_>>(), ["survivor"]);
    assert!(!launcher.state("images/layers/.staging-half").exists(), "a half layer is swept");
    assert!(!launcher.cgroup_of("half").exists(), "an empty cgroup is swept");
    wait_for("the rest is swept", || std::fs::read_dir(launcher.state(".trash")).unwrap().count() == 0);
    launcher.stop("survivor");
}

#[test]
fn sigterm_finishes_what_was_begun() {
    let mut launcher = Launcher::start(SLEEP, "");
    launcher.base();
    let pid = rustix::process::Pid::from_child(&launcher.process);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    let begun = Instant::now();
    assert!(launcher.process.wait().unwrap().success());
    assert!(begun.elapsed() < Duration::from_secs(30));
}

#[test]
fn it_serves_a_socket_that_it_is_given() {
    let mut launcher = Launcher::start(SLEEP, "");
    let path = launcher.path("given.sock");
    let socket = common::listener_at(&path);
    std::os::unix::fs::chown(&path, Some(common::SERVICE), None).unwrap();
    launcher.restart_with(socket);
    std::fs::remove_file(launcher.path("launch.sock")).unwrap();
    std::fs::rename(path, launcher.path("launch.sock")).unwrap();
    started(&launcher.start_sandbox(&plan("given", 1, &[launcher.base()])));
    launcher.stop("given");
}

#[test]
fn a_host_whose_mounts_are_shared_as_systemd_makes_them() {
    let mut launcher = Launcher::start(SLEEP, "");
    launcher.restart_in(&["unshare", "--mount", "--propagation", "shared"]);
    let mounts = || std::fs::read_to_string(format!("/proc/{}/mounts", launcher.process.id())).unwrap();
    let before = mounts();
    started(&launcher.start_sandbox(&plan("shared", 1, &[launcher.base()])));
    assert_eq!(mounts(), before, "nothing propagates to the host");
    launcher.stop("shared");
}

#[test]
fn a_cache_that_a_build_gave_away_is_taken_back() {
    use std::os::unix::fs::{MetadataExt, chown};
    let mut launcher = Launcher::start(SLEEP, "");
    let cache = launcher.state("cache/build/pip");
    std::fs::write(cache.join("kept"), "").unwrap();
    let given = DISK + 10_001;
    chown(&cache, Some(given), Some(given)).unwrap();
    common::chmod(&cache, 0o700);
    launcher.restart();
    let stat = std::fs::metadata(&cache).unwrap();
    assert_eq!((stat.uid(), stat.gid(), stat.mode() & 0o7777), (DISK, DISK, 0o755));
    assert!(cache.join("kept").exists());
}
