//! Launcher and service as two programs on one state directory, each of which can be killed and started again.
//!
//! They are started as a service manager would: the launcher as root, the service as a user of its own. A
//! keeper ends and removes everything when the [`Pair`] goes out of scope, or the test process ends.

use std::collections::BTreeSet;
use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::daemon::{binary, repository, target, wait_for};
use crate::http::{Client, Connection, Endpoint, Response};
use crate::journal::Journal;

/// The service's user, as `sandboxd dev` has it.
pub const SERVICE: u32 = 0x7ffd_0000;
/// The service's token.
const TOKEN: &str = "0123456789abcdef0123456789abcdef";
/// How long the service may take until it answers.
const READY: Duration = Duration::from_secs(60);
/// Certificates of this host.
const CERTIFICATES: &str = "/etc/ssl/certs/ca-certificates.crt";
/// Ends whatever is left when standard input closes.
const KEEPER: &str = r#"
state=$1 cgroup=$2
exec >/dev/null 2>&1
read -r _
kill -KILL $(cat "$state".pid-*)
for turn in $(seq 100); do
    echo 1 >"$cgroup/cgroup.kill"
    find "$cgroup" -depth -type d -exec rmdir {} +
    [ -d "$cgroup" ] || break
    sleep 0.05
done
rm -rf "$state" "$state".*
"#;

/// Launcher and service.
#[derive(Debug)]
pub struct Pair {
    /// A client with the service token.
    pub client: Client,
    /// The state directory.
    pub state: PathBuf,
    /// The launcher's cgroup.
    pub cgroup: PathBuf,
    catalog: PathBuf,
    images: PathBuf,
    environment: Vec<(String, String)>,
    launcher: Option<Child>,
    service: Option<Child>,
    keeper: Child,
    /// Whether standard error is to be the journal's, and where that listens.
    journal: Option<PathBuf>,
    /// Whether one of them is to die at a fail point.
    pub armed: bool,
    /// The recipes of bases that the launcher runs.
    recipes: PathBuf,
}

/// Which of the two.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Which {
    /// `sandboxd`.
    Service,
    /// `sandboxd-launch`.
    Launcher,
    /// Both.
    Both,
}

impl Pair {
    /// Start both, with these variables for the service.
    #[must_use]
    pub fn start(environment: &[(&str, &str)]) -> Self {
        let mut pair = Self::prepare(environment, None, None);
        pair.start_launcher(None);
        pair.start_service(None);
        pair
    }

    /// Everything but the programs. `catalog` and `images`: the tests' own, unless others are named.
    #[must_use]
    pub fn prepare(environment: &[(&str, &str)], catalog: Option<&Path>, images: Option<&Path>) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let name = format!("sandboxd-pair-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let state = std::env::temp_dir().join(&name);
        let images = images.map_or_else(|| target().join("images"), Path::to_owned);
        for path in [&state, &state.join("run"), &images] {
            fs::create_dir_all(path).unwrap();
            chown(path, Some(SERVICE), Some(SERVICE)).unwrap();
            fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
        }
        let cgroup = cgroup2().join(&name);
        let mut keeper = Command::new("sh");
        keeper.args(["-c", KEEPER, "keeper"]).args([&state, &cgroup]).stdin(Stdio::piped()).process_group(0);
        let mut pair = Self {
            client: Client::new(Endpoint::Unix(state.join("run/sandboxd.sock")), TOKEN),
            catalog: catalog.map_or_else(|| repository().join("catalog/test.json"), Path::to_owned),
            keeper: keeper.spawn().expect("start sh"),
            environment: Vec::new(),
            launcher: None,
            service: None,
            journal: None,
            armed: false,
            state,
            cgroup,
            images,
            recipes: repository().join("images"),
        };
        for (name, value) in environment {
            pair.set(name, value);
        }
        pair.write_launch_config();
        pair
    }

    /// A variable of the service's from its next start on.
    pub fn set(&mut self, name: &str, value: &str) {
        self.environment.retain(|(known, _)| known != name);
        self.environment.push((name.to_owned(), value.to_owned()));
    }

    /// Stand for the journal of systemd from the next starts on: what both tell it.
    #[must_use]
    pub fn journal(&mut self) -> Journal {
        let path = self.state.join("run/journal.sock");
        let journal = Journal::listen(&path);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).unwrap();
        self.journal = Some(path);
        journal
    }

    /// Recipes of the test's own instead of the repository's.
    pub fn own_recipes(&mut self, directory: &Path) {
        self.recipes = directory.to_owned();
        self.set("SANDBOXD_RECIPES_DIR", &directory.display().to_string());
        self.write_launch_config();
    }

    fn write_launch_config(&self) {
        let run = self.state.join("run");
        let mut lines = vec![format!("limits = {:?}", limits()), "allow_host_network_builds = true".to_owned()];
        let mut paths = vec![
            ("state_dir", self.state.clone()),
            ("images_dir", self.images.clone()),
            ("runtime_dir", run.clone()),
            ("socket", run.join("launch.sock")),
            ("cgroup_root", self.cgroup.clone()),
            ("init", binary("sandbox-init")),
            ("recipes_dir", self.recipes.clone()),
        ];
        if Path::new(CERTIFICATES).exists() {
            paths.push(("ca_bundle", CERTIFICATES.into()));
        }
        lines.extend(paths.iter().map(|(name, path)| format!("{name} = {:?}", path.display().to_string())));
        lines.extend(["uid", "gid"].map(|id| format!("service_{id} = {SERVICE}")));
        let file = run.join("launch.toml");
        fs::write(&file, lines.join("\n")).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    }

    /// A file beside the state directory.
    fn beside(&self, suffix: &str) -> PathBuf {
        PathBuf::from(format!("{}.{suffix}", self.state.display()))
    }

    fn spawn(&self, command: &mut Command, name: &str) -> Child {
        let log = OpenOptions::new().create(true).append(true).open(self.beside("log")).unwrap();
        if let Some(path) = &self.journal {
            let file = log.metadata().unwrap();
            command.env(wire::journal::STREAM_VARIABLE, format!("{}:{}", file.dev(), file.ino()));
            command.env(wire::journal::SOCKET_VARIABLE, path);
        }
        command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log).process_group(0);
        let child = command.spawn().unwrap_or_else(|e| panic!("start {name}: {e}"));
        fs::write(self.beside(&format!("pid-{name}")), format!("{}\n", child.id())).unwrap();
        child
    }

    /// What both have said on standard error, the last of it.
    #[must_use]
    pub fn said(&self) -> String {
        let text = self.log();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(60)..].join("\n")
    }

    /// Everything that both wrote to their log.
    #[must_use]
    pub fn log(&self) -> String {
        fs::read_to_string(self.beside("log")).unwrap_or_default()
    }

    /// Start the launcher, which kills itself at the point `fail`, and wait until it listens.
    pub fn start_launcher(&mut self, fail: Option<&str>) {
        let socket = self.state.join("run/launch.sock");
        let _ = fs::remove_file(&socket);
        let mut command = Command::new(binary("sandboxd-launch"));
        command.arg("--config").arg(self.state.join("run/launch.toml")).envs(fail.map(|f| ("SANDBOXD_LAUNCH_FAIL", f)));
        self.launcher = Some(self.spawn(&mut command, "launcher"));
        let listens = wait_for(READY, || socket.exists().then_some(()));
        assert!(listens.is_some(), "the launcher does not start:\n{}", self.said());
    }

    /// Start the service, which kills itself at the point `fail`, and wait until it answers; how long that took.
    pub fn start_service(&mut self, fail: Option<&str>) -> Duration {
        let begun = self.begin_service(fail);
        assert!(self.ready(), "the service does not start:\n{}", self.said());
        begun.elapsed()
    }

    /// Start the service, and do not wait.
    pub fn begin_service(&mut self, fail: Option<&str>) -> Instant {
        let begun = Instant::now();
        let mut command = self.sandboxd();
        command.envs(fail.map(|fail| ("SANDBOXD_FAIL", fail)));
        self.service = Some(self.spawn(&mut command, "service"));
        begun
    }

    /// `sandboxd` with this pair's settings, as the service's user.
    #[must_use]
    pub fn sandboxd(&self) -> Command {
        let run = self.state.join("run");
        let mut command = Command::new(binary("sandboxd"));
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("SANDBOXD_")) {
            command.env_remove(name);
        }
        command
            .env("SANDBOXD_TOKEN", TOKEN)
            .env("SANDBOXD_STATE_DIR", &self.state)
            .env("SANDBOXD_RUNTIME_DIR", &run)
            .env("SANDBOXD_IMAGES_DIR", &self.images)
            .env("SANDBOXD_IMAGES_SHARED", (self.images == target().join("images")).to_string())
            .env("SANDBOXD_SOCKET", run.join("sandboxd.sock"))
            .env("SANDBOXD_LAUNCH_SOCKET", run.join("launch.sock"))
            .env("SANDBOXD_RECIPES_DIR", repository().join("images"))
            .env("SANDBOXD_CATALOG", &self.catalog)
            .env("SANDBOXD_HOST", "127.0.0.1")
            .env("SANDBOXD_PORT", "0")
            .env("SANDBOXD_LIMITS", limits())
            .env("SANDBOXD_PREWARM", "false")
            .env("SANDBOXD_DEFAULT_RUNTIME", "base")
            .envs(self.environment.iter().map(|(name, value)| (name, value)))
            .uid(SERVICE)
            .gid(SERVICE);
        command
    }

    /// An image store of its own, where none is by itself, with nothing in it but what is linked from the tests' own: images
    /// of these keys.
    pub fn own_images(&mut self, keys: &[&str]) {
        self.own_images_of(keys, &[]);
    }

    /// The same with images that were built for these runtimes.
    pub fn own_images_of(&mut self, keys: &[&str], runtimes: &[&str]) {
        let (from, to) = (self.images.clone(), self.state.join("store"));
        for path in [to.clone(), to.join("refs"), to.join("layers")] {
            fs::create_dir_all(&path).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        }
        for path in [&to, &to.join("refs")] {
            chown(path, Some(SERVICE), Some(SERVICE)).unwrap();
        }
        for file in names(&from.join("refs")) {
            let text = fs::read_to_string(from.join("refs").join(&file)).unwrap_or_default();
            let Ok(record) = serde_json::from_str::<Value>(&text) else { continue };
            if keys.iter().any(|key| record["key"] == *key) || runtimes.iter().any(|alias| record["alias"] == *alias) {
                fs::write(to.join("refs").join(&file), &text).unwrap();
                for layer in record["layers"].as_array().into_iter().flatten().filter_map(Value::as_str) {
                    let linked = Command::new("cp")
                        .arg("-al")
                        .arg(from.join("layers").join(layer))
                        .arg(to.join("layers"))
                        .status();
                    assert!(linked.unwrap().success(), "link {layer}");
                }
            }
        }
        self.images = to;
        self.write_launch_config();
    }

    /// Wait until the service answers; false if it ends before.
    pub fn ready(&mut self) -> bool {
        let end = Instant::now() + READY;
        while Instant::now() < end && self.lives(Which::Service) {
            if self.answers() {
                return true;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        false
    }

    /// The same, and a launcher that ends meanwhile is started again, as an init system does.
    pub fn ready_with_launcher(&mut self) -> bool {
        let end = Instant::now() + READY;
        while Instant::now() < end && self.lives(Which::Service) {
            if self.answers() {
                return true;
            }
            if !self.lives(Which::Launcher) {
                self.kill(Which::Launcher);
                self.start_launcher(None);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        false
    }

    fn answers(&self) -> bool {
        self.ask("GET", "/healthz", &json!(null)).is_ok_and(|answer| answer.status == 200)
    }

    /// One request with the service token; an error if there is no answer.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn ask(&self, method: &str, path: &str, body: &Value) -> io::Result<Response> {
        attempt(&self.client, method, path, body)
    }

    /// Whether it has not ended.
    pub fn lives(&mut self, which: Which) -> bool {
        let lives =
            |child: &mut Option<Child>| child.as_mut().is_some_and(|child| matches!(child.try_wait(), Ok(None)));
        match which {
            Which::Service => lives(&mut self.service),
            Which::Launcher => lives(&mut self.launcher),
            Which::Both => lives(&mut self.service) && lives(&mut self.launcher),
        }
    }

    /// Wait until it has ended.
    #[track_caller]
    pub fn expect_death(&mut self, which: Which) {
        let dead = wait_for(Duration::from_secs(30), || (!self.lives(which)).then_some(()));
        assert!(dead.is_some(), "it lives on:\n{}", self.said());
    }

    /// The process id of one of them.
    #[must_use]
    pub fn pid(&self, which: Which) -> u32 {
        let child = if which == Which::Launcher { &self.launcher } else { &self.service };
        child.as_ref().expect("it was started").id()
    }

    /// SIGHUP to the service.
    pub fn hang_up(&self) {
        let pid = self.service.as_ref().and_then(|child| rustix::process::Pid::from_raw(child.id().cast_signed()));
        rustix::process::kill_process(pid.expect("a service"), rustix::process::Signal::HUP).expect("a signal");
    }

    /// `kill -9`.
    pub fn kill(&mut self, which: Which) {
        let end = |child: &mut Option<Child>| {
            if let Some(mut child) = child.take() {
                let _ = child.kill();
                let _ = child.wait();
            }
        };
        if which != Which::Launcher {
            end(&mut self.service);
        }
        if which != Which::Service {
            end(&mut self.launcher);
        }
    }

    /// Start what does not live, the launcher first, and wait until requests are answered.
    pub fn revive(&mut self) {
        if !self.lives(Which::Launcher) {
            self.kill(Which::Launcher);
            self.start_launcher(None);
        }
        if !self.lives(Which::Service) {
            self.kill(Which::Service);
            self.start_service(None);
        }
    }

    /// Every open session, by name.
    #[must_use]
    pub fn open_sessions(&self) -> BTreeSet<String> {
        let list = self.client.get("/sessions").expect(200).json();
        let ids = list["sessions"].as_array().into_iter().flatten();
        ids.map(|session| session["session_id"].as_str().unwrap().to_owned()).collect()
    }

    /// What is there of nobody, when nothing is under way: `kept` are the names of workspaces that are to be there.
    #[must_use]
    pub fn leaks(&self, kept: &BTreeSet<String>) -> Vec<String> {
        // What is behind an answer (the trash, a socket's directory) has a moment.
        let mut found = Vec::new();
        wait_for(Duration::from_secs(5), || {
            found = self.look(kept);
            found.is_empty().then_some(())
        });
        found
    }

    fn look(&self, kept: &BTreeSet<String>) -> Vec<String> {
        let list = self.client.get("/sessions").expect(200).json();
        let sessions: Vec<&Value> = list["sessions"].as_array().into_iter().flatten().collect();
        let id = |session: &Value| session["session_id"].as_str().unwrap_or_default().to_owned();
        let open: BTreeSet<String> = sessions.iter().map(|session| id(session)).collect();
        let alive: BTreeSet<String> = sessions.iter().filter(|s| s["alive"] == true).map(|s| id(s)).collect();
        let mut found = Vec::new();
        let mut compare = |what: &str, there: BTreeSet<String>, right: &BTreeSet<String>| {
            found.extend(there.difference(right).map(|name| format!("{what} {name}")));
        };
        let cgroups =
            names(&self.cgroup).into_iter().filter_map(|name| Some(name.strip_prefix("sandbox-")?.to_owned()));
        compare("cgroup", cgroups.collect(), &alive);
        compare("control socket", names(&self.state.join("run/sessions")), &alive);
        compare("write layer", names(&self.state.join("sessions")), &open);
        compare("workspace", names(&self.state.join("workspaces")), &open.union(kept).cloned().collect());
        for id in names(&self.state.join("workspaces")) {
            let directory = self.state.join("workspaces").join(&id);
            let all = names(&directory).into_iter().chain(names(&directory.join("workspace")));
            let parts = all.filter(|name| name.starts_with(".sandboxd-"));
            found.extend(parts.map(|name| format!("part of a file {id}/{name}")));
        }
        found.extend(self.shared_ranges());
        found
    }

    /// Sandboxes whose init runs as the same user of the host as another's.
    fn shared_ranges(&self) -> Vec<String> {
        let mut owners: Vec<(String, String)> = Vec::new();
        for sandbox in names(&self.cgroup) {
            let inits = fs::read_to_string(self.cgroup.join(&sandbox).join("init/cgroup.procs")).unwrap_or_default();
            for pid in inits.lines().filter_map(|line| line.parse().ok()) {
                owners.extend(crate::host::status(pid, "Uid").map(|uid| (uid, sandbox.clone())));
            }
        }
        owners.sort();
        let twice = owners.windows(2).filter(|pair| pair[0].0 == pair[1].0);
        twice.map(|pair| format!("user {} has both {} and {}", pair[0].0, pair[0].1, pair[1].1)).collect()
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", self.said());
        }
        self.kill(Which::Both);
        drop(self.keeper.stdin.take());
        let _ = self.keeper.wait();
    }
}

/// Have `command` run as the service's user, who is to own everything below `directory`.
pub fn as_service(command: &mut Command, directory: &Path) {
    for entry in fs::read_dir(directory).unwrap().flatten() {
        chown(entry.path(), Some(SERVICE), Some(SERVICE)).unwrap();
    }
    chown(directory, Some(SERVICE), Some(SERVICE)).unwrap();
    command.uid(SERVICE).gid(SERVICE);
}

/// One request; an error if there is no whole answer. A body that is null is none.
///
/// # Errors
/// What the kernel says.
pub fn attempt(client: &Client, method: &str, path: &str, body: &Value) -> io::Result<Response> {
    let (kind, body) =
        if body.is_null() { (None, String::new()) } else { (Some("application/json"), body.to_string()) };
    send(client, method, path, kind, body.as_bytes())
}

/// The same with bytes.
///
/// # Errors
/// What the kernel says.
pub fn send(client: &Client, method: &str, path: &str, kind: Option<&str>, body: &[u8]) -> io::Result<Response> {
    Connection::open(&client.endpoint)?.exchange(&client.head(method, path, kind, body.len()), body)
}

/// Names in a directory; none if it is not there.
fn names(directory: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

/// Whether limits are enforced: `IT_LIMITS`, which a machine with every controller sets, else as far as they can be.
fn limits() -> String {
    std::env::var("IT_LIMITS").unwrap_or_else(|_| "best-effort".into())
}

/// Where cgroups may be made: `IT_CGROUP`, else the first mount.
fn cgroup2() -> PathBuf {
    if let Some(directory) = std::env::var_os("IT_CGROUP") {
        return directory.into();
    }
    let table = fs::read_to_string("/proc/mounts").unwrap_or_default();
    let mounts = table.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    let mut found = mounts.filter(|fields| fields.get(2) == Some(&"cgroup2")).map(|fields| fields[1].to_owned());
    found.next().expect("a cgroup2 mount").into()
}
