//! Deleting trees that strangers filled: beneath descriptors, following no link, of any depth.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, Dir, FileType, OFlags, ResolveFlags};
use rustix::io::Errno;

use crate::store;

/// Directories open at once. A deeper one is moved up to the trash first and deleted from there.
const MAX_DEPTH: u32 = 32;

/// Delete everything in the directory `trash`, also what is put there meanwhile.
///
/// # Errors
/// The first entry that could not be deleted; the others are.
pub fn empty(trash: BorrowedFd<'_>) -> Result<(), Errno> {
    loop {
        let mut failed = None;
        let mut deleted = false;
        for entry in Dir::read_from(trash)? {
            let entry = entry?;
            if matches!(entry.file_name().to_bytes(), b"." | b"..") {
                continue;
            }
            match delete(trash, trash, entry.file_name(), entry.file_type(), MAX_DEPTH) {
                Ok(()) => deleted = true,
                Err(errno) => failed = failed.or(Some(errno)),
            }
        }
        if let Some(errno) = failed {
            return Err(errno);
        }
        if !deleted {
            return Ok(());
        }
    }
}

/// Delete the directory `name` in `parent` and all beneath it; `trash`, of the same file system, takes what is too deep.
///
/// # Errors
/// The first entry that could not be deleted.
pub fn tree(trash: impl AsFd, parent: impl AsFd, name: &std::ffi::CStr) -> Result<(), Errno> {
    delete(trash.as_fd(), parent.as_fd(), name, FileType::Directory, MAX_DEPTH)
}

fn delete(
    trash: BorrowedFd<'_>,
    parent: BorrowedFd<'_>,
    name: &std::ffi::CStr,
    kind: FileType,
    depth: u32,
) -> Result<(), Errno> {
    if kind != FileType::Directory && kind != FileType::Unknown {
        return rustix::fs::unlinkat(parent, name, AtFlags::empty());
    }
    if depth == 0 {
        return rustix::fs::renameat(parent, name, trash, store::unique());
    }
    let dir = match open_dir(parent, name) {
        Ok(dir) => dir,
        Err(Errno::NOTDIR | Errno::LOOP) => return rustix::fs::unlinkat(parent, name, AtFlags::empty()),
        Err(errno) => return Err(errno),
    };
    for entry in Dir::read_from(&dir)? {
        let entry = entry?;
        if !matches!(entry.file_name().to_bytes(), b"." | b"..") {
            delete(trash, dir.as_fd(), entry.file_name(), entry.file_type(), depth - 1)?;
        }
    }
    rustix::fs::unlinkat(parent, name, AtFlags::REMOVEDIR)
}

fn open_dir(parent: BorrowedFd<'_>, name: &std::ffi::CStr) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
    rustix::fs::openat2(parent, name, flags, rustix::fs::Mode::empty(), resolve)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn links_are_removed_and_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let outside = dir.path().join("outside");
        let trash = dir.path().join("trash");
        std::fs::create_dir_all(trash.join("tree/sub")).unwrap();
        std::fs::create_dir(&outside).unwrap();
        std::fs::write(outside.join("kept"), "kept").unwrap();
        symlink(&outside, trash.join("tree/link")).unwrap();
        symlink(&outside, trash.join("link")).unwrap();
        std::fs::hard_link(outside.join("kept"), trash.join("tree/sub/hard")).unwrap();
        let fd = std::fs::File::open(&trash).unwrap();
        empty(fd.as_fd()).unwrap();
        assert_eq!(std::fs::read_dir(&trash).unwrap().count(), 0);
        assert_eq!(std::fs::read_to_string(outside.join("kept")).unwrap(), "kept");
    }

    #[test]
    fn a_tree_deeper_than_any_path_is_deleted() {
        let dir = tempfile::tempdir().unwrap();
        let mut fd: OwnedFd = std::fs::File::open(dir.path()).unwrap().into();
        for _ in 0..3000 {
            rustix::fs::mkdirat(&fd, "deep", rustix::fs::Mode::from_raw_mode(0o700)).unwrap();
            fd =
                rustix::fs::openat(&fd, "deep", OFlags::DIRECTORY | OFlags::RDONLY, rustix::fs::Mode::empty()).unwrap();
        }
        let trash = std::fs::File::open(dir.path()).unwrap();
        empty(trash.as_fd()).unwrap();
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
