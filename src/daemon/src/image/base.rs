//! Bases: a recipe's tar, or a fetched image's blobs, made into layers and recorded.

use std::fs::File;
use std::io::{self, Read, Seek};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use oci_spec::distribution::Reference;
use sha2::{Digest, Sha256};
use wire::id::LayerId;
use wire::launch::Compression;

use super::build::DEFAULT_PATH;
use super::error::{ImageError, StoreError};
use super::machine::MachineError;
use super::manifest;
use super::record::{Entry, Kind, Record, hex};
use super::{Inner, pull, set, user};

/// Run a recipe and record what it makes.
pub(super) async fn bootstrap(inner: &Arc<Inner>, key: String, recipe: String) -> Result<Entry, ImageError> {
    let fail = |source: MachineError| ImageError::Bootstrap { recipe: recipe.clone(), source };
    let tar = inner.store.unnamed()?;
    let output = tar.try_clone().map_err(|e| StoreError::new("share", ".", e))?;
    inner.machine.bootstrap(&recipe, output.into()).await.map_err(fail)?;
    let (tar, digest) = hash(tar).await?;
    let layer = LayerId::parse(&digest).map_err(|e| StoreError::new("name", "layers", io::Error::other(e)))?;
    let unpacked = inner.machine.unpack(tar.into(), &layer, Compression::None).await;
    unpacked.map_err(|source| ImageError::Unpack { layer: layer.clone(), image: recipe.clone(), source })?;

    let mut record = Record::new(key, Kind::Bootstrapped, digest);
    record.layers = vec![layer];
    set(&mut record.env, "PATH", DEFAULT_PATH);
    set(&mut record.env, "LANG", "C.UTF-8");
    Ok(inner.put(record).await?)
}

/// Fetch an image from its registry, unpack what is new of it and record it.
pub(super) async fn pull(inner: &Arc<Inner>, key: String, reference: &Reference) -> Result<Entry, ImageError> {
    let image = reference.to_string();
    let fetched = pull::fetch(&inner.settings, &inner.store, reference)
        .await
        .map_err(|source| ImageError::Pull { reference: image.clone(), source })?;
    for layer in &fetched.layers {
        unpack(inner, &image, layer).await?;
    }
    let layers = manifest::stack(&fetched.config.diff_ids);
    let user = find_user(inner, &image, fetched.config.user, &layers).await?;
    let mut record = Record::new(key, Kind::Pulled, fetched.digest);
    set(&mut record.env, "PATH", DEFAULT_PATH);
    fetched.config.env.iter().for_each(|(name, value)| set(&mut record.env, name, value));
    record.user = user;
    record.layers = layers;
    Ok(inner.put(record).await?)
}

async fn unpack(inner: &Inner, image: &str, layer: &pull::Layer) -> Result<(), ImageError> {
    if inner.store.has_layer(&layer.id) {
        return Ok(());
    }
    let missing = || StoreError::new("open", format!("blobs/sha256/{}", layer.blob), io::ErrorKind::NotFound);
    let blob: OwnedFd = inner.store.blob(&layer.blob)?.ok_or_else(missing)?.into();
    let unpacked = inner.machine.unpack(blob, &layer.id, layer.compression).await;
    unpacked.map_err(|source| ImageError::Unpack { layer: layer.id.clone(), image: image.to_owned(), source })?;
    Ok(())
}

async fn find_user(
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
async fn hash(file: File) -> Result<(File, String), StoreError> {
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
