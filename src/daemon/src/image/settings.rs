//! How images are had: what the operator decides.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use super::owner::Tenure;

/// Where the launcher puts the operator's certificates in every sandbox.
pub const CA_BUNDLE: &str = "/etc/sandboxd/ca-certificates.crt";

/// How images are had.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Names of the recipes that the launcher can run; what is no recipe's name is ignored.
    pub recipes: Vec<String>,
    /// Registry of names without one, `HOST[:PORT]`.
    pub registry: String,
    /// Tried before that registry, in order, `HOST[:PORT]`.
    pub mirrors: Vec<String>,
    /// Hosts beside registries and mirrors that pulls may be led to although they are not in the internet, and that may
    /// be given the password of a registry that says so, `HOST[:PORT]`.
    pub registry_hosts: Vec<String>,
    /// Registries and mirrors that are spoken to without TLS.
    pub insecure_registries: Vec<String>,
    /// Credentials for registries, a file in docker's format; it need not exist.
    pub auth_file: Option<PathBuf>,
    /// Certificates that registries are trusted by beside the system's, a PEM file; the launcher puts it at
    /// [`CA_BUNDLE`].
    pub extra_ca_certs: Option<PathBuf>,
    /// The user of built images.
    pub account: Account,
    /// Variables of build steps: an index of packages, a proxy.
    pub build_env: BTreeMap<String, String>,
    /// Bytes that package caches of builds may have together; absent: no ceiling.
    pub build_cache: Option<u64>,
    /// Deadline of a whole build.
    pub build_timeout: Duration,
    /// Deadline of a whole pull.
    pub pull_timeout: Duration,
    /// Bytes of the disk that pulls and imports leave free, at most a tenth of it.
    pub reserve: u64,
    /// How this process works with the store.
    pub tenure: Tenure,
    /// What the service is called where another is refused: its state directory.
    pub service: String,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            recipes: Vec::new(),
            registry: "docker.io".to_owned(),
            mirrors: Vec::new(),
            registry_hosts: Vec::new(),
            insecure_registries: Vec::new(),
            auth_file: None,
            extra_ca_certs: None,
            account: Account::default(),
            build_env: BTreeMap::new(),
            build_cache: None,
            build_timeout: Duration::from_secs(1800),
            pull_timeout: Duration::from_secs(1800),
            reserve: 0,
            tenure: Tenure::Guest,
            service: String::new(),
        }
    }
}

/// The user of built images.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Account {
    /// Its name.
    pub name: String,
    /// Its id, 1 to 65535.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
}

impl Account {
    /// Its home directory.
    pub(super) fn home(&self) -> String {
        format!("/home/{}", self.name)
    }
}

impl Default for Account {
    fn default() -> Self {
        Self { name: "agent".to_owned(), uid: 10_001, gid: 10_001 }
    }
}

/// Variables by which programs find [`CA_BUNDLE`]; for every sandbox that has it.
#[must_use]
pub fn ca_env() -> [(&'static str, &'static str); 6] {
    ["SSL_CERT_FILE", "PIP_CERT", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "NODE_EXTRA_CA_CERTS", "GIT_SSL_CAINFO"]
        .map(|name| (name, CA_BUNDLE))
}
