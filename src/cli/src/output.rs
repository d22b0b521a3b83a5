//! What a person reads: aligned tables, sizes, ages. And what a program reads: the API's JSON.
//!
//! Names and messages come from sandboxes, which are hostile: [`harmless`] takes the control
//! characters out of everything that goes to a terminal, except a command's own output.

use std::io::{self, Write};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::error::Failure;

/// Write to standard output, all of it.
///
/// # Errors
/// [`Failure::Output`].
pub fn print(text: impl AsRef<[u8]>) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_ref()).and_then(|()| out.flush()).map_err(Failure::Output)
}

/// Print a value as one line of JSON.
///
/// # Errors
/// [`Failure::Output`].
pub fn print_json(value: &impl serde::Serialize) -> Result<(), Failure> {
    let mut text = serde_json::to_vec(value).map_err(|e| Failure::Output(e.into()))?;
    text.push(b'\n');
    print(text)
}

/// `text` with its control characters, and those that reverse the direction of writing, escaped.
#[must_use]
pub fn harmless(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        let turns = matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
        if c.is_control() || turns { safe.extend(c.escape_unicode()) } else { safe.push(c) }
    }
    safe
}

/// Bytes in the unit that leaves one to four digits.
#[must_use]
pub fn size(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    #[allow(clippy::cast_precision_loss)] // shown with one decimal
    let mut value = bytes as f64 / 1024.0;
    let mut unit = 0;
    while value >= 999.95 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{value:.1} {}", UNITS[unit])
}

/// Seconds in the unit that leaves one to three digits.
#[must_use]
pub fn span(seconds: f64) -> String {
    let seconds = if seconds.is_finite() { seconds.max(0.0) } else { 0.0 };
    let (value, unit) = match seconds {
        s if s < 1.0 => return format!("{:.0} ms", s * 1000.0),
        s if s < 10.0 => return format!("{s:.1} s"),
        s if s < 120.0 => (s, "s"),
        s if s < 7200.0 => (s / 60.0, "min"),
        s if s < 172_800.0 => (s / 3600.0, "h"),
        s => (s / 86400.0, "d"),
    };
    format!("{value:.0} {unit}")
}

/// How long ago a Unix time was.
#[must_use]
pub fn age(at: f64) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |d| d.as_secs_f64());
    span(now - at)
}

/// A Unix time to the second, in UTC: `2026-01-31 12:00:00`.
#[must_use]
pub fn when(at: f64) -> String {
    #[allow(clippy::cast_possible_truncation)] // saturates, and is bounded
    let seconds = (at as i64).clamp(0, 253_402_300_799);
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    // Years that begin in March, of which 400 have 146,097 days: a leap day is the last of its year.
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let (month, next) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    let year = era * 400 + year + next;
    format!("{year:04}-{month:02}-{day:02} {:02}:{:02}:{:02}", rest / 3600, rest / 60 % 60, rest % 60)
}

/// `1 file`, `2 files`.
#[must_use]
pub fn count(number: u64, noun: &str) -> String {
    format!("{number} {noun}{}", if number == 1 { "" } else { "s" })
}

/// Rows under headings, each column as wide as its widest cell.
#[derive(Debug)]
pub struct Table {
    headings: Vec<&'static str>,
    rows: Vec<Vec<String>>,
    right: Vec<bool>,
}

impl Table {
    /// An empty table. A heading that begins with `>` is of a column that is aligned to the right.
    #[must_use]
    pub fn new(headings: &[&'static str]) -> Self {
        let right = headings.iter().map(|h| h.starts_with('>')).collect();
        Self { headings: headings.iter().map(|h| h.trim_start_matches('>')).collect(), rows: Vec::new(), right }
    }

    /// Add a row; control characters in it are escaped.
    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().map(|cell| harmless(&cell)).collect());
    }

    /// The table, each line ended; nothing trails the last cell of a line.
    #[must_use]
    pub fn render(&self) -> String {
        let headings: Vec<String> = self.headings.iter().map(|h| (*h).to_owned()).collect();
        let mut widths: Vec<usize> = headings.iter().map(|h| width(h)).collect();
        for row in &self.rows {
            for (cell, wide) in row.iter().zip(&mut widths) {
                *wide = (*wide).max(width(cell));
            }
        }
        let mut text = String::new();
        for row in std::iter::once(&headings).chain(&self.rows) {
            let cells = row.iter().zip(&widths).zip(&self.right);
            let line: Vec<String> = cells.map(|((cell, wide), right)| pad(cell, *wide, *right)).collect();
            text.push_str(line.join("  ").trim_end());
            text.push('\n');
        }
        text
    }
}

fn width(text: &str) -> usize {
    text.chars().count()
}

fn pad(cell: &str, wide: usize, right: bool) -> String {
    if right { format!("{cell:>wide$}") } else { format!("{cell:<wide$}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_spans_are_short() {
        for (bytes, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.0 KiB"),
            (1_048_575, "1.0 MiB"),
            (8 << 20, "8.0 MiB"),
            (u64::MAX, "16384.0 PiB"),
        ] {
            assert_eq!(size(bytes), text);
        }
        for (seconds, text) in
            [(0.0314, "31 ms"), (3.21, "3.2 s"), (75.0, "75 s"), (600.0, "10 min"), (90_000.0, "25 h"), (1e6, "12 d")]
        {
            assert_eq!(span(seconds), text);
        }
        assert_eq!(span(f64::NAN), "0 ms");
    }

    #[test]
    fn times_are_those_of_the_calendar() {
        for (at, text) in [
            (0.0, "1970-01-01 00:00:00"),
            (951_782_400.0, "2000-02-29 00:00:00"),
            (951_868_800.9, "2000-03-01 00:00:00"),
            (1_709_251_199.0, "2024-02-29 23:59:59"),
            (4_107_542_400.0, "2100-03-01 00:00:00"),
            (1_798_761_599.0, "2026-12-31 23:59:59"),
            (f64::NAN, "1970-01-01 00:00:00"),
            (f64::INFINITY, "9999-12-31 23:59:59"),
        ] {
            assert_eq!(when(at), text);
        }
    }

    #[test]
    fn tables_are_aligned_and_nothing_trails() {
        let mut table = Table::new(&["NAME", ">SIZE", "NOTE"]);
        table.row(["a".into(), "10 B".into(), String::new()]);
        table.row(["long name".into(), "1 B".into(), "é".into()]);
        assert_eq!(table.render(), "NAME       SIZE  NOTE\na          10 B\nlong name   1 B  é\n");
    }

    #[test]
    fn a_hostile_name_stays_on_its_line() {
        assert_eq!(harmless("a\u{1b}[2J\nb\u{202e}c"), "a\\u{1b}[2J\\u{a}b\\u{202e}c");
        assert_eq!(harmless("naïve 名前.txt"), "naïve 名前.txt");
    }
}
