//! The log: one line for each event, whatever is in it, on standard error; or, where that is the journal of systemd, an
//! entry of the journal's own with the session, the tenant, the run and the request as fields.
//!
//! A failure is one line with its chain of reasons. Lines quote what clients, images and registries say; see [`line`].

mod journal;
mod line;

use std::fmt;
use std::io::{self, IsTerminal};

use tracing::{Event, Level, Subscriber};
use tracing_subscriber::fmt::FmtContext;
use tracing_subscriber::fmt::format::{FormatEvent, FormatFields, Writer};
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer};

use journal::Journal;
use line::Line;

/// Begin to log, at the level of `SANDBOXD_LOG`, `level` unless it is said; in colour on a terminal.
pub fn start(level: &str) {
    let filter = EnvFilter::try_from_env("SANDBOXD_LOG").unwrap_or_else(|_| EnvFilter::new(level));
    let sink = match Journal::behind_stderr() {
        Some(journal) => journal.boxed(),
        None => tracing_subscriber::fmt::layer()
            .with_writer(io::stderr)
            .with_ansi(io::stderr().is_terminal())
            .event_format(Lines)
            .boxed(),
    };
    tracing_subscriber::registry().with(filter).with(sink).init();
}

/// Events as lines: the time, how much it matters, what is said.
struct Lines;

impl<S, N> FormatEvent<S, N> for Lines
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(&self, _: &FmtContext<'_, S, N>, mut writer: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        SystemTime.format_time(&mut writer)?;
        let level = *event.metadata().level();
        if writer.has_ansi_escapes() {
            write!(writer, " \u{1b}[{}m{level:>5}\u{1b}[0m ", colour(level))?;
        } else {
            write!(writer, " {level:>5} ")?;
        }
        writeln!(writer, "{}", Line::of(event).text())
    }
}

fn colour(level: Level) -> u8 {
    match level {
        Level::ERROR => 31,
        Level::WARN => 33,
        Level::INFO => 32,
        // Levels are values of a type of tracing's, not an enum that could be listed.
        _ => 34,
    }
}
