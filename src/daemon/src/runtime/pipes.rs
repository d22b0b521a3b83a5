//! The two output streams of a command, read into bounded memory.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::buffer::spare_capacity;
use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::sys::watch;

/// Least room for one reading, in bytes; it grows with what has been read.
const CHUNK: usize = 8 * 1024;

/// A pipe of which a command gets the write end.
#[derive(Debug)]
pub struct Pipe {
    /// Ours, not blocking.
    read: AsyncFd<OwnedFd>,
    /// The command's; closed here once it was handed over.
    write: Option<OwnedFd>,
    /// At its end.
    ended: bool,
}

/// What reading found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Read {
    /// So many bytes.
    Bytes(usize),
    /// Nothing now.
    Empty,
    /// Every write end is closed.
    End,
}

impl Pipe {
    /// A new pipe that the sandbox's processes may also open by `/proc/self/fd`.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn new() -> io::Result<Self> {
        let (read, write) = pipe_with(PipeFlags::CLOEXEC)?;
        // Only our end: the flag belongs to the open file, and a command's output must block.
        rustix::io::ioctl_fionbio(&read, true)?;
        // `echo > /dev/stdout` opens the pipe anew, as an owner that the sandbox does not know.
        rustix::fs::fchmod(&write, Mode::from_raw_mode(0o666))?;
        let read = watch(read, Interest::READABLE)?;
        Ok(Self { read, write: Some(write), ended: false })
    }

    /// A pipe whose write end a command has already.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn adopted(read: OwnedFd) -> io::Result<Self> {
        rustix::io::ioctl_fionbio(&read, true)?;
        Ok(Self { read: watch(read, Interest::READABLE)?, write: None, ended: false })
    }

    /// Both ends, to hand over.
    #[must_use]
    pub fn ends(&self) -> Option<[BorrowedFd<'_>; 2]> {
        Some([self.read.get_ref().as_fd(), self.write.as_ref()?.as_fd()])
    }

    /// Close our copy of the write end.
    pub fn handed_over(&mut self) {
        self.write = None;
    }

    /// Whether its end was reached.
    #[must_use]
    pub fn ended(&self) -> bool {
        self.ended
    }

    /// Wait until there is something to read, or the end.
    pub async fn readable(&self) {
        if self.ended {
            std::future::pending::<()>().await;
        }
        // An error here (the runtime ends) shows again at the read.
        let _ = self.read.readable().await.map(|mut ready| ready.retain_ready());
    }

    /// Read what is there now, appending at most `keep` bytes to `to`; the rest is dropped.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn read_now(&mut self, to: &mut Vec<u8>, keep: usize) -> io::Result<Read> {
        if self.ended {
            return Ok(Read::End);
        }
        let start = to.len();
        to.reserve(CHUNK);
        let count = match rustix::io::read(self.read.get_ref(), spare_capacity(to)) {
            // Asked again the way that makes the next `readable` wait for the kernel's word.
            Err(Errno::AGAIN) => {
                self.read.try_io(Interest::READABLE, |fd| Ok(rustix::io::read(fd, spare_capacity(to))?))
            }
            other => other.map_err(io::Error::from),
        };
        match count {
            Ok(0) => {
                self.ended = true;
                Ok(Read::End)
            }
            Ok(count) => {
                to.truncate(start + count.min(keep));
                Ok(Read::Bytes(count))
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(Read::Empty),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(Read::Bytes(0)),
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_was_written_before_the_end_is_read_and_what_is_over_is_dropped() {
        let mut pipe = Pipe::new().unwrap();
        let write = rustix::io::dup(pipe.ends().unwrap()[1]).unwrap();
        pipe.handed_over();
        let mut got = Vec::new();
        assert_eq!(pipe.read_now(&mut got, 10).unwrap(), Read::Empty);
        rustix::io::write(&write, b"hello").unwrap();
        pipe.readable().await;
        assert_eq!(pipe.read_now(&mut got, 3).unwrap(), Read::Bytes(5));
        assert_eq!(got, b"hel");
        drop(write);
        pipe.readable().await;
        assert_eq!(pipe.read_now(&mut got, 10).unwrap(), Read::End);
        assert!(pipe.ended());
    }

    #[tokio::test]
    async fn an_empty_pipe_does_not_spin() {
        let mut pipe = Pipe::new().unwrap();
        let mut got = Vec::new();
        let _ = pipe.read_now(&mut got, 10).unwrap();
        let waited = tokio::time::timeout(std::time::Duration::from_millis(50), pipe.readable()).await;
        assert!(waited.is_err());
    }
}
