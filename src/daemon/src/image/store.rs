//! The image store on disk, beneath one directory descriptor.
//!
//! ```text
//! images/blobs/sha256/HEX     manifests and configurations of images that came with them
//!        refs/HEX.json        one record per image; HEX is the SHA-256 of its key
//!        layers/LAYERID/      unpacked layers: made and removed by the launcher alone, read here
//!        logs/TAG.log         output of the last build of an image
//!        partial/HEX          what has come of a blob whose rest is to be fetched (`part`)
//!        owner                the services that work with it (`owner`)
//!        lock                 whose turn it is among processes (`turns`)
//! ```
//!
//! Files appear by rename, after fsync: a reader sees the old or the new, also after a crash.
//! Temporary names start with a dot and are swept when the store is opened.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags};
use wire::id::LayerId;

use super::error::StoreError;
use super::part;

/// No path leaves the directory, nothing in it is followed.
pub(super) const BENEATH: ResolveFlags =
    ResolveFlags::BENEATH.union(ResolveFlags::NO_SYMLINKS).union(ResolveFlags::NO_MAGICLINKS);
const DIRECTORY: OFlags = OFlags::DIRECTORY.union(OFlags::CLOEXEC).union(OFlags::RDONLY);
const DIRECTORIES: [&str; 5] = ["blobs", "blobs/sha256", "refs", "logs", part::DIRECTORY];

/// The store's directory.
#[derive(Debug, Clone)]
pub(super) struct Store {
    root: Arc<OwnedFd>,
    next: Arc<AtomicU64>,
    reserve: u64,
}

impl Store {
    /// Take the directory `images/`, make what is missing in it and sweep what a crash left.
    pub(super) fn open(root: OwnedFd) -> Result<Self, StoreError> {
        let store = Self::join(root)?;
        for name in ["blobs/sha256", "refs", "logs"] {
            store.sweep(name)?;
        }
        part::prune(&store, SystemTime::now())?;
        Ok(store)
    }

    /// The same; what comes from outside leaves so many bytes of the disk free.
    pub(super) fn with_reserve(self, reserve: u64) -> Self {
        Self { reserve, ..self }
    }

    /// Bytes that are to stay free.
    pub(super) fn reserve(&self) -> u64 {
        self.reserve
    }

    /// The store's directory.
    pub(super) fn root(&self) -> BorrowedFd<'_> {
        self.root.as_fd()
    }

    /// The same, beside another process that works in it: nothing is swept.
    pub(super) fn join(root: OwnedFd) -> Result<Self, StoreError> {
        for name in DIRECTORIES {
            match rustix::fs::mkdirat(&root, name, Mode::from_raw_mode(0o755)) {
                Ok(()) | Err(rustix::io::Errno::EXIST) => {}
                Err(e) => return Err(StoreError::new("make", name, e)),
            }
        }
        Ok(Self { root: Arc::new(root), next: Arc::new(AtomicU64::new(0)), reserve: 0 })
    }

    /// Whether the layer is there. It appears by rename, so it is there whole.
    pub(super) fn has_layer(&self, layer: &LayerId) -> bool {
        self.layer(layer).is_ok()
    }

    /// The directory of a layer.
    pub(super) fn layer(&self, layer: &LayerId) -> Result<OwnedFd, StoreError> {
        let path = format!("layers/{layer}");
        rustix::fs::openat2(self.root.as_fd(), &path, DIRECTORY, Mode::empty(), BENEATH)
            .map_err(|e| StoreError::new("open", path, e))
    }

    /// A file in `images/` without a name: gone with its last descriptor.
    pub(super) fn unnamed(&self) -> Result<File, StoreError> {
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        rustix::fs::openat(self.root.as_fd(), ".", flags, Mode::from_raw_mode(0o600))
            .map(File::from)
            .map_err(|e| StoreError::new("make a temporary file in", ".", e))
    }

    /// A new temporary file beside `path`, to be given that name by [`Staged::publish`].
    pub(super) fn stage(&self, path: &str) -> Result<Staged, StoreError> {
        let (directory, name) = path.rsplit_once('/').unwrap_or((".", path));
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let temporary = format!("{directory}/.{name}.{}.{number}", std::process::id());
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::CLOEXEC;
        let file = rustix::fs::openat2(self.root.as_fd(), &temporary, flags, Mode::from_raw_mode(0o644), BENEATH)
            .map_err(|e| StoreError::new("make", &temporary, e))?;
        Ok(Staged { store: self.clone(), file: File::from(file), temporary, path: path.to_owned(), published: false })
    }

    /// Put `content` at `path`, whole or not at all.
    pub(super) fn write(&self, path: &str, content: &[u8]) -> Result<(), StoreError> {
        let mut staged = self.stage(path)?;
        staged.file.write_all(content).map_err(|e| StoreError::new("write", path, e))?;
        staged.publish()
    }

    /// The file at `path`, if it is there.
    pub(super) fn read(&self, path: &str) -> Result<Option<File>, StoreError> {
        match rustix::fs::openat2(self.root.as_fd(), path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty(), BENEATH) {
            Ok(file) => Ok(Some(File::from(file))),
            Err(rustix::io::Errno::NOENT) => Ok(None),
            Err(e) => Err(StoreError::new("open", path, e)),
        }
    }

    /// An empty file at `path`.
    pub(super) fn truncate(&self, path: &str) -> Result<File, StoreError> {
        self.open_log(path, OFlags::TRUNC)
    }

    /// The file at `path` for appending.
    pub(super) fn append(&self, path: &str) -> Result<File, StoreError> {
        self.open_log(path, OFlags::APPEND)
    }

    fn open_log(&self, path: &str, how: OFlags) -> Result<File, StoreError> {
        let flags = OFlags::CREATE | OFlags::WRONLY | OFlags::CLOEXEC | how;
        rustix::fs::openat2(self.root.as_fd(), path, flags, Mode::from_raw_mode(0o644), BENEATH)
            .map(File::from)
            .map_err(|e| StoreError::new("make", path, e))
    }

    /// Delete the file at `path`, if it is there.
    pub(super) fn remove(&self, path: &str) -> Result<(), StoreError> {
        match rustix::fs::unlinkat(self.root.as_fd(), path, AtFlags::empty()) {
            Ok(()) | Err(rustix::io::Errno::NOENT) => Ok(()),
            Err(e) => Err(StoreError::new("remove", path, e)),
        }
    }

    /// Names in a directory of the store, at most `max`.
    pub(super) fn names(&self, directory: &str, max: usize) -> Result<Vec<String>, StoreError> {
        let fail = |e: rustix::io::Errno| StoreError::new("list", directory, e);
        let fd = self.directory(directory)?;
        let mut names = Vec::new();
        for entry in Dir::read_from(&fd).map_err(fail)? {
            let entry = entry.map_err(fail)?;
            let name = entry.file_name().to_string_lossy().into_owned();
            if name != "." && name != ".." {
                names.push(name);
            }
            if names.len() >= max {
                break;
            }
        }
        Ok(names)
    }

    fn directory(&self, path: &str) -> Result<OwnedFd, StoreError> {
        rustix::fs::openat2(self.root.as_fd(), path, DIRECTORY, Mode::empty(), BENEATH)
            .map_err(|e| StoreError::new("open", path, e))
    }

    fn sweep(&self, directory: &str) -> Result<(), StoreError> {
        let stale = self.names(directory, usize::MAX)?;
        stale
            .iter()
            .filter(|name| name.starts_with('.'))
            .try_for_each(|name| self.remove(&format!("{directory}/{name}")))
    }
}

/// A file that has no name yet; removed unless it is published.
#[derive(Debug)]
pub(super) struct Staged {
    store: Store,
    /// For writing.
    pub(super) file: File,
    temporary: String,
    path: String,
    published: bool,
}

impl Staged {
    /// Give the file its name, durably.
    pub(super) fn publish(mut self) -> Result<(), StoreError> {
        let fail = |e: io::Error| StoreError::new("publish", &self.path, e);
        self.file.sync_all().map_err(fail)?;
        rustix::fs::renameat(self.store.root.as_fd(), &self.temporary, self.store.root.as_fd(), &self.path)
            .map_err(|e| fail(e.into()))?;
        self.published = true;
        let directory = self.path.rsplit_once('/').map_or(".", |(directory, _)| directory);
        let fd = self.store.directory(directory)?;
        rustix::fs::fsync(&fd).map_err(|e| StoreError::new("publish", &self.path, e))
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        if !self.published {
            // The sweep at the next start takes what cannot be removed now.
            let _ = self.store.remove(&self.temporary);
        }
    }
}

/// What a stack of layers has at a path.
#[derive(Debug)]
pub(super) enum Found {
    /// A regular file.
    File(File),
    /// Something else, or a way through a link.
    Other,
    /// Nothing.
    Absent,
}

/// Look `path` up in layers, topmost first, as overlayfs would: a whiteout hides what is below.
/// Layers come from strangers: nothing in them is followed, nothing but a regular file is opened.
pub(super) fn find(layers: &[OwnedFd], path: &str) -> io::Result<Found> {
    for layer in layers {
        match in_layer(layer.as_fd(), path)? {
            Layer::Found(found) => return Ok(found),
            Layer::Hidden => return Ok(Found::Absent),
            Layer::Below => {}
        }
    }
    Ok(Found::Absent)
}

enum Layer {
    Found(Found),
    Hidden,
    Below,
}

fn in_layer(layer: BorrowedFd<'_>, path: &str) -> io::Result<Layer> {
    let parents = path.match_indices('/').map(|(index, _)| &path[..index]);
    let mut hidden = false;
    for parent in parents {
        match look(layer, parent)? {
            Some((FileType::Directory, fd)) => hidden |= is_opaque(&fd),
            Some((FileType::CharacterDevice, _)) => return Ok(Layer::Hidden),
            Some(_) => return Ok(Layer::Found(Found::Other)),
            None => return Ok(if hidden { Layer::Hidden } else { Layer::Below }),
        }
    }
    match look(layer, path)? {
        Some((FileType::RegularFile, _)) => {
            let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOFOLLOW;
            let file = rustix::fs::openat2(layer, path, flags, Mode::empty(), BENEATH)?;
            Ok(Layer::Found(Found::File(File::from(file))))
        }
        Some((FileType::CharacterDevice, _)) => Ok(Layer::Hidden),
        Some(_) => Ok(Layer::Found(Found::Other)),
        None => Ok(if hidden { Layer::Hidden } else { Layer::Below }),
    }
}

/// What is at `path` in one layer, without opening it.
fn look(layer: BorrowedFd<'_>, path: &str) -> io::Result<Option<(FileType, OwnedFd)>> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    match rustix::fs::openat2(layer, path, flags, Mode::empty(), BENEATH) {
        Ok(fd) => {
            let kind = FileType::from_raw_mode(rustix::fs::fstat(&fd)?.st_mode);
            Ok(Some((kind, fd)))
        }
        Err(rustix::io::Errno::NOENT) => Ok(None),
        Err(e) => Err(e.into()),
    }
}

/// Whether a directory hides those of the layers below (overlayfs, option `userxattr`).
fn is_opaque(directory: &OwnedFd) -> bool {
    let mut value = [0_u8; 1];
    // An O_PATH descriptor has no attributes of its own to read; its name in /proc does.
    let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(directory));
    matches!(rustix::fs::getxattr(&path, "user.overlay.opaque", &mut value), Ok(1) if value == *b"y")
}

/// Read a file to its end, at most `max` bytes.
pub(super) fn read_bounded(file: &mut File, max: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.take(max + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > max {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, format!("more than {max} bytes")));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{XattrFlags, makedev, mknodat};
    use std::path::Path;

    fn layer(root: &Path, name: &str) -> OwnedFd {
        std::fs::create_dir_all(root.join(name).join("etc")).unwrap();
        File::open(root.join(name)).unwrap().into()
    }

    fn whiteout(directory: &OwnedFd, path: &str) {
        mknodat(directory, path, FileType::CharacterDevice, Mode::empty(), makedev(0, 0)).unwrap();
    }

    #[test]
    fn layers_are_looked_through_as_overlayfs_does() {
        let root = tempfile::tempdir_in("/var/tmp").unwrap();
        let lower = layer(root.path(), "lower");
        std::fs::write(root.path().join("lower/etc/passwd"), "x").unwrap();
        let find = |upper: OwnedFd| find(&[upper, lower.try_clone().unwrap()], "etc/passwd").unwrap();
        assert!(matches!(find(layer(root.path(), "nothing")), Found::File(_)));

        let file = layer(root.path(), "file-gone");
        whiteout(&file, "etc/passwd");
        assert!(matches!(find(file), Found::Absent));

        std::fs::create_dir(root.path().join("directory-gone")).unwrap();
        let directory: OwnedFd = File::open(root.path().join("directory-gone")).unwrap().into();
        whiteout(&directory, "etc");
        assert!(matches!(find(directory), Found::Absent));

        let opaque = layer(root.path(), "opaque");
        let etc = root.path().join("opaque/etc");
        rustix::fs::setxattr(&etc, "user.overlay.opaque", b"y", XattrFlags::empty()).unwrap();
        assert!(matches!(find(opaque), Found::Absent));

        let other = layer(root.path(), "other");
        std::fs::create_dir(root.path().join("other/etc/passwd")).unwrap();
        assert!(matches!(find(other), Found::Other));
    }

    #[test]
    fn a_file_appears_whole_or_not_at_all() {
        let root = tempfile::tempdir().unwrap();
        let store = Store::open(File::open(root.path()).unwrap().into()).unwrap();
        store.write("refs/a", b"old").unwrap();
        let mut staged = store.stage("refs/a").unwrap();
        staged.file.write_all(b"ne").unwrap();
        assert_eq!(std::fs::read(root.path().join("refs/a")).unwrap(), b"old");
        drop(staged);
        assert_eq!(store.names("refs", 10).unwrap(), ["a"], "nothing temporary is left");
        store.write("refs/a", b"new").unwrap();
        assert_eq!(std::fs::read(root.path().join("refs/a")).unwrap(), b"new");
        assert!(store.read("refs/../refs/b").is_ok_and(|file| file.is_none()));
        assert!(store.read("../etc/passwd").is_err(), "beneath its directory only");
    }
}
