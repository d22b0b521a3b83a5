//! The control socket: reconnecting, listing, a peer that is dead, slow or wrong.

use std::os::fd::AsFd;
use std::time::Duration;

use rustix::process::{Resource, Rlimit, prlimit};
use wire::id::RunId;
use wire::init::{FromInit, MAX_FRAME, Status, ToInit};

use crate::sandbox::{Client, Sandbox, command};

#[test]
fn a_new_connection_finds_the_runs_and_their_streams() {
    let mut sandbox = Sandbox::new();
    let script = "sleep 1000 & echo one; echo two >&2";
    let run = sandbox.client.run(command(&["sh", "-c", script]));
    sandbox.client.exited(run.id);
    let mut live = sandbox.client.run(command(&["sh", "-c", "echo up; exec sleep 1000"]));
    assert_eq!(live.line(), "up");
    let (id, live_id) = (run.id, live.id);
    // As if this process had died: every descriptor of it is closed.
    drop((run, live));
    sandbox.reconnect();
    sandbox.client.send(&ToInit::List, &[]);
    assert_eq!(sandbox.client.message(), FromInit::Runs { count: 2 });
    let mut found = std::collections::HashMap::new();
    for _ in 0..2 {
        let (message, fds) = sandbox.client.receive().unwrap();
        let FromInit::Listed { run, exited, streams: true, forgotten: false, .. } = message else {
            panic!("{message:?}")
        };
        assert_eq!(fds.len(), 2);
        found.insert(run, (exited, fds));
    }
    let (exited, fds) = &found[&id];
    assert_eq!(*exited, Some(Status::Code(0)));
    let mut buffer = [0; 16];
    assert_eq!(rustix::io::read(&fds[0], &mut buffer), Ok(4));
    assert_eq!(&buffer[..4], b"one\n");
    assert_eq!(rustix::io::read(&fds[1], &mut buffer), Ok(4));
    assert_eq!(&buffer[..4], b"two\n");
    assert_eq!(found[&live_id].0, None);
    // And it is the one that is told from now on.
    sandbox.client.send(&ToInit::Stop { run: id, grace_ms: 0 }, &[]);
    assert_eq!(sandbox.client.message(), FromInit::Emptied { run: id });
}

#[test]
fn no_pipe_breaks_while_nobody_reads() {
    let mut sandbox = Sandbox::new();
    let script = "read -r line < /proc/1/none 2>/dev/null; for i in 1 2 3 4 5 6; do sleep 0.1; echo $i || exit 9; done";
    let run = sandbox.client.run(command(&["sh", "-c", script]));
    let id = run.id;
    drop(run);
    sandbox.reconnect();
    assert_eq!(sandbox.client.exited(id), Status::Code(0));
}

#[test]
fn the_old_connection_ends_when_a_new_one_comes() {
    let mut sandbox = Sandbox::new();
    let old = Client { socket: sandbox.client.socket.try_clone().unwrap() };
    sandbox.reconnect();
    assert!(old.receive().is_none());
    assert_eq!(sandbox.sh("echo on").out, "on\n");
}

#[test]
fn what_is_no_message_ends_the_connection_and_nothing_else() {
    let mut sandbox = Sandbox::new();
    let mut live = sandbox.client.run(command(&["sh", "-c", "echo up; exec sleep 1000"]));
    assert_eq!(live.line(), "up");
    let list = postcard::to_allocvec(&ToInit::List).unwrap();
    let null = std::fs::File::open("/dev/null").unwrap();
    let many = vec![null.as_fd(); 12];
    let long = vec![0; MAX_FRAME + 1];
    let trailing = [list.as_slice(), b"x"].concat();
    let wrong: [(&[u8], &[_]); 7] = [
        (b"\xff\xff\xff\xff", &[]),
        (b"\x09", &[]),
        (&trailing, &[]),
        // A Run that is cut short.
        (&[0, 1, 2, 3], &[]),
        (&long, &[]),
        (&list, &many),
        (b"", &[]),
    ];
    for (bytes, fds) in wrong {
        let _ = sandbox.client.send_bytes(bytes, fds);
        assert!(sandbox.client.receive().is_none(), "{bytes:?}");
        sandbox.reconnect();
    }
    sandbox.client.send(&ToInit::List, &[]);
    assert_eq!(sandbox.client.message(), FromInit::Runs { count: 1 });
}

#[test]
fn noise_never_ends_the_init() {
    let mut sandbox = Sandbox::new();
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    for _ in 0..300 {
        let mut bytes = [0; 40];
        for byte in &mut bytes {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            *byte = (state >> 40) as u8;
        }
        bytes[0] %= 6;
        let len = 1 + (state >> 33) as usize % 39;
        if sandbox.client.send_bytes(&bytes[..len], &[]).is_err() {
            sandbox.reconnect();
        }
    }
    sandbox.reconnect();
    assert_eq!(sandbox.sh("echo on").out, "on\n");
}

#[test]
fn a_peer_that_does_not_read_is_dropped_and_the_next_one_served() {
    let mut sandbox = Sandbox::new();
    // Each list is answered by two messages at least; none is read.
    let mut live = sandbox.client.run(command(&["sh", "-c", "echo up; exec sleep 1000"]));
    assert_eq!(live.line(), "up");
    let list = postcard::to_allocvec(&ToInit::List).unwrap();
    let dropped = (0..50_000).any(|_| sandbox.client.send_bytes(&list, &[]).is_err());
    assert!(dropped);
    sandbox.reconnect();
    sandbox.client.send(&ToInit::List, &[]);
    assert_eq!(sandbox.client.message(), FromInit::Runs { count: 1 });
}

#[test]
fn a_connection_that_cannot_be_taken_waits_and_costs_nothing() {
    let mut sandbox = Sandbox::new();
    // The hard limit stays: the init could not have it back otherwise.
    let most = std::fs::read_to_string(format!("/proc/{}/limits", sandbox.pid())).unwrap();
    let most = most.lines().find(|line| line.starts_with("Max open files")).unwrap();
    let most = most.split_whitespace().nth(4).unwrap().parse().ok();
    let none = Rlimit { current: Some(0), maximum: most };
    let before = prlimit(Some(sandbox.pid()), Resource::Nofile, none).unwrap();
    let client = Client::connect_only(&sandbox.socket());
    let ticks = || {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", sandbox.pid())).unwrap();
        // utime and stime, the 14th and 15th; the name before has no space.
        stat.split(' ').skip(13).take(2).map(|part| part.parse::<u64>().unwrap()).sum::<u64>()
    };
    let began = ticks();
    std::thread::sleep(Duration::from_millis(600));
    // Of a hundredth of a second each.
    assert!(ticks() - began < 10, "the init spins");
    prlimit(Some(sandbox.pid()), Resource::Nofile, before).unwrap();
    assert_eq!(client.message(), FromInit::Ready { version: wire::init::VERSION });
    sandbox.client = client;
    assert_eq!(sandbox.sh("echo on").out, "on\n");
}

#[test]
fn a_name_in_use_is_refused_and_free_again_afterwards() {
    let mut sandbox = Sandbox::new();
    let id = RunId::from_u128(42);
    let mut first = sandbox.client.run_as(id, command(&["sh", "-c", "echo up; exec sleep 1000"]));
    assert_eq!(first.line(), "up");
    let _second = sandbox.client.run_as(id, command(&["true"]));
    let refused = FromInit::Refused { run: id, step: wire::init::Step::Request, errno: libc::EEXIST };
    assert_eq!(sandbox.client.message(), refused);
    sandbox.client.send(&ToInit::Stop { run: id, grace_ms: 0 }, &[]);
    sandbox.client.emptied(id);
    let _third = sandbox.client.run_as(id, command(&["true"]));
    sandbox.client.emptied(id);
    assert_eq!(sandbox.sh("echo on").out, "on\n");
}
