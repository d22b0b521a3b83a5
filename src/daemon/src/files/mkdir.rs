//! Making directories, with their parents.

use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::Workspace;
use super::error::{FileError, Op, Why};
use super::place::Place;
use super::resolve::{open_beneath, open_dir};

/// Mode of a new directory.
const NEW_DIR: Mode = Mode::from_raw_mode(0o755);

impl Workspace {
    /// Makes the directory `path` and its parents; done also if it exists.
    ///
    /// # Errors
    /// As the contract has it for `files/mkdir`: [`FileError::Exists`] for a file at `path`,
    /// [`FileError::NotADirectory`] for one on the way.
    pub fn mkdir(&self, path: &str) -> Result<(), FileError> {
        let place = self.place(path)?;
        match self.dir_or_make(&place, place.relative(), Op::Mkdir) {
            Ok(_) => Ok(()),
            Err(FileError::NotADirectory { path }) => {
                // Is it the last component itself?
                match open_beneath(self.root(), place.relative(), OFlags::PATH) {
                    Ok(_) => Err(FileError::Exists { path }),
                    Err(errno) => Err(place.error(Op::Mkdir, errno)),
                }
            }
            Err(error) => Err(error),
        }
    }

    /// The directory `relative`, made if it is missing. `place` is what the client asked for.
    pub(super) fn dir_or_make(&self, place: &Place, relative: &str, op: Op) -> Result<OwnedFd, FileError> {
        match open_dir(self.root(), relative) {
            Ok(dir) => Ok(dir),
            Err(Errno::NOENT) => self.make_dirs(place, relative, op),
            Err(Errno::NOTDIR) => Err(FileError::NotADirectory { path: place.absolute().to_owned() }),
            Err(errno) => Err(place.error(op, errno)),
        }
    }

    fn make_dirs(&self, place: &Place, relative: &str, op: Op) -> Result<OwnedFd, FileError> {
        let error = |errno| match errno {
            Errno::NOENT => place.not_native(Why::Changed),
            errno => place.error(op, errno),
        };
        let mut dir = open_dir(self.root(), "").map_err(error)?;
        for part in relative.split('/') {
            match rustix::fs::mkdirat(&dir, part, NEW_DIR) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(errno) => return Err(error(errno)),
            }
            dir = open_dir(dir.as_fd(), part).map_err(error)?;
        }
        Ok(dir)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::super::testing::{Fixture, name, tmpfs, why};
    use super::*;

    #[test]
    fn parents_are_made_and_again_is_fine() {
        let fixture = Fixture::new();
        for path in
            ["/workspace/a/b/c", "/workspace/a/b/c", "/workspace/a", "/workspace", "/workspace/x/", "/workspace/a/../y"]
        {
            fixture.workspace.mkdir(path).unwrap();
        }
        assert_eq!(fixture.names(""), ["a", "x", "y"]);
        assert!(fixture.host("a/b/c").is_dir());
    }

    #[test]
    fn a_path_may_be_as_long_as_the_kernel_resolves() {
        let fixture = Fixture::new();
        let workspace = tmpfs("64m", "5000").unwrap_or(fixture.workspace);
        let deep = format!("/workspace/{}", "d/".repeat(2041));
        workspace.mkdir(&deep).unwrap();
        let file = format!("{deep}f");
        workspace.begin_write(&file, 10).unwrap().commit().unwrap();
        assert_eq!(workspace.stat(&file).unwrap().path, file);
        assert_eq!(why(workspace.stat(&format!("{deep}ff/"))), Why::TooLong);
        workspace.remove("/workspace/d").unwrap();
    }

    #[test]
    fn a_file_in_the_way_has_two_names() {
        let fixture = Fixture::new();
        std::fs::write(fixture.host("f"), b"x").unwrap();
        assert_eq!(name(fixture.workspace.mkdir("/workspace/f")), "FileExistsError");
        assert_eq!(name(fixture.workspace.mkdir("/workspace/f/")), "FileExistsError");
        assert_eq!(name(fixture.workspace.mkdir("/workspace/f/d")), "NotADirectoryError");
        assert_eq!(name(fixture.workspace.mkdir("/workspace/f/d/e")), "NotADirectoryError");
        assert_eq!(name(fixture.workspace.mkdir("d")), "ValueError");
    }

    #[test]
    fn links_are_not_followed() {
        let fixture = Fixture::new();
        symlink(fixture.outside(""), fixture.host("out")).unwrap();
        symlink(fixture.outside("new"), fixture.host("dangling")).unwrap();
        for path in ["out", "out/new", "out/new/deep", "dangling", "dangling/deep"] {
            assert_eq!(why(fixture.workspace.mkdir(&format!("/workspace/{path}"))), Why::Link, "{path}");
        }
        fixture.assert_outside_untouched();
    }

    #[test]
    fn a_link_planted_among_the_missing_parents_is_not_followed() {
        let fixture = Fixture::new();
        let place = fixture.workspace.place("/workspace/a/b").unwrap();
        symlink(fixture.outside(""), fixture.host("a")).unwrap();
        assert_eq!(why(fixture.workspace.make_dirs(&place, "a/b", Op::Mkdir)), Why::Link);
        fixture.assert_outside_untouched();
    }

    #[test]
    fn a_workspace_that_was_deleted_is_noticed() {
        let fixture = Fixture::new();
        std::fs::remove_dir(fixture.host("")).unwrap();
        assert_eq!(why(fixture.workspace.mkdir("/workspace/a")), Why::Changed);
        assert_eq!(name(fixture.workspace.read("/workspace/a", 1)), "FileNotFoundError");
    }
}
