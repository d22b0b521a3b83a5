//! What the fuzz targets call of this room; see [`crate::fuzzing`].
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a target reports by panicking")]

use std::fs::File;
use std::io::{Seek, Write};

use rustix::fs::MemfdFlags;
use sha2::{Digest, Sha256};
use tar::{EntryType, Header};
use wire::launch::MAX_LAYERS;

use super::archive::Archive;
use super::contents::{Contents, Found};
use super::error::chain;
use super::import::ImportError;
use super::manifest::{self, Document};
use super::name;
use super::record::{Record, hex};

/// A document of a registry: the first byte says as what it is read.
pub fn manifests(data: &[u8]) {
    let Some((what, bytes)) = data.split_first() else { return };
    match what % 4 {
        0 => document(bytes),
        1 => configuration(bytes, usize::from(what / 4)),
        2 => reference(bytes),
        // A record of our own, which a crash or a hand may have spoiled.
        _ => drop(serde_json::from_slice::<Record>(bytes)),
    }
}

fn document(bytes: &[u8]) {
    match manifest::parse(bytes) {
        Ok(Document::Index(digest)) => assert!(is_digest(digest.strip_prefix("sha256:").unwrap())),
        Ok(Document::Image(image)) => {
            assert!((1..=MAX_LAYERS).contains(&image.layers.len()) && is_digest(&image.config.hex));
            assert!(image.layers.iter().all(|(blob, _)| is_digest(&blob.hex) && blob.size <= manifest::MAX_BLOB));
        }
        Err(error) => one_line(&error.to_string()),
    }
}

fn configuration(bytes: &[u8], layers: usize) {
    match manifest::parse_config(bytes, layers) {
        Ok(config) => {
            assert_eq!(config.diff_ids.len(), layers);
            let stack = manifest::stack(&config.diff_ids);
            assert!(stack.len() <= layers && config.diff_ids.iter().all(|id| stack.contains(id)));
            let sound = |text: &str| !text.contains('\0');
            assert!(config.env.iter().all(|(name, value)| !name.is_empty() && sound(name) && sound(value)));
        }
        Err(error) => one_line(&error.to_string()),
    }
}

/// A name of an image leads to a recipe that there is, or to a registry.
fn reference(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let recipes = ["debian-bookworm".to_owned()];
    match name::origins(text, &recipes, "registry.example.org") {
        Ok(origins) => assert!(!origins.is_empty() && origins.iter().all(|origin| !origin.key().contains('\0'))),
        Err(error) => one_line(&error.to_string()),
    }
}

/// An archive of images: the first byte says which image is asked for, and whether the rest is the archive or what one is to
/// be made of ([`tar_of`]). What is found in it is whole and right, what is refused is one line.
pub fn archives(data: &[u8]) {
    let Some((what, bytes)) = data.split_first() else { return };
    match found(*what, bytes) {
        Ok(found) => check(&found),
        Err(error) => one_line(&chain(&error)),
    }
}

fn found(what: u8, bytes: &[u8]) -> Result<Found, ImportError> {
    let tag = [None, Some("it"), Some("one")][usize::from(what / 2 % 3)];
    let mut file = File::from(rustix::fs::memfd_create("archive", MemfdFlags::CLOEXEC).unwrap());
    file.write_all(&if what.is_multiple_of(2) { tar_of(bytes) } else { bytes.to_vec() }).unwrap();
    file.rewind().unwrap();
    let contents = Contents::of(Archive::open(file)?, tag)?;
    drop(contents.name());
    contents.look()
}

fn check(found: &Found) {
    assert!(is_digest(&found.digest) && (1..=MAX_LAYERS).contains(&found.layers.len()));
    let ids: Vec<_> = found.layers.iter().map(|layer| layer.id.clone()).collect();
    assert_eq!(ids, found.config.diff_ids);
    assert!(found.layers.iter().filter_map(|layer| layer.hex.as_deref()).all(is_digest));
    assert!(found.documents.iter().all(|(name, text)| *name == hex(&Sha256::digest(text))));
    assert!(found.documents.iter().any(|(name, _)| *name == found.digest));
}

/// A tar with right sums, which no mutation hits upon. Each entry is its kind, the lengths of its name, its target and (two
/// bytes) its content, and these. `@0` to `@9` in a name or a content is the digest of the content of that entry before it.
fn tar_of(mut bytes: &[u8]) -> Vec<u8> {
    let (mut tar, mut digests) = (Vec::new(), Vec::new());
    while let Some(([kind, name, target, low, high], rest)) = bytes.split_first_chunk() {
        let mut rest = rest;
        let mut take = |length: usize| {
            let (taken, left) = rest.split_at(length.min(rest.len()));
            rest = left;
            taken
        };
        let (name, target) = (take(usize::from(*name)), take(usize::from(*target)));
        let content = replaced(take(usize::from(u16::from_le_bytes([*low, *high]))), &digests);
        let mut header = Header::new_gnu();
        header.set_entry_type(EntryType::new(*kind));
        header.set_size(content.len() as u64);
        let old = header.as_old_mut();
        old.name.iter_mut().zip(replaced(name, &digests)).for_each(|(to, from)| *to = from);
        old.linkname.iter_mut().zip(target).for_each(|(to, from)| *to = *from);
        header.set_cksum();
        tar.extend_from_slice(header.as_bytes());
        tar.extend_from_slice(&content);
        tar.resize(tar.len().next_multiple_of(512), 0);
        digests.push(hex(&Sha256::digest(&content)));
        bytes = rest;
    }
    tar
}

fn replaced(bytes: &[u8], digests: &[String]) -> Vec<u8> {
    let (mut whole, mut rest) = (Vec::new(), bytes);
    while let [first, tail @ ..] = rest {
        let number = tail.first().filter(|digit| *first == b'@' && digit.is_ascii_digit());
        match number.and_then(|digit| digests.get(usize::from(digit - b'0'))) {
            Some(digest) => {
                whole.extend_from_slice(digest.as_bytes());
                rest = &tail[1..];
            }
            None => {
                whole.push(*first);
                rest = tail;
            }
        }
    }
    whole
}

fn is_digest(hex: &str) -> bool {
    hex.len() == 64 && hex.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

fn one_line(message: &str) {
    assert!(!message.contains(['\n', '\r']), "{message:?}");
}

#[cfg(test)]
mod tests {
    use super::super::platform::Platform;
    use super::*;

    /// The targets reach what they are there for.
    #[test]
    fn the_seeds_of_archives_are_images() {
        let corpus = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/corpus/archives/");
        let seed = |name: &str| {
            let data = std::fs::read(format!("{corpus}{name}")).unwrap();
            found(data[0], &data[1..]).map_err(|error| chain(&error))
        };
        if Platform::host().architecture == "amd64" {
            for name in ["layout", "layout-tag", "layout-platforms", "layout-nested", "docker", "docker-tag", "raw"] {
                assert!(seed(name).is_ok(), "{name}: {:?}", seed(name).err());
            }
        }
        for name in ["layout-several", "docker-several"] {
            assert!(seed(name).is_err_and(|said| said.contains("say the tag of one")), "{name}");
        }
    }
}
