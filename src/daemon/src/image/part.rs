//! What came of a blob, kept under its digest until the rest of it comes: `partial/HEX` of the store.
//!
//! ```text
//! nothing ─ open ─► part ─ the rest ─► whole, its digest right ─► unpacked, removed
//!                    │ ▲
//!                    └─┘ a pull that fails, a service that dies: the next pull goes on from there
//! ```
//! Whoever fetches holds the file's lock (flock(2)), so nobody writes what another writes, and nobody removes it under
//! them. What is in a part is worth nothing before the digest of the whole is right. Small blobs are not kept. Parts that
//! nobody came back for go by age, and when there is too much of them.

use std::fs::File;
use std::io::{self, Seek};
use std::os::fd::AsFd;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags, Stat};

use super::error::StoreError;
use super::manifest::Blob;
use super::store::{BENEATH, Store};

/// Where they are in the store.
pub(super) const DIRECTORY: &str = "partial";
/// Smaller blobs are fetched anew, in bytes.
const SMALLEST: u64 = 1 << 20;
/// How long a part waits for its rest.
const MAX_AGE: Duration = Duration::from_secs(7 * 24 * 3600);
/// Most bytes of all parts that nobody works on, and how many parts.
const MAX_BYTES: u64 = 8 << 30;
const MAX_PARTS: usize = 64;

/// A file that a blob is fetched into.
#[derive(Debug)]
pub(super) struct Part {
    store: Store,
    file: File,
    /// Its path in the store; none: it has no name, and goes with its last descriptor.
    path: Option<String>,
    kept: u64,
}

/// A part that is there, and its size in bytes.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Kept {
    path: String,
    pub(super) bytes: u64,
}

impl Part {
    /// What is here of `blob`, or an empty file for it. Blocks.
    pub(super) fn open(store: &Store, blob: &Blob) -> Result<Self, StoreError> {
        let named = if blob.size < SMALLEST { None } else { Self::named(store, blob)? };
        match named {
            Some(part) => Ok(part),
            None => Ok(Self { store: store.clone(), file: store.unnamed()?, path: None, kept: 0 }),
        }
    }

    /// `None`: another pull has it.
    fn named(store: &Store, blob: &Blob) -> Result<Option<Self>, StoreError> {
        let path = format!("{DIRECTORY}/{}", blob.hex);
        let fail = |e: io::Error| StoreError::new("open", &path, e);
        let flags = OFlags::CREATE | OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let file = rustix::fs::openat2(store.root(), &path, flags, Mode::from_raw_mode(0o600), BENEATH);
        let file = File::from(file.map_err(|e| fail(e.into()))?);
        if !is_ours(store, &path, &file)? {
            return Ok(None);
        }
        let length = file.metadata().map_err(fail)?.len();
        let kept = if length > blob.size { 0 } else { length };
        file.set_len(kept).map_err(fail)?;
        Ok(Some(Self { store: store.clone(), file, path: Some(path), kept }))
    }

    /// The store that it is in.
    pub(super) fn store(&self) -> &Store {
        &self.store
    }

    /// Bytes that were here when it was opened, from the beginning of the blob on.
    pub(super) fn kept(&self) -> u64 {
        self.kept
    }

    /// The file, at its beginning.
    pub(super) fn file(&self) -> Result<File, StoreError> {
        let shared = self.file.try_clone().and_then(|mut file| file.rewind().map(|()| file));
        shared.map_err(|e| StoreError::new("share", self.path.as_deref().unwrap_or("a temporary file"), e))
    }

    /// What was here is not what it should be: there is nothing now.
    pub(super) fn empty(&mut self) -> Result<(), StoreError> {
        self.kept = 0;
        self.file
            .set_len(0)
            .map_err(|e| StoreError::new("empty", self.path.as_deref().unwrap_or("a temporary file"), e))
    }

    /// It is not needed any more, or is of no use.
    pub(super) fn discard(mut self) -> Result<(), StoreError> {
        self.path.take().map_or(Ok(()), |path| self.store.remove(&path))
    }
}

/// Whether the file is locked now, and still the one of that name.
fn is_ours(store: &Store, path: &str, file: &File) -> Result<bool, StoreError> {
    match rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(rustix::io::Errno::WOULDBLOCK | rustix::io::Errno::INTR) => return Ok(false),
        Err(e) => return Err(StoreError::new("lock", path, e)),
    }
    let opened = rustix::fs::fstat(file).map_err(|e| StoreError::new("look at", path, e))?;
    Ok(look(store, path)?.is_some_and(|named| (named.st_dev, named.st_ino) == (opened.st_dev, opened.st_ino)))
}

fn look(store: &Store, path: &str) -> Result<Option<Stat>, StoreError> {
    match rustix::fs::statat(store.root().as_fd(), path, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => Ok(Some(stat)),
        Err(rustix::io::Errno::NOENT) => Ok(None),
        Err(e) => Err(StoreError::new("look at", path, e)),
    }
}

/// Every part that is there.
pub(super) fn all(store: &Store) -> Result<Vec<Kept>, StoreError> {
    Ok(oldest_first(store)?.into_iter().map(|(_, kept)| kept).collect())
}

/// Remove a part; whether nobody works on it.
pub(super) fn remove(store: &Store, kept: &Kept) -> Result<bool, StoreError> {
    let Some(file) = store.read(&kept.path)? else { return Ok(false) };
    if !is_ours(store, &kept.path, &file)? {
        return Ok(false);
    }
    store.remove(&kept.path)?;
    Ok(true)
}

/// Remove what is here of `blob`, which nobody needs any more, unless somebody works on it. Blocks.
pub(super) fn forget(store: &Store, blob: &Blob) -> Result<(), StoreError> {
    remove(store, &Kept { path: format!("{DIRECTORY}/{}", blob.hex), bytes: blob.size }).map(drop)
}

/// Remove what is too old, and the oldest of what is too much. Blocks.
pub(super) fn prune(store: &Store, now: SystemTime) -> Result<(), StoreError> {
    let parts = oldest_first(store)?;
    let (mut bytes, mut count) = (parts.iter().map(|(_, kept)| kept.bytes).sum::<u64>(), parts.len());
    for (changed, kept) in parts {
        let is_old = now.duration_since(changed).is_ok_and(|age| age > MAX_AGE);
        if (is_old || bytes > MAX_BYTES || count > MAX_PARTS) && remove(store, &kept)? {
            (bytes, count) = (bytes - kept.bytes, count - 1);
        }
    }
    Ok(())
}

fn oldest_first(store: &Store) -> Result<Vec<(SystemTime, Kept)>, StoreError> {
    let mut parts = Vec::new();
    for name in store.names(DIRECTORY, usize::MAX)? {
        let path = format!("{DIRECTORY}/{name}");
        // Gone since it was listed: its pull has ended.
        let Some(stat) = look(store, &path)? else { continue };
        let changed = UNIX_EPOCH + Duration::from_secs(u64::try_from(stat.st_mtime).unwrap_or(0));
        parts.push((changed, Kept { path, bytes: u64::try_from(stat.st_size).unwrap_or(0) }));
    }
    parts.sort_by_key(|(changed, _)| *changed);
    Ok(parts)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};

    fn store(root: &tempfile::TempDir) -> Store {
        Store::open(File::open(root.path()).unwrap().into()).unwrap()
    }

    fn blob(digit: &str, size: u64) -> Blob {
        Blob { hex: digit.repeat(64), size }
    }

    #[test]
    fn what_came_is_there_again_and_one_at_a_time_has_it() {
        let root = tempfile::tempdir().unwrap();
        let (store, blob) = (store(&root), blob("a", SMALLEST));
        let part = Part::open(&store, &blob).unwrap();
        part.file().unwrap().write_all(b"begun").unwrap();
        let other = Part::open(&store, &blob).unwrap();
        assert!(other.path.is_none() && other.kept() == 0, "another works on it");
        assert!(!remove(&store, &all(&store).unwrap()[0]).unwrap());
        drop(part);

        let mut again = Part::open(&store, &blob).unwrap();
        let mut text = String::new();
        again.file().unwrap().read_to_string(&mut text).unwrap();
        assert_eq!((again.kept(), text.as_str()), (5, "begun"));
        again.empty().unwrap();
        assert_eq!(again.file.metadata().unwrap().len(), 0);
        again.discard().unwrap();
        assert_eq!(all(&store).unwrap(), []);
        // More than there can be of it is none of it.
        std::fs::write(root.path().join(DIRECTORY).join(&blob.hex), vec![0; 2 << 20]).unwrap();
        assert_eq!(Part::open(&store, &blob).unwrap().kept(), 0);
    }

    #[test]
    fn small_ones_have_no_name() {
        let root = tempfile::tempdir().unwrap();
        let store = store(&root);
        let part = Part::open(&store, &blob("a", SMALLEST - 1)).unwrap();
        part.file().unwrap().write_all(b"x").unwrap();
        drop(part);
        assert_eq!(all(&store).unwrap(), []);
    }

    #[test]
    fn the_old_and_the_too_many_go_and_what_is_worked_on_stays() {
        let root = tempfile::tempdir().unwrap();
        let store = store(&root);
        let directory = root.path().join(DIRECTORY);
        let make = |name: &str, days: u64, bytes: u64| {
            let file = File::create(directory.join(name)).unwrap();
            file.set_len(bytes).unwrap();
            file.set_modified(SystemTime::now() - Duration::from_secs(days * 24 * 3600)).unwrap();
        };
        let names = || {
            let mut names = store.names(DIRECTORY, 100).unwrap();
            names.sort();
            names
        };
        make("old", 8, 10);
        make("older", 9, 10);
        make("new", 1, 10);
        let held = File::open(directory.join("older")).unwrap();
        rustix::fs::flock(&held, FlockOperation::NonBlockingLockExclusive).unwrap();
        prune(&store, SystemTime::now()).unwrap();
        assert_eq!(names(), ["new", "older"]);
        drop(held);
        // Files with holes: they are counted as long as they are.
        make("large", 2, MAX_BYTES);
        prune(&store, SystemTime::now()).unwrap();
        assert_eq!(names(), ["new"]);
        (0..MAX_PARTS).for_each(|number| make(&format!("part-{number}"), 0, 1));
        prune(&store, SystemTime::now()).unwrap();
        assert!(names().len() == MAX_PARTS && !names().contains(&"new".to_owned()));
    }
}
