//! One event as a line: `what happened name=value …`, and what of it the journal has fields for.
//!
//! Events quote what clients, images and registries say. A line break of theirs would begin a line that looks like ours,
//! and an escape sequence would speak to the terminal of whoever reads it: both are written as `\n` and `\u{1b}`.

use std::error::Error;
use std::fmt::{self, Debug, Write};

use tracing::Event;
use tracing::field::{Field, Visit};
use wire::journal;

use crate::request;

/// Longest line, in bytes.
const LINE_MAX: usize = journal::MAX_VALUE;

/// An event, read.
#[derive(Debug, Default)]
pub struct Line {
    message: String,
    rest: String,
    /// Fields of the journal and their values.
    about: Vec<(&'static str, String)>,
}

impl Line {
    /// Read an event. It carries the request that the task works for.
    pub fn of(event: &Event<'_>) -> Self {
        let mut line = Self::default();
        event.record(&mut line);
        if let Some(request) = request::current() {
            if let Some((session, tenant)) = request.session() {
                line.put_once("session", session.as_str());
                // A line may be about another session than its request, and then is not of this tenant.
                if line.has(journal::SESSION, session.as_str())
                    && let Some(tenant) = tenant
                {
                    line.put_once("tenant", tenant.as_str());
                }
            }
            line.put_once("request", request.id.as_str());
        }
        line
    }

    /// Unless the event has said it.
    fn put_once(&mut self, name: &str, value: &str) {
        if field(name).is_some_and(|field| self.about.iter().all(|(has, _)| *has != field)) {
            self.put(name, format_args!("{value}"));
        }
    }

    fn has(&self, field: &str, value: &str) -> bool {
        self.about.iter().any(|(name, text)| *name == field && text == value)
    }

    /// As it is written, bounded.
    pub fn text(&self) -> String {
        let mut text = format!("{}{}", self.message, self.rest);
        if text.len() > LINE_MAX {
            text.truncate(text.floor_char_boundary(LINE_MAX - '…'.len_utf8()));
            text.push('…');
        }
        text
    }

    /// What the journal has fields for.
    pub fn about(&self) -> &[(&'static str, String)] {
        &self.about
    }

    fn put(&mut self, name: &str, value: fmt::Arguments<'_>) {
        // Writing to a string does not fail.
        if name == "message" {
            let _ = write!(Escaped(&mut self.message), "{value}");
            return;
        }
        let _ = write!(self.rest, " {name}=");
        let begins = self.rest.len();
        let _ = write!(Escaped(&mut self.rest), "{value}");
        if let Some(field) = field(name) {
            self.about.push((field, self.rest[begins..].to_owned()));
        }
    }
}

/// The field of the journal for what events call so.
fn field(name: &str) -> Option<&'static str> {
    match name {
        "session" => Some(journal::SESSION),
        "tenant" => Some(journal::TENANT),
        "run" => Some(journal::RUN),
        "request" => Some(journal::REQUEST),
        _ => None,
    }
}

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.put(field.name(), format_args!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.put(field.name(), format_args!("{value}"));
    }

    fn record_error(&mut self, field: &Field, value: &(dyn Error + 'static)) {
        self.put(field.name(), format_args!("{}", chain(value)));
    }
}

/// An error and its sources. Some say their sources themselves.
fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let words = cause.to_string();
        if !text.contains(&words) {
            text.push_str(": ");
            text.push_str(&words);
        }
        source = cause.source();
    }
    text
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
    use std::sync::{Arc, Mutex};

    use tracing::Subscriber;
    use tracing_subscriber::Layer;
    use tracing_subscriber::layer::{Context, SubscriberExt};
    use wire::id::{RequestId, SessionId, Tenant};

    use super::*;

    /// Keeps what is logged.
    #[derive(Clone, Default)]
    struct Kept(Arc<Mutex<Vec<Line>>>);

    impl<S: Subscriber> Layer<S> for Kept {
        fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
            self.0.lock().unwrap().push(Line::of(event));
        }
    }

    /// What `work` logs.
    fn logged(work: impl FnOnce()) -> Line {
        let kept = Kept::default();
        tracing::subscriber::with_default(tracing_subscriber::registry().with(kept.clone()), work);
        let mut lines = kept.0.lock().unwrap();
        assert_eq!(lines.len(), 1);
        lines.remove(0)
    }

    #[derive(Debug, thiserror::Error)]
    #[error("stop sandbox x")]
    struct Outer(#[source] std::io::Error);

    #[test]
    fn a_failure_is_one_line_with_its_chain_and_its_session() {
        let error = Outer(std::io::Error::other("no\nERROR all is lost"));
        let line = logged(|| {
            tracing::error!(session = %"s-1", tenant = Some("acme"), run = None::<&str>, error = &error as &dyn Error, "not ended");
        });
        assert_eq!(line.text(), r"not ended session=s-1 tenant=acme error=stop sandbox x: no\nERROR all is lost");
        let about = [(journal::SESSION, "s-1".to_owned()), (journal::TENANT, "acme".to_owned())];
        assert_eq!(line.about(), about);
    }

    #[tokio::test]
    async fn what_is_logged_for_a_request_carries_it_and_its_session() {
        let (id, session) = (RequestId::parse("r-1").unwrap(), SessionId::parse("mine").unwrap());
        let current = request::Request::new(id);
        let of = |work: fn()| {
            let session = session.clone();
            request::scope(Some(current.clone()), async move {
                request::about(&session, Tenant::parse("acme").ok().as_ref());
                logged(work)
            })
        };
        let own = of(|| tracing::error!("it failed")).await;
        assert_eq!(own.text(), "it failed session=mine tenant=acme request=r-1");
        let other = of(|| tracing::error!(session = %"other", "it failed")).await;
        assert_eq!(other.text(), "it failed session=other request=r-1");
    }

    #[test]
    fn a_line_is_bounded() {
        let line = logged(|| tracing::info!(text = %"\u{1f980}".repeat(10_000), "long"));
        assert!(line.text().len() <= LINE_MAX && line.text().ends_with('…'));
    }

    #[test]
    fn a_line_stays_a_line() {
        let said = "no\nERROR all is lost\r\u{1b}[2J\u{9b}31m\u{202e}\u{2028} über 🦀\t";
        let mut line = String::new();
        write!(Escaped(&mut line), "pull x: {said}").unwrap();
        assert_eq!(line, r"pull x: no\nERROR all is lost\r\u{1b}[2J\u{9b}31m\u{202e}\u{2028} über 🦀\t");
    }
}
