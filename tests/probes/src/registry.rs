//! A registry that serves what it is told to, over plain HTTP, true or not.

use std::collections::HashMap;
use std::io::{self, BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use sha2::{Digest, Sha256};

/// What is sent for a path.
#[derive(Clone)]
pub enum Body {
    /// These bytes.
    Bytes(Arc<Vec<u8>>),
    /// Bytes, then a piece so many times, then more bytes.
    Repeated(Arc<Vec<u8>>, Arc<Vec<u8>>, u64, Arc<Vec<u8>>),
}

impl Body {
    /// These bytes.
    #[must_use]
    pub fn of(bytes: Vec<u8>) -> Self {
        Self::Bytes(Arc::new(bytes))
    }

    /// `head`, `piece` so many `times`, `end`.
    #[must_use]
    pub fn joined(head: &[u8], piece: Arc<Vec<u8>>, times: u64, end: Vec<u8>) -> Self {
        Self::Repeated(Arc::new(head.to_vec()), piece, times, Arc::new(end))
    }

    fn length(&self) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes.len() as u64,
            Self::Repeated(head, piece, times, end) => (head.len() + end.len()) as u64 + piece.len() as u64 * times,
        }
    }

    fn write(&self, mut out: impl Write) -> io::Result<()> {
        match self {
            Self::Bytes(bytes) => out.write_all(bytes),
            Self::Repeated(head, piece, times, end) => {
                out.write_all(head)?;
                (0..*times).try_for_each(|_| out.write_all(piece))?;
                out.write_all(end)
            }
        }
    }

    /// Its SHA-256, hex.
    #[must_use]
    pub fn digest(&self) -> String {
        let mut hasher = Hasher(Sha256::new());
        let _ = self.write(&mut hasher);
        hasher.0.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

struct Hasher(Sha256);

impl Write for Hasher {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.update(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// One layer: its archive, and what is sent for it.
#[derive(Clone)]
pub struct Layer {
    media_type: &'static str,
    body: Body,
    diff_id: String,
}

impl Layer {
    /// As it is.
    #[must_use]
    pub fn plain(body: Body) -> Self {
        let diff_id = body.digest();
        Self { media_type: "application/vnd.oci.image.layer.v1.tar", body, diff_id }
    }

    /// Compressed.
    #[must_use]
    pub fn gzip(body: &Body) -> Self {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        let _ = body.write(&mut encoder);
        let bytes = encoder.finish().unwrap_or_default();
        Self {
            media_type: "application/vnd.oci.image.layer.v1.tar+gzip",
            body: Body::of(bytes),
            diff_id: body.digest(),
        }
    }

    /// With another name for its archive than the digest that it has.
    #[must_use]
    pub fn misnamed(mut self) -> Self {
        self.diff_id = "0".repeat(64);
        self
    }
}

/// By path: whether it is given, and the body.
type Content = Arc<Mutex<HashMap<String, (bool, Body)>>>;

/// It listens until the process ends.
pub struct Registry {
    /// Where.
    pub address: SocketAddr,
    content: Content,
}

impl Registry {
    /// Start one.
    ///
    /// # Errors
    /// No port to listen on.
    pub fn start() -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        let content = Content::default();
        let shared = content.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let content = shared.clone();
                std::thread::spawn(move || serve(&stream, &content));
            }
        });
        Ok(Self { address, content })
    }

    /// The reference of the image of this name.
    #[must_use]
    pub fn reference(&self, name: &str) -> String {
        format!("{}/{name}:1", self.address)
    }

    /// Serve this at a path below `/v2/`.
    pub fn put(&self, path: &str, body: Body) {
        self.set(path, true, body);
    }

    /// Refuse it with this body.
    pub fn refuse(&self, path: &str, body: Body) {
        self.set(path, false, body);
    }

    fn set(&self, path: &str, given: bool, body: Body) {
        if let Ok(mut content) = self.content.lock() {
            content.insert(format!("/v2/{path}"), (given, body));
        }
    }

    /// Serve an image of these layers, bottom first, whose commands run as `user`.
    pub fn image(&self, name: &str, user: &str, layers: &[Layer]) {
        let architecture = if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" };
        let diff_ids: Vec<String> = layers.iter().map(|layer| format!("sha256:{}", layer.diff_id)).collect();
        let config = serde_json::json!({
            "os": "linux", "architecture": architecture, "config": {"User": user}, "rootfs": {"type": "layers", "diff_ids": diff_ids},
        });
        let config = Body::of(config.to_string().into_bytes());
        let descriptor = |media_type: &str, body: &Body| {
            let digest = format!("sha256:{}", body.digest());
            self.put(&format!("{name}/blobs/{digest}"), body.clone());
            serde_json::json!({"mediaType": media_type, "digest": digest, "size": body.length()})
        };
        let manifest = serde_json::json!({
            "schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": descriptor("application/vnd.oci.image.config.v1+json", &config),
            "layers": layers.iter().map(|layer| descriptor(layer.media_type, &layer.body)).collect::<Vec<_>>(),
        });
        self.put(&format!("{name}/manifests/1"), Body::of(manifest.to_string().into_bytes()));
    }
}

fn serve(stream: &TcpStream, content: &Content) {
    let mut reader = BufReader::new(stream);
    loop {
        let mut first = String::new();
        if reader.read_line(&mut first).unwrap_or(0) == 0 {
            return;
        }
        let mut line = first.clone();
        while !line.trim().is_empty() {
            line.clear();
            if reader.read_line(&mut line).unwrap_or(0) == 0 {
                return;
            }
        }
        if answer(stream, &first, content).is_err() {
            return;
        }
    }
}

fn answer(mut stream: &TcpStream, first: &str, content: &Content) -> io::Result<()> {
    let path = first.split(' ').nth(1).unwrap_or_default();
    let path = path.split('?').next().unwrap_or_default();
    let body = content.lock().ok().and_then(|content| content.get(path).cloned());
    let (found, body) = body.unwrap_or_else(|| (path == "/v2/", Body::of(Vec::new())));
    let kind = if path.contains("/manifests/") {
        "application/vnd.oci.image.manifest.v1+json"
    } else {
        "application/octet-stream"
    };
    let status = if found { "200 OK" } else { "404 Not Found" };
    let head = format!("HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n\r\n", body.length());
    stream.write_all(head.as_bytes())?;
    if first.starts_with("HEAD") { Ok(()) } else { body.write(io::BufWriter::with_capacity(1 << 16, stream)) }
}
