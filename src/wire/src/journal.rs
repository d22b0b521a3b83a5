//! `sandboxd`, `sandboxd-launch` → journald: one entry of the log, in the journal's native protocol.
//!
//! A field is its name, a line break, the length of its value as 64 bits (little endian), the value, and a line break.
//! The protocol has a shorter form without a length, in which a line break in a value would begin another field: it is
//! not used here, so that no value can forge one.

/// Where the journal listens.
pub const SOCKET: &str = "/run/systemd/journal/socket";
/// Variable that names another place, for tests.
pub const SOCKET_VARIABLE: &str = "SANDBOXD_JOURNAL_SOCKET";
/// Variable by which systemd says which file its journal listens at: `DEVICE:INODE` (systemd.exec(5)). If that is standard
/// error, entries may go to the journal's own socket instead.
pub const STREAM_VARIABLE: &str = "JOURNAL_STREAM";
/// Field of the session that an entry is about.
pub const SESSION: &str = "SANDBOXD_SESSION";
/// Field of the tenant whose session that is.
pub const TENANT: &str = "SANDBOXD_TENANT";
/// Field of the command, by its `run_id`.
pub const RUN: &str = "SANDBOXD_RUN";
/// Field of the request, by its [`crate::id::RequestId`].
pub const REQUEST: &str = "SANDBOXD_REQUEST";
/// Longest value of a field, in bytes; the rest is cut off. An entry of a few of them fits a datagram of any size that a
/// host may have set.
pub const MAX_VALUE: usize = 16 * 1024;

/// How much an entry matters, as syslog(3) counts it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Priority {
    /// Something failed.
    Error = 3,
    /// Something is not as it should be.
    Warning = 4,
    /// The course of things.
    Info = 6,
    /// For who looks for a fault.
    Debug = 7,
}

impl Priority {
    /// Its digit.
    #[must_use]
    pub fn digit(self) -> char {
        match self {
            Self::Error => '3',
            Self::Warning => '4',
            Self::Info => '6',
            Self::Debug => '7',
        }
    }
}

/// One entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry(Vec<u8>);

impl Entry {
    /// An entry of the program `identifier` that says `message`.
    #[must_use]
    pub fn new(identifier: &str, priority: Priority, message: &str) -> Self {
        let mut entry = Self(Vec::with_capacity(message.len() + 256));
        entry.field("MESSAGE", message);
        entry.field("PRIORITY", priority.digit().encode_utf8(&mut [0; 4]));
        entry.field("SYSLOG_IDENTIFIER", identifier);
        entry
    }

    /// With one field more. `name`: capital letters, digits and `_`, a letter first, at most 64; one that is not is left out.
    pub fn field(&mut self, name: &str, value: &str) {
        let sound = name.len() <= 64
            && name.starts_with(|c: char| c.is_ascii_uppercase())
            && name.bytes().all(|b| b.is_ascii_uppercase() || b.is_ascii_digit() || b == b'_');
        if !sound {
            return;
        }
        let value = &value.as_bytes()[..value.floor_char_boundary(MAX_VALUE)];
        self.0.extend_from_slice(name.as_bytes());
        self.0.push(b'\n');
        self.0.extend_from_slice(&(value.len() as u64).to_le_bytes());
        self.0.extend_from_slice(value);
        self.0.push(b'\n');
    }

    /// The datagram.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// The fields of a datagram, in order; `None` if it is none of ours. For tests, which stand for the journal.
    #[must_use]
    pub fn read(mut bytes: &[u8]) -> Option<Vec<(String, String)>> {
        let mut fields = Vec::new();
        while !bytes.is_empty() {
            let end = bytes.iter().position(|b| *b == b'\n')?;
            let (name, rest) = bytes.split_at(end);
            let (length, rest) = rest.get(1..)?.split_first_chunk::<8>()?;
            let length = usize::try_from(u64::from_le_bytes(*length)).ok()?;
            let value = rest.get(..length)?;
            bytes = rest.get(length..)?.strip_prefix(b"\n")?;
            fields.push((String::from_utf8(name.to_vec()).ok()?, String::from_utf8(value.to_vec()).ok()?));
        }
        Some(fields)
    }
}

/// Whether `stream` ([`STREAM_VARIABLE`]) is the file of this device and inode.
#[must_use]
pub fn is_stream(stream: &str, device: u64, inode: u64) -> bool {
    let Some((said_device, said_inode)) = stream.split_once(':') else { return false };
    said_device.parse() == Ok(device) && said_inode.parse() == Ok(inode)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_value_forges_a_field() {
        let said = "no\nSANDBOXD_SESSION=other\nPRIORITY\n\u{0}";
        let mut entry = Entry::new("sandboxd", Priority::Warning, said);
        entry.field(SESSION, "mine\nSANDBOXD_TENANT=other");
        let fields = Entry::read(entry.bytes()).unwrap();
        let all: Vec<(&str, &str)> = fields.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        assert_eq!(
            all,
            [
                ("MESSAGE", said),
                ("PRIORITY", "4"),
                ("SYSLOG_IDENTIFIER", "sandboxd"),
                (SESSION, "mine\nSANDBOXD_TENANT=other")
            ]
        );
    }

    #[test]
    fn names_are_the_journal_s_and_values_bounded() {
        let mut entry = Entry::new("x", Priority::Info, &"\u{1f980}".repeat(10_000));
        for name in ["", "lower", "_TRUSTED", "A=B", "A\nB"] {
            entry.field(name, "x");
        }
        let fields = Entry::read(entry.bytes()).unwrap();
        assert_eq!(fields.len(), 3);
        assert!(fields[0].1.len() <= MAX_VALUE && fields[0].1.len() > MAX_VALUE - 4);
    }

    #[test]
    fn the_stream_is_recognised() {
        assert!(is_stream("8:1234", 8, 1234));
        for other in ["", "8", "8:", "8:1235", "9:1234", "8:1234:1", " 8:1234"] {
            assert!(!is_stream(other, 8, 1234), "{other:?}");
        }
    }
}
