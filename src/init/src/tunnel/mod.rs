//! Both ends of a tunnel: messages with descriptors on one socket, frames on the other ([`wire::tunnel`]).
//!
//! | here | the local socket | the far one |
//! |---|---|---|
//! | outside | accepted from the listener: `sandboxd`, one at a time | to the inside |
//! | inside | connected to the init | to the outside |
//!
//! One thread, one poll(2). Nothing is read while what was read before waits to be sent, so that at most a message, a blob and a
//! window for each channel are held.

mod channel;
mod held;

use std::collections::VecDeque;
use std::ffi::CStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use wire::init::MAX_FRAME;
use wire::tunnel::{CHUNK, Frame, MAX_BLOB, MAX_CHANNELS, MAX_PASSED, MAX_TUNNELLED, Passed};

use crate::frames;
use crate::sys::{self, Access, Errno, Kind, Watched};
use channel::{Channel, Channels, Work};
use held::Held;

/// Most frames taken in one turn.
const FRAMES_PER_TURN: usize = 64;
/// Between two looks at a message that waits.
const LOOK_AGAIN: Duration = Duration::from_millis(50);
/// Most frames that wait to be sent: the largest memfd, and what every channel may have to say meanwhile.
const MAX_QUEUE: usize = MAX_BLOB / CHUNK + 2 * MAX_CHANNELS;

/// Why a tunnel is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Broken(pub &'static str);

impl From<Errno> for Broken {
    fn from(_: Errno) -> Self {
        Self("a system call failed")
    }
}

/// Which end this is, and where its local socket comes from.
#[derive(Debug)]
pub enum Side {
    /// On the host: whoever connects to this listener.
    Outside(OwnedFd),
    /// In the sandbox: whoever listens at this path, the init.
    Inside(&'static CStr),
}

/// A message to the local socket.
#[derive(Debug)]
struct Outgoing {
    bytes: Vec<u8>,
    fds: Vec<OwnedFd>,
}

/// One end.
#[derive(Debug)]
pub struct Tunnel {
    side: Side,
    far: OwnedFd,
    local: Option<OwnedFd>,
    channels: Channels,
    to_far: VecDeque<Vec<u8>>,
    to_local: VecDeque<Outgoing>,
    /// From the local socket, behind what was written before.
    held_far: Option<Held<Frame>>,
    /// To the local socket, behind what came before.
    held_local: Option<Held<Outgoing>>,
    blob: Vec<u8>,
    /// Outside: resets that the inside has not answered. Until it has, messages are for a connection that is gone.
    stale: u32,
    buffer: Vec<u8>,
}

impl Tunnel {
    /// The end `side`, whose other end is behind `far`.
    ///
    /// # Errors
    /// A descriptor cannot be made non-blocking, or the init not connected to.
    pub fn new(side: Side, far: OwnedFd) -> Result<Self, Broken> {
        sys::set_nonblocking(far.as_fd())?;
        let first = match &side {
            Side::Outside(listener) => {
                sys::set_nonblocking(listener.as_fd())?;
                0
            }
            Side::Inside(_) => 1,
        };
        let mut tunnel = Self {
            side,
            far,
            local: None,
            channels: Channels::new(first),
            to_far: VecDeque::new(),
            to_local: VecDeque::new(),
            held_far: None,
            held_local: None,
            blob: Vec::new(),
            stale: 0,
            buffer: vec![0; MAX_TUNNELLED],
        };
        if let Side::Inside(path) = tunnel.side {
            tunnel.local = Some(sys::connect_to(path)?);
        }
        Ok(tunnel)
    }

    /// Carries until the other end is gone, or does what it must not.
    pub fn run(mut self) -> Broken {
        loop {
            if let Err(broken) = self.turn() {
                return broken;
            }
        }
    }

    fn turn(&mut self) -> Result<(), Broken> {
        for ready in self.wait()? {
            match ready {
                Ready::Listener => self.accept()?,
                Ready::Far => self.receive_far()?,
                Ready::Local => self.receive_local()?,
                Ready::Channel(number) => self.work(number)?,
                Ready::Sending => {}
            }
        }
        self.release()?;
        self.flush_far()?;
        self.flush_local()
    }

    fn work(&mut self, number: u32) -> Result<(), Broken> {
        let Some(frame) = self.channels.work(number) else { return Ok(()) };
        if let Some(held) = &mut self.held_far {
            held.settle(&frame);
        }
        if let Some(held) = &mut self.held_local {
            held.settle(&frame);
        }
        self.send(&frame)
    }

    /// Messages that wait for nothing any more go on.
    fn release(&mut self) -> Result<(), Broken> {
        if let Some(held) = self.held_far.take_if(|held| !held.waits()) {
            held.stalled().for_each(|number| self.channels.stall(number));
            self.send(&held.into_message())?;
        }
        if let Some(held) = self.held_local.take_if(|held| !held.waits()) {
            held.stalled().for_each(|number| self.channels.stall(number));
            self.to_local.push_back(held.into_message());
        }
        Ok(())
    }

    fn wait(&self) -> Result<Vec<Ready>, Broken> {
        // What is to be sent goes before what is to be read of the same kind, so that little is held; but the far socket is always
        // read, or each end could wait for the other.
        let (far_idle, local_idle) = (self.to_far.is_empty(), self.to_local.is_empty());
        let (mut kinds, mut watched) = (Vec::new(), Vec::new());
        let mut watch = |kind, fd, write| {
            kinds.push(kind);
            watched.push(Watched { fd, write, ready: false });
        };
        if local_idle && self.held_local.is_none() {
            watch(Ready::Far, self.far.as_fd(), false);
        }
        if !far_idle {
            watch(Ready::Sending, self.far.as_fd(), true);
        }
        let reads_local = far_idle && self.held_far.is_none();
        if let Some(local) = self.local.as_ref().filter(|_| reads_local || !local_idle) {
            watch(if local_idle { Ready::Local } else { Ready::Sending }, local.as_fd(), !local_idle);
        }
        if let Side::Outside(listener) = &self.side {
            watch(Ready::Listener, listener.as_fd(), false);
        }
        for (number, fd, write) in self.channels.watched(far_idle) {
            watch(Ready::Channel(number), fd, write);
        }
        let holds = self.held_far.is_some() || self.held_local.is_some();
        match sys::poll(&mut watched, holds.then_some(LOOK_AGAIN)) {
            Ok(()) | Err(Errno(libc::EINTR)) => {}
            Err(errno) => return Err(errno.into()),
        }
        let ready = kinds.iter().zip(&watched).filter(|(_, one)| one.ready).map(|(kind, _)| *kind);
        Ok(ready.collect())
    }

    fn accept(&mut self) -> Result<(), Broken> {
        let Side::Outside(listener) = &self.side else { return Ok(()) };
        match sys::accept(listener.as_fd()) {
            Ok(socket) => {
                self.local = Some(socket);
                self.reset()
            }
            Err(_) => Ok(()),
        }
    }

    /// The local peer is another one, or none.
    fn reset(&mut self) -> Result<(), Broken> {
        self.to_local.clear();
        (self.held_far, self.held_local) = (None, None);
        match self.side {
            Side::Outside(_) => self.stale += 1,
            Side::Inside(path) => self.local = Some(sys::connect_to(path)?),
        }
        self.send(&Frame::Reset)
    }

    fn send(&mut self, frame: &Frame) -> Result<(), Broken> {
        if self.to_far.len() >= MAX_QUEUE {
            return Err(Broken("the other end does not read"));
        }
        let bytes = postcard::to_allocvec(frame).map_err(|_| Broken("a frame cannot be written"))?;
        self.to_far.push_back(bytes);
        Ok(())
    }

    fn flush_far(&mut self) -> Result<(), Broken> {
        while let Some(bytes) = self.to_far.front() {
            match sys::send(self.far.as_fd(), bytes, &[]) {
                Ok(()) => drop(self.to_far.pop_front()),
                Err(Errno(libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM)) => return Ok(()),
                Err(_) => return Err(Broken("the other end is gone")),
            }
        }
        Ok(())
    }

    fn flush_local(&mut self) -> Result<(), Broken> {
        while let (Some(local), Some(next)) = (&self.local, self.to_local.front()) {
            let fds: Vec<BorrowedFd<'_>> = next.fds.iter().map(AsFd::as_fd).collect();
            match sys::send(local.as_fd(), &next.bytes, &fds) {
                Ok(()) => drop(self.to_local.pop_front()),
                Err(Errno(libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM | libc::ETOOMANYREFS)) => return Ok(()),
                Err(_) => return self.lose_local(),
            }
        }
        Ok(())
    }

    fn lose_local(&mut self) -> Result<(), Broken> {
        match self.side {
            Side::Outside(_) => {
                self.local = None;
                self.reset()
            }
            Side::Inside(_) => Err(Broken("the init is gone")),
        }
    }

    fn receive_local(&mut self) -> Result<(), Broken> {
        let Some(local) = &self.local else { return Ok(()) };
        let received = match sys::receive(local.as_fd(), &mut self.buffer[..MAX_FRAME]) {
            Ok(received) if received.len > 0 && !received.truncated => received,
            Err(Errno(libc::EAGAIN | libc::EINTR)) => return Ok(()),
            Ok(_) | Err(_) => return self.lose_local(),
        };
        let bytes = self.buffer[..received.len].to_vec();
        let mut passed = Vec::new();
        let mut ends = Vec::new();
        for fd in received.fds {
            match self.pass(fd, &mut ends)? {
                Some(one) => passed.push(one),
                // Neither speaks of anything else.
                None => return self.lose_local(),
            }
        }
        let owed = self.channels.owed_by_sources();
        self.begin(ends)?;
        self.held_far = Some(Held::new(Frame::Message(bytes, passed), owed));
        self.release()
    }

    /// What is sent for `fd`: a pipe's ends are collected, a memfd's content goes before.
    fn pass(&mut self, fd: OwnedFd, ends: &mut Vec<Ends>) -> Result<Option<Passed>, Broken> {
        let (identity, size) = sys::identity(fd.as_fd())?;
        match (sys::kind(fd.as_fd())?, sys::access(fd.as_fd())?) {
            (Kind::Pipe, access @ (Access::Read | Access::Write)) => {
                let known = self
                    .channels
                    .of(identity)
                    .or_else(|| ends.iter().find(|one| one.identity == identity).map(|one| one.number));
                let number = match known {
                    Some(number) => number,
                    None => {
                        let number = self.channels.number();
                        ends.push(Ends { identity, number, read: None, write: None });
                        number
                    }
                };
                let new = ends.iter_mut().find(|one| one.number == number);
                Ok(Some(match access {
                    Access::Read => {
                        if let Some(new) = new {
                            new.read = Some(fd);
                        }
                        Passed::Read(number)
                    }
                    Access::Write | Access::Other => {
                        if let Some(new) = new {
                            new.write = Some(fd);
                        }
                        Passed::Write(number)
                    }
                }))
            }
            (Kind::Other, _) if sys::sealed_against_writing(fd.as_fd()) && size <= MAX_BLOB => {
                self.send_blob(fd.as_fd(), size)?;
                Ok(Some(Passed::Memfd))
            }
            (Kind::Pipe | Kind::Socket | Kind::Directory | Kind::Other, _) => Ok(None),
        }
    }

    fn send_blob(&mut self, fd: BorrowedFd<'_>, size: usize) -> Result<(), Broken> {
        let mut done = 0;
        while done < size {
            let mut bytes = vec![0; CHUNK.min(size - done)];
            let count = sys::read_at(fd, &mut bytes, done)?;
            if count == 0 {
                return Err(Broken("a memfd shrank"));
            }
            bytes.truncate(count);
            done += count;
            self.send(&Frame::Blob(bytes))?;
        }
        Ok(())
    }

    /// The channels of pipes that have just been passed on: who is given the write end writes, over there.
    fn begin(&mut self, ends: Vec<Ends>) -> Result<(), Broken> {
        for Ends { identity, number, read, write } in ends {
            let work = match (read, write) {
                (read, Some(into)) => sink(into, read)?,
                (Some(from), None) => source(from)?,
                (None, None) => continue,
            };
            self.channels.insert(number, Channel { identity, work })?;
        }
        Ok(())
    }

    fn receive_far(&mut self) -> Result<(), Broken> {
        for _ in 0..FRAMES_PER_TURN {
            let received = match sys::receive(self.far.as_fd(), &mut self.buffer) {
                Ok(received) if received.len > 0 && !received.truncated => received,
                Err(Errno(libc::EAGAIN | libc::EINTR)) => return Ok(()),
                Ok(_) | Err(_) => return Err(Broken("the other end is gone")),
            };
            let frame: Frame = frames::decode(&self.buffer[..received.len]).ok_or(Broken("that is no frame"))?;
            self.take(frame)?;
            self.release()?;
            self.flush_local()?;
            if self.held_local.is_some() || !self.to_local.is_empty() {
                return Ok(());
            }
        }
        Ok(())
    }

    fn take(&mut self, frame: Frame) -> Result<(), Broken> {
        match frame {
            Frame::Reset => match self.side {
                Side::Outside(_) => self.stale = self.stale.checked_sub(1).ok_or(Broken("an answer to no reset"))?,
                Side::Inside(_) => self.reset()?,
            },
            Frame::Blob(bytes) => {
                if self.blob.len() + bytes.len() > MAX_BLOB {
                    return Err(Broken("too large a blob"));
                }
                self.blob.extend_from_slice(&bytes);
            }
            Frame::Message(bytes, passed) => self.deliver(bytes, passed)?,
            Frame::Data(number, bytes) => {
                if let Some(frame) = self.channels.data(number, &bytes)? {
                    self.send(&frame)?;
                }
            }
            Frame::Taken(number, bytes) => self.channels.taken(number, bytes)?,
            Frame::End(number) => self.channels.end(number)?,
        }
        Ok(())
    }

    fn deliver(&mut self, bytes: Vec<u8>, passed: Vec<Passed>) -> Result<(), Broken> {
        if bytes.len() > MAX_FRAME || passed.len() > MAX_PASSED {
            return Err(Broken("too large a message"));
        }
        let writers: Vec<u32> = passed
            .iter()
            .filter_map(|one| if let Passed::Write(number) = one { Some(*number) } else { None })
            .collect();
        let mut made: Vec<(u32, OwnedFd, OwnedFd)> = Vec::new();
        let mut fds = Vec::new();
        for one in passed {
            fds.push(match one {
                Passed::Memfd => sys::sealed_memfd(&std::mem::take(&mut self.blob))?,
                Passed::Read(number) | Passed::Write(number) => {
                    let read = matches!(one, Passed::Read(_));
                    self.end_of(number, read, writers.contains(&number), &mut made)?
                }
            });
        }
        if self.local.is_some() && self.stale == 0 {
            self.held_local = Some(Held::new(Outgoing { bytes, fds }, self.channels.owed_by_sinks()));
        }
        Ok(())
    }

    /// An end of the pipe of the channel `number`, which begins here if it is not known.
    fn end_of(
        &mut self,
        number: u32,
        read: bool,
        written: bool,
        made: &mut Vec<(u32, OwnedFd, OwnedFd)>,
    ) -> Result<OwnedFd, Broken> {
        if let Some(channel) = self.channels.get(number).filter(|_| !made.iter().any(|one| one.0 == number)) {
            return match &channel.work {
                Work::Sink { read: Some(kept), .. } if read => Ok(duplicate(kept)?),
                Work::Sink { .. } | Work::Source { .. } => Err(Broken("an end that is not there")),
            };
        }
        if !made.iter().any(|one| one.0 == number) {
            let (from, into) = sys::pipe()?;
            let (identity, _) = sys::identity(from.as_fd())?;
            let work = if written { source(duplicate(&from)?)? } else { sink(duplicate(&into)?, None)? };
            self.channels.insert(number, Channel { identity, work })?;
            made.push((number, from, into));
        }
        let Some((_, from, into)) = made.iter().find(|one| one.0 == number) else {
            return Err(Broken("an end that is not there"));
        };
        Ok(duplicate(if read { from } else { into })?)
    }
}

/// What a descriptor that is ready is ready for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ready {
    Far,
    Local,
    Listener,
    Channel(u32),
    /// What waits to be sent is, at the end of every turn.
    Sending,
}

/// The ends of one new pipe in a message.
struct Ends {
    identity: channel::Identity,
    number: u32,
    read: Option<OwnedFd>,
    write: Option<OwnedFd>,
}

fn source(from: OwnedFd) -> Result<Work, Errno> {
    sys::set_nonblocking(from.as_fd())?;
    Ok(Work::Source { from, under_way: 0 })
}

fn sink(into: OwnedFd, read: Option<OwnedFd>) -> Result<Work, Errno> {
    sys::set_nonblocking(into.as_fd())?;
    Ok(Work::Sink { into: Some(into), waiting: VecDeque::new(), ended: false, read })
}

fn duplicate(fd: &OwnedFd) -> Result<OwnedFd, Errno> {
    use std::os::fd::AsRawFd;
    sys::duplicate_high(fd.as_raw_fd())
}

#[cfg(test)]
mod tests;
