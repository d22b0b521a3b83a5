//! Images as archives for other programs: an OCI layout and a docker archive in one tar.
//!
//! ```text
//! oci-layout  blobs/sha256/HEX…  index.json        what skopeo, podman and this service read as an OCI archive
//!             ───────┬────────   manifest.json     what `docker load` reads, of the same blobs
//! ```
//! Layers are packed one after another as they are sent, each into a file without a name first: its digest is its name.
//! The configuration is the image's own where it came with one, to the last byte if its layers came out as they were.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;

use bytes::Bytes;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tar::{EntryType, Header};
use tokio::io::AsyncReadExt;
use tokio::sync::mpsc;
use wire::id::LayerId;

use super::base::hash;
use super::error::{ImageError, StoreError};
use super::manage::{ManageError, Named};
use super::manifest::{MAX_DOCUMENT, stack};
use super::platform::Platform;
use super::record::{Entry, Kind, hex};
use super::store::read_bounded;
use super::{Images, Inner, room};

/// Pieces in which the archive is sent, in bytes, and how many may wait for a slow reader.
const PIECE: usize = 128 * 1024;
const PIECES: usize = 8;
const BLOCK: u64 = 512;

/// What an archive is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// Whoever reads it, in either way.
    Both,
    /// Those who read OCI layouts.
    Oci,
    /// `docker load`.
    Docker,
}

/// An archive as it is made. It ends with an error if it is not whole.
pub type Archive = mpsc::Receiver<Result<Bytes, io::Error>>;

impl Images {
    /// The image as an archive of this form. As long as it is made, the image is in use.
    ///
    /// # Errors
    /// [`ManageError::Unknown`].
    pub fn export(&self, image: &Named, form: Form) -> Result<Archive, ManageError> {
        let unknown = || ManageError::Unknown(image.reference().to_owned());
        let entry = self.entry(image).ok_or_else(unknown)?;
        let (sender, archive) = mpsc::channel(PIECES);
        let export = Export { inner: Arc::clone(self.inner()), entry, form, sender, written: Vec::new() };
        tokio::spawn(export.run());
        Ok(archive)
    }
}

struct Export {
    inner: Arc<Inner>,
    entry: Entry,
    form: Form,
    sender: mpsc::Sender<Result<Bytes, io::Error>>,
    /// Digests of the blobs that are in the archive.
    written: Vec<String>,
}

/// A blob of the archive.
#[derive(Debug, Clone)]
struct Blob {
    hex: String,
    size: u64,
}

impl Export {
    async fn run(mut self) {
        let Err(error) = self.write().await else { return };
        // Whoever reads is told by the end of the connection; the reason is for the log.
        if !self.sender.is_closed() {
            let key = &self.entry.record.key;
            tracing::error!(image = key, error = &error as &dyn std::error::Error, "not exported");
            let _ = self.sender.send(Err(io::Error::other(error))).await;
        }
    }

    async fn write(&mut self) -> Result<(), ImageError> {
        let record = Arc::clone(&self.entry.record);
        if self.form != Form::Docker {
            self.document("oci-layout", br#"{"imageLayoutVersion":"1.0.0"}"#).await?;
        }
        let own = self.own_config()?;
        let order = own.as_ref().and_then(|own| order_of(own, &record.layers));
        let order = order.unwrap_or_else(|| record.layers.iter().rev().cloned().collect());
        let mut packed: HashMap<LayerId, Blob> = HashMap::new();
        let mut layers = Vec::with_capacity(order.len());
        for layer in order {
            let blob = match packed.get(&layer) {
                Some(blob) => blob.clone(),
                None => self.layer(&layer).await?,
            };
            packed.insert(layer, blob.clone());
            layers.push(blob);
        }
        let config = self.blob(&self.config(own, &layers)?).await?;
        let name = self.name();
        if self.form != Form::Docker {
            let manifest = self.blob(manifest(&config, &layers).to_string().as_bytes()).await?;
            self.document("index.json", index(&manifest, name.as_deref()).to_string().as_bytes()).await?;
        }
        if self.form != Form::Oci {
            self.document("manifest.json", docker(&config, &layers, name.as_deref()).to_string().as_bytes()).await?;
        }
        self.send(Bytes::from_static(&[0; 2 * BLOCK as usize])).await
    }

    /// What it is called by those who read it.
    fn name(&self) -> Option<String> {
        let record = &self.entry.record;
        let (_, name) = record.key.split_once('/')?;
        match record.kind {
            Kind::Pulled | Kind::Imported if record.key.starts_with("registry/") => {
                Some(name.to_owned()).filter(|name| !name.contains('@'))
            }
            Kind::Bootstrapped => Some(format!("localhost/{name}:latest")),
            Kind::Built => {
                let alias = record.alias.as_deref().unwrap_or("runtime").to_lowercase();
                Some(format!("localhost/{alias}:{}", record.digest.get(..12).unwrap_or("latest")))
            }
            Kind::Pulled | Kind::Imported => None,
        }
    }

    /// Pack a layer and send it.
    async fn layer(&mut self, layer: &LayerId) -> Result<Blob, ImageError> {
        let image = || self.entry.record.key.clone();
        let file = self.inner.store.unnamed()?;
        let output = file.try_clone().map_err(|e| StoreError::new("share", ".", e))?;
        let packing = room::within(&self.inner.store, self.inner.machine.pack(layer, output.into()));
        let packed = tokio::select! {
            packed = packing => packed?,
            // Nothing is packed for somebody who has left.
            () = self.sender.closed() => return Err(gone()),
        };
        packed.map_err(|source| ImageError::Pack { layer: layer.clone(), image: image(), source })?;
        let (file, digest) = hash(file).await?;
        let size = file.metadata().map_err(|e| StoreError::new("look at", ".", e))?.len();
        let blob = Blob { hex: digest, size };
        self.blob_file(&blob, file).await?;
        Ok(blob)
    }

    /// The configuration that the image came with.
    fn own_config(&self) -> Result<Option<Vec<u8>>, StoreError> {
        let Some(hex) = &self.entry.record.config else { return Ok(None) };
        let Some(mut file) = self.inner.store.read(&format!("blobs/sha256/{hex}"))? else { return Ok(None) };
        let bytes =
            read_bounded(&mut file, MAX_DOCUMENT).map_err(|e| StoreError::new("read", "the configuration", e))?;
        Ok(Some(bytes))
    }

    /// The image's own configuration with these layers, or one of what is known.
    fn config(&self, own: Option<Vec<u8>>, layers: &[Blob]) -> Result<Vec<u8>, ImageError> {
        let record = &self.entry.record;
        let ids: Vec<String> = layers.iter().map(|layer| format!("sha256:{}", layer.hex)).collect();
        let mut config: Value = match &own {
            Some(bytes) => {
                serde_json::from_slice(bytes).map_err(|e| StoreError::new("read", "the configuration", e))?
            }
            None => {
                let host = Platform::host();
                let env: Vec<String> = record.env.iter().map(|(name, value)| format!("{name}={value}")).collect();
                let user = format!("{}:{}", record.user.uid, record.user.gid);
                json!({"os": host.os, "architecture": host.architecture, "config": {"Env": env, "User": user}})
            }
        };
        match own {
            Some(bytes) if config["rootfs"]["diff_ids"] == json!(ids) => return Ok(bytes),
            Some(_) | None => {}
        }
        if let Value::Object(members) = &mut config {
            members.insert("rootfs".to_owned(), json!({"type": "layers", "diff_ids": ids}));
            if !members.get("history").is_some_and(|history| tells_of(history, ids.len())) {
                members.remove("history");
            }
        }
        Ok(config.to_string().into_bytes())
    }

    async fn blob(&mut self, bytes: &[u8]) -> Result<Blob, ImageError> {
        let blob = Blob { hex: hex(&Sha256::digest(bytes)), size: bytes.len() as u64 };
        if self.is_new(&blob) {
            self.document(&format!("blobs/sha256/{}", blob.hex), bytes).await?;
        }
        Ok(blob)
    }

    async fn blob_file(&mut self, blob: &Blob, file: std::fs::File) -> Result<(), ImageError> {
        if !self.is_new(blob) {
            return Ok(());
        }
        self.header(&format!("blobs/sha256/{}", blob.hex), blob.size).await?;
        let mut file = tokio::fs::File::from_std(file).take(blob.size);
        let mut left = blob.size;
        while left > 0 {
            let mut piece = vec![0; PIECE];
            let count = file.read(&mut piece).await.map_err(|e| StoreError::new("read", "a packed layer", e))?;
            if count == 0 {
                return Err(StoreError::new("read", "a packed layer", io::ErrorKind::UnexpectedEof).into());
            }
            piece.truncate(count);
            left -= count as u64;
            self.send(piece.into()).await?;
        }
        self.fill(blob.size).await
    }

    fn is_new(&mut self, blob: &Blob) -> bool {
        let new = !self.written.contains(&blob.hex);
        if new {
            self.written.push(blob.hex.clone());
        }
        new
    }

    async fn document(&mut self, name: &str, bytes: &[u8]) -> Result<(), ImageError> {
        self.header(name, bytes.len() as u64).await?;
        self.send(Bytes::copy_from_slice(bytes)).await?;
        self.fill(bytes.len() as u64).await
    }

    async fn header(&mut self, name: &str, size: u64) -> Result<(), ImageError> {
        let mut header = Header::new_ustar();
        header.set_entry_type(EntryType::Regular);
        header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
        header.set_mode(0o644);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(0);
        header.set_size(size);
        header.set_cksum();
        self.send(Bytes::copy_from_slice(header.as_bytes())).await
    }

    /// What fills up the last block of so many bytes.
    async fn fill(&mut self, size: u64) -> Result<(), ImageError> {
        let lacks = usize::try_from(size.next_multiple_of(BLOCK) - size).unwrap_or(0);
        self.send(Bytes::from_static(&[0; BLOCK as usize]).slice(..lacks)).await
    }

    async fn send(&mut self, piece: Bytes) -> Result<(), ImageError> {
        self.sender.send(Ok(piece)).await.map_err(|_| gone())
    }
}

fn gone() -> ImageError {
    StoreError::new("send", "the archive", io::ErrorKind::BrokenPipe).into()
}

/// The layers of a configuration, bottom first and as often as it names them, if they are those of the image.
fn order_of(config: &[u8], layers: &[LayerId]) -> Option<Vec<LayerId>> {
    let config: Value = serde_json::from_slice(config).ok()?;
    let ids = config["rootfs"]["diff_ids"].as_array()?;
    let parse = |id: &Value| LayerId::parse(id.as_str()?.strip_prefix("sha256:")?).ok();
    let order: Vec<LayerId> = ids.iter().map(parse).collect::<Option<_>>()?;
    (stack(&order) == layers).then_some(order)
}

/// Whether a history is one of so many layers: each of its entries is of one, but those that say that they are of none.
fn tells_of(history: &Value, layers: usize) -> bool {
    let entries = history.as_array().map(Vec::as_slice).unwrap_or_default();
    entries.iter().filter(|entry| entry["empty_layer"] != Value::Bool(true)).count() == layers
}

fn descriptor(media_type: &str, blob: &Blob) -> Value {
    json!({"mediaType": media_type, "digest": format!("sha256:{}", blob.hex), "size": blob.size})
}

fn manifest(config: &Blob, layers: &[Blob]) -> Value {
    let layer = |blob| descriptor("application/vnd.oci.image.layer.v1.tar", blob);
    json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": descriptor("application/vnd.oci.image.config.v1+json", config),
        "layers": layers.iter().map(layer).collect::<Vec<_>>(),
    })
}

fn index(manifest: &Blob, name: Option<&str>) -> Value {
    let mut entry = descriptor("application/vnd.oci.image.manifest.v1+json", manifest);
    let host = Platform::host();
    entry["platform"] = json!({"os": host.os, "architecture": host.architecture});
    if let Some(name) = name {
        let tag = name.rsplit_once(':').map_or("latest", |(_, tag)| tag);
        entry["annotations"] = json!({"org.opencontainers.image.ref.name": tag, "io.containerd.image.name": name});
    }
    json!({"schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json", "manifests": [entry]})
}

fn docker(config: &Blob, layers: &[Blob], name: Option<&str>) -> Value {
    let path = |blob: &Blob| format!("blobs/sha256/{}", blob.hex);
    let layers: Vec<String> = layers.iter().map(path).collect();
    json!([{"Config": path(config), "RepoTags": name.into_iter().collect::<Vec<_>>(), "Layers": layers}])
}
