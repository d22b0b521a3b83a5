//! The directory that is this process's root as a layer archive (OCI image spec, layer.md).
//!
//! Entries are sorted and say nothing of the host, so that the same layer gives the same bytes. What ustar has no room
//! for is said by pax extensions (POSIX.1-2017, pax). Devices are whiteouts of overlayfs or nothing; sockets are left out.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufWriter, Read, Write};
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, Stat};
use tar::{EntryType, Header};
use wire::launch::Answer;

use crate::error::{Failure, Result, Step};
use crate::unpack::MAX_FILES;

/// Content is copied in such pieces, in bytes.
const BUFFER: usize = 256 * 1024;
const BLOCK: u64 = 512;
/// Deepest directory: each one on the way is open.
const MAX_DEPTH: usize = MAX_FILES as usize - 32;
/// Longest name that the header itself holds, in bytes.
const NAME: usize = 100;
const CAPABILITY: &str = "security.capability";

/// Write the archive to `output`, of at most so many entries.
///
/// # Errors
/// The first file that cannot be read, or the output cannot be written.
pub fn write(output: OwnedFd, entries: u64) -> Result<Answer> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = rustix::fs::open("/", flags, Mode::empty()).step(|| "open the layer's directory")?;
    write_from(root, output, entries)
}

/// The same of the directory `root`.
///
/// # Errors
/// As of [`write`].
pub fn write_from(root: OwnedFd, output: OwnedFd, entries: u64) -> Result<Answer> {
    let output = BufWriter::with_capacity(BUFFER, File::from(output));
    let mut archive = Archive { output, names: HashMap::new(), left: entries, buffer: vec![0; BUFFER] };
    archive.directory(&root, b"./").step(|| "pack the root directory")?;
    let mut way = vec![Level::of(root, Vec::new()).step(|| "list the root directory")?];
    while let Some(level) = way.last_mut() {
        let Some(name) = level.names.pop() else {
            way.pop();
            continue;
        };
        let path = [level.path.as_slice(), name.as_slice()].concat();
        let shown = || format!("pack {:?}", String::from_utf8_lossy(&path));
        archive.count().step(shown)?;
        if let Some(child) = archive.entry(&level.dir, &name, &path).step(shown)? {
            if way.len() >= MAX_DEPTH {
                return Err(Failure::new(format!("{}: more than {MAX_DEPTH} directories deep", shown())));
            }
            way.push(Level::of(child, [path.as_slice(), b"/"].concat()).step(shown)?);
        }
    }
    archive.end().step(|| "write the end of the archive")?;
    Ok(Answer::Done)
}

/// A directory on the way.
struct Level {
    dir: OwnedFd,
    /// With a slash at its end; empty for the root.
    path: Vec<u8>,
    /// What is left in it, backwards.
    names: Vec<Vec<u8>>,
}

impl Level {
    fn of(dir: OwnedFd, path: Vec<u8>) -> io::Result<Self> {
        let mut names = Vec::new();
        for entry in Dir::read_from(&dir)? {
            let name = entry?.file_name().to_bytes().to_vec();
            if name != b"." && name != b".." {
                names.push(name);
            }
        }
        names.sort_unstable_by(|a, b| b.cmp(a));
        Ok(Self { dir, path, names })
    }
}

struct Archive<W: Write> {
    output: W,
    /// Where files with several names are already, by device and inode.
    names: HashMap<(u64, u64), Vec<u8>>,
    left: u64,
    buffer: Vec<u8>,
}

impl<W: Write> Archive<W> {
    fn count(&mut self) -> io::Result<()> {
        self.left = self.left.checked_sub(1).ok_or_else(|| io::Error::other("the layer has too many entries"))?;
        Ok(())
    }

    /// One entry; a directory is given back, to be gone through.
    fn entry(&mut self, dir: &OwnedFd, name: &[u8], path: &[u8]) -> io::Result<Option<OwnedFd>> {
        let stat = rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW)?;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => {
                let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let child = rustix::fs::openat(dir, name, flags, Mode::empty())?;
                self.directory(&child, &[path, b"/"].concat())?;
                return Ok(Some(child));
            }
            FileType::RegularFile => self.file(dir, name, path, &stat)?,
            FileType::Symlink => {
                let target = rustix::fs::readlinkat(dir, name, Vec::new())?;
                self.header(EntryType::Symlink, path, &stat, 0, Some(target.as_bytes()), None)?;
            }
            FileType::CharacterDevice if stat.st_rdev == 0 => self.whiteout(path, &stat)?,
            FileType::Fifo => self.header(EntryType::Fifo, path, &stat, 0, None, None)?,
            FileType::CharacterDevice | FileType::BlockDevice | FileType::Socket | FileType::Unknown => {}
        }
        Ok(None)
    }

    fn directory(&mut self, dir: &OwnedFd, path: &[u8]) -> io::Result<()> {
        let stat = rustix::fs::fstat(dir)?;
        self.header(EntryType::Directory, path, &stat, 0, None, None)?;
        let mut value = [0; 2];
        if matches!(rustix::fs::fgetxattr(dir, "user.overlay.opaque", &mut value), Ok(1) if value[0] == b'y') {
            let marker = [path.strip_prefix(b"./").unwrap_or(path), b".wh..wh..opq"].concat();
            self.header(EntryType::Regular, &marker, &stat, 0, None, None)?;
        }
        Ok(())
    }

    fn whiteout(&mut self, path: &[u8], stat: &Stat) -> io::Result<()> {
        let start = path.iter().rposition(|byte| *byte == b'/').map_or(0, |slash| slash + 1);
        let marker = [&path[..start], b".wh.", &path[start..]].concat();
        self.header(EntryType::Regular, &marker, stat, 0, None, None)
    }

    fn file(&mut self, dir: &OwnedFd, name: &[u8], path: &[u8], stat: &Stat) -> io::Result<()> {
        if name.starts_with(b".wh.") {
            return Err(io::Error::other("a file of this name means in a layer that another is not there"));
        }
        if stat.st_nlink > 1 {
            if let Some(first) = self.names.get(&(stat.st_dev, stat.st_ino)).cloned() {
                return self.header(EntryType::Link, path, stat, 0, Some(&first), None);
            }
            self.names.insert((stat.st_dev, stat.st_ino), path.to_vec());
        }
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let mut file = File::from(rustix::fs::openat(dir, name, flags, Mode::empty())?);
        let capability = capability(&file)?;
        let size = u64::try_from(stat.st_size).unwrap_or(0);
        self.header(EntryType::Regular, path, stat, size, None, capability.as_deref())?;
        self.content(&mut file, size)
    }

    /// Exactly so many bytes, and what fills up the last block.
    fn content(&mut self, from: &mut impl Read, size: u64) -> io::Result<()> {
        let mut left = size;
        while left > 0 {
            let most = usize::try_from(left).unwrap_or(BUFFER).min(self.buffer.len());
            let count = from.read(&mut self.buffer[..most])?;
            if count == 0 {
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the file is shorter than it was"));
            }
            self.output.write_all(&self.buffer[..count])?;
            left -= count as u64;
        }
        let lacks = usize::try_from(size.next_multiple_of(BLOCK) - size).unwrap_or(0);
        self.output.write_all(&[0; BLOCK as usize][..lacks])
    }

    fn header(
        &mut self,
        kind: EntryType,
        path: &[u8],
        stat: &Stat,
        size: u64,
        link: Option<&[u8]>,
        capability: Option<&[u8]>,
    ) -> io::Result<()> {
        let mtime = u64::try_from(stat.st_mtime).unwrap_or(0);
        let mut more = Vec::new();
        if path.len() > NAME {
            record(&mut more, b"path", path);
        }
        if let Some(link) = link.filter(|link| link.len() > NAME) {
            record(&mut more, b"linkpath", link);
        }
        if size >= 1 << 33 {
            record(&mut more, b"size", size.to_string().as_bytes());
        }
        if let Some(value) = capability {
            record(&mut more, format!("SCHILY.xattr.{CAPABILITY}").as_bytes(), value);
        }
        if !more.is_empty() {
            let mut header = named(EntryType::XHeader, b"pax", None);
            header.set_mode(0o644);
            header.set_size(more.len() as u64);
            header.set_cksum();
            self.output.write_all(header.as_bytes())?;
            self.content(&mut more.as_slice(), more.len() as u64)?;
        }
        let mut header = named(kind, path, link);
        header.set_mode(stat.st_mode & 0o7777);
        header.set_uid(u64::from(stat.st_uid));
        header.set_gid(u64::from(stat.st_gid));
        header.set_mtime(mtime);
        header.set_size(if size >= 1 << 33 { 0 } else { size });
        header.set_cksum();
        self.output.write_all(header.as_bytes())
    }

    fn end(mut self) -> io::Result<()> {
        self.output.write_all(&[0; 2 * BLOCK as usize])?;
        self.output.flush()
    }
}

/// A header with as much of the names as it holds.
fn named(kind: EntryType, path: &[u8], link: Option<&[u8]>) -> Header {
    let mut header = Header::new_ustar();
    header.set_entry_type(kind);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    let old = header.as_old_mut();
    let length = path.len().min(NAME);
    old.name[..length].copy_from_slice(&path[..length]);
    let link = link.unwrap_or_default();
    let length = link.len().min(NAME);
    old.linkname[..length].copy_from_slice(&link[..length]);
    header
}

/// One extension: its own length in decimal, a space, `KEY=VALUE`, a newline.
fn record(more: &mut Vec<u8>, key: &[u8], value: &[u8]) {
    let rest = key.len() + value.len() + 3;
    let mut length = rest + 1;
    while length != rest + length.to_string().len() {
        length = rest + length.to_string().len();
    }
    more.extend_from_slice(format!("{length} ").as_bytes());
    more.extend_from_slice(key);
    more.push(b'=');
    more.extend_from_slice(value);
    more.push(b'\n');
}

/// The file's capabilities, as they count in the user namespace that reads them.
fn capability(file: &File) -> io::Result<Option<Vec<u8>>> {
    let mut value = [0; 64];
    match rustix::fs::fgetxattr(file.as_fd(), CAPABILITY, &mut value) {
        Ok(length) => Ok(Some(value[..length].to_vec())),
        Err(rustix::io::Errno::NODATA | rustix::io::Errno::OPNOTSUPP) => Ok(None),
        Err(errno) => Err(errno.into()),
    }
}
