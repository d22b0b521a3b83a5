//! Removing a file, a link, or a tree.
//!
//! A tree is removed through the descriptors of its directories, at most [`MAX_OPEN`] at a time. What is
//! deeper is first moved up into the top of the tree, which is read again until it is empty: so depth
//! costs neither stack nor descriptors, and no `..` is followed, which the sandbox could redirect.
//! The work is bounded ([`MAX_STEPS`]): the sandbox may fill a tree as fast as it is emptied.

use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, BorrowedFd};

use rustix::fs::{AtFlags, Dir, FileType, OFlags};
use rustix::io::Errno;

use super::Workspace;
use super::error::{FileError, Op, Why};
use super::place::{Place, holds_work_dir};
use super::resolve::{open_dir, open_entry};

/// Most directories of a tree that are open at a time.
const MAX_OPEN: usize = 32;
/// Most entries that are looked at; the sandbox removes what is left of a larger tree.
const MAX_STEPS: u32 = 1_000_000;

impl Workspace {
    /// Removes the file at `path`, the link itself, or the directory with everything in it.
    ///
    /// # Errors
    /// As the contract has it for `files/remove`: [`FileError::Invalid`] for the work directory and its ancestors.
    pub fn remove(&self, path: &str) -> Result<(), FileError> {
        if holds_work_dir(path, &self.work_dir) {
            return Err(refused(path));
        }
        let place = self.place(path)?;
        let Some((parent, name)) = place.leaf() else { return Err(refused(path)) };
        let parent = open_dir(self.root(), parent).map_err(|errno| place.error(Op::Remove, errno))?;
        // `link/` is the link's target to some and the link to others: not unlinked here.
        let unlinked =
            if place.must_be_dir() { Err(Errno::ISDIR) } else { rustix::fs::unlinkat(&parent, name, AtFlags::empty()) };
        match unlinked {
            Ok(()) => Ok(()),
            Err(Errno::ISDIR) => {
                let name = CString::new(name).map_err(|_| place.not_native(Why::Unclear))?;
                Removal { place: &place, steps: MAX_STEPS }.tree(parent.as_fd(), name)
            }
            Err(errno) => Err(place.error(Op::Remove, errno)),
        }
    }
}

pub(super) fn refused(path: &str) -> FileError {
    FileError::invalid(path, "cannot remove the work directory or what holds it")
}

/// A tree that is being removed.
struct Removal<'a> {
    /// Its top, for errors.
    place: &'a Place,
    /// Entries that may still be looked at.
    steps: u32,
}

/// A directory that is being emptied, and its name in the one before.
struct Level {
    dir: Dir,
    name: CString,
}

impl Removal<'_> {
    fn tree(mut self, parent: BorrowedFd<'_>, name: CString) -> Result<(), FileError> {
        let top = open_level(parent, name).map_err(|errno| self.error(errno))?;
        let mut levels = vec![top];
        while let Some(level) = levels.last_mut() {
            self.steps = self.steps.checked_sub(1).ok_or_else(|| self.place.not_native(Why::TooMany))?;
            let found = level.dir.read().transpose().map_err(|errno| self.error(errno))?;
            let opened = match found {
                Some(item) if matches!(item.file_name().to_bytes(), b"." | b"..") => None,
                Some(item) => self.entry(&levels, item.file_name(), item.file_type())?,
                None => self.emptied(parent, &mut levels)?,
            };
            levels.extend(opened);
        }
        Ok(())
    }

    /// Removes an entry of the last level, or opens it as the next one.
    fn entry(&self, levels: &[Level], name: &CStr, kind: FileType) -> Result<Option<Level>, FileError> {
        let Some(level) = levels.last() else { return Ok(None) };
        let dir = level.dir.fd().map_err(|errno| self.error(errno))?;
        if kind != FileType::Directory {
            match rustix::fs::unlinkat(dir, name, AtFlags::empty()) {
                Ok(()) | Err(Errno::NOENT) => return Ok(None),
                // The file system does not tell types, or it has become a directory.
                Err(Errno::ISDIR) => {}
                Err(errno) => return Err(self.error(errno)),
            }
        }
        if levels.len() == MAX_OPEN {
            self.hoist(levels, dir, name)?;
            return Ok(None);
        }
        match open_level(dir, name.to_owned()) {
            Ok(level) => Ok(Some(level)),
            // Gone, or something else by now: if it is still there, its directory is not empty and is read again.
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(None),
            // Not to be read, but perhaps there is nothing in it.
            Err(Errno::ACCESS) => match rustix::fs::unlinkat(dir, name, AtFlags::REMOVEDIR) {
                Ok(()) | Err(Errno::NOENT) => Ok(None),
                Err(_) => Err(self.place.not_native(Why::Denied)),
            },
            Err(errno) => Err(self.error(errno)),
        }
    }

    /// Moves the directory `name` of `dir` to the top of the tree.
    fn hoist(&self, levels: &[Level], dir: BorrowedFd<'_>, name: &CStr) -> Result<(), FileError> {
        let Some(top) = levels.first() else { return Ok(()) };
        let top = top.dir.fd().map_err(|errno| self.error(errno))?;
        let hoisted = format!(".sandboxd-{}", uuid::Uuid::new_v4().simple());
        match rustix::fs::renameat(dir, name, top, hoisted) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(self.error(errno)),
        }
    }

    /// Removes the last level, in which nothing was left; if there is after all, opens it again.
    fn emptied(&self, parent: BorrowedFd<'_>, levels: &mut Vec<Level>) -> Result<Option<Level>, FileError> {
        let Some(Level { dir, name }) = levels.pop() else { return Ok(None) };
        drop(dir);
        let above = match levels.last() {
            Some(level) => level.dir.fd().map_err(|errno| self.error(errno))?,
            None => parent,
        };
        match rustix::fs::unlinkat(above, &name, AtFlags::REMOVEDIR) {
            Ok(()) | Err(Errno::NOENT) => Ok(None),
            Err(Errno::NOTEMPTY | Errno::EXIST) => match open_level(above, name) {
                Ok(level) => Ok(Some(level)),
                Err(Errno::NOENT) => Ok(None),
                Err(errno) => Err(self.error(errno)),
            },
            Err(errno) => Err(self.error(errno)),
        }
    }

    fn error(&self, errno: Errno) -> FileError {
        match errno {
            // What was a directory a moment ago is not: the sandbox is at work in this tree.
            Errno::NOTDIR if !self.place.must_be_dir() => self.place.not_native(Why::Changed),
            errno => self.place.error(Op::Remove, errno),
        }
    }
}

fn open_level(parent: BorrowedFd<'_>, name: CString) -> Result<Level, Errno> {
    let fd = open_entry(parent, &name, OFlags::RDONLY | OFlags::DIRECTORY)?;
    Ok(Level { dir: Dir::new(fd)?, name })
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::os::fd::OwnedFd;
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use rustix::fs::{CWD, Mode};

    use super::super::testing::{Fixture, name, tmpfs, unprivileged, why};
    use super::*;

    #[test]
    fn files_links_and_special_files_go_themselves() {
        let fixture = Fixture::new();
        std::fs::write(fixture.host("f"), b"x").unwrap();
        symlink(fixture.outside(""), fixture.host("dirlink")).unwrap();
        symlink(fixture.outside("secret"), fixture.host("link")).unwrap();
        symlink("nowhere", fixture.host("dangling")).unwrap();
        rustix::fs::mkfifoat(CWD, fixture.host("fifo"), Mode::RWXU).unwrap();
        for path in ["f", "dirlink", "link", "dangling", "fifo"] {
            fixture.workspace.remove(&format!("/workspace/{path}")).unwrap();
        }
        assert!(fixture.names("").is_empty());
        fixture.assert_outside_untouched();
    }

    #[test]
    fn the_work_directory_and_its_ancestors_stay() {
        let fixture = Fixture::new();
        std::fs::write(fixture.host("f"), b"x").unwrap();
        std::fs::create_dir(fixture.host("d")).unwrap();
        for path in ["/workspace", "/workspace/", "/workspace/.", "/", "//", "/workspace/d/.."] {
            assert_eq!(name(fixture.workspace.remove(path)), "ValueError", "{path}");
        }
        assert_eq!(fixture.names(""), ["d", "f"]);
    }

    #[test]
    fn path_errors_have_the_names_of_the_contract() {
        let fixture = Fixture::new();
        std::fs::write(fixture.host("f"), b"x").unwrap();
        symlink(fixture.outside(""), fixture.host("out")).unwrap();
        let remove = |path: &str| fixture.workspace.remove(path);
        assert_eq!(name(remove("/workspace/missing")), "FileNotFoundError");
        assert_eq!(name(remove("/workspace/missing/x")), "FileNotFoundError");
        assert_eq!(name(remove("/workspace/f/x")), "NotADirectoryError");
        assert_eq!(name(remove("f")), "ValueError");
        assert_eq!(why(remove("/workspace/f/")), Why::Unclear);
        assert_eq!(why(remove("/workspace/out/secret")), Why::Link);
        assert_eq!(why(remove("/workspace/out/")), Why::Link);
        assert_eq!(why(remove("/etc/passwd")), Why::Outside);
        assert_eq!(fixture.names(""), ["f", "out"]);
        fixture.assert_outside_untouched();
    }

    #[test]
    fn a_tree_goes_with_everything_in_it_and_nothing_behind_its_links() {
        let fixture = Fixture::new();
        for dir in ["t/a/b/c", "t/empty", "t/many"] {
            std::fs::create_dir_all(fixture.host(dir)).unwrap();
        }
        for i in 0..3000 {
            std::fs::write(fixture.host(format!("t/many/{i}")), b"").unwrap();
        }
        std::fs::create_dir(fixture.host("t").join(OsStr::from_bytes(b"\xff"))).unwrap();
        symlink(fixture.outside(""), fixture.host("t/a/b/out")).unwrap();
        symlink("/", fixture.host("t/root")).unwrap();
        rustix::fs::mkfifoat(CWD, fixture.host("t/a/fifo"), Mode::RWXU).unwrap();
        fixture.workspace.remove("/workspace/t/").unwrap();
        assert!(fixture.names("").is_empty());
        fixture.assert_outside_untouched();
    }

    /// Makes `depth` nested directories, every hundredth with a file and an empty directory next to the next one.
    fn nest(mut dir: OwnedFd, depth: usize) {
        for level in 0..depth {
            rustix::fs::mkdirat(&dir, "d", Mode::RWXU).unwrap();
            if level % 100 == 0 {
                rustix::fs::mkdirat(&dir, "e", Mode::RWXU).unwrap();
                rustix::fs::openat(&dir, "f", OFlags::CREATE | OFlags::WRONLY, Mode::RWXU).unwrap();
            }
            dir = rustix::fs::openat(&dir, "d", OFlags::PATH | OFlags::DIRECTORY, Mode::empty()).unwrap();
        }
    }

    #[test]
    fn depth_costs_neither_stack_nor_descriptors() {
        let fixture = Fixture::new();
        let workspace = tmpfs("64m", "20000").unwrap_or(fixture.workspace);
        workspace.mkdir("/workspace/t").unwrap();
        nest(open_dir(workspace.root(), "t").unwrap(), 10_000);
        let thread = std::thread::Builder::new().stack_size(64 * 1024);
        let remove = move || workspace.remove("/workspace/t").map(|()| workspace);
        let workspace = thread.spawn(remove).unwrap().join().unwrap().unwrap();
        assert_eq!(name(workspace.remove("/workspace/t")), "FileNotFoundError");
    }

    #[test]
    fn the_work_is_bounded() {
        let fixture = Fixture::new();
        std::fs::create_dir(fixture.host("t")).unwrap();
        for i in 0..20 {
            std::fs::write(fixture.host(format!("t/{i}")), b"").unwrap();
        }
        let place = fixture.workspace.place("/workspace/t").unwrap();
        let remove = |steps| Removal { place: &place, steps }.tree(fixture.workspace.root(), c"t".into());
        assert_eq!(why(remove(10)), Why::TooMany);
        assert!(!fixture.names("t").is_empty());
        remove(100).unwrap();
        assert!(fixture.names("").is_empty());
    }

    #[test]
    fn what_the_user_may_not_remove_is_left_to_the_sandbox() {
        if !unprivileged(module_path!(), "what_the_user_may_not_remove_is_left_to_the_sandbox") {
            return;
        }
        let fixture = Fixture::new();
        let chmod = |path: &str, mode| {
            std::fs::set_permissions(fixture.host(path), PermissionsExt::from_mode(mode)).unwrap();
        };
        std::fs::create_dir_all(fixture.host("t/locked")).unwrap();
        chmod("t/locked", 0o000);
        fixture.workspace.remove("/workspace/t").unwrap();

        std::fs::create_dir_all(fixture.host("t/locked")).unwrap();
        std::fs::write(fixture.host("t/locked/f"), b"x").unwrap();
        for mode in [0o000, 0o555, 0o300] {
            chmod("t/locked", mode);
            assert_eq!(why(fixture.workspace.remove("/workspace/t")), Why::Denied, "{mode:o}");
        }
        chmod("t/locked", 0o755);
        chmod("t", 0o555);
        assert_eq!(why(fixture.workspace.remove("/workspace/t/locked")), Why::Denied);
        chmod("t", 0o755);
        fixture.workspace.remove("/workspace/t").unwrap();
    }
}
