//! What a sandbox's init keeps of a command, so that its end is recorded even if this process does not live to see it.

use serde::{Deserialize, Serialize};
use wire::id::{SessionId, Tenant};

use super::quote::cut;
use super::{Caller, Op, Subject};

/// The subject of a command, without its session: that is the one whose init tells it.
#[derive(Debug, Serialize, Deserialize)]
struct Note {
    opened: f64,
    tenant: Option<Tenant>,
    agent: Option<String>,
    run: Option<String>,
    target: String,
}

/// Longest text that a note may bring back, in bytes.
const TEXT_MAX: usize = 1024;

/// The note of a command.
#[must_use]
pub fn write(subject: &Subject) -> Vec<u8> {
    let note = Note {
        opened: subject.opened,
        tenant: subject.tenant.clone(),
        agent: subject.caller.agent.clone(),
        run: subject.caller.run.clone(),
        target: cut(&subject.target),
    };
    // Plain data: what cannot be written is told as an unknown command.
    postcard::to_allocvec(&note).unwrap_or_default()
}

/// The command that a note of the session `session` tells of. It has been beside hostile code.
#[must_use]
pub fn read(session: SessionId, bytes: &[u8]) -> Option<Subject> {
    let note: Note = postcard::from_bytes(bytes).ok()?;
    let short = |text: &str| text.len() <= TEXT_MAX && !text.contains(char::is_control);
    let sound = [note.agent.as_deref(), note.run.as_deref(), Some(note.target.as_str())].into_iter().flatten().all(short);
    (sound && note.opened.is_finite()).then(|| Subject {
        session,
        opened: note.opened,
        tenant: note.tenant,
        caller: Caller { agent: note.agent, run: note.run },
        op: Op::Run,
        target: cut(&note.target),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn subject(target: &str) -> Subject {
        Subject {
            session: SessionId::parse("a").unwrap(),
            opened: 1.5,
            tenant: Tenant::parse("acme").ok(),
            caller: Caller { agent: Some("a".repeat(128)), run: Some("r".repeat(128)) },
            op: Op::Run,
            target: target.to_owned(),
        }
    }

    #[test]
    fn a_note_comes_back_and_always_fits() {
        for target in ["true".to_owned(), "\u{1f600}".repeat(5000)] {
            let bytes = write(&subject(&target));
            assert!(bytes.len() <= wire::init::MAX_NOTE, "{} bytes", bytes.len());
            let back = read(SessionId::parse("b").unwrap(), &bytes).unwrap();
            assert_eq!((back.session.as_str(), back.target), ("b", cut(&target)));
        }
    }

    #[test]
    fn what_a_sandbox_makes_of_it_is_refused() {
        let session = SessionId::parse("a").unwrap();
        for bytes in [&b""[..], &[0xff; 100], &write(&subject("a\nb"))] {
            assert!(read(session.clone(), bytes).is_none(), "{bytes:?}");
        }
    }
}
