//! The images that are here: one small JSON file each, and all of them in memory.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use wire::id::LayerId;
use wire::launch::MAX_LAYERS;

use super::error::StoreError;
use super::store::{Store, read_bounded};
use super::user::User;
use super::{Lease, ReadyImage, size};

/// Version of the record's form.
const VERSION: u32 = 1;
/// Most images that are kept at once.
const MAX_RECORDS: usize = 4096;
/// Room for the environments of an image and of a definition, every byte of them escaped.
const MAX_RECORD_BYTES: u64 = 4 * 1024 * 1024;

/// How an image came to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Pulled from a registry.
    Pulled,
    /// Read from an archive.
    Imported,
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
    /// Bytes of each layer's files, as `layers` has them.
    #[serde(default)]
    pub(super) sizes: Vec<u64>,
    /// The runtime that it was built for.
    pub(super) alias: Option<String>,
    /// Digest of its configuration, hex, where it came with one; that is among the blobs.
    #[serde(default)]
    pub(super) config: Option<String>,
}

impl Kind {
    /// As it is written.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Pulled => "pulled",
            Self::Imported => "imported",
            Self::Bootstrapped => "bootstrapped",
            Self::Built => "built",
        }
    }
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
            sizes: Vec::new(),
            alias: None,
            config: None,
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
            lease: Lease::default(),
        }
    }
}

/// The records, on disk and in memory.
#[derive(Debug)]
pub(super) struct Records {
    map: RwLock<HashMap<String, Entry>>,
    /// Held over what is written and deleted, so that a name is not deleted which somebody is giving anew.
    writing: Mutex<()>,
}

/// What is on disk of records.
#[derive(Debug)]
pub(super) struct Written {
    /// Those of images. One whose layers are not all there is of none.
    pub(super) records: Vec<Record>,
    /// The file of the first that cannot be read, and why.
    pub(super) unreadable: Option<(String, String)>,
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
        for name in store.names("refs", usize::MAX)? {
            match load_one(store, &name) {
                Ok(record) => {
                    map.insert(record.key.clone(), entry(record, Lease::default()));
                }
                Err(reason) => tracing::warn!(file = %format!("refs/{name}"), %reason, "image record ignored"),
            }
        }
        Ok(Self { map: RwLock::new(map), writing: Mutex::default() })
    }

    /// The image of this key.
    pub(super) fn get(&self, key: &str) -> Option<Entry> {
        self.map.read().unwrap_or_else(PoisonError::into_inner).get(key).cloned()
    }

    /// The same, also if another process has recorded it since.
    pub(super) fn look_again(&self, store: &Store, key: &str) -> Result<Option<Entry>, StoreError> {
        if let Some(entry) = self.get(key) {
            return Ok(Some(entry));
        }
        let path = path_of(key);
        if store.read(&path)?.is_none() {
            return Ok(None);
        }
        match load_one(store, path.trim_start_matches("refs/")) {
            Ok(record) => {
                let entry = entry(record, Lease::default());
                self.map.write().unwrap_or_else(PoisonError::into_inner).insert(key.to_owned(), entry.clone());
                Ok(Some(entry))
            }
            Err(reason) => {
                tracing::warn!(file = path, %reason, "image record ignored");
                Ok(None)
            }
        }
    }

    /// Every image, by key.
    pub(super) fn all(&self) -> Vec<Arc<Record>> {
        let map = self.map.read().unwrap_or_else(PoisonError::into_inner);
        let mut records: Vec<_> = map.values().map(|entry| Arc::clone(&entry.record)).collect();
        records.sort_by(|a, b| a.key.cmp(&b.key));
        records
    }

    /// Every record that is on disk, also those that another service of the same store has written since.
    pub(super) fn written(store: &Store) -> Result<Written, StoreError> {
        let mut written = Written { records: Vec::new(), unreadable: None };
        // What another writes at the moment has no name yet.
        for name in store.names("refs", usize::MAX)?.into_iter().filter(|name| !name.starts_with('.')) {
            match load_one(store, &name) {
                Ok(record) => written.records.push(record),
                Err(Unusable::Gone | Unusable::Lacks(_)) => {}
                Err(Unusable::Form(reason)) => {
                    written.unreadable.get_or_insert((format!("refs/{name}"), reason));
                }
            }
        }
        Ok(written)
    }

    /// How large layers are, and how many images have each.
    pub(super) fn layers(&self) -> HashMap<LayerId, (u64, u32)> {
        let map = self.map.read().unwrap_or_else(PoisonError::into_inner);
        let mut layers = HashMap::new();
        for record in map.values().map(|entry| &entry.record) {
            for (layer, size) in record.layers.iter().zip(&record.sizes) {
                layers.entry(layer.clone()).or_insert((*size, 0)).1 += 1;
            }
        }
        layers
    }

    /// Record an image, durably, in place of the one that had its key. Its layers are measured.
    pub(super) fn put(&self, store: &Store, record: Record) -> Result<Entry, StoreError> {
        let record = measured(store, record, &self.layers())?;
        let _writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        self.has_room(&record)?;
        let old = self.get(&record.key);
        let same = old.as_ref().filter(|old| old.record.digest == record.digest).map(|old| old.ready.lease.clone());
        if let Some(old) = old.filter(|_| same.is_none()) {
            self.keep(store, old)?;
        }
        write(store, &record)?;
        let (key, entry) = (record.key.clone(), entry(record, same.unwrap_or_default()));
        self.map.write().unwrap_or_else(PoisonError::into_inner).insert(key, entry.clone());
        Ok(entry)
    }

    /// Whether there may be one more, if this one is one.
    fn has_room(&self, record: &Record) -> Result<(), StoreError> {
        let map = self.map.read().unwrap_or_else(PoisonError::into_inner);
        let is_known = map.get(&record.key).is_some_and(|old| old.record.digest == record.digest);
        if is_known || map.len() < MAX_RECORDS {
            return Ok(());
        }
        let full = format!("{MAX_RECORDS} images are here, which is the most; remove some, or try images gc --unused");
        Err(StoreError::new("record", &record.key, io::Error::new(io::ErrorKind::QuotaExceeded, full)))
    }

    /// Keep an image whose name another is about to get: sessions may stand on it.
    fn keep(&self, store: &Store, old: Entry) -> Result<(), StoreError> {
        let key = format!("untagged/{}", old.record.digest);
        let record = Record { key: key.clone(), ..Record::clone(&old.record) };
        write(store, &record)?;
        let entry = Entry { record: Arc::new(record), ready: old.ready };
        self.map.write().unwrap_or_else(PoisonError::into_inner).insert(key, entry);
        Ok(())
    }

    /// Let nobody get an image any more. `None`: there is none; `Some(None)`: somebody has got it.
    pub(super) fn take(&self, key: &str) -> Option<Option<Entry>> {
        let mut map = self.map.write().unwrap_or_else(PoisonError::into_inner);
        if map.get(key)?.ready.is_held() { Some(None) } else { Some(map.remove(key)) }
    }

    /// Undo [`Self::take`]; not if another has got the name meanwhile.
    pub(super) fn give_back(&self, entry: Entry) {
        let mut map = self.map.write().unwrap_or_else(PoisonError::into_inner);
        map.entry(entry.record.key.clone()).or_insert(entry);
    }

    /// Delete the record of an image that was taken, unless another has got the name meanwhile.
    pub(super) fn forget(&self, store: &Store, key: &str) -> Result<(), StoreError> {
        let _writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        if self.get(key).is_some() { Ok(()) } else { store.remove(&path_of(key)) }
    }
}

fn write(store: &Store, record: &Record) -> Result<(), StoreError> {
    let path = path_of(&record.key);
    let bytes = serde_json::to_vec(record).map_err(|e| StoreError::new("encode", &path, e))?;
    // What could not be read again would be gone with the next start.
    if bytes.len() as u64 > MAX_RECORD_BYTES {
        let size =
            format!("the record of {} has {} bytes; allowed: at most {MAX_RECORD_BYTES}", record.key, bytes.len());
        return Err(StoreError::new("write", path, io::Error::new(io::ErrorKind::FileTooLarge, size)));
    }
    store.write(&path, &bytes)
}

/// The record with its sizes; those of layers that are `known` are not measured again.
fn measured(store: &Store, record: Record, known: &HashMap<LayerId, (u64, u32)>) -> Result<Record, StoreError> {
    let size = |layer: &LayerId| known.get(layer).map_or_else(|| size::of(store, layer), |(size, _)| Ok(*size));
    let sizes: Vec<u64> = record.layers.iter().map(size).collect::<Result<_, _>>()?;
    Ok(Record { size: sizes.iter().fold(0, |sum, size| sum.saturating_add(*size)), sizes, ..record })
}

fn entry(record: Record, lease: Lease) -> Entry {
    let ready = Arc::new(ReadyImage { lease, ..record.ready() });
    Entry { record: Arc::new(record), ready }
}

fn path_of(key: &str) -> String {
    format!("refs/{}.json", hex(&Sha256::digest(key.as_bytes())))
}

/// Why a record is not one of an image.
#[derive(Debug, thiserror::Error)]
enum Unusable {
    /// It is not there any more.
    #[error("vanished")]
    Gone,
    /// One of its layers is not there.
    #[error("layer {0} is missing")]
    Lacks(LayerId),
    /// It cannot be read, or makes no sense: a crash, a hand or another version may have left it.
    #[error("{0}")]
    Form(String),
}

fn load_one(store: &Store, name: &str) -> Result<Record, Unusable> {
    let path = format!("refs/{name}");
    let form = |reason: &dyn std::error::Error| Unusable::Form(super::error::chain(reason));
    let mut file = store.read(&path).map_err(|e| form(&e))?.ok_or(Unusable::Gone)?;
    let bytes = read_bounded(&mut file, MAX_RECORD_BYTES).map_err(|e| form(&e))?;
    let record: Record = serde_json::from_slice(&bytes).map_err(|e| form(&e))?;
    if record.version != VERSION {
        return Err(Unusable::Form(format!("has version {}", record.version)));
    }
    if path_of(&record.key) != path {
        return Err(Unusable::Form("is not under the name of its key".to_owned()));
    }
    if record.layers.is_empty() || record.layers.len() > MAX_LAYERS {
        return Err(Unusable::Form(format!("has {} layers", record.layers.len())));
    }
    match record.layers.iter().find(|layer| !store.has_layer(layer)) {
        Some(layer) => Err(Unusable::Lacks(layer.clone())),
        // Of an older version, which did not measure each.
        None if record.sizes.len() != record.layers.len() => {
            measured(store, record, &HashMap::new()).map_err(|e| form(&e))
        }
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
        std::fs::create_dir(root.path().join("layers").join("b".repeat(64))).unwrap();
        records.put(&store, record("recipe/two", "b")).unwrap();
        std::fs::remove_dir(root.path().join("layers").join("b".repeat(64))).unwrap();
        assert_eq!(records.all().len(), 2);

        let store = open(root.path());
        let again = Records::load(&store).unwrap();
        assert_eq!(*again.get("recipe/one").unwrap().record, *records.get("recipe/one").unwrap().record);
        assert!(again.get("recipe/two").is_none(), "its layer is not there");
    }

    #[test]
    fn what_could_not_be_read_again_is_not_written_and_there_is_a_most_of_them() {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(root.path().join("layers").join("a".repeat(64))).unwrap();
        let store = open(root.path());
        let records = Records::load(&store).unwrap();
        let mut large = record("recipe/large", "a");
        // What is escaped takes six times its room.
        large.env = (0..16).map(|n| (format!("V{n}"), "\u{1}".repeat(32 * 1024))).collect();
        records.put(&store, large.clone()).unwrap();
        assert!(Records::load(&store).unwrap().get("recipe/large").is_some());
        large.env.extend((0..16).map(|n| (format!("W{n}"), "\u{1}".repeat(32 * 1024))));
        let refused = super::super::error::chain(&records.put(&store, large).unwrap_err());
        assert!(refused.contains("the record of recipe/large has"), "{refused}");
        assert!(Records::load(&store).unwrap().get("recipe/large").is_some(), "the one of before is there");

        for number in records.all().len()..MAX_RECORDS {
            let key = format!("registry/{number}");
            let made = entry(record(&key, "a"), Lease::default());
            records.map.write().unwrap().insert(key, made);
        }
        let refused = records.put(&store, record("registry/more", "a")).unwrap_err();
        assert!(refused.is_full() && super::super::error::chain(&refused).contains("remove some"), "{refused}");
        records.put(&store, record("registry/7", "a")).unwrap();
        let mut other = record("registry/7", "a");
        other.digest = "b".repeat(64);
        assert!(records.put(&store, other).is_err(), "it would keep what had the name");
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
        // But it is known that there is something: its layers may be somebody's.
        let written = Records::written(&store).unwrap();
        let (file, _) = written.unreadable.unwrap();
        assert!(written.records.len() == 1 && (file.ends_with("half.json") || file.ends_with("copy.json")), "{file}");
        std::fs::remove_file(refs.join("half.json")).unwrap();
        std::fs::remove_file(refs.join("copy.json")).unwrap();
        std::fs::write(refs.join(".staged.1.0"), b"{").unwrap();
        assert_eq!(Records::written(&store).unwrap().unreadable, None);
    }
}
