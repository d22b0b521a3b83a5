//! `SOCK_SEQPACKET` unix sockets under tokio: whole messages, with descriptors beside them.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, recvmsg, sendmsg,
    socket_with,
};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::sys::watch;

/// Most descriptors in one message, either way.
const MAX_FDS: usize = 8;

/// One connected socket.
#[derive(Debug)]
pub struct Seqpacket(AsyncFd<OwnedFd>);

/// A message that arrived.
#[derive(Debug)]
pub struct Message {
    /// Its length in the buffer.
    pub len: usize,
    /// Its descriptors.
    pub fds: Vec<OwnedFd>,
}

impl Seqpacket {
    /// Connect to `name` in the directory `dir` (a path may be longer than a socket address holds).
    ///
    /// # Errors
    /// What the kernel says.
    pub fn connect(dir: BorrowedFd<'_>, name: &str) -> io::Result<Self> {
        let socket = new_socket()?;
        // Connecting to a unix socket does not wait, or fails with EAGAIN when its backlog is full.
        connect(&socket, &address(dir, name)?)?;
        Ok(Self(watch(socket, Interest::READABLE.add(Interest::WRITABLE))?))
    }

    /// Send one whole message.
    ///
    /// # Errors
    /// What the kernel says; `EPIPE` when the peer is gone.
    pub async fn send(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        loop {
            match send_now(self.0.get_ref().as_fd(), bytes, fds) {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                done => return done,
            }
            let mut ready = self.0.writable().await?;
            match send_now(self.0.get_ref().as_fd(), bytes, fds) {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => ready.clear_ready(),
                done => return done,
            }
        }
    }

    /// Send one whole message if that needs no waiting.
    ///
    /// # Errors
    /// `WouldBlock` if it would wait; what the kernel says.
    pub fn try_send(&self, bytes: &[u8]) -> io::Result<()> {
        send_now(self.0.get_ref().as_fd(), bytes, &[])
    }

    /// Wait for one whole message; `None` at the end of the connection.
    ///
    /// # Errors
    /// `InvalidData` for a message longer than `buffer` or with too many descriptors.
    pub async fn recv(&self, buffer: &mut [u8]) -> io::Result<Option<Message>> {
        loop {
            let mut ready = self.0.readable().await?;
            match recv_now(self.0.get_ref().as_fd(), buffer) {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => ready.clear_ready(),
                done => return done,
            }
        }
    }
}

/// A listening socket called `name` in `dir`, replacing one that is there.
///
/// # Errors
/// What the kernel says.
pub fn listener(dir: BorrowedFd<'_>, name: &str) -> io::Result<OwnedFd> {
    let socket = new_socket()?;
    match rustix::fs::unlinkat(dir, name, rustix::fs::AtFlags::empty()) {
        Ok(()) | Err(rustix::io::Errno::NOENT) => {}
        Err(e) => return Err(e.into()),
    }
    bind(&socket, &address(dir, name)?)?;
    listen(&socket, 16)?;
    Ok(socket)
}

fn new_socket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?)
}

fn address(dir: BorrowedFd<'_>, name: &str) -> io::Result<SocketAddrUnix> {
    let through = Path::new("/proc/self/fd").join(dir.as_raw_fd().to_string()).join(name);
    Ok(SocketAddrUnix::new(through)?)
}

fn send_now(socket: BorrowedFd<'_>, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "too many descriptors for one message"));
    }
    sendmsg(socket, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}

fn recv_now(socket: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<Option<Message>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let got = recvmsg(socket, &mut [IoSliceMut::new(buffer)], &mut control, RecvFlags::CMSG_CLOEXEC)?;
    let mut fds = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            fds.extend(rights);
        }
    }
    if got.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC) {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "a message over its bounds"));
    }
    if got.bytes == 0 && fds.is_empty() {
        return Ok(None);
    }
    Ok(Some(Message { len: got.bytes, fds }))
}
