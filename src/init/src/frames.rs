//! Messages on the connection to `sandboxd`, each with its descriptors, and the bounded queue of those to send.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;

use serde::de::DeserializeOwned;
use wire::init::{FromInit, MAX_ENDED, MAX_FRAME, MAX_RUNS, ToInit};

use crate::runs::Streams;
use crate::sys::{Errno, receive, send};

/// Most messages that wait for a slow peer: a few answers to `List` and every event meanwhile.
const MAX_QUEUE: usize = 4 * (MAX_RUNS + MAX_ENDED);

/// Why a connection ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lost {
    /// The peer closed it, or the socket failed.
    Gone,
    /// What came is no message.
    Malformed,
    /// The peer does not read what it is sent.
    Overflow,
}

/// How far [`Connection::flush`] got.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flushed {
    /// Everything is sent.
    All,
    /// The peer has to read first.
    Blocked,
    /// Too many descriptors are under way; a little later there are fewer.
    Later,
}

/// What one look at the socket found.
#[derive(Debug)]
pub enum Incoming {
    /// A message and its descriptors.
    Message(ToInit, Vec<OwnedFd>),
    /// Nothing yet.
    Nothing,
}

#[derive(Debug)]
struct Outgoing {
    bytes: Vec<u8>,
    streams: Option<Rc<Streams>>,
}

/// The connection to `sandboxd`.
#[derive(Debug)]
pub struct Connection {
    socket: OwnedFd,
    queue: VecDeque<Outgoing>,
    /// Whether its writability is watched: set by whoever watches.
    pub watched_for_writing: bool,
}

impl Connection {
    /// A new connection on `socket`, which does not block.
    #[must_use]
    pub fn new(socket: OwnedFd) -> Self {
        Self { socket, queue: VecDeque::new(), watched_for_writing: false }
    }

    /// The socket, for watching.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Takes one message; `buffer` holds [`MAX_FRAME`] bytes.
    ///
    /// # Errors
    /// [`Lost`] if the connection is over.
    pub fn receive(&self, buffer: &mut [u8]) -> Result<Incoming, Lost> {
        let received = match receive(self.fd(), buffer) {
            Ok(received) => received,
            Err(Errno(libc::EAGAIN | libc::EINTR)) => return Ok(Incoming::Nothing),
            Err(_) => return Err(Lost::Gone),
        };
        if received.truncated {
            return Err(Lost::Malformed);
        }
        match buffer.get(..received.len) {
            None | Some([]) => Err(Lost::Gone),
            Some(bytes) => decode(bytes).map(|message| Incoming::Message(message, received.fds)).ok_or(Lost::Malformed),
        }
    }

    /// Queues `message`, with read ends as its descriptors.
    ///
    /// # Errors
    /// [`Lost::Overflow`] if too many wait.
    pub fn push(&mut self, message: &FromInit, streams: Option<Rc<Streams>>) -> Result<(), Lost> {
        let bytes = postcard::to_allocvec(message).map_err(|_| Lost::Malformed)?;
        if self.queue.len() >= MAX_QUEUE {
            return Err(Lost::Overflow);
        }
        self.queue.push_back(Outgoing { bytes, streams });
        Ok(())
    }

    /// Sends what is queued, as far as the peer takes it.
    ///
    /// # Errors
    /// [`Lost::Gone`] if the connection is over.
    pub fn flush(&mut self) -> Result<Flushed, Lost> {
        while let Some(next) = self.queue.front() {
            let sent = match &next.streams {
                None => send(self.fd(), &next.bytes, &[]),
                Some(streams) => send(self.fd(), &next.bytes, &[streams.out.as_fd(), streams.err.as_fd()]),
            };
            match sent {
                Ok(()) => drop(self.queue.pop_front()),
                Err(Errno(libc::EAGAIN)) => return Ok(Flushed::Blocked),
                Err(Errno(libc::ETOOMANYREFS | libc::ENOBUFS | libc::ENOMEM)) => {
                    return Ok(Flushed::Later);
                }
                Err(_) => return Err(Lost::Gone),
            }
        }
        Ok(Flushed::All)
    }
}

/// A buffer for [`Connection::receive`].
#[must_use]
pub fn buffer() -> Vec<u8> {
    vec![0; MAX_FRAME]
}

/// The value that these bytes are, all of them.
#[must_use]
pub fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Option<T> {
    match postcard::take_from_bytes(bytes) {
        Ok((value, [])) => Some(value),
        Ok(_) | Err(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_all_of_its_bytes() {
        let mut bytes = postcard::to_allocvec(&ToInit::List).unwrap();
        assert_eq!(decode::<ToInit>(&bytes), Some(ToInit::List));
        bytes.push(0);
        assert_eq!(decode::<ToInit>(&bytes), None);
        assert_eq!(decode::<ToInit>(&[]), None);
    }

    #[test]
    fn a_claim_of_endless_arguments_is_refused_without_memory_for_them() {
        // Run, a run, an empty note, inline, and a count of arguments of 2^64 - 1.
        let mut bytes = vec![0; 19];
        bytes.extend([0xff; 9]);
        bytes.push(1);
        assert_eq!(decode::<ToInit>(&bytes), None);
    }
}
