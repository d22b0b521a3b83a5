//! What the tests of this module share: a workspace in a temporary directory beside a secret, and an unprivileged user.

use std::ffi::OsStr;
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use rustix::fs::{Mode, OFlags};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsconfig_set_string, fsmount, fsopen};
use tempfile::TempDir;

use super::{FileError, Why, Workspace};

/// What is in the file `outside/secret`, next to the workspace.
pub(super) const SECRET: &[u8] = b"outside of the workspace";
/// Largest file, in bytes, that these tests read or write.
pub(super) const MAX: u64 = 1 << 20;
/// Set in the process that runs a test as an unprivileged user.
const CHILD: &str = "SANDBOXD_TEST_UNPRIVILEGED";
/// `nobody`.
const NOBODY: u32 = 65_534;

/// A workspace, seen as `/workspace`; its directory goes with it.
pub(super) struct Fixture {
    dir: TempDir,
    pub(super) workspace: Workspace,
}

impl Fixture {
    pub(super) fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        for name in ["workspace", "outside"] {
            std::fs::create_dir(dir.path().join(name)).unwrap();
        }
        std::fs::write(dir.path().join("outside/secret"), SECRET).unwrap();
        let root = rustix::fs::open(
            dir.path().join("workspace"),
            OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
            Mode::empty(),
        )
        .unwrap();
        Self { workspace: Workspace::from_fd(root, "/workspace"), dir }
    }

    /// On the host, beneath the workspace.
    pub(super) fn host(&self, path: impl AsRef<OsStr>) -> PathBuf {
        self.dir.path().join("workspace").join(path.as_ref())
    }

    /// On the host, beneath the directory that is not the workspace's.
    pub(super) fn outside(&self, path: &str) -> PathBuf {
        self.dir.path().join("outside").join(path)
    }

    /// That nothing outside has changed.
    pub(super) fn assert_outside_untouched(&self) {
        let names: Vec<_> = std::fs::read_dir(self.outside("")).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(names, ["secret"]);
        assert_eq!(std::fs::read(self.outside("secret")).unwrap(), SECRET);
    }

    /// Names in a directory of the workspace, sorted.
    pub(super) fn names(&self, path: &str) -> Vec<String> {
        let entries = std::fs::read_dir(self.host(path)).unwrap();
        let mut names: Vec<_> = entries.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

impl Workspace {
    /// Writes a whole file, as a request does.
    pub(super) fn write(&self, path: &str, bytes: &[u8], max: u64) -> Result<(), FileError> {
        let mut pending = self.begin_write(path, max)?;
        pending.write_all(bytes)?;
        pending.commit()
    }
}

/// A workspace on a file system of its own, of `size` and `inodes` (the root is one); mounted nowhere, so gone with
/// its descriptor. None without the privilege to make one.
pub(super) fn tmpfs(size: &str, inodes: &str) -> Option<Workspace> {
    if !rustix::process::geteuid().is_root() {
        return None;
    }
    let config = fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC).unwrap();
    for (key, value) in [("size", size), ("nr_inodes", inodes), ("mode", "0755")] {
        fsconfig_set_string(config.as_fd(), key, value).unwrap();
    }
    fsconfig_create(config.as_fd()).unwrap();
    let root = fsmount(config.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty()).unwrap();
    Some(Workspace::from_fd(root, "/workspace"))
}

/// Why the sandbox has to do it, if that is the answer.
pub(super) fn why<T: std::fmt::Debug>(result: Result<T, FileError>) -> Why {
    match result.unwrap_err() {
        FileError::NotNative { why, .. } => why,
        other => panic!("{other:?} is the service's own answer"),
    }
}

/// The name of the error, as the client gets it.
pub(super) fn name<T: std::fmt::Debug>(result: Result<T, FileError>) -> &'static str {
    let error = result.unwrap_err();
    error.name().unwrap_or_else(|| panic!("{error:?} is no path error"))
}

/// Whether this process is unprivileged. If not, runs the test `module_path!()::test` as `nobody` in a process of
/// its own, asserts that it passes, and answers false: there is nothing left to do.
pub(super) fn unprivileged(module: &str, test: &str) -> bool {
    if std::env::var_os(CHILD).is_some() || !rustix::process::geteuid().is_root() {
        return true;
    }
    let (_crate, module) = module.split_once("::").unwrap();
    let output = Command::new("/proc/self/exe")
        .args(["--exact", &format!("{module}::{test}"), "--nocapture"])
        .env(CHILD, "1")
        .env("TMPDIR", "/tmp")
        .current_dir("/")
        .uid(NOBODY)
        .gid(NOBODY)
        .output()
        .unwrap();
    let stdout = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{stdout}{}", String::from_utf8_lossy(&output.stderr));
    assert!(stdout.contains("1 passed"), "{stdout}");
    false
}
