//! The text that Prometheus reads (exposition format 0.0.4): for each name a line of help, one of its type, and its samples.

use std::fmt::{Display, Write};
use std::sync::atomic::Ordering;

use super::{BOUNDS, By, Counter, Gauge, Histogram, Label};

/// What a name is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// It rises.
    Counter,
    /// It is what it is now.
    Gauge,
    /// Durations in seconds.
    Histogram,
}

/// The text as it grows.
#[derive(Debug, Default)]
pub struct Text(String);

impl Text {
    /// As it is.
    #[must_use]
    pub fn done(self) -> String {
        self.0
    }

    /// Begin a name. `help` is one line without a backslash.
    pub fn name(&mut self, name: &str, kind: Kind, help: &str) {
        let kind = match kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
        };
        self.line(format_args!("# HELP {name} {help}"));
        self.line(format_args!("# TYPE {name} {kind}"));
    }

    /// A sample of a name. Values of labels are words of ours, or names without quotes and backslashes ([`wire::id`]).
    pub fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: impl Display) {
        let mut list = String::new();
        for (label, text) in labels {
            let comma = if list.is_empty() { "" } else { "," };
            // Writing to a string does not fail.
            let _ = write!(list, "{comma}{label}=\"{text}\"");
        }
        match list.as_str() {
            "" => self.line(format_args!("{name} {value}")),
            list => self.line(format_args!("{name}{{{list}}} {value}")),
        }
    }

    /// A whole name of one sample.
    pub fn single(&mut self, name: &str, kind: Kind, help: &str, value: impl Display) {
        self.name(name, kind, help);
        self.sample(name, &[], value);
    }

    pub(super) fn counter(&mut self, name: &str, help: &str, counter: &Counter) {
        self.single(name, Kind::Counter, help, counter.get());
    }

    pub(super) fn gauge(&mut self, name: &str, help: &str, gauge: &Gauge) {
        self.single(name, Kind::Gauge, help, gauge.get());
    }

    pub(super) fn counters<L: Label, const N: usize>(&mut self, name: &str, help: &str, all: &By<L, Counter, N>) {
        self.name(name, Kind::Counter, help);
        for (value, counter) in all.all() {
            self.sample(name, &[(L::NAME, value)], counter.get());
        }
    }

    pub(super) fn histogram(&mut self, name: &str, help: &str, histogram: &Histogram) {
        self.name(name, Kind::Histogram, help);
        self.buckets(name, &[], histogram);
    }

    /// Of a family only what has happened: most values of a label never do.
    pub(super) fn histograms<L: Label, const N: usize>(&mut self, name: &str, help: &str, all: &By<L, Histogram, N>) {
        self.name(name, Kind::Histogram, help);
        for (value, histogram) in all.all() {
            if histogram.buckets.iter().any(|bucket| bucket.load(Ordering::Relaxed) > 0) {
                self.buckets(name, &[(L::NAME, value)], histogram);
            }
        }
    }

    fn buckets(&mut self, name: &str, labels: &[(&str, &str)], histogram: &Histogram) {
        let bucket = format!("{name}_bucket");
        let mut total = 0;
        let bounds = BOUNDS.iter().map(|(_, bound)| *bound).chain(["+Inf"]);
        for (bound, count) in bounds.zip(&histogram.buckets) {
            total += count.load(Ordering::Relaxed);
            let labels: Vec<(&str, &str)> = labels.iter().copied().chain([("le", bound)]).collect();
            self.sample(&bucket, &labels, total);
        }
        self.sample(&format!("{name}_sum"), labels, seconds(histogram.sum.load(Ordering::Relaxed)));
        self.sample(&format!("{name}_count"), labels, total);
    }

    fn line(&mut self, text: std::fmt::Arguments<'_>) {
        let _ = self.0.write_fmt(text);
        self.0.push('\n');
    }
}

/// Microseconds as seconds.
#[must_use]
#[allow(clippy::cast_precision_loss)] // 53 bits of microseconds are 285 years
pub fn seconds(micros: u64) -> f64 {
    micros as f64 / 1e6
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_histogram_adds_up_and_ends_with_everything() {
        static TOOK: Histogram = Histogram::new();
        for millis in [1, 40, 700_000] {
            TOOK.observe(Duration::from_millis(millis));
        }
        let mut text = Text::default();
        text.histogram("x_seconds", "What.", &TOOK);
        let text = text.done();
        for line in [
            "# TYPE x_seconds histogram",
            "x_seconds_bucket{le=\"0.0005\"} 0",
            "x_seconds_bucket{le=\"0.001\"} 1",
            "x_seconds_bucket{le=\"0.05\"} 2",
            "x_seconds_bucket{le=\"600\"} 2",
            "x_seconds_bucket{le=\"+Inf\"} 3",
            "x_seconds_sum 700.041",
            "x_seconds_count 3",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
    }

    #[test]
    fn labels_are_listed() {
        let mut text = Text::default();
        text.sample("x", &[("a", "1"), ("b", "2")], 0.5);
        assert_eq!(text.done(), "x{a=\"1\",b=\"2\"} 0.5\n");
    }
}
