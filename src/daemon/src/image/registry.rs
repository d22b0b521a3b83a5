//! A registry over HTTP (OCI distribution spec, and the token authentication of docker's registry).
//!
//! Registries are strangers: of every body that is kept, the manifest, the token, the words of a refusal, so much is read
//! and no more. Blobs are handed on as they come; whoever reads them counts. Redirects are followed one by
//! one, each looked at first ([`Hosts`]); what logs in at the registry is sent to the registry alone.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use oci_spec::distribution::Reference;
use reqwest::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderValue, LOCATION, RANGE, WWW_AUTHENTICATE};
use reqwest::{Certificate, Response, StatusCode, Url};
use serde::Deserialize;

use super::auth::Login;
use super::challenge::{Challenge, scheme_is};
use super::hosts::{Hosts, LedAway, authority};
use super::manifest::{ACCEPTED, MAX_DOCUMENT};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(15);
const READ_TIMEOUT: Duration = Duration::from_secs(60);
/// Longest answer of a token service, in bytes.
const MAX_TOKEN: usize = 64 * 1024;
/// What is read of a refusal, in bytes, and what is told of it, in characters.
const MAX_REFUSAL: usize = 4096;
const TOLD: usize = 300;
/// Most redirects of one request.
const MAX_REDIRECTS: usize = 5;

/// What a registry did not give.
#[derive(Debug, thiserror::Error)]
pub enum RegistryError {
    /// The way to it. Without the address: it may hold a signature.
    #[error("ask {host}")]
    Http {
        /// Whom.
        host: String,
        /// Why.
        #[source]
        source: reqwest::Error,
    },
    /// The client cannot be made.
    #[error("make the client")]
    Client(#[source] reqwest::Error),
    /// It says no.
    #[error("{host} answered {status}: {said}")]
    Refused {
        /// Who.
        host: String,
        /// HTTP status.
        status: StatusCode,
        /// The beginning of its words.
        said: String,
    },
    /// It points where nobody may be led.
    #[error("{from} leads away")]
    Led {
        /// Who.
        from: String,
        /// Where to, and what is wrong with it.
        #[source]
        source: LedAway,
    },
    /// It points on and on.
    #[error("{0} redirects more than {MAX_REDIRECTS} times, or to no address")]
    Redirects(String),
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

impl RegistryError {
    /// Whether the same may succeed in a moment.
    pub(super) fn is_passing(&self) -> bool {
        match self {
            Self::Http { source, .. } => !is_led_away(source),
            Self::Refused { status, .. } => {
                status.is_server_error()
                    || matches!(*status, StatusCode::TOO_MANY_REQUESTS | StatusCode::RANGE_NOT_SATISFIABLE)
            }
            Self::Client(_) | Self::Led { .. } | Self::Redirects(_) | Self::Login(_) | Self::TooLarge { .. } => false,
        }
    }

    /// Whether it says that what was asked for begins behind the end.
    pub(super) fn is_beyond(&self) -> bool {
        match self {
            Self::Refused { status, .. } => *status == StatusCode::RANGE_NOT_SATISFIABLE,
            Self::Http { .. }
            | Self::Client(_)
            | Self::Led { .. }
            | Self::Redirects(_)
            | Self::Login(_)
            | Self::TooLarge { .. } => false,
        }
    }
}

/// What a connection fails with because of [`Hosts`].
fn is_led_away(error: &reqwest::Error) -> bool {
    let mut next: Option<&dyn std::error::Error> = Some(error);
    while let Some(error) = next {
        if error.is::<LedAway>() {
            return true;
        }
        next = error.source();
    }
    false
}

/// One registry, for one image.
pub(super) struct Registry<'a> {
    http: reqwest::Client,
    reference: &'a Reference,
    hosts: Hosts,
    base: Url,
    login: Login,
    authorization: Mutex<Option<HeaderValue>>,
}

#[derive(Deserialize)]
struct Token {
    token: Option<String>,
    access_token: Option<String>,
}

impl<'a> Registry<'a> {
    /// The registry of `reference`, spoken to without TLS if `plain`; `authorities` are trusted beside the system's. A
    /// client of its own for each pull, so that certificates are those of now.
    pub(super) fn new(
        reference: &'a Reference,
        plain: bool,
        hosts: Hosts,
        login: Login,
        authorities: Vec<Certificate>,
    ) -> Result<Self, RegistryError> {
        // Fails when it is installed already, which is what is wanted.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let http = reqwest::Client::builder()
            .connect_timeout(CONNECT_TIMEOUT)
            .read_timeout(READ_TIMEOUT)
            .redirect(reqwest::redirect::Policy::none())
            .dns_resolver(Arc::new(hosts.clone()))
            .tls_certs_merge(authorities)
            .user_agent(concat!("sandboxd/", env!("CARGO_PKG_VERSION")))
            .build()
            .map_err(RegistryError::Client)?;
        let (scheme, registry) = (if plain { "http" } else { "https" }, reference.resolve_registry());
        let base = format!("{scheme}://{registry}/v2/{}/", reference.repository());
        let base = Url::parse(&base).map_err(|_| RegistryError::Redirects(registry.to_owned()))?;
        hosts.check(&base).map_err(|source| RegistryError::Led { from: reference.whole(), source })?;
        Ok(Self { http, reference, hosts, base, login, authorization: Mutex::new(None) })
    }

    /// The manifest, or index, of a tag or digest.
    pub(super) async fn manifest(&self, of: &str) -> Result<Vec<u8>, RegistryError> {
        let response = self.get(&format!("manifests/{of}"), 0).await?;
        let bound = usize::try_from(MAX_DOCUMENT).unwrap_or(usize::MAX);
        self.read("manifest", response, bound).await
    }

    /// A blob, by its digest, from its byte `from` on. The answer's status is 206 if that is what it holds, and 200 if it
    /// begins at the beginning.
    pub(super) async fn blob(&self, digest: &str, from: u64) -> Result<Response, RegistryError> {
        self.get(&format!("blobs/{digest}"), from).await
    }

    async fn get(&self, what: &str, from: u64) -> Result<Response, RegistryError> {
        let mut response = self.follow(what, from).await?;
        if response.status() == StatusCode::UNAUTHORIZED && self.is_own(response.url()) {
            self.log_in(&response).await?;
            response = self.follow(what, from).await?;
        }
        match response.status() {
            StatusCode::OK => Ok(response),
            StatusCode::PARTIAL_CONTENT if from > 0 => Ok(response),
            _ => Err(refusal(response).await),
        }
    }

    /// What is at the end of the redirects.
    async fn follow(&self, what: &str, from: u64) -> Result<Response, RegistryError> {
        let mut url = self.base.join(what).map_err(|_| RegistryError::Redirects(authority(&self.base)))?;
        // A mirror is told whose image it is.
        if let Some(name) = self.reference.namespace() {
            url.query_pairs_mut().append_pair("ns", name);
        }
        for _ in 0..=MAX_REDIRECTS {
            let response = self.send(&url, what, from).await?;
            if !is_redirect(response.status()) {
                return Ok(response);
            }
            let location = response.headers().get(LOCATION).and_then(|value| value.to_str().ok());
            let next = location.and_then(|text| url.join(text).ok());
            let next = next.ok_or_else(|| RegistryError::Redirects(authority(&url)))?;
            self.hosts.check(&next).map_err(|source| RegistryError::Led { from: authority(&url), source })?;
            url = next;
        }
        Err(RegistryError::Redirects(authority(&self.base)))
    }

    async fn send(&self, url: &Url, what: &str, from: u64) -> Result<Response, RegistryError> {
        let mut request = self.http.get(url.clone());
        if what.starts_with("manifests/") {
            request = request.header(ACCEPT, ACCEPTED.join(", "));
        }
        if from > 0 {
            request = request.header(RANGE, format!("bytes={from}-"));
        }
        let known = self.authorization.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(value) = known.filter(|_| self.is_own(url)) {
            request = request.header(AUTHORIZATION, value);
        }
        request.send().await.map_err(|source| http(url, source))
    }

    /// Whether an address is of the registry itself, and may have what logs in there.
    fn is_own(&self, url: &Url) -> bool {
        url.scheme() == self.base.scheme() && authority(url) == authority(&self.base)
    }

    /// Do as a 401 says: name and password, or a token from the service that it names.
    async fn log_in(&self, response: &Response) -> Result<(), RegistryError> {
        let challenges = response.headers().get_all(WWW_AUTHENTICATE);
        let texts: Vec<&str> = challenges.iter().filter_map(|value| value.to_str().ok()).collect();
        let value = if let Some(challenge) = texts.iter().find_map(|text| Challenge::bearer(text)) {
            format!("Bearer {}", self.token(&challenge).await?)
        } else if texts.iter().any(|text| scheme_is(text, "basic")) {
            let (user, password) = match &self.login {
                Login::Password { user, password } => (user, password),
                Login::Anonymous => {
                    return Err(RegistryError::Login("the registry wants a name and a password".to_owned()));
                }
                Login::Identity(_) => {
                    let reason = "the registry wants a name and a password, and there is an identity token for it";
                    return Err(RegistryError::Login(reason.to_owned()));
                }
            };
            format!("Basic {}", STANDARD.encode(format!("{user}:{password}")))
        } else {
            return Err(RegistryError::Login("the registry does not say how to".to_owned()));
        };
        let mut value = HeaderValue::from_str(&value)
            .map_err(|_| RegistryError::Login("the token is no text of a header".to_owned()))?;
        value.set_sensitive(true);
        *self.authorization.lock().unwrap_or_else(PoisonError::into_inner) = Some(value);
        Ok(())
    }

    async fn token(&self, challenge: &Challenge) -> Result<String, RegistryError> {
        let nonsense = || RegistryError::Login("the registry names no address for tokens".to_owned());
        let mut url = Url::parse(&challenge.realm).map_err(|_| nonsense())?;
        self.hosts.check(&url).map_err(|source| RegistryError::Led { from: authority(&self.base), source })?;
        let scope = format!("repository:{}:pull", self.reference.repository());
        url.query_pairs_mut().append_pair("scope", &scope);
        if let Some(service) = &challenge.service {
            url.query_pairs_mut().append_pair("service", service);
        }
        let request = match &self.login {
            Login::Anonymous => self.http.get(url.clone()),
            Login::Password { user, password } => {
                self.trusts(&url)?;
                self.http.get(url.clone()).basic_auth(user, Some(password))
            }
            Login::Identity(token) => {
                self.trusts(&url)?;
                self.exchange(&url, token)
            }
        };
        let response = request.send().await.map_err(|source| http(&url, source))?;
        if response.status() != StatusCode::OK {
            return Err(refusal(response).await);
        }
        let bytes = self.read("token", response, MAX_TOKEN).await?;
        // The parser's own words could quote the token.
        let parsed: Token = serde_json::from_slice(&bytes)
            .map_err(|_| RegistryError::Login("the token service's answer makes no sense".to_owned()))?;
        let token = parsed.token.or(parsed.access_token);
        token.ok_or_else(|| RegistryError::Login("the token service gave no token".to_owned()))
    }

    /// Ask for a token in exchange for the one that gives others: a form with the questions of `url` (RFC 6749, 6).
    fn exchange(&self, url: &Url, token: &str) -> reqwest::RequestBuilder {
        let (mut form, mut bare) = (url.clone(), url.clone());
        bare.set_query(None);
        form.query_pairs_mut()
            .append_pair("grant_type", "refresh_token")
            .append_pair("client_id", "sandboxd")
            .append_pair("refresh_token", token);
        let body = form.query().unwrap_or_default().to_owned();
        self.http.post(bare).header(CONTENT_TYPE, "application/x-www-form-urlencoded").body(body)
    }

    /// Whether the registry's password may be given to the service of tokens that it names: to itself, to its
    /// siblings (`registry.example.org` → `auth.example.org`), and to whom the operator has named.
    fn trusts(&self, url: &Url) -> Result<(), RegistryError> {
        let (own, other) = (self.base.host_str().unwrap_or_default(), url.host_str().unwrap_or_default());
        if own == other || is_sibling(own, other) || self.hosts.is_named(url) {
            return Ok(());
        }
        Err(RegistryError::Login(format!(
            "the registry wants its password sent to {other}; if that is right, add {other} to registry_hosts"
        )))
    }

    /// All of a body, if it is at most `max` bytes.
    async fn read(&self, what: &'static str, mut response: Response, max: usize) -> Result<Vec<u8>, RegistryError> {
        let url = response.url().clone();
        let mut bytes = Vec::new();
        while let Some(piece) = response.chunk().await.map_err(|source| http(&url, source))? {
            if bytes.len() + piece.len() > max {
                return Err(RegistryError::TooLarge { what, max: max as u64 });
            }
            bytes.extend_from_slice(&piece);
        }
        Ok(bytes)
    }
}

/// A failure on the way to whoever `url` is of.
pub(super) fn http(url: &Url, source: reqwest::Error) -> RegistryError {
    RegistryError::Http { host: authority(url), source: source.without_url() }
}

fn is_redirect(status: StatusCode) -> bool {
    matches!(status.as_u16(), 301 | 302 | 303 | 307 | 308)
}

/// Whether two hosts are of one domain: below the registry, or below what the registry is below. A domain of one label,
/// or the registry's own if that has two, has strangers in it.
fn is_sibling(own: &str, other: &str) -> bool {
    let below = |domain: &str| other == domain || other.ends_with(&format!(".{domain}"));
    if own.parse::<std::net::IpAddr>().is_ok() || !own.contains('.') {
        return false;
    }
    let parent = own.split_once('.').map_or("", |(_, parent)| parent);
    below(own) || (parent.contains('.') && below(parent))
}

/// An answer that is a no, with the beginning of its words on one line.
async fn refusal(mut response: Response) -> RegistryError {
    let (status, host) = (response.status(), authority(response.url()));
    let mut bytes = Vec::new();
    while bytes.len() < MAX_REFUSAL {
        match response.chunk().await {
            Ok(Some(piece)) => bytes.extend_from_slice(&piece[..piece.len().min(MAX_REFUSAL)]),
            Ok(None) | Err(_) => break,
        }
    }
    let text = String::from_utf8_lossy(&bytes);
    let said = text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(TOLD).collect();
    RegistryError::Refused { host, status, said }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_may_have_the_password() {
        for (own, other, may) in [
            ("registry-1.docker.io", "auth.docker.io", true),
            ("registry.gitlab.com", "gitlab.com", true),
            ("ghcr.io", "auth.ghcr.io", true),
            ("ghcr.io", "evil.io", false),
            ("registry.example.org", "auth.example.org.evil.net", false),
            ("registry.example.org", "notexample.org", false),
            ("localhost", "evil.localhost", false),
            ("10.0.0.1", "10.0.0.2", false),
        ] {
            assert_eq!(is_sibling(own, other), may, "{own} → {other}");
        }
    }
}
