//! Somebody who speaks to the launcher's socket: as whichever user, with whatever bytes.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    SocketAddrUnix, SocketFlags, SocketType, connect, recvmsg, sendmsg, socket_with,
};
use rustix::process::{Gid, Uid};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};
use serde_json::Value;

/// What became of a message.
#[derive(Debug, Clone, PartialEq)]
pub enum Reply {
    /// An answer.
    Answer(Value),
    /// The connection was not accepted, or ended without one.
    Nothing(Errno),
}

impl Reply {
    /// Panic unless the launcher refused this field, naming a reason.
    #[track_caller]
    pub fn expect_refused(&self, field: &str) {
        let Self::Answer(answer) = self else { panic!("{self:?}") };
        assert_eq!(answer["type"], "refused", "{answer}");
        assert_eq!(answer["field"], field, "{answer}");
        assert!(answer["reason"].as_str().is_some_and(|reason| !reason.is_empty()), "{answer}");
    }
}

/// Send `message` with `descriptors` to the socket at `path` as user `uid`, and wait for what comes back.
#[must_use]
pub fn speak(path: &Path, uid: u32, message: &[u8], descriptors: Vec<OwnedFd>) -> Reply {
    let (path, message) = (PathBuf::from(path), message.to_vec());
    // Credentials belong to a thread; this one ends with them.
    let thread = std::thread::spawn(move || {
        become_user(uid).expect("become another user");
        let borrowed: Vec<BorrowedFd<'_>> = descriptors.iter().map(AsFd::as_fd).collect();
        exchange(&path, &message, &borrowed)
    });
    match thread.join().expect("speak to the launcher") {
        Ok(Some(bytes)) => Reply::Answer(serde_json::from_slice(&bytes).expect("JSON")),
        Ok(None) => Reply::Nothing(Errno::CONNRESET),
        Err(errno) => Reply::Nothing(errno),
    }
}

/// Connect as user `uid`, say nothing for a moment, and hang up.
pub fn connect_silently(path: &Path, uid: u32) {
    let path = PathBuf::from(path);
    let thread = std::thread::spawn(move || {
        become_user(uid).expect("become another user");
        let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None);
        let socket = socket.expect("a socket");
        connect(&socket, &SocketAddrUnix::new(&path).expect("a path")).expect("connect");
        std::thread::sleep(Duration::from_secs(3));
    });
    thread.join().expect("connect to the launcher");
}

fn become_user(uid: u32) -> Result<(), Errno> {
    let (user, group) = (Uid::from_raw(uid), Gid::from_raw(uid));
    set_thread_groups(&[])?;
    set_thread_res_gid(group, group, group)?;
    set_thread_res_uid(user, user, user)
}

fn exchange(path: &Path, message: &[u8], descriptors: &[BorrowedFd<'_>]) -> Result<Option<Vec<u8>>, Errno> {
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    connect(&socket, &SocketAddrUnix::new(path)?)?;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(descriptors));
    }
    sendmsg(&socket, &[IoSlice::new(message)], &mut control, SendFlags::NOSIGNAL)?;
    let mut bytes = vec![0; wire::launch::MAX_MESSAGE];
    let mut nothing = RecvAncillaryBuffer::default();
    let answer = recvmsg(&socket, &mut [IoSliceMut::new(&mut bytes)], &mut nothing, RecvFlags::empty())?;
    bytes.truncate(answer.bytes);
    Ok((answer.bytes > 0).then_some(bytes))
}
