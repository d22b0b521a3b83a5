//! Bases: a recipe's tar, or a fetched image's blobs, made into layers and recorded.

use std::fs::File;
use std::io::{self, Read, Seek};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use sha2::{Digest, Sha256};
use wire::id::LayerId;
use wire::launch::Compression;

use super::build::DEFAULT_PATH;
use super::error::{ImageError, StoreError};
use super::machine::MachineError;
use super::manifest;
use super::record::{Entry, Kind, Record, hex};
use super::{Inner, Pull, pull, room, set, user};
use crate::fail;

/// What the environment of an image begins with.
pub(super) const DEFAULT_ENV: (&str, &str) = ("PATH", DEFAULT_PATH);

/// Run a recipe and record what it makes.
pub(super) async fn bootstrap(inner: &Arc<Inner>, key: String, recipe: String) -> Result<Entry, ImageError> {
    let fail = |source: MachineError| ImageError::Bootstrap { recipe: recipe.clone(), source };
    let tar = inner.store.unnamed()?;
    let output = tar.try_clone().map_err(|e| StoreError::new("share", ".", e))?;
    room::within(&inner.store, inner.machine.bootstrap(&recipe, output.into())).await?.map_err(fail)?;
    let (tar, digest) = hash(tar).await?;
    let layer = LayerId::parse(&digest).map_err(|e| StoreError::new("name", "layers", io::Error::other(e)))?;
    let unpacked = room::within(&inner.store, inner.machine.unpack(tar.into(), &layer, Compression::None)).await?;
    unpacked.map_err(|source| ImageError::Unpack { layer: layer.clone(), image: recipe.clone(), source })?;

    let mut record = Record::new(key, Kind::Bootstrapped, digest);
    record.layers = vec![layer];
    set(&mut record.env, "PATH", DEFAULT_PATH);
    set(&mut record.env, "LANG", "C.UTF-8");
    Ok(inner.put(record, Vec::new()).await?)
}

/// Fetch an image from its registry, unpack what is new of it and record it.
pub(super) async fn pull(inner: &Arc<Inner>, key: String, job: &Pull) -> Result<Entry, ImageError> {
    let image = job.reference.to_string();
    let puller = pull::Puller {
        settings: &inner.settings,
        store: &inner.store,
        machine: inner.machine.as_ref(),
        progress: &job.progress,
        trusted: job.trusted,
    };
    let fetched = pull::fetch(puller, &job.reference)
        .await
        .map_err(|source| ImageError::Pull { reference: image.clone(), source })?;
    let layers = manifest::stack(&fetched.config.diff_ids);
    let user = find_user(inner, &image, fetched.config.user, &layers).await?;
    let mut record = Record::new(key, Kind::Pulled, fetched.digest);
    record.config = Some(fetched.documents[1].0.clone());
    set(&mut record.env, DEFAULT_ENV.0, DEFAULT_ENV.1);
    fetched.config.env.iter().for_each(|(name, value)| set(&mut record.env, name, value));
    record.user = user;
    record.layers = layers;
    let entry = inner.put(record, fetched.documents.into()).await?;
    fail::point("pull.recorded");
    Ok(entry)
}

/// Whom the image runs as.
pub(super) async fn find_user(
    inner: &Arc<Inner>,
    image: &str,
    spec: String,
    layers: &[LayerId],
) -> Result<user::User, ImageError> {
    let open: Vec<OwnedFd> = layers.iter().map(|layer| inner.store.layer(layer)).collect::<Result<_, _>>()?;
    let task = tokio::task::spawn_blocking(move || user::resolve(&spec, &open));
    let resolved = task.await.map_err(|e| StoreError::new("look in", "layers", io::Error::other(e)))?;
    resolved.map_err(|source| ImageError::User { image: image.to_owned(), source })
}

/// The digest of a file, from its start; the file is at its start again.
pub(super) async fn hash(file: File) -> Result<(File, String), StoreError> {
    let fail = |e: io::Error| StoreError::new("read", "the recipe's tar", e);
    let task = tokio::task::spawn_blocking(move || hash_blocking(file));
    task.await.map_err(|e| fail(io::Error::other(e)))?.map_err(fail)
}

fn hash_blocking(mut file: File) -> io::Result<(File, String)> {
    file.rewind()?;
    let (mut hasher, mut buffer, mut total) = (Sha256::new(), vec![0_u8; 256 * 1024], 0_u64);
    loop {
        let count = file.read(&mut buffer)?;
        let Some(chunk) = buffer.get(..count).filter(|chunk| !chunk.is_empty()) else { break };
        hasher.update(chunk);
        total += count as u64;
    }
    if total == 0 {
        return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the recipe wrote nothing"));
    }
    file.rewind()?;
    Ok((file, hex(&hasher.finalize())))
}
