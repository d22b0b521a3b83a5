//! Where a shell's lines come from: a terminal, with editing and a history, or anything else on standard input.

use std::fs::DirBuilder;
use std::io::{self, BufRead, IsTerminal};
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;

use rustyline::error::ReadlineError;
use rustyline::history::FileHistory;
use rustyline::{Config, Editor as LineEditor};

use crate::config;
use crate::error::Failure;
use crate::target::Env;

/// Longest line, in bytes: an argument of a process has at most 128 KiB.
const LINE_MAX: usize = 120 << 10;
/// Lines of the history that are kept.
const HISTORY_MAX: usize = 1000;

/// What was read.
#[derive(Debug, PartialEq, Eq)]
pub enum Read {
    /// A line; lines that end with a backslash are one with those that follow.
    Line(String),
    /// Ctrl-C at the prompt.
    Interrupted,
    /// Ctrl-D, or the end.
    End,
}

/// Reads lines.
#[derive(Debug)]
pub enum Editor {
    /// From a person.
    Terminal(Box<Terminal>),
    /// From a pipe or a file.
    Input,
}

/// A terminal, and where its history is kept: nowhere without a home.
#[derive(Debug)]
pub struct Terminal {
    editor: LineEditor<(), FileHistory>,
    history: Option<PathBuf>,
}

impl Editor {
    /// Of standard input. The history is a file that its owner alone can read.
    #[must_use]
    pub fn new(env: Env<'_>) -> Self {
        if !(io::stdin().is_terminal() && io::stdout().is_terminal()) {
            return Self::Input;
        }
        let wanted =
            Config::builder().max_history_size(HISTORY_MAX).map(|builder| builder.history_ignore_space(true).build());
        let Ok(mut editor) = wanted.and_then(LineEditor::with_config) else { return Self::Input };
        let history = config::directory(env, "XDG_STATE_HOME", ".local/state").and_then(|directory| {
            DirBuilder::new().recursive(true).mode(0o700).create(&directory).ok()?;
            Some(directory.join("history"))
        });
        if let Some(path) = &history {
            // One that is not there, or cannot be read, is none.
            let _ = editor.load_history(path);
        }
        Self::Terminal(Box::new(Terminal { editor, history }))
    }

    /// Whether somebody types the lines.
    #[must_use]
    pub fn is_for_people(&self) -> bool {
        matches!(self, Self::Terminal(_))
    }

    /// The next line, on a thread of its own: what waits for a terminal cannot wait for anything else.
    ///
    /// # Errors
    /// [`Failure::Local`]; [`Failure::Usage`]: it is too long.
    pub async fn read(self, prompt: String) -> Result<(Self, Read), Failure> {
        let read = tokio::task::spawn_blocking(move || self.read_here(&prompt));
        read.await.map_err(|e| Failure::local("read", "standard input", e.into()))?
    }

    fn read_here(mut self, prompt: &str) -> Result<(Self, Read), Failure> {
        let mut whole = String::new();
        loop {
            let prompt = if whole.is_empty() { prompt } else { "> " };
            let read = match &mut self {
                Self::Terminal(terminal) => terminal.line(prompt),
                Self::Input => line(&mut io::stdin().lock()),
            };
            match read.map_err(|e| Failure::local("read", "standard input", e))? {
                Read::Line(line) => whole.push_str(&line),
                Read::End if !whole.is_empty() => {}
                other => return Ok((self, other)),
            }
            if whole.len() > LINE_MAX {
                return Err(Failure::Usage(format!(
                    "a line of more than {LINE_MAX} bytes; put it into a file and run that"
                )));
            }
            if !continues(&whole) {
                break;
            }
            whole.push('\n');
        }
        if let Self::Terminal(terminal) = &mut self {
            terminal.remember(&whole);
        }
        Ok((self, Read::Line(whole)))
    }
}

impl Terminal {
    fn line(&mut self, prompt: &str) -> io::Result<Read> {
        match self.editor.readline(prompt) {
            Ok(line) => Ok(Read::Line(line)),
            Err(ReadlineError::Interrupted) => Ok(Read::Interrupted),
            Err(ReadlineError::Eof) => Ok(Read::End),
            Err(ReadlineError::Io(error)) => Err(error),
            Err(other) => Err(io::Error::other(other)),
        }
    }

    fn remember(&mut self, line: &str) {
        // Neither is worth an end of the shell.
        let _ = self.editor.add_history_entry(line);
        if let Some(path) = &self.history {
            let _ = self.editor.append_history(path);
        }
    }
}

/// The next line of what is no terminal.
fn line(input: &mut impl BufRead) -> io::Result<Read> {
    let mut bytes = Vec::new();
    io::Read::take(&mut *input, LINE_MAX as u64 + 2).read_until(b'\n', &mut bytes)?;
    if bytes.is_empty() {
        return Ok(Read::End);
    }
    if bytes.last() == Some(&b'\n') {
        bytes.pop();
    }
    String::from_utf8(bytes)
        .map(Read::Line)
        .map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "a line that is no UTF-8"))
}

/// Whether a line goes on in the next: its last character is a backslash that none before it takes.
fn continues(line: &str) -> bool {
    line.bytes().rev().take_while(|byte| *byte == b'\\').count() % 2 == 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_end_with_a_line_break_or_with_the_input() {
        let mut input = &b"one\n\ntwo"[..];
        for expected in [Read::Line("one".into()), Read::Line(String::new()), Read::Line("two".into()), Read::End] {
            assert_eq!(line(&mut input).unwrap(), expected);
        }
        assert!(line(&mut &b"\xff\n"[..]).is_err());
        let long = vec![b'x'; LINE_MAX * 2];
        let Read::Line(cut) = line(&mut long.as_slice()).unwrap() else { panic!("no line") };
        assert!(cut.len() > LINE_MAX, "so that it is refused and not cut");
    }

    #[test]
    fn a_backslash_at_the_end_goes_on() {
        for (line, goes_on) in
            [("a \\", true), ("a \\\\", false), ("\\\\\\", true), ("a", false), ("", false), ("a\\ ", false)]
        {
            assert_eq!(continues(line), goes_on, "{line}");
        }
    }
}
