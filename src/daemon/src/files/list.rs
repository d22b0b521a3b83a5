//! Describing a path, listing a directory, resolving a path's links.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, Dir, FileType, OFlags, Stat};
use rustix::io::Errno;
use wire::api::FileEntry;

use super::Workspace;
use super::entry::entry;
use super::error::{FileError, Op, Why};
use super::place::Place;
use super::resolve::{follow_beneath, open_beneath};

/// Most entries in a directory that is listed in one answer; the sandbox lists a larger one.
pub const MAX_ENTRIES: usize = 100_000;
/// How long a listing may take: each of its links may lead over many others. The sandbox lists what takes longer, and pays for it.
const LIST_TIME: Duration = Duration::from_secs(5);
/// Read, for the owner.
const OWNER_R: u32 = 0o400;

impl Workspace {
    /// What is at `path`: a plain file or a directory.
    ///
    /// # Errors
    /// As the contract has it for `files/stat`.
    pub fn stat(&self, path: &str) -> Result<FileEntry, FileError> {
        let place = self.place(path)?;
        let error = |errno| place.error(Op::Stat, errno);
        let fd = open_beneath(self.root(), place.relative(), OFlags::PATH).map_err(error)?;
        let stat = rustix::fs::fstat(&fd).map_err(error)?;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => {}
            FileType::RegularFile if place.must_be_dir() => return Err(place.not_native(Why::Unclear)),
            // The sandbox counts the bytes of a file, so it has to be allowed to read it.
            FileType::RegularFile if stat.st_uid == self.uid && stat.st_mode & OWNER_R != 0 => {}
            FileType::RegularFile => return Err(place.not_native(Why::Denied)),
            _ => return Err(place.not_native(Why::Special)),
        }
        Ok(entry(place.name(), place.absolute().to_owned(), &stat))
    }

    /// What is in the directory `path`, sorted by name. A link is described as what it leads to.
    ///
    /// # Errors
    /// As the contract has it for `files/list`; [`FileError::NotNative`] also for a link whose end is not
    /// certain to be in the workspace, a name that is not UTF-8, more than [`MAX_ENTRIES`] entries, and what takes longer than
    /// [`LIST_TIME`].
    pub fn list(&self, path: &str) -> Result<Vec<FileEntry>, FileError> {
        self.list_until(path, Instant::now() + LIST_TIME)
    }

    fn list_until(&self, path: &str, until: Instant) -> Result<Vec<FileEntry>, FileError> {
        let place = self.place(path)?;
        let error = |errno| place.error(Op::Ls, errno);
        let fd = open_beneath(self.root(), place.relative(), OFlags::RDONLY | OFlags::DIRECTORY).map_err(error)?;
        let mut dir = Dir::new(fd).map_err(error)?;
        let mut entries = Vec::new();
        while let Some(item) = dir.read() {
            let item = item.map_err(error)?;
            let name = item.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            if entries.len() == MAX_ENTRIES || Instant::now() > until {
                return Err(place.not_native(Why::TooMany));
            }
            let stat = match rustix::fs::statat(dir.fd().map_err(error)?, name, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(stat) => stat,
                Err(Errno::NOENT) => continue,
                Err(errno) => return Err(error(errno)),
            };
            let name = name.to_str().map_err(|_| place.not_native(Why::Encoding))?;
            entries.push(self.describe(&place, name, &stat)?);
        }
        entries.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        Ok(entries)
    }

    /// The entry `name` of the directory `place`.
    fn describe(&self, place: &Place, name: &str, stat: &Stat) -> Result<FileEntry, FileError> {
        let path = format!("{}/{name}", place.absolute());
        if FileType::from_raw_mode(stat.st_mode) != FileType::Symlink {
            return Ok(entry(name, path, stat));
        }
        let relative = format!("{}/{name}", place.relative());
        match follow_beneath(self.root(), relative.trim_start_matches('/')) {
            Ok(target) => {
                let stat = rustix::fs::fstat(target.as_fd()).map_err(|errno| place.error(Op::Ls, errno))?;
                Ok(entry(name, path, &stat))
            }
            // It leads nowhere, or round in a circle.
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::NAMETOOLONG) => {
                Ok(FileEntry { name: name.to_owned(), path, is_dir: false, size: None, modified_at: None })
            }
            Err(_) => Err(place.not_native(Why::Link)),
        }
    }

    /// `path` with `..` applied, if no component is a link: as `os.path.realpath(strict=False)` in the sandbox.
    /// What is missing, or below a file, is kept as written.
    ///
    /// # Errors
    /// As the contract has it for `files/realpath`.
    pub fn realpath(&self, path: &str) -> Result<String, FileError> {
        // Not `place`: `missing/..` is no error here.
        let place = Place::parse(path, &self.work_dir)?;
        for part in place.climbed().iter().map(String::as_str).chain([place.relative()]) {
            // The kernel walks from the left: whatever stops it, what came before is there and no link.
            match open_beneath(self.root(), part, OFlags::PATH) {
                Ok(_) | Err(Errno::NOENT | Errno::NOTDIR | Errno::NAMETOOLONG) => {}
                Err(errno) => return Err(FileError::from_errno(Op::Realpath, place.absolute(), errno)),
            }
        }
        Ok(place.absolute().to_owned())
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use rustix::fs::{CWD, Mode};

    use super::super::testing::{Fixture, name, why};
    use super::*;

    #[test]
    fn stat_describes_files_and_directories() {
        let fixture = Fixture::new();
        std::fs::create_dir(fixture.host("dir")).unwrap();
        std::fs::write(fixture.host("dir/f"), b"data").unwrap();
        let file = fixture.workspace.stat("/workspace/dir//f").unwrap();
        assert_eq!((file.name.as_str(), file.path.as_str()), ("f", "/workspace/dir/f"));
        assert_eq!((file.is_dir, file.size), (false, Some(4)));
        assert!(file.modified_at.unwrap().starts_with("20"));
        for (path, name) in [("/workspace/dir", "dir"), ("/workspace", "workspace")] {
            let dir = fixture.workspace.stat(&format!("{path}/")).unwrap();
            assert_eq!(
                dir,
                FileEntry { name: name.into(), path: path.into(), is_dir: true, size: None, modified_at: None }
            );
        }
        let stat = |path: &str| fixture.workspace.stat(path);
        assert_eq!(name(stat("/workspace/missing")), "FileNotFoundError");
        assert_eq!(name(stat("/workspace/dir/f/x")), "NotADirectoryError");
        assert_eq!(why(stat("/workspace/dir/f/")), Why::Unclear);
    }

    #[test]
    fn stat_leaves_links_special_and_unreadable_files_to_the_sandbox() {
        let fixture = Fixture::new();
        symlink(fixture.outside("secret"), fixture.host("link")).unwrap();
        rustix::fs::mkfifoat(CWD, fixture.host("fifo"), Mode::RWXU).unwrap();
        std::fs::write(fixture.host("locked"), b"x").unwrap();
        std::fs::set_permissions(fixture.host("locked"), PermissionsExt::from_mode(0o044)).unwrap();
        assert_eq!(why(fixture.workspace.stat("/workspace/link")), Why::Link);
        assert_eq!(why(fixture.workspace.stat("/workspace/fifo")), Why::Special);
        assert_eq!(why(fixture.workspace.stat("/workspace/locked")), Why::Denied);
    }

    #[test]
    fn a_listing_is_sorted_by_bytes_with_full_paths() {
        let fixture = Fixture::new();
        for name in ["b", "a", "Z", "é", "new\nline", ".hidden", "$(reboot)"] {
            std::fs::write(fixture.host(name), name).unwrap();
        }
        std::fs::create_dir(fixture.host("dir")).unwrap();
        std::fs::write(fixture.host("dir/deeper"), b"").unwrap();
        let entries = fixture.workspace.list("/workspace/").unwrap();
        let names: Vec<_> = entries.iter().map(|e| e.name.as_str()).collect();
        assert_eq!(names, ["$(reboot)", ".hidden", "Z", "a", "b", "dir", "new\nline", "é"]);
        assert!(entries.iter().all(|e| e.path == format!("/workspace/{}", e.name)));
        assert!(entries.iter().all(|e| e.is_dir == (e.name == "dir") && e.size.is_none() == e.is_dir));
        assert_eq!(fixture.workspace.list("/workspace/dir").unwrap()[0].path, "/workspace/dir/deeper");
    }

    #[test]
    fn a_listing_that_takes_too_long_is_left_to_the_sandbox() {
        let fixture = Fixture::new();
        std::fs::write(fixture.host("f"), b"x").unwrap();
        let list = |until| fixture.workspace.list_until("/workspace", until);
        assert_eq!(list(Instant::now() + LIST_TIME).unwrap().len(), 1);
        assert_eq!(why(list(Instant::now() - Duration::from_millis(1))), Why::TooMany);
    }

    #[test]
    fn path_errors_of_a_listing() {
        let fixture = Fixture::new();
        std::fs::write(fixture.host("f"), b"x").unwrap();
        symlink(".", fixture.host("link")).unwrap();
        assert_eq!(name(fixture.workspace.list("/workspace/f")), "NotADirectoryError");
        assert_eq!(name(fixture.workspace.list("/workspace/missing")), "FileNotFoundError");
        assert_eq!(why(fixture.workspace.list("/workspace/link")), Why::Link);
        assert_eq!(why(fixture.workspace.list("/")), Why::Outside);
    }

    #[test]
    fn a_link_is_listed_as_what_it_leads_to() {
        let fixture = Fixture::new();
        for path in ["a/b", "target"] {
            std::fs::create_dir_all(fixture.host(path)).unwrap();
        }
        std::fs::write(fixture.host("target/f"), b"four").unwrap();
        for (link, to) in [
            ("dir", "b"),
            ("up", "../target"),
            ("file", "../target/f"),
            ("chain", "up/f"),
            ("none", "x/y"),
            ("loop", "loop"),
            ("through", "file/x"),
        ] {
            symlink(to, fixture.host("a").join(link)).unwrap();
        }
        rustix::fs::mkfifoat(CWD, fixture.host("a/fifo"), Mode::RWXU).unwrap();
        let entries = fixture.workspace.list("/workspace/a").unwrap();
        let seen: Vec<_> = entries.iter().map(|e| (e.name.as_str(), e.is_dir, e.size)).collect();
        assert_eq!(
            seen,
            [
                ("b", true, None),
                ("chain", false, Some(4)),
                ("dir", true, None),
                ("fifo", false, None),
                ("file", false, Some(4)),
                ("loop", false, None),
                ("none", false, None),
                ("through", false, None),
                ("up", true, None),
            ]
        );
    }

    #[test]
    fn a_link_that_may_lead_out_is_left_to_the_sandbox() {
        let fixture = Fixture::new();
        std::fs::write(fixture.host("f"), b"x").unwrap();
        for to in ["/workspace/f", "/etc", "../outside", "../workspace/f", "/proc/self/root"] {
            symlink(to, fixture.host("link")).unwrap();
            assert_eq!(why(fixture.workspace.list("/workspace")), Why::Link, "{to}");
            std::fs::remove_file(fixture.host("link")).unwrap();
        }
    }

    #[test]
    fn a_name_that_is_no_text_is_left_to_the_sandbox() {
        let fixture = Fixture::new();
        std::fs::write(fixture.host(OsStr::from_bytes(b"\xff\xfe")), b"").unwrap();
        assert_eq!(why(fixture.workspace.list("/workspace")), Why::Encoding);
    }

    #[test]
    fn realpath_applies_dots_and_keeps_what_is_missing() {
        let fixture = Fixture::new();
        std::fs::create_dir_all(fixture.host("a/b")).unwrap();
        std::fs::write(fixture.host("f"), b"x").unwrap();
        for (path, real) in [
            ("/workspace", "/workspace"),
            ("/workspace/", "/workspace"),
            ("/workspace/a//b/.", "/workspace/a/b"),
            ("/workspace/a/b/..", "/workspace/a"),
            ("/workspace/missing/x", "/workspace/missing/x"),
            ("/workspace/missing/../a", "/workspace/a"),
            ("/workspace/f/x/", "/workspace/f/x"),
            ("/workspace/f/../a", "/workspace/a"),
            ("/workspace/a/../a/../a/b", "/workspace/a/b"),
        ] {
            assert_eq!(fixture.workspace.realpath(path).unwrap(), real, "{path}");
        }
        let long = format!("/workspace/{}", "n".repeat(256));
        assert_eq!(fixture.workspace.realpath(&long).unwrap(), long);
        assert_eq!(name(fixture.workspace.realpath("a")), "ValueError");
    }

    #[test]
    fn realpath_leaves_links_to_the_sandbox() {
        let fixture = Fixture::new();
        std::fs::create_dir_all(fixture.host("a/b")).unwrap();
        symlink("b", fixture.host("a/link")).unwrap();
        symlink("loop", fixture.host("loop")).unwrap();
        for path in ["a/link", "a/link/missing", "a/link/..", "a/link/../b", "loop", "loop/q", "missing/../a/link"] {
            assert_eq!(why(fixture.workspace.realpath(&format!("/workspace/{path}"))), Why::Link, "{path}");
        }
        for path in ["/", "/etc", "/workspace/..", "/workspace/a/../.."] {
            assert_eq!(why(fixture.workspace.realpath(path)), Why::Outside, "{path}");
        }
    }
}
