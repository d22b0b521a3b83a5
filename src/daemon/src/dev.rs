//! `sandboxd dev`: launcher and service together, in the foreground, for development and tests.
//!
//! The same two programs as in production, with the same two privileges: the launcher is root, the
//! service a user of its own. What is not production about it is said at the start: limits are
//! enforced only as far as this host can, nothing restarts what dies, and the sandboxes end with it.

use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt, chown};
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::process::{Pid, Signal};
use tokio::net::UnixDatagram;
use tokio::signal::unix::{SignalKind, signal};

use crate::doctor::Host;

/// The service's user: a number above the sandboxes' ranges that owns nothing else.
const SERVICE_ID: u32 = 0x7ffd_0000;
/// How long the service may take until it serves.
const READY_WITHIN: Duration = Duration::from_secs(30);
/// How many `dev`s of one host can give networks, and the port of the first one's resolver.
const NETWORKS: u8 = 16;
const RESOLVER_PORT: u16 = 8153;
/// How long each program may take to end.
const END_WITHIN: Duration = Duration::from_secs(10);
/// Certificates of this host, its own authorities included.
const CERTIFICATES: &str = "/etc/ssl/certs/ca-certificates.crt";

/// What `sandboxd dev` is told.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Where state is kept; made if it is not there.
    #[arg(long, value_name = "DIR")]
    state: PathBuf,
    /// Where to listen; port 0 takes a free one.
    #[arg(long, value_name = "ADDR:PORT", default_value = "127.0.0.1:8080")]
    listen: SocketAddr,
    /// The unix socket; DIR/run/sandboxd.sock unless it is said.
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// The catalogue of runtimes.
    #[arg(long, value_name = "FILE")]
    catalog: Option<PathBuf>,
    /// The image store, to share it between states; DIR/images unless it is said.
    #[arg(long, value_name = "DIR")]
    images: Option<PathBuf>,
    /// A range that sessions may be allowed to reach though it is no internet, as `network.may_reach` of launch.toml.
    #[arg(long, value_name = "ADDRESS/BITS")]
    may_reach: Vec<String>,
}

/// It does not start, or a program of it died.
#[derive(Debug, thiserror::Error)]
pub enum DevError {
    /// Only root can start the launcher.
    #[error("sandboxd dev needs root, for its launcher; the service itself runs as uid {SERVICE_ID}")]
    NotRoot,
    /// A file or directory.
    #[error("{operation} {}", path.display())]
    Io {
        /// What was attempted.
        operation: &'static str,
        /// On what.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// Another one has the state directory.
    #[error("another sandboxd is using state directory {}; stop it first", .0.display())]
    Locked(PathBuf),
    /// The service's user cannot get to the state directory.
    #[error("{} is closed to uid {SERVICE_ID}, the service; mend with: chmod o+x {}", .0.display(), .0.display())]
    Closed(PathBuf),
    /// There is no cgroup2 mount.
    #[error("no cgroup2 file system is mounted; mend with: mount -t cgroup2 cgroup2 /sys/fs/cgroup")]
    NoCgroup,
    /// A program ended before it was asked to.
    #[error("{program} ended by itself ({status}); its log is above")]
    Died {
        /// Which.
        program: &'static str,
        /// How.
        status: ExitStatus,
    },
    /// The service did not come up.
    #[error("the service did not serve within {} s; its log is above", READY_WITHIN.as_secs())]
    NotReady,
}

/// Start both, print one JSON line when requests are served, end both at SIGTERM or SIGINT.
///
/// # Errors
/// [`DevError`].
pub fn run(args: Args) -> Result<(), DevError> {
    if !rustix::process::geteuid().is_root() {
        return Err(DevError::NotRoot);
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|source| io_error("start", Path::new("tokio"), source))?;
    runtime.block_on(supervise(args))
}

/// Everything that belongs to one `dev`.
struct Place {
    /// The number of its networks among those of this host's `dev`s; none if there are too many of them.
    network: Option<(u8, UnixListener)>,
    state: PathBuf,
    run: PathBuf,
    images: PathBuf,
    /// Whether other states may have them as well.
    images_shared: bool,
    socket: PathBuf,
    cgroup: PathBuf,
    programs: PathBuf,
    may_reach: Vec<String>,
}

async fn supervise(args: Args) -> Result<(), DevError> {
    let place = Place::prepare(&args)?;
    let _lock = lock(&place.state)?;
    warn();
    let mut end = End::listen()?;
    let notify = place.run.join("notify.sock");
    let _ = std::fs::remove_file(&notify);
    let readiness = UnixDatagram::bind(&notify).map_err(|source| io_error("listen on", &notify, source))?;
    std::fs::set_permissions(&notify, std::fs::Permissions::from_mode(0o666))
        .map_err(|e| io_error("open", &notify, e))?;
    let token = token()?;
    let mut launcher = place.start_launcher()?;
    let result = match place.start_service(&args, &token, &notify) {
        Ok(mut service) => {
            let result = attend(&place, &token, &readiness, &mut end, &mut launcher, &mut service).await;
            stop(&mut service);
            result
        }
        Err(error) => Err(error),
    };
    place.end_sandboxes();
    stop(&mut launcher);
    place.clear();
    result
}

async fn attend(
    place: &Place,
    token: &str,
    readiness: &UnixDatagram,
    end: &mut End,
    launcher: &mut Child,
    service: &mut Child,
) -> Result<(), DevError> {
    let until = Instant::now() + READY_WITHIN;
    let mut served = false;
    let mut message = [0; 4096];
    loop {
        tokio::select! {
            () = end.wait() => return Ok(()),
            got = readiness.recv(&mut message), if !served => {
                let text = String::from_utf8_lossy(&message[..got.unwrap_or(0)]).into_owned();
                if let Some(url) = text.lines().find_map(|line| line.strip_prefix("X_SANDBOXD_URL=")) {
                    served = true;
                    announce(url, token, &place.socket);
                }
            }
            () = tokio::time::sleep(Duration::from_millis(200)) => {}
        }
        for (program, child) in [("sandboxd-launch", &mut *launcher), ("the service", &mut *service)] {
            if let Ok(Some(status)) = child.try_wait() {
                return Err(DevError::Died { program, status });
            }
        }
        if !served && Instant::now() > until {
            return Err(DevError::NotReady);
        }
    }
}

/// The one line on standard output.
fn announce(url: &str, token: &str, socket: &Path) {
    let line = serde_json::json!({ "url": url, "token": token, "socket": socket });
    let mut out = io::stdout().lock();
    // Whoever started us may have stopped listening; the service goes on.
    let _ = writeln!(out, "{line}");
    let _ = out.flush();
}

fn warn() {
    tracing::warn!("THIS IS sandboxd dev, NOT PRODUCTION: limits are enforced only as far as this host can,");
    tracing::warn!(
        "image builds share the host's network, nothing restarts what dies, and every sandbox ends with it."
    );
}

impl Place {
    fn prepare(args: &Args) -> Result<Self, DevError> {
        let state = make(&args.state, SERVICE_ID)?;
        let run = make(&state.join("run"), SERVICE_ID)?;
        let images = make(args.images.as_deref().unwrap_or(&state.join("images")), SERVICE_ID)?;
        for path in [&state, &images] {
            reachable(path)?;
        }
        let host = Host::look();
        let cgroup = host.cgroup2().ok_or(DevError::NoCgroup)?.join(format!("sandboxd-dev-{}", std::process::id()));
        let own = std::env::current_exe().map_err(|source| io_error("find", Path::new("/proc/self/exe"), source))?;
        let programs = own.parent().unwrap_or(Path::new("/")).to_owned();
        let socket = args.socket.clone().unwrap_or_else(|| run.join("sandboxd.sock"));
        let network = network_number();
        let may_reach = args.may_reach.clone();
        let images_shared = args.images.is_some();
        Ok(Self { network, state, run, images, images_shared, socket, cgroup, programs, may_reach })
    }

    fn start_launcher(&self) -> Result<Child, DevError> {
        let config = self.run.join("launch.toml");
        let mut options = std::fs::OpenOptions::new();
        let file = options.write(true).create(true).truncate(true).mode(0o600).open(&config);
        let written = file.and_then(|mut file| file.write_all(self.launch_config().as_bytes()));
        written.map_err(|source| io_error("write", &config, source))?;
        let program = self.programs.join("sandboxd-launch");
        let mut command = Command::new(&program);
        command.arg("--config").arg(&config).stdout(io::stderr()).process_group(0);
        command.spawn().map_err(|source| io_error("start", &program, source))
    }

    fn launch_config(&self) -> String {
        let mut table = toml::Table::new();
        let mut text = |key: &str, path: &Path| table.insert(key.to_owned(), path.display().to_string().into());
        text("state_dir", &self.state);
        text("images_dir", &self.images);
        text("runtime_dir", &self.run);
        text("socket", &self.run.join("launch.sock"));
        text("cgroup_root", &self.cgroup);
        text("init", &self.programs.join("sandbox-init"));
        text("recipes_dir", &self.recipes());
        if let Some(certificates) = certificates() {
            text("ca_bundle", &certificates);
        }
        if let Some((number, _)) = &self.network {
            let mut network = network_config(*number);
            network.insert("may_reach".into(), self.may_reach.clone().into());
            table.insert("network".into(), network.into());
        }
        table.insert("limits".into(), "best-effort".into());
        table.insert("allow_host_network_builds".into(), true.into());
        table.insert("service_uid".into(), i64::from(SERVICE_ID).into());
        table.insert("service_gid".into(), i64::from(SERVICE_ID).into());
        table.to_string()
    }

    /// Beside an installed program, or in the source tree that it was built in.
    fn recipes(&self) -> PathBuf {
        let tree = self.programs.join("../../images");
        if tree.is_dir() { tree.canonicalize().unwrap_or(tree) } else { "/usr/share/sandboxd/images".into() }
    }

    fn start_service(&self, args: &Args, token: &str, notify: &Path) -> Result<Child, DevError> {
        let program = self.programs.join("sandboxd");
        let mut command = Command::new(&program);
        command
            .env("SANDBOXD_TOKEN", token)
            .env("SANDBOXD_STATE_DIR", &self.state)
            .env("SANDBOXD_RUNTIME_DIR", &self.run)
            .env("SANDBOXD_IMAGES_DIR", &self.images)
            .env("SANDBOXD_IMAGES_SHARED", if self.images_shared { "true" } else { "false" })
            .env("SANDBOXD_SOCKET", &self.socket)
            .env("SANDBOXD_LAUNCH_SOCKET", self.run.join("launch.sock"))
            .env("SANDBOXD_RECIPES_DIR", self.recipes())
            .env("SANDBOXD_HOST", args.listen.ip().to_string())
            .env("SANDBOXD_PORT", args.listen.port().to_string())
            .env("SANDBOXD_LIMITS", "best-effort")
            .env("NOTIFY_SOCKET", notify)
            .stdout(io::stderr())
            .process_group(0)
            .uid(SERVICE_ID)
            .gid(SERVICE_ID);
        if let Some(catalog) = &args.catalog {
            let catalog = std::path::absolute(catalog).map_err(|source| io_error("find", catalog, source))?;
            command.env("SANDBOXD_CATALOG", catalog);
        }
        if let Some(certificates) = certificates() {
            command.env("SANDBOXD_EXTRA_CA_CERTS", certificates);
        }
        command.spawn().map_err(|source| io_error("start", &program, source))
    }

    /// End every sandbox, whatever it holds.
    fn end_sandboxes(&self) {
        let _ = std::fs::write(self.cgroup.join("cgroup.kill"), "1");
        let until = Instant::now() + END_WITHIN;
        while self.cgroup.exists() && Instant::now() < until {
            remove_cgroup(&self.cgroup);
            pause();
        }
        if self.cgroup.exists() {
            tracing::error!(cgroup = %self.cgroup.display(), "processes outlive their SIGKILL");
        }
    }

    /// Remove what only a running service needs.
    fn clear(&self) {
        let _ = std::fs::remove_file(&self.socket);
        let _ = std::fs::remove_dir_all(&self.run);
    }
}

/// A number that no other `dev` in this network namespace has, as long as what comes with it lives.
fn network_number() -> Option<(u8, UnixListener)> {
    (0..NETWORKS).find_map(|number| {
        let name = format!("sandboxd-dev-network-{number}");
        let address = std::os::unix::net::SocketAddr::from_abstract_name(name).ok()?;
        Some((number, UnixListener::bind_addr(&address).ok()?))
    })
}

/// Addresses that are no internet, and not what an installed service takes by default.
fn network_config(number: u8) -> toml::Table {
    let mut network = toml::Table::new();
    network.insert("pool".into(), format!("198.18.{}.0/20", 16 * number).into());
    network.insert("name".into(), format!("sbd{number}x").into());
    network.insert("resolver_port".into(), (i64::from(RESOLVER_PORT) + i64::from(number)).into());
    network
}

/// The certificates that sandboxes trust: those that the environment names, else this host's.
fn certificates() -> Option<PathBuf> {
    let named = std::env::var_os("SANDBOXD_EXTRA_CA_CERTS").filter(|path| !path.is_empty());
    named.map(PathBuf::from).or_else(|| Some(PathBuf::from(CERTIFICATES)).filter(|path| path.exists()))
}

/// Remove a cgroup and those below it, as far as they are empty.
fn remove_cgroup(dir: &Path) {
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove_cgroup(&entry.path());
        }
    }
    let _ = std::fs::remove_dir(dir);
}

/// Make a directory that belongs to the service, and tell its absolute path.
fn make(path: &Path, owner: u32) -> Result<PathBuf, DevError> {
    std::fs::create_dir_all(path).map_err(|source| io_error("make directory", path, source))?;
    let path = path.canonicalize().map_err(|source| io_error("find", path, source))?;
    chown(&path, Some(owner), Some(owner)).map_err(|source| io_error("give to the service", &path, source))?;
    let open = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(&path, open).map_err(|source| io_error("open", &path, source))?;
    Ok(path)
}

/// Whether everybody may pass through the directories above.
fn reachable(path: &Path) -> Result<(), DevError> {
    for above in path.ancestors().skip(1) {
        let mode = above.metadata().map_err(|source| io_error("look at", above, source))?.permissions().mode();
        if mode & 0o001 == 0 {
            return Err(DevError::Closed(above.to_owned()));
        }
    }
    Ok(())
}

fn lock(state: &Path) -> Result<std::os::fd::OwnedFd, DevError> {
    let path = state.join("dev.lock");
    let flags = OFlags::CREATE | OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let lock =
        rustix::fs::open(&path, flags, Mode::RUSR | Mode::WUSR).map_err(|e| io_error("open", &path, e.into()))?;
    match rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(lock),
        Err(rustix::io::Errno::WOULDBLOCK) => Err(DevError::Locked(state.to_owned())),
        Err(error) => Err(io_error("lock", &path, error.into())),
    }
}

/// 32 random bytes in hexadecimal, or what the environment says.
fn token() -> Result<String, DevError> {
    if let Ok(token) = std::env::var("SANDBOXD_TOKEN") {
        return Ok(token);
    }
    let mut bytes = [0; 32];
    let random = Path::new("/dev/urandom");
    let read = std::fs::File::open(random).and_then(|mut file| file.read_exact(&mut bytes));
    read.map_err(|source| io_error("read", random, source))?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// SIGTERM, and after a while SIGKILL.
fn stop(child: &mut Child) {
    if let Some(pid) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
        // It may have ended already; then it is a zombie of ours, and no other process has its number.
        let _ = rustix::process::kill_process(pid, Signal::TERM);
    }
    let until = Instant::now() + END_WITHIN;
    while Instant::now() < until {
        if !matches!(child.try_wait(), Ok(None)) {
            return;
        }
        pause();
    }
    let _ = child.kill();
    let _ = child.wait();
}

fn pause() {
    std::thread::sleep(Duration::from_millis(5));
}

/// The signals that end us.
struct End {
    term: tokio::signal::unix::Signal,
    int: tokio::signal::unix::Signal,
}

impl End {
    fn listen() -> Result<Self, DevError> {
        let listen = |kind| signal(kind).map_err(|source| io_error("listen for", Path::new("signals"), source));
        Ok(Self { term: listen(SignalKind::terminate())?, int: listen(SignalKind::interrupt())? })
    }

    async fn wait(&mut self) {
        tokio::select! {
            _ = self.term.recv() => {}
            _ = self.int.recv() => {}
        }
    }
}

fn io_error(operation: &'static str, path: &Path, source: io::Error) -> DevError {
    DevError::Io { operation, path: path.to_owned(), source }
}
