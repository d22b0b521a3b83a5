//! What a sandbox's init keeps of a command, so that its end is recorded even if this process does not live to see it.

use serde::{Deserialize, Serialize};
use wire::api::CALLER_MAX;

use super::quote::cut;
use super::{Caller, Subject};

/// What of a command's subject only the client knew. The session, and whose that is, we know ourselves.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Note {
    agent: Option<String>,
    run: Option<String>,
    target: String,
}

/// The note of a command.
#[must_use]
pub fn write(subject: &Subject) -> Vec<u8> {
    let note =
        Note { agent: subject.caller.agent.clone(), run: subject.caller.run.clone(), target: cut(&subject.target) };
    // Plain data: what cannot be written is told as an unknown command.
    postcard::to_allocvec(&note).unwrap_or_default()
}

/// The caller and the target that a note tells of; nothing, if it is none. It has been beside hostile code: it may
/// lie about both, and is bounded here as if a client had sent it.
#[must_use]
pub fn read(bytes: &[u8]) -> (Caller, String) {
    let note: Note = postcard::from_bytes(bytes).unwrap_or_default();
    let name = |text: Option<String>| {
        let text: String = text?.chars().filter(|c| (' '..='~').contains(c)).take(CALLER_MAX).collect();
        Some(text).filter(|text| !text.is_empty())
    };
    (Caller { agent: name(note.agent), run: name(note.run) }, cut(&note.target))
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
            op: Op::Run,
            target: target.to_owned(),
        }
    }

    #[test]
    fn a_note_comes_back_and_always_fits() {
        for target in ["sh -c 'a\nb'".to_owned(), "\u{1f600}".repeat(5000)] {
            let bytes = write(&subject(&target));
            assert!(bytes.len() <= wire::init::MAX_NOTE, "{} bytes", bytes.len());
            assert_eq!(read(&bytes), (subject(&target).caller, cut(&target)));
        }
    }

    #[test]
    fn what_a_sandbox_makes_of_it_is_bounded() {
        for bytes in [&b""[..], &[0xff; 100], &[1; 512]] {
            let (caller, target) = read(bytes);
            assert!(
                caller.agent.is_none_or(|agent| agent.len() <= CALLER_MAX) && target.chars().count() <= 201,
                "{bytes:?}"
            );
        }
        let mut lies = subject("true");
        lies.caller = Caller { agent: Some("a\nb".repeat(500)), run: Some("\u{1b}".into()) };
        let (caller, _) = read(&write(&lies));
        assert_eq!((caller.agent.unwrap().len(), caller.run), (CALLER_MAX, None));
    }
}
