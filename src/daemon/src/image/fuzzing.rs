//! What the fuzz targets call of this room; see [`crate::fuzzing`].
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a target reports by panicking")]

use wire::launch::MAX_LAYERS;

use super::manifest::{self, Document};
use super::name;
use super::record::Record;

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

fn is_digest(hex: &str) -> bool {
    hex.len() == 64 && hex.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

fn one_line(message: &str) {
    assert!(!message.contains(['\n', '\r']), "{message:?}");
}
