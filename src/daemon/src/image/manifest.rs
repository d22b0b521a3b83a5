//! What a registry says about an image: manifests, indexes and configurations, held to what is
//! supported and bounded before anything is fetched on their word.
//!
//! OCI image spec 1.1 and Docker's schema 2. Of a configuration only `Env`, `User`, the platform and
//! the layers' digests are read: an image decides nothing else about its sandbox.

use serde::Deserialize;
use wire::id::LayerId;
use wire::launch::{Compression, MAX_LAYERS};

use super::platform::Platform;

/// Largest manifest, index or configuration, in bytes (registries refuse manifests over 4 MiB).
pub(super) const MAX_DOCUMENT: u64 = 4 * 1024 * 1024;
/// Largest compressed layer, in bytes.
pub(super) const MAX_BLOB: u64 = 16 << 30;
/// Largest image, all layers compressed, in bytes.
const MAX_IMAGE: u64 = 32 << 30;
const MAX_INDEX: usize = 1000;
const MAX_VARIABLES: usize = 256;
const MAX_VARIABLE: usize = 32 * 1024;
/// All variables together, in bytes: the kernel starts no program with much more (execve(2)), and a record has them.
const MAX_ENVIRONMENT: u64 = 256 * 1024;

const INDEXES: [&str; 2] =
    ["application/vnd.oci.image.index.v1+json", "application/vnd.docker.distribution.manifest.list.v2+json"];
const MANIFESTS: [&str; 2] =
    ["application/vnd.oci.image.manifest.v1+json", "application/vnd.docker.distribution.manifest.v2+json"];
/// Every media type that is asked for.
pub(super) const ACCEPTED: [&str; 4] = [MANIFESTS[0], MANIFESTS[1], INDEXES[0], INDEXES[1]];
const CONFIGS: [&str; 2] =
    ["application/vnd.oci.image.config.v1+json", "application/vnd.docker.container.image.v1+json"];
const LAYERS: [(&str, Compression); 6] = [
    ("application/vnd.oci.image.layer.v1.tar", Compression::None),
    ("application/vnd.oci.image.layer.v1.tar+gzip", Compression::Gzip),
    ("application/vnd.oci.image.layer.v1.tar+zstd", Compression::Zstd),
    ("application/vnd.docker.image.rootfs.diff.tar", Compression::None),
    ("application/vnd.docker.image.rootfs.diff.tar.gzip", Compression::Gzip),
    ("application/vnd.docker.image.rootfs.diff.tar.zstd", Compression::Zstd),
];

/// A document of a registry is not acceptable.
#[derive(Debug, thiserror::Error)]
pub enum ManifestError {
    /// Not JSON of the form.
    #[error("the {what} is not valid: {reason}")]
    Form {
        /// Which document.
        what: &'static str,
        /// Why.
        reason: String,
    },
    /// A kind of content that is not supported.
    #[error("{what} has the media type {media_type:?}, which is not supported")]
    MediaType {
        /// Which part.
        what: &'static str,
        /// As it says.
        media_type: String,
    },
    /// Something is too large or too many.
    #[error("{what} is {value}; allowed: at most {max}")]
    Limit {
        /// What.
        what: &'static str,
        /// As it says.
        value: u64,
        /// The bound.
        max: u64,
    },
    /// Not for this machine.
    #[error("there is no image for {wanted}, only for {offered}")]
    Platform {
        /// `linux/amd64`…
        wanted: String,
        /// What there is.
        offered: String,
    },
}

/// A manifest or an index.
#[derive(Debug)]
pub(super) enum Document {
    /// The digest of this platform's manifest.
    Index(String),
    /// The image itself.
    Image(Manifest),
}

/// What an image consists of. Digests are SHA-256, as hex.
#[derive(Debug)]
pub(super) struct Manifest {
    pub(super) config: Blob,
    /// Bottom first.
    pub(super) layers: Vec<(Blob, Compression)>,
}

/// One blob of a registry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Blob {
    pub(super) hex: String,
    pub(super) size: u64,
}

/// What a configuration decides.
#[derive(Debug)]
pub(super) struct Config {
    pub(super) env: Vec<(String, String)>,
    pub(super) user: String,
    /// Bottom first.
    pub(super) diff_ids: Vec<LayerId>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawDocument {
    schema_version: u32,
    #[serde(default)]
    media_type: Option<String>,
    #[serde(default)]
    config: Option<RawDescriptor>,
    #[serde(default)]
    layers: Option<Vec<RawDescriptor>>,
    #[serde(default)]
    manifests: Option<Vec<RawDescriptor>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawDescriptor {
    media_type: String,
    digest: String,
    size: u64,
    #[serde(default)]
    platform: Option<RawPlatform>,
}

#[derive(Deserialize)]
struct RawPlatform {
    os: String,
    architecture: String,
    #[serde(default)]
    variant: Option<String>,
}

impl RawPlatform {
    fn read(&self) -> Platform {
        Platform {
            os: cut(&self.os),
            architecture: cut(&self.architecture),
            variant: self.variant.as_deref().filter(|variant| !variant.is_empty()).map(cut),
        }
    }
}

#[derive(Deserialize)]
struct RawConfig {
    os: String,
    architecture: String,
    #[serde(default)]
    config: Option<RawRun>,
    rootfs: RawRootfs,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct RawRun {
    #[serde(default)]
    env: Option<Vec<String>>,
    #[serde(default)]
    user: Option<String>,
}

#[derive(Deserialize)]
struct RawRootfs {
    diff_ids: Vec<String>,
}

/// Read a manifest or an index.
pub(super) fn parse(bytes: &[u8]) -> Result<Document, ManifestError> {
    limit("the manifest in bytes", bytes.len() as u64, MAX_DOCUMENT)?;
    let raw: RawDocument = serde_json::from_slice(bytes).map_err(|e| form("manifest", &e.to_string()))?;
    if raw.schema_version != 2 {
        return Err(form("manifest", &format!("schema version {}, only 2 is supported", raw.schema_version)));
    }
    match (raw.manifests, raw.config, raw.layers) {
        (Some(manifests), None, None) => {
            media_type("the index", raw.media_type, &INDEXES)?;
            choose(manifests).map(Document::Index)
        }
        (None, Some(config), Some(layers)) => {
            media_type("the manifest", raw.media_type, &MANIFESTS)?;
            image(config, layers).map(Document::Image)
        }
        (_, _, _) => Err(form("manifest", "has neither manifests alone nor config and layers")),
    }
}

/// Read a configuration that has to describe `layers` layers.
pub(super) fn parse_config(bytes: &[u8], layers: usize) -> Result<Config, ManifestError> {
    limit("the configuration in bytes", bytes.len() as u64, MAX_DOCUMENT)?;
    let raw: RawConfig = serde_json::from_slice(bytes).map_err(|e| form("configuration", &e.to_string()))?;
    let offered = Platform { os: cut(&raw.os), architecture: cut(&raw.architecture), variant: None };
    let host = Platform::host();
    if host.fit(&offered).is_none() {
        return Err(ManifestError::Platform { wanted: host.to_string(), offered: offered.to_string() });
    }
    if raw.rootfs.diff_ids.len() != layers {
        return Err(form(
            "configuration",
            &format!("names {} layers, the manifest {layers}", raw.rootfs.diff_ids.len()),
        ));
    }
    let diff_ids =
        raw.rootfs.diff_ids.iter().map(|id| hex_of(id).and_then(|hex| layer_id(&hex))).collect::<Result<_, _>>()?;
    let run = raw.config.unwrap_or_default();
    let user = run.user.unwrap_or_default();
    limit("the name of the user in bytes", user.len() as u64, 256)?;
    Ok(Config { env: variables(run.env.unwrap_or_default())?, user, diff_ids })
}

/// Whether an image may have so many layers.
pub(super) fn some_layers(count: usize) -> Result<(), ManifestError> {
    limit("the number of layers", count as u64, MAX_LAYERS as u64)?;
    if count == 0 { Err(form("manifest", "has no layer")) } else { Ok(()) }
}

/// The layers of a stack without repetitions, topmost first. A layer that occurs twice is
/// kept where it is topmost: the lower one adds nothing that the upper one does not, and overlayfs takes each once.
pub(super) fn stack(bottom_first: &[LayerId]) -> Vec<LayerId> {
    let mut stack: Vec<LayerId> = Vec::with_capacity(bottom_first.len());
    for layer in bottom_first.iter().rev() {
        if !stack.contains(layer) {
            stack.push(layer.clone());
        }
    }
    stack
}

/// The manifest that fits this machine best. An entry that says nothing of a platform is taken where it is the only
/// one: its configuration says it.
fn choose(manifests: Vec<RawDescriptor>) -> Result<String, ManifestError> {
    limit("the index in entries", manifests.len() as u64, MAX_INDEX as u64)?;
    let host = Platform::host();
    let fits = manifests.iter().filter_map(|entry| Some((host.fit(&entry.platform.as_ref()?.read())?, entry)));
    // Of equals the first, as others choose.
    let best = fits.rev().max_by_key(|(fit, _)| *fit).map(|(_, entry)| entry);
    let only = manifests.first().filter(|entry| manifests.len() == 1 && entry.platform.is_none());
    match best.or(only) {
        Some(entry) => hex_of(&entry.digest).map(|hex| format!("sha256:{hex}")),
        None => {
            let offered = manifests.iter().filter_map(|entry| Some(entry.platform.as_ref()?.read().to_string()));
            let mut offered: Vec<_> = offered.take(20).collect();
            offered.dedup();
            Err(ManifestError::Platform { wanted: host.to_string(), offered: offered.join(", ") })
        }
    }
}

fn image(config: RawDescriptor, layers: Vec<RawDescriptor>) -> Result<Manifest, ManifestError> {
    some_layers(layers.len())?;
    media_type("the configuration", Some(config.media_type), &CONFIGS)?;
    limit("the configuration in bytes", config.size, MAX_DOCUMENT)?;
    let total = layers.iter().fold(0_u64, |sum, layer| sum.saturating_add(layer.size));
    limit("the image in bytes", total, MAX_IMAGE)?;
    let config = Blob { hex: hex_of(&config.digest)?, size: config.size };
    let layers = layers.into_iter().map(layer).collect::<Result<_, _>>()?;
    Ok(Manifest { config, layers })
}

fn layer(raw: RawDescriptor) -> Result<(Blob, Compression), ManifestError> {
    limit("a layer in bytes", raw.size, MAX_BLOB)?;
    let known = LAYERS.iter().find(|(name, _)| *name == raw.media_type);
    let Some((_, compression)) = known else {
        return Err(ManifestError::MediaType { what: "a layer", media_type: cut(&raw.media_type) });
    };
    Ok((Blob { hex: hex_of(&raw.digest)?, size: raw.size }, *compression))
}

/// An absent media type is fine: OCI leaves it optional.
fn media_type(what: &'static str, given: Option<String>, known: &[&str]) -> Result<(), ManifestError> {
    match given {
        Some(text) if !known.contains(&text.as_str()) => Err(ManifestError::MediaType { what, media_type: cut(&text) }),
        Some(_) | None => Ok(()),
    }
}

fn variables(env: Vec<String>) -> Result<Vec<(String, String)>, ManifestError> {
    limit("the number of variables", env.len() as u64, MAX_VARIABLES as u64)?;
    let all = env.iter().map(|text| text.len() as u64 + 1).sum();
    limit("the environment in bytes", all, MAX_ENVIRONMENT)?;
    let mut variables: Vec<(String, String)> = Vec::new();
    for text in env {
        limit("a variable in bytes", text.len() as u64, MAX_VARIABLE as u64)?;
        match text.split_once('=') {
            Some((name, value)) if !name.is_empty() && !text.contains('\0') => super::set(&mut variables, name, value),
            Some(_) | None => return Err(form("configuration", "has a variable that is not NAME=VALUE")),
        }
    }
    Ok(variables)
}

fn hex_of(digest: &str) -> Result<String, ManifestError> {
    let hex = digest.strip_prefix("sha256:").unwrap_or_default();
    layer_id(hex)
        .map(|id| id.as_str().to_owned())
        .map_err(|_| form("manifest", &format!("{:?} is not a SHA-256 digest", cut(digest))))
}

fn layer_id(hex: &str) -> Result<LayerId, ManifestError> {
    LayerId::parse(hex).map_err(|e| form("configuration", &e.to_string()))
}

fn limit(what: &'static str, value: u64, max: u64) -> Result<(), ManifestError> {
    if value <= max { Ok(()) } else { Err(ManifestError::Limit { what, value, max }) }
}

fn form(what: &'static str, reason: &str) -> ManifestError {
    ManifestError::Form { what, reason: reason.to_owned() }
}

fn cut(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(100).collect()
}

#[cfg(test)]
#[path = "manifest_tests.rs"]
mod tests;
