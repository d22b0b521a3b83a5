//! What a sandbox's init keeps of a command, so that its end is recorded even if this process does not live to see it.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use uuid::Uuid;
use wire::api::CALLER_MAX;
use wire::id::RequestId;

use super::quote::cut;
use super::{Caller, Subject};

/// What of a command's subject only the client knew. The session, and whose that is, we know ourselves.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Note {
    agent: Option<String>,
    run: Option<String>,
    target: String,
    request: Option<String>,
    command: Option<Uuid>,
}

/// What a note tells.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Noted {
    /// For whom.
    pub caller: Caller,
    /// The quoted command.
    pub target: String,
    /// The request that it was run for.
    pub request: Option<RequestId>,
    /// What tells the command from every other.
    pub command: Option<Uuid>,
}

/// The note of a command that may take so long, if its client has said.
#[must_use]
pub fn write(subject: &Subject, within: Option<Duration>) -> Vec<u8> {
    let note = Note {
        agent: subject.caller.agent.clone(),
        run: subject.caller.run.clone(),
        target: cut(&subject.target),
        request: subject.request.as_ref().map(ToString::to_string),
        command: subject.command,
    };
    let within = within.map(|within| u64::try_from(within.as_millis()).unwrap_or(u64::MAX));
    // Behind it, where a version that knows no deadlines does not look. Plain data: what cannot be written is told as an
    // unknown command.
    postcard::to_allocvec(&(note, within)).unwrap_or_default()
}

/// How long the command of this note was to take at most, if its client has said. It may lie, as all of the note: it is worth
/// nothing above the service's own bound.
#[must_use]
pub fn within(bytes: &[u8]) -> Option<Duration> {
    let (_, rest) = postcard::take_from_bytes::<Note>(bytes).ok()?;
    postcard::from_bytes::<Option<u64>>(rest).ok().flatten().map(Duration::from_millis)
}

/// What a note tells; nothing, if it is none. It has been beside hostile code: it may lie about everything, and is bounded here
/// as if a client had sent it.
#[must_use]
pub fn read(bytes: &[u8]) -> Noted {
    let note: Note = postcard::from_bytes(bytes).unwrap_or_default();
    let name = |text: Option<String>| {
        let text: String = text?.chars().filter(|c| (' '..='~').contains(c)).take(CALLER_MAX).collect();
        Some(text).filter(|text| !text.is_empty())
    };
    Noted {
        caller: Caller { agent: name(note.agent), run: name(note.run) },
        target: cut(&note.target),
        request: note.request.and_then(|text| RequestId::parse(&text).ok()),
        command: note.command,
    }
}

#[cfg(test)]
mod tests {
    use wire::id::{SessionId, Tenant};

    use super::super::Op;
    use super::*;

    fn subject(target: &str) -> Subject {
        Subject {
            session: SessionId::parse("a").unwrap(),
            opened: 1.5,
            tenant: Tenant::parse("acme").ok(),
            caller: Caller { agent: Some("a".repeat(128)), run: Some("r".repeat(128)) },
            request: RequestId::parse(&"q".repeat(64)).ok(),
            command: Some(Uuid::from_u128(7)),
            op: Op::Run,
            target: target.to_owned(),
        }
    }

    #[test]
    fn a_note_comes_back_and_always_fits() {
        for target in ["sh -c 'a\nb'".to_owned(), "\u{1f600}".repeat(5000)] {
            let bytes = write(&subject(&target), Some(Duration::MAX));
            assert!(bytes.len() <= wire::init::MAX_NOTE, "{} bytes", bytes.len());
            let Subject { caller, request, command, .. } = subject(&target);
            assert_eq!(read(&bytes), Noted { caller, target: cut(&target), request, command });
        }
    }

    #[test]
    fn a_deadline_comes_back_and_may_be_missing() {
        for most in [None, Some(Duration::from_millis(1500))] {
            assert_eq!(within(&write(&subject("true"), most)), most);
        }
        // As versions wrote it that knew none.
        let old = Note { target: "true".into(), ..Note::default() };
        let old = postcard::to_allocvec(&old).unwrap();
        assert_eq!((within(&old), read(&old).target.as_str()), (None, "true"));
        assert_eq!(within(&[0xff; 100]), None);
    }

    #[test]
    fn what_a_sandbox_makes_of_it_is_bounded() {
        for bytes in [&b""[..], &[0xff; 100], &[1; 512]] {
            let Noted { caller, target, .. } = read(bytes);
            assert!(
                caller.agent.is_none_or(|agent| agent.len() <= CALLER_MAX) && target.chars().count() <= 201,
                "{bytes:?}"
            );
        }
        let mut lies = subject("true");
        lies.caller = Caller { agent: Some("a\nb".repeat(500)), run: Some("\u{1b}".into()) };
        let caller = read(&write(&lies, None)).caller;
        assert_eq!((caller.agent.unwrap().len(), caller.run), (CALLER_MAX, None));
    }
}
