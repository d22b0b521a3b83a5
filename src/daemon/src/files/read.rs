//! Reading a file.

use std::fs::File;
use std::os::fd::OwnedFd;

use rustix::fs::{FileType, OFlags};

use super::Workspace;
use super::error::{FileError, Op, Why};

/// A file that is open for reading.
#[derive(Debug)]
pub struct Reading {
    /// The file, at offset 0.
    pub file: File,
    /// Its size in bytes when it was opened; the sandbox may have changed it since.
    pub len: u64,
}

impl Workspace {
    /// Opens the file at `path`, for a body that is sent piece by piece. It is a plain file of at most `max` bytes.
    ///
    /// # Errors
    /// As the contract has it for `files/read`; [`FileError::TooLarge`] over `max`.
    pub fn open_read(&self, path: &str, max: u64) -> Result<Reading, FileError> {
        let place = self.place(path)?;
        // A FIFO without a writer and a file under a lease would hold the open up without `O_NONBLOCK`,
        // which means nothing for a plain file afterwards.
        let fd = super::resolve::open_beneath(self.root(), place.relative(), OFlags::RDONLY | OFlags::NONBLOCK)
            .map_err(|errno| place.error(Op::Read, errno))?;
        let stat = rustix::fs::fstat(&fd).map_err(|errno| place.error(Op::Read, errno))?;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile if place.must_be_dir() => return Err(place.not_native(Why::Unclear)),
            FileType::RegularFile => {}
            FileType::Directory => return Err(FileError::IsADirectory { path: place.absolute().to_owned() }),
            _ => return Err(place.not_native(Why::Special)),
        }
        let len = u64::try_from(stat.st_size).unwrap_or_default();
        if len > max {
            return Err(FileError::TooLarge { path: place.absolute().to_owned(), limit: max });
        }
        Ok(Reading { file: File::from(fd), len })
    }

    /// The bytes of the file at `path`, counted as they are read: it may grow meanwhile.
    ///
    /// # Errors
    /// As [`Workspace::open_read`].
    pub fn read(&self, path: &str, max: u64) -> Result<Vec<u8>, FileError> {
        let Reading { file, len } = self.open_read(path, max)?;
        let error = |source: rustix::io::Errno| FileError::from_errno(Op::Read, path, source);
        let bytes = read_to_end(file.into(), len, max).map_err(error)?;
        match bytes {
            Some(bytes) => Ok(bytes),
            None => Err(FileError::TooLarge { path: path.to_owned(), limit: max }),
        }
    }
}

/// Everything in `file`, which had `len` bytes; none when it has more than `max` by now.
fn read_to_end(file: OwnedFd, len: u64, max: u64) -> rustix::io::Result<Option<Vec<u8>>> {
    // One byte more than expected: a read that leaves it empty was the last one.
    let mut bytes = Vec::with_capacity(usize::try_from(len).unwrap_or(usize::MAX).saturating_add(1));
    loop {
        let room = bytes.capacity() - bytes.len();
        let count = rustix::io::retry_on_intr(|| rustix::io::read(&file, rustix::buffer::spare_capacity(&mut bytes)))?;
        let have = bytes.len() as u64;
        if have > max {
            return Ok(None);
        }
        if count == 0 || (count < room && have >= len) {
            return Ok(Some(bytes));
        }
        if bytes.len() == bytes.capacity() {
            let more = (max - have + 1).min(1 << 20);
            bytes.reserve_exact(usize::try_from(more).unwrap_or(1 << 20));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::unix::fs::symlink;
    use std::os::unix::net::UnixListener;

    use rustix::fs::{CWD, Mode};

    use super::super::testing::{Fixture, MAX, name, unprivileged, why};
    use super::*;

    #[test]
    fn a_file_is_read_whole_up_to_the_ceiling() {
        let fixture = Fixture::new();
        for len in [0, 1, 4095, 4096, 70_000] {
            let bytes: Vec<u8> = (0..len).map(|i| u8::try_from(i % 251).unwrap()).collect();
            std::fs::write(fixture.host("f"), &bytes).unwrap();
            assert_eq!(fixture.workspace.read("/workspace/f", MAX).unwrap(), bytes);
            assert_eq!(fixture.workspace.read("/workspace/f", len).unwrap(), bytes);
            if let Some(less) = len.checked_sub(1) {
                assert!(matches!(fixture.workspace.read("/workspace/f", less), Err(FileError::TooLarge { .. })));
            }
        }
        let mut reading = fixture.workspace.open_read("/workspace/./f", MAX).unwrap();
        let mut bytes = Vec::new();
        assert_eq!(reading.file.read_to_end(&mut bytes).unwrap() as u64, reading.len);
    }

    #[test]
    fn a_file_that_grows_is_counted_as_it_is_read() {
        let fixture = Fixture::new();
        std::fs::write(fixture.host("f"), b"0123456789").unwrap();
        let open = || File::open(fixture.host("f")).unwrap().into();
        assert_eq!(read_to_end(open(), 4, 10).unwrap().unwrap(), b"0123456789");
        assert_eq!(read_to_end(open(), 0, 10).unwrap().unwrap(), b"0123456789");
        assert_eq!(read_to_end(open(), 4, 9).unwrap(), None);
        // It shrank: what is there.
        assert_eq!(read_to_end(open(), 20, 100).unwrap().unwrap(), b"0123456789");
    }

    #[test]
    fn path_errors_have_the_names_of_the_contract() {
        let fixture = Fixture::new();
        std::fs::create_dir(fixture.host("dir")).unwrap();
        std::fs::write(fixture.host("file"), b"x").unwrap();
        let read = |path: &str| fixture.workspace.read(path, MAX);
        assert_eq!(name(read("/workspace/missing")), "FileNotFoundError");
        assert_eq!(name(read("/workspace/missing/deeper")), "FileNotFoundError");
        assert_eq!(name(read("/workspace")), "IsADirectoryError");
        assert_eq!(name(read("/workspace/dir/")), "IsADirectoryError");
        assert_eq!(name(read("/workspace/file/x")), "NotADirectoryError");
        assert_eq!(name(read("file")), "ValueError");
        assert_eq!(name(read("/workspace/a\0b")), "ValueError");
        let text = read("/workspace/./missing").unwrap_err().to_string();
        assert_eq!(text, "No such file or directory: '/workspace/missing'");
    }

    #[test]
    fn what_the_sandbox_has_to_resolve_is_left_to_it() {
        let fixture = Fixture::new();
        std::fs::create_dir(fixture.host("dir")).unwrap();
        std::fs::write(fixture.host("file"), b"x").unwrap();
        symlink("file", fixture.host("link")).unwrap();
        symlink("dir", fixture.host("dirlink")).unwrap();
        symlink(fixture.outside("secret"), fixture.host("out")).unwrap();
        symlink("/proc/self/root", fixture.host("magic")).unwrap();
        let read = |path: &str| fixture.workspace.read(path, MAX);
        for path in ["link", "out", "dirlink/x", "magic/etc/passwd", "dir/../link"] {
            assert_eq!(why(read(&format!("/workspace/{path}"))), Why::Link, "{path}");
        }
        for path in ["/etc/passwd", "/", "/workspace/../etc/passwd", "/workspace-2/x"] {
            assert_eq!(why(read(path)), Why::Outside, "{path}");
        }
        for path in ["missing/../file", "file/../file", "dirlink/../file", "file/", "file/.", "link/.."] {
            assert_eq!(why(read(&format!("/workspace/{path}"))), Why::Unclear, "{path}");
        }
        assert_eq!(read("/workspace/dir/../file").unwrap(), b"x");
        let long = format!("/workspace/{}", "n".repeat(256));
        assert_eq!(why(read(&long)), Why::TooLong);
    }

    #[test]
    fn special_files_are_not_waited_for() {
        let fixture = Fixture::new();
        rustix::fs::mkfifoat(CWD, fixture.host("fifo"), Mode::RUSR | Mode::WUSR).unwrap();
        let _socket = UnixListener::bind(fixture.host("socket")).unwrap();
        for path in ["/workspace/fifo", "/workspace/socket"] {
            assert_eq!(why(fixture.workspace.read(path, MAX)), Why::Special, "{path}");
        }
    }

    #[test]
    fn a_file_that_the_user_may_not_read_is_left_to_the_sandbox() {
        if !unprivileged(module_path!(), "a_file_that_the_user_may_not_read_is_left_to_the_sandbox") {
            return;
        }
        let fixture = Fixture::new();
        std::fs::write(fixture.host("f"), b"x").unwrap();
        std::fs::set_permissions(fixture.host("f"), std::os::unix::fs::PermissionsExt::from_mode(0o000)).unwrap();
        assert_eq!(why(fixture.workspace.read("/workspace/f", MAX)), Why::Denied);
    }

    #[test]
    fn a_mount_is_not_entered() {
        // A magic link crosses mounts by itself, so the workspace is one: `/proc` with its mount points in it.
        let root = rustix::fs::open("/proc", OFlags::PATH | OFlags::DIRECTORY, Mode::empty()).unwrap();
        let workspace = Workspace::from_fd(root, "/workspace");
        assert_eq!(why(workspace.read("/workspace/self/environ", MAX)), Why::Link);
        let root = rustix::fs::open("/", OFlags::PATH | OFlags::DIRECTORY, Mode::empty()).unwrap();
        let workspace = Workspace::from_fd(root, "/workspace");
        assert_eq!(why(workspace.read("/workspace/proc/version", MAX)), Why::Outside);
    }
}
