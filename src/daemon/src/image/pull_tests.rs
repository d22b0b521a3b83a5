//! Pulls from a registry that answers what a test tells it to, over a real socket.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use super::*;

/// By path: the announced length and the bytes that are sent.
type Content = HashMap<String, (u64, Vec<u8>)>;

/// Paths below `/v2/test/` and what is answered to them; and what was asked for.
#[derive(Clone, Default)]
struct Registry {
    content: Arc<Mutex<Content>>,
    asked: Arc<Mutex<Vec<String>>>,
    /// What has to be in a request for anything but the token that says so.
    wants: Arc<Mutex<Option<&'static str>>>,
}

impl Registry {
    fn put(&self, path: &str, body: &[u8]) {
        self.cut(path, body.len() as u64, body);
    }

    /// Announce `length` bytes, send `body` and close.
    fn cut(&self, path: &str, length: u64, body: &[u8]) {
        self.content.lock().unwrap().insert(path.to_owned(), (length, body.to_vec()));
    }

    fn asked(&self, what: &str) -> usize {
        self.asked.lock().unwrap().iter().filter(|path| path.contains(what)).count()
    }

    async fn serve(&self) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let registry = self.clone();
        let realm = format!("www-authenticate: Bearer realm=\"http://{address}/token\",service=\"x\"\r\n");
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let (registry, realm) = (registry.clone(), realm.clone());
                tokio::spawn(async move {
                    let mut request = vec![0; 16 * 1024];
                    let count = stream.read(&mut request).await.unwrap_or(0);
                    let text = String::from_utf8_lossy(&request[..count]).into_owned();
                    // Mirrors are told whose image it is, as `?ns=HOST`.
                    let target = text.split([' ', '?']).nth(1).unwrap_or_default();
                    let path = target.trim_start_matches("/v2/test/").to_owned();
                    registry.asked.lock().unwrap().push(path.clone());
                    let found = registry.content.lock().unwrap().get(&path).cloned();
                    let (mut status, length, body) =
                        found.map_or((404, 0, Vec::new()), |(length, body)| (200, length, body));
                    let mut more = "";
                    let wants = *registry.wants.lock().unwrap();
                    if path != "/token" && wants.is_some_and(|wants| !text.contains(wants)) {
                        (status, more) = (401, realm.as_str());
                    }
                    let head =
                        format!("HTTP/1.1 {status} X\r\n{more}content-length: {length}\r\nconnection: close\r\n\r\n");
                    let _ = stream.write_all(&[head.as_bytes(), &body].concat()).await;
                });
            }
        });
        address
    }

    /// An image of one layer under the tag `1`; the digest of the layer's blob.
    fn image(&self, layer: &[u8]) -> String {
        let arch = if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" };
        let diff_id = "d".repeat(64);
        let config = format!(
            r#"{{"os": "linux", "architecture": "{arch}", "config": {{"Env": ["A=1"], "User": "7"}}, "rootfs": {{"diff_ids": ["sha256:{diff_id}"]}}}}"#
        );
        let (config_hex, layer_hex) = (sha(config.as_bytes()), sha(layer));
        let manifest = format!(
            r#"{{"schemaVersion": 2,
                "config": {{"mediaType": "application/vnd.oci.image.config.v1+json", "digest": "sha256:{config_hex}", "size": {}}},
                "layers": [{{"mediaType": "application/vnd.oci.image.layer.v1.tar+gzip", "digest": "sha256:{layer_hex}", "size": {},
                    "urls": ["http://127.0.0.1:1/elsewhere"]}}]}}"#,
            config.len(),
            layer.len()
        );
        self.put("manifests/1", manifest.as_bytes());
        self.put(&format!("blobs/sha256:{config_hex}"), config.as_bytes());
        self.put(&format!("blobs/sha256:{layer_hex}"), layer);
        layer_hex
    }
}

fn sha(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

async fn pull(root: &Path, address: &str) -> Result<Fetched, PullError> {
    let store = Store::open(std::fs::File::open(root).unwrap().into()).unwrap();
    let settings = Settings { insecure_registries: vec![address.to_owned()], ..Settings::default() };
    fetch(&settings, &store, &format!("{address}/test:1").parse().unwrap()).await
}

fn blobs(root: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(root.join("blobs/sha256")).unwrap();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

#[tokio::test]
async fn an_image_arrives_once() {
    let (root, registry) = (tempfile::tempdir().unwrap(), Registry::default());
    let layer = registry.image(b"a layer");
    let address = registry.serve().await;
    let fetched = pull(root.path(), &address).await.unwrap();
    assert_eq!((fetched.config.user.as_str(), fetched.layers.len()), ("7", 1));
    assert_eq!((fetched.layers[0].blob.as_str(), fetched.layers[0].compression), (layer.as_str(), Compression::Gzip));
    assert_eq!(std::fs::read(root.path().join("blobs/sha256").join(&layer)).unwrap(), b"a layer");
    assert_eq!(blobs(root.path()).len(), 3);

    pull(root.path(), &address).await.unwrap();
    assert_eq!(registry.asked(&layer), 1, "what is here is not fetched again");
}

#[tokio::test]
async fn a_blob_that_is_not_what_was_announced_leaves_nothing() {
    let cases: [(&str, u64, &[u8]); 4] = [
        ("another digest", 7, b"A LAYER"),
        ("too long", 14, b"a layer and so"),
        ("too short", 5, b"a lay"),
        ("broken off", 7, b"a la"),
    ];
    for (what, length, body) in cases {
        let (root, registry) = (tempfile::tempdir().unwrap(), Registry::default());
        let layer = registry.image(b"a layer");
        registry.cut(&format!("blobs/sha256:{layer}"), length, body);
        let address = registry.serve().await;
        let error = pull(root.path(), &address).await.unwrap_err();
        assert!(error.to_string().contains(&layer), "{what}: {error}");
        assert_eq!(blobs(root.path()).len(), 2, "{what}: {:?}", blobs(root.path()));

        registry.image(b"a layer");
        pull(root.path(), &address).await.unwrap();
    }
}

#[tokio::test]
async fn a_manifest_must_have_the_digest_that_was_asked_for() {
    let (root, registry) = (tempfile::tempdir().unwrap(), Registry::default());
    registry.image(b"a layer");
    let digest = format!("sha256:{}", "e".repeat(64));
    let body = registry.content.lock().unwrap()["manifests/1"].1.clone();
    registry.put(&format!("manifests/{digest}"), &body);
    let address = registry.serve().await;
    let store = Store::open(std::fs::File::open(root.path()).unwrap().into()).unwrap();
    let settings = Settings { insecure_registries: vec![address.clone()], ..Settings::default() };
    let reference = format!("{address}/test@{digest}").parse().unwrap();
    assert!(fetch(&settings, &store, &reference).await.is_err());
    assert!(blobs(root.path()).is_empty());
}

#[tokio::test]
async fn mirrors_come_first_and_the_registry_is_the_last_resort() {
    let (root, mirror, origin) = (tempfile::tempdir().unwrap(), Registry::default(), Registry::default());
    let (mirror_address, address) = (mirror.serve().await, origin.serve().await);
    origin.image(b"from the origin");
    let store = Store::open(std::fs::File::open(root.path()).unwrap().into()).unwrap();
    let settings = Settings {
        registry: address.clone(),
        mirrors: vec![mirror_address.clone()],
        insecure_registries: vec![address.clone(), mirror_address],
        ..Settings::default()
    };
    let reference = format!("{address}/test:1").parse().unwrap();
    fetch(&settings, &store, &reference).await.unwrap();
    assert!(mirror.asked("manifests/1") > 0 && origin.asked("manifests/1") > 0);

    mirror.image(b"from the mirror");
    let before = origin.asked("manifests/1");
    let fetched = fetch(&settings, &store, &reference).await.unwrap();
    assert_eq!((fetched.layers[0].blob.clone(), origin.asked("manifests/1")), (sha(b"from the mirror"), before));
}

#[tokio::test]
async fn a_token_is_fetched_from_where_the_registry_says() {
    let (root, registry) = (tempfile::tempdir().unwrap(), Registry::default());
    registry.image(b"a layer");
    *registry.wants.lock().unwrap() = Some("authorization: Bearer open-sesame\r\n");
    let address = registry.serve().await;
    let error = pull(root.path(), &address).await.unwrap_err();
    assert!(error.to_string().contains("manifest"), "{error}");
    registry.put("/token", br#"{"token": "open-sesame"}"#);
    pull(root.path(), &address).await.unwrap();
    assert!(registry.asked("/token") >= 2);
}

#[tokio::test]
async fn of_what_a_registry_says_so_much_is_read_and_no_more() {
    let (root, registry) = (tempfile::tempdir().unwrap(), Registry::default());
    registry.image(b"a layer");
    registry.put("manifests/1", &vec![b' '; (MAX_DOCUMENT + 1) as usize]);
    let address = registry.serve().await;
    let error = pull(root.path(), &address).await.unwrap_err();
    let source = std::error::Error::source(&error).unwrap().to_string();
    assert!(source.contains("more than 4194304 bytes"), "{source}");
    assert!(blobs(root.path()).is_empty());
}
