//! The only way to a file: by `openat2`, beneath a descriptor, through no link and no mount.
//!
//! Code in the sandbox swaps components for links while they are looked at. The kernel checks each
//! component as it walks (openat2(2)), so nothing outside of the workspace is reached however
//! often they change. Calls that take a single name next to a directory's descriptor
//! (`unlinkat`, `renameat`, `mkdirat`, `fstatat` with `AT_SYMLINK_NOFOLLOW`) follow nothing either.

use std::ffi::CStr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use rustix::path::Arg;

use super::Workspace;
use super::error::{FileError, Op, Why};
use super::place::Place;

/// Opens `path` beneath `dir`; empty is `dir` itself. `flags` gets `O_CLOEXEC`, `O_NOCTTY`.
pub(super) fn open_beneath(dir: BorrowedFd<'_>, path: &str, flags: OFlags) -> Result<OwnedFd, Errno> {
    let path = if path.is_empty() { "." } else { path };
    open_how(dir, path, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS)
}

/// Opens the entry `name` of `dir`, as a directory lists it: any bytes.
pub(super) fn open_entry(dir: BorrowedFd<'_>, name: &CStr, flags: OFlags) -> Result<OwnedFd, Errno> {
    open_how(dir, name, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS)
}

/// Opens a directory for lookups beneath it alone: needs no permission to read it.
pub(super) fn open_dir(dir: BorrowedFd<'_>, path: &str) -> Result<OwnedFd, Errno> {
    open_beneath(dir, path, OFlags::PATH | OFlags::DIRECTORY)
}

/// Finds out what links in `path` lead to, as long as they stay beneath `dir`: `EXDEV` for one that does not.
pub(super) fn follow_beneath(dir: BorrowedFd<'_>, path: &str) -> Result<OwnedFd, Errno> {
    open_how(dir, path, OFlags::PATH, Mode::empty(), ResolveFlags::empty())
}

/// Creates the file `name` in `dir`, for writing. `EEXIST` if anything has this name, a link included.
pub(super) fn create(dir: BorrowedFd<'_>, name: &str, mode: Mode) -> Result<OwnedFd, Errno> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW;
    open_how(dir, name, flags, mode, ResolveFlags::NO_SYMLINKS)
}

/// Creates a file without a name in `dir`, for writing: gone with its last descriptor unless [`link`]ed.
/// `EOPNOTSUPP` where the file system cannot.
pub(super) fn create_unnamed(dir: BorrowedFd<'_>, mode: Mode) -> Result<OwnedFd, Errno> {
    open_how(dir, ".", OFlags::WRONLY | OFlags::TMPFILE, mode, ResolveFlags::NO_SYMLINKS)
}

/// Gives the file that was [`create_unnamed`] the name `name` in `dir`. `EEXIST` if anything has it.
pub(super) fn link(file: BorrowedFd<'_>, dir: BorrowedFd<'_>, name: &str) -> Result<(), Errno> {
    // By descriptor alone only the privileged may; by this path whoever has it open.
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    rustix::fs::linkat(CWD, path, dir, name, AtFlags::SYMLINK_FOLLOW)
}

fn open_how<P: Arg + Copy>(
    dir: BorrowedFd<'_>,
    path: P,
    flags: OFlags,
    mode: Mode,
    resolve: ResolveFlags,
) -> Result<OwnedFd, Errno> {
    let resolve = resolve | ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS | ResolveFlags::NO_XDEV;
    let flags = flags | OFlags::CLOEXEC;
    // With `O_PATH` the kernel refuses `O_NOCTTY`.
    let flags = if flags.contains(OFlags::PATH) { flags } else { flags | OFlags::NOCTTY };
    rustix::io::retry_on_intr(|| rustix::fs::openat2(dir, path, flags, mode, resolve))
}

impl Workspace {
    pub(super) fn root(&self) -> BorrowedFd<'_> {
        self.root.as_fd()
    }

    /// The place that `path` names, its `..` checked: text and kernel agree about it.
    pub(super) fn place(&self, path: &str) -> Result<Place, FileError> {
        let place = Place::parse(path, &self.work_dir)?;
        for climbed in place.climbed() {
            open_dir(self.root(), climbed).map_err(|_| place.not_native(Why::Unclear))?;
        }
        Ok(place)
    }
}

impl Place {
    /// What `errno` means when `op` meets it here.
    pub(super) fn error(&self, op: Op, errno: Errno) -> FileError {
        match errno {
            // `file/`: the kernel says no, a client that normalises first says yes.
            Errno::NOTDIR if self.must_be_dir() => self.not_native(Why::Unclear),
            errno => FileError::from_errno(op, self.absolute(), errno),
        }
    }
}
