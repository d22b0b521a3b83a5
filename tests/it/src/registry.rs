//! Images that others made: a registry of Debian's on loopback, layouts by `umoci` from busybox, and a proxy between
//! service and registry that breaks off, lies or holds back.
//!
//! Each has a directory and a port of its own, and ends with the test: by [`Drop`], or with the process.

use std::fs;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::daemon::wait_for;
use crate::token_service::TokenService;

/// The password of [`Registry::closed`], and the line of its htpasswd: bcrypt of it.
pub const USER: (&str, &str) = ("tester", "s3cret");
const HTPASSWD: &str = "tester:$2b$05$abcdefghijklmnopqrstuuLK7U1u6pVRmL7L1BBM2aS35PSZnDXlK\n";
/// Ends the registry when standard input does.
const KEEPER: &str = r#"docker-registry serve "$1" >"$2" 2>&1 & child=$!; read -r _; kill "$child"; wait "$child""#;

/// A directory that is removed with all that is in it.
#[derive(Debug)]
pub struct Directory(pub PathBuf);

impl Directory {
    /// A new one that other users may enter.
    #[must_use]
    pub fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let name = format!("sandboxd-it-images-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        fs::create_dir(&path).unwrap();
        Self(path)
    }

    /// What of this name is in it.
    #[must_use]
    pub fn join(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Default for Directory {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Whether one of these programs, each of Debian's package of that name, is missing here; then it is said that the test is
/// skipped.
#[must_use]
pub fn is_missing(programs: &[&str]) -> bool {
    let places = std::env::var_os("PATH").unwrap_or_default();
    let there = |program: &&&str| std::env::split_paths(&places).any(|place| place.join(program).is_file());
    let missing: Vec<&str> = programs.iter().filter(|program| !there(program)).copied().collect();
    if !missing.is_empty() {
        crate::skipped(&format!("{} not installed; tests/prepare test installs it", missing.join(", ")));
    }
    !missing.is_empty()
}

/// What container tools keep outside of the directories that they are told (locks, caches of blobs), they keep in memory
/// that ends with them.
const APART: &str = r#"for place in /dev/shm /run /var/lib; do mount -t tmpfs apart "$place"; done; exec "$@""#;

/// Run a program to its end; what it prints.
#[track_caller]
pub fn tool(argv: &[&str]) -> String {
    let mut command = Command::new("unshare");
    let output = command.args(["--mount", "sh", "-ec", APART, "sh"]).args(argv).stdin(Stdio::null()).output();
    let output = output.unwrap_or_else(|e| panic!("{}: {e}; tests/prepare test installs it", argv[0]));
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{argv:?}: {}{}", text(&output.stdout), text(&output.stderr));
    text(&output.stdout)
}

/// A registry.
#[derive(Debug)]
pub struct Registry {
    keeper: Child,
    directory: Directory,
    /// `127.0.0.1:PORT`.
    pub address: String,
    kind: Kind,
}

/// Whom a registry lets in.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Kind {
    Open,
    Closed,
    /// By tokens of the service at this address, believed by this certificate.
    Tokens(String, PathBuf),
}

impl Registry {
    /// One without TLS that lets everybody in.
    #[must_use]
    pub fn open() -> Self {
        Self::start(Kind::Open)
    }

    /// One with TLS by an authority of its own that wants [`USER`].
    #[must_use]
    pub fn closed() -> Self {
        Self::start(Kind::Closed)
    }

    /// One without TLS that wants a token of this service.
    #[must_use]
    pub fn with_tokens(service: &TokenService) -> Self {
        Self::start(Kind::Tokens(service.address.clone(), service.certificate()))
    }

    fn start(kind: Kind) -> Self {
        let directory = Directory::new();
        if kind == Kind::Closed {
            certify(&directory);
        }
        // Between finding a free port and taking it another may take it.
        for _ in 0..5 {
            let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
            fs::write(directory.join("config.yml"), config(&directory, &address, &kind)).unwrap();
            let (config, log) = (directory.join("config.yml"), directory.join("log"));
            let mut command = Command::new("sh");
            command.args(["-c", KEEPER, "keeper"]).arg(config).arg(&log).stdin(Stdio::piped()).stdout(Stdio::null());
            command.stderr(Stdio::null());
            let mut keeper = command.spawn().unwrap();
            let up = || fs::read_to_string(&log).is_ok_and(|text| text.contains("listening on")).then_some(());
            if wait_for(Duration::from_secs(20), up).is_some() {
                return Self { keeper, directory, address, kind };
            }
            drop(keeper.stdin.take());
            let _ = keeper.wait();
        }
        panic!("docker-registry: {}", fs::read_to_string(directory.join("log")).unwrap_or_default());
    }

    /// The certificate of its authority.
    #[must_use]
    pub fn authority(&self) -> PathBuf {
        self.directory.join("ca.pem")
    }

    /// A file of credentials for it, in docker's format.
    #[must_use]
    pub fn credentials(&self) -> PathBuf {
        let path = self.directory.join("auth.json");
        let text =
            format!(r#"{{"auths": {{"{}": {{"username": "{}", "password": "{}"}}}}}}"#, self.address, USER.0, USER.1);
        fs::write(&path, text).unwrap();
        path
    }

    /// Copy an image into it with `skopeo`: `source` as that writes it, further arguments, the name here.
    #[track_caller]
    pub fn push(&self, source: &str, more: &[&str], name: &str) {
        let target = format!("docker://{}/{name}", self.address);
        let login = format!("{}:{}", USER.0, USER.1);
        let mut argv = vec!["skopeo", "copy", "--quiet", "--dest-tls-verify=false"];
        if self.kind != Kind::Open {
            argv.extend(["--dest-creds", login.as_str()]);
        }
        argv.extend(more);
        argv.extend([source, target.as_str()]);
        tool(&argv);
    }

    /// Put a manifest, as it is, under a tag.
    #[track_caller]
    pub fn put(&self, repository: &str, tag: &str, media_type: &str, manifest: &str) {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        let head = format!(
            "PUT /v2/{repository}/manifests/{tag} HTTP/1.1\r\nHost: {}\r\nContent-Type: {media_type}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
            self.address,
            manifest.len()
        );
        stream.write_all(head.as_bytes()).unwrap();
        stream.write_all(manifest.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 201"), "{answer}");
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        drop(self.keeper.stdin.take());
        let _ = self.keeper.wait();
    }
}

fn config(directory: &Directory, address: &str, kind: &Kind) -> String {
    let mut text = format!(
        "version: 0.1\nlog:\n  level: info\nstorage:\n  filesystem:\n    rootdirectory: {}\nhttp:\n  addr: {address}\n",
        directory.join("data").display()
    );
    match kind {
        Kind::Open => {}
        Kind::Closed => {
            fs::write(directory.join("htpasswd"), HTPASSWD).unwrap();
            let path = |name: &str| directory.join(name).display().to_string();
            text.push_str(&format!("  tls:\n    certificate: {}\n    key: {}\n", path("cert.pem"), path("key.pem")));
            text.push_str(&format!("auth:\n  htpasswd:\n    realm: tests\n    path: {}\n", path("htpasswd")));
        }
        Kind::Tokens(service, certificate) => text.push_str(&format!(
            "auth:\n  token:\n    realm: http://{service}/token\n    service: it\n    issuer: it\n    rootcertbundle: {}\n",
            certificate.display()
        )),
    }
    text
}

/// An authority, and a certificate of it for 127.0.0.1.
fn certify(directory: &Directory) {
    let path = |name: &str| directory.join(name).display().to_string();
    let new =
        ["openssl", "req", "-new", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-batch"];
    let with = |more: &[&str]| tool(&[&new[..], more].concat());
    let (ca, ca_key, key) = (path("ca.pem"), path("ca.key"), path("key.pem"));
    with(&["-x509", "-days", "2", "-subj", "/CN=tests", "-keyout", &ca_key, "-out", &ca]);
    with(&["-subj", "/CN=127.0.0.1", "-keyout", &key, "-out", &path("request.pem")]);
    fs::write(directory.join("names"), "subjectAltName=IP:127.0.0.1\nbasicConstraints=CA:FALSE\n").unwrap();
    tool(&[
        "openssl",
        "x509",
        "-req",
        "-days",
        "2",
        "-in",
        &path("request.pem"),
        "-CA",
        &ca,
        "-CAkey",
        &ca_key,
        "-CAcreateserial",
        "-extfile",
        &path("names"),
        "-out",
        &path("cert.pem"),
    ]);
}

/// An OCI layout by `umoci`, whose image `it` is busybox with its shell and two layers more: `/marker` says `second`, as
/// the second left it, `/gone` was deleted, `/payload` has so many random bytes. Its commands run as user 1000.
#[must_use]
pub fn busybox(directory: &Directory, payload: usize) -> PathBuf {
    let (root, layout) = (directory.join("root"), directory.join("layout"));
    for name in ["bin", "etc", "tmp", "dev", "proc", "sys", "home"] {
        fs::create_dir_all(root.join(name)).unwrap();
    }
    fs::copy("/bin/busybox", root.join("bin/busybox")).unwrap();
    for name in ["sh", "cat", "ls", "id", "sha256sum", "true", "sleep", "stat"] {
        symlink("busybox", root.join("bin").join(name)).unwrap();
    }
    fs::write(root.join("etc/passwd"), "root:x:0:0::/:/bin/sh\nuser:x:1000:1000::/home:/bin/sh\n").unwrap();
    fs::write(root.join("marker"), "first\n").unwrap();
    fs::write(root.join("gone"), "still here\n").unwrap();
    let mut random = vec![0; payload];
    fs::File::open("/dev/urandom").unwrap().read_exact(&mut random).unwrap();
    fs::write(directory.join("payload"), random).unwrap();
    fs::write(directory.join("marker"), "second\n").unwrap();
    let image = format!("{}:it", layout.display());
    let path = |name: &str| directory.join(name).display().to_string();
    tool(&["umoci", "init", "--layout", &layout.display().to_string()]);
    tool(&["umoci", "new", "--image", &image]);
    tool(&["umoci", "insert", "--image", &image, &path("root"), "/"]);
    tool(&["umoci", "insert", "--image", &image, &path("payload"), "/payload"]);
    tool(&["umoci", "insert", "--image", &image, &path("marker"), "/marker"]);
    tool(&["umoci", "insert", "--image", &image, "--whiteout", "/gone"]);
    tool(&["umoci", "config", "--image", &image, "--config.user", "1000", "--config.env", "GREETING=hello"]);
    layout
}

/// What [`Proxy`] does to answers about blobs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mischief {
    /// Break off after so many bytes of each.
    BreakOff(usize),
    /// Break off, and never give more, when so many bytes of blobs have gone through in all.
    RunDry(usize),
    /// Likewise, but keep the connection and say nothing.
    Stall(usize),
    /// Change one byte in those of more than 10,000 bytes.
    Lie,
    /// Give no more than so many bytes of each, until it is told to do something else.
    Hold(usize),
    /// None.
    None,
}

/// Stands before a registry.
#[derive(Debug)]
pub struct Proxy {
    /// `127.0.0.1:PORT`.
    pub address: String,
    mischief: Arc<Mutex<Mischief>>,
    resumed: Arc<AtomicUsize>,
    bytes: Arc<AtomicUsize>,
}

/// What the connections of a proxy share.
#[derive(Clone)]
struct Shared {
    target: String,
    mischief: Arc<Mutex<Mischief>>,
    resumed: Arc<AtomicUsize>,
    bytes: Arc<AtomicUsize>,
}

impl Proxy {
    /// Before `registry`, one without TLS.
    #[must_use]
    pub fn before(registry: &Registry, mischief: Mischief) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let proxy =
            Self { address, mischief: Arc::new(Mutex::new(mischief)), resumed: Arc::default(), bytes: Arc::default() };
        let shared = Shared {
            target: registry.address.clone(),
            mischief: proxy.mischief.clone(),
            resumed: proxy.resumed.clone(),
            bytes: proxy.bytes.clone(),
        };
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let shared = shared.clone();
                std::thread::spawn(move || drop(pass(client, &shared)));
            }
        });
        proxy
    }

    /// From now on.
    pub fn set(&self, mischief: Mischief) {
        *self.mischief.lock().unwrap() = mischief;
    }

    /// Requests that asked for the rest of something.
    #[must_use]
    pub fn resumed(&self) -> usize {
        self.resumed.load(Ordering::SeqCst)
    }

    /// Bytes that went through.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes.load(Ordering::SeqCst)
    }
}

/// One request and its answer.
fn pass(mut client: TcpStream, shared: &Shared) -> std::io::Result<()> {
    let Shared { target, mischief, resumed, bytes } = shared;
    let now = || *mischief.lock().unwrap();
    let mischief = now();
    let head = head_of(&mut client)?;
    if head.to_lowercase().contains("\r\nrange: bytes=") {
        resumed.fetch_add(1, Ordering::SeqCst);
    }
    let mut upstream = TcpStream::connect(target)?;
    upstream.write_all(head.replacen("\r\n", "\r\nConnection: close\r\n", 1).as_bytes())?;
    let answer = head_of(&mut upstream)?;
    client.write_all(answer.as_bytes())?;
    let is_blob = head.contains("/blobs/");
    let (mut buffer, mut passed) = (vec![0; 64 * 1024], 0);
    loop {
        while is_blob && matches!(now(), Mischief::Hold(at) if passed >= at) {
            std::thread::sleep(Duration::from_millis(10));
        }
        let mut count = upstream.read(&mut buffer)?;
        if count == 0 {
            return Ok(());
        }
        match mischief {
            Mischief::BreakOff(after) if is_blob => count = count.min(after - passed),
            Mischief::RunDry(after) if is_blob && bytes.load(Ordering::SeqCst) >= after => {
                return client.shutdown(Shutdown::Both);
            }
            Mischief::Stall(after) if is_blob && bytes.load(Ordering::SeqCst) >= after => {
                while now() == mischief {
                    std::thread::sleep(Duration::from_millis(20));
                }
                return client.shutdown(Shutdown::Both);
            }
            Mischief::Lie if is_blob && passed <= 10_000 && passed + count > 10_000 => buffer[10_000 - passed] ^= 1,
            Mischief::BreakOff(_)
            | Mischief::RunDry(_)
            | Mischief::Stall(_)
            | Mischief::Lie
            | Mischief::Hold(_)
            | Mischief::None => {}
        }
        client.write_all(&buffer[..count])?;
        passed += count;
        bytes.fetch_add(count, Ordering::SeqCst);
        if mischief == Mischief::BreakOff(passed) && is_blob {
            return client.shutdown(Shutdown::Both);
        }
    }
}

fn head_of(stream: &mut TcpStream) -> std::io::Result<String> {
    let (mut head, mut byte) = (Vec::new(), [0]);
    while !head.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte)?;
        head.push(byte[0]);
    }
    Ok(String::from_utf8_lossy(&head).into_owned())
}

/// Whether there is nothing in an image store: no layer, no record, no blob, nothing staged.
#[must_use]
pub fn is_empty(images: &Path) -> bool {
    ["layers", "frames", "refs", "blobs/sha256", "partial"]
        .iter()
        .all(|name| fs::read_dir(images.join(name)).is_ok_and(|mut all| all.next().is_none()))
}
