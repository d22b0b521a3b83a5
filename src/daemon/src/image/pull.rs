//! Fetching an image from a registry: manifest, configuration, layers.
//!
//! Nothing counts until its digest is what was announced. A layer is unpacked as soon as it has come, several at a time,
//! and its blob is not kept: layers are stored once. Layers that are here already are not fetched, and of those that came
//! in part what is missing.

use std::collections::HashSet;
use std::fs::File;
use std::io;
use std::path::Path;
use std::time::SystemTime;

use futures_util::{StreamExt, stream};
use oci_spec::distribution::Reference;
use reqwest::Certificate;
use sha2::{Digest, Sha256};
use tokio::sync::watch;
use wire::id::LayerId;
use wire::launch::Compression;

use super::Settings;
use super::auth::{self, credentials};
use super::download::{Fetcher, MAX_FAILURES, download, pause};
use super::error::{PullError, StoreError};
use super::hosts::Hosts;
use super::machine::Machine;
use super::manifest::{self, Blob, Config, Document, MAX_DOCUMENT, Manifest, ManifestError};
use super::part::{self, Part};
use super::progress::Progress;
use super::record::hex;
use super::registry::Registry;
use super::room;
use super::store::{Store, read_bounded};
use super::writer::Writers;
use crate::fail;

/// Layers that are fetched and unpacked at once.
const PARALLEL: usize = 3;
/// Indexes of indexes, at most so many deep.
const MAX_NESTING: usize = 3;
/// Largest file of certificates, in bytes.
const MAX_CERTIFICATES: u64 = 16 << 20;

/// What a pull works with.
#[derive(Clone, Copy)]
pub(super) struct Puller<'a> {
    /// The operator's.
    pub(super) settings: &'a Settings,
    /// Where temporary files and layers are.
    pub(super) store: &'a Store,
    /// Who unpacks.
    pub(super) machine: &'a dyn Machine,
    /// Who watches.
    pub(super) progress: &'a Progress,
    /// Whether the reference is the operator's own: its registry may then be anywhere.
    pub(super) trusted: bool,
}

/// An image whose layers are in the store.
#[derive(Debug)]
pub(super) struct Fetched {
    /// Digest of its manifest, hex.
    pub(super) digest: String,
    /// What its configuration decides.
    pub(super) config: Config,
    /// Its manifest and its configuration, each by its digest.
    pub(super) documents: [(String, Vec<u8>); 2],
}

/// Fetch the image: from the mirrors of the default registry first, then from the registry itself.
pub(super) async fn fetch(puller: Puller<'_>, reference: &Reference) -> Result<Fetched, PullError> {
    let limit = puller.settings.pull_timeout;
    let deadline = PullError::Deadline { seconds: limit.as_secs() };
    let writers = Writers::default();
    let fetching = fetch_anywhere(puller, reference, &writers);
    let fetched = tokio::time::timeout(limit, fetching).await.unwrap_or(Err(deadline));
    writers.idle().await;
    let store = puller.store.clone();
    let pruned = tokio::task::spawn_blocking(move || part::prune(&store, SystemTime::now())).await;
    if let Ok(Err(error)) = pruned {
        tracing::warn!(%error, "what is left of pulls is not looked through");
    }
    fetched
}

async fn fetch_anywhere(puller: Puller<'_>, reference: &Reference, writers: &Writers) -> Result<Fetched, PullError> {
    if reference.registry() == puller.settings.registry {
        for mirror in &puller.settings.mirrors {
            let mut mirrored = reference.clone();
            mirrored.set_mirror_registry(mirror.clone());
            match fetch_from(puller, &mirrored, writers).await {
                Ok(fetched) => return Ok(fetched),
                Err(error) => tracing::warn!(mirror, %reference, %error, "mirror did not give the image, going on"),
            }
            // Of the layers that were broken off when one failed: what came of them is gone on from.
            writers.idle().await;
        }
    }
    fetch_from(puller, reference, writers).await
}

async fn fetch_from(puller: Puller<'_>, reference: &Reference, writers: &Writers) -> Result<Fetched, PullError> {
    let registry = connect(puller, reference)?;
    let source = Source { puller, registry, reference, writers };
    let (manifest, digest, document) = source.manifest().await?;
    let (config, configuration) = source.config(&manifest).await?;
    source.layers(manifest.layers, &config.diff_ids).await?;
    Ok(Fetched { config, documents: [(digest.clone(), document), (manifest.config.hex, configuration)], digest })
}

fn connect<'a>(puller: Puller<'_>, reference: &'a Reference) -> Result<Registry<'a>, PullError> {
    let settings = puller.settings;
    let registry = reference.resolve_registry();
    let login = credentials(settings.auth_file.as_deref(), registry, reference.repository())?;
    let known = auth::hosts(settings.auth_file.as_deref())?;
    let own = puller.trusted.then_some(registry);
    let named = own.into_iter().chain([settings.registry.as_str()]).chain(settings.mirrors.iter().map(String::as_str));
    let named = named.chain(settings.registry_hosts.iter().chain(&known).map(String::as_str));
    let hosts = Hosts::new(named, &settings.insecure_registries);
    let plain = settings.insecure_registries.iter().any(|host| host == registry);
    let authorities = certificates(settings.extra_ca_certs.as_deref())?;
    Registry::new(reference, plain, hosts, login, authorities).map_err(|e| PullError::Client(Box::new(e)))
}

/// The operator's own authorities.
fn certificates(file: Option<&Path>) -> Result<Vec<Certificate>, PullError> {
    let Some(path) = file else { return Ok(Vec::new()) };
    let refuse = |reason: String| PullError::Certificates { path: path.to_owned(), reason };
    let mut file = File::open(path).map_err(|e| refuse(e.to_string()))?;
    let bytes = read_bounded(&mut file, MAX_CERTIFICATES).map_err(|e| refuse(e.to_string()))?;
    Certificate::from_pem_bundle(&bytes).map_err(|e| refuse(e.to_string()))
}

/// One registry that an image is fetched from.
struct Source<'a> {
    puller: Puller<'a>,
    registry: Registry<'a>,
    reference: &'a Reference,
    writers: &'a Writers,
}

impl Source<'_> {
    /// The manifest for this machine, its digest, and its text.
    async fn manifest(&self) -> Result<(Manifest, String, Vec<u8>), PullError> {
        let mut expected = self.reference.digest().map(str::to_owned);
        let mut of = expected.clone().unwrap_or_else(|| self.reference.tag().unwrap_or("latest").to_owned());
        for _ in 0..=MAX_NESTING {
            let (document, digest, bytes) = self.document(&of, expected.as_deref()).await?;
            match document {
                Document::Image(manifest) => return Ok((manifest, digest, bytes)),
                Document::Index(next) => (of, expected) = (next.clone(), Some(next)),
            }
        }
        let reason = format!("indexes name each other more than {MAX_NESTING} deep");
        Err(ManifestError::Form { what: "manifest", reason }.into())
    }

    /// A manifest or index, which must have the digest `expected` if there is one.
    async fn document(&self, of: &str, expected: Option<&str>) -> Result<(Document, String, Vec<u8>), PullError> {
        let mut failures = 0;
        let bytes = loop {
            match self.registry.manifest(of).await {
                Ok(bytes) => break bytes,
                Err(error) if error.is_passing() && failures < MAX_FAILURES => {
                    failures += 1;
                    pause(failures).await;
                }
                Err(source) => {
                    let what = format!("the manifest of {}", self.reference);
                    return Err(PullError::Registry { what, source: Box::new(source) });
                }
            }
        };
        let digest = hex(&Sha256::digest(&bytes));
        if let Some(expected) = expected
            && expected != format!("sha256:{digest}")
        {
            let problem = format!("has the digest sha256:{digest}");
            return Err(PullError::Blob { digest: expected.to_owned(), problem });
        }
        Ok((manifest::parse(&bytes)?, digest, bytes))
    }

    async fn config(&self, manifest: &Manifest) -> Result<(Config, Vec<u8>), PullError> {
        let blob = &manifest.config;
        let part = self.blob(blob).await?;
        let mut file = part.file()?;
        let bytes = read_bounded(&mut file, MAX_DOCUMENT).map_err(|e| StoreError::new("read", &blob.hex, e))?;
        part.discard()?;
        Ok((manifest::parse_config(&bytes, manifest.layers.len())?, bytes))
    }

    /// See to it that every layer is in the store.
    async fn layers(&self, layers: Vec<(Blob, Compression)>, ids: &[LayerId]) -> Result<(), PullError> {
        let Puller { store, progress, .. } = self.puller;
        progress.begin(layers.len());
        let failed = watch::Sender::new(false);
        let mut seen = HashSet::new();
        let mut jobs = Vec::with_capacity(layers.len());
        for ((blob, compression), id) in layers.into_iter().zip(ids) {
            let is_here = store.has_layer(id);
            if is_here {
                // A service that died after the layer was unpacked has left what it was unpacked from.
                part::forget(store, &blob)?;
            }
            if seen.insert(id.clone()) && !is_here {
                // Of all of them before the first is fetched: whoever watches is to know how much it is.
                progress.expect(blob.size);
                jobs.push(self.layer(blob, compression, id.clone(), failed.subscribe()));
            } else {
                progress.layer_ready();
            }
        }
        let mut running = stream::iter(jobs).buffer_unordered(PARALLEL);
        let mut ended = Ok(());
        while let Some(layer) = running.next().await {
            if layer.is_err() {
                failed.send_replace(true);
            }
            ended = ended.and(layer);
        }
        ended
    }

    /// See to it that this layer is in the store. When another has failed nothing more is fetched of it; but what came whole is
    /// unpacked to its end, since it is of use to the next pull and nothing of this one is to go on behind its back.
    async fn layer(
        &self,
        blob: Blob,
        compression: Compression,
        id: LayerId,
        mut failed: watch::Receiver<bool>,
    ) -> Result<(), PullError> {
        let Puller { store, machine, progress, .. } = self.puller;
        // It may have come with another image meanwhile.
        if store.has_layer(&id) {
            progress.spare(blob.size);
        } else {
            let part = tokio::select! {
                biased;
                _ = failed.wait_for(|failed| *failed) => return Ok(()),
                part = self.blob(&blob) => part?,
            };
            fail::point("pull.fetched");
            // Where there is no room for it now there may be another time.
            let unpacked = room::within(store, machine.unpack(part.file()?.into(), &id, compression)).await?;
            // One that cannot be unpacked will not be another time.
            part.discard()?;
            unpacked.map_err(|source| PullError::Unpack { layer: id, source })?;
            fail::point("pull.unpacked");
        }
        // What an earlier pull left, where the launcher was still reading it when this one looked.
        part::forget(store, &blob)?;
        progress.layer_ready();
        Ok(())
    }

    /// A blob. Addresses that a manifest may name besides are not read: nothing is fetched from where a stranger says.
    async fn blob(&self, blob: &Blob) -> Result<Part, PullError> {
        let (store, wanted) = (self.puller.store.clone(), blob.clone());
        let part = tokio::task::spawn_blocking(move || {
            let part = Part::open(&store, &wanted)?;
            room::check(&store, wanted.size - part.kept())?;
            Ok::<_, PullError>(part)
        });
        let part = part.await.map_err(|e| StoreError::new("make a temporary file in", ".", io::Error::other(e)))??;
        let Self { puller, registry, writers, .. } = self;
        download(Fetcher { registry, writers, progress: puller.progress }, blob, part).await
    }
}

#[cfg(test)]
#[path = "pull_tests.rs"]
mod tests;
