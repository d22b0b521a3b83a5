//! The log: standard error, one line for each event, whatever is in it.
//!
//! Events quote what clients, images and registries say. A line break of theirs would begin a line that looks like ours,
//! and an escape sequence would speak to the terminal of whoever reads it: both are written as `\n` and `\u{1b}`.

use std::fmt::{self, Debug, Write};
use std::io::{self, IsTerminal};

use tracing::field::Field;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::field::MakeExt;
use tracing_subscriber::fmt::format::{Writer, debug_fn};

/// Begin to log, at the level of `SANDBOXD_LOG`, `info` unless it is said; in colour on a terminal.
pub fn start() {
    let filter = EnvFilter::try_from_env("SANDBOXD_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr)
        .with_ansi(io::stderr().is_terminal())
        .with_target(false)
        .fmt_fields(debug_fn(write_field).delimited(" "))
        .init();
}

fn write_field(writer: &mut Writer<'_>, field: &Field, value: &dyn Debug) -> fmt::Result {
    if field.name() == "message" {
        return write!(Escaped(writer), "{value:?}");
    }
    write!(writer, "{}=", field.name())?;
    write!(Escaped(writer), "{value:?}")
}

/// Writes what a line may hold as it is, and the rest by its number.
struct Escaped<W>(W);

impl<W: Write> Write for Escaped<W> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let mut rest = text;
        while let Some(at) = rest.find(breaks_out) {
            let (plain, tail) = rest.split_at(at);
            self.0.write_str(plain)?;
            let mut characters = tail.chars();
            if let Some(character) = characters.next() {
                write!(self.0, "{}", character.escape_default())?;
            }
            rest = characters.as_str();
        }
        self.0.write_str(rest)
    }
}

/// Control characters; separators of lines; marks that turn the direction of what follows.
fn breaks_out(character: char) -> bool {
    character.is_control()
        || matches!(character, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_stays_a_line() {
        let said = "no\nERROR all is lost\r\u{1b}[2J\u{9b}31m\u{202e}\u{2028} über 🦀\t";
        let mut line = String::new();
        write!(Escaped(&mut line), "pull x: {said}").unwrap();
        assert_eq!(line, r"pull x: no\nERROR all is lost\r\u{1b}[2J\u{9b}31m\u{202e}\u{2028} über 🦀\t");
    }
}
