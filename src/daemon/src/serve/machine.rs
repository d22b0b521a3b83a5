//! What the image room needs done: the launcher and build sandboxes.

use std::os::fd::{AsFd, OwnedFd};
use std::pin::pin;
use std::time::Duration;

use rustix::fs::{AtFlags, Mode, OFlags};
use tokio::time::{Instant, sleep, sleep_until, timeout};
use uuid::Uuid;
use wire::id::{LayerId, RunId, SessionId};
use wire::init::{Command, Met, Privilege};
use wire::launch::{Cache, Compression, Egress, Kind, Limits, Network, OciRuntime, Plan};

use crate::fail;
use crate::image::{BuildStep, Machine, MachineError, MachineFuture, StepEnd, StepLog, Unpacked};
use crate::runtime::pipes::{Pipe, Read};
use crate::runtime::{Init, LaunchError, Launcher, Outcome, Slots, init::Running, listener};

/// How long a step's processes may take to end.
const KILL_WITHIN: Duration = Duration::from_secs(5);
/// How long the output of a step that has ended is waited for.
const DRAIN: Duration = Duration::from_millis(200);
const SOCKET: &str = "init.sock";
/// What the names of build sandboxes begin with.
const PREFIX: &str = "build-";
/// Pieces of output that are copied at once.
const COPIES: usize = 64;

/// How often it is looked how much a step has written.
const LOOK: Duration = Duration::from_secs(2);
/// The reserve is never more than this part of a file system, as for sessions.
const RESERVE_PART: u64 = 10;

/// What a step of a build may use at most.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// Memory, in bytes; absent: no ceiling.
    pub memory: Option<u64>,
    /// What it writes, in bytes, package caches aside; absent: no ceiling.
    pub disk: Option<u64>,
    /// Processes at once; absent: no ceiling.
    pub pids: Option<u64>,
    /// What the host keeps of the disk, in bytes; absent: nothing.
    pub reserve: Option<u64>,
}

/// Directories of the service's.
#[derive(Debug)]
pub struct Dirs {
    /// `RUNTIME_DIR/sessions`.
    pub sockets: OwnedFd,
    /// One on the disk that steps write to.
    pub disk: OwnedFd,
}

/// Builds in sandboxes of the launcher's.
#[derive(Debug)]
pub struct LaunchMachine {
    launcher: Launcher,
    slots: Slots,
    /// `RUNTIME_DIR/sessions`.
    sockets: OwnedFd,
    work_dir: String,
    /// A directory on the disk that steps write to.
    disk: OwnedFd,
    bounds: Bounds,
}

impl LaunchMachine {
    /// Builds get their ranges of ids from `slots`.
    #[must_use]
    pub fn new(launcher: Launcher, slots: Slots, dirs: Dirs, work_dir: String, bounds: Bounds) -> Self {
        let Dirs { sockets, disk } = dirs;
        Self { launcher, slots, sockets, work_dir, disk, bounds }
    }

    async fn step(&self, step: BuildStep) -> Result<StepEnd, MachineError> {
        let build = name()?;
        let cleanup = Cleanup {
            launcher: self.launcher.clone(),
            sockets: self.sockets.try_clone().ok(),
            build: Some(build.clone()),
        };
        let ended = self.run(&build, &step).await;
        let stopped = self.launcher.stop(&build).await.map_err(|e| MachineError::new("end the build sandbox", e));
        let ended = ended?;
        stopped?;
        fail::point("build.ran");
        if matches!(ended, StepEnd::Exited(0, _)) {
            let committed = self.launcher.commit(&build, &step.layer).await;
            committed.map_err(|e| failed("keep the step's layer", e))?;
            fail::point("build.committed");
        }
        cleanup.now().await;
        Ok(ended)
    }

    async fn run(&self, build: &SessionId, step: &BuildStep) -> Result<StepEnd, MachineError> {
        let slot = self
            .slots
            .take()
            .ok_or_else(|| MachineError::new("start the build sandbox", "every range of user ids is in use"))?;
        let io = |e: std::io::Error| MachineError::new("make the build's control socket", e);
        rustix::fs::mkdirat(&self.sockets, build.as_str(), Mode::RWXU).map_err(|e| io(e.into()))?;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let dir = rustix::fs::openat(&self.sockets, build.as_str(), flags, Mode::empty()).map_err(|e| io(e.into()))?;
        let control = listener(dir.as_fd(), SOCKET).map_err(io)?;
        let plan = self.plan(build, step, slot.number());
        self.launcher.start(plan, &control).await.map_err(|e| MachineError::new("start the build sandbox", e))?;
        drop(control);
        fail::point("build.started");
        let init =
            Init::connect(dir.as_fd(), SOCKET).await.map_err(|e| MachineError::new("talk to the build's init", e))?;
        let watch = Watch { machine: self, build };
        follow(&init, step, watch).await
    }

    fn plan(&self, build: &SessionId, step: &BuildStep, slot: u32) -> Plan {
        Plan {
            id: build.clone(),
            kind: Kind::Build,
            slot,
            layers: step.parents.clone(),
            workspace_uid: 0,
            work_dir: self.work_dir.clone(),
            hostname: "build".into(),
            tmpfs_bytes: None,
            limits: Limits {
                memory_bytes: self.bounds.memory,
                swap_bytes: self.bounds.memory.map(|_| 0),
                pids: self.bounds.pids,
                ..Limits::default()
            },
            network: Network::Host,
            egress: Egress::default(),
            // Whoever starts its sessions: what a build may do is tested with this one.
            oci_runtime: OciRuntime::Builtin,
            request: None,
        }
    }
}

/// Run the step's command to its end, its output into the log.
async fn follow(init: &Init, step: &BuildStep, watch: Watch<'_>) -> Result<StepEnd, MachineError> {
    let fail = |what: &'static str| move |e: std::io::Error| MachineError::new(what, e);
    let mut out = Pipe::new().map_err(fail("make a pipe"))?;
    let mut err = Pipe::new().map_err(fail("make a pipe"))?;
    let run = RunId::from_u128(1);
    let command = Command {
        argv: step.argv.clone(),
        env: step.env.clone(),
        cwd: "/".into(),
        uid: step.uid,
        gid: step.gid,
        privilege: Privilege::Build,
    };
    let deadline = Instant::now() + step.deadline;
    let started = init.start((run, Vec::new()), command, &mut out, &mut err).await;
    let mut running = started.map_err(|e| MachineError::new("run the step", e))?;
    let mut excess = pin!(watch.excess());
    let outcome = loop {
        tokio::select! {
            biased;
            outcome = &mut running.exited => break outcome.map_err(|_| MachineError::new("run the step", "the build sandbox ended"))?,
            () = out.readable() => copy(&mut out, &step.log),
            () = err.readable() => copy(&mut err, &step.log),
            () = sleep_until(deadline) => {
                end(init, run, running).await;
                return Ok(StepEnd::TimedOut);
            }
            reason = &mut excess => {
                end(init, run, running).await;
                return Ok(StepEnd::Stopped(reason));
            }
        }
    };
    let _ = timeout(DRAIN, async {
        while !(out.ended() && err.ended()) {
            copy(&mut out, &step.log);
            copy(&mut err, &step.log);
            tokio::select! {
                () = out.readable() => {}
                () = err.readable() => {}
            }
        }
    })
    .await;
    match outcome {
        Outcome::Exited(status, _, met) => Ok(StepEnd::Exited(status.exit_code(), watch.limit(met))),
        Outcome::Refused(at, errno) => {
            let reason = std::io::Error::from_raw_os_error(errno);
            Err(MachineError::new(format!("start the step's program ({at:?})"), reason))
        }
    }
}

async fn end(init: &Init, run: RunId, running: Running) {
    init.stop(run, Duration::ZERO).await;
    // The sandbox is ended next in any case.
    let _ = timeout(KILL_WITHIN, running.emptied).await;
}

/// Looks at what a step uses.
#[derive(Clone, Copy)]
struct Watch<'a> {
    machine: &'a LaunchMachine,
    build: &'a SessionId,
}

impl Watch<'_> {
    /// Ends with the reason when the step has written too much.
    async fn excess(self) -> String {
        let Bounds { disk, reserve, .. } = self.machine.bounds;
        loop {
            sleep(LOOK).await;
            if let (Some(reserve), Ok(stat)) = (reserve, rustix::fs::fstatvfs(&self.machine.disk)) {
                let free = stat.f_bavail.saturating_mul(stat.f_frsize);
                if free < reserve.min(stat.f_blocks.saturating_mul(stat.f_frsize) / RESERVE_PART) {
                    return format!("the disk is full: {free} bytes are free (disk_reserve)");
                }
            }
            if let (Some(limit), Ok((_, used))) = (disk, self.machine.launcher.usage(vec![self.build.clone()]).await) {
                let bytes = used.first().map_or(0, |used| used.bytes);
                if bytes > limit {
                    return format!("it wrote {bytes} bytes, more than {limit} (build_disk)");
                }
            }
        }
    }

    /// The limit that a step has met, by its name.
    fn limit(self, met: Met) -> Option<String> {
        match (met.memory, self.machine.bounds.memory) {
            (true, Some(bytes)) => Some(format!("out of memory: {bytes} bytes, build_memory")),
            (true, None) => Some("out of memory of the host".to_owned()),
            (false, _) => match (met.pids, self.machine.bounds.pids) {
                (true, Some(pids)) => Some(format!("process limit {pids}, build_pids")),
                (true, None) => Some("process limit of the host".to_owned()),
                (false, _) => None,
            },
        }
    }
}

fn copy(pipe: &mut Pipe, log: &StepLog) {
    let mut chunk = Vec::new();
    // A step that writes without end must not have a thread of ours to itself: its deadline is looked at in between.
    for _ in 0..COPIES {
        let Ok(Read::Bytes(_)) = pipe.read_now(&mut chunk, 1 << 20) else { return };
        log.append(&chunk);
        chunk.clear();
    }
}

/// A name of its own for each build sandbox, so that what a crash leaves is found by it.
fn name() -> Result<SessionId, MachineError> {
    let hex = Uuid::new_v4().simple().to_string();
    SessionId::parse(&format!("{PREFIX}{}", &hex[..16])).map_err(|e| MachineError::new("name the build", e))
}

/// End every build sandbox, for who has the turn and is about to end.
pub async fn end_builds(launcher: &Launcher, sockets: &OwnedFd) {
    let running = launcher.list().await.unwrap_or_default();
    for build in running.into_iter().map(|sandbox| sandbox.id).filter(|id| id.as_str().starts_with(PREFIX)) {
        clean(launcher, Some(sockets), &build).await;
    }
}

/// Removes what a step leaves, also when its future is dropped.
struct Cleanup {
    launcher: Launcher,
    sockets: Option<OwnedFd>,
    build: Option<SessionId>,
}

impl Cleanup {
    async fn now(mut self) {
        if let Some(build) = self.build.take() {
            clean(&self.launcher, self.sockets.as_ref(), &build).await;
        }
    }
}

impl Drop for Cleanup {
    fn drop(&mut self) {
        let (launcher, sockets) = (self.launcher.clone(), self.sockets.take());
        if let Some(build) = self.build.take() {
            tokio::spawn(async move { clean(&launcher, sockets.as_ref(), &build).await });
        }
    }
}

async fn clean(launcher: &Launcher, sockets: Option<&OwnedFd>, build: &SessionId) {
    if let Err(error) = launcher.stop(build).await {
        tracing::error!(%build, error = &error as &dyn std::error::Error, "build sandbox not ended");
    }
    if let Err(error) = launcher.forget(build).await {
        tracing::error!(%build, error = &error as &dyn std::error::Error, "build's write layer not deleted");
    }
    if let Some(sockets) = sockets {
        // Ours alone; what is not there needs no removing.
        let _ = rustix::fs::unlinkat(sockets, format!("{build}/{SOCKET}"), AtFlags::empty());
        let _ = rustix::fs::unlinkat(sockets, build.as_str(), AtFlags::REMOVEDIR);
    }
}

/// What the launcher could not do; that the disk is full is to be seen by whoever does not know the launcher.
fn failed(operation: &str, error: LaunchError) -> MachineError {
    if error.is_full() {
        return MachineError::new(operation, std::io::Error::new(std::io::ErrorKind::StorageFull, error));
    }
    MachineError::new(operation, error)
}

impl Machine for LaunchMachine {
    fn unpack<'a>(
        &'a self,
        blob: OwnedFd,
        layer: &'a LayerId,
        compression: Compression,
    ) -> MachineFuture<'a, Unpacked> {
        Box::pin(async move {
            let bytes = self.launcher.unpack(blob.as_fd(), layer, compression).await;
            bytes.map(|bytes| Unpacked { bytes }).map_err(|e| failed("unpack it", e))
        })
    }

    fn pack<'a>(&'a self, layer: &'a LayerId, output: OwnedFd) -> MachineFuture<'a, ()> {
        Box::pin(async move { self.launcher.pack(layer, output.as_fd()).await.map_err(|e| failed("pack it", e)) })
    }

    fn bootstrap<'a>(&'a self, recipe: &'a str, output: OwnedFd) -> MachineFuture<'a, ()> {
        Box::pin(async move {
            self.launcher.bootstrap(recipe, output.as_fd()).await.map_err(|e| failed("run its recipe", e))
        })
    }

    fn run_step(&self, step: BuildStep) -> MachineFuture<'_, StepEnd> {
        Box::pin(self.step(step))
    }

    fn caches(&self, most: Option<u64>, dry_run: bool) -> MachineFuture<'_, Vec<Cache>> {
        Box::pin(async move {
            let caches = self.launcher.caches(most, dry_run).await;
            caches.map_err(|e| MachineError::new("look at the package caches of builds", e))
        })
    }

    fn remove_layer<'a>(&'a self, layer: &'a LayerId) -> MachineFuture<'a, ()> {
        Box::pin(async move { self.launcher.remove_layer(layer).await.map_err(|e| MachineError::new("remove it", e)) })
    }
}
