//! A message that waits for what was written before it: whoever is told that a process has ended finds in the pipes all that the
//! process wrote ([`wire::init`]).

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use wire::tunnel::Frame;

/// How long nothing may move until a message goes without waiting further: nobody reads that pipe now.
const PATIENCE: Duration = Duration::from_secs(1);

/// A message, of whatever kind its way takes.
#[derive(Debug)]
pub struct Held<T> {
    message: T,
    /// Bytes of each channel that go before it.
    owed: BTreeMap<u32, usize>,
    since: Instant,
}

impl<T> Held<T> {
    /// `message` goes after these.
    #[must_use]
    pub fn new(message: T, owed: BTreeMap<u32, usize>) -> Self {
        Self { message, owed, since: Instant::now() }
    }

    /// What this frame, which is about to be sent, tells of a channel here has gone.
    pub fn settle(&mut self, frame: &Frame) {
        let (number, bytes) = match frame {
            Frame::Data(number, bytes) => (number, bytes.len()),
            Frame::Taken(number, bytes) => (number, *bytes as usize),
            Frame::End(number) => (number, usize::MAX),
            Frame::Reset | Frame::Blob(_) | Frame::Message(..) => return,
        };
        if let Some(owed) = self.owed.get_mut(number) {
            self.since = Instant::now();
            *owed = owed.saturating_sub(bytes);
            self.owed.retain(|_, owed| *owed > 0);
        }
    }

    /// Whether it waits still.
    #[must_use]
    pub fn waits(&self) -> bool {
        !self.owed.is_empty() && self.since.elapsed() < PATIENCE
    }

    /// Channels that it has waited for in vain.
    pub fn stalled(&self) -> impl Iterator<Item = u32> {
        self.owed.keys().copied()
    }

    /// The message.
    #[must_use]
    pub fn into_message(self) -> T {
        self.message
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_goes_after_what_was_before_it_and_not_after_what_came_later() {
        assert!(!Held::new((), BTreeMap::new()).waits());
        let mut held = Held::new((), BTreeMap::from([(1, 10), (3, 1), (5, 7)]));
        for (frame, waits) in [
            (Frame::Data(7, vec![0; 100]), true),
            (Frame::Data(1, vec![0; 4]), true),
            (Frame::End(3), true),
            (Frame::Taken(5, 9), true),
            (Frame::Data(1, vec![0; 6]), false),
        ] {
            held.settle(&frame);
            assert_eq!(held.waits(), waits, "{frame:?}");
        }
        assert_eq!(held.stalled().count(), 0);
    }
}
