//! Looking at every file of a tree that strangers fill, of any depth: what it uses of the disk.
//!
//! One directory is open at a time, and nothing but directories: the way back up is `..`, and it must lead to where
//! we came from. Files that have no name any more are not found. A look costs some 2 µs for each entry that the kernel
//! has in memory, and ends after [`TIME`] or [`ENTRIES_MAX`].

use std::collections::HashSet;
use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags, Stat};
use rustix::io::Errno;
use wire::launch::DiskUsage;

/// How long one request may look.
const TIME: Duration = Duration::from_secs(20);
/// Entries of one tree that are looked at; their names and numbers are kept in memory.
const ENTRIES_MAX: u64 = 4_000_000;
/// The unit of `st_blocks`, stat(2), in bytes.
const BLOCK: u64 = 512;

/// Something that was found.
pub struct Entry<'a> {
    /// Where.
    pub parent: BorrowedFd<'a>,
    /// Its name there.
    pub name: &'a CStr,
    /// What it is; a link itself.
    pub stat: &'a Stat,
}

impl Entry<'_> {
    /// Its type.
    #[must_use]
    pub fn kind(&self) -> FileType {
        FileType::from_raw_mode(self.stat.st_mode)
    }
}

/// When a look that begins now ends.
#[must_use]
pub fn soon() -> Instant {
    Instant::now() + TIME
}

/// What the directory `root` uses, with all that is beneath it on its file system.
#[must_use]
pub fn tree(root: &OwnedFd, until: Instant) -> DiskUsage {
    let mut usage = DiskUsage::default();
    let mut linked = HashSet::new();
    let mut count = |stat: &Stat, directory: bool| {
        // A file with several names is one.
        if directory || stat.st_nlink == 1 || linked.insert(stat.st_ino) {
            usage.bytes = usage.bytes.saturating_add(u64::try_from(stat.st_blocks).unwrap_or(0).saturating_mul(BLOCK));
            usage.inodes += 1;
        }
    };
    if let Ok(stat) = rustix::fs::fstat(root) {
        count(&stat, true);
    }
    let complete = walk(root, until, &mut |entry| {
        count(entry.stat, entry.kind() == FileType::Directory);
        Ok(())
    });
    DiskUsage { complete: complete.unwrap_or(false), ..usage }
}

/// A directory on the way down, and which of those in it are to be looked at.
struct Level {
    at: (u64, u64),
    pending: Vec<CString>,
}

/// Visit everything beneath `root` on its file system, each directory before what is in it. Whether that was all:
/// time or memory may have run out, or somebody has moved a directory meanwhile.
///
/// # Errors
/// A directory cannot be read, or `visit` failed.
pub fn walk(
    root: &OwnedFd,
    until: Instant,
    visit: &mut dyn FnMut(&Entry<'_>) -> Result<(), Errno>,
) -> Result<bool, Errno> {
    let mut here = open_dir(root.as_fd(), c".")?;
    let device = place(&here)?.0;
    let mut seen = 0;
    let mut way = vec![Level { at: place(&here)?, pending: look(&here, device, visit, &mut seen)? }];
    while let Some(level) = way.last_mut() {
        if seen > ENTRIES_MAX || Instant::now() >= until {
            return Ok(false);
        }
        if let Some(name) = level.pending.pop() {
            match open_dir(here.as_fd(), &name) {
                Ok(child) => {
                    let pending = look(&child, device, visit, &mut seen)?;
                    way.push(Level { at: place(&child)?, pending });
                    here = child;
                }
                // Gone, or something else by now.
                Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::XDEV) => {}
                Err(errno) => return Err(errno),
            }
            continue;
        }
        way.pop();
        let Some(above) = way.last() else { break };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        here = rustix::fs::openat(&here, c"..", flags, Mode::empty())?;
        if place(&here)? != above.at {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Visit the entries of one directory; the names of the directories among them.
fn look(
    dir: &OwnedFd,
    device: u64,
    visit: &mut dyn FnMut(&Entry<'_>) -> Result<(), Errno>,
    seen: &mut u64,
) -> Result<Vec<CString>, Errno> {
    let mut below = Vec::new();
    for entry in Dir::read_from(dir)? {
        let entry = entry?;
        let name = entry.file_name();
        if matches!(name.to_bytes(), b"." | b"..") {
            continue;
        }
        let stat = match rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) if stat.st_dev == device => stat,
            Ok(_) | Err(Errno::NOENT) => continue,
            Err(errno) => return Err(errno),
        };
        let entry = Entry { parent: dir.as_fd(), name, stat: &stat };
        visit(&entry)?;
        if entry.kind() == FileType::Directory {
            below.push(name.to_owned());
        }
        *seen += 1;
        if *seen > ENTRIES_MAX {
            break;
        }
    }
    Ok(below)
}

/// Open what is called `name` in `parent`, through no link and on the same file system.
///
/// # Errors
/// What openat2(2) says.
pub fn open_entry(parent: BorrowedFd<'_>, name: &CStr, flags: OFlags) -> Result<OwnedFd, Errno> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
    loop {
        let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        match rustix::fs::openat2(parent, name, flags, Mode::empty(), resolve) {
            // A rename elsewhere on the system raced with the look-up; openat2(2) asks to try again.
            Err(Errno::AGAIN) => {}
            other => return other,
        }
    }
}

fn open_dir(parent: BorrowedFd<'_>, name: &CStr) -> Result<OwnedFd, Errno> {
    open_entry(parent, name, OFlags::RDONLY | OFlags::DIRECTORY)
}

fn place(dir: &OwnedFd) -> Result<(u64, u64), Errno> {
    let stat = rustix::fs::fstat(dir)?;
    Ok((stat.st_dev, stat.st_ino))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::unix::fs::{FileExt, symlink};

    fn measured(path: &std::path::Path) -> DiskUsage {
        tree(&File::open(path).unwrap().into(), soon())
    }

    #[test]
    fn sparse_files_count_what_they_hold_and_names_of_one_file_once() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        let empty = measured(dir.path());
        assert_eq!((empty.inodes, empty.complete), (1, true));
        let sparse = File::create(path("sparse")).unwrap();
        sparse.set_len(1 << 40).unwrap();
        sparse.write_all_at(&[1; 4096], 1 << 30).unwrap();
        sparse.sync_all().unwrap();
        std::fs::write(path("file"), vec![1; 100_000]).unwrap();
        File::open(path("file")).unwrap().sync_all().unwrap();
        for name in ["a", "b", "c"] {
            std::fs::hard_link(path("file"), path(name)).unwrap();
        }
        symlink("/", path("link")).unwrap();
        let usage = measured(dir.path());
        assert_eq!(usage.inodes, 4);
        let grown = usage.bytes - empty.bytes;
        assert!((104_000..200_000).contains(&grown), "{grown}");
    }

    #[test]
    fn a_tree_deeper_than_any_path_is_looked_at_whole() {
        let dir = tempfile::tempdir().unwrap();
        let mut fd: OwnedFd = File::open(dir.path()).unwrap().into();
        for _ in 0..3000 {
            rustix::fs::mkdirat(&fd, "deep", Mode::RWXU).unwrap();
            fd = rustix::fs::openat(&fd, "deep", OFlags::DIRECTORY, Mode::empty()).unwrap();
        }
        let file = rustix::fs::openat(&fd, "file", OFlags::CREATE | OFlags::WRONLY, Mode::RWXU).unwrap();
        rustix::io::write(&file, &[1; 4096]).unwrap();
        let usage = measured(dir.path());
        assert_eq!((usage.inodes, usage.complete), (3002, true));
        let late = tree(&File::open(dir.path()).unwrap().into(), Instant::now());
        assert!(!late.complete && late.inodes < 3000);
        crate::remove::empty(File::open(dir.path()).unwrap().as_fd()).unwrap();
    }
}
