//! What the fuzz targets of `fuzz/` call: bytes in, and a panic for what must never be. In no program.
//!
//! `cargo test` replays the corpora through the same functions.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a target reports by panicking")]

use std::fs::File;
use std::io::{Read, Seek, Write};
use std::os::fd::{AsFd, OwnedFd};

use flate2::write::GzEncoder;
use rustix::fs::{AtFlags, Dir, FileType, MemfdFlags, Mode, OFlags, Stat};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsconfig_set_string, fsmount, fsopen};
use sha2::{Digest, Sha256};
use wire::id::LayerId;
use wire::launch::{Answer, Compression, Request};

use crate::blob::Blob;
use crate::config::Config;
use crate::frame::Recorder;
use crate::layer::{self, Caps};
use crate::{frame, plan, remove};

/// What an archive may hold here.
const CAPS: Caps = Caps { bytes: 1 << 20, entries: 512 };
const BLOCK: usize = 512;
/// Content of the file beside the directory that archives are unpacked into.
const BESIDE: &[u8] = b"beside the layer";

/// A request as the service sends it: the number of its descriptors, then JSON. What passes the check is within it.
pub fn requests(data: &[u8]) {
    let Some((descriptors, message)) = data.split_first() else { return };
    let Ok(request) = serde_json::from_slice::<Request>(message) else { return };
    let again = serde_json::to_vec(&request).unwrap();
    assert_eq!(serde_json::from_slice::<Request>(&again).unwrap(), request);
    let config: Config = toml::from_str(
        "state_dir = '/s'\nruntime_dir = '/r'\nsocket = '/r/l'\nservice_uid = 900\nservice_gid = 900\nslots = 8\n\
         cgroup_root = '/c'\ninit = '/i'\nrecipes_dir = '/i'\n",
    )
    .unwrap();
    if plan::check(&request, usize::from(descriptors % 4), &config).is_err() {
        return;
    }
    if let Request::Start { plan } = &request {
        let path = &plan.work_dir;
        assert!(path.len() > 1 && path.starts_with('/') && path.split('/').all(|part| part != ".." && part != "."));
        assert!(!["/proc", "/sys", "/dev"].iter().any(|kernel| std::path::Path::new(path).starts_with(kernel)));
        assert!((1..8).contains(&plan.slot) && plan.workspace_uid < 65_536 && !plan.hostname.contains('/'));
    }
    if let Request::Bootstrap { recipe } = &request {
        assert!(!recipe.contains('/') && !recipe.starts_with('.'));
    }
}

/// A layer archive: how it is compressed, then its bytes. Whatever it says, nothing beside the directory changes,
/// and what is in the directory is what an image may hold.
pub fn layers(data: &[u8]) {
    let Some((how, bytes)) = data.split_first() else { return };
    let Some(room) = Room::new() else { return };
    let (blob, compression) = match how % 6 {
        0 => (bytes.to_vec(), Compression::None),
        1 => (bytes.to_vec(), Compression::Gzip),
        2 => (bytes.to_vec(), Compression::Zstd),
        // Most of what is worth trying has right checksums.
        3 => (with_checksums(bytes), Compression::None),
        4 => (gzip(&with_checksums(bytes)), Compression::Gzip),
        _ => (zstd::encode_all(with_checksums(bytes).as_slice(), 1).unwrap(), Compression::Zstd),
    };
    let blob = memfd(&blob);
    let mut digest = String::new();
    if let Ok(mut reader) = Blob::open(blob.try_clone().unwrap(), compression, CAPS.bytes) {
        // The digest of what can be read of it: so that a whole archive comes to its end.
        let _ = std::io::copy(&mut reader, &mut std::io::sink());
        digest = reader.digest();
    }
    let layer = LayerId::parse(&digest).unwrap_or_else(|_| LayerId::parse(&"0".repeat(64)).unwrap());
    (&blob).rewind().unwrap();
    let kept = memfd(b"");
    let recorder = Recorder::new(kept.try_clone().unwrap().into()).unwrap();
    let dir = || room.layer.try_clone().unwrap();
    let done = layer::extract_into(dir(), &layer, compression, blob.into(), CAPS, Some(recorder));
    if let Ok(answer) = &done {
        // What it takes to make the archive again makes it, or says so.
        (&kept).rewind().unwrap();
        let mut again = memfd(b"");
        if frame::rebuild(&dir(), kept.into(), &mut again, &layer, CAPS.bytes).is_ok() {
            again.rewind().unwrap();
            let mut bytes = Vec::new();
            again.read_to_end(&mut bytes).unwrap();
            let digest: String = Sha256::digest(&bytes).iter().map(|byte| format!("{byte:02x}")).collect();
            assert_eq!(digest, layer.as_str());
        }
        assert!(
            matches!(answer, Answer::Unpacked { bytes, entries } if *bytes <= CAPS.bytes && *entries <= CAPS.entries)
        );
    }
    room.check();
}

/// A file system of its own, mounted nowhere, with the layer's directory and something beside it.
struct Room {
    root: OwnedFd,
    layer: OwnedFd,
    before: [Stat; 2],
}

impl Room {
    /// None without the privilege to make one.
    fn new() -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            return None;
        }
        let config = fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC).unwrap();
        for (key, value) in [("size", "8m"), ("nr_inodes", "4096"), ("mode", "0755")] {
            fsconfig_set_string(config.as_fd(), key, value).unwrap();
        }
        fsconfig_create(config.as_fd()).unwrap();
        let locked = MountAttrFlags::MOUNT_ATTR_NODEV | MountAttrFlags::MOUNT_ATTR_NOSUID;
        let root = fsmount(config.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, locked).unwrap();
        for name in ["layer", "outside"] {
            rustix::fs::mkdirat(&root, name, Mode::from_raw_mode(0o755)).unwrap();
        }
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&root, "outside/file", flags, Mode::from_raw_mode(0o644)).unwrap();
        File::from(file).write_all(BESIDE).unwrap();
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let layer = rustix::fs::openat(&root, "layer", flags, Mode::empty()).unwrap();
        let before = Self::look(&root);
        Some(Self { root, layer, before })
    }

    /// What is beside the layer.
    fn look(root: &OwnedFd) -> [Stat; 2] {
        let stat = |name| rustix::fs::statat(root, name, AtFlags::SYMLINK_NOFOLLOW).unwrap();
        [stat("outside"), stat("outside/file")]
    }

    fn check(self) {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::openat(&self.root, ".", flags, Mode::empty()).unwrap();
        assert_eq!(Dir::new(root).unwrap().count(), 4, "something is beside the layer");
        for (now, before) in Self::look(&self.root).iter().zip(&self.before) {
            let seen =
                |stat: &Stat| (stat.st_mode, stat.st_uid, stat.st_nlink, stat.st_size, stat.st_mtime, stat.st_ctime);
            assert_eq!(seen(now), seen(before), "what is beside the layer has changed");
        }
        let mut content = Vec::new();
        let file = rustix::fs::openat(&self.root, "outside/file", OFlags::RDONLY, Mode::empty()).unwrap();
        File::from(file).read_to_end(&mut content).unwrap();
        assert_eq!(content, BESIDE);
        walk(&self.layer, 0);
        remove::empty(self.layer.as_fd()).unwrap();
    }
}

/// That everything in a layer is what an image may hold.
fn walk(dir: &OwnedFd, depth: usize) {
    assert!(depth <= 256, "deeper than an archive can say");
    for entry in Dir::read_from(dir).unwrap() {
        let entry = entry.unwrap();
        if matches!(entry.file_name().to_bytes(), b"." | b"..") {
            continue;
        }
        let stat = rustix::fs::statat(dir, entry.file_name(), AtFlags::SYMLINK_NOFOLLOW).unwrap();
        assert!(stat.st_uid <= 65_535 && stat.st_gid <= 65_535);
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => {
                let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                walk(&rustix::fs::openat(dir, entry.file_name(), flags, Mode::empty()).unwrap(), depth + 1);
            }
            FileType::RegularFile => assert!(u64::try_from(stat.st_size).unwrap() <= CAPS.bytes),
            FileType::CharacterDevice => assert_eq!(stat.st_rdev, 0, "a device that is no whiteout"),
            FileType::Symlink | FileType::Fifo => {}
            other => panic!("{other:?} in a layer"),
        }
    }
}

/// The archive with the checksum of every header made right, as far as it is one.
fn with_checksums(bytes: &[u8]) -> Vec<u8> {
    let mut archive = bytes.to_vec();
    archive.resize(bytes.len().next_multiple_of(BLOCK), 0);
    let mut at = 0;
    while at + BLOCK <= archive.len() {
        let Some(block) = archive[at..at + BLOCK].first_chunk_mut::<BLOCK>() else { break };
        if block.iter().all(|byte| *byte == 0) {
            break;
        }
        block[148..156].fill(b' ');
        let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
        block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        let size = tar::Header::from_byte_slice(block).entry_size().unwrap_or(0).min(archive.len() as u64);
        at += BLOCK + usize::try_from(size).unwrap().next_multiple_of(BLOCK);
    }
    archive.resize(archive.len() + 2 * BLOCK, 0);
    archive
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn memfd(bytes: &[u8]) -> File {
    let mut file = File::from(rustix::fs::memfd_create("blob", MemfdFlags::CLOEXEC).unwrap());
    file.write_all(bytes).unwrap();
    file.rewind().unwrap();
    file
}

#[cfg(test)]
mod tests {
    fn replay(target: &str, run: fn(&[u8])) {
        let corpus = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(target);
        let inputs: Vec<_> = std::fs::read_dir(corpus).unwrap().map(|entry| entry.unwrap().path()).collect();
        assert!(!inputs.is_empty());
        for input in inputs {
            run(&std::fs::read(input).unwrap());
        }
    }

    #[test]
    fn requests() {
        replay("requests", super::requests);
    }

    #[test]
    fn layers() {
        replay("layers", super::layers);
    }
}
