//! Two ends on one host, a client at the one and an init at the other.

use std::ffi::CString;
use std::fs::File;
use std::io::{Read, Write};
use std::time::{Duration, Instant};

use super::*;

struct Pair {
    directory: tempfile::TempDir,
    init: OwnedFd,
}

fn path(directory: &tempfile::TempDir, name: &str) -> &'static CStr {
    let path = directory.path().join(name);
    Box::leak(CString::new(path.to_str().unwrap()).unwrap().into_boxed_c_str())
}

fn within<T>(mut ask: impl FnMut() -> Option<T>) -> T {
    let until = Instant::now() + Duration::from_secs(10);
    loop {
        if let Some(found) = ask() {
            return found;
        }
        assert!(Instant::now() < until, "nothing came");
        std::thread::sleep(Duration::from_millis(1));
    }
}

impl Pair {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let init = sys::listen_at(path(&directory, "init")).unwrap();
        sys::set_nonblocking(init.as_fd()).unwrap();
        let listener = sys::listen_at(path(&directory, "control")).unwrap();
        let (near, far) = seqpacket_pair(&directory);
        let inside = path(&directory, "init");
        // What it says is shown where a test fails.
        std::thread::spawn(move || eprintln!("inside: {:?}", Tunnel::new(Side::Inside(inside), far).unwrap().run()));
        std::thread::spawn(move || {
            eprintln!("outside: {:?}", Tunnel::new(Side::Outside(listener), near).unwrap().run())
        });
        Self { directory, init }
    }

    fn client(&self) -> OwnedFd {
        sys::connect_to(path(&self.directory, "control")).unwrap()
    }

    fn accept(&self) -> OwnedFd {
        within(|| sys::accept(self.init.as_fd()).ok())
    }
}

fn seqpacket_pair(directory: &tempfile::TempDir) -> (OwnedFd, OwnedFd) {
    let listener = sys::listen_at(path(directory, "far")).unwrap();
    let near = sys::connect_to(path(directory, "far")).unwrap();
    (near, sys::accept(listener.as_fd()).unwrap())
}

fn receive(socket: &OwnedFd) -> (Vec<u8>, Vec<OwnedFd>) {
    let mut buffer = vec![0; MAX_FRAME];
    let received = within(|| sys::receive(socket.as_fd(), &mut buffer).ok());
    assert!(!received.truncated);
    (buffer[..received.len].to_vec(), received.fds)
}

fn send(socket: &OwnedFd, bytes: &[u8], fds: &[&OwnedFd]) {
    let fds: Vec<BorrowedFd<'_>> = fds.iter().map(|fd| fd.as_fd()).collect();
    sys::send(socket.as_fd(), bytes, &fds).unwrap();
}

fn to_end(fd: OwnedFd) -> Vec<u8> {
    sys::clear_nonblocking(fd.as_fd()).unwrap();
    let mut bytes = Vec::new();
    File::from(fd).read_to_end(&mut bytes).unwrap();
    bytes
}

#[test]
fn streams_of_a_command_come_out_where_they_are_read() {
    let pair = Pair::new();
    let client = pair.client();
    let _first = pair.accept();
    let init = pair.accept();
    let (out_read, out) = sys::pipe().unwrap();
    let (err_read, err) = sys::pipe().unwrap();
    let memfd = sys::sealed_memfd(&vec![5; 3 * CHUNK + 1]).unwrap();
    send(&client, b"run", &[&out_read, &out, &err_read, &err, &memfd]);
    drop((out, err, memfd));
    let (bytes, fds) = receive(&init);
    assert_eq!((bytes.as_slice(), fds.len()), (b"run".as_slice(), 5));
    let [in_out_read, in_out, in_err_read, in_err, in_memfd] = <[OwnedFd; 5]>::try_from(fds).unwrap();
    assert!(sys::sealed_against_writing(in_memfd.as_fd()));
    assert_eq!(to_end(in_memfd), vec![5; 3 * CHUNK + 1]);
    let much: Vec<u8> = (0..2_000_000_u32).map(|n| n as u8).collect();
    let written = much.clone();
    let writer = std::thread::spawn(move || File::from(in_out).write_all(&written).unwrap());
    File::from(in_err).write_all(b"wrong").unwrap();
    // The init tells of the streams again, to somebody else: first, on each connection, that it is there.
    drop(client);
    let again = pair.client();
    let mut buffer = vec![0; MAX_FRAME];
    let mut latest = None;
    within(|| {
        if let Ok(init) = sys::accept(pair.init.as_fd()) {
            // One that has been given up again takes nothing.
            let _ = sys::send(init.as_fd(), b"ready", &[]);
            latest = Some(init);
        }
        sys::receive(again.as_fd(), &mut buffer).ok().filter(|received| received.len > 0)
    });
    let init = latest.unwrap();
    send(&init, b"listed", &[&in_out_read]);
    let (bytes, fds) = receive(&again);
    assert_eq!(bytes, b"listed");
    drop(in_err_read);
    assert_eq!(to_end(err_read), b"wrong");
    drop(out_read);
    let read = to_end(fds.into_iter().next().unwrap());
    assert!(read == much, "{} bytes of {}", read.len(), much.len());
    writer.join().unwrap();
}

#[test]
fn an_answer_goes_into_the_pipe_that_was_given_for_it() {
    let pair = Pair::new();
    let client = pair.client();
    let (_first, init) = (pair.accept(), pair.accept());
    let (answer, into) = sys::pipe().unwrap();
    send(&client, b"file", &[&into]);
    drop(into);
    let (_, fds) = receive(&init);
    for fd in fds {
        File::from(fd).write_all(b"content").unwrap();
    }
    assert_eq!(to_end(answer), b"content");
}

#[test]
fn who_is_told_of_an_end_finds_all_that_was_written_before() {
    let pair = Pair::new();
    let client = pair.client();
    let (_first, init) = (pair.accept(), pair.accept());
    for size in [1, CHUNK, 60_000].into_iter().cycle().take(60) {
        let (answer, into) = sys::pipe().unwrap();
        send(&client, b"file", &[&into]);
        drop(into);
        let (_, fds) = receive(&init);
        let mut file = File::from(fds.into_iter().next().unwrap());
        file.write_all(&vec![1; size]).unwrap();
        send(&init, b"exited", &[]);
        assert_eq!(receive(&client).0, b"exited");
        assert_eq!(sys::available(answer.as_fd()), Ok(size));
    }
}

#[test]
fn what_breaks_a_rule_ends_the_tunnel() {
    for frame in [
        Frame::Data(7, vec![1]),
        Frame::End(0),
        Frame::Message(vec![0; MAX_FRAME + 1], vec![]),
        Frame::Message(vec![], vec![Passed::Memfd; MAX_PASSED + 1]),
    ] {
        let directory = tempfile::tempdir().unwrap();
        let listener = sys::listen_at(path(&directory, "control")).unwrap();
        let (near, far) = seqpacket_pair(&directory);
        let end = std::thread::spawn(move || Tunnel::new(Side::Outside(listener), near).unwrap().run());
        sys::send(far.as_fd(), &postcard::to_allocvec(&frame).unwrap(), &[]).unwrap();
        let broken = end.join().unwrap();
        assert_ne!(broken, Broken("the other end is gone"), "{frame:?}");
    }
}
