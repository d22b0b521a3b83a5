//! Netlink messages and the exchange of them with the kernel (RFC 3549), as much of it as `link` and `nft` need.
//!
//! By hand: the crates for it want an asynchronous runtime, or bring thousands of types for the thirty attributes used here.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::sockopt::{self, Timeout};
use rustix::net::{AddressFamily, Protocol, RecvFlags, SendFlags, SocketFlags, SocketType};

/// Length of a message's header, `struct nlmsghdr`.
const HEADER: usize = 16;
/// Types of messages that are answers.
const ERROR: u16 = 2;
const DONE: u16 = 3;
/// Flags of a request, netlink(7).
const REQUEST: u16 = 0x1;
const ACK: u16 = 0x4;
pub const DUMP: u16 = 0x300;
pub const EXCL: u16 = 0x200;
pub const CREATE: u16 = 0x400;
/// An attribute that contains attributes.
const NESTED: u16 = 0x8000;
/// The kernel answers at once; whatever is wrong with it must not hang a launch.
const PATIENCE: Duration = Duration::from_secs(5);

/// A request under construction.
pub struct Message {
    bytes: Vec<u8>,
}

impl Message {
    /// One of this type, with these flags beside `NLM_F_REQUEST` and `NLM_F_ACK`; `fixed` is the header of its family.
    #[must_use]
    pub fn new(kind: u16, flags: u16, fixed: &[u8]) -> Self {
        let mut bytes = vec![0; HEADER];
        bytes[4..6].copy_from_slice(&kind.to_ne_bytes());
        bytes[6..8].copy_from_slice(&(flags | REQUEST | ACK).to_ne_bytes());
        let mut message = Self { bytes };
        message.raw(fixed);
        message
    }

    /// One that is not acknowledged: the ends of a batch.
    #[must_use]
    pub fn unacknowledged(kind: u16, fixed: &[u8]) -> Self {
        let mut message = Self::new(kind, 0, fixed);
        message.bytes[6..8].copy_from_slice(&REQUEST.to_ne_bytes());
        message
    }

    /// More bytes, padded as everything is.
    pub fn raw(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }

    /// An attribute.
    pub fn put(&mut self, kind: u16, value: &[u8]) {
        let length = u16::try_from(value.len() + 4).unwrap_or(u16::MAX);
        self.bytes.extend_from_slice(&length.to_ne_bytes());
        self.bytes.extend_from_slice(&kind.to_ne_bytes());
        self.raw(value);
    }

    /// An attribute that is a C string.
    pub fn put_text(&mut self, kind: u16, text: &str) {
        self.put(kind, &[text.as_bytes(), &[0]].concat());
    }

    /// An attribute that contains what `fill` puts.
    pub fn nest(&mut self, kind: u16, fill: impl FnOnce(&mut Self)) {
        let at = self.bytes.len();
        self.bytes.extend_from_slice(&[0; 4]);
        fill(self);
        let length = u16::try_from(self.bytes.len() - at).unwrap_or(u16::MAX);
        self.bytes[at..at + 2].copy_from_slice(&length.to_ne_bytes());
        self.bytes[at + 2..at + 4].copy_from_slice(&(kind | NESTED).to_ne_bytes());
    }

    fn finish(&mut self, sequence: u32) {
        let length = u32::try_from(self.bytes.len()).unwrap_or(u32::MAX);
        self.bytes[0..4].copy_from_slice(&length.to_ne_bytes());
        self.bytes[8..12].copy_from_slice(&sequence.to_ne_bytes());
    }
}

/// A connection to one family of the kernel's, in the network namespace in which it was opened.
pub struct Socket {
    fd: OwnedFd,
    sequence: u32,
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Socket {
    /// Open one; no protocol: routing.
    ///
    /// # Errors
    /// What socket(2) and bind(2) say; the kernel may not have the family.
    pub fn open(protocol: Option<Protocol>) -> Result<Self, Errno> {
        let fd = rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, protocol)?;
        rustix::net::bind(&fd, &SocketAddrNetlink::new(0, 0))?;
        sockopt::set_socket_timeout(&fd, Timeout::Recv, Some(PATIENCE))?;
        Ok(Self { fd, sequence: 0 })
    }

    /// Send one request and wait until it is carried out.
    ///
    /// # Errors
    /// The kernel's answer.
    pub fn request(&mut self, mut message: Message) -> Result<(), Errno> {
        let sequence = self.next();
        message.finish(sequence);
        self.send(&message.bytes)?;
        self.receive(sequence, 1, |_| ())
    }

    /// Send one request for many answers, and have `each` look at the payload of each.
    ///
    /// # Errors
    /// The kernel's answer.
    pub fn dump(&mut self, mut message: Message, each: impl FnMut(&[u8])) -> Result<(), Errno> {
        let sequence = self.next();
        message.finish(sequence);
        self.send(&message.bytes)?;
        self.receive(sequence, 1, each)
    }

    /// Send a batch: `begin` and `end` are not acknowledged, `messages` are, and happen together or not at all.
    ///
    /// # Errors
    /// The kernel's answer to the first that it does not like.
    pub fn batch(&mut self, mut begin: Message, messages: Vec<Message>, mut end: Message) -> Result<(), Errno> {
        let first = self.next();
        let count = messages.len();
        let mut bytes = Vec::new();
        begin.finish(first);
        bytes.append(&mut begin.bytes);
        for mut message in messages {
            message.finish(self.next());
            bytes.append(&mut message.bytes);
        }
        end.finish(self.next());
        bytes.append(&mut end.bytes);
        self.send(&bytes)?;
        self.receive(first, count, |_| ())
    }

    fn next(&mut self) -> u32 {
        self.sequence += 1;
        self.sequence
    }

    fn send(&self, bytes: &[u8]) -> Result<(), Errno> {
        let kernel = SocketAddrNetlink::new(0, 0);
        rustix::net::sendto(&self.fd, bytes, SendFlags::empty(), &kernel).map(|_| ())
    }

    /// Read answers to the messages numbered `first` and following until `wanted` of them are acknowledged, or one refused.
    fn receive(&self, first: u32, wanted: usize, mut each: impl FnMut(&[u8])) -> Result<(), Errno> {
        let mut buffer = vec![0; 64 * 1024];
        let mut acknowledged = 0;
        while acknowledged < wanted {
            let (length, _) = rustix::net::recv(&self.fd, &mut buffer[..], RecvFlags::empty())?;
            for (kind, sequence, payload) in messages(&buffer[..length]) {
                if sequence < first {
                    continue;
                }
                match kind {
                    ERROR => match payload.get(..4).and_then(|code| code.try_into().ok()).map(i32::from_ne_bytes) {
                        Some(0) => acknowledged += 1,
                        Some(code) => return Err(Errno::from_raw_os_error(-code)),
                        None => return Err(Errno::PROTO),
                    },
                    DONE => acknowledged += 1,
                    _ => each(payload),
                }
            }
        }
        Ok(())
    }
}

/// The messages in a datagram of the kernel's: type, number, payload.
pub fn messages(mut bytes: &[u8]) -> impl Iterator<Item = (u16, u32, &[u8])> {
    std::iter::from_fn(move || {
        let length = usize::try_from(u32::from_ne_bytes(bytes.get(0..4)?.try_into().ok()?)).ok()?;
        let kind = u16::from_ne_bytes(bytes.get(4..6)?.try_into().ok()?);
        let sequence = u32::from_ne_bytes(bytes.get(8..12)?.try_into().ok()?);
        let payload = bytes.get(HEADER..length)?;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, sequence, payload))
    })
}

/// The attributes in `bytes`: type without flags, value.
pub fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let length = usize::from(u16::from_ne_bytes(bytes.get(0..2)?.try_into().ok()?));
        let kind = u16::from_ne_bytes(bytes.get(2..4)?.try_into().ok()?);
        let value = bytes.get(4..length)?;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind & 0x3fff, value))
    })
}

/// The value of the first attribute of that type.
pub fn attribute(bytes: &[u8], wanted: u16) -> Option<&[u8]> {
    attributes(bytes).find(|(kind, _)| *kind == wanted).map(|(_, value)| value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_nested_comes_back() {
        let mut message = Message::new(7, CREATE, &[1, 2, 3, 4]);
        message.put_text(3, "sbx1");
        message.nest(4, |inner| {
            inner.put(1, &[9]);
            inner.put(2, &[8, 8]);
        });
        message.finish(5);
        let found: Vec<_> = messages(&message.bytes).collect();
        let (kind, sequence, payload) = found[0];
        assert_eq!((found.len(), kind, sequence), (1, 7, 5));
        assert_eq!(attribute(&payload[4..], 3), Some(&b"sbx1\0"[..]));
        let inner = attribute(&payload[4..], 4).unwrap();
        assert_eq!(attributes(inner).collect::<Vec<_>>(), [(1, &[9][..]), (2, &[8, 8][..])]);
        assert_eq!(attribute(inner, 3), None);
    }

    #[test]
    fn lengths_that_lie_end_the_reading() {
        for bytes in [&[][..], &[0; 8], &[255, 255, 1, 0], &[2, 0, 1, 0, 1]] {
            assert!(attributes(bytes).count() == 0, "{bytes:?}");
        }
        assert_eq!(messages(&[255; 40]).count(), 0);
    }
}
