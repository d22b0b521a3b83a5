//! Credentials for registries, from a file in docker's format:
//! `{"auths": {"HOST": {"auth": BASE64("user:password")}}}`.

use std::fs::File;
use std::path::Path;

use base64::Engine;
use serde::Deserialize;

use super::error::PullError;
use super::store::read_bounded;

const MAX_FILE: u64 = 256 * 1024;

// Other tools keep more in the same file; only what is used here is read.
#[derive(Deserialize)]
struct AuthFile {
    #[serde(default)]
    auths: std::collections::BTreeMap<String, AuthEntry>,
}

#[derive(Deserialize)]
struct AuthEntry {
    #[serde(default)]
    auth: Option<String>,
    #[serde(default)]
    username: Option<String>,
    #[serde(default)]
    password: Option<String>,
}

/// Who to be at a registry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Login {
    /// Nobody.
    Anonymous,
    /// Somebody.
    Password {
        /// The name.
        user: String,
        /// The password.
        password: String,
    },
}

/// Who to be at `registry`: what the file says, or nobody. Read anew each time, so that a changed file is used.
pub(super) fn credentials(file: Option<&Path>, registry: &str) -> Result<Login, PullError> {
    let Some(path) = file else { return Ok(Login::Anonymous) };
    let refuse = |reason: String| PullError::Credentials { reason: format!("{}: {reason}", path.display()) };
    let mut opened = match File::open(path) {
        Ok(opened) => opened,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Login::Anonymous),
        Err(e) => return Err(refuse(e.to_string())),
    };
    let bytes = read_bounded(&mut opened, MAX_FILE).map_err(|e| refuse(e.to_string()))?;
    // The parser's own words could quote a password.
    let parsed: AuthFile = serde_json::from_slice(&bytes).map_err(|e| {
        refuse(format!("is not of the form {{\"auths\": …}} at line {} column {}", e.line(), e.column()))
    })?;
    let found = parsed.auths.into_iter().find(|(host, _)| host_of(host) == host_of(registry));
    match found {
        None => Ok(Login::Anonymous),
        Some((host, entry)) => {
            decode(entry).ok_or_else(|| refuse(format!("the entry of {host} has no user and password")))
        }
    }
}

fn decode(entry: AuthEntry) -> Option<Login> {
    if let (Some(user), Some(password)) = (entry.username, entry.password) {
        return Some(Login::Password { user, password });
    }
    let bytes = base64::engine::general_purpose::STANDARD.decode(entry.auth?.trim()).ok()?;
    let text = String::from_utf8(bytes).ok()?;
    let (user, password) = text.split_once(':')?;
    Some(Login::Password { user: user.to_owned(), password: password.trim_end_matches('\0').to_owned() })
}

/// The host that a key of the file or a reference means; Docker's own registry has several names.
fn host_of(text: &str) -> &str {
    let text = text.strip_prefix("https://").or_else(|| text.strip_prefix("http://")).unwrap_or(text);
    let host = text.split('/').next().unwrap_or(text);
    match host {
        "index.docker.io" | "registry-1.docker.io" => "docker.io",
        _ => host,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_format_of_docker() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let text = r#"{"auths": {"https://index.docker.io/v1/": {"auth": "dXNlcjpwYTpzcw=="}, "localhost:5000": {"username": "a", "password": "b"},
            "bad.example": {"auth": "!!"}}, "credsStore": "other"}"#;
        std::fs::write(file.path(), text).unwrap();
        let login = |user: &str, password: &str| Login::Password { user: user.into(), password: password.into() };
        let of = |registry| credentials(Some(file.path()), registry);
        assert_eq!(of("docker.io").unwrap(), login("user", "pa:ss"));
        assert_eq!(of("localhost:5000").unwrap(), login("a", "b"));
        assert_eq!(of("ghcr.io").unwrap(), Login::Anonymous);
        assert!(of("bad.example").unwrap_err().to_string().contains("bad.example has no user"));
        assert_eq!(credentials(Some(Path::new("/nonexistent/auth.json")), "docker.io").unwrap(), Login::Anonymous);
        std::fs::write(file.path(), r#"{"auths": {"h": {"auth": 7secret}}}"#).unwrap();
        assert!(!of("h").unwrap_err().to_string().contains("secret"));
    }
}
