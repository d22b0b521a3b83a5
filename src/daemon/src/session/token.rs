//! Tokens: the service's, and each session's, derived.
//!
//! A session's token is HMAC-SHA-256 of its id and a nonce under the installation's key, in
//! hexadecimal. So an attach, and a restart, give the same token, a purged session's
//! successor gives another, and the database holds nothing that opens anything.

use std::fmt;
use std::io::{self, Read, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use wire::id::SessionId;

/// The installation's key, 32 random bytes.
#[derive(Clone)]
pub struct Key([u8; 32]);

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(…)")
    }
}

impl Key {
    /// Read the key at `path`, making one if there is none.
    ///
    /// # Errors
    /// What the kernel says; `InvalidData` for a file that is no key or that others may read.
    pub fn load(path: &Path) -> io::Result<Self> {
        match std::fs::File::open(path) {
            Ok(file) => Self::read(file),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Self::make(path),
            Err(error) => Err(error),
        }
    }

    fn read(mut file: std::fs::File) -> io::Result<Self> {
        let invalid = |what| io::Error::new(io::ErrorKind::InvalidData, what);
        if file.metadata()?.permissions().mode() & 0o077 != 0 {
            return Err(invalid("others may read it; mend with: chmod 600"));
        }
        let mut key = [0; 32];
        file.read_exact(&mut key).map_err(|_| invalid("is shorter than 32 bytes; restore it from a backup"))?;
        Ok(Self(key))
    }

    /// Written whole beside its place, then linked: a crash leaves a key or none.
    fn make(path: &Path) -> io::Result<Self> {
        let mut key = [0; 32];
        std::fs::File::open("/dev/urandom")?.read_exact(&mut key)?;
        let beside = path.with_extension("new");
        let mut options = std::fs::OpenOptions::new();
        let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(&beside)?;
        file.write_all(&key)?;
        file.sync_all()?;
        std::fs::rename(&beside, path)?;
        if let Some(dir) = path.parent() {
            std::fs::File::open(dir)?.sync_all()?;
        }
        Ok(Self(key))
    }

    /// The token of session `id` with this nonce: 64 hexadecimal digits.
    #[must_use]
    pub fn token(&self, id: &SessionId, nonce: &[u8; 16]) -> String {
        hex(&self.mac(&[b"sandboxd session token v1\0", id.as_str().as_bytes(), b"\0", nonce]))
    }

    /// A name for this installation that lasts as long as its key: 8 hexadecimal digits. No secret.
    #[must_use]
    pub fn host_id(&self) -> String {
        hex(&self.mac(&[b"sandboxd host id v1\0"])[..4])
    }

    fn mac(&self, parts: &[&[u8]]) -> [u8; 32] {
        // HMAC takes a key of any length.
        let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(&self.0) else { unreachable!("HMAC takes any key") };
        for part in parts {
            mac.update(part);
        }
        mac.finalize().into_bytes().into()
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Whether two texts are equal, in a time that tells only their lengths.
#[must_use]
pub fn constant_time_eq(a: &[u8], b: &[u8]) -> bool {
    let different = a.iter().zip(b).fold(0, |different, (a, b)| different | (a ^ b));
    a.len() == b.len() && std::hint::black_box(different) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_stable_and_bound_to_id_nonce_and_key() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("token.key");
        let key = Key::load(&path).unwrap();
        let again = Key::load(&path).unwrap();
        let other = Key::load(&dir.path().join("other")).unwrap();
        let (a, b) = (SessionId::parse("a").unwrap(), SessionId::parse("b").unwrap());
        let token = key.token(&a, &[1; 16]);
        assert_eq!(token, again.token(&a, &[1; 16]));
        assert!(token.len() == 64 && token.bytes().all(|c| c.is_ascii_hexdigit()));
        assert_ne!(token, key.token(&b, &[1; 16]));
        assert_ne!(token, key.token(&a, &[2; 16]));
        assert_ne!(token, other.token(&a, &[1; 16]));
        assert_eq!(format!("{key:?}"), "Key(…)");
        assert!(key.host_id() == again.host_id() && key.host_id() != other.host_id() && key.host_id().len() == 8);
    }

    #[test]
    fn a_key_that_others_may_read_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("token.key");
        Key::load(&path).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
        assert!(Key::load(&path).unwrap_err().to_string().contains("chmod 600"));
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        std::fs::write(&path, b"short").unwrap();
        assert!(Key::load(&path).unwrap_err().to_string().contains("shorter"));
    }

    #[test]
    fn comparing_compares() {
        assert!(constant_time_eq(b"same", b"same"));
        assert!(
            !constant_time_eq(b"same", b"sane") && !constant_time_eq(b"same", b"sam") && !constant_time_eq(b"", b"x")
        );
    }
}
