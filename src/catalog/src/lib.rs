//! The runtimes that a client may name, as the operator wrote them.
//!
//! Two sources, one result: the catalogue files ([`Catalogue`]), JSON lists of entries, and the
//! setting `runtimes` ([`parse_runtimes`]), which names images and entries of the catalogue. Everything is
//! validated when the service starts; an error is one line that says which file or setting, which
//! entry, which field, and what is allowed there. Order is kept: the first runtime is the default.
//!
//! Nothing here touches an image: what a runtime *names* is data, what it *is* the image room finds out.

mod briefing;
mod check;
mod egress;
mod entry;
mod export;
mod runtimes;
mod size;

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};
use wire::launch::OciRuntime;

pub use briefing::{InForce, briefing, reads_documents};
pub use check::env_vars as variables;
pub use egress::{Egress, NameRule};
pub use entry::{Catalogue, files};
pub use export::{Form, NoPlace, differs, export, renew};
pub use runtimes::parse_runtimes;
pub use size::Size;

/// Most runtimes that one service offers.
pub const MAX_RUNTIMES: usize = 256;

/// One runtime of the allowlist.
#[derive(Debug, Clone, PartialEq)]
pub struct Runtime {
    /// What a client names.
    pub alias: String,
    /// What it is for; may be empty.
    pub description: String,
    /// Where its root file system comes from.
    pub source: Source,
    /// Its own ceilings; absent ones are the service's.
    pub limits: RuntimeLimits,
    /// Its own network; absent: the service's `network_mode`.
    pub network: Option<NetworkMode>,
    /// Where it may connect to, beside what the service says.
    pub egress: Egress,
    /// The OCI runtime that starts it; absent: the service's.
    pub oci_runtime: Option<OciRuntime>,
    /// Sentences about it for a model, beside those that follow from the fields.
    pub briefing: Vec<String>,
    /// Whether it is, or is made from, an entry of the catalogue: only then is anything known of what is in it.
    pub shipped: bool,
}

impl Runtime {
    /// The image, or what it is built from: `BASE + N package(s)`.
    #[must_use]
    pub fn policy_image(&self) -> String {
        match &self.source {
            Source::Image { reference, .. } => reference.clone(),
            Source::Build(definition) => format!("{} + {} package(s)", definition.base, definition.packages.len()),
        }
    }

    /// Whether it is built here.
    #[must_use]
    pub fn builds(&self) -> bool {
        matches!(self.source, Source::Build(_))
    }
}

/// Where a runtime's root file system comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// A ready-made image, as it is.
    Image {
        /// Its name.
        reference: String,
        /// Variables over the image's own.
        env_vars: BTreeMap<String, String>,
    },
    /// A base and what is done to it.
    Build(Definition),
}

/// What an image is built from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Definition {
    /// Name of the base image.
    pub base: String,
    /// Shell commands run as root at build time, in order.
    pub setup_commands: Vec<String>,
    /// Packages installed after them.
    pub packages: Vec<String>,
    /// What installs them.
    pub package_manager: PackageManager,
    /// Variables over the base's own.
    pub env_vars: BTreeMap<String, String>,
}

/// What installs `packages`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PackageManager {
    /// Into the virtualenv of the sandbox user.
    #[default]
    Pip,
    /// Globally.
    Npm,
    /// As root.
    Apt,
    /// Into `/usr/local`.
    Cargo,
}

impl fmt::Display for PackageManager {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Pip => "pip",
            Self::Npm => "npm",
            Self::Apt => "apt",
            Self::Cargo => "cargo",
        })
    }
}

/// Ceilings of one runtime. Absent: the service's default.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RuntimeLimits {
    /// Memory.
    pub mem_limit: Option<Size>,
    /// Memory and swap together.
    pub memswap_limit: Option<Size>,
    /// CPUs, more than 0.
    pub cpus: Option<f64>,
    /// CPU weight in the syntax of `docker run --cpu-shares`, 2 to 262144.
    pub cpu_shares: Option<u64>,
    /// Processes, 1 or more.
    pub pids_limit: Option<u64>,
    /// I/O weight, 1 to 10000.
    pub io_weight: Option<u64>,
    /// Open files of one process, 64 to 1048576.
    pub open_files: Option<u64>,
    /// Size of `/tmp`.
    pub tmpfs_size: Option<Size>,
}

/// Network of a runtime.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NetworkMode {
    /// Loopback only.
    None,
    /// Out to the internet.
    Bridge,
}

impl NetworkMode {
    /// The mode of this name.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        match text {
            "none" => Some(Self::None),
            "bridge" => Some(Self::Bridge),
            _ => None,
        }
    }

    /// Its name.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Bridge => "bridge",
        }
    }
}

/// One field holds something that it may not hold.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("field {field}: {problem}; allowed: {allowed}")]
pub struct FieldError {
    field: &'static str,
    problem: String,
    allowed: &'static str,
}

impl FieldError {
    /// Its name, and the rest of the message.
    #[must_use]
    pub fn parts(&self) -> (&'static str, String) {
        (self.field, format!("{}; allowed: {}", self.problem, self.allowed))
    }

    fn new(field: &'static str, problem: String, allowed: &'static str) -> Self {
        Self { field, problem, allowed }
    }
}

/// A text whose control characters are escaped: what somebody wrote as a name must not begin a line of a log.
fn line(text: &str) -> std::borrow::Cow<'_, str> {
    if !text.contains(char::is_control) {
        return text.into();
    }
    text.chars().map(|c| if c.is_control() { c.escape_default().to_string() } else { c.to_string() }).collect()
}

/// The catalogue or the setting `runtimes` cannot be used. Every message is one line.
#[derive(Debug, thiserror::Error)]
pub enum CatalogError {
    /// A catalogue file cannot be read.
    #[error("read catalogue {file}")]
    Read {
        /// Its path.
        file: String,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// Not JSON, or not of the form at all.
    #[error("{origin}: {}", line(problem))]
    Form {
        /// The file or setting.
        origin: String,
        /// What is wrong and what is allowed.
        problem: String,
    },
    /// One entry is wrong as a whole.
    #[error("{origin}: entry {}: {}", line(entry), line(problem))]
    Entry {
        /// The file or setting.
        origin: String,
        /// Its alias, or its number where it has none.
        entry: String,
        /// What is wrong and what is allowed.
        problem: String,
    },
    /// One field of one entry is wrong.
    #[error("{origin}: entry {}: {}", line(entry), line(&field.to_string()))]
    Field {
        /// The file or setting.
        origin: String,
        /// Its alias.
        entry: String,
        /// Which and why.
        field: FieldError,
    },
}
