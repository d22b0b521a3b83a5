//! Images from archives of other programs: an OCI layout as a tar, or what `docker save` and `podman save` write.
//!
//! The whole archive is received first, into a file without a name; then one image in it is treated as a pulled one
//! is: every blob has to have the digest that its name says, every layer the one that the configuration says.

use std::collections::HashSet;
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::sync::Arc;

use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt, stream};
use sha2::{Digest, Sha256};
use wire::launch::Compression;

use super::archive::{Archive, ArchiveError};
use super::base::{DEFAULT_ENV, find_user};
use super::contents::{Contents, Layer};
use super::error::{ImageError, PullError, StoreError};
use super::manage::ManageError;
use super::manifest;
use super::name::Origin;
use super::record::{Kind, Record, hex};
use super::room::{self, Watch};
use super::store::Store;
use super::writer::{Piece, Writer, Writers};
use super::{Images, Inner, set};
use crate::fail;

/// Most bytes of an archive.
pub const MAX_ARCHIVE: u64 = 32 << 30;
/// Layers that are unpacked at once.
const PARALLEL: usize = 2;

/// An archive cannot be imported.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    /// It says nothing of a name.
    #[error("the archive does not say what the image is called; give it a name")]
    Nameless,
    /// It holds several.
    #[error("the archive holds {} images; one is imported at a time, so say the tag of one: {}", tags.len(), tags.join(", "))]
    Several {
        /// What they are called.
        tags: Vec<String>,
    },
    /// It holds none of that tag.
    #[error("the archive holds no image with the tag {tag:?}, only {}", tags.join(", "))]
    NoTag {
        /// What was asked for.
        tag: String,
        /// What they are called.
        tags: Vec<String>,
    },
    /// Its files.
    #[error(transparent)]
    Archive(#[from] ArchiveError),
    /// What is said of the image is not acceptable, or a blob is not what is said.
    #[error(transparent)]
    Content(#[from] PullError),
}

/// An archive that is being received.
pub struct Spool {
    store: Store,
    writer: Writer,
    bytes: u64,
    room: Watch,
}

impl Spool {
    /// Take a piece; whether it was not too much.
    ///
    /// # Errors
    /// [`ManageError::Room`].
    pub async fn write(&mut self, piece: Bytes) -> Result<bool, ManageError> {
        let length = piece.len() as u64;
        self.bytes += length;
        let fits = self.bytes <= MAX_ARCHIVE;
        if fits {
            self.room.before(&self.store, length)?;
            // That the disk failed is said at the end.
            self.writer.write(Piece::Bytes(piece)).await;
        }
        Ok(fits)
    }
}

impl Images {
    /// Where an archive is received of which at least so many bytes are announced.
    ///
    /// # Errors
    /// [`ManageError::Store`]; [`ManageError::Room`].
    pub fn spool(&self, announced: u64) -> Result<Spool, ManageError> {
        let store = self.inner().store.clone();
        room::check(&store, announced)?;
        Ok(Spool { writer: Writers::default().start(store.unnamed()?, 0), store, bytes: 0, room: Watch::default() })
    }

    /// Import the image of an archive that was received, the one that is called `tag` in it or the only one, under `name` or
    /// the one that it says. The key of its record.
    ///
    /// # Errors
    /// [`ManageError::Image`], [`ManageError::Import`], [`ManageError::Store`].
    pub async fn import(&self, spool: Spool, name: Option<&str>, tag: Option<&str>) -> Result<String, ManageError> {
        let (file, _) = spool.writer.finish().await.map_err(|e| StoreError::new("write", "the archive", e))?;
        let wanted = tag.map(str::to_owned);
        let opened = blocking(move || Contents::of(Archive::open(file)?, wanted.as_deref())).await;
        let shown = name.unwrap_or("the archive").to_owned();
        let failed = |source| ImageError::Import { name: shown.clone(), source };
        let contents = opened.map_err(failed)?;
        let name = match name {
            Some(name) => name.to_owned(),
            None => contents.name().ok_or_else(|| failed(ImportError::Nameless))?,
        };
        let origins = self.inner().origins(&name)?;
        let registry = origins.into_iter().find(|origin| matches!(origin, Origin::Registry(_)));
        let invalid = || ImageError::Name { name: name.clone(), reason: "it is a recipe's".to_owned() };
        let key = registry.ok_or_else(invalid)?.key();
        let (inner, job_key) = (Arc::clone(self.inner()), key.clone());
        let job = || import(Arc::clone(&inner), job_key, contents);
        // Whatever else is being made under this name is not what was sent.
        inner.own_job(&key, job).await.map_err(ManageError::Import)?;
        Ok(key)
    }
}

async fn import(inner: Arc<Inner>, key: String, contents: Contents) -> Result<super::record::Entry, ImageError> {
    let name = super::list::reference_of(&key).to_owned();
    let failed = |source: ImportError| ImageError::Import { name: name.clone(), source };
    let archive = Arc::clone(&contents.archive);
    let found = blocking(move || contents.look()).await.map_err(failed)?;
    let mut seen = HashSet::new();
    let mut jobs = Vec::new();
    for layer in found.layers {
        if seen.insert(layer.id.clone()) {
            jobs.push(unpack(&inner, &archive, layer));
        }
    }
    stream::iter(jobs).buffer_unordered(PARALLEL).try_collect::<()>().await.map_err(failed)?;
    let layers = manifest::stack(&found.config.diff_ids);
    let user = find_user(&inner, &name, found.config.user, &layers).await?;
    let mut record = Record::new(key, Kind::Imported, found.digest);
    record.config = found.documents.first().map(|(hex, _)| hex.clone());
    set(&mut record.env, DEFAULT_ENV.0, DEFAULT_ENV.1);
    found.config.env.iter().for_each(|(name, value)| set(&mut record.env, name, value));
    record.user = user;
    record.layers = layers;
    let entry = inner.put(record, found.documents).await?;
    fail::point("import.recorded");
    Ok(entry)
}

async fn unpack(inner: &Arc<Inner>, archive: &Arc<Archive>, layer: Layer) -> Result<(), ImportError> {
    if inner.store.has_layer(&layer.id) {
        return Ok(());
    }
    let (store, archive, id) = (inner.store.clone(), Arc::clone(archive), layer.id.clone());
    let task = move || {
        let mut file = store.unnamed().map_err(PullError::from)?;
        let (mut reader, size) = archive.reader(&layer.name)?;
        room::check(&store, size).map_err(PullError::from)?;
        let actual = copy(&mut reader, &mut file)?;
        if let Some(expected) = layer.hex.filter(|expected| *expected != actual) {
            return Err(blob_error(&expected, &actual));
        }
        let compression = match layer.compression {
            Some(compression) => compression,
            None => compression_of(&mut file)?,
        };
        Ok((file, compression))
    };
    let (file, compression) = blocking(task).await?;
    let unpacking = inner.machine.unpack(file.into(), &id, compression);
    let unpacked = room::within(&inner.store, unpacking).await.map_err(PullError::from)?;
    unpacked.map_err(|source| PullError::Unpack { layer: id, source })?;
    fail::point("import.unpacked");
    Ok(())
}

pub(super) fn blob_error(expected: &str, actual: &str) -> ImportError {
    let problem = format!("has the digest sha256:{actual}");
    PullError::Blob { digest: format!("sha256:{expected}"), problem }.into()
}

/// Copy all of it; its digest. The file is at its start again.
fn copy(from: &mut impl Read, file: &mut File) -> Result<String, ArchiveError> {
    let (mut hasher, mut buffer) = (Sha256::new(), vec![0; 256 * 1024]);
    loop {
        let count = from.read(&mut buffer)?;
        let Some(piece) = buffer.get(..count).filter(|piece| !piece.is_empty()) else { break };
        hasher.update(piece);
        file.write_all(piece)?;
    }
    file.rewind()?;
    Ok(hex(&hasher.finalize()))
}

/// How a file is compressed, by its first bytes.
fn compression_of(file: &mut File) -> Result<Compression, ArchiveError> {
    let mut first = Vec::new();
    Read::by_ref(file).take(4).read_to_end(&mut first)?;
    file.rewind()?;
    Ok(match first.as_slice() {
        [0x1f, 0x8b, ..] => Compression::Gzip,
        [0x28, 0xb5, 0x2f, 0xfd] => Compression::Zstd,
        _ => Compression::None,
    })
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ImportError> + Send + 'static,
) -> Result<T, ImportError> {
    let task = tokio::task::spawn_blocking(work).await;
    task.map_err(|e| ImportError::Archive(ArchiveError::Io(io::Error::other(e))))?
}
