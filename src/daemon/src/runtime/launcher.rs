//! The client of `sandboxd-launch`: one connection, one request, one answer.

use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags};
use wire::id::{LayerId, SessionId};
use wire::launch::{
    Answer, Cache, Compression, DiskEnforcement, DiskUsage, MAX_MESSAGE, OciRuntime, Permit, Phase, Plan, Refusals,
    Request, Sandbox,
};

use super::seqpacket::Seqpacket;
use crate::metrics::{self, Ask};

/// Longer than any deadline of the launcher's own, which answers by itself.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long a launcher that is not there may take to be there again (systemd does it in a tenth of a second), and how
/// often it is looked for. A start has many things to ask of it: it waits so long for all of them together.
const RESTART: Duration = Duration::from_secs(10);
const RETRY: Duration = Duration::from_millis(20);
/// For what copies or removes much.
const LONG_PATIENCE: Duration = Duration::from_secs(1800);

/// Why the launcher did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    /// It could not be talked to.
    #[error("{operation}: talk to sandboxd-launch at {}", socket.display())]
    Unreachable {
        /// What was attempted on what.
        operation: String,
        /// Its socket.
        socket: PathBuf,
        /// What the kernel says.
        #[source]
        source: io::Error,
    },
    /// It did not answer in time.
    #[error("{operation}: sandboxd-launch did not answer within {} s", within.as_secs())]
    Silent {
        /// What was attempted on what.
        operation: String,
        /// How long was waited.
        within: Duration,
    },
    /// Its configuration does not allow it.
    #[error("{operation}: refused by sandboxd-launch: {field}: {reason}")]
    Refused {
        /// What was attempted on what.
        operation: String,
        /// Which field of the request.
        field: String,
        /// Why.
        reason: String,
    },
    /// It tried and failed.
    #[error("{operation}: {step}: {message}")]
    Failed {
        /// What was attempted on what.
        operation: String,
        /// The step that failed.
        step: String,
        /// errno(3), if a system call failed.
        errno: Option<i32>,
        /// In words.
        message: String,
    },
}

impl LaunchError {
    /// Whether the reason is a full disk.
    #[must_use]
    pub fn is_full(&self) -> bool {
        matches!(self, Self::Failed { errno: Some(e), .. } if [libc::ENOSPC, libc::EDQUOT].contains(e))
    }
}

/// A sandbox that was started.
#[derive(Debug)]
pub struct Started {
    /// Its cgroup directory, for reading its usage.
    pub cgroup: PathBuf,
    /// Where the time went.
    pub phases: Vec<Phase>,
}

/// What sandboxes with a network see of the host.
#[derive(Debug)]
pub struct HostNetwork {
    /// Its address; that of the sandbox in slot `n` is `n` more.
    pub gateway: Ipv4Addr,
    /// Where their questions for names are redirected to.
    pub resolver_port: u16,
    /// What may get in the way.
    pub warnings: Vec<String>,
}

/// Who the launcher is, and what it has to work with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct About {
    /// Version of the program that runs.
    pub version: String,
    /// First host id of sandboxes.
    pub id_base: u32,
    /// Blocks of ids from there on.
    pub slots: u32,
    /// Below which sandboxes are.
    pub cgroup: PathBuf,
    /// Controllers that they have there.
    pub controllers: Vec<String>,
}

/// The launcher's address. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Launcher {
    socket: Arc<Path>,
    /// Since when nobody listens: requests one after another wait for its return once, not each.
    absent: Arc<Mutex<Option<Instant>>>,
    /// How long it may be absent.
    restart: Duration,
}

impl Launcher {
    /// The launcher that listens at `socket`.
    #[must_use]
    pub fn new(socket: &Path) -> Self {
        Self { socket: socket.into(), absent: Arc::default(), restart: RESTART }
    }

    /// Start a sandbox whose init serves `control`.
    ///
    /// # Errors
    /// [`LaunchError`]; then nothing of it is left.
    pub async fn start(&self, plan: Plan, control: &OwnedFd) -> Result<Started, LaunchError> {
        let operation = format!("start sandbox {}", plan.id);
        match self.ask(&operation, &Request::Start { plan }, &[control.as_fd()], PATIENCE).await? {
            Answer::Started { cgroup, phases } => Ok(Started { cgroup: cgroup.into(), phases }),
            other => Err(unexpected(operation, &other)),
        }
    }

    /// End every process of a sandbox.
    ///
    /// # Errors
    /// [`LaunchError`].
    pub async fn stop(&self, id: &SessionId) -> Result<(), LaunchError> {
        self.done(format!("stop sandbox {id}"), Request::Stop { id: id.clone() }, PATIENCE).await
    }

    /// Whether the host has an OCI runtime.
    ///
    /// # Errors
    /// [`LaunchError::Refused`] with what is to be done if it has not.
    pub async fn has_runtime(&self, oci_runtime: OciRuntime) -> Result<(), LaunchError> {
        let operation = format!("look for OCI runtime {}", oci_runtime.name());
        self.done(operation, Request::Runtime { oci_runtime }, PATIENCE).await
    }

    /// Hold every process of a sandbox still.
    ///
    /// # Errors
    /// [`LaunchError`].
    pub async fn freeze(&self, id: &SessionId) -> Result<(), LaunchError> {
        self.done(format!("freeze sandbox {id}"), Request::Freeze { id: id.clone() }, PATIENCE).await
    }

    /// Let every process of a sandbox go on.
    ///
    /// # Errors
    /// [`LaunchError`].
    pub async fn thaw(&self, id: &SessionId) -> Result<(), LaunchError> {
        self.done(format!("thaw sandbox {id}"), Request::Thaw { id: id.clone() }, PATIENCE).await
    }

    /// Delete the write layer of a stopped sandbox.
    ///
    /// # Errors
    /// [`LaunchError`].
    pub async fn forget(&self, id: &SessionId) -> Result<(), LaunchError> {
        self.done(format!("delete the write layer of {id}"), Request::Forget { id: id.clone() }, LONG_PATIENCE).await
    }

    /// Delete what is left of a workspace.
    ///
    /// # Errors
    /// [`LaunchError`].
    pub async fn remove_workspace(&self, id: &SessionId) -> Result<(), LaunchError> {
        self.done(format!("delete workspace {id}"), Request::RemoveWorkspace { id: id.clone() }, LONG_PATIENCE).await
    }

    /// The sandboxes that have processes.
    ///
    /// # Errors
    /// [`LaunchError`].
    pub async fn list(&self) -> Result<Vec<Sandbox>, LaunchError> {
        let operation = "list sandboxes".to_owned();
        match self.ask(&operation, &Request::List {}, &[], PATIENCE).await? {
            Answer::Sandboxes { sandboxes } => Ok(sandboxes),
            other => Err(unexpected(operation, &other)),
        }
    }

    /// What sessions use of the disk, in the order asked, and how that is known; at most [`wire::launch::MAX_MEASURED`].
    ///
    /// # Errors
    /// [`LaunchError`].
    pub async fn usage(&self, ids: Vec<SessionId>) -> Result<(DiskEnforcement, Vec<DiskUsage>), LaunchError> {
        let operation = format!("measure {} sessions", ids.len());
        match self.ask(&operation, &Request::Usage { ids }, &[], PATIENCE).await? {
            Answer::Usage { enforcement, usage } => Ok((enforcement, usage)),
            other => Err(unexpected(operation, &other)),
        }
    }

    /// How large the package caches of builds are; with `most`, those that are too large together are emptied first,
    /// or with `dry_run` only marked.
    ///
    /// # Errors
    /// [`LaunchError`].
    pub async fn caches(&self, most: Option<u64>, dry_run: bool) -> Result<Vec<Cache>, LaunchError> {
        let operation = "look at the package caches of builds".to_owned();
        match self.ask(&operation, &Request::Caches { most, dry_run }, &[], PATIENCE).await? {
            Answer::Caches { caches } => Ok(caches),
            other => Err(unexpected(operation, &other)),
        }
    }

    /// Unpack the layer in `blob`, which begins at its offset.
    ///
    /// # Errors
    /// [`LaunchError`]; then there is no such layer.
    pub async fn unpack(
        &self,
        blob: BorrowedFd<'_>,
        layer: &LayerId,
        compression: Compression,
    ) -> Result<u64, LaunchError> {
        let operation = format!("unpack layer {layer}");
        let request = Request::Unpack { layer: layer.clone(), compression };
        match self.ask(&operation, &request, &[blob], LONG_PATIENCE).await? {
            Answer::Unpacked { bytes, .. } => Ok(bytes),
            other => Err(unexpected(operation, &other)),
        }
    }

    /// Write a layer of the store as a tar to `output`, a regular file.
    ///
    /// # Errors
    /// [`LaunchError`].
    pub async fn pack(&self, layer: &LayerId, output: BorrowedFd<'_>) -> Result<(), LaunchError> {
        let operation = format!("pack layer {layer}");
        match self.ask(&operation, &Request::Pack { layer: layer.clone() }, &[output], LONG_PATIENCE).await? {
            Answer::Done => Ok(()),
            other => Err(unexpected(operation, &other)),
        }
    }

    /// Make the write layer of a stopped build a layer of the store.
    ///
    /// # Errors
    /// [`LaunchError`].
    pub async fn commit(&self, build: &SessionId, layer: &LayerId) -> Result<(), LaunchError> {
        let request = Request::Commit { build: build.clone(), layer: layer.clone() };
        self.done(format!("commit layer {layer}"), request, PATIENCE).await
    }

    /// Delete a layer of the store.
    ///
    /// # Errors
    /// [`LaunchError`].
    pub async fn remove_layer(&self, layer: &LayerId) -> Result<(), LaunchError> {
        self.done(format!("delete layer {layer}"), Request::RemoveLayer { layer: layer.clone() }, LONG_PATIENCE).await
    }

    /// Make ready what networks of sandboxes need.
    ///
    /// # Errors
    /// [`LaunchError`]; what is missing on the host.
    pub async fn network(&self) -> Result<HostNetwork, LaunchError> {
        let operation = "prepare networks of sandboxes".to_owned();
        match self.ask(&operation, &Request::Network {}, &[], PATIENCE).await? {
            Answer::Network { gateway, resolver_port, warnings } => {
                Ok(HostNetwork { gateway, resolver_port, warnings })
            }
            other => Err(unexpected(operation, &other)),
        }
    }

    /// Let a running sandbox reach what its names were resolved to.
    ///
    /// # Errors
    /// [`LaunchError`].
    pub async fn permit(&self, id: &SessionId, permits: Vec<Permit>) -> Result<(), LaunchError> {
        let request = Request::Permit { id: id.clone(), permits };
        self.done(format!("permit addresses to sandbox {id}"), request, PATIENCE).await
    }

    /// What sandboxes were refused.
    ///
    /// # Errors
    /// [`LaunchError`].
    pub async fn refusals(&self) -> Result<Vec<Refusals>, LaunchError> {
        let operation = "count what sandboxes were refused".to_owned();
        match self.ask(&operation, &Request::Refusals {}, &[], PATIENCE).await? {
            Answer::Refusals { refusals } => Ok(refusals),
            other => Err(unexpected(operation, &other)),
        }
    }

    /// Who it is, at most so long; one that is not there is not waited for.
    ///
    /// # Errors
    /// [`LaunchError`].
    pub async fn about(socket: &Path, within: Duration) -> Result<About, LaunchError> {
        let operation = "ask who it is".to_owned();
        let launcher = Self { restart: Duration::ZERO, ..Self::new(socket) };
        match launcher.ask(&operation, &Request::About {}, &[], within).await? {
            Answer::About { version, id_base, slots, cgroup, controllers } => {
                Ok(About { version, id_base, slots, cgroup: cgroup.into(), controllers })
            }
            other => Err(unexpected(operation, &other)),
        }
    }

    /// Run the recipe `recipe` and write its tar to `output`.
    ///
    /// # Errors
    /// [`LaunchError`].
    pub async fn bootstrap(&self, recipe: &str, output: BorrowedFd<'_>) -> Result<(), LaunchError> {
        let operation = format!("bootstrap {recipe}");
        let request = Request::Bootstrap { recipe: recipe.to_owned() };
        match self.ask(&operation, &request, &[output], LONG_PATIENCE).await? {
            Answer::Done => Ok(()),
            other => Err(unexpected(operation, &other)),
        }
    }

    async fn done(&self, operation: String, request: Request, within: Duration) -> Result<(), LaunchError> {
        match self.ask(&operation, &request, &[], within).await? {
            Answer::Done => Ok(()),
            other => Err(unexpected(operation, &other)),
        }
    }

    async fn ask(
        &self,
        operation: &str,
        request: &Request,
        fds: &[BorrowedFd<'_>],
        within: Duration,
    ) -> Result<Answer, LaunchError> {
        let unreachable = |source| LaunchError::Unreachable {
            operation: operation.to_owned(),
            socket: self.socket.to_path_buf(),
            source,
        };
        let _waiting = metrics::LAUNCHER_QUEUE.one();
        let begun = Instant::now();
        let answer = match tokio::time::timeout(within, self.insist(request, fds)).await {
            Ok(answer) => answer.map_err(unreachable),
            Err(_) => Err(LaunchError::Silent { operation: operation.to_owned(), within }),
        };
        let kind = counted_as(request);
        metrics::LAUNCHER.observe(kind, begun.elapsed());
        if !matches!(&answer, Ok(answer) if !is_failure(answer)) {
            metrics::LAUNCHER_FAILURES.one(kind);
        }
        answer
    }

    /// Ask again while the launcher is being started again; what it may have begun already, only if it can be done twice.
    async fn insist(&self, request: &Request, fds: &[BorrowedFd<'_>]) -> io::Result<Answer> {
        let until = Instant::now() + self.restart;
        loop {
            let (failed, gives_up) = match self.connect().await {
                Ok(connection) => {
                    self.is_there();
                    match exchange(&connection, request, fds).await {
                        Err(error) if can_be_repeated(request) => (error, false),
                        done => return done,
                    }
                }
                Err(error) if is_absent(&error) => (error, self.absent_for() >= self.restart),
                Err(error) => return Err(error),
            };
            if gives_up || Instant::now() >= until {
                return Err(failed);
            }
            tokio::time::sleep(RETRY).await;
        }
    }

    fn is_there(&self) {
        *self.absent.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    fn absent_for(&self) -> Duration {
        self.absent.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_with(Instant::now).elapsed()
    }

    /// Connect, waiting while the launcher's backlog is full.
    async fn connect(&self) -> io::Result<Seqpacket> {
        let (Some(dir), Some(name)) = (self.socket.parent(), self.socket.file_name().and_then(|n| n.to_str())) else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        let dir = rustix::fs::open(dir, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        loop {
            match Seqpacket::connect(dir.as_fd(), name) {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => tokio::time::sleep(Duration::from_millis(2)).await,
                done => return done,
            }
        }
    }
}

async fn exchange(connection: &Seqpacket, request: &Request, fds: &[BorrowedFd<'_>]) -> io::Result<Answer> {
    connection.send(&serde_json::to_vec(request)?, fds).await?;
    let mut buffer = vec![0; MAX_MESSAGE];
    let message = connection.recv(&mut buffer).await?.ok_or(io::ErrorKind::UnexpectedEof)?;
    Ok(serde_json::from_slice(&buffer[..message.len])?)
}

/// Nobody listens, or not yet.
fn is_absent(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused | io::ErrorKind::ConnectionReset)
}

/// Whether it is the same to do it once or twice.
fn can_be_repeated(request: &Request) -> bool {
    match request {
        Request::Stop { .. }
        | Request::Freeze { .. }
        | Request::Thaw { .. }
        | Request::List {}
        | Request::About {}
        | Request::Runtime { .. }
        | Request::Commit { .. }
        | Request::Forget { .. }
        | Request::RemoveLayer { .. }
        | Request::RemoveWorkspace { .. }
        | Request::Usage { .. }
        | Request::Caches { .. }
        | Request::Network {}
        | Request::Permit { .. }
        | Request::Refusals {} => true,
        // They come with a descriptor that may have been used.
        Request::Start { .. } | Request::Unpack { .. } | Request::Pack { .. } | Request::Bootstrap { .. } => false,
    }
}

/// What a request is in the figures.
fn counted_as(request: &Request) -> Ask {
    match request {
        Request::Start { .. } => Ask::Start,
        Request::Stop { .. } => Ask::Stop,
        Request::Freeze { .. } => Ask::Freeze,
        Request::Thaw { .. } => Ask::Thaw,
        Request::List {} | Request::Runtime { .. } | Request::About {} => Ask::List,
        Request::Usage { .. } | Request::Caches { .. } => Ask::Usage,
        Request::Unpack { .. } | Request::Pack { .. } | Request::Commit { .. } | Request::Bootstrap { .. } => {
            Ask::Image
        }
        Request::Forget { .. } | Request::RemoveLayer { .. } | Request::RemoveWorkspace { .. } => Ask::Remove,
        Request::Network {} | Request::Permit { .. } | Request::Refusals {} => Ask::Network,
    }
}

fn is_failure(answer: &Answer) -> bool {
    matches!(answer, Answer::Refused { .. } | Answer::Failed { .. })
}

fn unexpected(operation: String, answer: &Answer) -> LaunchError {
    match answer {
        Answer::Refused { field, reason } => {
            LaunchError::Refused { operation, field: field.clone(), reason: reason.clone() }
        }
        Answer::Failed { step, errno, message } => {
            LaunchError::Failed { operation, step: step.clone(), errno: *errno, message: message.clone() }
        }
        Answer::Started { .. }
        | Answer::Done
        | Answer::Sandboxes { .. }
        | Answer::Network { .. }
        | Answer::Refusals { .. }
        | Answer::About { .. }
        | Answer::Unpacked { .. }
        | Answer::Usage { .. }
        | Answer::Caches { .. } => LaunchError::Failed {
            operation,
            step: "understand its answer".into(),
            errno: None,
            message: "it answered something else; are both programs of one version?".into(),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_absent_launcher_is_waited_for_once_not_by_each_request() {
        let path = std::env::temp_dir().join(format!("sandboxd-no-launcher-{}", std::process::id())).join("sock");
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        let restart = Duration::from_millis(300);
        let launcher = Launcher { restart, ..Launcher::new(&path) };
        let begun = Instant::now();
        for _ in 0..20 {
            assert!(matches!(launcher.list().await, Err(LaunchError::Unreachable { .. })));
        }
        let waited = begun.elapsed();
        assert!(restart <= waited && waited < 15 * restart, "{waited:?}");
        std::fs::remove_dir_all(path.parent().unwrap()).unwrap();
    }
}
