//! Bars and spinners: on a terminal, on standard error, and never beside JSON. Of what may take minutes ([`Waiting`]) lines
//! instead, where there is no terminal.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use wire::api::PullProgress;

use crate::output::{count, size};

/// Pause between two turns of a spinner.
const TICK: Duration = Duration::from_millis(120);
/// Pause between two lines of one pull, at least.
const LINE: Duration = Duration::from_secs(5);

/// A bar of bytes, which appears once the length is known; hidden where nobody would see it.
#[must_use]
pub fn bytes(json: bool) -> ProgressBar {
    styled(json, "{wide_bar} {binary_bytes}/{binary_total_bytes} {binary_bytes_per_sec} {eta}", ProgressBar::new(0))
}

/// A count of bytes whose end nobody knows.
#[must_use]
pub fn bytes_without_end(json: bool) -> ProgressBar {
    styled(json, "{spinner} {binary_bytes} {binary_bytes_per_sec}", ProgressBar::new_spinner())
}

/// What is waited for: in words, and how far it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Told {
    /// In words that are harmless.
    pub words: String,
    /// How far it is.
    pub far: Far,
}

/// How far something is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Far {
    /// Nobody knows.
    Unknown,
    /// So many steps of so many are done.
    Steps(u64, u64),
    /// As a pull is.
    Pull(PullProgress),
}

impl Told {
    /// What is told in words alone.
    #[must_use]
    pub fn words(words: impl Into<String>) -> Self {
        Self { words: words.into(), far: Far::Unknown }
    }

    /// Of a pull.
    #[must_use]
    pub fn pull(words: impl Into<String>, progress: PullProgress) -> Self {
        // Until the manifest is there nobody knows how much it is.
        let far = if progress.layers == 0 { Far::Unknown } else { Far::Pull(progress) };
        Self { words: words.into(), far }
    }

    /// On one line.
    #[must_use]
    pub fn line(&self) -> String {
        match self.far {
            Far::Unknown | Far::Steps(..) => self.words.clone(),
            Far::Pull(pull) => {
                let (received, bytes) = (size(pull.bytes_received), size(pull.bytes));
                let layers = count(pull.layers, "layer");
                format!("{}: {received} of {bytes}, {} of {layers} ready", self.words, pull.layers_ready)
            }
        }
    }
}

/// Shows what is waited for: a spinner or a bar on a terminal, lines where there is none, nothing beside JSON.
#[derive(Debug)]
pub struct Waiting {
    bar: Cleared,
    kind: Option<std::mem::Discriminant<Far>>,
    lines: bool,
    line: Option<(Told, Instant)>,
}

impl Waiting {
    /// Nothing is shown yet.
    #[must_use]
    pub fn new(json: bool) -> Self {
        let bar = styled(json, "", ProgressBar::new_spinner());
        Self { lines: bar.is_hidden() && !json, bar: Cleared(bar), kind: None, line: None }
    }

    /// Whether nobody is shown anything.
    #[must_use]
    pub fn is_silent(&self) -> bool {
        !self.lines && self.bar.0.is_hidden()
    }

    /// Show it from now on.
    pub fn show(&mut self, told: Told) {
        if self.lines {
            let now = Instant::now();
            if is_due(self.line.as_ref(), &told, now) {
                eprintln!("sandboxctl: {}", told.line());
                self.line = Some((told, now));
            }
            return;
        }
        let bar = &self.bar.0;
        let kind = std::mem::discriminant(&told.far);
        let (length, position) = match told.far {
            Far::Unknown => (0, 0),
            Far::Steps(done, of) => (of, done),
            Far::Pull(pull) => (pull.bytes, pull.bytes_received),
        };
        bar.set_length(length);
        bar.set_position(position);
        bar.set_message(told.words);
        if self.kind.replace(kind) != Some(kind) {
            bar.reset_eta();
            if let Ok(style) = ProgressStyle::with_template(template(told.far)) {
                bar.set_style(style);
            }
            bar.enable_steady_tick(TICK);
        }
    }
}

/// Whether a line is to be written: of something else at once, of a pull that goes on now and then.
fn is_due(last: Option<&(Told, Instant)>, told: &Told, now: Instant) -> bool {
    last.is_none_or(|(last, at)| last.words != told.words || (last != told && now.duration_since(*at) >= LINE))
}

fn template(far: Far) -> &'static str {
    match far {
        Far::Unknown => "{spinner} {msg} ({elapsed})",
        Far::Steps(..) => "{spinner} [{bar:20}] {wide_msg} ({elapsed})",
        Far::Pull(_) => {
            "{spinner} [{bar:20}] {binary_bytes} of {binary_total_bytes}, {binary_bytes_per_sec}, {eta} left: {wide_msg}"
        }
    }
}

fn styled(json: bool, template: &str, bar: ProgressBar) -> ProgressBar {
    if json || !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar
}

/// Takes a bar off the terminal when the waiting ends, however it ends.
#[derive(Debug)]
pub struct Cleared(pub ProgressBar);

impl Drop for Cleared {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PULL: PullProgress =
        PullProgress { layers: 5, layers_ready: 1, bytes: 3 << 20, bytes_received: 1 << 20, resumed: 0 };

    #[test]
    fn a_line_has_bytes_of_bytes_once_they_are_known() {
        assert_eq!(Told::pull("pulling a", PULL).line(), "pulling a: 1.0 MiB of 3.0 MiB, 1 of 5 layers ready");
        assert_eq!(Told::pull("pulling a", PullProgress::default()).line(), "pulling a");
        assert_eq!(Told::words("waiting").line(), "waiting");
    }

    #[test]
    fn lines_are_of_what_is_new_and_of_a_pull_now_and_then() {
        let (begun, told) = (Instant::now(), Told::pull("pulling a", PULL));
        let last = Some((told.clone(), begun));
        let further = Told::pull("pulling a", PullProgress { bytes_received: 2 << 20, ..PULL });
        for (told, after, due) in [
            (&told, Duration::from_secs(60), false),
            (&further, Duration::from_secs(1), false),
            (&further, LINE, true),
            (&Told::words("waiting"), Duration::ZERO, true),
        ] {
            assert_eq!(is_due(last.as_ref(), told, begun + after), due, "{told:?} after {after:?}");
        }
        assert!(is_due(None, &told, begun));
    }
}
