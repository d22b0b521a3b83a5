//! An OCI layout as a directory: packed into the stream that the service takes, and made of the one that it gives.
//!
//! ```text
//! DIR/oci-layout  DIR/index.json  DIR/blobs/sha256/HEX…   ◄──►   a tar with the same names
//! ```
//! The directory may be anybody's, and so may the stream. Beneath the directory no link is followed, and of a stream nothing
//! is made but these names, each blob with the digest that it is called by.

use std::collections::HashSet;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use rustix::fs::{Mode, OFlags, ResolveFlags};
use serde_json::Value;
use sha2::{Digest, Sha256};
use tar::{EntryType, Header};

use crate::body::Stretch;

/// Largest document, in bytes, as the service has it.
const MAX_DOCUMENT: u64 = 4 << 20;
/// Most blobs of a layout.
const MAX_BLOBS: usize = 4000;
/// Most bytes that are written.
const MAX_BYTES: u64 = 64 << 30;
const BLOCK: usize = 512;
const BLOBS: &str = "blobs/sha256";
/// What a layout calls an image.
const NAMES: [&str; 2] = ["org.opencontainers.image.ref.name", "io.containerd.image.name"];
const BENEATH: ResolveFlags = ResolveFlags::BENEATH.union(ResolveFlags::NO_SYMLINKS).union(ResolveFlags::NO_MAGICLINKS);

/// What is sent of the layout in `dir`: its documents, and what they name of the image `tag` or of all of them.
///
/// # Errors
/// It is no layout, holds no such image, or cannot be read.
pub fn pack(dir: &Path, tag: Option<&str>) -> io::Result<Vec<Stretch>> {
    let root: Arc<OwnedFd> = Arc::new(File::open(dir)?.into());
    let index = document(&root, "index.json")?;
    let parsed: Value = serde_json::from_slice(&index).map_err(|e| bad(format!("index.json: {e}")))?;
    let mut packing = Packing { root: Arc::clone(&root), seen: HashSet::new(), stretches: Vec::new() };
    packing.add("oci-layout", document(&root, "oci-layout")?)?;
    packing.add("index.json", index)?;
    for entry in entries(&parsed, tag)? {
        packing.blob(entry)?;
    }
    packing.stretches.push(Stretch::Bytes(Bytes::from_static(&[0; 2 * BLOCK])));
    Ok(packing.stretches)
}

/// The entries of an index that are meant.
fn entries<'a>(index: &'a Value, tag: Option<&str>) -> io::Result<Vec<&'a Value>> {
    let all = index["manifests"].as_array().ok_or_else(|| bad("index.json: it lists no manifests".to_owned()))?;
    let names = |entry: &'a Value| NAMES.iter().filter_map(|name| entry["annotations"][*name].as_str());
    let Some(tag) = tag else { return Ok(all.iter().collect()) };
    let meant: Vec<&Value> = all.iter().filter(|entry| names(entry).any(|name| name == tag)).collect();
    if meant.is_empty() {
        let there: Vec<&str> = all.iter().filter_map(|entry| names(entry).next()).take(20).collect();
        return Err(bad(format!("it holds no image with the tag {tag:?}, only {}", there.join(", "))));
    }
    Ok(meant)
}

struct Packing {
    root: Arc<OwnedFd>,
    seen: HashSet<String>,
    stretches: Vec<Stretch>,
}

impl Packing {
    /// Add what a descriptor names, and what that names. What is not here is left out: a layout may hold an index of many
    /// platforms and one of its images.
    fn blob(&mut self, descriptor: &Value) -> io::Result<()> {
        let hex = descriptor["digest"].as_str().and_then(|digest| digest.strip_prefix("sha256:"));
        let Some(hex) = hex.filter(|hex| is_digest(hex)) else { return Ok(()) };
        if !self.seen.insert(hex.to_owned()) {
            return Ok(());
        }
        if self.seen.len() > MAX_BLOBS {
            return Err(bad(format!("it names more than {MAX_BLOBS} blobs")));
        }
        let name = format!("{BLOBS}/{hex}");
        let file = match open(&self.root, &name) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            opened => opened?,
        };
        let size = file.metadata()?.len();
        let kind = descriptor["mediaType"].as_str().unwrap_or_default();
        if !["manifest", "index"].iter().any(|word| kind.contains(word)) {
            let (root, path) = (Arc::clone(&self.root), name.clone());
            self.header(&name, size)?;
            self.stretches.push(Stretch::Opened(Box::new(move || open(&root, &path)), size));
            self.fill(size);
            return Ok(());
        }
        let bytes = document(&self.root, &name)?;
        let parsed: Value = serde_json::from_slice(&bytes).map_err(|e| bad(format!("{name}: {e}")))?;
        self.add(&name, bytes)?;
        let lists = ["manifests", "layers"].iter().filter_map(|list| parsed[*list].as_array()).flatten();
        lists.chain(parsed.get("config")).try_for_each(|next| self.blob(next))
    }

    fn add(&mut self, name: &str, bytes: Vec<u8>) -> io::Result<()> {
        let size = bytes.len() as u64;
        self.header(name, size)?;
        self.stretches.push(Stretch::Bytes(bytes.into()));
        self.fill(size);
        Ok(())
    }

    fn header(&mut self, name: &str, size: u64) -> io::Result<()> {
        let mut header = Header::new_ustar();
        header.set_path(name)?;
        header.set_entry_type(EntryType::Regular);
        header.set_mode(0o644);
        header.set_size(size);
        header.set_cksum();
        self.stretches.push(Stretch::Bytes(Bytes::copy_from_slice(header.as_bytes())));
        Ok(())
    }

    fn fill(&mut self, size: u64) {
        self.stretches.push(Stretch::Bytes(Bytes::from_static(&[0; BLOCK]).slice(..padding(size))));
    }
}

/// A regular file beneath `root`, through no link.
fn open(root: &OwnedFd, name: &str) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = File::from(rustix::fs::openat2(root.as_fd(), name, flags, Mode::empty(), BENEATH)?);
    if file.metadata()?.is_file() { Ok(file) } else { Err(bad(format!("{name} is no regular file"))) }
}

fn document(root: &OwnedFd, name: &str) -> io::Result<Vec<u8>> {
    let missing = |e: io::Error| io::Error::new(e.kind(), format!("{name}: {e}"));
    let mut bytes = Vec::new();
    open(root, name).map_err(missing)?.take(MAX_DOCUMENT + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_DOCUMENT {
        return Err(bad(format!("{name} has more than {MAX_DOCUMENT} bytes")));
    }
    Ok(bytes)
}

/// A directory that is made of a stream; removed unless it becomes whole.
pub struct Unpacking {
    path: PathBuf,
    root: OwnedFd,
    state: State,
    rest: Vec<u8>,
    seen: HashSet<String>,
    bytes: u64,
    is_whole: bool,
}

enum State {
    Header,
    File(Writing),
    End,
}

/// A file of the layout that is being written.
struct Writing {
    file: File,
    left: u64,
    padding: usize,
    hasher: Sha256,
    name: String,
}

impl Unpacking {
    /// Into `path`, which must not be there yet.
    ///
    /// # Errors
    /// It is there, or cannot be made.
    pub fn new(path: &Path) -> io::Result<Self> {
        std::fs::create_dir(path)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let opened = rustix::fs::open(path, flags, Mode::empty()).map_err(io::Error::from);
        let made = opened.and_then(|root| {
            for name in ["blobs", BLOBS] {
                rustix::fs::mkdirat(&root, name, Mode::from_raw_mode(0o755))?;
            }
            Ok(root)
        });
        let made = made.inspect_err(|_| drop(std::fs::remove_dir_all(path)));
        Ok(Self {
            path: path.to_owned(),
            root: made?,
            state: State::Header,
            rest: Vec::new(),
            seen: HashSet::new(),
            bytes: 0,
            is_whole: false,
        })
    }

    /// The next bytes of the stream.
    ///
    /// # Errors
    /// They are not those of a layout, or the disk failed.
    pub fn push(&mut self, bytes: &[u8]) -> io::Result<()> {
        let mut bytes = bytes;
        while !bytes.is_empty() {
            match &mut self.state {
                State::Header => {
                    let taken = bytes.len().min(BLOCK - self.rest.len());
                    self.rest.extend_from_slice(&bytes[..taken]);
                    bytes = &bytes[taken..];
                    if self.rest.len() == BLOCK {
                        let block = std::mem::take(&mut self.rest);
                        self.state = self.begin(&block)?;
                    }
                }
                State::File(writing) => {
                    bytes = writing.take(bytes)?;
                    if writing.left == 0 && writing.padding == 0 {
                        writing.check()?;
                        self.state = State::Header;
                    }
                }
                // What follows the end is filling.
                State::End => return Ok(()),
            }
        }
        Ok(())
    }

    fn begin(&mut self, block: &[u8]) -> io::Result<State> {
        if block.iter().all(|byte| *byte == 0) {
            return Ok(State::End);
        }
        let header = Header::from_byte_slice(block);
        let name = String::from_utf8_lossy(&header.path_bytes()).into_owned();
        let is_blob = name.strip_prefix(BLOBS).and_then(|rest| rest.strip_prefix('/')).is_some_and(is_digest);
        let sum: u32 = block
            .iter()
            .enumerate()
            .map(|(at, byte)| if (148..156).contains(&at) { 32 } else { u32::from(*byte) })
            .sum();
        let is_sound = header.cksum().is_ok_and(|said| said == sum) && header.entry_type() == EntryType::Regular;
        if !is_sound || !(is_blob || ["oci-layout", "index.json"].contains(&name.as_str())) {
            return Err(bad(format!("{name:?} is nothing that a layout has")));
        }
        let size = header.entry_size()?;
        self.bytes = self.bytes.saturating_add(size);
        self.seen.insert(name.clone());
        if self.bytes > MAX_BYTES || self.seen.len() > MAX_BLOBS {
            return Err(bad(format!("more than {MAX_BYTES} bytes or {MAX_BLOBS} blobs")));
        }
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
        let file = rustix::fs::openat2(&self.root, &name, flags, Mode::from_raw_mode(0o644), BENEATH)?;
        let writing = Writing { file: file.into(), left: size, padding: padding(size), hasher: Sha256::new(), name };
        if size > 0 {
            return Ok(State::File(writing));
        }
        writing.check().map(|()| State::Header)
    }

    /// The stream has ended: whether it was whole.
    ///
    /// # Errors
    /// It was not; then nothing is left.
    pub fn finish(mut self) -> io::Result<()> {
        let is_there = |name: &str| self.seen.contains(name);
        if !matches!(self.state, State::End) || !is_there("oci-layout") || !is_there("index.json") {
            return Err(bad("it ended before it was whole".to_owned()));
        }
        self.is_whole = true;
        Ok(())
    }
}

impl Write for Unpacking {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.push(bytes).map(|()| bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for Unpacking {
    fn drop(&mut self) {
        if !self.is_whole {
            // Half a layout is of no use to anybody; that some of it stays is no news beside why.
            let _ = std::fs::remove_dir_all(&self.path);
        }
    }
}

impl Writing {
    /// Take what is of this file; the rest.
    fn take<'a>(&mut self, bytes: &'a [u8]) -> io::Result<&'a [u8]> {
        let count = usize::try_from(self.left).unwrap_or(usize::MAX).min(bytes.len());
        let (content, rest) = bytes.split_at(count);
        self.file.write_all(content)?;
        self.hasher.update(content);
        self.left -= count as u64;
        let filling = if self.left == 0 { self.padding.min(rest.len()) } else { 0 };
        self.padding -= filling;
        Ok(&rest[filling..])
    }

    fn check(&self) -> io::Result<()> {
        let Some(hex) = self.name.strip_prefix(BLOBS) else { return Ok(()) };
        let actual: String = self.hasher.clone().finalize().iter().map(|byte| format!("{byte:02x}")).collect();
        if hex.trim_start_matches('/') == actual {
            Ok(())
        } else {
            Err(bad(format!("{} has another digest", self.name)))
        }
    }
}

fn padding(size: u64) -> usize {
    usize::try_from(size.next_multiple_of(BLOCK as u64) - size).unwrap_or(0)
}

fn is_digest(hex: &str) -> bool {
    hex.len() == 64 && hex.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

fn bad(reason: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, reason)
}

#[cfg(test)]
#[path = "layout_tests.rs"]
mod tests;
