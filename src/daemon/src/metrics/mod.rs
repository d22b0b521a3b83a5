//! What the service counts for `GET /metrics`: [`list`] has every figure, any room may count.
//!
//! Counting is an addition to an atomic, two for a duration: no lock, no allocation, no name looked up. Every label has its
//! few values from an enum of ours, so that nobody outside makes a series. What is a state rather than an event (sessions, memory) is not
//! kept here: it is looked at when it is asked for, by those who know.

mod list;
pub mod process;
mod text;

use std::marker::PhantomData;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::{Duration, Instant};

pub use list::*;
pub use text::{Kind, Text, seconds};

/// Upper ends of the buckets of every histogram, in microseconds, and as they are written.
const BOUNDS: [(u64, &str); 17] = [
    (500, "0.0005"),
    (1_000, "0.001"),
    (2_500, "0.0025"),
    (5_000, "0.005"),
    (10_000, "0.01"),
    (25_000, "0.025"),
    (50_000, "0.05"),
    (100_000, "0.1"),
    (250_000, "0.25"),
    (500_000, "0.5"),
    (1_000_000, "1"),
    (2_500_000, "2.5"),
    (5_000_000, "5"),
    (10_000_000, "10"),
    (30_000_000, "30"),
    (120_000_000, "120"),
    (600_000_000, "600"),
];

/// The values of a label.
pub trait Label: Copy {
    /// Its name.
    const NAME: &'static str;
    /// Its values, in order.
    const VALUES: &'static [&'static str];
    /// Which of them this is.
    fn index(self) -> usize;
}

/// A number that rises.
#[derive(Debug)]
pub struct Counter(AtomicU64);

impl Counter {
    const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// So many more.
    pub fn add(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// How many there are of something now.
#[derive(Debug)]
pub struct Gauge(AtomicI64);

/// One of them; it is no more when this is dropped.
#[derive(Debug)]
pub struct One(&'static Gauge);

impl Gauge {
    const fn new() -> Self {
        Self(AtomicI64::new(0))
    }

    /// One more, until what is returned is dropped.
    #[must_use]
    pub fn one(&'static self) -> One {
        self.0.fetch_add(1, Ordering::Relaxed);
        One(self)
    }

    /// So many.
    pub fn set(&self, count: usize) {
        self.0.store(i64::try_from(count).unwrap_or(i64::MAX), Ordering::Relaxed);
    }

    fn get(&self) -> i64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl Drop for One {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Durations, by size.
#[derive(Debug)]
pub struct Histogram {
    /// One for each of [`BOUNDS`], and the rest.
    buckets: [AtomicU64; BOUNDS.len() + 1],
    /// Microseconds.
    sum: AtomicU64,
}

impl Histogram {
    const fn new() -> Self {
        Self { buckets: [const { AtomicU64::new(0) }; BOUNDS.len() + 1], sum: AtomicU64::new(0) }
    }

    /// One that took so long.
    pub fn observe(&self, took: Duration) {
        let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        let bucket = BOUNDS.iter().position(|(bound, _)| micros <= *bound).unwrap_or(BOUNDS.len());
        if let Some(bucket) = self.buckets.get(bucket) {
            bucket.fetch_add(1, Ordering::Relaxed);
        }
        self.sum.fetch_add(micros, Ordering::Relaxed);
    }
}

/// One figure for each value of a label.
#[derive(Debug)]
pub struct By<L, T, const N: usize> {
    cells: [T; N],
    label: PhantomData<fn(L)>,
}

impl<L: Label, T, const N: usize> By<L, T, N> {
    /// That of a value.
    fn of(&self, value: L) -> Option<&T> {
        // There are as many as values: the figures are declared with the label's number of them.
        self.cells.get(value.index())
    }

    fn all(&self) -> impl Iterator<Item = (&'static str, &T)> {
        L::VALUES.iter().copied().zip(&self.cells)
    }
}

impl<L: Label, const N: usize> By<L, Counter, N> {
    const fn counters() -> Self {
        Self { cells: [const { Counter::new() }; N], label: PhantomData }
    }

    /// One more of these.
    pub fn one(&self, value: L) {
        if let Some(counter) = self.of(value) {
            counter.add(1);
        }
    }
}

impl<L: Label, const N: usize> By<L, Histogram, N> {
    const fn histograms() -> Self {
        Self { cells: [const { Histogram::new() }; N], label: PhantomData }
    }

    /// One of these that took so long.
    pub fn observe(&self, value: L, took: Duration) {
        if let Some(histogram) = self.of(value) {
            histogram.observe(took);
        }
    }

    /// Begin one that is to be told `otherwise` if it is given up before its end.
    #[must_use]
    pub fn begin(&'static self, otherwise: L) -> Timing<L, N> {
        Timing { family: self, ends: otherwise, begun: Instant::now() }
    }
}

/// One of a family of durations that is going on.
#[derive(Debug)]
pub struct Timing<L: Label + 'static, const N: usize> {
    family: &'static By<L, Histogram, N>,
    ends: L,
    begun: Instant,
}

impl<L: Label, const N: usize> Timing<L, N> {
    /// It has ended.
    pub fn end(mut self, how: L) {
        self.ends = how;
    }
}

impl<L: Label + 'static, const N: usize> Drop for Timing<L, N> {
    fn drop(&mut self) {
        self.family.observe(self.ends, self.begun.elapsed());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_is_in_the_bucket_that_it_is_not_above() {
        static SIZES: Histogram = Histogram::new();
        for micros in [0, 500, 501, 600_000_000, 600_000_001, u64::MAX / 2] {
            SIZES.observe(Duration::from_micros(micros));
        }
        let counts: Vec<u64> = SIZES.buckets.iter().map(|bucket| bucket.load(Ordering::Relaxed)).collect();
        assert_eq!((counts[0], counts[1], counts[16], counts[17]), (2, 1, 1, 2));
        assert_eq!(counts.iter().sum::<u64>(), 6);
        for (micros, written) in BOUNDS {
            assert_eq!(written.parse::<f64>().unwrap() * 1e6, micros as f64);
        }
    }

    #[test]
    fn what_is_given_up_is_counted_as_that() {
        static RUNS: By<Run, Histogram, { Run::COUNT }> = By::histograms();
        RUNS.begin(Run::Abandoned).end(Run::Ok);
        drop(RUNS.begin(Run::Abandoned));
        let count = |run| RUNS.of(run).unwrap().buckets.iter().map(|b| b.load(Ordering::Relaxed)).sum::<u64>();
        assert_eq!((count(Run::Ok), count(Run::Abandoned), count(Run::Failed)), (1, 1, 0));
    }

    #[test]
    fn a_gauge_counts_who_is_there() {
        static THERE: Gauge = Gauge::new();
        let (one, two) = (THERE.one(), THERE.one());
        drop(one);
        assert_eq!(THERE.get(), 1);
        drop(two);
        assert_eq!(THERE.get(), 0);
    }
}
