//! Layer archives, entry by entry, so that they can hold what no archiver would write.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::Path;

/// Size of a header, and what contents are padded to.
pub const BLOCK: usize = 512;

/// What an entry is: the type flag of tar(5).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kind {
    /// A regular file with this content.
    File(Vec<u8>),
    /// A directory.
    Directory,
    /// A symbolic link to this.
    Link(String),
    /// A hard link to this.
    HardLink(String),
    /// A character (true) or block device of these numbers.
    Device(bool, u32, u32),
}

/// One entry.
#[derive(Debug, Clone)]
pub struct Entry {
    /// Its name, up to 4 KiB.
    pub name: String,
    /// What it is.
    pub kind: Kind,
    /// Permissions, set-uid and the like included.
    pub mode: u32,
    /// Owner and group.
    pub owner: u32,
    /// Records of a pax header before it.
    pub pax: BTreeMap<String, Vec<u8>>,
}

impl Entry {
    /// An entry of root's.
    #[must_use]
    pub fn new(name: &str, kind: Kind) -> Self {
        let mode = if kind == Kind::Directory { 0o755 } else { 0o644 };
        Self { name: name.to_owned(), kind, mode, owner: 0, pax: BTreeMap::new() }
    }

    /// A file with a line in it.
    #[must_use]
    pub fn file(name: &str) -> Self {
        Self::new(name, Kind::File(b"planted\n".to_vec()))
    }

    /// A link.
    #[must_use]
    pub fn link(name: &str, target: &str) -> Self {
        Self::new(name, Kind::Link(target.to_owned()))
    }

    /// With these permissions.
    #[must_use]
    pub fn mode(mut self, mode: u32) -> Self {
        self.mode = mode;
        self
    }

    /// With this owner.
    #[must_use]
    pub fn owner(mut self, owner: u32) -> Self {
        self.owner = owner;
        self
    }

    /// With an extended attribute, as archivers record them.
    #[must_use]
    pub fn attribute(mut self, name: &str, value: &[u8]) -> Self {
        self.pax.insert(format!("SCHILY.xattr.{name}"), value.to_vec());
        self
    }
}

/// A whole archive.
#[must_use]
pub fn archive(entries: &[Entry]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for entry in entries {
        append(&mut bytes, entry);
    }
    bytes.resize(bytes.len() + 2 * BLOCK, 0);
    bytes
}

fn append(bytes: &mut Vec<u8>, entry: &Entry) {
    let mut pax = entry.pax.clone();
    pax.insert("path".to_owned(), entry.name.as_bytes().to_vec());
    if let Kind::Link(target) | Kind::HardLink(target) = &entry.kind {
        pax.insert("linkpath".to_owned(), target.as_bytes().to_vec());
    }
    let records: Vec<u8> = pax.iter().flat_map(|(key, value)| record(key, value)).collect();
    bytes.extend(header("pax", b'x', records.len() as u64, 0o644, 0, (0, 0)));
    contents(bytes, &records);
    let (flag, content, numbers) = match &entry.kind {
        Kind::File(content) => (b'0', content.as_slice(), (0, 0)),
        Kind::Directory => (b'5', [].as_slice(), (0, 0)),
        Kind::Link(_) => (b'2', [].as_slice(), (0, 0)),
        Kind::HardLink(_) => (b'1', [].as_slice(), (0, 0)),
        Kind::Device(true, major, minor) => (b'3', [].as_slice(), (*major, *minor)),
        Kind::Device(false, major, minor) => (b'4', [].as_slice(), (*major, *minor)),
    };
    bytes.extend(header("entry", flag, content.len() as u64, entry.mode, entry.owner, numbers));
    contents(bytes, content);
}

fn contents(bytes: &mut Vec<u8>, content: &[u8]) {
    bytes.extend(content);
    bytes.resize(bytes.len().next_multiple_of(BLOCK), 0);
}

/// A record of a pax header: its own length in front, in decimal.
fn record(key: &str, value: &[u8]) -> Vec<u8> {
    let rest = key.len() + value.len() + 3;
    let mut length = rest + 1;
    while length != rest + length.to_string().len() {
        length = rest + length.to_string().len();
    }
    [format!("{length} {key}=").as_bytes(), value, b"\n"].concat()
}

/// A header of ustar.
#[must_use]
pub fn header(name: &str, flag: u8, size: u64, mode: u32, owner: u32, device: (u32, u32)) -> [u8; BLOCK] {
    let mut block = [0; BLOCK];
    let mut put = |at: usize, text: &str| block[at..at + text.len()].copy_from_slice(text.as_bytes());
    put(0, name);
    put(100, &format!("{mode:07o}\0"));
    put(108, &format!("{owner:07o}\0"));
    put(116, &format!("{owner:07o}\0"));
    put(124, &format!("{size:011o}\0"));
    put(136, "00000000000\0");
    put(257, "ustar\x0000");
    put(329, &format!("{:07o}\0", device.0));
    put(337, &format!("{:07o}\0", device.1));
    block[156] = flag;
    seal(&mut block);
    block
}

/// Write the checksum of a header into it.
pub fn seal(block: &mut [u8; BLOCK]) {
    block[148..156].fill(b' ');
    let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
    block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
}

/// Unpack as a program does that believes what it reads: the control of every archive that wants out.
///
/// # Errors
/// What the kernel says; an archive that is refused by it does no harm.
pub fn unpack_naively(entries: &[Entry], into: &Path) -> io::Result<()> {
    for entry in entries {
        // An absolute name replaces the directory, as in `Path::join`.
        let place = into.join(&entry.name);
        let name = place.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if let Some(hidden) = name.strip_prefix(".wh.") {
            let _ = fs::remove_file(place.with_file_name(hidden));
            continue;
        }
        if let Some(parent) = place.parent() {
            let _ = fs::create_dir_all(parent);
        }
        match &entry.kind {
            Kind::File(content) => fs::write(&place, content)?,
            Kind::Directory => drop(fs::create_dir_all(&place)),
            Kind::Link(target) => symlink(target, &place)?,
            Kind::HardLink(target) => fs::hard_link(into.join(target), &place)?,
            Kind::Device(..) => {}
        }
    }
    Ok(())
}
