//! Credentials for registries, from a file in docker's format:
//! `{"auths": {"HOST": {"auth": BASE64("user:password")}}}`.

use std::fs::File;
use std::path::Path;

use base64::Engine;
use oci_client::secrets::RegistryAuth;
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

/// Who to be at `registry`: what the file says, or nobody. Read anew each time, so that a changed file is used.
pub(super) fn credentials(file: Option<&Path>, registry: &str) -> Result<RegistryAuth, PullError> {
    let Some(path) = file else { return Ok(RegistryAuth::Anonymous) };
    let refuse = |reason: String| PullError::Credentials { reason: format!("{}: {reason}", path.display()) };
    let mut opened = match File::open(path) {
        Ok(opened) => opened,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(RegistryAuth::Anonymous),
        Err(e) => return Err(refuse(e.to_string())),
    };
    let bytes = read_bounded(&mut opened, MAX_FILE).map_err(|e| refuse(e.to_string()))?;
    // The parser's own words could quote a password.
    let parsed: AuthFile = serde_json::from_slice(&bytes).map_err(|e| {
        refuse(format!("is not of the form {{\"auths\": …}} at line {} column {}", e.line(), e.column()))
    })?;
    let found = parsed.auths.into_iter().find(|(host, _)| host_of(host) == host_of(registry));
    match found {
        None => Ok(RegistryAuth::Anonymous),
        Some((host, entry)) => {
            decode(entry).ok_or_else(|| refuse(format!("the entry of {host} has no user and password")))
        }
    }
}

fn decode(entry: AuthEntry) -> Option<RegistryAuth> {
    if let (Some(user), Some(password)) = (entry.username, entry.password) {
        return Some(RegistryAuth::Basic(user, password));
    }
    let bytes = base64::engine::general_purpose::STANDARD.decode(entry.auth?.trim()).ok()?;
    let text = String::from_utf8(bytes).ok()?;
    let (user, password) = text.split_once(':')?;
    Some(RegistryAuth::Basic(user.to_owned(), password.trim_end_matches('\0').to_owned()))
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
        let of = |registry| credentials(Some(file.path()), registry);
        assert_eq!(of("docker.io").unwrap(), RegistryAuth::Basic("user".into(), "pa:ss".into()));
        assert_eq!(of("localhost:5000").unwrap(), RegistryAuth::Basic("a".into(), "b".into()));
        assert_eq!(of("ghcr.io").unwrap(), RegistryAuth::Anonymous);
        assert!(of("bad.example").unwrap_err().to_string().contains("bad.example has no user"));
        assert_eq!(
            credentials(Some(Path::new("/nonexistent/auth.json")), "docker.io").unwrap(),
            RegistryAuth::Anonymous
        );
        std::fs::write(file.path(), r#"{"auths": {"h": {"auth": 7secret}}}"#).unwrap();
        assert!(!of("h").unwrap_err().to_string().contains("secret"));
    }
}
