//! Names: of sessions, tenants, runs and layers. Each is valid by construction.
//!
//! An id ends up in paths, cgroup names and URLs, so its grammar leaves no room for
//! traversal, separators or control characters. Deserialising one validates it.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// Longest session id and tenant, in bytes.
pub const MAX_NAME: usize = 64;

/// Why a text is not an id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InvalidId {
    /// The grammar that the text does not follow, as a regular expression.
    pub pattern: &'static str,
}

impl fmt::Display for InvalidId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "String should match pattern '{}'", self.pattern)
    }
}

impl std::error::Error for InvalidId {}

/// Pattern of [`SessionId`] and [`Tenant`].
pub const NAME_PATTERN: &str = "^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$";
/// Pattern of [`RunId`].
pub const RUN_PATTERN: &str = "^[0-9a-f]{32}$";
/// Pattern of [`RequestId`].
pub const REQUEST_PATTERN: &str = "^[A-Za-z0-9._-]{1,64}$";
/// Pattern of [`LayerId`].
pub const LAYER_PATTERN: &str = "^[0-9a-f]{64}$";

fn is_name(text: &str) -> bool {
    let bytes = text.as_bytes();
    bytes.len() <= MAX_NAME
        && bytes.first().is_some_and(u8::is_ascii_alphanumeric)
        && bytes.iter().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-'))
}

fn is_request(text: &str) -> bool {
    (1..=MAX_NAME).contains(&text.len())
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-'))
}

fn is_lower_hex(text: &str, len: usize) -> bool {
    text.len() == len && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}

macro_rules! text_id {
    ($(#[$doc:meta])* $name:ident, $pattern:expr, $check:expr) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(String);

        impl $name {
            /// The id named by `text`, if it follows the grammar.
            ///
            /// # Errors
            /// [`InvalidId`] with the pattern.
            pub fn parse(text: &str) -> Result<Self, InvalidId> {
                let check: fn(&str) -> bool = $check;
                if check(text) { Ok(Self(text.to_owned())) } else { Err(InvalidId { pattern: $pattern }) }
            }

            /// The id as text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(&self.0)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = String::deserialize(deserializer)?;
                Self::parse(&text).map_err(de::Error::custom)
            }
        }
    };
}

text_id!(
    /// A session, chosen by the platform or generated (`s-` and 16 hex digits).
    ///
    /// ```
    /// use wire::id::SessionId;
    /// assert!(SessionId::parse("s-0123456789abcdef").is_ok());
    /// assert!(SessionId::parse("../etc").is_err());
    /// ```
    SessionId, NAME_PATTERN, is_name
);
text_id!(
    /// Whom a session is opened for: a label of capacity, not an authorisation.
    Tenant, NAME_PATTERN, is_name
);
text_id!(
    /// A request to the service, for the logs: chosen by the client ([`crate::api::REQUEST_ID_HEADER`]) or made.
    RequestId, REQUEST_PATTERN, is_request
);
text_id!(
    /// A layer in the image store: 64 lower-case hex digits. For a pulled layer the
    /// digest of its uncompressed tar (OCI image spec, `DiffID`); for a built one the
    /// digest of its definition.
    LayerId, LAYER_PATTERN, |t| is_lower_hex(t, 64)
);

/// A command in a session: 32 lower-case hex digits chosen by the client.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RunId(u128);

impl RunId {
    /// The run named by `text`.
    ///
    /// # Errors
    /// [`InvalidId`] unless `text` is 32 lower-case hex digits.
    pub fn parse(text: &str) -> Result<Self, InvalidId> {
        let invalid = InvalidId { pattern: RUN_PATTERN };
        if !is_lower_hex(text, 32) {
            return Err(invalid);
        }
        u128::from_str_radix(text, 16).map(Self).map_err(|_| invalid)
    }

    /// The run with this number.
    #[must_use]
    pub fn from_u128(value: u128) -> Self {
        Self(value)
    }
}

impl fmt::Display for RunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Debug for RunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Text where a person may read it, 16 bytes where only machines do.
impl Serialize for RunId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if serializer.is_human_readable() {
            serializer.collect_str(self)
        } else {
            self.0.to_le_bytes().serialize(serializer)
        }
    }
}

impl<'de> Deserialize<'de> for RunId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        if deserializer.is_human_readable() {
            let text = String::deserialize(deserializer)?;
            Self::parse(&text).map_err(de::Error::custom)
        } else {
            <[u8; 16]>::deserialize(deserializer).map(|b| Self(u128::from_le_bytes(b)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_cannot_traverse() {
        for bad in ["", ".", "..", ".hidden", "-x", "a/b", "a\0b", "a b", "é", &"a".repeat(65)] {
            assert!(SessionId::parse(bad).is_err(), "{bad:?} was accepted");
        }
        for good in ["a", "A.b_c-d", "s-0123456789abcdef", &"a".repeat(64)] {
            assert!(SessionId::parse(good).is_ok(), "{good:?} was refused");
        }
    }

    #[test]
    fn run_ids_are_exact_and_round_trip() {
        let text = "00ff00ff00ff00ff00ff00ff00ff00ff";
        let run = RunId::parse(text).unwrap();
        assert_eq!(run.to_string(), text);
        assert!(RunId::parse(&text.to_uppercase()).is_err());
        assert!(RunId::parse(&text[1..]).is_err());
        let bytes = postcard::to_allocvec(&run).unwrap();
        assert_eq!(postcard::from_bytes::<RunId>(&bytes).unwrap(), run);
        let json = serde_json::to_string(&run).unwrap();
        assert_eq!(serde_json::from_str::<RunId>(&json).unwrap(), run);
    }
}
