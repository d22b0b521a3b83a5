//! What the fuzz targets call of this room; see [`crate::fuzzing`].
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a target reports by panicking")]

use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsconfig_set_string, fsmount, fsopen};

use super::stored::{Hidden, TreeLimits};
use super::{Workspace, text};

const WORK_DIR: &str = "/workspace";
const SECRET: &[u8] = b"beside the workspace";
const MAX: u64 = 64 << 10;
/// Operations in one input.
const OPERATIONS: usize = 64;

/// Bytes of a file as text, and lines of it: name, 0, offset, limit, content.
pub fn text(data: &[u8]) {
    let Some(end) = data.iter().position(|byte| *byte == 0) else { return };
    let (name, rest) = (String::from_utf8_lossy(&data[..end]), &data[end + 1..]);
    let Some(([offset, limit], content)) = rest.split_first_chunk() else { return };
    let Some(decoded) = text::decode(&name, content) else { return };
    // A wide encoding's unit is at most three bytes of UTF-8.
    assert!(decoded.len() <= content.len().saturating_mul(3));
    let part = text::slice(&decoded, usize::from(*offset), usize::from(*limit));
    assert!(part.len() <= decoded.len() + 100);
    assert_eq!(text::slice(&decoded, usize::MAX, usize::MAX), "[End of file]");
}

/// A history of a workspace: lines `operation path[ TAB argument]`, half of them the service's operations and half
/// what code in the sandbox does meanwhile. Nothing beside the workspace changes, or is ever shown.
pub fn operations(data: &[u8]) {
    let Some(room) = Room::new() else { return };
    for line in data.split(|byte| *byte == b'\n').take(OPERATIONS) {
        let Some((operation, rest)) = line.split_first() else { continue };
        let rest = String::from_utf8_lossy(rest);
        let (path, argument) = rest.split_once('\t').unwrap_or((&rest, ""));
        match operation {
            b'r' => unseen(&room.workspace.read(path, MAX).unwrap_or_default()),
            b'w' => room.write(path, argument.as_bytes()),
            b's' => drop(room.workspace.stat(path)),
            b'l' => drop(room.workspace.list(path)),
            b'p' => {
                let real = room.workspace.realpath(path).unwrap_or_else(|_| WORK_DIR.to_owned());
                assert!(std::path::Path::new(&real).starts_with(WORK_DIR) && !real.contains("/../"), "{real}");
            }
            b'm' => drop(room.workspace.mkdir(path)),
            b'd' => drop(room.workspace.remove(path)),
            b'L' => drop(room.workspace.stored_ls(path)),
            b'T' => room.tree(path, argument),
            b'R' => unseen(&room.workspace.stored_bytes(path, MAX).unwrap_or_default()),
            b'X' => unseen(room.workspace.stored_text(path, MAX).unwrap_or_default().as_bytes()),
            other => room.sandbox(*other, path, argument),
        }
    }
    room.check();
}

fn unseen(content: &[u8]) {
    assert!(!content.windows(SECRET.len()).any(|part| part == SECRET), "what is beside the workspace was shown");
}

/// A file system of its own, mounted nowhere, with a workspace and something beside it.
struct Room {
    root: OwnedFd,
    inside: OwnedFd,
    workspace: Workspace,
}

impl Room {
    /// None without the privilege to make one.
    fn new() -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            return None;
        }
        let config = fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC).unwrap();
        for (key, value) in [("size", "8m"), ("nr_inodes", "2048"), ("mode", "0755")] {
            fsconfig_set_string(config.as_fd(), key, value).unwrap();
        }
        fsconfig_create(config.as_fd()).unwrap();
        let root = fsmount(config.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::MOUNT_ATTR_NODEV).unwrap();
        for name in ["workspace", "outside", "workspace/a", "workspace/a/b"] {
            rustix::fs::mkdirat(&root, name, Mode::from_raw_mode(0o755)).unwrap();
        }
        put(&root, "outside/secret", SECRET);
        put(&root, "workspace/a/file", b"content\n");
        let links =
            [("up", "../outside"), ("secret", "../outside/secret"), ("inside", "a/b"), ("loop", "loop"), ("root", "/")];
        for (name, target) in links {
            rustix::fs::symlinkat(target, &root, format!("workspace/{name}")).unwrap();
        }
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let inside = rustix::fs::openat(&root, "workspace", flags, Mode::empty()).unwrap();
        let workspace = Workspace::from_fd(inside.try_clone().unwrap(), WORK_DIR);
        Some(Self { root, inside, workspace })
    }

    fn write(&self, path: &str, content: &[u8]) {
        let Ok(mut pending) = self.workspace.begin_write(path, MAX) else { return };
        if pending.write_all(content).is_ok() {
            let _ = pending.commit();
        }
    }

    fn tree(&self, path: &str, argument: &str) {
        let mut bounds = argument.bytes().chain([3, 9]);
        let (depth, entries) = (bounds.next().unwrap(), bounds.next().unwrap());
        let until = Instant::now() + Duration::from_secs(1);
        let limits = TreeLimits { depth: u32::from(depth.max(1)), entries: usize::from(entries.max(1)), until };
        let hidden = Hidden::new(&[path.to_owned(), "skills/".to_owned()]);
        if let Ok(tree) = self.workspace.stored_tree_without(path, limits, &hidden) {
            assert!(tree.entries.len() <= limits.entries);
            assert!(tree.entries.iter().all(|entry| !entry.path.split('/').any(|part| part == "..")));
        }
    }

    /// What code in the sandbox does: names beneath its own directory, whatever they lead to.
    fn sandbox(&self, operation: u8, name: &str, argument: &str) {
        let own = |name: &str| !name.is_empty() && !name.contains(['/', '\0']) && name != "." && name != "..";
        if !own(name) {
            return;
        }
        // Through a link a mode would reach beside the workspace: the sandbox could not, so neither does this.
        let is_link = || {
            let stat = rustix::fs::statat(&self.inside, name, AtFlags::SYMLINK_NOFOLLOW);
            stat.is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Symlink)
        };
        let mode = Mode::from_raw_mode(argument.bytes().next().map_or(0o700, |byte| u32::from(byte) << 1));
        // What does not work in a sandbox does not work.
        let _ = match operation {
            b'S' => rustix::fs::symlinkat(argument, &self.inside, name),
            b'M' if own(argument) => rustix::fs::renameat(&self.inside, name, &self.inside, argument),
            b'U' => rustix::fs::unlinkat(&self.inside, name, AtFlags::empty()),
            b'F' => rustix::fs::mkfifoat(&self.inside, name, Mode::from_raw_mode(0o600)),
            b'H' if own(argument) => rustix::fs::linkat(&self.inside, name, &self.inside, argument, AtFlags::empty()),
            b'C' if !is_link() => rustix::fs::chmodat(&self.inside, name, mode, AtFlags::empty()),
            _ => Ok(()),
        };
    }

    fn check(&self) {
        let names = |path| {
            let dir = rustix::fs::openat(&self.root, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).unwrap();
            Dir::new(dir).unwrap().count()
        };
        assert_eq!((names("."), names("outside")), (4, 3), "something is beside the workspace");
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let secret = rustix::fs::openat(&self.root, "outside/secret", flags, Mode::empty()).unwrap();
        let stat = rustix::fs::fstat(&secret).unwrap();
        assert_eq!((stat.st_mode & 0o7777, stat.st_nlink), (0o600, 1));
        let mut content = Vec::new();
        std::fs::File::from(secret).read_to_end(&mut content).unwrap();
        assert_eq!(content, SECRET);
    }
}

fn put(root: &OwnedFd, path: &str, content: &[u8]) {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::CLOEXEC;
    let file = rustix::fs::openat(root, path, flags, Mode::from_raw_mode(0o600)).unwrap();
    std::fs::File::from(file).write_all(content).unwrap();
}
