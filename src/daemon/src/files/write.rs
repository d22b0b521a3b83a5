//! Writing a file: into one without a name, which then takes the target's place.
//!
//! Until the commit there is nothing to see and nothing to clean up: a service that is killed in the
//! middle of an upload leaves no trace. A new file is linked to its name. To replace an old one takes a
//! name to rename from: that is beside the workspace, where no sandbox looks, and should the service be
//! killed between these two calls, [`Workspace::sweep`] removes it.

use std::ffi::CStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags};
use rustix::io::Errno;

use super::Workspace;
use super::error::{FileError, Op, Why};
use super::place::Place;
use super::resolve;
use crate::fail;

/// Beginning of the names of files that are about to take another's place.
const TEMPORARY: &str = ".sandboxd-";
/// Mode of a new file.
const NEW_FILE: Mode = Mode::from_raw_mode(0o644);
/// The bits of an existing file's mode that are kept. A write clears set-user-ID and set-group-ID (write(2)).
const KEPT: u32 = 0o777;
/// Read and write for the owner.
const OWNER_RW: u32 = 0o600;

/// A file that is being written, invisible under its name until [`PendingWrite::commit`]. Dropping it
/// removes it and leaves what was there before.
#[derive(Debug)]
pub struct PendingWrite {
    parent: OwnedFd,
    name: String,
    file: OwnedFd,
    /// Where it gets a name to be renamed from; none: next to the target.
    beside: Option<Arc<OwnedFd>>,
    /// That name, while it has it.
    temporary: Option<String>,
    /// Whether something had the target's name at the beginning.
    replaces: bool,
    /// Absolute, for errors.
    path: String,
    /// Bytes that may still come.
    room: u64,
    max: u64,
}

impl Workspace {
    /// Starts to write the file at `path`, of at most `max` bytes. Parents are made; an existing file's mode is kept.
    ///
    /// # Errors
    /// As the contract has it for `files/write`.
    pub fn begin_write(&self, path: &str, max: u64) -> Result<PendingWrite, FileError> {
        let place = self.place(path)?;
        let Some((parent, name)) = place.leaf() else {
            return Err(FileError::IsADirectory { path: place.absolute().to_owned() });
        };
        if place.must_be_dir() {
            return Err(place.not_native(Why::Unclear));
        }
        let parent = self.dir_or_make(&place, parent, Op::Write)?;
        let kept = self.mode_to_keep(&place, parent.as_fd(), name)?;
        let mode = kept.unwrap_or(NEW_FILE);
        let (file, temporary) = create(parent.as_fd(), mode).map_err(|errno| changed(&place, errno))?;
        // From here on a failure removes the temporary file.
        let pending = PendingWrite {
            parent,
            name: name.to_owned(),
            file,
            beside: self.beside.clone().filter(|_| temporary.is_none()),
            temporary,
            replaces: kept.is_some(),
            path: place.absolute().to_owned(),
            room: max,
            max,
        };
        if kept.is_some() {
            // The umask took its part of the mode.
            rustix::fs::fchmod(&pending.file, mode).map_err(|errno| changed(&place, errno))?;
        }
        fail::point("write.begun");
        Ok(pending)
    }

    /// Remove what writes that were cut off have left beside the workspace. Nobody may be writing.
    ///
    /// # Errors
    /// [`FileError::Io`].
    pub fn sweep(&self) -> Result<(), FileError> {
        let Some(beside) = &self.beside else { return Ok(()) };
        let error = |errno| FileError::from_errno(Op::Write, &self.work_dir, errno);
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let mut dir = Dir::new(resolve::open_beneath(beside.as_fd(), "", flags).map_err(error)?).map_err(error)?;
        while let Some(entry) = dir.read() {
            let entry = entry.map_err(error)?;
            if is_temporary(entry.file_name()) {
                rustix::fs::unlinkat(beside, entry.file_name(), AtFlags::empty()).map_err(error)?;
            }
        }
        Ok(())
    }

    /// The mode of what is at `name` if that is a file which the sandbox's user may rewrite; none if nothing is.
    fn mode_to_keep(&self, place: &Place, parent: BorrowedFd<'_>, name: &str) -> Result<Option<Mode>, FileError> {
        let stat = match rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => stat,
            Err(Errno::NOENT) => return Ok(None),
            Err(errno) => return Err(place.error(Op::Write, errno)),
        };
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => {}
            FileType::Directory => return Err(FileError::IsADirectory { path: place.absolute().to_owned() }),
            FileType::Symlink => return Err(place.not_native(Why::Link)),
            _ => return Err(place.not_native(Why::Special)),
        }
        // A rename asks nobody whether the old file may be written. For its owner the owner's bits decide alone;
        // of another's file the sandbox knows who it is to that file.
        if stat.st_uid != self.uid || stat.st_mode & OWNER_RW != OWNER_RW {
            return Err(place.not_native(Why::Denied));
        }
        Ok(Some(Mode::from_raw_mode(stat.st_mode & KEPT)))
    }
}

impl PendingWrite {
    /// Appends `bytes`.
    ///
    /// # Errors
    /// [`FileError::TooLarge`] when there are more than was allowed, before any of `bytes` is written;
    /// [`FileError::NoSpace`]; [`FileError::Io`].
    pub fn write_all(&mut self, bytes: &[u8]) -> Result<(), FileError> {
        self.room = self
            .room
            .checked_sub(bytes.len() as u64)
            .ok_or_else(|| FileError::TooLarge { path: self.path.clone(), limit: self.max })?;
        let mut left = bytes;
        while !left.is_empty() {
            let count = rustix::io::retry_on_intr(|| rustix::io::write(&self.file, left))
                .map_err(|errno| FileError::from_errno(Op::Write, &self.path, errno))?;
            left = left.get(count..).unwrap_or_default();
        }
        Ok(())
    }

    /// Puts the file in the target's place, whatever that is by now: a link is replaced, not followed.
    ///
    /// # Errors
    /// [`FileError::IsADirectory`] when it has become one; [`FileError::NotNative`] when the directory is gone.
    pub fn commit(mut self) -> Result<(), FileError> {
        self.place().map_err(|errno| match errno {
            Errno::NOENT => FileError::not_native(&self.path, Why::Changed),
            errno => FileError::from_errno(Op::Write, &self.path, errno),
        })?;
        fail::point("write.committed");
        Ok(())
    }
}

impl PendingWrite {
    fn place(&mut self) -> Result<(), Errno> {
        if self.temporary.is_none() {
            if !self.replaces {
                match resolve::link(self.file.as_fd(), self.parent.as_fd(), &self.name) {
                    // Somebody was faster.
                    Err(Errno::EXIST) => {}
                    done => return done,
                }
            }
            let name = temporary_name();
            resolve::link(self.file.as_fd(), self.dir(), &name)?;
            self.temporary = Some(name);
            fail::point("write.linked");
        }
        let Some(name) = self.temporary.as_deref() else { return Ok(()) };
        rustix::fs::renameat(self.dir(), name, &self.parent, &self.name)?;
        self.temporary = None;
        Ok(())
    }

    /// Where the temporary name is.
    fn dir(&self) -> BorrowedFd<'_> {
        self.beside.as_ref().map_or(self.parent.as_fd(), |beside| beside.as_fd())
    }
}

impl Drop for PendingWrite {
    fn drop(&mut self) {
        if let Some(name) = &self.temporary {
            // Gone already, or the sandbox has taken its directory away: either way it is not ours to keep.
            let _ = rustix::fs::unlinkat(self.dir(), name, AtFlags::empty());
        }
    }
}

/// A new file: without a name where the file system can, else with a temporary one.
fn create(dir: BorrowedFd<'_>, mode: Mode) -> Result<(OwnedFd, Option<String>), Errno> {
    match resolve::create_unnamed(dir, mode) {
        Err(Errno::OPNOTSUPP | Errno::ISDIR) => {
            let name = temporary_name();
            resolve::create(dir, &name, mode).map(|file| (file, Some(name)))
        }
        unnamed => unnamed.map(|file| (file, None)),
    }
}

fn temporary_name() -> String {
    format!("{TEMPORARY}{}", uuid::Uuid::new_v4().simple())
}

/// `ENOENT` in a directory that was open a moment ago: it has been removed.
fn changed(place: &Place, errno: Errno) -> FileError {
    match errno {
        Errno::NOENT | Errno::EXIST => place.not_native(Why::Changed),
        errno => place.error(Op::Write, errno),
    }
}

fn is_temporary(name: &CStr) -> bool {
    name.to_bytes().starts_with(TEMPORARY.as_bytes())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

    use rustix::fs::CWD;

    use super::super::testing::{Fixture, MAX, name, tmpfs, unprivileged, why};
    use super::*;

    fn mode(fixture: &Fixture, path: &str) -> u32 {
        std::fs::metadata(fixture.host(path)).unwrap().permissions().mode() & 0o7777
    }

    fn chmod(fixture: &Fixture, path: &str, mode: u32) {
        std::fs::set_permissions(fixture.host(path), PermissionsExt::from_mode(mode)).unwrap();
    }

    #[test]
    fn a_new_file_gets_its_parents() {
        let fixture = Fixture::new();
        fixture.workspace.write("/workspace/a/b/f", b"one", MAX).unwrap();
        assert_eq!(std::fs::read(fixture.host("a/b/f")).unwrap(), b"one");
        assert_eq!((mode(&fixture, "a/b/f"), mode(&fixture, "a/b")), (0o644, 0o755));
        fixture.workspace.write("/workspace/a/b/f", b"", MAX).unwrap();
        assert_eq!(std::fs::read(fixture.host("a/b/f")).unwrap(), b"");
        assert_eq!(fixture.names("a/b"), ["f"]);
        let longest = "n".repeat(255);
        fixture.workspace.write(&format!("/workspace/{longest}"), b"x", MAX).unwrap();
        assert_eq!(fixture.names(""), ["a", &longest]);
    }

    #[test]
    fn the_mode_is_kept_and_the_set_id_bits_are_not() {
        let fixture = Fixture::new();
        for (before, after) in [(0o755, 0o755), (0o600, 0o600), (0o666, 0o666), (0o777, 0o777), (0o6755, 0o755)] {
            std::fs::write(fixture.host("f"), b"old").unwrap();
            chmod(&fixture, "f", before);
            fixture.workspace.write("/workspace/f", b"new", MAX).unwrap();
            assert_eq!(mode(&fixture, "f"), after);
            assert_eq!(std::fs::read(fixture.host("f")).unwrap(), b"new");
        }
    }

    #[test]
    fn a_write_that_is_cut_off_leaves_no_trace() {
        let fixture = Fixture::new();
        let mut pending = fixture.workspace.begin_write("/workspace/f", MAX).unwrap();
        pending.write_all(&[b'x'; 1000]).unwrap();
        assert!(fixture.names("").is_empty());
        // As if killed: nothing is cleaned up.
        std::mem::forget(pending);
        assert!(fixture.names("").is_empty());
    }

    #[test]
    fn a_file_is_replaced_from_beside_the_workspace_and_what_is_left_there_is_swept() {
        let dir = tempfile::tempdir().unwrap();
        let beside = dir.path().join("a");
        std::fs::create_dir_all(beside.join("workspace/.sandboxd-inside")).unwrap();
        let root = std::fs::File::open(dir.path()).unwrap();
        let id = wire::id::SessionId::parse("a").unwrap();
        let workspace = Workspace::open(root.as_fd(), &id, "/workspace").unwrap();
        let names = || {
            let mut names: Vec<_> = std::fs::read_dir(&beside).unwrap().map(|e| e.unwrap().file_name()).collect();
            names.sort();
            names
        };
        for content in ["one", "two"] {
            workspace.write("/workspace/d/f", content.as_bytes(), MAX).unwrap();
            assert_eq!(std::fs::read(beside.join("workspace/d/f")).unwrap(), content.as_bytes());
            assert_eq!(names(), ["workspace"]);
        }
        for name in [".sandboxd-0123", "other"] {
            std::fs::write(beside.join(name), b"x").unwrap();
        }
        workspace.sweep().unwrap();
        assert_eq!(names(), ["other", "workspace"]);
        assert!(beside.join("workspace/.sandboxd-inside").exists());
    }

    #[test]
    fn until_the_commit_the_old_file_stands() {
        let fixture = Fixture::new();
        std::fs::write(fixture.host("f"), b"old").unwrap();
        let mut pending = fixture.workspace.begin_write("/workspace/f", MAX).unwrap();
        pending.write_all(b"ne").unwrap();
        assert_eq!(std::fs::read(fixture.host("f")).unwrap(), b"old");
        pending.write_all(b"w").unwrap();
        pending.commit().unwrap();
        assert_eq!(std::fs::read(fixture.host("f")).unwrap(), b"new");
        drop(fixture.workspace.begin_write("/workspace/f", MAX).unwrap());
        assert_eq!(std::fs::read(fixture.host("f")).unwrap(), b"new");
        assert_eq!(fixture.names(""), ["f"]);
    }

    #[test]
    fn the_ceiling_counts_bytes_as_they_arrive() {
        let fixture = Fixture::new();
        std::fs::write(fixture.host("f"), b"old").unwrap();
        let mut pending = fixture.workspace.begin_write("/workspace/f", 10).unwrap();
        pending.write_all(&[b'x'; 6]).unwrap();
        assert!(matches!(pending.write_all(&[b'x'; 5]), Err(FileError::TooLarge { limit: 10, .. })));
        drop(pending);
        assert_eq!(std::fs::read(fixture.host("f")).unwrap(), b"old");
        fixture.workspace.write("/workspace/f", &[b'x'; 10], 10).unwrap();
        assert_eq!(fixture.names(""), ["f"]);
    }

    #[test]
    fn path_errors_have_the_names_of_the_contract() {
        let fixture = Fixture::new();
        std::fs::create_dir(fixture.host("dir")).unwrap();
        std::fs::write(fixture.host("file"), b"x").unwrap();
        let write = |path: &str| fixture.workspace.write(path, b"data", MAX);
        assert_eq!(name(write("/workspace")), "IsADirectoryError");
        assert_eq!(name(write("/workspace/dir")), "IsADirectoryError");
        assert_eq!(name(write("/workspace/file/child")), "NotADirectoryError");
        assert_eq!(name(write("/workspace/file/deep/child")), "NotADirectoryError");
        assert_eq!(name(write("dir/f")), "ValueError");
        assert_eq!(why(write("/workspace/new/")), Why::Unclear);
        assert_eq!(why(write("/workspace/missing/../f")), Why::Unclear);
        assert_eq!(why(write("/tmp/f")), Why::Outside);
        assert_eq!(fixture.names(""), ["dir", "file"]);
    }

    #[test]
    fn links_and_special_files_are_written_by_the_sandbox() {
        let fixture = Fixture::new();
        symlink(fixture.outside("secret"), fixture.host("out")).unwrap();
        symlink(fixture.outside("new"), fixture.host("dangling")).unwrap();
        symlink(fixture.outside(""), fixture.host("dir")).unwrap();
        rustix::fs::mkfifoat(CWD, fixture.host("fifo"), Mode::RWXU).unwrap();
        let write = |path: &str| fixture.workspace.write(path, b"data", MAX);
        for path in ["out", "dangling", "dir/secret", "dir/new/f"] {
            assert_eq!(why(write(&format!("/workspace/{path}"))), Why::Link, "{path}");
        }
        assert_eq!(why(write("/workspace/fifo")), Why::Special);
        fixture.assert_outside_untouched();
        assert_eq!(fixture.names(""), ["dangling", "dir", "fifo", "out"]);
    }

    #[test]
    fn what_takes_the_targets_place_meanwhile_is_replaced_not_followed() {
        let fixture = Fixture::new();
        let start = || {
            let mut pending = fixture.workspace.begin_write("/workspace/f", MAX).unwrap();
            pending.write_all(b"new").unwrap();
            pending
        };
        let pending = start();
        symlink(fixture.outside("secret"), fixture.host("f")).unwrap();
        pending.commit().unwrap();
        assert_eq!(std::fs::symlink_metadata(fixture.host("f")).unwrap().len(), 3);
        fixture.assert_outside_untouched();

        std::fs::remove_file(fixture.host("f")).unwrap();
        let pending = start();
        std::fs::create_dir(fixture.host("f")).unwrap();
        assert_eq!(name(pending.commit()), "IsADirectoryError");
        assert_eq!(fixture.names(""), ["f"]);
    }

    #[test]
    fn a_directory_that_goes_away_meanwhile_is_left_to_the_sandbox() {
        let fixture = Fixture::new();
        let pending = fixture.workspace.begin_write("/workspace/d/f", MAX).unwrap();
        std::fs::remove_dir_all(fixture.host("d")).unwrap();
        symlink(fixture.outside(""), fixture.host("d")).unwrap();
        assert_eq!(why(pending.commit()), Why::Changed);
        fixture.assert_outside_untouched();
    }

    #[test]
    fn a_hard_linked_file_is_parted_from_its_other_names() {
        let fixture = Fixture::new();
        std::fs::write(fixture.host("f"), b"old").unwrap();
        std::fs::hard_link(fixture.host("f"), fixture.host("g")).unwrap();
        fixture.workspace.write("/workspace/f", b"new", MAX).unwrap();
        assert_eq!(std::fs::read(fixture.host("g")).unwrap(), b"old");
        assert_eq!(std::fs::metadata(fixture.host("g")).unwrap().nlink(), 1);
    }

    #[test]
    fn a_file_that_its_owner_may_not_rewrite_is_left_to_the_sandbox() {
        let fixture = Fixture::new();
        for bits in [0o000, 0o444, 0o200, 0o077] {
            std::fs::write(fixture.host("f"), b"old").unwrap();
            chmod(&fixture, "f", bits);
            assert_eq!(why(fixture.workspace.write("/workspace/f", b"new", MAX)), Why::Denied, "{bits:o}");
            std::fs::remove_file(fixture.host("f")).unwrap();
        }
    }

    #[test]
    fn a_directory_that_the_user_may_not_write_is_left_to_the_sandbox() {
        if !unprivileged(module_path!(), "a_directory_that_the_user_may_not_write_is_left_to_the_sandbox") {
            return;
        }
        let fixture = Fixture::new();
        std::fs::create_dir(fixture.host("d")).unwrap();
        chmod(&fixture, "d", 0o555);
        assert_eq!(why(fixture.workspace.write("/workspace/d/f", b"x", MAX)), Why::Denied);
        assert_eq!(why(fixture.workspace.write("/workspace/d/e/f", b"x", MAX)), Why::Denied);
        assert_eq!(why(fixture.workspace.mkdir("/workspace/d/e")), Why::Denied);
        chmod(&fixture, "d", 0o600);
        assert_eq!(why(fixture.workspace.stat("/workspace/d/f")), Why::Denied);
        assert_eq!(why(fixture.workspace.realpath("/workspace/d/f")), Why::Denied);
        chmod(&fixture, "d", 0o700);
    }

    #[test]
    fn a_full_disk_loses_nothing() {
        let Some(workspace) = tmpfs("64k", "8") else { return };
        workspace.write("/workspace/f", b"old", MAX).unwrap();
        let mut pending = workspace.begin_write("/workspace/f", MAX).unwrap();
        let error = pending.write_all(&[b'x'; 100_000]).unwrap_err();
        assert!(matches!(error, FileError::NoSpace { op: Op::Write, .. }), "{error:?}");
        assert_eq!(
            (error.to_string().as_str(), error.name()),
            ("write '/workspace/f': disk full, no space left", None)
        );
        drop(pending);
        assert_eq!(workspace.read("/workspace/f", MAX).unwrap(), b"old");
        assert_eq!(workspace.list("/workspace").unwrap().len(), 1);
        workspace.write("/workspace/f", &[b'x'; 40_000], MAX).unwrap();
    }

    #[test]
    fn a_disk_without_inodes_loses_nothing() {
        let Some(workspace) = tmpfs("64k", "2") else { return };
        workspace.write("/workspace/f", b"old", MAX).unwrap();
        for error in [workspace.write("/workspace/f", b"new", MAX), workspace.mkdir("/workspace/d")] {
            assert!(matches!(error, Err(FileError::NoSpace { .. })), "{error:?}");
        }
        assert_eq!(workspace.read("/workspace/f", MAX).unwrap(), b"old");
        workspace.remove("/workspace/f").unwrap();
    }
}
