//! One message in, one message out, over a connected `SOCK_SEQPACKET` socket.

use std::cell::RefCell;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer, SendFlags, recvmsg, sendmsg,
};
use wire::launch::{Answer, MAX_MESSAGE, Request};

use crate::error::Error;

/// Most descriptors that are taken from a message; more are an error.
const MAX_DESCRIPTORS: usize = 4;

/// What arrived on a connection.
#[allow(clippy::large_enum_variant)] // one at a time, taken apart at once
pub enum Received {
    /// A request, and its descriptors.
    Request(Request, Vec<OwnedFd>),
    /// Something else, which is answered.
    Bad(Error),
    /// Nothing yet.
    Nothing,
    /// The peer is gone.
    Closed,
}

/// Read the message of `connection`, without waiting.
pub fn receive(connection: impl AsFd) -> Received {
    let mut bytes = vec![0; MAX_MESSAGE + 1];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    let message = match recvmsg(connection, &mut [IoSliceMut::new(&mut bytes)], &mut control, flags) {
        Ok(message) => message,
        Err(Errno::AGAIN | Errno::INTR) => return Received::Nothing,
        Err(_) => return Received::Closed,
    };
    let mut descriptors = Vec::new();
    for item in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = item {
            descriptors.extend(rights);
        }
    }
    if message.bytes == 0 {
        return Received::Closed;
    }
    if message.flags.contains(ReturnFlags::TRUNC) || message.bytes > MAX_MESSAGE {
        return bad(format!("longer than {MAX_MESSAGE} bytes"));
    }
    if message.flags.contains(ReturnFlags::CTRUNC) {
        return bad(format!("more than {MAX_DESCRIPTORS} descriptors"));
    }
    match serde_json::from_slice(&bytes[..message.bytes]) {
        Ok(request) => Received::Request(request, descriptors),
        Err(error) => bad(error.to_string()),
    }
}

fn bad(reason: String) -> Received {
    Received::Bad(Error::Refused { field: "message", reason })
}

thread_local! {
    /// In a child: the connection that its answer goes to.
    static HELD: RefCell<Option<OwnedFd>> = const { RefCell::new(None) };
}

/// Keep `connection` for the answer of this process.
pub fn hold(connection: OwnedFd) {
    HELD.replace(Some(connection));
}

/// Close what a parent of this process holds: whoever waits for the answer is to learn of the parent's death.
pub fn let_go() {
    HELD.take();
}

/// Send `answer` on the connection that is held.
pub fn answer_held(message: &Answer) {
    if let Some(connection) = HELD.take() {
        answer(connection, message);
    }
}

/// Send `answer`, without waiting. If the peer does not take it, nobody else wants it.
pub fn answer(connection: impl AsFd, answer: &Answer) {
    let text = serde_json::to_vec(answer).unwrap_or_default();
    let mut none = SendAncillaryBuffer::default();
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    let _ = sendmsg(connection, &[IoSlice::new(&text)], &mut none, flags);
}
