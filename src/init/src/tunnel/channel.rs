//! Channels: a pipe here and a pipe there, and what is written into the one comes out of the other.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use wire::tunnel::{CHUNK, Frame, MAX_CHANNELS, WINDOW};

use super::Broken;
use crate::sys::{self, Errno};

/// Which pipe, as fstat(2) tells it apart from others.
pub type Identity = (u64, u64);

/// The pipe's end that this side works on.
#[derive(Debug)]
pub enum Work {
    /// Bytes are read here and sent.
    Source {
        /// The read end.
        from: OwnedFd,
        /// Sent and not yet taken.
        under_way: usize,
    },
    /// Bytes that come are written here.
    Sink {
        /// The write end; none once nobody reads: what comes then is thrown away.
        into: Option<OwnedFd>,
        /// What the pipe has not taken yet, at most [`WINDOW`].
        waiting: VecDeque<u8>,
        /// Whether the other side has sent everything.
        ended: bool,
        /// Kept for whoever asks for it again, and so that writing breaks on nobody's death.
        read: Option<OwnedFd>,
    },
}

/// One channel.
#[derive(Debug)]
pub struct Channel {
    /// Of the pipe on this side.
    pub identity: Identity,
    /// What is done.
    pub work: Work,
}

/// All of one side, by their numbers.
#[derive(Debug)]
pub struct Channels {
    all: BTreeMap<u32, Channel>,
    /// The next number that this side gives; the sides give odd and even ones.
    next: u32,
    /// Those that a message has waited for in vain; none waits for them until they move again.
    stalled: BTreeSet<u32>,
}

impl Channels {
    /// None yet; `first` is 0 on one side and 1 on the other.
    #[must_use]
    pub fn new(first: u32) -> Self {
        Self { all: BTreeMap::new(), next: first, stalled: BTreeSet::new() }
    }

    /// The channel of this pipe.
    #[must_use]
    pub fn of(&self, identity: Identity) -> Option<u32> {
        self.all.iter().find(|(_, channel)| channel.identity == identity).map(|(number, _)| *number)
    }

    /// The channel `number`.
    pub fn get(&mut self, number: u32) -> Option<&mut Channel> {
        self.all.get_mut(&number)
    }

    /// A number of this side's that no channel has.
    pub fn number(&mut self) -> u32 {
        loop {
            let number = self.next;
            self.next = self.next.wrapping_add(2);
            if !self.all.contains_key(&number) {
                return number;
            }
        }
    }

    /// A new channel.
    ///
    /// # Errors
    /// There are too many, or it is there already.
    pub fn insert(&mut self, number: u32, channel: Channel) -> Result<(), Broken> {
        if self.all.len() >= MAX_CHANNELS || self.all.contains_key(&number) {
            return Err(Broken("a channel too many"));
        }
        self.all.insert(number, channel);
        Ok(())
    }

    /// What is to be waited for: channel, descriptor, whether to write.
    pub fn watched(&self, sources: bool) -> impl Iterator<Item = (u32, BorrowedFd<'_>, bool)> {
        self.all.iter().filter_map(move |(number, channel)| match &channel.work {
            Work::Source { from, under_way } => {
                (sources && *under_way < WINDOW).then_some((*number, from.as_fd(), false))
            }
            Work::Sink { into, waiting, .. } => {
                into.as_ref().filter(|_| !waiting.is_empty()).map(|into| (*number, into.as_fd(), true))
            }
        })
    }

    /// Bytes that have been written into pipes here and are not sent: what is to go before a message from here.
    pub fn owed_by_sources(&self) -> BTreeMap<u32, usize> {
        let owed = self.all.iter().filter_map(|(number, channel)| match &channel.work {
            Work::Source { from, .. } => Some((*number, sys::available(from.as_fd()).unwrap_or(0))),
            Work::Sink { .. } => None,
        });
        owed.filter(|(number, bytes)| *bytes > 0 && !self.stalled.contains(number)).collect()
    }

    /// Bytes that have come and are in no pipe yet: what is to go before a message to here.
    pub fn owed_by_sinks(&self) -> BTreeMap<u32, usize> {
        let owed = self.all.iter().filter_map(|(number, channel)| match &channel.work {
            Work::Sink { waiting, .. } => Some((*number, waiting.len())),
            Work::Source { .. } => None,
        });
        owed.filter(|(number, bytes)| *bytes > 0 && !self.stalled.contains(number)).collect()
    }

    /// No message waits for `number` until it moves again.
    pub fn stall(&mut self, number: u32) {
        self.stalled.insert(number);
    }

    /// The other side has taken bytes of a source of ours.
    ///
    /// # Errors
    /// More than there were.
    pub fn taken(&mut self, number: u32, bytes: u32) -> Result<(), Broken> {
        match self.all.get_mut(&number).map(|channel| &mut channel.work) {
            Some(Work::Source { under_way, .. }) => {
                *under_way = under_way.checked_sub(bytes as usize).ok_or(Broken("more taken than sent"))?;
                Ok(())
            }
            // It has ended here meanwhile.
            None => Ok(()),
            Some(Work::Sink { .. }) => Err(Broken("a sink was told of bytes taken")),
        }
    }

    /// Bytes for a sink of ours.
    ///
    /// # Errors
    /// There is none of that number, or more than the window holds.
    pub fn data(&mut self, number: u32, bytes: &[u8]) -> Result<Option<Frame>, Broken> {
        match self.all.get_mut(&number).map(|channel| &mut channel.work) {
            Some(Work::Sink { waiting, ended: false, .. }) if waiting.len() + bytes.len() <= WINDOW => {
                waiting.extend(bytes);
                Ok(self.work(number))
            }
            _ => Err(Broken("bytes for no sink, or too many")),
        }
    }

    /// No more bytes for a sink of ours.
    ///
    /// # Errors
    /// There is none of that number.
    pub fn end(&mut self, number: u32) -> Result<(), Broken> {
        match self.all.get_mut(&number).map(|channel| &mut channel.work) {
            Some(Work::Sink { ended, .. }) => *ended = true,
            Some(Work::Source { .. }) | None => return Err(Broken("the end of no sink")),
        }
        self.work(number);
        Ok(())
    }

    /// Does what can be done now for the channel `number`: what is to be sent for it.
    pub fn work(&mut self, number: u32) -> Option<Frame> {
        let frame = match &mut self.all.get_mut(&number)?.work {
            Work::Source { from, under_way } => read(number, from.as_fd(), under_way),
            Work::Sink { into, waiting, .. } => write(number, into, waiting),
        };
        let over = match self.all.get(&number).map(|channel| &channel.work) {
            Some(Work::Source { .. }) => matches!(frame, Some(Frame::End(_))),
            Some(Work::Sink { ended, waiting, .. }) => *ended && waiting.is_empty(),
            None => false,
        };
        if over {
            self.all.remove(&number);
        }
        if over || frame.is_some() {
            self.stalled.remove(&number);
        }
        frame
    }
}

fn read(number: u32, from: BorrowedFd<'_>, under_way: &mut usize) -> Option<Frame> {
    let mut buffer = vec![0; CHUNK.min(WINDOW - *under_way)];
    match sys::read(from, &mut buffer) {
        Ok(0) => Some(Frame::End(number)),
        Ok(count) => {
            buffer.truncate(count);
            *under_way += count;
            Some(Frame::Data(number, buffer))
        }
        Err(Errno(libc::EAGAIN | libc::EINTR)) => None,
        Err(_) => Some(Frame::End(number)),
    }
}

fn write(number: u32, into: &mut Option<OwnedFd>, waiting: &mut VecDeque<u8>) -> Option<Frame> {
    let mut taken = 0;
    while !waiting.is_empty() {
        let (bytes, _) = waiting.as_slices();
        let written = match into.as_ref().map_or(Ok(bytes.len()), |into| sys::write_some(into.as_fd(), bytes)) {
            Ok(written) => written,
            Err(Errno(libc::EAGAIN | libc::EINTR)) => break,
            Err(_) => {
                *into = None;
                continue;
            }
        };
        waiting.drain(..written);
        taken += written as u32;
    }
    (taken > 0).then_some(Frame::Taken(number, taken))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sink() -> (Channels, OwnedFd) {
        let (read, write) = sys::pipe().unwrap();
        sys::set_nonblocking(write.as_fd()).unwrap();
        let work = Work::Sink { into: Some(write), waiting: VecDeque::new(), ended: false, read: None };
        let mut channels = Channels::new(0);
        channels.insert(0, Channel { identity: (0, 0), work }).unwrap();
        (channels, read)
    }

    #[test]
    fn a_sink_takes_a_window_and_not_a_byte_more() {
        let (mut channels, read) = sink();
        // The pipe takes 64 KiB, and then as much may wait.
        assert_eq!(channels.data(0, &vec![1; WINDOW]), Ok(Some(Frame::Taken(0, WINDOW as u32))));
        assert_eq!(channels.data(0, &vec![2; WINDOW]), Ok(None));
        assert!(channels.data(0, &[3]).is_err());
        assert_eq!(channels.watched(true).count(), 1);
        let mut buffer = vec![0; WINDOW];
        assert_eq!(sys::read(read.as_fd(), &mut buffer), Ok(WINDOW));
        assert_eq!(channels.work(0), Some(Frame::Taken(0, WINDOW as u32)));
        assert!(channels.end(0).is_ok() && channels.get(0).is_none());
        assert!(channels.end(0).is_err() && channels.data(0, &[1]).is_err());
    }

    #[test]
    fn what_nobody_reads_is_thrown_away() {
        let (mut channels, read) = sink();
        drop(read);
        assert_eq!(channels.data(0, b"abc"), Ok(Some(Frame::Taken(0, 3))));
        assert_eq!(channels.data(0, b"abc"), Ok(Some(Frame::Taken(0, 3))));
    }

    #[test]
    fn a_source_stops_at_the_window_and_tells_its_end() {
        let (from, write) = sys::pipe().unwrap();
        sys::set_nonblocking(from.as_fd()).unwrap();
        let mut channels = Channels::new(1);
        let work = Work::Source { from, under_way: 0 };
        let number = channels.number();
        channels.insert(number, Channel { identity: (0, 0), work }).unwrap();
        assert_eq!(channels.work(number), None);
        let fill = || sys::write_some(write.as_fd(), &vec![7; CHUNK]).unwrap();
        for _ in 0..WINDOW / CHUNK {
            fill();
            assert_eq!(channels.work(number), Some(Frame::Data(number, vec![7; CHUNK])));
        }
        fill();
        assert_eq!(channels.watched(true).count(), 0);
        assert!(channels.taken(number, WINDOW as u32 + 1).is_err());
        channels.taken(number, CHUNK as u32).unwrap();
        assert_eq!(channels.work(number), Some(Frame::Data(number, vec![7; CHUNK])));
        channels.taken(number, CHUNK as u32).unwrap();
        drop(write);
        assert_eq!(channels.work(number), Some(Frame::End(number)));
        assert!(channels.get(number).is_none() && channels.taken(number, 1).is_ok());
    }
}
