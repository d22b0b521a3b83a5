//! Runs that are over: told again to whoever asks, until their end is recorded.

use std::time::{Duration, Instant};

use wire::id::RunId;
use wire::init::{FromInit, MAX_ENDED, MAX_NOTE, Status, Step, ToInit};

use crate::sandbox::{PATIENCE, Sandbox, command};

/// What is told of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Told {
    run: RunId,
    note: Vec<u8>,
    age_ms: u64,
    exited: Option<Status>,
    forgotten: bool,
    streams: bool,
}

/// Asks, when nothing else is under way.
fn list(sandbox: &Sandbox) -> Vec<Told> {
    sandbox.client.send(&ToInit::List, &[]);
    let FromInit::Runs { count } = sandbox.client.message() else { panic!("no list") };
    let told = (0..count).map(|_| {
        let (message, fds) = sandbox.client.receive().unwrap();
        let FromInit::Listed { run, note, age_ms, exited, forgotten, streams } = message else { panic!("{message:?}") };
        assert_eq!(fds.len(), if streams { 2 } else { 0 });
        Told { run, note, age_ms, exited, forgotten, streams }
    });
    told.collect()
}

fn forget(sandbox: &Sandbox, run: RunId) {
    sandbox.client.send(&ToInit::Forget { run }, &[]);
}

/// Waits, connected to nothing, until no cgroup of a command is left.
fn until_over(sandbox: &Sandbox) {
    let deadline = Instant::now() + PATIENCE;
    while !sandbox.cgroups().is_empty() {
        assert!(Instant::now() < deadline);
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn what_ends_while_nobody_is_connected_is_told_until_it_is_recorded() {
    let mut sandbox = Sandbox::new();
    let id = RunId::from_u128(7);
    let mut run = sandbox.client.run_noted(id, b"note".to_vec(), command(&["sh", "-c", "echo up; sleep 0.3; exit 5"]));
    assert_eq!(run.line(), "up");
    rustix::net::shutdown(&sandbox.client.socket, rustix::net::Shutdown::Both).unwrap();
    until_over(&sandbox);
    for _ in 0..2 {
        sandbox.reconnect();
        let told = list(&sandbox);
        let [one] = told.as_slice() else { panic!("{told:?}") };
        let exited = Some(Status::Code(5));
        let expected =
            Told { run: id, note: b"note".to_vec(), age_ms: one.age_ms, exited, forgotten: false, streams: false };
        assert_eq!(*one, expected);
        // Its age does not go on.
        assert!((300..5000).contains(&one.age_ms), "{}", one.age_ms);
    }
    forget(&sandbox, id);
    assert_eq!(list(&sandbox), []);
    sandbox.reconnect();
    assert_eq!(list(&sandbox), []);
}

#[test]
fn an_end_that_was_told_is_listed_until_it_is_recorded() {
    let mut sandbox = Sandbox::new();
    let runs: Vec<RunId> = (0..3).map(|_| sandbox.client.run(command(&["true"])).id).collect();
    let mut emptied = 0;
    while emptied < runs.len() {
        emptied += usize::from(matches!(sandbox.client.message(), FromInit::Emptied { .. }));
    }
    let names = |sandbox: &Sandbox| {
        let mut names: Vec<RunId> = list(sandbox).iter().map(|told| told.run).collect();
        names.sort();
        names
    };
    assert_eq!(names(&sandbox), runs);
    forget(&sandbox, runs[1]);
    // Unknown ones: nothing.
    forget(&sandbox, runs[1]);
    forget(&sandbox, RunId::from_u128(1));
    sandbox.reconnect();
    assert_eq!(names(&sandbox), [runs[0], runs[2]]);
}

#[test]
fn a_run_that_is_recorded_before_it_is_over_is_not_told_afterwards() {
    let sandbox = Sandbox::new();
    let run = sandbox.client.run_noted(RunId::from_u128(3), vec![1], command(&["sh", "-c", "sleep 1000 & exit 4"]));
    assert_eq!(sandbox.client.exited(run.id), Status::Code(4));
    let before = list(&sandbox);
    let [left] = before.as_slice() else { panic!("{before:?}") };
    assert_eq!((left.exited, left.forgotten, left.streams), (Some(Status::Code(4)), false, true));
    assert_eq!(left.note, [1]);
    forget(&sandbox, run.id);
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(list(&sandbox), [Told { forgotten: true, ..left.clone() }]);
    sandbox.client.send(&ToInit::Stop { run: run.id, grace_ms: 0 }, &[]);
    sandbox.client.emptied(run.id);
    assert_eq!(list(&sandbox), []);
}

#[test]
fn the_oldest_ends_give_way() {
    let sandbox = Sandbox::new();
    let ids: Vec<RunId> = (0..MAX_ENDED as u128 + 3).map(RunId::from_u128).collect();
    for id in &ids {
        let _run = sandbox.client.run_as(*id, command(&["true"]));
        sandbox.client.emptied(*id);
    }
    let told: Vec<RunId> = list(&sandbox).iter().map(|told| told.run).collect();
    assert_eq!(told, ids[3..]);
}

#[test]
fn a_name_belongs_to_its_latest_run() {
    let mut sandbox = Sandbox::new();
    let id = RunId::from_u128(9);
    let _first = sandbox.client.run_noted(id, vec![1], command(&["false"]));
    sandbox.client.emptied(id);
    let mut second = sandbox.client.run_noted(id, vec![2], command(&["sh", "-c", "echo up; exec sleep 1000"]));
    assert_eq!(second.line(), "up");
    let told = list(&sandbox);
    assert_eq!(told.len(), 1, "{told:?}");
    assert_eq!((told[0].note.as_slice(), told[0].exited, told[0].streams), (&[2][..], None, true));
    sandbox.client.send(&ToInit::Stop { run: id, grace_ms: 0 }, &[]);
    sandbox.client.emptied(id);
    // One that is refused was never there.
    assert_eq!(sandbox.refusal(command(&["/nowhere"])), (Step::Exec, libc::ENOENT));
    let told = list(&sandbox);
    assert_eq!(told.len(), 1, "{told:?}");
    assert_eq!((told[0].note.as_slice(), told[0].exited), (&[2][..], Some(Status::Signal(9))));
}

#[test]
fn a_note_is_bounded() {
    let sandbox = Sandbox::new();
    let id = RunId::from_u128(5);
    let _long = sandbox.client.run_noted(id, vec![7; MAX_NOTE + 1], command(&["true"]));
    let refused = FromInit::Refused { run: id, step: Step::Request, errno: libc::EINVAL };
    assert_eq!(sandbox.client.message(), refused);
    let _fits = sandbox.client.run_noted(id, vec![7; MAX_NOTE], command(&["true"]));
    sandbox.client.emptied(id);
    assert_eq!(list(&sandbox)[0].note, vec![7; MAX_NOTE]);
}
