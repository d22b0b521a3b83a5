//! Credentials for registries, from a file in docker's format:
//! `{"auths": {"HOST[/PATH]": {"auth": BASE64("user:password")}}}`, or with `identitytoken`.
//!
//! Helpers (`credHelpers`, `credsStore`) are programs of the host that whoever logged in has chosen; the service starts none.
//! A registry that the file leaves to one is refused with the words that mend it. Of several keys that fit an image the longest counts, as containers-auth.json(5) has it: one for
//! `registry.example.org/team/image` before one for `registry.example.org/team` before one for the host.

use std::collections::BTreeMap;
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
    auths: BTreeMap<String, AuthEntry>,
    /// Programs that know the credentials of a host.
    #[serde(rename = "credHelpers", default)]
    helpers: BTreeMap<String, String>,
    /// The program that knows those of every other.
    #[serde(rename = "credsStore", default)]
    store: Option<String>,
}

#[derive(Deserialize)]
struct AuthEntry {
    #[serde(default)]
    auth: Option<String>,
    #[serde(default)]
    username: Option<String>,
    #[serde(default)]
    password: Option<String>,
    #[serde(rename = "identitytoken", default)]
    identity: Option<String>,
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
    /// Who has a token that gives others, for a service of tokens alone (the `refresh_token` of OAuth 2.0, RFC 6749).
    Identity(String),
}

/// Who to be at `registry` for an image of `repository`: what the file says, or nobody. Read anew each time, so that a
/// changed file is used.
pub(super) fn credentials(file: Option<&Path>, registry: &str, repository: &str) -> Result<Login, PullError> {
    let (Some(path), Some(mut parsed)) = (file, read(file)?) else { return Ok(Login::Anonymous) };
    let fits = |key: &str| {
        let (host, path) = split(key);
        let below = path.is_empty()
            || repository.strip_prefix(path).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
        (host == split(registry).0 && below).then_some(path.len())
    };
    let auths = std::mem::take(&mut parsed.auths);
    let found = auths.into_iter().filter_map(|(key, entry)| Some((fits(&key)?, key, entry)));
    let found = found.max_by_key(|(length, ..)| *length).map(|(_, key, entry)| (key, decode(entry)));
    if let Some((_, Some(login))) = found {
        return Ok(login);
    }
    let helper = parsed.helpers.iter().find(|(key, _)| fits(key).is_some()).map(|(_, helper)| helper);
    // Docker leaves an empty entry for what its store has.
    let helper = helper.or(parsed.store.as_ref().filter(|_| found.is_some()));
    match (helper.filter(|name| !name.is_empty()), found) {
        (Some(helper), _) => Err(PullError::Credentials { reason: not_run(path, registry, helper) }),
        (None, Some((key, _))) => {
            let reason = format!("{}: the entry of {key} has no user and password", path.display());
            Err(PullError::Credentials { reason })
        }
        (None, None) => Ok(Login::Anonymous),
    }
}

/// What is said of a helper.
fn not_run(path: &Path, registry: &str, helper: &str) -> String {
    let helper: String = helper.chars().filter(|c| !c.is_control()).take(64).collect();
    format!(
        "{file}: it leaves {registry} to the helper docker-credential-{helper}, and the service starts no programs of the host; \
         write name and password themselves: skopeo login --authfile {file} {registry}",
        file = path.display()
    )
}

/// The hosts that the file has credentials for.
pub(super) fn hosts(file: Option<&Path>) -> Result<Vec<String>, PullError> {
    let keys = read(file)?.map(|parsed| parsed.auths.into_keys());
    Ok(keys.into_iter().flatten().map(|key| split(&key).0.to_owned()).collect())
}

fn read(file: Option<&Path>) -> Result<Option<AuthFile>, PullError> {
    let Some(path) = file else { return Ok(None) };
    let refuse = |reason: String| PullError::Credentials { reason: format!("{}: {reason}", path.display()) };
    let mut opened = match File::open(path) {
        Ok(opened) => opened,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(refuse(e.to_string())),
    };
    let bytes = read_bounded(&mut opened, MAX_FILE).map_err(|e| refuse(e.to_string()))?;
    // The parser's own words could quote a password.
    let parsed = serde_json::from_slice(&bytes).map_err(|e| {
        refuse(format!("is not of the form {{\"auths\": …}} at line {} column {}", e.line(), e.column()))
    })?;
    Ok(Some(parsed))
}

fn decode(entry: AuthEntry) -> Option<Login> {
    if let Some(token) = entry.identity.filter(|token| !token.is_empty()) {
        return Some(Login::Identity(token));
    }
    if let (Some(user), Some(password)) = (entry.username, entry.password) {
        return Some(Login::Password { user, password });
    }
    let bytes = base64::engine::general_purpose::STANDARD.decode(entry.auth?.trim()).ok()?;
    let text = String::from_utf8(bytes).ok()?;
    let (user, password) = text.split_once(':')?;
    Some(Login::Password { user: user.to_owned(), password: password.trim_end_matches('\0').to_owned() })
}

/// The host and the path that a key of the file or a reference means. Docker's own registry has several names, and
/// docker writes the address of an interface of old behind a host.
fn split(text: &str) -> (&str, &str) {
    let text = text.strip_prefix("https://").or_else(|| text.strip_prefix("http://")).unwrap_or(text);
    let (host, path) = text.split_once('/').unwrap_or((text, ""));
    let host = match host {
        "index.docker.io" | "registry-1.docker.io" => "docker.io",
        _ => host,
    };
    let path = path.trim_end_matches('/');
    (host, if matches!(path, "v1" | "v2") { "" } else { path })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_format_of_docker() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let text = r#"{"auths": {"https://index.docker.io/v1/": {"auth": "dXNlcjpwYTpzcw=="}, "localhost:5000": {"username": "a", "password": "b"},
            "bad.example": {"auth": "!!"}, "r.example": {"auth": "aDpw"}, "r.example/team": {"auth": "dDpw"},
            "r.example/team/image": {"auth": "aTpw"}, "t.example": {"auth": "PHRva2VuPjo=", "identitytoken": "refresh"}}}"#;
        std::fs::write(file.path(), text).unwrap();
        let login = |user: &str, password: &str| Login::Password { user: user.into(), password: password.into() };
        let of = |registry| credentials(Some(file.path()), registry, "team");
        assert_eq!(of("docker.io").unwrap(), login("user", "pa:ss"));
        assert_eq!(of("localhost:5000").unwrap(), login("a", "b"));
        assert_eq!(of("ghcr.io").unwrap(), Login::Anonymous);
        assert_eq!(of("t.example").unwrap(), Login::Identity("refresh".into()));
        assert!(of("bad.example").unwrap_err().to_string().contains("bad.example has no user"));
        let nowhere = Path::new("/nonexistent/auth.json");
        assert_eq!(credentials(Some(nowhere), "docker.io", "x").unwrap(), Login::Anonymous);
        let of_path = |repository| credentials(Some(file.path()), "r.example", repository).unwrap();
        assert_eq!(of_path("team/image"), login("i", "p"));
        assert_eq!(of_path("team/other"), login("t", "p"));
        assert_eq!(of_path("teams/image"), login("h", "p"));
        let hosts = hosts(Some(file.path())).unwrap();
        assert!(hosts.contains(&"docker.io".to_owned()) && hosts.contains(&"localhost:5000".to_owned()), "{hosts:?}");
        std::fs::write(file.path(), r#"{"auths": {"h": {"auth": 7secret}}}"#).unwrap();
        assert!(!of("h").unwrap_err().to_string().contains("secret"));
    }

    #[test]
    fn what_is_left_to_a_helper_is_refused_with_the_mend_and_nothing_else_is() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let text = r#"{"auths": {"stored.example": {}, "own.example": {"auth": "dTpw"}},
            "credHelpers": {"ecr.example": "ecr-login", "own.example": "other"}, "credsStore": "pass"}"#;
        std::fs::write(file.path(), text).unwrap();
        let of = |registry| credentials(Some(file.path()), registry, "team/image");
        for (registry, helper) in
            [("ecr.example", "docker-credential-ecr-login"), ("stored.example", "docker-credential-pass")]
        {
            let said = of(registry).unwrap_err().to_string();
            let mend = format!("skopeo login --authfile {} {registry}", file.path().display());
            assert!(said.contains(helper) && said.contains(&mend), "{said}");
        }
        assert_eq!(of("own.example").unwrap(), Login::Password { user: "u".into(), password: "p".into() });
        assert_eq!(of("docker.io").unwrap(), Login::Anonymous, "the store may well have nothing for it");
    }
}
