//! The service as a whole: reads the configuration, wires the rooms, recovers, listens, ends.

#[cfg(any(test, fuzzing))]
pub mod fuzzing;
pub mod host;
mod listen;
pub mod log;
mod machine;
mod oci;
mod overrides;
mod reload;
mod settings;
mod sockets;
mod waiting;
mod watchdog;

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::{FlockOperation, Mode, OFlags};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;

use crate::api::{self, App};
use crate::archive::Archive;
use crate::catalog::{self, CatalogError, Catalogue, Runtime};
use crate::config::{ConfigError, LimitsMode, Settings, UnixAuth};
use crate::fail;
use crate::image::{self, Account, Images};
use crate::operations::{self, Caller, Log, Op, Operation, Subject};
use crate::runtime::{Launcher, Slots};
use crate::session::expiry::Sweeper;
use crate::session::{Deps, Found, Key, Networks, OnStopped, Quotas, Registry, SessionError, Watch, now};
use crate::store::{Store, StoreError};
use host::Host;
use listen::{Peers, listen};
use machine::LaunchMachine;
use sockets::Sockets;

/// How long answers that are under way may take when the service ends.
const FAREWELL: Duration = Duration::from_secs(3);
/// Credentials for registries.
const AUTH_FILE: &str = "/etc/sandboxd/auth.json";

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
    if settings.ui_enabled {
        tracing::warn!("SANDBOXD_UI_ENABLED is set, but this version has no dashboard yet");
    }
    let runtimes = read_runtimes(&settings)?;
    let _lock = lock(&settings.state_dir)?;
    let app = wire(settings, runtimes, host, unenforced)?;
    oci::check(&app.registry).await?;
    // Before that: commands that went on without us are recorded as soon as they are found.
    let rows = app.registry.deps.store.sessions().await?;
    app.operations.adopt(rows.into_iter().map(|row| (row.id, row.created_at)).collect()).await?;
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
    prewarm(&app);
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
    let machine = LaunchMachine::new(launcher.clone(), slots.clone(), clone_fd(&sockets)?, settings.work_dir.clone());
    let images = images(&settings, Arc::new(machine))?;
    let default_runtime = default_runtime(&settings, &runtimes)?;
    let listed = (images.clone(), runtimes.clone());
    let doctor_settings = settings.clone();
    let archive = Archive::new(clone_fd(&workspaces)?, &settings.work_dir, &settings.hidden_prefixes);
    let deps = Deps {
        found: record_found(operations.clone()),
        stopped: record_stopped(operations.clone()),
        networks: Networks::new(launcher.clone(), &settings),
        quotas: Quotas::new(&settings, launcher.clone(), clone_fd(&workspaces)?),
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
        doctor: Box::new(move |enforcement| host.report(&doctor_settings, enforcement)),
        images: Box::new(move || listed.0.overview(&listed.1)),
    }))
}

fn images(settings: &Settings, machine: Arc<LaunchMachine>) -> Result<Images, ServeError> {
    let dir = directory(&settings.images_dir, 0o755)?;
    let auth_file = Some(PathBuf::from(AUTH_FILE)).filter(|path| path.exists());
    let account = Account { uid: settings.sandbox_uid, gid: settings.sandbox_uid, ..Account::default() };
    let options = image::Settings {
        recipes: recipes(&settings.recipes_dir),
        registry: settings.registry.clone(),
        insecure_registries: settings.insecure_registries.clone(),
        auth_file,
        account,
        extra_ca_certs: settings.extra_ca_certs.is_some(),
        ..image::Settings::default()
    };
    Images::open(dir, machine, options).map_err(ServeError::Images)
}

/// Record the ends of commands whose requests died with a predecessor of this process.
fn record_found(log: Arc<Log>) -> Box<dyn Fn(Found) + Send + Sync> {
    Box::new(move |found| {
        let (caller, target) = operations::note::read(&found.note);
        let (session, opened, tenant) =
            (found.session.id.clone(), found.session.created_at, found.session.tenant.clone());
        let subject = Subject { session, opened, tenant, caller, op: Op::Run, target };
        let (ok, detail) = match found.status {
            Some(status) => {
                let limit = found.limit.map_or_else(String::new, |limit| format!(": {limit}"));
                (status.exit_code() == 0, format!("exit {}{limit}", status.exit_code()))
            }
            None => (false, "sandbox gone".to_owned()),
        };
        log.record(Operation { at: now(), subject, ok, detail, duration: found.duration });
    })
}

/// Record that a sandbox was stopped for the disk's sake.
fn record_stopped(log: Arc<Log>) -> OnStopped {
    Box::new(move |session, error| {
        let (id, opened, tenant) = (session.id.clone(), session.created_at, session.tenant.clone());
        let target = error.to_string();
        let subject = Subject { session: id, opened, tenant, caller: Caller::default(), op: Op::Stop, target };
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
    let catalogue = Catalogue::read(&catalog_files(&settings.catalog))?;
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

/// The files that are named, and the `*.json` of the directories, sorted.
fn catalog_files(paths: &[PathBuf]) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for path in paths {
        if !path.is_dir() {
            // The default directory (`catalog.d`) need not be there; a file that is named must, and its reading says so.
            let is_file = path.extension().is_some_and(|extension| extension == "json") || path.exists();
            files.extend(is_file.then(|| path.clone()));
            continue;
        }
        let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
        let mut found: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
        found.retain(|file| file.extension().is_some_and(|extension| extension == "json"));
        found.sort();
        files.append(&mut found);
    }
    files
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

/// Make every runtime ready in the background, one after another, each tried twice.
fn prewarm(app: &Arc<App>) {
    let app = app.clone();
    if !app.registry.deps.settings.prewarm {
        return;
    }
    tokio::spawn(async move {
        for runtime in app.registry.runtimes() {
            let images = &app.registry.deps.images;
            let ready = match images.ensure(runtime).await {
                Ok(image) => Ok(image),
                Err(_) => images.ensure(runtime).await,
            };
            match ready {
                Ok(image) => tracing::info!(runtime = runtime.alias, image = image.tag, "ready"),
                Err(error) => {
                    let error = error.as_ref() as &dyn std::error::Error;
                    tracing::error!(runtime = runtime.alias, error, "not ready; the next session on it tries again");
                }
            }
        }
    });
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
