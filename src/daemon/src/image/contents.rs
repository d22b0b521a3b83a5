//! What an archive says of the images in it, in either form: an OCI layout, or what `docker save` and `podman save` write.
//!
//! Nothing is fetched or unpacked here, and nothing believed: a document has the digest that its name says, a layer will have
//! the one that the configuration says.

use std::sync::Arc;

use serde::Deserialize;
use serde_json::Value;
use sha2::{Digest, Sha256};
use wire::id::LayerId;
use wire::launch::Compression;

use super::archive::{Archive, ArchiveError};
use super::error::PullError;
use super::import::{ImportError, blob_error};
use super::manifest::{self, Config, Document, Manifest, ManifestError};
use super::record::hex;

/// Indexes of indexes, at most so many deep.
const MAX_NESTING: usize = 3;
/// Tags that are told, and characters of each.
const TOLD: usize = 20;
const TOLD_CHARACTERS: usize = 80;
/// What a layout calls an image: often no more than a tag.
const SHORT: &str = "org.opencontainers.image.ref.name";
const WHOLE: &str = "io.containerd.image.name";

/// An archive, and which image of it is meant.
pub(super) struct Contents {
    pub(super) archive: Arc<Archive>,
    form: Form,
}

enum Form {
    /// The index, with the entries that are meant.
    Layout(Vec<u8>, Option<String>),
    Docker(DockerImage),
}

/// The image.
pub(super) struct Found {
    /// What identifies it: the digest of its manifest, or of its configuration where it has none.
    pub(super) digest: String,
    pub(super) config: Config,
    pub(super) layers: Vec<Layer>,
    pub(super) documents: Vec<(String, Vec<u8>)>,
}

/// A layer of it.
pub(super) struct Layer {
    pub(super) id: LayerId,
    /// Its name in the archive.
    pub(super) name: String,
    /// What its digest has to be; absent: only that of its content is known.
    pub(super) hex: Option<String>,
    /// Absent: as its first bytes say.
    pub(super) compression: Option<Compression>,
}

#[derive(Deserialize)]
struct DockerImage {
    #[serde(rename = "Config")]
    config: String,
    #[serde(rename = "RepoTags", default)]
    tags: Option<Vec<String>>,
    #[serde(rename = "Layers")]
    layers: Vec<String>,
}

impl Contents {
    /// The image of `archive` that is called `tag`, or the only one.
    pub(super) fn of(archive: Archive, tag: Option<&str>) -> Result<Self, ImportError> {
        let is_layout = archive.has("index.json") && archive.has("oci-layout");
        let form = if is_layout { layout(&archive, tag)? } else { Form::Docker(docker(&archive, tag)?) };
        Ok(Self { archive: Arc::new(archive), form })
    }

    /// What the archive calls it, if that is a whole name.
    pub(super) fn name(&self) -> Option<String> {
        match &self.form {
            Form::Layout(_, name) => name.clone(),
            Form::Docker(image) => image.tags.iter().flatten().next().cloned(),
        }
    }

    /// What is said of it. Blocks.
    pub(super) fn look(&self) -> Result<Found, ImportError> {
        match &self.form {
            Form::Layout(index, _) => look_oci(&self.archive, index),
            Form::Docker(image) => look_docker(&self.archive, image),
        }
    }
}

fn layout(archive: &Archive, tag: Option<&str>) -> Result<Form, ImportError> {
    let mut index: Value = archive.json("index.json")?;
    let entries = index.get_mut("manifests").and_then(Value::as_array_mut);
    let Some(entries) = entries else {
        let document =
            |reason: &str| ArchiveError::Document { name: "index.json".to_owned(), reason: reason.to_owned() };
        return Err(document("it lists no manifests").into());
    };
    let said = |entry: &Value, what: &str| entry["annotations"][what].as_str().map(str::to_owned);
    let mut tags: Vec<String> = entries.iter().filter_map(|entry| said(entry, SHORT).or(said(entry, WHOLE))).collect();
    tags.sort();
    tags.dedup();
    match tag {
        Some(tag) => {
            let is_meant = |entry: &Value| [SHORT, WHOLE].iter().any(|what| said(entry, what).as_deref() == Some(tag));
            entries.retain(is_meant);
            if entries.is_empty() {
                return Err(ImportError::NoTag { tag: tag.to_owned(), tags: told(&tags) });
            }
        }
        None if tags.len() > 1 => return Err(ImportError::Several { tags: told(&tags) }),
        None => {}
    }
    let name =
        entries.iter().find_map(|entry| said(entry, WHOLE).or(said(entry, SHORT).filter(|n| n.contains(['/', ':']))));
    Ok(Form::Layout(index.to_string().into_bytes(), name))
}

fn docker(archive: &Archive, tag: Option<&str>) -> Result<DockerImage, ImportError> {
    let mut images: Vec<DockerImage> = archive.json("manifest.json")?;
    let tags = |images: &[DockerImage]| -> Vec<String> {
        let first = |image: &DockerImage| image.tags.iter().flatten().next().cloned();
        images.iter().map(|image| first(image).unwrap_or_else(|| "one without a name".to_owned())).collect()
    };
    if let Some(tag) = tag {
        let all = tags(&images);
        let is_tag = |name: &String| name == tag || name.rsplit_once(':').is_some_and(|(_, short)| short == tag);
        images.retain_mut(|image| {
            image.tags.iter_mut().for_each(|tags| tags.retain(is_tag));
            image.tags.as_ref().is_some_and(|tags| !tags.is_empty())
        });
        if images.is_empty() {
            return Err(ImportError::NoTag { tag: tag.to_owned(), tags: told(&all) });
        }
    }
    match (images.len(), images.pop()) {
        (1, Some(image)) => Ok(image),
        (_, last) => {
            images.extend(last);
            Err(ImportError::Several { tags: told(&tags(&images)) })
        }
    }
}

/// What strangers call their images, for people to read.
fn told(tags: &[String]) -> Vec<String> {
    let plain = |tag: &String| tag.chars().filter(|c| !c.is_control()).take(TOLD_CHARACTERS).collect();
    tags.iter().take(TOLD).map(plain).collect()
}

fn look_oci(archive: &Archive, index: &[u8]) -> Result<Found, ImportError> {
    let mut bytes = index.to_vec();
    for _ in 0..=MAX_NESTING {
        match manifest::parse(&bytes).map_err(PullError::from)? {
            Document::Index(digest) => bytes = checked(archive, digest.trim_start_matches("sha256:"))?,
            Document::Image(manifest) => return oci_image(archive, manifest, bytes),
        }
    }
    let reason = format!("indexes name each other more than {MAX_NESTING} deep");
    Err(PullError::from(ManifestError::Form { what: "index.json", reason }).into())
}

fn oci_image(archive: &Archive, manifest: Manifest, text: Vec<u8>) -> Result<Found, ImportError> {
    let configuration = checked(archive, &manifest.config.hex)?;
    let config = manifest::parse_config(&configuration, manifest.layers.len()).map_err(PullError::from)?;
    let layer = |((blob, compression), id): ((manifest::Blob, Compression), &LayerId)| Layer {
        id: id.clone(),
        name: format!("blobs/sha256/{}", blob.hex),
        hex: Some(blob.hex),
        compression: Some(compression),
    };
    let layers = manifest.layers.into_iter().zip(&config.diff_ids).map(layer).collect();
    let digest = hex(&Sha256::digest(&text));
    Ok(Found { config, layers, documents: vec![(manifest.config.hex, configuration), (digest.clone(), text)], digest })
}

fn look_docker(archive: &Archive, image: &DockerImage) -> Result<Found, ImportError> {
    manifest::some_layers(image.layers.len()).map_err(PullError::from)?;
    let configuration = archive.document(&image.config)?;
    let config = manifest::parse_config(&configuration, image.layers.len()).map_err(PullError::from)?;
    let layer =
        |(name, id): (&String, &LayerId)| Layer { id: id.clone(), name: name.clone(), hex: None, compression: None };
    let layers = image.layers.iter().zip(&config.diff_ids).map(layer).collect();
    let digest = hex(&Sha256::digest(&configuration));
    Ok(Found { config, layers, documents: vec![(digest.clone(), configuration)], digest })
}

/// A blob of an OCI layout that is a document, with the digest of its name.
fn checked(archive: &Archive, expected: &str) -> Result<Vec<u8>, ImportError> {
    let bytes = archive.document(&format!("blobs/sha256/{expected}"))?;
    let actual = hex(&Sha256::digest(&bytes));
    if actual == expected { Ok(bytes) } else { Err(blob_error(expected, &actual)) }
}

#[cfg(test)]
mod tests {
    use super::super::error::chain;
    use super::super::platform::Platform;
    use super::*;
    use serde_json::json;

    /// A docker archive of an image with so many layers.
    fn docker(layers: usize) -> Result<Found, ImportError> {
        let id = |number: usize| format!("sha256:{number:064x}");
        let ids: Vec<String> = (0..layers).map(id).collect();
        let (host, names): (_, Vec<String>) = (Platform::host(), (0..layers).map(|n| format!("{n}.tar")).collect());
        let config = json!({"os": host.os, "architecture": host.architecture, "rootfs": {"diff_ids": ids}});
        let manifest = json!([{"Config": "config.json", "RepoTags": ["a:1"], "Layers": names}]);
        let mut tar = tar::Builder::new(tempfile::tempfile().unwrap());
        for (name, text) in [("config.json", config.to_string()), ("manifest.json", manifest.to_string())] {
            let mut header = tar::Header::new_gnu();
            header.set_size(text.len() as u64);
            tar.append_data(&mut header, name, text.as_bytes()).unwrap();
        }
        Contents::of(Archive::open(tar.into_inner().unwrap())?, None)?.look()
    }

    #[test]
    fn an_image_has_as_many_layers_as_a_sandbox_can_have_however_it_comes() {
        use wire::launch::MAX_LAYERS;
        assert_eq!(docker(MAX_LAYERS).unwrap().layers.len(), MAX_LAYERS);
        for (layers, words) in [(0, "has no layer"), (MAX_LAYERS + 1, "the number of layers is 129")] {
            let refused = chain(&docker(layers).err().unwrap());
            assert!(refused.contains(words), "{refused}");
        }
    }
}
