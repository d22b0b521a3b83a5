//! Runs that are over and whose end `sandboxd` has not said to be recorded: told again when it asks.

use std::collections::VecDeque;
use std::time::Duration;

use wire::id::RunId;
use wire::init::{MAX_ENDED, Met, Status};

/// What is told of a run of which nothing is left.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ended {
    /// Its name.
    pub id: RunId,
    /// What came with it.
    pub note: Vec<u8>,
    /// How its main process ended.
    pub status: Status,
    /// From its start to the end of its main process.
    pub age: Duration,
    /// Limits that it met.
    pub met: Met,
}

/// At most [`MAX_ENDED`] of them; the oldest give way.
#[derive(Debug, Default)]
pub struct EndedRuns(VecDeque<Ended>);

impl EndedRuns {
    /// Remembers one more.
    pub fn push(&mut self, ended: Ended) {
        if self.0.len() == MAX_ENDED {
            self.0.pop_front();
        }
        self.0.push_back(ended);
    }

    /// Remembers `run` no longer, if it did.
    pub fn remove(&mut self, run: RunId) {
        self.0.retain(|ended| ended.id != run);
    }

    /// Every one, the oldest first.
    pub fn iter(&self) -> impl Iterator<Item = &Ended> {
        self.0.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(number: usize) -> Ended {
        Ended {
            id: RunId::from_u128(number as u128),
            note: vec![],
            status: Status::Code(0),
            age: Duration::ZERO,
            met: Met::default(),
        }
    }

    #[test]
    fn the_oldest_give_way_and_what_is_recorded_goes() {
        let mut runs = EndedRuns::default();
        for number in 0..MAX_ENDED + 2 {
            runs.push(ended(number));
        }
        assert_eq!(runs.iter().count(), MAX_ENDED);
        assert_eq!(runs.iter().next(), Some(&ended(2)));
        for number in [0, 2, 2] {
            runs.remove(ended(number).id);
        }
        assert_eq!(runs.iter().count(), MAX_ENDED - 1);
        assert_eq!(runs.iter().next(), Some(&ended(3)));
    }
}
