//! The state directory: where layers, write layers and workspaces are, always beneath a descriptor.
//!
//! ```text
//! state_dir/
//!   images/layers/LAYER          root's directory; each layer's content belongs to slot 0's ids
//!   images/layers/.staging-…     a layer being unpacked, locked by whoever does; swept at start
//!   images/frames/LAYER          what its archive is besides the content of files (`frame`)
//!   sessions/ID/{upper,work}     write layers
//!   workspaces/ID/workspace      made by the service, its own
//!   cache/build/{pip,npm,apt,cargo}
//!   bootstrap/RECIPE@…           what a recipe works in; swept at start
//!   .trash/                      renamed here first, deleted behind the answer
//! ```
//! An image store elsewhere, which may be on another file system, has a `.trash/` of its own beside its `layers/`.
//! No name that came in a message is ever resolved through a link, nor out of these directories.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, FileType, FlockOperation, Gid, Mode, OFlags, RenameFlags, ResolveFlags, Uid};
use rustix::io::Errno;
use wire::id::{LayerId, SessionId};

use crate::config::Config;
use crate::error::{Failure, Result, Step};

/// Prefix of a layer that is not complete, in `images/layers`.
const STAGING: &str = ".staging-";
/// How long a sweep waits for processes that are just dying, and between two looks.
const PATIENCE: Duration = Duration::from_millis(300);
const TURN: Duration = Duration::from_millis(10);
/// How long staging and sweeping wait for one another: longer than a sweep waits itself.
const LOCK_PATIENCE: Duration = Duration::from_secs(2);
/// Package caches that builds share, below `cache/build`.
pub const CACHES: [&str; 4] = ["pip", "npm", "apt", "cargo"];

/// Open directories of the state.
pub struct Store {
    /// `images/layers`.
    pub layers: OwnedFd,
    /// `images/frames`.
    pub frames: OwnedFd,
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
    /// That of the image store.
    pub layer_trash: OwnedFd,
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
        let trash = ensure_dir(&root, ".trash", 0o700, (0, 0))?;
        let layer_trash = match &config.images_dir {
            None => trash.try_clone().step(|| "share the trash")?,
            Some(_) => ensure_dir(&images, ".trash", 0o700, (0, 0))?,
        };
        let store = Self {
            layers: ensure_dir(&images, "layers", 0o755, (0, 0))?,
            frames: ensure_dir(&images, "frames", 0o755, (0, 0))?,
            sessions: ensure_dir(&root, "sessions", 0o711, (0, 0))?,
            workspaces,
            cache,
            bootstrap: ensure_dir(&root, "bootstrap", 0o700, (0, 0))?,
            trash,
            layer_trash,
        };
        store.make_caches(config)?;
        Ok(store)
    }

    /// Make the package caches that are missing.
    ///
    /// # Errors
    /// [`Self::make_cache`].
    pub fn make_caches(&self, config: &Config) -> Result<()> {
        CACHES.iter().try_for_each(|name| self.make_cache(name, config.first_id(0)))
    }

    /// Make the package cache `name` if it is missing. `disk` is its owner.
    ///
    /// # Errors
    /// It cannot be made or given to its owner.
    pub fn make_cache(&self, name: &str, disk: u32) -> Result<()> {
        match rustix::fs::mkdirat(&self.cache, name, Mode::from_raw_mode(0o755)) {
            // Steps of builds are root in there: whom they give it to must not keep us from starting.
            Ok(()) | Err(Errno::EXIST) => own_dir(&self.cache, name, 0o755, (disk, disk)).map(drop),
            Err(errno) => Err(Failure::of(format!("make directory {name}"), errno)),
        }
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

    /// Make an empty directory for a layer that is to be unpacked; its name and itself, locked as long as it is open.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn stage(&self, layer: &LayerId, disk: u32) -> Result<(String, OwnedFd)> {
        let _still = self.hold(FlockOperation::NonBlockingLockShared)?;
        let name = format!("{STAGING}{layer}-{}", unique());
        rustix::fs::mkdirat(&self.layers, &name, Mode::from_raw_mode(0o755)).step(|| format!("make {name}"))?;
        let dir = own_dir(&self.layers, &name, 0o755, (disk, disk))?;
        lock(&dir).step(|| format!("lock {name}"))?;
        Ok((name, dir))
    }

    /// Until this is closed nobody sweeps, if it is shared; and nothing new is staged, if it is exclusive. The service can open the
    /// directory as well, so nobody is waited for without end.
    fn hold(&self, how: FlockOperation) -> Result<OwnedFd> {
        // A description of its own: that of `layers` is everybody's who was forked from here.
        let held = open_dir(&self.layers, ".").step(|| "open the layers once more")?;
        let until = Instant::now() + LOCK_PATIENCE;
        loop {
            match rustix::fs::flock(&held, how) {
                Ok(()) => return Ok(held),
                Err(Errno::WOULDBLOCK | Errno::INTR) if Instant::now() < until => std::thread::sleep(TURN),
                Err(errno) => {
                    return Err(Failure::of("lock images/layers, where layers are staged and swept", errno));
                }
            }
        }
    }

    /// A new file for the frame of the layer that is staged as `name`, locked as long as it is open.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn stage_frame(&self, name: &str) -> Result<OwnedFd> {
        let _still = self.hold(FlockOperation::NonBlockingLockShared)?;
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let frame = rustix::fs::openat(&self.frames, name, flags, Mode::from_raw_mode(0o600));
        let frame = frame.step(|| format!("make frame {name}"))?;
        lock(&frame).step(|| format!("lock frame {name}"))?;
        Ok(frame)
    }

    /// Give the frame that is staged as `name` that of its layer.
    ///
    /// # Errors
    /// The rename failed.
    pub fn publish_frame(&self, name: &str, layer: &LayerId) -> Result<()> {
        let step = || format!("rename the frame of layer {layer}");
        rustix::fs::renameat(&self.frames, name, &self.frames, layer.as_str()).step(step)
    }

    /// The frame of a layer, if it has one.
    ///
    /// # Errors
    /// It cannot be opened.
    pub fn frame(&self, layer: &LayerId) -> Result<Option<OwnedFd>> {
        match open_beneath(&self.frames, layer.as_str(), OFlags::RDONLY | OFlags::NONBLOCK) {
            Ok(frame) => Ok(Some(frame)),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(Failure::of(format!("open the frame of layer {layer}"), errno)),
        }
    }

    /// Delete a layer, and its frame. Done also if there is none.
    ///
    /// # Errors
    /// The rename or the deletion failed.
    pub fn remove_layer(&self, layer: &LayerId) -> Result<()> {
        self.discard_layer(layer.as_str())?;
        self.remove_frame(layer.as_str())
    }

    /// Discard what was staged as `name` and did not become a layer.
    ///
    /// # Errors
    /// A rename or a deletion failed.
    pub fn discard_staging(&self, name: &str) -> Result<()> {
        self.discard_layer(name)?;
        self.remove_frame(name)
    }

    fn remove_frame(&self, name: &str) -> Result<()> {
        match rustix::fs::unlinkat(&self.frames, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(Failure::of(format!("remove frame {name}"), errno)),
        }
    }

    /// Discard what is staged of `layer`, or of all, and nobody unpacks: what an interrupted unpacking left. Another may unpack
    /// the same: of another image, or of a service that has the same store.
    ///
    /// # Errors
    /// A directory cannot be read, a rename or a deletion failed.
    pub fn sweep_staged(&self, layer: Option<&LayerId>) -> Result<()> {
        let _alone = self.hold(FlockOperation::NonBlockingLockExclusive)?;
        let until = Instant::now() + PATIENCE;
        let is_staged = |name: &str| {
            let staged = name.strip_prefix(STAGING);
            staged.is_some_and(|name| layer.is_none_or(|layer| name.starts_with(layer.as_str())))
        };
        for name in names(&self.layers)?.iter().filter(|name| is_staged(name)) {
            if is_left(&self.layers, name, until) {
                self.discard_layer(name)?;
            }
        }
        for name in names(&self.frames)?.iter().filter(|name| is_staged(name)) {
            if is_left(&self.frames, name, until) {
                self.remove_frame(name)?;
            }
        }
        Ok(())
    }

    /// Remove frames of layers that are not there.
    ///
    /// # Errors
    /// The directory cannot be read, or a deletion failed.
    pub fn sweep_frames(&self) -> Result<()> {
        let _alone = self.hold(FlockOperation::NonBlockingLockExclusive)?;
        for name in names(&self.frames)? {
            let is_needed = |name: &str| LayerId::parse(name).is_ok_and(|layer| self.has_layer(&layer));
            if !name.starts_with(STAGING) && !is_needed(&name) && is_nobodys(&self.frames, &name) {
                self.remove_frame(&name)?;
            }
        }
        Ok(())
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
        throw(dir, name, &self.trash)
    }

    /// The same with something of the layers'.
    ///
    /// # Errors
    /// The rename failed.
    pub fn discard_layer(&self, name: &str) -> Result<()> {
        throw(&self.layers, name, &self.layer_trash)
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

    /// Discard the working directories of one recipe, or of all.
    ///
    /// # Errors
    /// The directory cannot be read, or a rename failed.
    pub fn discard_bootstraps(&self, recipe: Option<&str>) -> Result<()> {
        let prefix = recipe.map_or_else(String::new, |recipe| format!("{recipe}@"));
        for name in names(&self.bootstrap)?.iter().filter(|name| name.starts_with(&prefix)) {
            self.discard(&self.bootstrap, name)?;
        }
        Ok(())
    }
}

fn throw(dir: impl AsFd, name: &str, trash: &OwnedFd) -> Result<()> {
    match rustix::fs::renameat(&dir, name, trash, unique()) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(errno) => Err(Failure::of(format!("move {name} to the trash"), errno)),
    }
}

/// What is in a directory of ours, by name.
fn names(dir: &OwnedFd) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in rustix::fs::Dir::read_from(dir).step(|| "read what was left")? {
        let entry = entry.step(|| "read what was left")?;
        let name = entry.file_name().to_string_lossy();
        if name != "." && name != ".." {
            names.push(name.into_owned());
        }
    }
    Ok(names)
}

/// Say that somebody works on it, until the last descriptor of it is closed or its process dies (flock(2)).
fn lock(staged: impl AsFd) -> rustix::io::Result<()> {
    rustix::fs::flock(staged, FlockOperation::NonBlockingLockShared)
}

/// Whether nobody works on what is staged as `name`.
fn is_nobodys(dir: &OwnedFd, name: &str) -> bool {
    match open_beneath(dir, name, OFlags::RDONLY | OFlags::NONBLOCK) {
        Ok(staged) => rustix::fs::flock(staged, FlockOperation::NonBlockingLockExclusive) != Err(Errno::WOULDBLOCK),
        // A link or what else there should not be.
        Err(_) => true,
    }
}

/// The same, for whose process may have died in this moment: it is waited for until then.
fn is_left(dir: &OwnedFd, name: &str, until: Instant) -> bool {
    loop {
        if is_nobodys(dir, name) {
            return true;
        }
        if Instant::now() >= until {
            return false;
        }
        std::thread::sleep(TURN);
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

    fn store(root: &std::path::Path) -> Store {
        let dir = |name: &str| {
            std::fs::create_dir_all(root.join(name)).unwrap();
            OwnedFd::from(File::open(root.join(name)).unwrap())
        };
        Store {
            layers: dir("layers"),
            frames: dir("frames"),
            sessions: dir("sessions"),
            workspaces: dir("workspaces"),
            cache: dir("cache"),
            bootstrap: dir("bootstrap"),
            trash: dir(".trash"),
            layer_trash: dir(".trash"),
        }
    }

    #[test]
    fn a_launcher_that_starts_leaves_what_another_unpacks() {
        let root = tempfile::tempdir().unwrap();
        let (one, other) = (store(root.path()), store(root.path()));
        let layer = LayerId::parse(&"a".repeat(64)).unwrap();
        let names = || {
            let names = ["layers", "frames"].map(|name| std::fs::read_dir(root.path().join(name)).unwrap().count());
            (names[0], names[1])
        };
        let sweep = || {
            other.sweep_staged(None).unwrap();
            other.sweep_frames().unwrap();
        };
        let user = rustix::process::geteuid().as_raw();
        let (name, dir) = one.stage(&layer, user).unwrap();
        let frame = one.stage_frame(&name).unwrap();
        // Another image has it as well.
        let (same, same_dir) = other.stage(&layer, user).unwrap();
        let same_frame = other.stage_frame(&same).unwrap();
        // A child that it is given to has it as well.
        let inherited = (dir.try_clone().unwrap(), frame.try_clone().unwrap());
        drop((dir, frame));
        sweep();
        assert_eq!(names(), (2, 2));
        // A frame has its name before its layer has.
        one.publish_frame(&name, &layer).unwrap();
        sweep();
        assert_eq!(names(), (2, 2));
        assert!(one.publish(&one.layers, &name, &layer).unwrap());
        other.publish_frame(&same, &layer).unwrap();
        assert!(!other.publish(&other.layers, &same, &layer).unwrap());
        other.discard_staging(&same).unwrap();
        drop((inherited, same_dir, same_frame));
        sweep();
        assert_eq!(names(), (1, 1), "whole, and needed");

        // Staging waits for a sweep, and not for ever.
        let sweeping = other.hold(FlockOperation::NonBlockingLockExclusive).unwrap();
        let refused = one.stage(&layer, user).unwrap_err().chain();
        assert!(refused.contains("lock images/layers"), "{refused}");
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| one.stage(&layer, user));
            std::thread::sleep(TURN);
            drop(sweeping);
            let (name, _dir) = waits.join().unwrap().unwrap();
            one.discard_staging(&name).unwrap();
        });

        // What somebody left who died goes.
        let second = LayerId::parse(&"b".repeat(64)).unwrap();
        let (name, dir) = one.stage(&second, user).unwrap();
        drop((one.stage_frame(&name).unwrap(), dir));
        std::os::unix::fs::symlink("/etc", root.path().join(format!("layers/{STAGING}link"))).unwrap();
        sweep();
        assert_eq!(names(), (1, 1));
        assert!(root.path().join("layers").join(layer.as_str()).is_dir());
    }
}
