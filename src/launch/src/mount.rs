//! Mounts as descriptors: cloned, mapped and locked down while nothing can see them, then attached to a place that
//! was opened before, never to a path that somebody could swap.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, OpenTreeFlags};

use crate::error::{Failure, Result, Step};
use crate::sys;

/// Nothing below is a device, nor set-uid.
pub const LOCKED: u64 = libc::MOUNT_ATTR_NODEV | libc::MOUNT_ATTR_NOSUID;
/// [`LOCKED`], and nothing can be written.
pub const READ_ONLY: u64 = LOCKED | libc::MOUNT_ATTR_RDONLY;

/// A mount that is attached nowhere: a clone of what `fd` is in.
///
/// # Errors
/// What open_tree(2) or mount_setattr(2) says.
pub fn clone_of(fd: impl AsFd, attributes: u64, mapping: Option<BorrowedFd<'_>>) -> Result<OwnedFd, Errno> {
    let flags = OpenTreeFlags::AT_EMPTY_PATH | OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    let mount = rustix::mount::open_tree(fd, "", flags)?;
    sys::mount_setattr(mount.as_fd(), attributes, mapping)?;
    Ok(mount)
}

/// Likewise of a path of the host's, which only configuration or this program names.
///
/// # Errors
/// What open(2), open_tree(2) or mount_setattr(2) says.
pub fn clone_of_path(path: &Path, attributes: u64) -> Result<OwnedFd> {
    let step = || format!("clone a mount of {}", path.display());
    let fd = rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).step(step)?;
    clone_of(fd, attributes, None).step(step)
}

/// A new tmpfs that is attached nowhere.
///
/// # Errors
/// What fsconfig(2) says.
pub fn tmpfs(options: &[(&str, &str)], attributes: MountAttrFlags) -> Result<OwnedFd, Errno> {
    let context = rustix::mount::fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    for (key, value) in options {
        rustix::mount::fsconfig_set_string(&context, *key, *value)?;
    }
    rustix::mount::fsconfig_create(&context)?;
    rustix::mount::fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes)
}

/// Attach `mount` on what `place` is.
///
/// # Errors
/// What move_mount(2) says.
pub fn attach(mount: impl AsFd, place: impl AsFd) -> Result<(), Errno> {
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    rustix::mount::move_mount(mount, "", place, "", flags)
}

/// What a mount point is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Point {
    /// A directory.
    Dir,
    /// A regular file.
    File,
}

/// Open the mount point `path` in the root file system `root`, making what is missing of it as the sandbox's root
/// `owner`. What the image has there is hostile: a link on the way is refused, whatever it points to.
///
/// # Errors
/// A component is a link, or not what it must be, or cannot be made.
pub fn point(root: BorrowedFd<'_>, path: &str, kind: Point, owner: u32) -> Result<OwnedFd> {
    let mut parts = path.split('/').filter(|part| !part.is_empty()).peekable();
    let mut place = root.try_clone_to_owned().step(|| format!("open mount point {path}"))?;
    while let Some(part) = parts.next() {
        let kind = if parts.peek().is_some() { Point::Dir } else { kind };
        place = component(&place, part, kind, owner).map_err(|errno| match errno {
            Errno::LOOP => Failure::of(format!("open mount point {path}: the image has a link at {part}"), errno),
            _ => Failure::of(format!("open mount point {path} at {part}"), errno),
        })?;
    }
    Ok(place)
}

/// If `path` in the root file system `root` is a link, remove it as the sandbox's root `owner`, to the write layer.
///
/// # Errors
/// Its directory cannot be opened, or the link not removed.
pub fn remove_link(root: BorrowedFd<'_>, path: &str, owner: u32) -> Result<()> {
    let (parent, name) = path.rsplit_once('/').unwrap_or(("", path));
    let dir = point(root, parent, Point::Dir, owner)?;
    let stat = rustix::fs::statat(&dir, name, AtFlags::SYMLINK_NOFOLLOW);
    if !stat.is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode).is_symlink()) {
        return Ok(());
    }
    sys::set_fs_ids(owner, owner);
    let removed = rustix::fs::unlinkat(&dir, name, AtFlags::empty());
    sys::set_fs_ids(0, 0);
    removed.step(|| format!("remove the image's link at {path}"))
}

fn component(dir: &OwnedFd, name: &str, kind: Point, owner: u32) -> Result<OwnedFd, Errno> {
    match open_component(dir, name, kind) {
        Err(Errno::NOENT) => {
            make_as(dir, name, kind, owner)?;
            open_component(dir, name, kind)
        }
        other => other,
    }
}

fn open_component(dir: &OwnedFd, name: &str, kind: Point) -> Result<OwnedFd, Errno> {
    let flags = match kind {
        Point::Dir => OFlags::PATH | OFlags::DIRECTORY,
        Point::File => OFlags::PATH,
    };
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let fd = rustix::fs::openat2(dir, name, flags | OFlags::CLOEXEC, Mode::empty(), resolve)?;
    let is_file = FileType::from_raw_mode(rustix::fs::fstat(&fd)?.st_mode).is_file();
    if kind == Point::File && !is_file { Err(Errno::INVAL) } else { Ok(fd) }
}

fn make_as(dir: &OwnedFd, name: &str, kind: Point, owner: u32) -> Result<(), Errno> {
    sys::set_fs_ids(owner, owner);
    let made = match kind {
        Point::Dir => rustix::fs::mkdirat(dir, name, Mode::from_raw_mode(0o755)),
        Point::File => {
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
            rustix::fs::openat(dir, name, flags, Mode::from_raw_mode(0o644)).map(drop)
        }
    };
    sys::set_fs_ids(0, 0);
    made
}

/// Open `path` of the launcher's own private tree.
///
/// # Errors
/// What open(2) says.
pub fn open_own(path: &str) -> Result<OwnedFd> {
    rustix::fs::openat(CWD, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).step(|| format!("open {path}"))
}
