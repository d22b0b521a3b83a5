//! The images that are here: one small JSON file each, and all of them in memory.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use wire::id::LayerId;
use wire::launch::MAX_LAYERS;

use super::ReadyImage;
use super::error::StoreError;
use super::store::{Store, read_bounded};
use super::user::User;

/// Version of the record's form.
const VERSION: u32 = 1;
/// Most images that are kept at once.
const MAX_RECORDS: usize = 4096;
const MAX_RECORD_BYTES: u64 = 1024 * 1024;

/// How an image came to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Pulled from a registry.
    Pulled,
    /// Made by a recipe.
    Bootstrapped,
    /// Built from a definition.
    Built,
}

/// Everything that is known of an image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Record {
    pub(super) version: u32,
    /// What it is found by: `registry/REFERENCE`, `recipe/NAME` or `build/DIGEST`.
    pub(super) key: String,
    pub(super) kind: Kind,
    /// What identifies its content: the manifest's digest, the layer's, the definition's.
    pub(super) digest: String,
    /// Topmost first.
    pub(super) layers: Vec<LayerId>,
    pub(super) env: Vec<(String, String)>,
    pub(super) user: User,
    /// Unix seconds.
    pub(super) created: u64,
    /// Bytes of its files, all layers.
    pub(super) size: u64,
    /// The runtime that it was built for.
    pub(super) alias: Option<String>,
}

impl Record {
    pub(super) fn new(key: String, kind: Kind, digest: String) -> Self {
        let created = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |d| d.as_secs());
        let user = User { uid: 0, gid: 0, home: "/root".to_owned() };
        Self {
            version: VERSION,
            key,
            kind,
            digest,
            layers: Vec::new(),
            env: Vec::new(),
            user,
            created,
            size: 0,
            alias: None,
        }
    }

    fn ready(&self) -> ReadyImage {
        ReadyImage {
            tag: self.digest.clone(),
            layers: self.layers.clone(),
            env: self.env.clone(),
            uid: self.user.uid,
            gid: self.user.gid,
            home: self.user.home.clone(),
            built: self.kind == Kind::Built,
        }
    }
}

/// The records, on disk and in memory.
#[derive(Debug)]
pub(super) struct Records {
    map: RwLock<HashMap<String, Entry>>,
}

#[derive(Debug, Clone)]
pub(super) struct Entry {
    pub(super) record: Arc<Record>,
    pub(super) ready: Arc<ReadyImage>,
}

impl Records {
    /// Read every record. One that cannot be read, or whose layers are not all there, is left out and said so:
    /// its image is prepared again when it is needed.
    pub(super) fn load(store: &Store) -> Result<Self, StoreError> {
        let mut map = HashMap::new();
        for name in store.names("refs", MAX_RECORDS)? {
            match load_one(store, &name) {
                Ok(record) => {
                    map.insert(record.key.clone(), entry(record));
                }
                Err(reason) => tracing::warn!(file = %format!("refs/{name}"), reason, "image record ignored"),
            }
        }
        Ok(Self { map: RwLock::new(map) })
    }

    /// The image of this key.
    pub(super) fn get(&self, key: &str) -> Option<Entry> {
        self.map.read().unwrap_or_else(PoisonError::into_inner).get(key).cloned()
    }

    /// Every image, by key.
    pub(super) fn all(&self) -> Vec<Arc<Record>> {
        let map = self.map.read().unwrap_or_else(PoisonError::into_inner);
        let mut records: Vec<_> = map.values().map(|entry| Arc::clone(&entry.record)).collect();
        records.sort_by(|a, b| a.key.cmp(&b.key));
        records
    }

    /// Record an image, durably, in place of the one that had its key.
    pub(super) fn put(&self, store: &Store, record: Record) -> Result<Entry, StoreError> {
        let path = path_of(&record.key);
        let bytes = serde_json::to_vec(&record).map_err(|e| StoreError::new("encode", &path, e))?;
        store.write(&path, &bytes)?;
        let key = record.key.clone();
        let entry = entry(record);
        self.map.write().unwrap_or_else(PoisonError::into_inner).insert(key, entry.clone());
        Ok(entry)
    }
}

fn entry(record: Record) -> Entry {
    let ready = Arc::new(record.ready());
    Entry { record: Arc::new(record), ready }
}

fn path_of(key: &str) -> String {
    format!("refs/{}.json", hex(&Sha256::digest(key.as_bytes())))
}

fn load_one(store: &Store, name: &str) -> Result<Record, String> {
    let path = format!("refs/{name}");
    let mut file = store.read(&path).map_err(|e| e.to_string())?.ok_or("vanished")?;
    let bytes = read_bounded(&mut file, MAX_RECORD_BYTES).map_err(|e| e.to_string())?;
    let record: Record = serde_json::from_slice(&bytes).map_err(|e| e.to_string())?;
    if record.version != VERSION {
        return Err(format!("has version {}", record.version));
    }
    if path_of(&record.key) != path {
        return Err("is not under the name of its key".to_owned());
    }
    if record.layers.is_empty() || record.layers.len() > MAX_LAYERS {
        return Err(format!("has {} layers", record.layers.len()));
    }
    match record.layers.iter().find(|layer| !store.has_layer(layer)) {
        Some(layer) => Err(format!("layer {layer} is missing")),
        None => Ok(record),
    }
}

/// Lower-case hex digits.
pub(super) fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write;
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn open(path: &Path) -> Store {
        Store::open(std::fs::File::open(path).unwrap().into()).unwrap()
    }

    fn record(key: &str, layer: &str) -> Record {
        let mut record = Record::new(key.to_owned(), Kind::Bootstrapped, layer.repeat(64));
        record.layers = vec![LayerId::parse(&layer.repeat(64)).unwrap()];
        record
    }

    #[test]
    fn records_outlive_the_process_and_need_their_layers() {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(root.path().join("layers").join("a".repeat(64))).unwrap();
        let store = open(root.path());
        let records = Records::load(&store).unwrap();
        assert!(records.get("recipe/one").is_none());
        records.put(&store, record("recipe/one", "a")).unwrap();
        records.put(&store, record("recipe/two", "b")).unwrap();
        assert_eq!(records.all().len(), 2);

        let store = open(root.path());
        let again = Records::load(&store).unwrap();
        assert_eq!(*again.get("recipe/one").unwrap().record, *records.get("recipe/one").unwrap().record);
        assert!(again.get("recipe/two").is_none(), "its layer is not there");
    }

    #[test]
    fn what_a_crash_or_a_hand_leaves_is_ignored() {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(root.path().join("layers").join("a".repeat(64))).unwrap();
        let store = open(root.path());
        Records::load(&store).unwrap().put(&store, record("recipe/one", "a")).unwrap();
        let refs = root.path().join("refs");
        std::fs::write(refs.join(".half.1.0"), b"{").unwrap();
        std::fs::write(refs.join("half.json"), b"{\"version\":1").unwrap();
        let name = std::fs::read_dir(&refs).unwrap().map(|e| e.unwrap().file_name()).find(|n| n.len() == 69).unwrap();
        std::fs::copy(refs.join(&name), refs.join("copy.json")).unwrap();
        let store = open(root.path());
        assert!(!refs.join(".half.1.0").exists());
        assert_eq!(Records::load(&store).unwrap().all().len(), 1);
    }
}
