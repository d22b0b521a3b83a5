//! The service as a whole: reads the configuration, wires the rooms, recovers, listens, ends.

mod examine;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
mod listen;
pub mod log;
mod machine;
mod oci;
mod origin;
mod overrides;
pub mod prepare;
mod prewarm;
mod reload;
mod settings;
mod sockets;
mod waiting;
mod watchdog;

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustix::fs::{FlockOperation, Mode, OFlags};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{Notify, Semaphore, watch};
use tokio::task::JoinSet;

use crate::api::{self, App, ImageStatus};
use crate::archive::Archive;
use crate::catalog::{self, CatalogError, Catalogue, Runtime, Size};
use crate::config::{ConfigError, LimitsMode, Settings, UnixAuth};
use crate::doctor::Host;
use crate::fail;
use crate::image::{self, Account, Images, Tenure};
use crate::metrics;
use crate::operations::{self, Caller, Log, Noted, Op, Operation, Subject};
use crate::request;
use crate::runtime::{Launcher, Slots};
use crate::session::expiry::Sweeper;
use crate::session::{Deps, Key, Networks, OnFound, OnStopped, Quotas, Registry, SessionError, Tallies, Watch, now};
use crate::store::{Store, StoreError};
pub use examine::alone as doctor;
use listen::{Peers, listen};
use machine::{Bounds, Dirs, LaunchMachine};
use sockets::Sockets;

/// How long answers that are under way may take when the service ends.
const FAREWELL: Duration = Duration::from_secs(3);

/// The service does not start. One line each, with the sources.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The configuration cannot be read.
    #[error("read configuration {}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A setting cannot be used.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A fail point that is none.
    #[error(transparent)]
    Fail(#[from] fail::BadAim),
    /// The catalogue cannot be used.
    #[error(transparent)]
    Catalog(#[from] CatalogError),
    /// Another service has the state directory.
    #[error("another sandboxd is using state directory {}; stop it first", .0.display())]
    Locked(PathBuf),
    /// A directory, file or socket cannot be made or opened.
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
    /// This host cannot enforce limits.
    #[error(
        "this host cannot enforce {0}: mount cgroup2 with these controllers (a boot with systemd.unified_cgroup_hierarchy=1), or set SANDBOXD_LIMITS=best-effort for development"
    )]
    Limits(String),
    /// The database cannot be opened.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The image store cannot be opened.
    #[error("open the image store")]
    Images(#[source] image::StoreError),
    /// An OCI runtime that is named cannot be used.
    #[error(transparent)]
    Oci(#[from] oci::OciError),
    /// What ran before cannot be found out.
    #[error("recover sessions")]
    Recover(#[source] SessionError),
}

/// Run until SIGTERM or SIGINT.
///
/// # Errors
/// [`ServeError`], before anything is served.
pub fn run(file: Option<&Path>) -> Result<(), ServeError> {
    metrics::process::begin();
    // What we write is for the sandbox to read as well; see `files`.
    rustix::process::umask(Mode::from_raw_mode(0o022));
    if fail::arm()? {
        return Ok(());
    }
    let settings = settings::read(file)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(|source| io_error("start threads for", Path::new("sandboxd"), source))?;
    let result = runtime.block_on(serve(settings, file));
    runtime.shutdown_timeout(Duration::from_secs(1));
    result
}

async fn serve(settings: Settings, file: Option<&Path>) -> Result<(), ServeError> {
    let host = Host::look();
    let unenforced = host.unenforced();
    if !unenforced.is_empty() {
        match settings.limits {
            LimitsMode::Enforce => return Err(ServeError::Limits(unenforced.join(", "))),
            LimitsMode::BestEffort => {
                tracing::warn!(
                    "LIMITS ARE NOT ENFORCED on this host: {}. For development only.",
                    unenforced.join(", ")
                );
            }
        }
    }
    let runtimes = read_runtimes(&settings)?;
    let _lock = lock(&settings.state_dir)?;
    let app = wire(settings, runtimes, host, unenforced)?;
    oci::check(&app.registry).await?;
    // Before that: commands that went on without us are recorded as soon as they are found.
    let rows = app.registry.deps.store.sessions().await?;
    let used = app.operations.adopt(rows.into_iter().map(|row| (row.id, row.created_at)).collect()).await?;
    // Rows say it as of the last sweep: nobody is closed for what was done since.
    app.registry.deps.store.touch_sessions(used).await?;
    let found = app.registry.recover().await.map_err(ServeError::Recover)?;
    if found != session_nothing() {
        tracing::info!(adopted = found.adopted, asleep = found.asleep, removed = found.removed, "recovered");
    }
    let settings = &app.registry.deps.settings;
    let Sockets { listeners, address, path } = sockets::open(settings).await?;
    let (stop, stopped) = watch::channel(false);
    let router = api::router(app.clone());
    let peers = match settings.unix_auth {
        UnixAuth::Peer => Peers::trusted(&settings.token),
        UnixAuth::Token => Peers::NONE,
    };
    let mut listening = JoinSet::new();
    for listener in listeners {
        listening.spawn(listen(listener, router.clone(), peers.clone(), stopped.clone()));
    }
    drop((router, stopped));
    let prewarm = tokio::spawn(prewarm::keep(app.clone()));
    prepare_network(&app);
    let sweeper = tokio::spawn(Sweeper::new(app.registry.clone()).run());
    let watch = tokio::spawn(Watch::new(app.registry.clone()).run());
    let registry = app.registry.clone();
    let networks = tokio::spawn(async move { registry.deps.networks.keep().await });
    let log = tokio::spawn(keep_log(&app));
    let overrides = overrides::watch(&app.registry);
    let reload = reload::watch(&app.registry, file.map(Path::to_owned));
    let watchdog = watchdog::feed(&app.registry);
    announce(address, path.as_deref());
    wait_for_end().await;
    sweeper.abort();
    prewarm.abort();
    watch.abort();
    networks.abort();
    log.abort();
    overrides.abort();
    watchdog.abort();
    reload.abort();
    let _ = sd_notify::notify(&[sd_notify::NotifyState::Stopping]);
    stop.send_replace(true);
    let _ = tokio::time::timeout(FAREWELL, async { while listening.join_next().await.is_some() {} }).await;
    app.registry.deps.store.settle().await?;
    Ok(())
}

/// Where a runtime needs a network: say at the start, not at the first session, that there is none.
fn prepare_network(app: &Arc<App>) {
    let registry = app.registry.clone();
    if registry.runtimes().iter().any(|runtime| registry.deps.networks.gives(runtime)) {
        tokio::spawn(async move {
            if let Err(error) = registry.deps.networks.ready().await {
                tracing::error!(error = &error as &dyn std::error::Error, "runtimes that need a network have none");
            }
        });
    }
}

/// Sweep the operations log, and forget there what has been closed.
fn keep_log(app: &Arc<App>) -> impl Future<Output = ()> + use<> {
    let registry = app.registry.clone();
    let open = move || registry.list().iter().map(|session| session.id.clone()).collect();
    operations::keep_house(app.operations.clone(), app.registry.deps.settings.operations_days, open)
}

fn session_nothing() -> crate::session::recover::Recovered {
    crate::session::recover::Recovered::default()
}

fn wire(
    settings: Settings,
    runtimes: Vec<Arc<Runtime>>,
    host: Host,
    unenforced_limits: Vec<String>,
) -> Result<Arc<App>, ServeError> {
    let launcher = Launcher::new(&settings.launch_socket);
    let slots = Slots::new(settings.slots);
    let sockets = directory(&settings.runtime_dir.join("sessions"), 0o700)?;
    let workspaces = directory(&settings.workspace_root, 0o755)?;
    let key_path = settings.state_dir.join("token.key");
    let key = Key::load(&key_path).map_err(|source| io_error("read the token key", &key_path, source))?;
    let operations = Arc::new(Log::open(&settings.state_dir)?);
    let host_id = settings.host_id.clone().unwrap_or_else(|| key.host_id());
    let store = Store::open(&settings.state_dir.join("state.db"))?;
    let machine = machine(&settings, launcher.clone(), slots.clone(), clone_fd(&sockets)?)?;
    let tenure = if settings.images_shared { Tenure::Shared } else { Tenure::Sole };
    let images = images(&settings, Arc::new(machine), tenure)?;
    let default_runtime = default_runtime(&settings, &runtimes)?;
    let listed = (images.clone(), runtimes.clone());
    let (looked_at, logs) = (images.clone(), images.clone());
    let doctor_settings = settings.clone();
    let archive = Archive::new(clone_fd(&workspaces)?, &settings.work_dir, &settings.hidden_prefixes);
    let deps = Deps {
        found: record_found(operations.clone()),
        noted: operations::note::within,
        stopped: record_stopped(operations.clone()),
        networks: Networks::new(launcher.clone(), &settings),
        quotas: Quotas::new(&settings, launcher.clone(), clone_fd(&workspaces)?),
        tallies: Tallies::default(),
        begun_running: Notify::new(),
        unended: Mutex::default(),
        commands: Semaphore::new(settings.max_running_commands),
        settings,
        store,
        launcher,
        slots,
        images,
        key,
        sockets,
        workspaces,
    };
    Ok(Arc::new(App {
        registry: Registry::new(deps, runtimes, default_runtime),
        archive,
        operations,
        host_id,
        unenforced_limits,
        doctor: examine::doctor(host, doctor_settings),
        images: Box::new(move || listed.0.overview(&listed.1)),
        image_status: Box::new(move |runtime| image_status(&looked_at, runtime)),
        build_log: Box::new(move |runtime| Ok(logs.log(runtime)?)),
    }))
}

fn image_status(images: &Images, runtime: &Runtime) -> ImageStatus {
    let image::Status { state, tag, progress, pull, error } = images.status(runtime);
    ImageStatus { state, tag, progress, pull, error }
}

fn machine(
    settings: &Settings,
    launcher: Launcher,
    slots: Slots,
    sockets: OwnedFd,
) -> Result<LaunchMachine, ServeError> {
    let bounds = Bounds {
        memory: settings.build_memory.as_ref().map(Size::bytes),
        disk: settings.build_disk.as_ref().map(Size::bytes),
        pids: settings.build_pids,
        reserve: settings.disk_reserve.as_ref().map(Size::bytes),
    };
    let dirs = Dirs { sockets, disk: directory(&settings.state_dir, 0o755)? };
    Ok(LaunchMachine::new(launcher, slots, dirs, settings.work_dir.clone(), bounds))
}

fn images(settings: &Settings, machine: Arc<LaunchMachine>, tenure: Tenure) -> Result<Images, ServeError> {
    let dir = directory(&settings.images_dir, 0o755)?;
    let account = Account { uid: settings.sandbox_uid, gid: settings.sandbox_uid, ..Account::default() };
    let options = image::Settings {
        recipes: recipes(&settings.recipes_dir),
        registry: settings.registry.clone(),
        mirrors: settings.registry_mirrors.clone(),
        registry_hosts: settings.registry_hosts.clone(),
        insecure_registries: settings.insecure_registries.clone(),
        auth_file: Some(settings.registry_auth.clone()),
        account,
        extra_ca_certs: settings.extra_ca_certs.clone(),
        build_env: settings.build_env.clone(),
        build_cache: settings.build_cache.as_ref().map(Size::bytes),
        build_timeout: Duration::from_secs(settings.build_timeout),
        reserve: settings.disk_reserve.as_ref().map_or(0, Size::bytes),
        tenure,
        service: settings.state_dir.display().to_string(),
        ..image::Settings::default()
    };
    Images::open(dir, machine, options).map_err(ServeError::Images)
}

/// Record the ends of commands whose requests died with a predecessor of this process, unless that has recorded them: it may
/// have died before it could say so to the init.
fn record_found(log: Arc<Log>) -> OnFound {
    Box::new(move |found| {
        let log = log.clone();
        Box::pin(async move {
            let Noted { caller, target, request, command } = operations::note::read(&found.note);
            let (session, opened) = (found.session.id.clone(), found.session.created_at);
            if let Some(command) = command {
                match log.has_command(session.clone(), opened, command).await {
                    Ok(true) => return,
                    Ok(false) => {}
                    // Twice rather than never.
                    Err(error) => {
                        tracing::warn!(%session, error = &error as &dyn std::error::Error, "recorded, perhaps again")
                    }
                }
            }
            let tenant = found.session.tenant.clone();
            let subject = Subject { session, opened, tenant, caller, request, command, op: Op::Run, target };
            let (ok, detail) = match found.status {
                Some(status) => {
                    let limit = found.limit.map_or_else(String::new, |limit| format!(": {limit}"));
                    (status.exit_code() == 0, format!("exit {}{limit}", status.exit_code()))
                }
                None if found.timed_out => (false, "timed out".to_owned()),
                None => (false, "sandbox gone".to_owned()),
            };
            log.record(Operation { at: now(), subject, ok, detail, duration: found.duration });
        })
    })
}

/// Record that a sandbox was stopped for the disk's sake.
fn record_stopped(log: Arc<Log>) -> OnStopped {
    Box::new(move |session, error| {
        let (id, opened, tenant) = (session.id.clone(), session.created_at, session.tenant.clone());
        let target = error.to_string();
        let (caller, request) = (Caller::default(), request::current().map(|request| request.id.clone()));
        let subject = Subject { session: id, opened, tenant, caller, request, command: None, op: Op::Stop, target };
        log.record(Operation {
            at: now(),
            subject,
            ok: false,
            detail: error.brief().to_owned(),
            duration: Duration::ZERO,
        });
    })
}

/// Names of the recipes that are installed; without the directory there are none.
fn recipes(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort();
    names
}

fn read_runtimes(settings: &Settings) -> Result<Vec<Arc<Runtime>>, ServeError> {
    let catalogue = Catalogue::read(&catalog::files(&settings.catalog)?)?;
    let runtimes = match &settings.runtimes {
        Some(text) => catalog::parse_runtimes(text, &catalogue)?,
        None => catalogue.runtimes().to_vec(),
    };
    if runtimes.is_empty() {
        let places: Vec<String> = settings.catalog.iter().map(|path| path.display().to_string()).collect();
        let problem = format!("names no runtime, and there is no catalogue at {}", places.join(", "));
        return Err(ConfigError { place: "SANDBOXD_RUNTIMES".into(), problem }.into());
    }
    Ok(runtimes.into_iter().map(Arc::new).collect())
}

fn default_runtime(settings: &Settings, runtimes: &[Arc<Runtime>]) -> Result<String, ServeError> {
    let aliases: Vec<&str> = runtimes.iter().map(|runtime| runtime.alias.as_str()).collect();
    match settings.default_runtime.as_deref() {
        None => Ok(aliases.first().copied().unwrap_or_default().to_owned()),
        Some(named) if aliases.contains(&named) => Ok(named.to_owned()),
        Some(named) => {
            let problem = format!("{named:?} is no runtime; allowed: {}", aliases.join(", "));
            Err(ConfigError { place: "SANDBOXD_DEFAULT_RUNTIME".into(), problem }.into())
        }
    }
}

/// Hold the state directory for as long as this process lives.
fn lock(state_dir: &Path) -> Result<OwnedFd, ServeError> {
    let path = state_dir.join("lock");
    let flags = OFlags::CREATE | OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let lock =
        rustix::fs::open(&path, flags, Mode::RUSR | Mode::WUSR).map_err(|e| io_error("open", &path, e.into()))?;
    match rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(lock),
        Err(rustix::io::Errno::WOULDBLOCK) => Err(ServeError::Locked(state_dir.to_owned())),
        Err(error) => Err(io_error("lock", &path, error.into())),
    }
}

fn directory(path: &Path, mode: u32) -> Result<OwnedFd, ServeError> {
    use std::os::unix::fs::DirBuilderExt;
    let made = std::fs::DirBuilder::new().recursive(true).mode(mode).create(path);
    made.map_err(|source| io_error("make directory", path, source))?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::open(path, flags, Mode::empty()).map_err(|e| io_error("open directory", path, e.into()))
}

fn clone_fd(fd: &OwnedFd) -> Result<OwnedFd, ServeError> {
    fd.try_clone().map_err(|source| io_error("duplicate", Path::new("a descriptor"), source))
}

/// Tell the log and whoever started us (systemd, `sandboxd dev`) that requests are served, and where.
fn announce(address: Option<SocketAddr>, socket: Option<&Path>) {
    let url = address.map(|address| format!("http://{address}")).unwrap_or_default();
    tracing::info!(url, socket = %socket.unwrap_or_else(|| Path::new("")).display(), "serving");
    let url = format!("X_SANDBOXD_URL={url}");
    let states = [
        sd_notify::NotifyState::Ready,
        sd_notify::NotifyState::Status("serving"),
        sd_notify::NotifyState::Custom(&url),
    ];
    // Started by hand, nobody listens.
    let _ = sd_notify::notify(&states);
}

async fn wait_for_end() {
    let (Ok(mut term), Ok(mut int)) = (signal(SignalKind::terminate()), signal(SignalKind::interrupt())) else {
        return;
    };
    tokio::select! {
        _ = term.recv() => {}
        _ = int.recv() => {}
    }
}

fn io_error(operation: &'static str, path: &Path, source: io::Error) -> ServeError {
    ServeError::Io { operation, path: path.to_owned(), source }
}
