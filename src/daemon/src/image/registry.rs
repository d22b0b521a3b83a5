//! A registry over HTTP (OCI distribution spec, and the token authentication of docker's registry).
//!
//! Registries are strangers: of every body that is kept, the manifest, the token, the words of a refusal, so much is read
//! and no more. Blobs are handed on as they come; whoever reads them counts.

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use oci_spec::distribution::Reference;
use reqwest::header::{ACCEPT, AUTHORIZATION, HeaderValue, WWW_AUTHENTICATE};
use reqwest::{RequestBuilder, Response, StatusCode};
use serde::Deserialize;

use super::auth::Login;
use super::manifest::{ACCEPTED, MAX_DOCUMENT};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(15);
const READ_TIMEOUT: Duration = Duration::from_secs(60);
/// Longest answer of a token service, in bytes.
const MAX_TOKEN: usize = 64 * 1024;
/// What is read of a refusal, in bytes, and what is told of it, in characters.
const MAX_REFUSAL: usize = 4096;
const TOLD: usize = 300;

/// What a registry did not give.
#[derive(Debug, thiserror::Error)]
pub enum RegistryError {
    /// The way to it.
    #[error("ask the registry")]
    Http(#[from] reqwest::Error),
    /// It says no.
    #[error("the registry answered {status}: {said}")]
    Refused {
        /// HTTP status.
        status: StatusCode,
        /// The beginning of its words.
        said: String,
    },
    /// It wants to know who asks, in a way that is not understood, or says so unreasonably.
    #[error("authentication: {0}")]
    Login(String),
    /// It goes on and on.
    #[error("the {what} has more than {max} bytes")]
    TooLarge {
        /// Which body.
        what: &'static str,
        /// The bound.
        max: u64,
    },
}

/// One registry, for one image.
pub(super) struct Registry<'a> {
    http: reqwest::Client,
    reference: &'a Reference,
    scheme: &'static str,
    login: Login,
    authorization: Option<HeaderValue>,
}

#[derive(Deserialize)]
struct Token {
    token: Option<String>,
    access_token: Option<String>,
}

impl<'a> Registry<'a> {
    /// The registry of `reference`, spoken to without TLS if it is one of `insecure`. A client of its own for each pull,
    /// so that certificates are those of now.
    pub(super) fn new(reference: &'a Reference, insecure: &[String], login: Login) -> Result<Self, RegistryError> {
        // Fails when it is installed already, which is what is wanted.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let http = reqwest::Client::builder()
            .connect_timeout(CONNECT_TIMEOUT)
            .read_timeout(READ_TIMEOUT)
            .user_agent(concat!("sandboxd/", env!("CARGO_PKG_VERSION")))
            .build()?;
        let plain = insecure.iter().any(|host| host == reference.resolve_registry());
        let scheme = if plain { "http" } else { "https" };
        Ok(Self { http, reference, scheme, login, authorization: None })
    }

    /// The manifest, or index, of a tag or digest.
    pub(super) async fn manifest(&mut self, of: &str) -> Result<Vec<u8>, RegistryError> {
        let response = self.get(&format!("manifests/{of}")).await?;
        let bound = usize::try_from(MAX_DOCUMENT).unwrap_or(usize::MAX);
        read("manifest", response, bound).await
    }

    /// A blob, by its digest.
    pub(super) async fn blob(&mut self, digest: &str) -> Result<Response, RegistryError> {
        self.get(&format!("blobs/{digest}")).await
    }

    async fn get(&mut self, what: &str) -> Result<Response, RegistryError> {
        let response = self.request(what).send().await?;
        let response = if response.status() == StatusCode::UNAUTHORIZED {
            self.log_in(&response).await?;
            self.request(what).send().await?
        } else {
            response
        };
        if response.status() == StatusCode::OK { Ok(response) } else { Err(refusal(response).await) }
    }

    fn request(&self, what: &str) -> RequestBuilder {
        let (registry, repository) = (self.reference.resolve_registry(), self.reference.repository());
        // A mirror is told whose image it is.
        let whose = self.reference.namespace().map(|name| format!("?ns={name}")).unwrap_or_default();
        let url = format!("{}://{registry}/v2/{repository}/{what}{whose}", self.scheme);
        let mut request = self.http.get(url);
        if what.starts_with("manifests/") {
            request = request.header(ACCEPT, ACCEPTED.join(", "));
        }
        match &self.authorization {
            Some(value) => request.header(AUTHORIZATION, value.clone()),
            None => request,
        }
    }

    /// Do as a 401 says: name and password, or a token from the service that it names.
    async fn log_in(&mut self, response: &Response) -> Result<(), RegistryError> {
        let challenges = response.headers().get_all(WWW_AUTHENTICATE);
        let texts: Vec<&str> = challenges.iter().filter_map(|value| value.to_str().ok()).collect();
        let value = if let Some(challenge) = texts.iter().find_map(|text| Challenge::bearer(text)) {
            format!("Bearer {}", self.token(&challenge).await?)
        } else if texts.iter().any(|text| scheme_is(text, "basic")) {
            let Login::Password { user, password } = &self.login else {
                return Err(RegistryError::Login("the registry wants a name and a password".to_owned()));
            };
            format!("Basic {}", STANDARD.encode(format!("{user}:{password}")))
        } else {
            return Err(RegistryError::Login("the registry does not say how to".to_owned()));
        };
        let mut value = HeaderValue::from_str(&value)
            .map_err(|_| RegistryError::Login("the token is no text of a header".to_owned()))?;
        value.set_sensitive(true);
        self.authorization = Some(value);
        Ok(())
    }

    async fn token(&self, challenge: &Challenge) -> Result<String, RegistryError> {
        let scope = format!("repository:{}:pull", self.reference.repository());
        let mut request = self.http.get(&challenge.realm).query(&[("scope", scope.as_str())]);
        if let Some(service) = &challenge.service {
            request = request.query(&[("service", service)]);
        }
        if let Login::Password { user, password } = &self.login {
            request = request.basic_auth(user, Some(password));
        }
        let response = request.send().await?;
        if response.status() != StatusCode::OK {
            return Err(refusal(response).await);
        }
        let bytes = read("token", response, MAX_TOKEN).await?;
        // The parser's own words could quote the token.
        let parsed: Token = serde_json::from_slice(&bytes)
            .map_err(|_| RegistryError::Login("the token service's answer makes no sense".to_owned()))?;
        let token = parsed.token.or(parsed.access_token);
        token.ok_or_else(|| RegistryError::Login("the token service gave no token".to_owned()))
    }
}

/// All of a body, if it is at most `max` bytes.
async fn read(what: &'static str, mut response: Response, max: usize) -> Result<Vec<u8>, RegistryError> {
    let mut bytes = Vec::new();
    while let Some(piece) = response.chunk().await? {
        if bytes.len() + piece.len() > max {
            return Err(RegistryError::TooLarge { what, max: max as u64 });
        }
        bytes.extend_from_slice(&piece);
    }
    Ok(bytes)
}

/// An answer that is a no, with the beginning of its words on one line.
async fn refusal(mut response: Response) -> RegistryError {
    let status = response.status();
    let mut bytes = Vec::new();
    while bytes.len() < MAX_REFUSAL {
        match response.chunk().await {
            Ok(Some(piece)) => bytes.extend_from_slice(&piece[..piece.len().min(MAX_REFUSAL)]),
            Ok(None) | Err(_) => break,
        }
    }
    let text = String::from_utf8_lossy(&bytes);
    let said = text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(TOLD).collect();
    RegistryError::Refused { status, said }
}

/// Where a token is had.
#[derive(Debug, PartialEq, Eq)]
struct Challenge {
    realm: String,
    service: Option<String>,
}

impl Challenge {
    /// `Bearer realm="https://…",service="…"`, RFC 6750.
    fn bearer(text: &str) -> Option<Self> {
        if !scheme_is(text, "bearer") {
            return None;
        }
        let rest = text.split_once(' ')?.1;
        Some(Self { realm: parameter(rest, "realm")?, service: parameter(rest, "service") })
    }
}

fn scheme_is(challenge: &str, name: &str) -> bool {
    challenge.split(' ').next().is_some_and(|scheme| scheme.eq_ignore_ascii_case(name))
}

/// The value of a parameter; a comma within quotes separates nothing.
fn parameter(text: &str, name: &str) -> Option<String> {
    let mut quoted = false;
    let parts = text.split(|c: char| {
        quoted ^= c == '"';
        c == ',' && !quoted
    });
    let value = |part: &str| {
        let (key, value) = part.trim().split_once('=')?;
        key.trim().eq_ignore_ascii_case(name).then(|| value.trim().trim_matches('"').to_owned())
    };
    parts.filter_map(value).next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn challenges_as_registries_write_them() {
        let docker = r#"Bearer realm="https://auth.docker.io/token",service="registry.docker.io",scope="repository:a/b:pull,push""#;
        let challenge = Challenge::bearer(docker).unwrap();
        assert_eq!(challenge.realm, "https://auth.docker.io/token");
        assert_eq!(challenge.service.as_deref(), Some("registry.docker.io"));
        assert_eq!(Challenge::bearer("bearer realm=x").unwrap(), Challenge { realm: "x".into(), service: None });
        for no in [r#"Basic realm="x""#, "Bearer", r#"Bearer service="x""#, ""] {
            assert_eq!(Challenge::bearer(no), None, "{no}");
        }
        assert_eq!(parameter(r#"scope="a,realm=b", realm="c""#, "realm").as_deref(), Some("c"));
    }
}
