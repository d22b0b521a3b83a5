//! `cp`: a file or a directory into a session or out of it.

mod download;
mod upload;

use std::io::IsTerminal;
use std::time::Instant;

use serde::Serialize;
use wire::id::SessionId;

use crate::args::Cp;
use crate::client::Client;
use crate::error::Failure;
use crate::output::{count, harmless, print_json, size, span};
use crate::progress;
use crate::remote::Remote;

/// Deepest directory that is copied, from the top.
const MAX_DEPTH: usize = 64;
/// Entries that one copy takes.
const MAX_ENTRIES: u64 = 100_000;

/// One side of a copy.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Place {
    /// `-`.
    Stream,
    /// On this machine.
    Local(String),
    /// In a session.
    Remote(SessionId, String),
}

impl Place {
    /// `SESSION:PATH`, if what is before the first colon is a session's name; else local.
    fn parse(text: &str) -> Result<Self, Failure> {
        match text.split_once(':') {
            _ if text == "-" => Ok(Self::Stream),
            _ if text.is_empty() => Err(Failure::Usage("an empty path is no place".to_owned())),
            Some((name, path)) if !name.contains('/') => SessionId::parse(name)
                .map(|session| Self::Remote(session, path.to_owned()))
                .map_err(|e| Failure::Usage(format!("{name:?} is no session ({e}); for a local file write ./{text}"))),
            _ => Ok(Self::Local(text.to_owned())),
        }
    }
}

/// What was copied; `cp --json` prints it.
#[derive(Debug, Default, Serialize)]
struct Tally {
    files: u64,
    directories: u64,
    bytes: u64,
    /// What was left out, and why.
    skipped: Vec<String>,
}

impl Tally {
    /// Count one more entry.
    fn enter(&mut self) -> Result<(), Failure> {
        if self.files + self.directories + self.skipped.len() as u64 >= MAX_ENTRIES {
            let reason = format!("more than {MAX_ENTRIES} entries; copy it in parts, or pack it first");
            return Err(Failure::Copy { what: "copy the directory".to_owned(), reason });
        }
        Ok(())
    }

    /// Leave an entry out.
    fn skip(&mut self, name: &str, why: &str) {
        self.skipped.push(format!("{name}: {why}"));
    }
}

/// Copy, and say what was left out: exit status 1 if anything was.
pub async fn copy(client: &mut Client, cp: &Cp, json: bool) -> Result<u8, Failure> {
    let begun = Instant::now();
    let progress = progress::bytes(json);
    let tally = match (Place::parse(&cp.source)?, Place::parse(&cp.target)?) {
        (Place::Remote(session, path), Place::Stream) => {
            if json {
                return Err(Failure::Usage("standard output cannot take both the file and --json".to_owned()));
            }
            download::to_stream(&mut Remote::new(client, session), &path).await
        }
        (Place::Remote(session, path), Place::Local(local)) => {
            download::download(&mut Remote::new(client, session), &path, &local, &progress).await
        }
        (Place::Stream, Place::Remote(session, path)) => {
            upload::from_stream(&mut Remote::new(client, session), &path, &progress).await
        }
        (Place::Local(local), Place::Remote(session, path)) => {
            upload::upload(&mut Remote::new(client, session), &local, &path, &progress).await
        }
        (Place::Remote(..), Place::Remote(..)) => {
            Err(Failure::Usage("both are in sessions; copy through a local file, or pipe through -".to_owned()))
        }
        (Place::Stream | Place::Local(_), Place::Stream | Place::Local(_)) => {
            Err(Failure::Usage("neither is in a session: write SESSION:PATH for one of them".to_owned()))
        }
    };
    progress.finish_and_clear();
    let tally = tally?;
    tell(&tally, begun, json)?;
    Ok(u8::from(!tally.skipped.is_empty()))
}

fn tell(tally: &Tally, begun: Instant, json: bool) -> Result<(), Failure> {
    for skipped in &tally.skipped {
        eprintln!("sandboxctl: left out {}", harmless(skipped));
    }
    if json {
        return print_json(tally);
    }
    if std::io::stderr().is_terminal() {
        let took = span(begun.elapsed().as_secs_f64());
        eprintln!("copied {}, {} in {took}", count(tally.files, "file"), size(tally.bytes));
    }
    Ok(())
}

/// The last component of a path.
fn base_name(path: &str) -> &str {
    path.trim_end_matches('/').rsplit('/').next().unwrap_or_default()
}

/// Whether a name that the other side gives is one component of a path and nothing else.
fn is_component(name: &str) -> bool {
    !matches!(name, "" | "." | "..") && !name.contains(['/', '\0'])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_told_apart_by_the_colon() {
        let session = || SessionId::parse("s-1").unwrap();
        assert_eq!(Place::parse("-").unwrap(), Place::Stream);
        assert_eq!(Place::parse("s-1:/a:b").unwrap(), Place::Remote(session(), "/a:b".into()));
        assert_eq!(Place::parse("s-1:").unwrap(), Place::Remote(session(), String::new()));
        for local in ["./s-1:a", "/tmp/a:b", "a", "./-"] {
            assert_eq!(Place::parse(local).unwrap(), Place::Local(local.into()));
        }
        for wrong in ["", ":a", "a b:c"] {
            assert!(matches!(Place::parse(wrong), Err(Failure::Usage(_))), "{wrong:?}");
        }
    }

    #[test]
    fn a_hostile_name_is_no_component() {
        for name in ["", ".", "..", "a/b", "/etc/passwd", "../x", "a\0"] {
            assert!(!is_component(name), "{name:?}");
        }
        for name in ["a", "..a", "...", "-", "a b"] {
            assert!(is_component(name), "{name:?}");
        }
        assert_eq!(base_name("/a/b/"), "b");
        assert_eq!(base_name("/"), "");
    }
}
