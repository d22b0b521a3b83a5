//! Ends: background processes, stopping, and nothing left.

use std::time::{Duration, Instant};

use wire::init::{FromInit, Status, ToInit};

use crate::sandbox::{PATIENCE, Sandbox, command};

fn stop(sandbox: &Sandbox, run: wire::id::RunId, grace_ms: u32) {
    sandbox.client.send(&ToInit::Stop { run, grace_ms }, &[]);
}

#[test]
fn a_background_child_outlives_the_command() {
    let sandbox = Sandbox::new();
    let mut run = sandbox.client.run(command(&["sh", "-c", "sleep 1000 & echo started"]));
    assert_eq!(run.line(), "started");
    assert_eq!(sandbox.client.exited(run.id), Status::Code(0));
    assert_eq!(sandbox.cgroups(), [run.id.to_string()]);
    stop(&sandbox, run.id, 1000);
    assert_eq!(sandbox.client.message(), FromInit::Emptied { run: run.id });
    assert_eq!(sandbox.cgroups(), Vec::<String>::new());
}

#[test]
fn a_background_child_that_ends_by_itself_empties_the_run() {
    let mut sandbox = Sandbox::new();
    let run = sandbox.client.run(command(&["sh", "-c", "(sleep 0.2; sleep 0.2) & exit 3"]));
    assert_eq!(sandbox.client.exited(run.id), Status::Code(3));
    assert_eq!(sandbox.client.message(), FromInit::Emptied { run: run.id });
    assert_eq!(sandbox.cgroups(), Vec::<String>::new());
    assert_eq!(sandbox.sh("echo on").out, "on\n");
}

#[test]
fn daemons_that_hide_are_stopped_with_their_run_alone() {
    let sandbox = Sandbox::new();
    let script =
        "for i in 1 2 3; do setsid sh -c 'trap \"\" TERM HUP; setsid sleep 1000 & echo up; sleep 1000' & done; wait";
    let mut run = sandbox.client.run(command(&["sh", "-c", script]));
    let mut other = sandbox.client.run(command(&["sh", "-c", "echo up; sleep 1; echo alive"]));
    for line in [run.line(), run.line(), run.line(), other.line()] {
        assert_eq!(line, "up");
    }
    let before = Instant::now();
    stop(&sandbox, run.id, 100);
    sandbox.client.until(|message| *message == FromInit::Emptied { run: run.id });
    let took = before.elapsed();
    assert!(took > Duration::from_millis(90) && took < Duration::from_secs(30), "{took:?}");
    assert_eq!(other.line(), "alive");
    sandbox.client.emptied(other.id);
}

#[test]
fn stop_asks_before_it_kills() {
    let sandbox = Sandbox::new();
    let script = "trap 'echo asked; exit 5' TERM; echo up; while :; do sleep 0.05; done";
    let mut run = sandbox.client.run(command(&["sh", "-c", script]));
    assert_eq!(run.line(), "up");
    stop(&sandbox, run.id, 10_000);
    assert_eq!(run.line(), "asked");
    assert_eq!(sandbox.client.exited(run.id), Status::Code(5));
    sandbox.client.emptied(run.id);
}

#[test]
fn a_second_stop_can_only_hasten_the_end() {
    let sandbox = Sandbox::new();
    let mut run = sandbox.client.run(command(&["sh", "-c", "trap '' TERM; echo up; while :; do sleep 0.05; done"]));
    assert_eq!(run.line(), "up");
    stop(&sandbox, run.id, 600_000);
    stop(&sandbox, run.id, 0);
    stop(&sandbox, run.id, 600_000);
    let before = Instant::now();
    assert_eq!(sandbox.client.exited(run.id), Status::Signal(9));
    sandbox.client.emptied(run.id);
    assert!(before.elapsed() < Duration::from_secs(30));
    // Of a run that is over, and of one that never was: nothing.
    stop(&sandbox, run.id, 0);
    stop(&sandbox, wire::id::RunId::from_u128(1), 0);
}

#[test]
fn a_stopped_process_is_ended_too() {
    let sandbox = Sandbox::new();
    let mut run = sandbox.client.run(command(&["sh", "-c", "trap '' TERM; echo up; kill -STOP $$"]));
    assert_eq!(run.line(), "up");
    stop(&sandbox, run.id, 50);
    assert_eq!(sandbox.client.exited(run.id), Status::Signal(9));
}

#[test]
fn a_signal_reaches_the_main_process() {
    let sandbox = Sandbox::new();
    let mut run =
        sandbox.client.run(command(&["sh", "-c", "trap 'exit 9' INT; echo up; while :; do sleep 0.02; done"]));
    assert_eq!(run.line(), "up");
    for signal in [0, 200, 2] {
        sandbox.client.send(&ToInit::Signal { run: run.id, signal }, &[]);
    }
    assert_eq!(sandbox.client.exited(run.id), Status::Code(9));
}

#[test]
fn a_fork_bomb_is_stopped() {
    let sandbox = Sandbox::new();
    // Bounded by the user's limit; each process ignores TERM and starts others.
    let script = "ulimit -u 150; trap '' TERM; bomb() { bomb | bomb & }; echo up; while :; do bomb 2>/dev/null; done";
    let mut run = sandbox.client.run(command(&["bash", "-c", script]));
    assert_eq!(run.line(), "up");
    std::thread::sleep(Duration::from_millis(300));
    let before = Instant::now();
    stop(&sandbox, run.id, 100);
    sandbox.client.emptied(run.id);
    assert!(before.elapsed() < Duration::from_secs(60), "{:?}", before.elapsed());
    assert_eq!(sandbox.cgroups(), Vec::<String>::new());
}

#[test]
fn a_command_that_stops_every_process_does_not_hold_the_init() {
    let mut sandbox = Sandbox::new();
    let mut storm = sandbox.client.run(sandbox.probe("storm"));
    while storm.line() != "probe storm" {}
    for _ in 0..200 {
        let victim = sandbox.client.run(command(&["true"]));
        stop(&sandbox, victim.id, 20);
        let before = Instant::now();
        sandbox.client.emptied(victim.id);
        assert!(before.elapsed() < Duration::from_secs(30));
    }
    stop(&sandbox, storm.id, 0);
    sandbox.client.emptied(storm.id);
    assert_eq!(sandbox.sh("echo on").out, "on\n");
}

#[test]
fn a_thousand_runs_leave_no_cgroup_and_no_zombie() {
    let mut sandbox = Sandbox::new();
    for _ in 0..1000 {
        assert_eq!(sandbox.output(command(&["true"])).code, 0);
    }
    assert_eq!(sandbox.cgroups(), Vec::<String>::new());
    // Orphans are reaped as well: after them there are the init, sh, ps.
    sandbox.sh("for i in 1 2 3 4 5 6 7 8; do (sleep 0.05 &) ; done; sleep 0.2");
    let count = sandbox.sh("ls -d /proc/[0-9]* | wc -l").out;
    assert!(count.trim().parse::<u32>().unwrap() <= 4, "{count}");
}

#[test]
fn many_runs_at_once_each_have_their_own_end() {
    let sandbox = Sandbox::new();
    let mut runs: Vec<_> =
        (0..100_u8).map(|i| (i, sandbox.client.run(command(&["sh", "-c", &format!("echo {i}; exit {i}")])))).collect();
    let mut codes = std::collections::HashMap::new();
    let mut emptied = 0;
    let before = Instant::now();
    while emptied < runs.len() && before.elapsed() < PATIENCE {
        match sandbox.client.message() {
            FromInit::Exited { run, status, .. } => drop(codes.insert(run, status)),
            FromInit::Emptied { .. } => emptied += 1,
            other => panic!("{other:?}"),
        }
    }
    for (i, run) in &mut runs {
        assert_eq!(codes[&run.id], Status::Code(*i));
        assert_eq!(run.read_all().0, format!("{i}\n"));
    }
}
