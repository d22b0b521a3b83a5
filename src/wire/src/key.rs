//! What a session is shared by: a key, and the session id that it means.
//!
//! A platform that opens sessions for agents does not choose ids; it says who is to share a
//! sandbox: a [`Key`]. The id is derived, always the same one for the same key on the same host:
//!
//! ```text
//! xc-4f2a91c8-7b3e5d10-9c1f0a7be35d4486a2c1d04f6e8b7a90
//! ││ │        │        └ subject: 128 bits of SHA-256 over everything below, whole
//! ││ │        └ host: which installation keeps the files
//! ││ └ organization: its first 8 characters, for whoever reads a list
//! │└ scope: r run, c conversation, h channel, u user, a agent
//! └ kind: x for a sandbox of sandboxd
//! ```
//!
//! The digest covers the whole organization, host, scope and subject, each with its length, so two
//! keys that differ anywhere have different ids, and no id tells whose it is. The readable parts are
//! for people: they separate nobody.
//!
//! A scope whose subject is missing is refused. It is never widened to one that could be served.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::id::Tenant;

/// Kind letter of what `sandboxd` opens.
pub const SANDBOX: char = 'x';
/// Longest text in a key, in bytes.
pub const MAX_TEXT: usize = 256;
/// Longest host, in characters.
pub const MAX_HOST: usize = 12;
/// Characters of the organization that an id shows.
const SHOWN: usize = 8;

/// Who shares a session.
///
/// A field that the scope does not use is ignored: a platform may send all that it knows.
///
/// ```
/// let text = r#"{"scope": "conversation", "organization": "acme", "agent": "clerk", "conversation": "7"}"#;
/// let key: wire::key::Key = serde_json::from_str(text).unwrap();
/// assert_eq!(key.scope, wire::key::Scope::Conversation);
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Key {
    /// What is shared.
    pub scope: Scope,
    /// Whose it is, in the grammar of a tenant.
    #[cfg_attr(feature = "openapi", schema(pattern = "^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"))]
    pub organization: String,
    /// The agent. Part of the id in the scopes `agent`, `user` and `channel`.
    #[cfg_attr(feature = "openapi", schema(min_length = 1, max_length = 256))]
    pub agent: String,
    /// One run of an agent; the scope `run` needs it.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(min_length = 1, max_length = 256))]
    pub run: Option<String>,
    /// One conversation; the scope `conversation` needs it.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(min_length = 1, max_length = 256))]
    pub conversation: Option<String>,
    /// One person; the scope `user` needs it.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(min_length = 1, max_length = 256))]
    pub user: Option<String>,
    /// One channel of a messenger; the scope `channel` needs it.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(min_length = 1, max_length = 256))]
    pub channel: Option<String>,
}

/// What runs share when they share a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Scope {
    /// Nothing: each run has its own.
    Run,
    /// A conversation, whichever agents take part in it.
    Conversation,
    /// An agent's work in one channel.
    Channel,
    /// An agent's work for one person.
    User,
    /// All of an agent's work.
    Agent,
}

impl Scope {
    /// Every scope, narrowest first.
    pub const ALL: [Self; 5] = [Self::Run, Self::Conversation, Self::Channel, Self::User, Self::Agent];

    /// Its letter in an id. No two are alike.
    #[must_use]
    pub fn letter(self) -> char {
        match self {
            Self::Run => 'r',
            Self::Conversation => 'c',
            Self::Channel => 'h',
            Self::User => 'u',
            Self::Agent => 'a',
        }
    }

    /// Its name, as JSON has it; also the field that holds its subject.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Run => "run",
            Self::Conversation => "conversation",
            Self::Channel => "channel",
            Self::User => "user",
            Self::Agent => "agent",
        }
    }

    /// The scope of that letter.
    #[must_use]
    pub fn of_letter(letter: char) -> Option<Self> {
        Self::ALL.into_iter().find(|scope| scope.letter() == letter)
    }

    /// The scope of that name.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|scope| scope.name() == name)
    }

    /// Who can see the files of such a session, in words that name nobody.
    #[must_use]
    pub fn audience(self) -> &'static str {
        match self {
            Self::Run => "this run of the agent alone",
            Self::Conversation => "whoever is in that conversation",
            Self::Channel => "everybody who talks to this agent in that channel",
            Self::User => "one person, in every conversation with this agent",
            Self::Agent => "everybody who talks to this agent",
        }
    }

    /// Whether the agent is part of what is shared beside the subject.
    #[must_use]
    pub fn is_per_agent(self) -> bool {
        match self {
            Self::Run | Self::Conversation => false,
            Self::Channel | Self::User | Self::Agent => true,
        }
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Why a key means no session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyError {
    /// The scope's subject is missing or empty. It is not widened.
    Missing(Scope),
    /// The organization does not follow the grammar of a tenant.
    Organization,
    /// A text is empty, longer than [`MAX_TEXT`], or holds a control character; the field.
    Text(&'static str),
    /// The host is not 1 to [`MAX_HOST`] lower-case letters and digits.
    Host,
    /// The kind is no lower-case letter.
    Kind,
}

impl KeyError {
    /// The field of the key that is at fault; none for host and kind, which are not in it.
    #[must_use]
    pub fn field(self) -> Option<&'static str> {
        match self {
            Self::Missing(scope) => Some(scope.name()),
            Self::Organization => Some("organization"),
            Self::Text(field) => Some(field),
            Self::Host | Self::Kind => None,
        }
    }
}

impl fmt::Display for KeyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing(scope) => write!(f, "The scope '{scope}' needs the field '{scope}'"),
            Self::Organization => write!(f, "String should match pattern '{}'", crate::id::NAME_PATTERN),
            Self::Text(_) => write!(f, "String should have 1 to {MAX_TEXT} bytes and no control characters"),
            Self::Host => write!(f, "A host is 1 to {MAX_HOST} lower-case letters and digits"),
            Self::Kind => write!(f, "A kind is one lower-case letter"),
        }
    }
}

impl std::error::Error for KeyError {}

/// Whether `text` can be the host of a key.
#[must_use]
pub fn is_host(text: &str) -> bool {
    (1..=MAX_HOST).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit())
}

/// What an id shows if it has the form of a derived one: scope, organization's first characters, host. Whether it
/// was derived cannot be told: who opens sessions by name may choose one that looks so.
#[must_use]
pub fn shown(id: &crate::id::SessionId) -> Option<(Scope, &str, &str)> {
    let (head, rest) = id.as_str().split_once('-')?;
    let mut letters = head.chars();
    let scope = match (letters.next(), letters.next(), letters.next()) {
        (Some(SANDBOX), Some(letter), None) => Scope::of_letter(letter)?,
        _ => return None,
    };
    let (rest, digest) = rest.rsplit_once('-')?;
    let (organization, host) = rest.rsplit_once('-')?;
    let hex = digest.len() == 32 && digest.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
    let sound = hex && is_host(host) && (1..=SHOWN).contains(&organization.len());
    sound.then_some((scope, organization, host))
}

impl Key {
    /// What the scope is about.
    fn subject(&self) -> Option<&str> {
        match self.scope {
            Scope::Run => self.run.as_deref(),
            Scope::Conversation => self.conversation.as_deref(),
            Scope::Channel => self.channel.as_deref(),
            Scope::User => self.user.as_deref(),
            Scope::Agent => Some(&self.agent),
        }
    }

    /// Check everything but the host; the scope's subject, if all is well.
    ///
    /// # Errors
    /// [`KeyError`].
    pub fn check(&self) -> Result<&str, KeyError> {
        Tenant::parse(&self.organization).map_err(|_| KeyError::Organization)?;
        let subject = self.subject().filter(|text| !text.is_empty()).ok_or(KeyError::Missing(self.scope))?;
        let texts = [
            ("agent", Some(&self.agent)),
            ("run", self.run.as_ref()),
            ("conversation", self.conversation.as_ref()),
            ("channel", self.channel.as_ref()),
            ("user", self.user.as_ref()),
        ];
        for (field, text) in texts {
            if text.is_some_and(|text| !(1..=MAX_TEXT).contains(&text.len()) || text.chars().any(char::is_control)) {
                return Err(KeyError::Text(field));
            }
        }
        Ok(subject)
    }

    /// The session that this key means on `host`. Nothing is normalised: texts that differ in a
    /// blank or in case are different.
    ///
    /// # Errors
    /// [`KeyError`].
    #[cfg(feature = "key")]
    pub fn derive(&self, host: &str, kind: char) -> Result<crate::id::SessionId, KeyError> {
        let subject = self.check()?;
        if !is_host(host) {
            return Err(KeyError::Host);
        }
        if !kind.is_ascii_lowercase() {
            return Err(KeyError::Kind);
        }
        let letter = self.scope.letter();
        let agent = if self.scope.is_per_agent() { self.agent.as_str() } else { "" };
        let digest = digest(&[&format!("{kind}{letter}"), &self.organization, host, agent, subject]);
        // The grammar of a tenant is ASCII.
        let shown = &self.organization[..self.organization.len().min(SHOWN)];
        crate::id::SessionId::parse(&format!("{kind}{letter}-{shown}-{host}-{digest}"))
            .map_err(|_| KeyError::Organization)
    }
}

/// The first 128 bits of SHA-256 over the parts, each with its length before it, in hexadecimal.
#[cfg(feature = "key")]
fn digest(parts: &[&str]) -> String {
    use sha2::{Digest, Sha256};
    let mut hasher = Sha256::new();
    hasher.update(b"sandboxd session key v1");
    for part in parts {
        hasher.update((part.len() as u64).to_be_bytes());
        hasher.update(part.as_bytes());
    }
    hasher.finalize()[..16].iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(all(test, feature = "key"))]
mod tests {
    use std::collections::HashMap;

    use super::*;

    fn key(scope: Scope) -> Key {
        let text = |text: &str| Some(text.to_owned());
        Key {
            scope,
            organization: "acme-europe".into(),
            agent: "clerk".into(),
            run: text("one"),
            conversation: text("one"),
            user: text("one"),
            channel: text("one"),
        }
    }

    #[test]
    fn an_id_is_stable_and_shows_kind_scope_organization_and_host() {
        let id = key(Scope::Conversation).derive("7b3e5d10", SANDBOX).unwrap();
        // A change here moves every workspace of every installation.
        assert_eq!(id.as_str(), "xc-acme-eur-7b3e5d10-6b40eeb763fd0f811db3b9da1f24bef1");
    }

    #[test]
    fn an_id_shows_what_is_readable_of_its_key() {
        for scope in Scope::ALL {
            let id = key(scope).derive("7b3e5d10", SANDBOX).unwrap();
            assert_eq!(shown(&id), Some((scope, "acme-eur", "7b3e5d10")));
        }
        let digest = "6b40eeb763fd0f811db3b9da1f24bef1";
        for id in ["s-0123456789abcdef", "chat-7", "xc-a-h", &format!("yc-a-h-{digest}"), &format!("xz-a-h-{digest}")] {
            assert_eq!(shown(&crate::id::SessionId::parse(id).unwrap()), None, "{id}");
        }
    }

    #[test]
    fn a_missing_subject_is_refused_and_never_widened() {
        for scope in Scope::ALL {
            for empty in [None, Some(String::new())] {
                let mut key = key(scope);
                match scope {
                    Scope::Run => key.run = empty,
                    Scope::Conversation => key.conversation = empty,
                    Scope::Channel => key.channel = empty,
                    Scope::User => key.user = empty,
                    Scope::Agent => key.agent = empty.unwrap_or_default(),
                }
                let error = key.derive("h", SANDBOX).unwrap_err();
                assert_eq!((error, error.field()), (KeyError::Missing(scope), Some(scope.name())));
            }
        }
    }

    #[test]
    fn what_cannot_be_an_id_is_refused() {
        let derive = |change: fn(&mut Key), host: &str, kind| {
            let mut key = key(Scope::User);
            change(&mut key);
            key.derive(host, kind).unwrap_err()
        };
        assert_eq!(derive(|k| k.organization = "../etc".into(), "h", 'x'), KeyError::Organization);
        assert_eq!(derive(|k| k.organization = String::new(), "h", 'x'), KeyError::Organization);
        assert_eq!(derive(|k| k.organization = "é".into(), "h", 'x'), KeyError::Organization);
        assert_eq!(derive(|k| k.user = Some("a\0b".into()), "h", 'x'), KeyError::Text("user"));
        assert_eq!(derive(|k| k.user = Some("a".repeat(257)), "h", 'x'), KeyError::Text("user"));
        assert_eq!(derive(|k| k.agent = String::new(), "h", 'x'), KeyError::Text("agent"));
        for host in ["", "A", "a-b", "é", "0123456789abc"] {
            assert_eq!(derive(|_| {}, host, 'x'), KeyError::Host);
        }
        assert_eq!(derive(|_| {}, "h", 'X'), KeyError::Kind);
    }

    #[test]
    fn the_agent_counts_where_it_should_and_unused_fields_nowhere() {
        for scope in Scope::ALL {
            let other = Key { agent: "other".into(), ..key(scope) };
            let same = other.derive("h", SANDBOX).unwrap() == key(scope).derive("h", SANDBOX).unwrap();
            assert_eq!(same, !scope.is_per_agent(), "{scope}");
        }
        let mut bare = key(Scope::Agent);
        (bare.run, bare.conversation, bare.user, bare.channel) = (None, None, None, None);
        assert_eq!(bare.derive("h", SANDBOX), key(Scope::Agent).derive("h", SANDBOX));
    }

    /// What a key says, field by field: two keys are the same exactly when this is.
    type Meaning = (Scope, String, String, String, String);

    #[test]
    fn keys_that_differ_never_meet() {
        // Texts that would meet if fields were joined, cut, trimmed or folded.
        let texts = [
            "a",
            "b",
            "aa",
            "ab",
            "a-b",
            "a b",
            " a",
            "a ",
            "A",
            "é",
            "e\u{301}",
            "1",
            "a/b",
            "x".repeat(255).leak(),
            "x".repeat(256).leak(),
        ];
        let organizations = ["a", "aa", "a-b", "A", "acme-europe-1", "acme-europe-2", "a-b-c", "4f2a91c8", "4f2a91c80"];
        let mut seen: HashMap<String, Meaning> = HashMap::new();
        for scope in Scope::ALL {
            for organization in organizations {
                for agent in texts {
                    for subject in texts {
                        for host in ["h", "hh", "7b3e5d10"] {
                            let mut key = key(scope);
                            (key.organization, key.agent) = (organization.into(), agent.into());
                            for field in [&mut key.run, &mut key.conversation, &mut key.user, &mut key.channel] {
                                *field = Some(subject.to_owned());
                            }
                            let id = key.derive(host, SANDBOX).unwrap().to_string();
                            assert!(id.len() <= 64, "{id}");
                            let about = key.check().unwrap().to_owned();
                            let agent = if scope.is_per_agent() { agent } else { "" };
                            let meaning = (scope, organization.into(), agent.into(), about, host.to_owned());
                            let before = seen.insert(id, meaning.clone());
                            assert!(
                                before.as_ref().is_none_or(|before| *before == meaning),
                                "{before:?} and {meaning:?}"
                            );
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn random_keys_follow_the_grammar_and_never_meet() {
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let mut next = |below: u64| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state % below
        };
        let mut seen: HashMap<String, String> = HashMap::new();
        for _ in 0..20_000 {
            let mut text = |alphabet: &[char], most: u64| -> String {
                (0..=next(most)).map(|_| alphabet[usize::try_from(next(alphabet.len() as u64)).unwrap()]).collect()
            };
            let name: Vec<char> = "abAB01".chars().collect();
            let any: Vec<char> = "ab-._ /é漢🙂'\"\\".chars().collect();
            let organization = text(&name, 63);
            let fields = [text(&any, 20), text(&any, 20)];
            let scope = Scope::ALL[usize::try_from(next(5)).unwrap()];
            let mut key = key(scope);
            (key.organization, key.agent) = (organization, fields[0].clone());
            for field in [&mut key.run, &mut key.conversation, &mut key.user, &mut key.channel] {
                *field = Some(fields[1].clone());
            }
            let id = key.derive("0123456789ab", SANDBOX).unwrap().to_string();
            assert!(id.len() <= 64 && crate::id::SessionId::parse(&id).is_ok(), "{id}");
            let agent = if scope.is_per_agent() { key.agent.as_str() } else { "" };
            let meaning = format!("{scope}\0{}\0{agent}\0{}", key.organization, key.check().unwrap());
            let before = seen.insert(id, meaning.clone());
            assert!(before.as_ref().is_none_or(|before| *before == meaning), "{before:?} and {meaning:?}");
        }
    }
}
