//! File operations of the init: done as a command would, with a command's rights, and bounded.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;

use wire::file::{Entry, Fault, FileOp, FileRequest, Kind, Stat};
use wire::id::RunId;
use wire::init::{FromInit, Status, Step, ToInit};

use crate::sandbox::{AGENT, Sandbox, command};

const MAX: u64 = 1 << 20;

fn request(op: FileOp, path: &Path) -> FileRequest {
    let path = path.to_str().unwrap().to_owned();
    FileRequest { op, path, work_dir: "/tmp".into(), uid: AGENT, gid: AGENT, max: MAX }
}

/// Sends it: the read end of its answer.
fn send(sandbox: &Sandbox, run: RunId, request: FileRequest, body: Option<BorrowedFd<'_>>) -> File {
    let (read, write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).unwrap();
    let fds: Vec<BorrowedFd<'_>> = [write.as_fd()].into_iter().chain(body).collect();
    sandbox.client.send(&ToInit::File { run, request }, &fds);
    read.into()
}

fn ask_with(sandbox: &Sandbox, request: FileRequest, body: Option<BorrowedFd<'_>>) -> Result<Vec<u8>, Fault> {
    let run = RunId::from_u128(0xf11e);
    let mut answer = Vec::new();
    send(sandbox, run, request, body).read_to_end(&mut answer).unwrap();
    let status = match sandbox.client.message() {
        FromInit::Exited { run: id, status: Status::Code(code), .. } if id == run => code,
        other => panic!("{other:?} instead of Exited"),
    };
    assert_eq!(sandbox.client.message(), FromInit::Emptied { run });
    if status == 0 { Ok(answer) } else { Err(Fault::from_exit_status(status).unwrap()) }
}

fn ask(sandbox: &Sandbox, op: FileOp, path: impl AsRef<Path>) -> Result<Vec<u8>, Fault> {
    ask_with(sandbox, request(op, path.as_ref()), None)
}

fn write(sandbox: &Sandbox, path: impl AsRef<Path>, bytes: &[u8]) -> Result<Vec<u8>, Fault> {
    let memfd = rustix::fs::memfd_create("body", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    let mut file = File::from(memfd);
    file.write_all(bytes).unwrap();
    let file = OwnedFd::from(file);
    ask_with(sandbox, request(FileOp::Write, path.as_ref()), Some(file.as_fd()))
}

fn errno(errno: i32) -> Fault {
    Fault::Errno(u8::try_from(errno).unwrap())
}

#[test]
fn files_are_read_described_and_listed_through_links() {
    let mut sandbox = Sandbox::new();
    let home = sandbox.home();
    sandbox.sh(&format!("cd {} && mkdir d && printf 12345 > d/f && ln -s d/f link && ln -s d dir", home.display()));
    symlink("/etc/passwd", home.join("d/out")).unwrap();
    symlink("gone", home.join("d/none")).unwrap();
    assert_eq!(ask(&sandbox, FileOp::Read, home.join("link")).unwrap(), b"12345");
    assert_eq!(ask(&sandbox, FileOp::Read, home.join("d/out")).unwrap(), fs::read("/etc/passwd").unwrap());
    let stat = ask(&sandbox, FileOp::Stat, home.join("dir/f")).unwrap();
    let stat: Stat = postcard::from_bytes(&stat).unwrap();
    assert_eq!((stat.kind, stat.size), (Kind::File, 5));
    assert_eq!(stat.seconds, fs::metadata(home.join("d/f")).unwrap().mtime());
    let bytes = ask(&sandbox, FileOp::List, home.join("dir")).unwrap();
    let (mut rest, mut seen) = (bytes.as_slice(), Vec::new());
    while !rest.is_empty() {
        let (entry, after) = postcard::take_from_bytes::<Entry<'_>>(rest).unwrap();
        seen.push((String::from_utf8(entry.name.to_vec()).unwrap(), entry.stat.kind));
        rest = after;
    }
    seen.sort_by(|a, b| a.0.cmp(&b.0));
    assert_eq!(seen, [("f".into(), Kind::File), ("none".into(), Kind::Other), ("out".into(), Kind::File)]);
    let real = ask(&sandbox, FileOp::Realpath, home.join("dir/f")).unwrap();
    assert_eq!(real, fs::canonicalize(home.join("d/f")).unwrap().to_str().unwrap().as_bytes());
}

#[test]
fn what_cannot_be_read_has_a_reason() {
    let mut sandbox = Sandbox::new();
    let home = sandbox.home();
    sandbox.sh(&format!("cd {} && mkfifo fifo; ln -s loop loop; echo x > shut; chmod 0 shut; mkdir d", home.display()));
    fs::write(home.join("large"), vec![0; MAX as usize + 1]).unwrap();
    for (path, fault) in [
        (home.join("none"), errno(libc::ENOENT)),
        (home.join("d"), errno(libc::EISDIR)),
        (home.join("loop"), errno(libc::ELOOP)),
        (home.join("large/x"), errno(libc::ENOTDIR)),
        (home.join("shut"), errno(libc::EACCES)),
        ("/etc/shadow".into(), errno(libc::EACCES)),
        (home.join("fifo"), Fault::Special),
        ("/dev/zero".into(), Fault::Special),
        (home.join("large"), Fault::TooLarge),
        ("/proc/self/maps".into(), Fault::Itself),
        ("/proc/self/environ".into(), errno(libc::EACCES)),
        ("/proc/self/mem".into(), errno(libc::EACCES)),
    ] {
        assert_eq!(ask(&sandbox, FileOp::Read, &path), Err(fault), "{}", path.display());
    }
    let few = FileRequest { max: 1, ..request(FileOp::List, Path::new("/etc")) };
    assert_eq!(ask_with(&sandbox, few, None), Err(Fault::TooMany));
}

#[test]
fn a_file_is_written_whole_by_the_commands_user() {
    let mut sandbox = Sandbox::new();
    let home = sandbox.home();
    let bytes = vec![7; 300_000];
    assert_eq!(write(&sandbox, home.join("a/b/f"), &bytes), Ok(vec![]));
    assert_eq!(fs::read(home.join("a/b/f")).unwrap(), bytes);
    sandbox.sh(&format!("cd {} && chmod 6751 a/b/f && ln -s a/b in && ln -s f a/b/link", home.display()));
    assert_eq!(write(&sandbox, home.join("in/f"), b"new"), Ok(vec![]));
    let out = sandbox.sh(&format!("cd {}/a/b && stat -c '%a %u' f && cat f && ls -A", home.display())).out;
    assert_eq!(out, format!("751 {AGENT}\nnewf\nlink\n"));
    assert_eq!(write(&sandbox, home.join("a/b/link"), b"x"), Err(Fault::Link));
    assert_eq!(write(&sandbox, home.join("a"), b"x"), Err(errno(libc::EISDIR)));
    assert_eq!(write(&sandbox, home.join("a/b/f/g"), b"x"), Err(errno(libc::ENOTDIR)));
    assert_eq!(write(&sandbox, "/etc/sandbox-init-test", b"x"), Err(errno(libc::EACCES)));
    fs::set_permissions(home.join("a/b/f"), fs::Permissions::from_mode(0o444)).unwrap();
    assert_eq!(write(&sandbox, home.join("in/f"), b"x"), Err(errno(libc::EACCES)));
    assert_eq!(sandbox.sh(&format!("ls -A {}/a/b", home.display())).out, "f\nlink\n");
}

#[test]
fn directories_and_trees_come_and_go_and_the_work_directory_stays() {
    let mut sandbox = Sandbox::new();
    let home = sandbox.home();
    assert_eq!(ask(&sandbox, FileOp::Mkdir, home.join("a/b/c")), Ok(vec![]));
    sandbox.sh(&format!("cd {} && echo x > a/b/c/f && ln -s /tmp tmp && ln -s a/b in && mkdir keep", home.display()));
    symlink(home.join("keep"), home.join("a/b/out")).unwrap();
    let within = |path: &Path| FileRequest {
        work_dir: home.join("keep").to_str().unwrap().to_owned(),
        ..request(FileOp::Remove, path)
    };
    symlink(&home, home.join("round")).unwrap();
    for path in ["keep", "keep/", "round/keep", "a/../keep"] {
        assert_eq!(ask_with(&sandbox, within(&home.join(path)), None), Err(Fault::WorkDir), "{path}");
    }
    assert_eq!(ask_with(&sandbox, within(&home), None), Err(Fault::WorkDir));
    assert_eq!(ask_with(&sandbox, within(&home.join("tmp/")), None), Err(errno(libc::ENOTDIR)));
    assert_eq!(ask_with(&sandbox, within(&home.join("a/..")), None), Err(errno(libc::EINVAL)));
    assert_eq!(ask_with(&sandbox, within(&home.join("in/c")), None), Ok(vec![]));
    assert_eq!(ask_with(&sandbox, within(&home.join("a")), None), Ok(vec![]));
    assert_eq!(ask_with(&sandbox, within(&home.join("tmp")), None), Ok(vec![]));
    assert_eq!(sandbox.sh(&format!("ls {}; test -d /tmp && echo tmp", home.display())).out, "in\nkeep\nround\ntmp\n");
}

#[test]
fn it_is_confined_as_a_command_is() {
    let mut sandbox = Sandbox::new();
    let own = String::from_utf8(ask(&sandbox, FileOp::Read, "/proc/self/status").unwrap()).unwrap();
    let command = sandbox.output(command(&["cat", "/proc/self/status"])).out;
    for field in [
        "Uid:",
        "Gid:",
        "Groups:",
        "NoNewPrivs:",
        "Seccomp:",
        "Seccomp_filters:",
        "CapInh:",
        "CapPrm:",
        "CapEff:",
        "CapBnd:",
        "CapAmb:",
        "SigBlk:",
        "Umask:",
    ] {
        let line = |text: &str| text.lines().find(|line| line.starts_with(field)).map(str::to_owned);
        assert_eq!(line(&own), line(&command), "{field}");
        assert!(line(&own).is_some());
    }
    let limits =
        |text: String| text.lines().filter(|line| line.starts_with("Max")).map(str::to_owned).collect::<Vec<_>>();
    let own = String::from_utf8(ask(&sandbox, FileOp::Read, "/proc/self/limits").unwrap()).unwrap();
    assert_eq!(limits(own), limits(sandbox.sh("cat /proc/self/limits").out));
    let cgroup = String::from_utf8(ask(&sandbox, FileOp::Read, "/proc/self/cgroup").unwrap()).unwrap();
    assert!(cgroup.contains(&RunId::from_u128(0xf11e).to_string()), "{cgroup}");
    assert_eq!(ask(&sandbox, FileOp::Read, "/proc/self/oom_score_adj").unwrap(), b"500\n");
    assert_eq!(sandbox.cgroups(), Vec::<String>::new());
}

#[test]
fn it_is_stopped_as_a_run_and_told_to_nobody_else() {
    let mut sandbox = Sandbox::new();
    let home = sandbox.home();
    fs::write(home.join("large"), vec![0; MAX as usize]).unwrap();
    let run = RunId::from_u128(7);
    // Nobody reads, so the child waits.
    let answer = send(&sandbox, run, request(FileOp::Read, &home.join("large")), None);
    sandbox.client.send(&ToInit::List, &[]);
    assert_eq!(sandbox.client.message(), FromInit::Runs { count: 0 });
    assert_eq!(sandbox.cgroups(), [run.to_string()]);
    sandbox.client.send(&ToInit::Stop { run, grace_ms: 0 }, &[]);
    assert_eq!(sandbox.client.exited(run), Status::Signal(9));
    sandbox.client.emptied(run);
    drop(answer);
    // Nobody can read: the child ends by itself, and its end is not kept for whoever comes next.
    drop(send(&sandbox, run, request(FileOp::Read, &home.join("large")), None));
    assert_eq!(sandbox.client.exited(run), Status::Signal(13));
    sandbox.client.emptied(run);
    sandbox.reconnect();
    sandbox.client.send(&ToInit::List, &[]);
    assert_eq!(sandbox.client.message(), FromInit::Runs { count: 0 });
}

#[test]
fn a_request_that_is_none_is_refused() {
    let sandbox = Sandbox::new();
    let refused = |request: FileRequest| {
        drop(send(&sandbox, RunId::from_u128(9), request, None));
        match sandbox.client.message() {
            FromInit::Refused { step, errno, .. } => (step, errno),
            other => panic!("{other:?}"),
        }
    };
    let sound = || request(FileOp::Read, Path::new("/etc/passwd"));
    assert_eq!(refused(FileRequest { path: "etc".into(), ..sound() }), (Step::Request, libc::EINVAL));
    assert_eq!(refused(FileRequest { uid: 65_535, ..sound() }), (Step::Request, libc::EINVAL));
    assert_eq!(refused(FileRequest { work_dir: "/none".into(), ..sound() }), (Step::Chdir, libc::ENOENT));
    assert_eq!(refused(request(FileOp::Write, Path::new("/tmp/x"))), (Step::Request, libc::EINVAL));
}
