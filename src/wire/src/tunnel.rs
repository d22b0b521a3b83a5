//! `sandbox-init` ↔ `sandbox-init`: the control socket of a sandbox whose kernel takes no descriptors from the host.
//!
//! gVisor's kernel is a process, and what is inside of it has no descriptor of the host's but the streams that it was started with. So
//! there are two more processes, one on each side, and between them a `SOCK_SEQPACKET` socket without descriptors that carries
//! [`Frame`]s. Each side speaks [`crate::init`] over a socket of its own, with descriptors, and knows nothing of its messages:
//!
//! ```text
//! sandboxd ◄─ messages, descriptors ─► outside ◄─ frames ─► inside ◄─ messages, descriptors ─► init
//! ```
//! A message travels whole. For each pipe that comes with it the other side makes one of its own, a *channel*, and what is written
//! into the one is read from the other; a memfd travels before the message, by its content. What was written before a message was
//! sent is in the pipe before the message arrives, unless nobody reads that pipe for a second.
//!
//! The outside trusts nothing that the inside says: everything is bounded, and a frame that breaks a rule ends the tunnel, with
//! it the sandbox.

use serde::{Deserialize, Serialize};

use crate::init::{MAX_FRAME, MAX_RUNS};

/// Most bytes of one [`Frame::Data`] or [`Frame::Blob`].
pub const CHUNK: usize = 32 * 1024;
/// Largest encoded frame, in bytes: a message and what belongs to it.
pub const MAX_TUNNELLED: usize = MAX_FRAME + 1024;
/// Most bytes of a channel that are under way: sent and not [`Frame::Taken`].
pub const WINDOW: usize = 64 * 1024;
/// Most bytes of a memfd.
pub const MAX_BLOB: usize = 64 * 1024 * 1024;
/// Most channels at once: two for each run, and one for each file operation under way.
pub const MAX_CHANNELS: usize = 2 * MAX_RUNS + 1024;
/// Most descriptors of one message.
pub const MAX_PASSED: usize = 8;

/// What travels between the two.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Frame {
    /// From outside: whoever spoke to the init is gone, or another has come; the inside connects to the init anew. From inside: it
    /// has; messages that were sent before were for somebody else.
    Reset,
    /// More of the memfd that comes with the next message.
    Blob(Vec<u8>),
    /// A message, at most [`MAX_FRAME`] bytes, and its descriptors in order, at most [`MAX_PASSED`].
    Message(Vec<u8>, Vec<Passed>),
    /// Bytes that were written into a channel's pipe.
    Data(u32, Vec<u8>),
    /// So many bytes of a channel went into the pipe on this side.
    Taken(u32, u32),
    /// Nobody writes into the channel's pipe any more. The channel is over.
    End(u32),
}

/// A descriptor of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Passed {
    /// The read end of a channel's pipe. A channel that is not known yet begins with it.
    Read(u32),
    /// The write end, likewise.
    Write(u32),
    /// A sealed memfd with what the blobs before brought.
    Memfd,
}
