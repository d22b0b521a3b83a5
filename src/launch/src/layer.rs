//! One layer archive (OCI image spec, layer.md) into the directory that is this process's root.
//!
//! Runs without privilege in a process that sees nothing else, see [`crate::unpack`]. Even so every path is resolved by
//! the kernel within the layer, hard links included, so that what is unpacked is what the archive says.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, ResolveFlags, Timespec, Timestamps, Uid, XattrFlags};
use rustix::io::Errno;
use tar::{Archive, Entry, EntryType};
use wire::id::LayerId;
use wire::launch::{Answer, Compression};

use crate::blob::{BLOCK, Blob};
use crate::error::{Failure, Result, Step};
use crate::frame::Recorder;
use crate::{remove, store};

/// Highest user and group id of an entry.
const MAX_ID: u64 = 65_535;
/// Most components of a path, longest of them, and longest target of a link, in bytes.
const MAX_DEPTH: usize = 128;
const MAX_NAME: usize = 255;
const MAX_LINK: usize = 4095;
/// Characters of a path that are told in an error.
const TOLD: usize = 300;
/// How often a path is looked up again that others disturbed.
const MAX_TRIES: u32 = 10_000;
/// Content is copied in such pieces, in bytes.
const BUFFER: usize = 64 * 1024;
/// What everybody may do with the directory of a layer.
const READABLE: Mode = Mode::from_raw_mode(0o555);
/// Prefix of a name that says "not here any more", and the name that says so of everything beneath (layer.md, Whiteouts).
const WHITEOUT: &[u8] = b".wh.";
const OPAQUE: &[u8] = b".wh..wh..opq";
/// How overlayfs is told the latter on a mount with `userxattr`.
const OPAQUE_XATTR: &str = "user.overlay.opaque";
const CAPABILITY_XATTR: &str = "SCHILY.xattr.security.capability";

/// How much an archive may hold.
#[derive(Clone, Copy)]
pub struct Caps {
    /// Uncompressed bytes, and bytes of regular files.
    pub bytes: u64,
    /// Entries.
    pub entries: u64,
}

/// Unpack `blob` into `/` and check that its uncompressed bytes have the digest `layer`. `recorder` is told what would be
/// needed to make the archive again.
///
/// # Errors
/// The first entry that cannot be made, a cap, or another digest.
pub fn extract(
    layer: &LayerId,
    compression: Compression,
    blob: OwnedFd,
    caps: Caps,
    recorder: Option<Recorder>,
) -> Result<Answer> {
    let root = rustix::fs::open("/", OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
        .step(|| "open the layer's directory")?;
    extract_into(root, layer, compression, blob, caps, recorder)
}

/// The same into the directory `root`: nothing of it is resolved outside of that.
///
/// # Errors
/// As of [`extract`].
pub fn extract_into(
    root: OwnedFd,
    layer: &LayerId,
    compression: Compression,
    blob: OwnedFd,
    caps: Caps,
    recorder: Option<Recorder>,
) -> Result<Answer> {
    let reader =
        Blob::open(File::from(blob), compression, caps.bytes).step(|| format!("open the blob of layer {layer}"))?;
    let mut reader = reader.recorded(recorder.clone());
    let mut tree = Tree::new(root, caps);
    let mut last = 0;
    {
        let mut archive = Archive::new(&mut reader);
        let entries = archive.entries().step(|| format!("read layer {layer}"))?;
        for entry in entries {
            let mut entry = entry.step(|| format!("read layer {layer} after {} entries", tree.entries))?;
            last = stored(&entry);
            if let Some((recorder, path)) = recorder.as_ref().zip(path_of_content(&entry)) {
                recorder.content(&path, last);
            }
            tree.add(&mut entry)?;
        }
    }
    // What may be missing is what fills up the last entry, nothing of its content.
    if reader.filled() > last.next_multiple_of(BLOCK) - last {
        return Err(Failure::new(format!("read layer {layer}: the archive ends within its last entry")));
    }
    // The digest covers what follows the last entry, too.
    io::copy(&mut reader, &mut io::sink()).step(|| format!("read layer {layer} to its end"))?;
    let digest = reader.digest();
    if digest != layer.as_str() {
        return Err(Failure::new(format!("check layer {layer}: the archive has the digest {digest}")));
    }
    tree.finish();
    if let Some(recorder) = recorder {
        recorder.finish();
    }
    Ok(Answer::Unpacked { bytes: tree.bytes, entries: tree.entries })
}

/// Bytes of an entry in the archive, without what fills them up.
fn stored<R: Read>(entry: &Entry<'_, R>) -> u64 {
    // Of a sparse file, `size` is what it unpacks to.
    if entry.header().entry_type() == EntryType::GNUSparse {
        return entry.header().entry_size().unwrap_or(0);
    }
    entry.size()
}

/// Where the content of an entry will be, byte for byte.
fn path_of_content<R: Read>(entry: &Entry<'_, R>) -> Option<Vec<u8>> {
    let is_file = matches!(entry.header().entry_type(), EntryType::Regular | EntryType::Continuous);
    let parts = components(&entry.path_bytes()).filter(|_| is_file)?;
    let is_whiteout = parts.last()?.starts_with(WHITEOUT);
    (!is_whiteout).then(|| join(&parts))
}

/// The directory being filled.
struct Tree {
    root: OwnedFd,
    caps: Caps,
    bytes: u64,
    entries: u64,
    /// The directory of the last entry: archives go through them one by one.
    parent: Option<(Vec<u8>, OwnedFd)>,
    /// When each directory was modified: filling it modifies it again.
    directories: HashMap<Vec<u8>, u64>,
    /// What content goes through.
    buffer: Vec<u8>,
}

impl Tree {
    fn new(root: OwnedFd, caps: Caps) -> Self {
        let buffer = vec![0; BUFFER];
        Self { root, caps, bytes: 0, entries: 0, parent: None, directories: HashMap::new(), buffer }
    }

    fn add<R: Read>(&mut self, entry: &mut Entry<'_, R>) -> Result<()> {
        self.entries += 1;
        if self.entries > self.caps.entries {
            return Err(Failure::new(format!("read the layer: more than {} entries", self.caps.entries)));
        }
        let shown = shown(&entry.path_bytes());
        let Some(parts) = components(&entry.path_bytes()) else {
            let more = format!("more than {MAX_DEPTH} parts or a name of more than {MAX_NAME} bytes");
            return Err(Failure::new(format!(
                "unpack {shown:?}: the path leaves the layer (..), or has a NUL, {more}"
            )));
        };
        let unpack = || format!("unpack {shown:?}");
        let Some((name, above)) = parts.split_last() else {
            return self.set_root(entry).step(unpack);
        };
        let parent = self.parent(above).step(|| format!("open the directory of {shown:?}"))?;
        if let Some(hidden) = name.strip_prefix(WHITEOUT) {
            let done = whiteout(&parent, name, hidden, entry.header().mtime().unwrap_or_default());
            self.parent = Some((join(above), parent));
            return done.step(unpack);
        }
        let made = self.make(entry, &Place { parent: &parent, name }, &join(&parts));
        self.parent.get_or_insert((join(above), parent));
        made.step(unpack)
    }

    fn make<R: Read>(&mut self, entry: &mut Entry<'_, R>, place: &Place<'_>, path: &[u8]) -> io::Result<()> {
        let kind = entry.header().entry_type();
        let existing = place.kind();
        if kind == EntryType::Directory {
            return self.make_dir(entry, place, existing, path);
        }
        if let Some(existing) = existing {
            self.clear(place, existing)?;
        }
        match kind {
            EntryType::Regular | EntryType::Continuous | EntryType::GNUSparse => self.make_file(entry, place),
            EntryType::Symlink => {
                let target = link_target(entry)?;
                rustix::fs::symlinkat(target.as_slice(), place.parent, place.name)?;
                place.own(entry)
            }
            EntryType::Link => self.make_hard_link(entry, place),
            EntryType::Fifo => {
                rustix::fs::mkfifoat(place.parent, place.name, Mode::from_raw_mode(0o600))?;
                place.own(entry)?;
                place.set_mode(entry)
            }
            // Devices mean nothing in a sandbox; the rest describes other entries.
            _ => Ok(()),
        }
    }

    fn make_dir<R: Read>(
        &mut self,
        entry: &Entry<'_, R>,
        place: &Place<'_>,
        existing: Option<FileType>,
        path: &[u8],
    ) -> io::Result<()> {
        if existing != Some(FileType::Directory) {
            if let Some(existing) = existing {
                self.clear(place, existing)?;
            }
            rustix::fs::mkdirat(place.parent, place.name, Mode::from_raw_mode(0o700))?;
            if existing == Some(FileType::CharacterDevice) {
                // It was whited out before: nothing of the layers below shows through.
                set_opaque(place.parent, place.name)?;
            }
        }
        place.own(entry)?;
        place.set_mode(entry)?;
        self.directories.insert(path.to_vec(), entry.header().mtime().unwrap_or_default());
        Ok(())
    }

    fn make_file<R: Read>(&mut self, entry: &mut Entry<'_, R>, place: &Place<'_>) -> io::Result<()> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = rustix::fs::openat(place.parent, place.name, flags, Mode::from_raw_mode(0o600))?;
        let mut file = File::from(fd);
        let left = self.caps.bytes.saturating_sub(self.bytes);
        let copied = copy_with_holes(&mut entry.by_ref().take(left.saturating_add(1)), &mut file, &mut self.buffer)?;
        if copied > left {
            return Err(io::Error::other(format!("the layer has more than {} bytes", self.caps.bytes)));
        }
        self.bytes += copied;
        let (uid, gid) = owner(entry)?;
        rustix::fs::fchown(&file, Some(uid), Some(gid))?;
        set_capability(entry, &file)?;
        rustix::fs::fchmod(&file, mode_of(entry))?;
        rustix::fs::futimens(&file, &times(entry.header().mtime().unwrap_or_default()))?;
        Ok(())
    }

    /// Remove what an earlier entry put there.
    fn clear(&self, place: &Place<'_>, existing: FileType) -> io::Result<()> {
        if existing != FileType::Directory {
            return Ok(rustix::fs::unlinkat(place.parent, place.name, AtFlags::empty())?);
        }
        let name = std::ffi::CString::new(place.name)?;
        // What is too deep is moved here meanwhile. No entry has this name: it is made now.
        let trash_name = store::unique();
        rustix::fs::mkdirat(&self.root, &trash_name, Mode::RWXU)?;
        let trash = store::open_beneath(&self.root, &trash_name, OFlags::RDONLY | OFlags::DIRECTORY)?;
        let removed = remove::tree(&trash, place.parent, &name).and_then(|()| remove::empty(trash.as_fd()));
        rustix::fs::unlinkat(&self.root, &trash_name, AtFlags::REMOVEDIR)?;
        Ok(removed?)
    }

    fn make_hard_link<R: Read>(&mut self, entry: &Entry<'_, R>, place: &Place<'_>) -> io::Result<()> {
        let target = link_target(entry)?;
        let parts = components(&target).unwrap_or_default();
        let Some((name, above)) = parts.split_last() else {
            return Err(io::Error::other("the target of the hard link leaves the layer"));
        };
        let dir = open_dir(&self.root, &join(above))?;
        rustix::fs::linkat(&dir, name.as_slice(), place.parent, place.name, AtFlags::empty())?;
        Ok(())
    }

    fn set_root<R: Read>(&mut self, entry: &Entry<'_, R>) -> io::Result<()> {
        let (uid, gid) = owner(entry)?;
        rustix::fs::fchown(&self.root, Some(uid), Some(gid))?;
        // The service looks into layers (who is the image's user?). A sandbox's root directory has the mode of its write layer.
        rustix::fs::fchmod(&self.root, mode_of(entry) | READABLE)?;
        self.directories.insert(Vec::new(), entry.header().mtime().unwrap_or_default());
        Ok(())
    }

    /// The directory `parts`, made as far as it is missing; links on the way lead within the layer.
    fn parent(&mut self, parts: &[Vec<u8>]) -> io::Result<OwnedFd> {
        let path = join(parts);
        if let Some((known, fd)) = self.parent.take()
            && known == path
        {
            return Ok(fd);
        }
        match open_dir(&self.root, &path) {
            Err(Errno::NOENT) => {}
            other => return Ok(other?),
        }
        let mut dir = open_dir(&self.root, b"")?;
        for end in 1..=parts.len() {
            let path = join(&parts[..end]);
            dir = match open_dir(&self.root, &path) {
                Err(Errno::NOENT) => {
                    rustix::fs::mkdirat(&dir, parts[end - 1].as_slice(), Mode::from_raw_mode(0o755))?;
                    open_dir(&self.root, &path)?
                }
                other => other?,
            };
        }
        Ok(dir)
    }

    /// Give directories the times that the archive says. A cosmetic matter: one that is gone again is left out.
    fn finish(&self) {
        for (path, mtime) in &self.directories {
            if let Ok(dir) = open_dir(&self.root, path) {
                let _ = rustix::fs::utimensat(&dir, "", &times(*mtime), AtFlags::EMPTY_PATH);
            }
        }
    }
}

/// Where an entry goes.
struct Place<'a> {
    parent: &'a OwnedFd,
    name: &'a [u8],
}

impl Place<'_> {
    fn kind(&self) -> Option<FileType> {
        let stat = rustix::fs::statat(self.parent, self.name, AtFlags::SYMLINK_NOFOLLOW).ok()?;
        Some(FileType::from_raw_mode(stat.st_mode))
    }

    fn own<R: Read>(&self, entry: &Entry<'_, R>) -> io::Result<()> {
        let (uid, gid) = owner(entry)?;
        rustix::fs::chownat(self.parent, self.name, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)?;
        let times = times(entry.header().mtime().unwrap_or_default());
        rustix::fs::utimensat(self.parent, self.name, &times, AtFlags::SYMLINK_NOFOLLOW)?;
        Ok(())
    }

    /// For what was just made here and is no link.
    fn set_mode<R: Read>(&self, entry: &Entry<'_, R>) -> io::Result<()> {
        Ok(rustix::fs::chmodat(self.parent, self.name, mode_of(entry), AtFlags::empty())?)
    }
}

/// As [`io::copy`] into a new file, but zeroes are left out where a whole buffer is of them: a sparse file of an archive may
/// be ten gibibytes of holes in two kibibytes, and is to take no more of the disk than of the archive.
fn copy_with_holes(from: &mut impl Read, file: &mut File, buffer: &mut [u8]) -> io::Result<u64> {
    let mut copied = 0_u64;
    loop {
        let count = fill(from, buffer)?;
        let piece = &buffer[..count];
        let hole = piece.iter().all(|byte| *byte == 0);
        copied += count as u64;
        if !hole {
            file.write_all(piece)?;
        } else if count > 0 {
            file.seek(SeekFrom::Start(copied))?;
            file.set_len(copied)?;
        }
        if count < buffer.len() {
            return Ok(copied);
        }
    }
}

/// Read until the buffer is full or there is no more.
fn fill(from: &mut impl Read, buffer: &mut [u8]) -> io::Result<usize> {
    let mut count = 0;
    while count < buffer.len() {
        match from.read(&mut buffer[count..]) {
            Ok(0) => break,
            Ok(more) => count += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(count)
}

/// As much of a path as an error tells: an archive may have one of megabytes.
fn shown(path: &[u8]) -> String {
    let text = String::from_utf8_lossy(&path[..path.len().min(4 * TOLD)]);
    let mut cut: String = text.chars().take(TOLD).collect();
    if cut.len() < path.len() {
        cut.push('…');
    }
    cut
}

/// The parts of a path in an archive, `.` left out; none if it has a `..`, a NUL or too many.
fn components(path: &[u8]) -> Option<Vec<Vec<u8>>> {
    let parts: Vec<Vec<u8>> =
        path.split(|byte| *byte == b'/').filter(|part| !part.is_empty() && *part != b".").map(<[u8]>::to_vec).collect();
    let good = parts.len() <= MAX_DEPTH
        && parts.iter().all(|part| part != b".." && part.len() <= MAX_NAME && !part.contains(&0));
    good.then_some(parts)
}

fn join(parts: &[Vec<u8>]) -> Vec<u8> {
    parts.join(&b'/')
}

/// A directory of the layer; links on the way lead within it.
pub(crate) fn open_dir(root: &OwnedFd, path: &[u8]) -> Result<OwnedFd, Errno> {
    let path = if path.is_empty() { b".".as_slice() } else { path };
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS | ResolveFlags::NO_XDEV;
    for _ in 0..MAX_TRIES {
        match rustix::fs::openat2(root, path, flags, Mode::empty(), resolve) {
            // A rename elsewhere on the system raced with a `..`; openat2(2) asks to try again.
            Err(Errno::AGAIN) => {}
            other => return other,
        }
    }
    Err(Errno::AGAIN)
}

/// Make what hides `hidden`, or everything, of the layers below. It has a time, for one archive to give one layer.
fn whiteout(parent: &OwnedFd, name: &[u8], hidden: &[u8], mtime: u64) -> io::Result<()> {
    if name == OPAQUE {
        return set_opaque(parent, b".");
    }
    if hidden.starts_with(WHITEOUT) {
        // Bookkeeping of an older union file system.
        return Ok(());
    }
    if hidden.is_empty() || hidden == b"." || hidden == b".." {
        return Err(io::Error::other("the whiteout names no entry"));
    }
    match rustix::fs::mknodat(parent, hidden, FileType::CharacterDevice, Mode::empty(), 0) {
        // It hides what layers below have; what this layer put there stays.
        Err(Errno::EXIST) if (Place { parent, name: hidden }).kind() == Some(FileType::Directory) => {
            set_opaque(parent, hidden)
        }
        Ok(()) => Ok(rustix::fs::utimensat(parent, hidden, &times(mtime), AtFlags::SYMLINK_NOFOLLOW)?),
        Err(Errno::EXIST) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

fn set_opaque(parent: &OwnedFd, name: &[u8]) -> io::Result<()> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let dir = rustix::fs::openat(parent, name, flags, Mode::empty())?;
    Ok(rustix::fs::fsetxattr(dir, OPAQUE_XATTR, b"y", XattrFlags::empty())?)
}

fn link_target<R: Read>(entry: &Entry<'_, R>) -> io::Result<Vec<u8>> {
    let target = entry.link_name_bytes().map(std::borrow::Cow::into_owned).unwrap_or_default();
    if target.is_empty() || target.len() > MAX_LINK || target.contains(&0) {
        return Err(io::Error::other("the link has no proper target"));
    }
    Ok(target)
}

fn owner<R: Read>(entry: &Entry<'_, R>) -> io::Result<(Uid, Gid)> {
    let id = |id: u64| {
        if id > MAX_ID { Err(io::Error::other(format!("owner {id} is above {MAX_ID}"))) } else { Ok(id as u32) }
    };
    Ok((Uid::from_raw(id(entry.header().uid()?)?), Gid::from_raw(id(entry.header().gid()?)?)))
}

fn mode_of<R: Read>(entry: &Entry<'_, R>) -> Mode {
    Mode::from_raw_mode(entry.header().mode().unwrap_or(0o644) & 0o7777)
}

fn times(mtime: u64) -> Timestamps {
    let time = Timespec { tv_sec: i64::try_from(mtime).unwrap_or_default(), tv_nsec: 0 };
    Timestamps { last_access: time, last_modification: time }
}

/// File capabilities are kept: the kernel stores with them for which user namespaces they count. No other attribute is.
fn set_capability<R: Read>(entry: &mut Entry<'_, R>, file: &File) -> io::Result<()> {
    let Some(extensions) = entry.pax_extensions()? else { return Ok(()) };
    for extension in extensions {
        let extension = extension?;
        if extension.key_bytes() == CAPABILITY_XATTR.as_bytes() {
            rustix::fs::fsetxattr(file, "security.capability", extension.value_bytes(), XattrFlags::empty())?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use sha2::{Digest, Sha256};
    use std::path::Path;

    fn unpack(into: &Path, entries: &[(&str, EntryType, &str)]) -> Result<Answer> {
        let mut archive = tar::Builder::new(Vec::new());
        for (path, kind, link) in entries {
            let mut header = tar::Header::new_gnu();
            header.set_entry_type(*kind);
            header.set_mode(0o755);
            header.set_size(0);
            header.set_uid(rustix::process::geteuid().as_raw().into());
            header.set_gid(rustix::process::getegid().as_raw().into());
            if !link.is_empty() {
                header.set_link_name(link).unwrap();
            }
            archive.append_data(&mut header, path, io::empty()).unwrap();
        }
        let bytes = archive.into_inner().unwrap();
        let digest: String = Sha256::digest(&bytes).iter().map(|byte| format!("{byte:02x}")).collect();
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&bytes).unwrap();
        file.rewind().unwrap();
        let root = File::open(into).unwrap().into();
        let caps = Caps { bytes: 1 << 20, entries: 1000 };
        extract_into(root, &LayerId::parse(&digest).unwrap(), Compression::None, file.into(), caps, None)
    }

    #[test]
    fn a_deep_directory_that_a_later_entry_replaces_is_gone() {
        let dir = tempfile::tempdir().unwrap();
        let deep = format!("d{}", "/d".repeat(100));
        unpack(dir.path(), &[(&deep, EntryType::Directory, ""), ("d", EntryType::Regular, "")]).unwrap();
        let names: Vec<_> = std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names, ["d"]);
        assert!(dir.path().join("d").is_file());
    }

    #[test]
    fn links_lead_within_the_directory() {
        let dir = tempfile::tempdir().unwrap();
        let (layer, outside) = (dir.path().join("layer"), dir.path().join("outside"));
        for made in [&layer, &outside] {
            std::fs::create_dir(made).unwrap();
        }
        let up = format!("../../../../../..{}", outside.display());
        for target in ["../outside", outside.to_str().unwrap(), &up] {
            let _ = unpack(&layer, &[("l", EntryType::Symlink, target), ("l/f", EntryType::Regular, "")]);
            let _ = unpack(&layer, &[("l", EntryType::Symlink, target), ("h", EntryType::Link, "l")]);
        }
        assert_eq!(std::fs::read_dir(outside).unwrap().count(), 0);
    }

    /// Unpack one entry that has this path, as it is, and this mode.
    fn unpack_raw(into: &Path, path: &[u8], mode: u32) -> Result<Answer> {
        let mut archive = tar::Builder::new(Vec::new());
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(EntryType::Directory);
        header.set_mode(mode);
        header.set_size(0);
        header.set_uid(rustix::process::geteuid().as_raw().into());
        header.set_gid(rustix::process::getegid().as_raw().into());
        header.as_old_mut().name[..path.len()].copy_from_slice(path);
        header.set_cksum();
        archive.append(&header, io::empty()).unwrap();
        let bytes = archive.into_inner().unwrap();
        let digest: String = Sha256::digest(&bytes).iter().map(|byte| format!("{byte:02x}")).collect();
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&bytes).unwrap();
        file.rewind().unwrap();
        let caps = Caps { bytes: 1 << 20, entries: 1000 };
        let root = File::open(into).unwrap().into();
        extract_into(root, &LayerId::parse(&digest).unwrap(), Compression::None, file.into(), caps, None)
    }

    #[test]
    fn the_service_can_look_into_every_layer() {
        use std::os::unix::fs::PermissionsExt;
        for (mode, becomes) in [(0o700, 0o755), (0, 0o555), (0o1777, 0o1777)] {
            let dir = tempfile::tempdir().unwrap();
            unpack_raw(dir.path(), b"./", mode).unwrap();
            assert_eq!(dir.path().metadata().unwrap().permissions().mode() & 0o7777, becomes, "{mode:o}");
        }
    }

    #[test]
    fn paths_that_cannot_be_are_told_why_and_as_far_as_anybody_reads() {
        let dir = tempfile::tempdir().unwrap();
        for path in [&b"../x"[..], b"a/../../x", b"a/.."] {
            let said = unpack_raw(dir.path(), path, 0o755).unwrap_err().chain();
            assert!(said.contains("leaves the layer (..), or has a NUL, more than 128 parts"), "{said}");
        }
        let long = "x/".repeat(100_000);
        let said = unpack(dir.path(), &[(&long, EntryType::Directory, "")]).unwrap_err().chain();
        assert!(said.contains("more than 128 parts") && said.len() < 2000, "{} bytes", said.len());
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
