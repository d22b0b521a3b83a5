//! Fetching an image from a registry into the store: manifest, configuration, layers.
//!
//! Every blob is streamed to a temporary file, counted and hashed on the way, and gets its name only when both
//! are what the manifest announced. Blobs and layers that are here already are not fetched again.

use std::io::{self, Write};

use oci_spec::distribution::Reference;
use sha2::{Digest, Sha256};
use wire::id::LayerId;
use wire::launch::Compression;

use super::Settings;
use super::auth::credentials;
use super::error::{PullError, StoreError};
use super::manifest::{self, Blob, Config, Document, MAX_DOCUMENT, Manifest};
use super::record::hex;
use super::registry::Registry;
use super::store::{Store, read_bounded};

/// An image whose blobs are in the store.
#[derive(Debug)]
pub(super) struct Fetched {
    /// Digest of its manifest, hex.
    pub(super) digest: String,
    /// What its configuration decides.
    pub(super) config: Config,
    /// Its layers, bottom first.
    pub(super) layers: Vec<Layer>,
}

/// A layer of a fetched image.
#[derive(Debug)]
pub(super) struct Layer {
    /// Its name once unpacked.
    pub(super) id: LayerId,
    /// Its blob, hex; in the store unless the layer is.
    pub(super) blob: String,
    /// How the blob is compressed.
    pub(super) compression: Compression,
}

/// Fetch the image: from the mirrors of the default registry first, then from the registry itself.
pub(super) async fn fetch(settings: &Settings, store: &Store, reference: &Reference) -> Result<Fetched, PullError> {
    let limit = settings.pull_timeout;
    let deadline = PullError::Deadline { seconds: limit.as_secs() };
    tokio::time::timeout(limit, fetch_anywhere(settings, store, reference)).await.unwrap_or(Err(deadline))
}

async fn fetch_anywhere(settings: &Settings, store: &Store, reference: &Reference) -> Result<Fetched, PullError> {
    if reference.registry() == settings.registry {
        for mirror in &settings.mirrors {
            let mut mirrored = reference.clone();
            mirrored.set_mirror_registry(mirror.clone());
            match fetch_from(settings, store, &mirrored).await {
                Ok(fetched) => return Ok(fetched),
                Err(error) => tracing::warn!(mirror, %reference, %error, "mirror did not give the image, going on"),
            }
        }
    }
    fetch_from(settings, store, reference).await
}

async fn fetch_from(settings: &Settings, store: &Store, reference: &Reference) -> Result<Fetched, PullError> {
    let login = credentials(settings.auth_file.as_deref(), reference.resolve_registry())?;
    let registry = Registry::new(reference, &settings.insecure_registries, login);
    let registry = registry.map_err(|e| PullError::Client(Box::new(e)))?;
    let mut puller = Puller { registry, store, reference };
    let (manifest, digest) = puller.manifest().await?;
    let config = puller.config(&manifest).await?;
    let mut layers = Vec::with_capacity(manifest.layers.len());
    for ((blob, compression), id) in manifest.layers.into_iter().zip(&config.diff_ids) {
        if !store.has_layer(id) {
            puller.blob(&blob).await?;
        }
        layers.push(Layer { id: id.clone(), blob: blob.hex, compression });
    }
    Ok(Fetched { digest, config, layers })
}

struct Puller<'a> {
    registry: Registry<'a>,
    store: &'a Store,
    reference: &'a Reference,
}

impl Puller<'_> {
    /// This platform's manifest and its digest as hex.
    async fn manifest(&mut self) -> Result<(Manifest, String), PullError> {
        let reference = self.reference;
        let first = match reference.digest() {
            Some(digest) => self.document(digest, Some(digest)).await?,
            None => self.document(reference.tag().unwrap_or("latest"), None).await?,
        };
        match first {
            (Document::Image(manifest), digest) => Ok((manifest, digest)),
            (Document::Index(chosen), _) => match self.document(&chosen, Some(&chosen)).await? {
                (Document::Image(manifest), digest) => Ok((manifest, digest)),
                (Document::Index(_), _) => {
                    let reason = "an index names another index".to_owned();
                    Err(manifest::ManifestError::Form { what: "manifest", reason }.into())
                }
            },
        }
    }

    /// A manifest or index, which must have the digest `expected` if there is one.
    async fn document(&mut self, of: &str, expected: Option<&str>) -> Result<(Document, String), PullError> {
        let what = || format!("the manifest of {}", self.reference);
        let fail = |e| PullError::Registry { what: what(), source: Box::new(e) };
        let bytes = self.registry.manifest(of).await.map_err(fail)?;
        let digest = hex(&Sha256::digest(&bytes));
        if let Some(expected) = expected
            && expected != format!("sha256:{digest}")
        {
            let problem = format!("has the digest sha256:{digest}");
            return Err(PullError::Blob { digest: expected.to_owned(), problem });
        }
        let document = manifest::parse(&bytes)?;
        let (store, path) = (self.store.clone(), format!("blobs/sha256/{digest}"));
        blocking(move || store.write(&path, &bytes)).await?;
        Ok((document, digest))
    }

    async fn config(&mut self, manifest: &Manifest) -> Result<Config, PullError> {
        let blob = &manifest.config;
        self.blob(blob).await?;
        let missing = || StoreError::new("open", format!("blobs/sha256/{}", blob.hex), io::ErrorKind::NotFound);
        let mut file = self.store.blob(&blob.hex)?.ok_or_else(missing)?;
        let bytes = read_bounded(&mut file, MAX_DOCUMENT).map_err(|e| StoreError::new("read", &blob.hex, e))?;
        Ok(manifest::parse_config(&bytes, manifest.layers.len())?)
    }

    /// See to it that a blob is in the store.
    async fn blob(&mut self, blob: &Blob) -> Result<(), PullError> {
        if self.store.blob(&blob.hex)?.is_some() {
            return Ok(());
        }
        let digest = format!("sha256:{}", blob.hex);
        let wrong = |problem: String| PullError::Blob { digest: digest.clone(), problem };
        let path = format!("blobs/sha256/{}", blob.hex);
        // Addresses that a manifest may name besides are not read: nothing is fetched from where a stranger says.
        let fail = |e| PullError::Registry { what: digest.clone(), source: Box::new(e) };
        let mut response = self.registry.blob(&digest).await.map_err(fail)?;

        let mut staged = self.store.stage(&path)?;
        let (mut hasher, mut size) = (Sha256::new(), 0_u64);
        let broken = |source| PullError::Stream { digest: digest.clone(), source };
        while let Some(chunk) = response.chunk().await.map_err(broken)? {
            size += chunk.len() as u64;
            if size > blob.size {
                return Err(wrong(format!("is longer than the {} bytes announced", blob.size)));
            }
            hasher.update(&chunk);
            staged.file.write_all(&chunk).map_err(|e| StoreError::new("write", &path, e))?;
        }
        if size != blob.size {
            return Err(wrong(format!("has {size} bytes, {} were announced", blob.size)));
        }
        let actual = hex(&hasher.finalize());
        if actual != blob.hex {
            return Err(wrong(format!("has the digest sha256:{actual}")));
        }
        Ok(blocking(move || staged.publish()).await?)
    }
}

/// Wait for the disk off the threads that serve.
async fn blocking(work: impl FnOnce() -> Result<(), StoreError> + Send + 'static) -> Result<(), StoreError> {
    let lost = |e: tokio::task::JoinError| StoreError::new("write", "blobs", io::Error::other(e));
    tokio::task::spawn_blocking(work).await.map_err(lost)?
}

#[cfg(test)]
#[path = "pull_tests.rs"]
mod tests;
