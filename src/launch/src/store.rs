//! The state directory: where layers, write layers and workspaces are, always beneath a descriptor.
//!
//! ```text
//! state_dir/
//!   images/layers/LAYER          root's directory; each layer's content belongs to slot 0's ids
//!   images/layers/.staging-…     a layer being unpacked; swept at start
//!   sessions/ID/{upper,work}     write layers
//!   workspaces/ID/workspace      made by the service, its own
//!   cache/build/{pip,npm,apt,cargo}
//!   bootstrap/RECIPE@…           what a recipe works in; swept at start
//!   .trash/                      renamed here first, deleted behind the answer
//! ```
//! No name that came in a message is ever resolved through a link, nor out of these directories.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, RenameFlags, ResolveFlags, Uid};
use rustix::io::Errno;
use wire::id::{LayerId, SessionId};

use crate::config::Config;
use crate::error::{Failure, Result, Step};

/// Prefix of a layer that is not complete, in `images/layers`.
const STAGING: &str = ".staging-";
/// Package caches that builds share, below `cache/build`.
const CACHES: [&str; 4] = ["pip", "npm", "apt", "cargo"];

/// Open directories of the state.
pub struct Store {
    /// `images/layers`.
    pub layers: OwnedFd,
    /// `sessions`.
    pub sessions: OwnedFd,
    /// `workspaces`.
    pub workspaces: OwnedFd,
    /// `cache/build`.
    pub cache: OwnedFd,
    /// `bootstrap`.
    pub bootstrap: OwnedFd,
    /// `.trash`.
    pub trash: OwnedFd,
}

/// Open `name` beneath `dir`, through no link.
///
/// # Errors
/// What openat2(2) says: `ELOOP` for a link, `EXDEV` for a way out.
pub fn open_beneath(dir: impl AsFd, name: &str, flags: OFlags) -> Result<OwnedFd, Errno> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    loop {
        match rustix::fs::openat2(&dir, name, flags | OFlags::CLOEXEC, Mode::empty(), resolve) {
            // A rename elsewhere on the system raced with the look-up; openat2(2) asks to try again.
            Err(Errno::AGAIN) => {}
            other => return other,
        }
    }
}

fn open_dir(dir: impl AsFd, name: &str) -> Result<OwnedFd, Errno> {
    open_beneath(dir, name, OFlags::RDONLY | OFlags::DIRECTORY)
}

impl Store {
    /// Open the state directory, making what of the launcher's is missing in it.
    ///
    /// # Errors
    /// A directory cannot be made, is a link, or belongs to somebody else.
    pub fn open(config: &Config) -> Result<Self> {
        let path = &config.state_dir;
        let root = rustix::fs::open(path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
            .step(|| format!("open the state directory {}", path.display()))?;
        let service = (config.service_uid, config.service_gid);
        let images = match &config.images_dir {
            None => ensure_shared_dir(&root, "images", 0o755, service)?,
            Some(path) => rustix::fs::open(path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
                .step(|| format!("open the image store {}", path.display()))?,
        };
        let workspaces = ensure_shared_dir(&root, "workspaces", 0o711, service)?;
        let cache = ensure_dir(&ensure_dir(&root, "cache", 0o755, (0, 0))?, "build", 0o755, (0, 0))?;
        let disk = config.first_id(0);
        for name in CACHES {
            ensure_dir(&cache, name, 0o755, (disk, disk))?;
        }
        Ok(Self {
            layers: ensure_dir(&images, "layers", 0o755, (0, 0))?,
            sessions: ensure_dir(&root, "sessions", 0o711, (0, 0))?,
            workspaces,
            cache,
            bootstrap: ensure_dir(&root, "bootstrap", 0o700, (0, 0))?,
            trash: ensure_dir(&root, ".trash", 0o700, (0, 0))?,
        })
    }

    /// The write layer of `id`, with its `upper` and `work`, made if it is missing. `disk` is its owner.
    ///
    /// # Errors
    /// It cannot be made or opened.
    pub fn write_layer(&self, id: &SessionId, disk: u32) -> Result<OwnedFd> {
        let dir = ensure_dir(&self.sessions, id.as_str(), 0o755, (0, 0))?;
        ensure_dir(&dir, "upper", 0o755, (disk, disk))?;
        ensure_dir(&dir, "work", 0o700, (disk, disk))?;
        Ok(dir)
    }

    /// Whether `layer` is there, whole.
    #[must_use]
    pub fn has_layer(&self, layer: &LayerId) -> bool {
        open_dir(&self.layers, layer.as_str()).is_ok()
    }

    /// The workspace of `id`, which must be a directory of the service's own.
    ///
    /// # Errors
    /// It is missing, a link, or another's.
    pub fn workspace(&self, id: &SessionId, service_uid: u32) -> Result<OwnedFd> {
        let step = || format!("open workspace workspaces/{id}/workspace");
        let fd = open_dir(&self.workspaces, &format!("{id}/workspace")).step(step)?;
        let stat = rustix::fs::fstat(&fd).step(step)?;
        if stat.st_uid != service_uid {
            return Err(Failure::new(format!("{}: it belongs to uid {}, not to {service_uid}", step(), stat.st_uid)));
        }
        Ok(fd)
    }

    /// Make an empty directory for a layer that is to be unpacked; its name and itself.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn stage(&self, layer: &LayerId, disk: u32) -> Result<(String, OwnedFd)> {
        let name = format!("{STAGING}{layer}-{}", unique());
        rustix::fs::mkdirat(&self.layers, &name, Mode::from_raw_mode(0o755)).step(|| format!("make {name}"))?;
        let dir = own_dir(&self.layers, &name, 0o755, (disk, disk))?;
        Ok((name, dir))
    }

    /// Give a staged directory its name in the image store. Whether it was not there yet.
    ///
    /// # Errors
    /// The rename or the flush to disk failed.
    pub fn publish(&self, from: impl AsFd, name: &str, layer: &LayerId) -> Result<bool> {
        rustix::fs::syncfs(&self.layers).step(|| format!("flush layer {layer} to disk"))?;
        match rustix::fs::renameat_with(&from, name, &self.layers, layer.as_str(), RenameFlags::NOREPLACE) {
            Ok(()) => {
                rustix::fs::fsync(&self.layers).step(|| format!("flush the name of layer {layer} to disk"))?;
                Ok(true)
            }
            Err(Errno::EXIST) => Ok(false),
            Err(errno) => Err(Failure::of(format!("rename {name} to layer {layer}"), errno)),
        }
    }

    /// Move `dir/name` out of the way, to be deleted later. Done also if there is none.
    ///
    /// # Errors
    /// The rename failed.
    pub fn discard(&self, dir: impl AsFd, name: &str) -> Result<()> {
        match rustix::fs::renameat(&dir, name, &self.trash, unique()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(Failure::of(format!("move {name} to the trash"), errno)),
        }
    }

    /// Make a directory for `recipe` to work in; its name and itself.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn bootstrap_dir(&self, recipe: &str) -> Result<(String, OwnedFd)> {
        let name = format!("{recipe}@{}", unique());
        let dir = ensure_dir(&self.bootstrap, &name, 0o1777, (0, 0))?;
        Ok((name, dir))
    }

    /// Discard the staged directories of one layer, or of all: what an interrupted unpacking left.
    ///
    /// # Errors
    /// The directory cannot be read, or a rename failed.
    pub fn discard_staged(&self, layer: Option<&LayerId>) -> Result<()> {
        let prefix = layer.map_or_else(|| STAGING.to_owned(), |layer| format!("{STAGING}{layer}-"));
        self.discard_prefixed(&self.layers, &prefix)
    }

    /// Discard the working directories of one recipe, or of all.
    ///
    /// # Errors
    /// The directory cannot be read, or a rename failed.
    pub fn discard_bootstraps(&self, recipe: Option<&str>) -> Result<()> {
        let prefix = recipe.map_or_else(String::new, |recipe| format!("{recipe}@"));
        self.discard_prefixed(&self.bootstrap, &prefix)
    }

    fn discard_prefixed(&self, dir: &OwnedFd, prefix: &str) -> Result<()> {
        for entry in rustix::fs::Dir::read_from(dir).step(|| "read what was left")? {
            let entry = entry.step(|| "read what was left")?;
            let name = entry.file_name().to_string_lossy();
            if name.starts_with(prefix) && name != "." && name != ".." {
                self.discard(dir, &name)?;
            }
        }
        Ok(())
    }
}

/// A name that no other process of this boot uses at the same time.
#[must_use]
pub fn unique() -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let now = std::time::UNIX_EPOCH.elapsed().unwrap_or_default().as_nanos();
    format!("{now:x}-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed))
}

/// Open the directory `name` in `dir`, made if it is missing, and check that it is `owner`'s.
fn ensure_dir(dir: impl AsFd, name: &str, mode: u32, owner: (u32, u32)) -> Result<OwnedFd> {
    match rustix::fs::mkdirat(&dir, name, Mode::from_raw_mode(mode)) {
        Ok(()) => own_dir(dir, name, mode, owner),
        Err(Errno::EXIST) => {
            let fd = open_dir(&dir, name).step(|| format!("open directory {name}"))?;
            let uid = rustix::fs::fstat(&fd).step(|| format!("stat directory {name}"))?.st_uid;
            if uid == owner.0 {
                Ok(fd)
            } else {
                Err(Failure::new(format!("directory {name} belongs to uid {uid}, not to {}", owner.0)))
            }
        }
        Err(errno) => Err(Failure::of(format!("make directory {name}"), errno)),
    }
}

/// The same for one that the service uses as well: it appears with its owner, so that whoever starts first is no matter.
fn ensure_shared_dir(dir: impl AsFd, name: &str, mode: u32, owner: (u32, u32)) -> Result<OwnedFd> {
    if matches!(open_dir(&dir, name), Err(Errno::NOENT)) {
        let fresh = format!(".new-{name}");
        ensure_dir(&dir, &fresh, mode, (0, 0)).or_else(|_| ensure_dir(&dir, &fresh, mode, owner))?;
        own_dir(&dir, &fresh, mode, owner)?;
        match rustix::fs::renameat_with(&dir, &fresh, &dir, name, RenameFlags::NOREPLACE) {
            Ok(()) => {}
            // The service was first.
            Err(Errno::EXIST) => {
                let _ = rustix::fs::unlinkat(&dir, &fresh, AtFlags::REMOVEDIR);
            }
            Err(errno) => return Err(Failure::of(format!("make directory {name}"), errno)),
        }
    }
    ensure_dir(dir, name, mode, owner)
}

/// Open a directory that was just made, and give it to `owner`.
fn own_dir(dir: impl AsFd, name: &str, mode: u32, owner: (u32, u32)) -> Result<OwnedFd> {
    let fd = open_dir(dir, name).step(|| format!("open directory {name}"))?;
    rustix::fs::fchown(&fd, Some(Uid::from_raw(owner.0)), Some(Gid::from_raw(owner.1)))
        .and_then(|()| rustix::fs::fchmod(&fd, Mode::from_raw_mode(mode)))
        .step(|| format!("give directory {name} to uid {}", owner.0))?;
    Ok(fd)
}

/// Whether `name` in `dir` is a directory, not following a link.
#[must_use]
pub fn is_dir(dir: BorrowedFd<'_>, name: &str) -> bool {
    rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW)
        .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Directory)
}
