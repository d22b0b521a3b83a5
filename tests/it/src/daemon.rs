//! An instance of `sandboxd dev`: the real binaries on a throw-away state directory.
//!
//! Each instance is the child of a small shell that ends it, and removes its directory, as soon as
//! the shell's standard input is closed: when the [`Daemon`] is dropped, and also when the test process ends without
//! dropping anything.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::http::{Client, Endpoint};
use crate::session::Session;

/// How long an instance may take to be ready. It answers before its images are built.
const START: Duration = Duration::from_secs(60);
/// Ends the instance when standard input closes, or when the keeper itself is told to end.
const KEEPER: &str = r#"
directory=$1 pidfile=$2 log=$3 remove=$4; shift 4
trap : TERM INT HUP
"$@" </dev/null 2>>"$log" & child=$!
exec >&- 2>&-
echo "$child" >"$pidfile.part" && mv "$pidfile.part" "$pidfile"
read -r _
trap '' TERM INT HUP
kill -TERM "$child"
wait "$child"; code=$?
rm -f "$pidfile" "$log"
if [ "$remove" = remove ]; then rm -rf "$directory"; fi
exit "$code"
"#;

/// The repository, or where `IT_REPOSITORY` says that what is needed of it is.
#[must_use]
pub fn repository() -> PathBuf {
    if let Some(directory) = std::env::var_os("IT_REPOSITORY") {
        return directory.into();
    }
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.join("../..").canonicalize().unwrap()
}

/// Where cargo puts what it builds.
#[must_use]
pub fn target() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| repository().join("target"), PathBuf::from)
}

/// One of the programs under test: from the directory that `IT_PROGRAMS` names, else as `make build` leaves them.
#[must_use]
pub fn binary(name: &str) -> PathBuf {
    let programs = std::env::var_os("IT_PROGRAMS").map_or_else(|| target().join("release"), PathBuf::from);
    let path = programs.join(name);
    assert!(path.exists(), "{} is missing: run `make build` first", path.display());
    path
}

/// The instance that most tests share: room for many sessions, otherwise as it comes.
pub fn shared() -> &'static Daemon {
    static SHARED: OnceLock<Daemon> = OnceLock::new();
    SHARED.get_or_init(|| Options::new().env("SANDBOXD_MAX_SESSIONS", "200").start())
}

/// How to start an instance.
#[derive(Debug, Clone)]
pub struct Options {
    environment: Vec<(String, String)>,
    state: Option<PathBuf>,
    catalog: PathBuf,
    images: PathBuf,
    network: Option<PathBuf>,
}

/// An instance that did not start.
#[derive(Debug)]
pub struct Failure {
    /// Its exit code.
    pub code: Option<i32>,
    /// What it said on standard error.
    pub said: String,
}

/// A running instance.
#[derive(Debug)]
pub struct Daemon {
    /// A client with the service token, over TCP where that reaches it.
    pub client: Client,
    /// The unix socket of the API.
    pub socket: PathBuf,
    /// Its state directory.
    pub state: PathBuf,
    /// Process id of `sandboxd dev`.
    pub pid: u32,
    keeper: Child,
}

/// A state directory that outlives an instance; removed when it goes out of scope.
#[derive(Debug)]
pub struct StateDir(pub PathBuf);

impl StateDir {
    /// A new one that other users may enter.
    #[must_use]
    pub fn new() -> Self {
        Self(fresh_directory())
    }
}

impl Default for StateDir {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for StateDir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

impl Default for Options {
    fn default() -> Self {
        Self::new()
    }
}

impl Options {
    /// As the tests want it: their catalogue, their images.
    #[must_use]
    pub fn new() -> Self {
        let (catalog, images) = (repository().join("catalog/test.json"), target().join("images"));
        Self { environment: Vec::new(), state: None, catalog, images, network: None }
    }

    /// With this variable in its environment.
    #[must_use]
    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.environment.push((name.to_owned(), value.to_owned()));
        self
    }

    /// On this state directory.
    #[must_use]
    pub fn state(mut self, state: &StateDir) -> Self {
        self.state = Some(state.0.clone());
        self
    }

    /// With this catalogue.
    #[must_use]
    pub fn catalog(mut self, file: &Path) -> Self {
        file.clone_into(&mut self.catalog);
        self
    }

    /// With an image store of its own, for images that nobody else is to see.
    #[must_use]
    pub fn images(mut self, directory: &Path) -> Self {
        directory.clone_into(&mut self.images);
        self
    }

    /// In this network namespace, where only its unix socket reaches it.
    #[must_use]
    pub fn network(mut self, namespace: &Path) -> Self {
        self.network = Some(namespace.to_owned());
        self
    }

    /// Start it and wait until it is ready.
    #[must_use]
    #[track_caller]
    pub fn start(self) -> Daemon {
        self.try_start()
            .unwrap_or_else(|failure| panic!("sandboxd dev ended with {:?}:\n{}", failure.code, failure.said))
    }

    /// Start it; an `Err` if it ends before it is ready.
    ///
    /// # Errors
    /// [`Failure`].
    pub fn try_start(self) -> Result<Daemon, Failure> {
        let remove = if self.state.is_some() { "keep" } else { "remove" };
        let state = self.state.unwrap_or_else(fresh_directory);
        let beside = |suffix: &str| PathBuf::from(format!("{}.{suffix}", state.display()));
        let number = next();
        let (pid_file, log) = (beside(&format!("pid{number}")), beside(&format!("log{number}")));
        let mut command = Command::new("sh");
        command.args(["-c", KEEPER, "keeper"]).args([&state, &pid_file, &log]).arg(remove);
        if let Some(namespace) = &self.network {
            command.arg("nsenter").arg(format!("--net={}", namespace.display()));
        }
        command.arg(binary("sandboxd")).arg("dev").arg("--state").arg(&state).args(["--listen", "127.0.0.1:0"]);
        command.arg("--catalog").arg(&self.catalog).arg("--images").arg(&self.images);
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("SANDBOXD_")) {
            command.env_remove(name);
        }
        command.envs(self.environment).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut keeper = command.spawn().expect("start sh");
        let line = first_line(&mut keeper);
        let Some(ready) = line.and_then(|line| serde_json::from_str::<Value>(&line).ok()) else {
            let said = fs::read_to_string(&log).unwrap_or_default();
            drop(keeper.stdin.take());
            let code = keeper.wait().ok().and_then(|status| status.code());
            return Err(Failure { code, said });
        };
        let text = |name: &str| ready[name].as_str().unwrap_or_else(|| panic!("no {name}: {ready}")).to_owned();
        let address = text("url").trim_start_matches("http://").trim_end_matches('/').parse().expect("an address");
        let pid = wait_for(START, || fs::read_to_string(&pid_file).ok()?.trim().parse().ok());
        Ok(Daemon {
            client: match self.network {
                Some(_) => Client::new(Endpoint::Unix(text("socket").into()), text("token")),
                None => Client::new(Endpoint::Tcp(address), text("token")),
            },
            socket: text("socket").into(),
            state,
            pid: pid.expect("the process id of sandboxd dev"),
            keeper,
        })
    }
}

impl Daemon {
    /// Open a session on a runtime.
    #[must_use]
    #[track_caller]
    pub fn session(&self, runtime: &str) -> Session {
        Session::open(self, json!({"runtime": runtime}))
    }

    /// A client over the unix socket with the service token.
    #[must_use]
    pub fn over_unix(&self) -> Client {
        Client::new(Endpoint::Unix(self.socket.clone()), self.client.token.clone())
    }

    /// The directory of sockets: where the API's own is.
    #[must_use]
    pub fn runtime_dir(&self) -> &Path {
        self.socket.parent().expect("a socket in a directory")
    }

    /// End it as a service manager would, and wait for that. Its exit code.
    pub fn stop(mut self) -> Option<i32> {
        self.end()
    }

    fn end(&mut self) -> Option<i32> {
        drop(self.keeper.stdin.take());
        self.keeper.wait().ok().and_then(|status| status.code())
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.end();
    }
}

/// Least time that is waited for anything: it is spent only when a test fails, and a machine that has others to serve
/// may need it.
const LEAST_PATIENCE: Duration = Duration::from_secs(60);

/// Ask until there is an answer, or time is up (a minute, or longer if `within` says so).
pub fn wait_for<T>(within: Duration, mut ask: impl FnMut() -> Option<T>) -> Option<T> {
    let end = Instant::now() + within.max(LEAST_PATIENCE);
    loop {
        if let Some(answer) = ask() {
            return Some(answer);
        }
        if Instant::now() >= end {
            return None;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Do something until it takes no longer than `most`, five times at most: what another process on this machine holds
/// up is done quickly at another time, and what is slow is slow each time. Where this process itself is woken late meanwhile, so
/// are those that it waits for, one after another: that is added to `most`.
///
/// # Panics
/// It took longer each time.
pub fn quickest(most: Duration, mut act: impl FnMut() -> Duration) {
    let mut took = Vec::new();
    for _ in 0..5 {
        let lateness = Lateness::watch();
        let this = act();
        let late = lateness.most();
        if this <= most + late * WAITS {
            return;
        }
        took.push((this, late));
    }
    panic!("longer than {most:?} each time; beside it how late a thread was woken: {took:?}");
}

/// How many processes wait for one another, one after another, in what [`quickest`] looks at.
const WAITS: u32 = 40;

/// Sees how late a thread is woken that has slept.
struct Lateness {
    over: Arc<AtomicBool>,
    thread: JoinHandle<Duration>,
}

impl Lateness {
    fn watch() -> Self {
        const NAP: Duration = Duration::from_millis(5);
        let over = Arc::new(AtomicBool::new(false));
        let is_over = over.clone();
        let thread = std::thread::spawn(move || {
            let mut most = Duration::ZERO;
            while !is_over.load(Ordering::Relaxed) {
                let begun = Instant::now();
                std::thread::sleep(NAP);
                most = most.max(begun.elapsed().saturating_sub(NAP));
            }
            most
        });
        Self { over, thread }
    }

    fn most(self) -> Duration {
        self.over.store(true, Ordering::Relaxed);
        self.thread.join().unwrap_or_default()
    }
}

fn first_line(keeper: &mut Child) -> Option<String> {
    let mut line = String::new();
    BufReader::new(keeper.stdout.take()?).read_line(&mut line).ok()?;
    (!line.is_empty()).then_some(line)
}

fn next() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// A directory that other users may enter: the service is another user.
fn fresh_directory() -> PathBuf {
    let path = std::env::temp_dir().join(format!("sandboxd-it-{}-{}", std::process::id(), next()));
    fs::create_dir(&path).unwrap_or_else(|e| panic!("create {}: {e}", path.display()));
    path
}

/// The file at `path`, opened for reading.
#[must_use]
pub fn open(path: &Path) -> File {
    File::open(path).unwrap_or_else(|e| panic!("open {}: {e}", path.display()))
}
