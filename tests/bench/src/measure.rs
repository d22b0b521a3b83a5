//! Times, and what is said of them.

use std::time::{Duration, Instant};

/// Times of one thing, in the order in which they were taken.
#[derive(Debug, Clone, Default)]
pub struct Times(Vec<Duration>);

impl Times {
    /// So many of none.
    #[must_use]
    pub fn several<const N: usize>() -> [Self; N] {
        std::array::from_fn(|_| Self::default())
    }

    /// Do it and keep how long that took.
    pub fn take<T>(&mut self, work: impl FnOnce() -> T) -> T {
        let begun = Instant::now();
        let value = work();
        self.0.push(begun.elapsed());
        value
    }

    /// Keep a time that was measured otherwise.
    pub fn push(&mut self, time: Duration) {
        self.0.push(time);
    }

    /// Keep those of another as well.
    pub fn extend(&mut self, other: Self) {
        self.0.extend(other.0);
    }

    /// How many there are.
    #[must_use]
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// The median in milliseconds.
    #[must_use]
    pub fn median(&self) -> f64 {
        self.quantile(0.5)
    }

    /// The 95th percentile in milliseconds.
    #[must_use]
    pub fn p95(&self) -> f64 {
        self.quantile(0.95)
    }

    /// Nearest rank; 0 of no times.
    #[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss)] // a few thousand times
    fn quantile(&self, share: f64) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_unstable();
        let rank = ((sorted.len() as f64 * share).ceil() as usize).clamp(1, sorted.len().max(1));
        sorted.get(rank - 1).map_or(0.0, |time| time.as_secs_f64() * 1000.0)
    }
}

/// A goal and whether it is met.
#[derive(Debug, Clone)]
pub struct Goal {
    /// In words.
    pub text: String,
    /// Whether it is.
    pub met: bool,
}

/// One line of the table.
#[derive(Debug, Clone)]
pub struct Row {
    /// What was measured.
    pub name: String,
    /// The times.
    pub times: Times,
    /// What cannot be avoided, in milliseconds, and of what it is made.
    pub floor: Option<(f64, &'static str)>,
    /// What is wanted.
    pub goal: Option<Goal>,
}

impl Row {
    /// A line without floor and goal.
    #[must_use]
    pub fn new(name: &str, times: Times) -> Self {
        Self { name: name.to_owned(), times, floor: None, goal: None }
    }

    /// Beside what cannot be avoided.
    #[must_use]
    pub fn over(mut self, ms: f64, parts: &'static str) -> Self {
        self.floor = Some((ms, parts));
        self
    }

    /// The median is to be at most so many times the floor.
    #[must_use]
    pub fn at_most_times(mut self, factor: f64) -> Self {
        let met = self.ratio().is_some_and(|ratio| ratio <= factor);
        self.goal = Some(Goal { text: format!("≤ {factor} × floor"), met });
        self
    }

    /// The median is to be below this, in milliseconds.
    #[must_use]
    pub fn below(mut self, ms: f64) -> Self {
        self.goal = Some(Goal { text: format!("< {ms} ms"), met: self.times.median() < ms });
        self
    }

    /// The median by the floor.
    #[must_use]
    pub fn ratio(&self) -> Option<f64> {
        self.floor.map(|(floor, _)| self.times.median() / floor)
    }

    /// As a line of a Markdown table.
    #[must_use]
    pub fn line(&self) -> String {
        let floor = self.floor.map_or_else(String::new, |(ms, parts)| format!("{ms:.2} ({parts})"));
        let ratio = self.ratio().map_or_else(String::new, |ratio| format!("{ratio:.1} ×"));
        let goal = self
            .goal
            .as_ref()
            .map_or_else(String::new, |goal| format!("{}: {}", goal.text, if goal.met { "met" } else { "missed" }));
        let Self { name, times, .. } = self;
        format!(
            "| {name} | {} | {:.2} | {:.2} | {floor} | {ratio} | {goal} |",
            times.count(),
            times.median(),
            times.p95()
        )
    }
}

/// Head of the table.
pub const HEAD: &str = "| what | n | median ms | p95 ms | floor ms | ratio | goal |\n|---|---|---|---|---|---|---|";

#[cfg(test)]
mod tests {
    use super::*;

    fn times(ms: impl IntoIterator<Item = u64>) -> Times {
        let mut times = Times::default();
        ms.into_iter().for_each(|ms| times.push(Duration::from_millis(ms)));
        times
    }

    #[test]
    fn quantiles_are_nearest_ranks() {
        let hundred = times((1..=100).rev());
        assert!((hundred.median() - 50.0).abs() < 1e-9 && (hundred.p95() - 95.0).abs() < 1e-9);
        let one = times([7]);
        assert!((one.median() - 7.0).abs() < 1e-9 && (one.p95() - 7.0).abs() < 1e-9);
        assert!(Times::default().median().abs() < 1e-9);
    }

    #[test]
    fn a_row_says_whether_its_goal_is_met() {
        let row = Row::new("run", times([3])).over(1.0, "fork+exec").at_most_times(3.0);
        assert_eq!(row.line(), "| run | 1 | 3.00 | 3.00 | 1.00 (fork+exec) | 3.0 × | ≤ 3 × floor: met |");
        assert!(!Row::new("open", times([60])).below(60.0).goal.is_some_and(|goal| goal.met));
    }
}
