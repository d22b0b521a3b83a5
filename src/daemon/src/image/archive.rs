//! An archive that somebody sent, looked into: which files it has, and where in it they are.
//!
//! It is hostile: so many entries, names and documents of so many bytes, and nothing in it is a path of this host. It lies in
//! one file without a name; what is wanted of it is read from there.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use serde::de::DeserializeOwned;
use tar::EntryType;

use super::manifest::MAX_DOCUMENT;

/// Most entries that are looked at, and longest name in bytes.
const MAX_ENTRIES: usize = 4096;
const MAX_NAME: usize = 256;
/// Links from entry to entry, at most so many.
const MAX_LINKS: usize = 3;

/// What is in the archive.
pub(super) struct Archive {
    file: Arc<File>,
    entries: HashMap<String, What>,
}

/// A file of the archive. It has a place of its own to read at, so that several can be read at once.
pub(super) struct Part {
    file: Arc<File>,
    at: u64,
    left: u64,
}

impl Read for Part {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let most = usize::try_from(self.left).unwrap_or(usize::MAX).min(buffer.len());
        let count = self.file.read_at(&mut buffer[..most], self.at)?;
        self.at += count as u64;
        self.left -= count as u64;
        Ok(count)
    }
}

enum What {
    /// A file: where it begins, and how long it is.
    File(u64, u64),
    /// Another name for this one.
    Link(String),
}

/// A file of the archive is not as it should be.
#[derive(Debug, thiserror::Error)]
pub enum ArchiveError {
    /// It is no archive, or none that is read here.
    #[error("it is no uncompressed tar archive of an image: {0}")]
    Form(String),
    /// Something that is named is not in it.
    #[error("{0:?} is not in it")]
    Missing(String),
    /// A document in it makes no sense.
    #[error("{name}: {reason}")]
    Document {
        /// Which.
        name: String,
        /// Why.
        reason: String,
    },
    /// The temporary file.
    #[error("read the archive")]
    Io(#[from] io::Error),
}

impl Archive {
    /// Look through the archive in `file`. Blocks.
    pub(super) fn open(mut file: File) -> Result<Self, ArchiveError> {
        let length = file.seek(SeekFrom::End(0))?;
        file.rewind()?;
        let mut entries = HashMap::new();
        // The reader quotes what it has read.
        let form = |e: io::Error| ArchiveError::Form(shown(&e.to_string()));
        let mut archive = tar::Archive::new(file.try_clone()?);
        // Raw: what extends an entry is an entry like another, and its size nobody's memory.
        for (number, entry) in archive.entries_with_seek().map_err(form)?.raw(true).enumerate() {
            let entry = entry.map_err(form)?;
            if number >= MAX_ENTRIES {
                return Err(ArchiveError::Form(format!("more than {MAX_ENTRIES} entries")));
            }
            let (begin, size) = (entry.raw_file_position(), entry.header().entry_size().map_err(form)?);
            if begin.checked_add(size).is_none_or(|end| end > length) {
                return Err(ArchiveError::Form("it ends within a file".to_owned()));
            }
            let Some(name) = name_of(&entry.path_bytes(), "") else { continue };
            let what = match entry.header().entry_type() {
                EntryType::Regular | EntryType::Continuous => What::File(begin, size),
                EntryType::Symlink => match target(&entry).and_then(|link| name_of(&link, directory(&name))) {
                    Some(target) => What::Link(target),
                    None => continue,
                },
                EntryType::Link => match target(&entry).and_then(|link| name_of(&link, "")) {
                    Some(target) => What::Link(target),
                    None => continue,
                },
                _ => continue,
            };
            entries.insert(name, what);
        }
        Ok(Self { file: Arc::new(file), entries })
    }

    /// Whether there is a file of this name.
    pub(super) fn has(&self, name: &str) -> bool {
        self.find(name).is_ok()
    }

    /// The bytes of a file, to be read from its start; and how many they are.
    pub(super) fn reader(&self, name: &str) -> Result<(Part, u64), ArchiveError> {
        let (at, left) = self.find(name)?;
        Ok((Part { file: Arc::clone(&self.file), at, left }, left))
    }

    /// All of a small file.
    pub(super) fn document(&self, name: &str) -> Result<Vec<u8>, ArchiveError> {
        let (mut reader, size) = self.reader(name)?;
        if size > MAX_DOCUMENT {
            let reason = format!("has {size} bytes; allowed: at most {MAX_DOCUMENT}");
            return Err(ArchiveError::Document { name: shown(name), reason });
        }
        let mut bytes = Vec::new();
        reader.read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    /// A small file of JSON.
    pub(super) fn json<T: DeserializeOwned>(&self, name: &str) -> Result<T, ArchiveError> {
        let bytes = self.document(name)?;
        serde_json::from_slice(&bytes).map_err(|e| ArchiveError::Document { name: shown(name), reason: e.to_string() })
    }

    fn find(&self, name: &str) -> Result<(u64, u64), ArchiveError> {
        let missing = || ArchiveError::Missing(shown(name));
        let mut at = name.strip_prefix("./").unwrap_or(name);
        for _ in 0..=MAX_LINKS {
            match self.entries.get(at) {
                Some(What::File(begin, size)) => return Ok((*begin, *size)),
                Some(What::Link(target)) => at = target,
                None => return Err(missing()),
            }
        }
        Err(missing())
    }
}

/// A name that strangers chose, for people to read.
fn shown(name: &str) -> String {
    name.chars().filter(|c| !c.is_control()).take(MAX_NAME).collect()
}

fn target<R: Read>(entry: &tar::Entry<'_, R>) -> Option<Vec<u8>> {
    entry.header().link_name_bytes().map(std::borrow::Cow::into_owned)
}

fn directory(name: &str) -> &str {
    name.rsplit_once('/').map_or("", |(directory, _)| directory)
}

/// A name within the archive, of one in `directory`; `None` if it leads out of it, or is none that an image has.
fn name_of(bytes: &[u8], directory: &str) -> Option<String> {
    let text = std::str::from_utf8(bytes).ok().filter(|text| text.len() <= MAX_NAME && !text.starts_with('/'))?;
    let mut parts: Vec<&str> = directory.split('/').filter(|part| !part.is_empty()).collect();
    for part in text.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()?),
            part => parts.push(part),
        }
    }
    (!parts.is_empty()).then(|| parts.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn archive(entries: &[(&str, EntryType, &str, &[u8])]) -> Result<Archive, ArchiveError> {
        let mut builder = tar::Builder::new(tempfile::tempfile().unwrap());
        for (name, kind, link, content) in entries {
            let mut header = tar::Header::new_gnu();
            header.set_entry_type(*kind);
            header.set_size(content.len() as u64);
            let old = header.as_old_mut();
            old.name[..name.len()].copy_from_slice(name.as_bytes());
            old.linkname[..link.len()].copy_from_slice(link.as_bytes());
            header.set_cksum();
            builder.append(&header, *content).unwrap();
        }
        Archive::open(builder.into_inner().unwrap())
    }

    #[test]
    fn names_and_links_lead_to_files_of_the_archive() {
        let file = EntryType::Regular;
        let archive = archive(&[
            ("./a/layer.tar", file, "", b"layer"),
            ("b/layer.tar", EntryType::Symlink, "../a/layer.tar", b""),
            ("c", EntryType::Symlink, "/etc/passwd", b""),
            ("d", EntryType::Symlink, "../../etc/passwd", b""),
            ("e", EntryType::Symlink, "e", b""),
            ("../f", file, "", b"out"),
            ("g", EntryType::Link, "a/layer.tar", b""),
            ("x", EntryType::XHeader, "", b"12 path=evil"),
        ])
        .unwrap();
        for name in ["a/layer.tar", "./a/layer.tar", "b/layer.tar", "g"] {
            assert_eq!(archive.document(name).unwrap(), b"layer", "{name}");
        }
        for name in ["c", "d", "e", "f", "../f", "evil", "x", ""] {
            assert!(!archive.has(name), "{name}");
        }
    }

    #[test]
    fn hostile_archives() {
        assert!(archive(&[("a", EntryType::Regular, "", &vec![0; 5 << 20])]).unwrap().document("a").is_err());
        let many: Vec<_> = (0..=MAX_ENTRIES).map(|_| ("a", EntryType::Regular, "", &b""[..])).collect();
        assert!(archive(&many).is_err());
        let mut noise = tempfile::tempfile().unwrap();
        noise.write_all(&[7; 4096]).unwrap();
        assert!(Archive::open(noise).is_err());
        let mut header = tar::Header::new_gnu();
        header.set_path("a").unwrap();
        header.set_size(u64::MAX / 2);
        header.set_cksum();
        let mut long = tempfile::tempfile().unwrap();
        long.write_all(header.as_bytes()).unwrap();
        assert!(Archive::open(long).is_err());
        let empty = Archive::open(tempfile::tempfile().unwrap()).unwrap();
        assert!(!empty.has("index.json"));
    }
}
