//! Pulls from a registry that answers what a test tells it to, over a real socket.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use super::*;
use crate::image::machine::{BuildStep, MachineError, MachineFuture, StepEnd, Unpacked};
use std::io::Read;
use std::os::fd::OwnedFd;

/// Keeps what it is to unpack, and makes empty layers of it.
struct Unpacker {
    layers: PathBuf,
    blobs: Mutex<Vec<(Vec<u8>, Compression)>>,
    /// What is held until something is unpacked.
    holds: Mutex<Option<File>>,
}

impl Machine for Unpacker {
    fn unpack<'a>(&'a self, blob: OwnedFd, layer: &'a LayerId, how: Compression) -> MachineFuture<'a, Unpacked> {
        let mut bytes = Vec::new();
        drop(self.holds.lock().unwrap().take());
        File::from(blob).read_to_end(&mut bytes).unwrap();
        self.blobs.lock().unwrap().push((bytes, how));
        std::fs::create_dir_all(self.layers.join(layer.as_str())).unwrap();
        Box::pin(async { Ok(Unpacked::default()) })
    }

    fn pack<'a>(&'a self, _: &'a LayerId, _: OwnedFd) -> MachineFuture<'a, ()> {
        Box::pin(async { Err(MachineError::new("pack it", "not here")) })
    }

    fn bootstrap<'a>(&'a self, recipe: &'a str, _: OwnedFd) -> MachineFuture<'a, ()> {
        Box::pin(async move { Err(MachineError::new(recipe, "not here")) })
    }

    fn run_step(&self, _: BuildStep) -> MachineFuture<'_, StepEnd> {
        Box::pin(async { Ok(StepEnd::TimedOut) })
    }

    fn caches(&self, _: Option<u64>, _: bool) -> MachineFuture<'_, Vec<wire::launch::Cache>> {
        Box::pin(async { Ok(Vec::new()) })
    }

    fn remove_layer<'a>(&'a self, _: &'a LayerId) -> MachineFuture<'a, ()> {
        Box::pin(async { Ok(()) })
    }
}

/// By path: the announced length and the bytes that are sent.
type Content = HashMap<String, (u64, Vec<u8>)>;

/// A machine of a test's own: a store, who unpacks, how far it is.
struct Host {
    root: tempfile::TempDir,
    store: Store,
    machine: Unpacker,
    progress: Progress,
}

impl Host {
    fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        let store = Store::open(File::open(root.path()).unwrap().into()).unwrap();
        let machine = Unpacker { layers: root.path().join("layers"), blobs: Mutex::default(), holds: Mutex::default() };
        Self { root, store, machine, progress: Progress::default() }
    }

    async fn pull(&self, address: &str) -> Result<Fetched, PullError> {
        let settings = Settings { insecure_registries: vec![address.to_owned()], ..Settings::default() };
        self.pull_with(&settings, &format!("{address}/test:1")).await
    }

    async fn pull_with(&self, settings: &Settings, reference: &str) -> Result<Fetched, PullError> {
        let Self { store, machine, progress, .. } = self;
        fetch(Puller { settings, store, machine, progress, trusted: false }, &reference.parse().unwrap()).await
    }

    fn unpacked(&self) -> Vec<Vec<u8>> {
        self.machine.blobs.lock().unwrap().iter().map(|(bytes, _)| bytes.clone()).collect()
    }

    /// Nothing was kept that has a name.
    fn is_empty(&self) -> bool {
        let none =
            |name: &str| std::fs::read_dir(self.root.path().join(name)).is_ok_and(|mut all| all.next().is_none());
        none("blobs/sha256") && none("partial") && !self.root.path().join("layers").exists()
    }
}

/// How a test's registry misbehaves.
#[derive(Clone, Default)]
struct Manners {
    /// Blobs are cut off after so many bytes, each time.
    piece: Option<usize>,
    /// `Range` is not understood.
    whole: bool,
    /// Blobs are elsewhere.
    elsewhere: Option<String>,
    /// Answers to so many requests for blobs that nothing can be said now.
    busy: usize,
    /// Whoever asks for a rest is told that there is none.
    beyond: bool,
    /// After so many bytes of a blob nothing comes any more.
    stalls: Option<usize>,
    /// Requests for blobs of this length are answered when so many of them are there.
    together: Option<(u64, Arc<tokio::sync::Barrier>)>,
}

/// Paths below `/v2/test/` and what is answered to them; and what was asked for.
#[derive(Clone, Default)]
struct Registry {
    content: Arc<Mutex<Content>>,
    asked: Arc<Mutex<Vec<String>>>,
    /// What has to be in a request for anything but the token that says so.
    wants: Arc<Mutex<Option<&'static str>>>,
    manners: Arc<Mutex<Manners>>,
    /// The first lines of requests, and headers in lower case.
    heard: Arc<Mutex<Vec<String>>>,
    /// Where tokens are had, if not here.
    realm: Arc<Mutex<Option<String>>>,
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
        let own = format!("http://{address}/token");
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let (registry, own) = (registry.clone(), own.clone());
                tokio::spawn(async move {
                    let text = read_request(&mut stream).await;
                    registry.wait_for_others(&text).await;
                    let answer = registry.answer(&text, &own);
                    let stalls = registry.manners.lock().unwrap().stalls.filter(|most| *most < answer.len());
                    let _ = stream.write_all(&answer[..stalls.unwrap_or(answer.len())]).await;
                    if stalls.is_some() {
                        // Until whoever asked is gone.
                        let _ = stream.read(&mut [0]).await;
                    }
                });
            }
        });
        address
    }

    async fn wait_for_others(&self, text: &str) {
        let Some((length, barrier)) = self.manners.lock().unwrap().together.clone() else { return };
        let path = text.split([' ', '?']).nth(1).unwrap_or_default().trim_start_matches("/v2/test/");
        let is_one = self.content.lock().unwrap().get(path).is_some_and(|(known, _)| *known == length);
        if is_one {
            barrier.wait().await;
        }
    }

    fn answer(&self, text: &str, own: &str) -> Vec<u8> {
        // Mirrors are told whose image it is, as `?ns=HOST`.
        let target = text.split([' ', '?']).nth(1).unwrap_or_default();
        let path = target.trim_start_matches("/v2/test/").to_owned();
        self.asked.lock().unwrap().push(path.clone());
        self.heard.lock().unwrap().push(text.to_owned());
        let refuse = |status: u16, more: &str| {
            format!("HTTP/1.1 {status} X\r\n{more}content-length: 0\r\nconnection: close\r\n\r\n").into_bytes()
        };
        let wants = *self.wants.lock().unwrap();
        if !path.contains("token") && wants.is_some_and(|wants| !text.contains(wants)) {
            let realm = self.realm.lock().unwrap().clone().unwrap_or_else(|| own.to_owned());
            return refuse(401, &format!("www-authenticate: Bearer realm=\"{realm}\",service=\"x\"\r\n"));
        }
        let Some((length, body)) = self.content.lock().unwrap().get(&path).cloned() else { return refuse(404, "") };
        if !path.starts_with("blobs/") {
            return reply(200, "", length, &body);
        }
        let mut manners = self.manners.lock().unwrap();
        if manners.busy > 0 {
            manners.busy -= 1;
            return refuse(503, "");
        }
        if let Some(elsewhere) = &manners.elsewhere {
            return refuse(307, &format!("location: {elsewhere}\r\n"));
        }
        let from = text.split("range: bytes=").nth(1).and_then(|rest| rest.split('-').next()?.parse::<usize>().ok());
        if manners.beyond && from.is_some() {
            return refuse(416, "");
        }
        let from = from.filter(|_| !manners.whole);
        let rest = &body[from.unwrap_or(0).min(body.len())..];
        let piece = &rest[..manners.piece.unwrap_or(rest.len()).min(rest.len())];
        let length = length - (body.len() - rest.len()) as u64;
        match from {
            Some(from) => {
                reply(206, &format!("content-range: bytes {from}-{}/{}\r\n", body.len() - 1, body.len()), length, piece)
            }
            None => reply(200, "", length, piece),
        }
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

/// A request whole, however many pieces it comes in, in lower case.
async fn read_request(stream: &mut tokio::net::TcpStream) -> String {
    let (mut text, mut piece) = (String::new(), vec![0; 16 * 1024]);
    loop {
        let head = text.split_once("\r\n\r\n");
        let length = text.split("content-length: ").nth(1).and_then(|rest| rest.split('\r').next()?.parse().ok());
        if head.is_some_and(|(_, body)| body.len() >= length.unwrap_or(0)) {
            return text;
        }
        let Ok(count @ 1..) = stream.read(&mut piece).await else { return text };
        text.push_str(&String::from_utf8_lossy(&piece[..count]).to_lowercase());
    }
}

fn reply(status: u16, more: &str, length: u64, body: &[u8]) -> Vec<u8> {
    let head = format!("HTTP/1.1 {status} X\r\n{more}content-length: {length}\r\nconnection: close\r\n\r\n");
    [head.as_bytes(), body].concat()
}

fn sha(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

#[tokio::test]
async fn an_image_arrives_once() {
    let (host, registry) = (Host::new(), Registry::default());
    let layer = registry.image(b"a layer");
    let address = registry.serve().await;
    let fetched = host.pull(&address).await.unwrap();
    assert_eq!((fetched.config.user.as_str(), fetched.config.diff_ids.len()), ("7", 1));
    assert_eq!(*host.machine.blobs.lock().unwrap(), [(b"a layer".to_vec(), Compression::Gzip)]);
    let [(manifest, text), (_, config)] = &fetched.documents;
    assert!(*manifest == fetched.digest && sha(text) == *manifest && config.starts_with(b"{\"os\""));

    host.pull(&address).await.unwrap();
    assert_eq!(registry.asked(&layer), 1, "what is here is not fetched again");
    let seen = host.progress.read();
    assert_eq!((seen.layers, seen.layers_ready, seen.resumed), (1, 1, 0));
}

#[tokio::test]
async fn a_blob_that_is_not_what_was_announced_leaves_nothing() {
    let cases: [(&str, u64, &[u8]); 4] = [
        ("another digest", 7, b"A LAYER"),
        ("too long", 14, b"a layer and so"),
        ("too short", 5, b"a lay"),
        ("nothing at all", 7, b""),
    ];
    for (what, length, body) in cases {
        let (host, registry) = (Host::new(), Registry::default());
        let layer = registry.image(b"a layer");
        registry.cut(&format!("blobs/sha256:{layer}"), length, body);
        let address = registry.serve().await;
        let error = host.pull(&address).await.unwrap_err();
        assert!(error.to_string().contains(&layer), "{what}: {error}");
        assert!(host.is_empty() && host.unpacked().is_empty(), "{what}");

        registry.image(b"a layer");
        host.pull(&address).await.unwrap();
    }
}

#[tokio::test]
async fn what_breaks_off_goes_on_from_there() {
    let layer: Vec<u8> = (0..100_000_u32).flat_map(u32::to_le_bytes).collect();
    let (host, registry) = (Host::new(), Registry::default());
    let digest = registry.image(&layer);
    *registry.manners.lock().unwrap() = Manners { piece: Some(90_000), busy: 1, ..Manners::default() };
    let address = registry.serve().await;
    host.pull(&address).await.unwrap();
    assert_eq!(host.unpacked(), [layer]);
    // 400,000 bytes in pieces of 90,000; the configuration is a blob as well, and met the registry busy.
    assert_eq!((registry.asked(&digest), host.progress.read().resumed), (5, 5));
    let heard = registry.heard.lock().unwrap();
    assert!(heard.iter().any(|text| text.contains("range: bytes=270000-")), "{heard:?}");
}

#[tokio::test]
async fn one_that_cannot_go_on_begins_again_a_few_times() {
    let (host, registry) = (Host::new(), Registry::default());
    let digest = registry.image(&[7; 50_000]);
    *registry.manners.lock().unwrap() = Manners { piece: Some(40_000), whole: true, ..Manners::default() };
    let address = registry.serve().await;
    let error = host.pull(&address).await.unwrap_err().to_string();
    assert!(error.contains("broke off after 40000 of 50000 bytes"), "{error}");
    assert_eq!(registry.asked(&digest), 1 + usize::try_from(MAX_FAILURES).unwrap());
    assert!(host.is_empty());
}

#[tokio::test]
async fn layers_are_fetched_side_by_side() {
    let (host, registry) = (Host::new(), Registry::default());
    let arch = if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" };
    let ids: Vec<String> = (1..=PARALLEL).map(|n| format!("\"sha256:{}\"", n.to_string().repeat(64))).collect();
    let config =
        format!(r#"{{"os": "linux", "architecture": "{arch}", "rootfs": {{"diff_ids": [{}]}}}}"#, ids.join(","));
    let layers: Vec<String> = (1..=PARALLEL)
        .map(|n| {
            let bytes = vec![u8::try_from(n).unwrap(); 5000];
            registry.put(&format!("blobs/sha256:{}", sha(&bytes)), &bytes);
            format!(
                r#"{{"mediaType": "application/vnd.oci.image.layer.v1.tar", "digest": "sha256:{}", "size": 5000}}"#,
                sha(&bytes)
            )
        })
        .collect();
    let manifest = format!(
        r#"{{"schemaVersion": 2, "layers": [{}], "config": {{"mediaType": "application/vnd.oci.image.config.v1+json",
            "digest": "sha256:{}", "size": {}}}}}"#,
        layers.join(","),
        sha(config.as_bytes()),
        config.len()
    );
    registry.put("manifests/1", manifest.as_bytes());
    registry.put(&format!("blobs/sha256:{}", sha(config.as_bytes())), config.as_bytes());
    // Each is answered only when all are asked for.
    registry.manners.lock().unwrap().together = Some((5000, Arc::new(tokio::sync::Barrier::new(PARALLEL))));
    let address = registry.serve().await;
    tokio::time::timeout(std::time::Duration::from_secs(60), host.pull(&address)).await.expect("all at once").unwrap();
    assert_eq!(host.unpacked().len(), PARALLEL);
}

#[tokio::test]
async fn a_manifest_must_have_the_digest_that_was_asked_for() {
    let (host, registry) = (Host::new(), Registry::default());
    registry.image(b"a layer");
    let digest = format!("sha256:{}", "e".repeat(64));
    let body = registry.content.lock().unwrap()["manifests/1"].1.clone();
    registry.put(&format!("manifests/{digest}"), &body);
    let address = registry.serve().await;
    let settings = Settings { insecure_registries: vec![address.clone()], ..Settings::default() };
    assert!(host.pull_with(&settings, &format!("{address}/test@{digest}")).await.is_err());
    assert!(host.is_empty());
}

#[tokio::test]
async fn mirrors_come_first_and_the_registry_is_the_last_resort() {
    let (host, mirror, origin) = (Host::new(), Registry::default(), Registry::default());
    let (mirror_address, address) = (mirror.serve().await, origin.serve().await);
    origin.image(b"from the origin");
    let settings = Settings {
        registry: address.clone(),
        mirrors: vec![mirror_address.clone()],
        insecure_registries: vec![address.clone(), mirror_address],
        ..Settings::default()
    };
    let reference = format!("{address}/test:1");
    host.pull_with(&settings, &reference).await.unwrap();
    assert!(mirror.asked("manifests/1") > 0 && origin.asked("manifests/1") > 0);
    assert!(mirror.heard.lock().unwrap()[0].contains(&format!("?ns={}", address.replace(':', "%3a"))));

    mirror.image(b"from the mirror");
    let (before, other) = (origin.asked("manifests/1"), Host::new());
    other.pull_with(&settings, &reference).await.unwrap();
    assert_eq!((other.unpacked(), origin.asked("manifests/1")), (vec![b"from the mirror".to_vec()], before));
}

#[tokio::test]
async fn a_token_is_fetched_from_where_the_registry_says() {
    let (host, registry) = (Host::new(), Registry::default());
    registry.image(b"a layer");
    *registry.wants.lock().unwrap() = Some("authorization: bearer open-sesame\r\n");
    let address = registry.serve().await;
    let error = host.pull(&address).await.unwrap_err();
    assert!(error.to_string().contains("manifest"), "{error}");
    registry.put("/token", br#"{"token": "open-sesame"}"#);
    host.pull(&address).await.unwrap();
    assert!(registry.asked("/token") >= 2);
}

#[tokio::test]
async fn an_identity_token_is_given_for_a_token_and_to_whom_a_password_would_be() {
    let registry = Registry::default();
    registry.image(b"a layer");
    *registry.wants.lock().unwrap() = Some("authorization: bearer open-sesame\r\n");
    registry.put("/token", br#"{"access_token": "open-sesame", "expires_in": 300}"#);
    let address = registry.serve().await;
    let auth = tempfile::NamedTempFile::new().unwrap();
    let text = format!(r#"{{"auths": {{"{address}": {{"auth": "PHRva2VuPjo=", "identitytoken": "re fresh&1"}}}}}}"#);
    std::fs::write(auth.path(), text).unwrap();
    let settings = Settings {
        insecure_registries: vec![address.clone()],
        auth_file: Some(auth.path().to_owned()),
        ..Settings::default()
    };
    let reference = format!("{address}/test:1");
    Host::new().pull_with(&settings, &reference).await.unwrap();
    let heard = registry.heard.lock().unwrap().clone();
    let posted: Vec<&String> = heard.iter().filter(|text| text.starts_with("post /token http")).collect();
    let form = "scope=repository%3atest%3apull&service=x&grant_type=refresh_token&client_id=sandboxd&refresh_token=re+fresh%261";
    assert!(posted.len() == 1 && posted[0].ends_with(form), "{posted:?}");
    assert!(!heard.iter().any(|text| text.starts_with("get /token") || text.contains("authorization: basic")));

    *registry.realm.lock().unwrap() = Some("https://tokens.example.net/token".to_owned());
    let error = chain(&Host::new().pull_with(&settings, &reference).await.unwrap_err());
    assert!(error.contains("password sent to tokens.example.net"), "{error}");
}

#[tokio::test]
async fn nobody_is_led_to_where_the_operator_did_not_allow() {
    // The other is a service of this host that nobody named: it must not be spoken to at all.
    let (registry, inside) = (Registry::default(), Registry::default());
    let digest = registry.image(b"a layer");
    let (address, other) = (registry.serve().await, inside.serve().await);
    let port = other.rsplit(':').next().unwrap();
    for target in [
        format!("http://{other}/blob"),
        format!("https://{other}/blob"),
        format!("https://localhost:{port}/blob"),
        format!("https://0x7f000001:{port}/blob"),
        format!("https://[::ffff:7f00:1]:{port}/blob"),
        "http://169.254.169.254/latest/meta-data".to_owned(),
        "https://[fd00:ec2::254]/latest".to_owned(),
        "file:///etc/passwd".to_owned(),
    ] {
        registry.manners.lock().unwrap().elsewhere = Some(target.clone());
        let host = Host::new();
        let error = host.pull(&address).await.unwrap_err();
        let chain = chain(&error);
        assert!(chain.contains("leads away") || chain.contains("no setting names it"), "{target}: {chain}");
        assert!(host.is_empty() && inside.heard.lock().unwrap().is_empty(), "{target}");
    }
    // What he names is gone to.
    inside.put("/blob", b"a layer");
    let config = registry
        .content
        .lock()
        .unwrap()
        .iter()
        .find(|(path, _)| path.starts_with("blobs/") && !path.contains(&digest))
        .unwrap()
        .1
        .1
        .clone();
    registry.manners.lock().unwrap().elsewhere = Some(format!("http://{other}/blob"));
    inside.put("/blob", &config);
    let settings = Settings { insecure_registries: vec![address.clone(), other], ..Settings::default() };
    let error = Host::new().pull_with(&settings, &format!("{address}/test:1")).await.unwrap_err();
    assert!(error.to_string().contains(&digest), "the layer is not what is there: {error}");
    assert_eq!(inside.asked("/blob"), 2, "the configuration, and in vain the layer");
}

fn chain(error: &dyn std::error::Error) -> String {
    error.source().map_or_else(|| error.to_string(), |source| format!("{error}: {}", chain(source)))
}

#[tokio::test]
async fn what_logs_in_at_a_registry_is_for_it_alone() {
    let (registry, other) = (Registry::default(), Registry::default());
    registry.image(b"a layer");
    let (address, elsewhere) = (registry.serve().await, other.serve().await);
    let auth = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(auth.path(), format!(r#"{{"auths": {{"{address}": {{"username": "me", "password": "s3cret"}}}}}}"#))
        .unwrap();
    let settings = Settings {
        insecure_registries: vec![address.clone(), elsewhere.clone()],
        auth_file: Some(auth.path().to_owned()),
        ..Settings::default()
    };
    let reference = format!("{address}/test:1");
    *registry.wants.lock().unwrap() = Some("authorization: bearer open-sesame\r\n");
    registry.put("/token", br#"{"token": "open-sesame"}"#);
    registry.manners.lock().unwrap().elsewhere = Some(format!("http://{elsewhere}/blob"));
    other.put("/blob", b"x");
    assert!(Host::new().pull_with(&settings, &reference).await.is_err());
    let sent = |registry: &Registry| {
        registry.heard.lock().unwrap().iter().filter(|text| text.contains("authorization:")).count()
    };
    assert!(registry.asked("/token") == 1 && sent(&registry) >= 2 && other.asked("/blob") >= 1);
    assert_eq!(sent(&other), 0, "{:?}", other.heard.lock().unwrap());

    // A stranger as the service of tokens gets no password; nor is a registry without one asked for it.
    let settings = Settings { insecure_registries: vec![address.clone()], ..settings };
    for realm in
        ["https://tokens.example.net/token", "http://169.254.169.254/token", &format!("http://{elsewhere}/token")]
    {
        *registry.realm.lock().unwrap() = Some(realm.to_owned());
        let error = chain(&Host::new().pull_with(&settings, &reference).await.unwrap_err());
        assert!(error.contains("password sent to tokens.example.net") || error.contains("leads away"), "{error}");
    }
    assert_eq!(other.asked("/token"), 0);
}

#[tokio::test]
async fn of_what_a_registry_says_so_much_is_read_and_no_more() {
    let (host, registry) = (Host::new(), Registry::default());
    registry.image(b"a layer");
    registry.put("manifests/1", &vec![b' '; (MAX_DOCUMENT + 1) as usize]);
    let address = registry.serve().await;
    let error = chain(&host.pull(&address).await.unwrap_err());
    assert!(error.contains("more than 4194304 bytes"), "{error}");
    assert!(host.is_empty());
}

#[path = "pull_parts_tests.rs"]
mod parts;
