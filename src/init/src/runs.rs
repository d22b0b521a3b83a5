//! The table of runs: what the init knows of each command until no process of it is left.

use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::{Duration, Instant};

use wire::id::RunId;
use wire::init::{MAX_RUNS, Met, Status};

/// Read ends of a command's standard output and error. Kept so that nothing breaks while no `sandboxd` reads.
#[derive(Debug)]
pub struct Streams {
    /// Of standard output.
    pub out: OwnedFd,
    /// Of standard error.
    pub err: OwnedFd,
}

/// A command and the processes that it left.
#[derive(Debug)]
pub struct Run {
    /// Its name.
    pub id: RunId,
    /// What came with it, for `sandboxd` alone.
    pub note: Vec<u8>,
    /// When it was started.
    pub started: Instant,
    /// Its main process, until that is reaped.
    pub pid: Option<i32>,
    /// How the main process ended, once reaped, and how long after its start.
    pub exited: Option<(Status, Duration)>,
    /// Forks that had failed in this sandbox before it was started; see [`crate::cgroup::Commands::forks_failed`].
    pub forks_failed: u64,
    /// Limits that it met before its main process ended.
    pub met: Met,
    /// Whether `sandboxd` has recorded its end.
    pub forgotten: bool,
    /// Whether it was refused: it is only waited for until its cgroup is gone.
    pub refused: bool,
    /// Its streams; none of a file operation, which is not listed either.
    pub streams: Option<Rc<Streams>>,
    /// Its `cgroup.events`, while that is watched: the main process has ended and others have not.
    pub events: Option<OwnedFd>,
    /// When to kill all of it.
    pub kill_at: Option<Instant>,
    /// When to try again to remove its cgroup.
    pub settle_at: Option<Instant>,
}

impl Run {
    /// A command, or a file operation, that has just been started.
    #[must_use]
    pub fn started(id: RunId, note: Vec<u8>, pid: i32, streams: Option<Streams>) -> Self {
        Self {
            id,
            note,
            started: Instant::now(),
            pid: Some(pid),
            exited: None,
            forks_failed: 0,
            met: Met::default(),
            // Of what is not listed nobody records the end.
            forgotten: streams.is_none(),
            refused: false,
            streams: streams.map(Rc::new),
            events: None,
            kill_at: None,
            settle_at: None,
        }
    }

    /// From its start to the end of its main process, or to now.
    #[must_use]
    pub fn age(&self) -> Duration {
        self.exited.map_or_else(|| self.started.elapsed(), |(_, age)| age)
    }
}

/// Runs by slot, a small number that stays while the run does.
#[derive(Debug)]
pub struct Runs {
    slots: Vec<Option<Run>>,
    capacity: usize,
}

impl Runs {
    /// An empty table for at most `capacity` runs, never more than [`MAX_RUNS`].
    #[must_use]
    pub fn new(capacity: usize) -> Self {
        Self { slots: Vec::new(), capacity: capacity.min(MAX_RUNS) }
    }

    /// A slot for one more; `None` if the table is full.
    #[must_use]
    pub fn free_slot(&self) -> Option<usize> {
        let slot = self.slots.iter().position(Option::is_none).unwrap_or(self.slots.len());
        (slot < self.capacity).then_some(slot)
    }

    /// Puts `run` into the free slot `slot`.
    pub fn insert(&mut self, slot: usize, run: Run) {
        if slot == self.slots.len() {
            self.slots.push(Some(run));
        } else if let Some(place) = self.slots.get_mut(slot) {
            *place = Some(run);
        }
    }

    /// The run in `slot`.
    pub fn get_mut(&mut self, slot: usize) -> Option<&mut Run> {
        self.slots.get_mut(slot)?.as_mut()
    }

    /// Takes the run out of `slot`.
    pub fn remove(&mut self, slot: usize) -> Option<Run> {
        self.slots.get_mut(slot)?.take()
    }

    /// Every run with its slot.
    pub fn iter(&self) -> impl Iterator<Item = (usize, &Run)> {
        self.slots.iter().enumerate().filter_map(|(slot, run)| Some((slot, run.as_ref()?)))
    }

    /// Where the run `id` is.
    #[must_use]
    pub fn find(&self, id: RunId) -> Option<usize> {
        self.iter().find(|(_, run)| run.id == id).map(|(slot, _)| slot)
    }

    /// Where the run with main process `pid` is.
    #[must_use]
    pub fn find_pid(&self, pid: i32) -> Option<usize> {
        self.iter().find(|(_, run)| run.pid == Some(pid)).map(|(slot, _)| slot)
    }

    /// When the first of all timers is due.
    #[must_use]
    pub fn next_timer(&self) -> Option<Instant> {
        self.iter().flat_map(|(_, run)| [run.kill_at, run.settle_at]).flatten().min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(number: u128, pid: i32) -> Run {
        let null = || std::fs::File::open("/dev/null").unwrap().into();
        Run::started(RunId::from_u128(number), vec![], pid, Some(Streams { out: null(), err: null() }))
    }

    #[test]
    fn slots_are_reused_and_bounded() {
        let mut runs = Runs::new(2);
        for number in 0..2 {
            let slot = runs.free_slot().unwrap();
            runs.insert(slot, run(number, 10 + number as i32));
        }
        assert_eq!(runs.free_slot(), None);
        assert_eq!(runs.find_pid(11), Some(1));
        assert!(runs.remove(0).is_some());
        assert_eq!(runs.find(RunId::from_u128(0)), None);
        assert_eq!(runs.free_slot(), Some(0));
    }

    #[test]
    fn the_earliest_timer_counts() {
        let mut runs = Runs::new(2);
        assert_eq!(runs.next_timer(), None);
        let now = Instant::now();
        let later = now + Duration::from_secs(1);
        runs.insert(0, Run { kill_at: Some(later), ..run(1, 10) });
        runs.insert(1, Run { settle_at: Some(now), ..run(2, 11) });
        assert_eq!(runs.next_timer(), Some(now));
    }
}
