//! Bounds of what may be asked.

use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{MemfdFlags, SealFlags};
use wire::id::RunId;
use wire::init::{Command, CommandAt, FromInit, MAX_COMMAND, MAX_FRAME, MAX_RUNS, Step, ToInit};

use crate::sandbox::{Sandbox, command};

fn memfd(bytes: &[u8], seals: SealFlags) -> OwnedFd {
    let fd = rustix::fs::memfd_create("command", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    let mut written = 0;
    while written < bytes.len() {
        written += rustix::io::write(&fd, &bytes[written..]).unwrap();
    }
    rustix::fs::fcntl_add_seals(&fd, seals).unwrap();
    fd
}

fn in_memfd(command: &Command) -> (CommandAt, OwnedFd) {
    let bytes = postcard::to_allocvec(command).unwrap();
    (
        CommandAt::Memfd { len: bytes.len() as u32 },
        memfd(&bytes, SealFlags::WRITE | SealFlags::SHRINK | SealFlags::GROW),
    )
}

#[test]
fn a_long_command_travels_in_a_memfd() {
    let sandbox = Sandbox::new();
    let parts: Vec<String> = (0..10).map(|i| i.to_string().repeat(100_000)).collect();
    let argv = ["printf", "%s"].into_iter().chain(parts.iter().map(String::as_str)).collect::<Vec<_>>();
    let (at, memfd) = in_memfd(&command(&argv));
    let mut run = sandbox.client.run_at(RunId::from_u128(1), at, Some(memfd.as_fd()));
    assert!(run.read_all().0 == parts.concat());
    sandbox.client.emptied(run.id);
}

#[test]
fn what_execve_finds_too_long_is_its_own_refusal() {
    let sandbox = Sandbox::new();
    let (at, memfd) = in_memfd(&command(&["true", &"x".repeat(200_000)]));
    let run = sandbox.client.run_at(RunId::from_u128(1), at, Some(memfd.as_fd()));
    assert_eq!(sandbox.client.message(), FromInit::Refused { run: run.id, step: Step::Exec, errno: libc::E2BIG });
}

#[test]
fn a_memfd_must_be_one_sealed_and_as_long_as_it_says() {
    let sandbox = Sandbox::new();
    let bytes = postcard::to_allocvec(&command(&["true"])).unwrap();
    let len = bytes.len() as u32;
    let sealed = memfd(&bytes, SealFlags::WRITE);
    let open = memfd(&bytes, SealFlags::empty());
    let file: OwnedFd = std::fs::File::open("/dev/zero").unwrap().into();
    let at = |len| CommandAt::Memfd { len };
    let wrong = [
        (at(len), Some(&open)),
        (at(len), Some(&file)),
        (at(len), None),
        (at(len + 1), Some(&sealed)),
        (at(len - 1), Some(&sealed)),
        (at(MAX_COMMAND as u32 + 1), Some(&sealed)),
        (at(u32::MAX), Some(&sealed)),
        // One descriptor more than the message is about.
        (CommandAt::Inline(command(&["true"])), Some(&sealed)),
    ];
    for (at, fd) in wrong {
        let run = sandbox.client.run_at(RunId::from_u128(1), at.clone(), fd.map(AsFd::as_fd));
        let refused = FromInit::Refused { run: run.id, step: Step::Request, errno: libc::EINVAL };
        assert_eq!(sandbox.client.message(), refused, "{at:?}");
    }
    let run = sandbox.client.run_at(RunId::from_u128(1), at(len), Some(sealed.as_fd()));
    sandbox.client.emptied(run.id);
}

#[test]
fn descriptors_must_be_pipes_the_right_way_round() {
    let sandbox = Sandbox::new();
    let pipe = || rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).unwrap();
    let ((out_r, out_w), (err_r, err_w)) = (pipe(), pipe());
    let file: OwnedFd = std::fs::File::open("/dev/null").unwrap().into();
    let wrong: [&[&OwnedFd]; 5] = [
        &[],
        &[&out_r, &out_w, &err_r],
        &[&out_w, &out_r, &err_r, &err_w],
        &[&file, &out_w, &err_r, &err_w],
        &[&out_r; 4],
    ];
    let run = RunId::from_u128(1);
    let message = ToInit::Run { run, note: vec![], command: CommandAt::Inline(command(&["true"])) };
    for fds in wrong {
        sandbox.client.send(&message, &fds.iter().map(|fd| fd.as_fd()).collect::<Vec<_>>());
        let refused = FromInit::Refused { run, step: Step::Request, errno: libc::EINVAL };
        assert_eq!(sandbox.client.message(), refused, "{fds:?}");
    }
}

#[test]
fn a_command_gets_blocking_streams_whatever_it_is_sent() {
    let sandbox = Sandbox::new();
    let (out_r, out_w) =
        rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC | rustix::pipe::PipeFlags::NONBLOCK).unwrap();
    let run = RunId::from_u128(1);
    let long = "dd if=/dev/zero bs=1000000 count=1 status=none";
    let message = ToInit::Run { run, note: vec![], command: CommandAt::Inline(command(&["sh", "-c", long])) };
    sandbox.client.send(&message, &[out_r.as_fd(), out_w.as_fd(), out_r.as_fd(), out_w.as_fd()]);
    drop(out_w);
    let mut total = 0;
    let mut buffer = vec![0; 100_000];
    loop {
        match rustix::io::read(&out_r, &mut buffer) {
            Ok(0) => break,
            Ok(len) => total += len,
            Err(rustix::io::Errno::AGAIN) => std::thread::sleep(std::time::Duration::from_millis(1)),
            Err(errno) => panic!("{errno}"),
        }
    }
    assert_eq!(total, 1_000_000);
}

#[test]
fn more_runs_than_the_table_holds_are_refused_and_the_rest_is_listed() {
    let mut sandbox = Sandbox::new();
    let mut runs: Vec<RunId> = Vec::new();
    for number in 0..MAX_RUNS as u128 {
        let run = sandbox.client.run_as(RunId::from_u128(number), command(&["sleep", "1000"]));
        runs.push(run.id);
    }
    assert_eq!(sandbox.refusal(command(&["true"])), (Step::Request, libc::EAGAIN));
    sandbox.reconnect();
    sandbox.client.send(&ToInit::List, &[]);
    assert_eq!(sandbox.client.message(), FromInit::Runs { count: MAX_RUNS as u32 });
    for _ in 0..MAX_RUNS {
        let (message, fds) = sandbox.client.receive().unwrap();
        assert!(matches!(message, FromInit::Listed { exited: None, .. }));
        assert_eq!(fds.len(), 2);
    }
    for run in &runs {
        sandbox.client.send(&ToInit::Stop { run: *run, grace_ms: 0 }, &[]);
    }
    let mut emptied = 0;
    while emptied < runs.len() {
        emptied += usize::from(matches!(sandbox.client.message(), FromInit::Emptied { .. }));
    }
    assert_eq!(sandbox.cgroups(), Vec::<String>::new());
    assert!(postcard::to_allocvec(&command(&["true"])).unwrap().len() < MAX_FRAME);
}
