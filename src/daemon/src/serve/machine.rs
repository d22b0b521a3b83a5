//! What the image room needs done: the launcher and build sandboxes.

use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::fs::{AtFlags, Mode, OFlags};
use tokio::time::{Instant, sleep_until, timeout};
use uuid::Uuid;
use wire::id::{LayerId, RunId, SessionId};
use wire::init::{Command, Privilege};
use wire::launch::{Compression, Egress, Kind, Limits, Network, OciRuntime, Plan};

use crate::fail;
use crate::image::{BuildStep, Machine, MachineError, MachineFuture, StepEnd, StepLog, Unpacked};
use crate::runtime::pipes::{Pipe, Read};
use crate::runtime::{Init, Launcher, Outcome, Slots, init::Running, listener};

/// How long a step's processes may take to end.
const KILL_WITHIN: Duration = Duration::from_secs(5);
/// How long the output of a step that has ended is waited for.
const DRAIN: Duration = Duration::from_millis(200);
const SOCKET: &str = "init.sock";
/// Pieces of output that are copied at once.
const COPIES: usize = 64;

/// Builds in sandboxes of the launcher's.
#[derive(Debug)]
pub struct LaunchMachine {
    launcher: Launcher,
    slots: Slots,
    /// `RUNTIME_DIR/sessions`.
    sockets: OwnedFd,
    work_dir: String,
}

impl LaunchMachine {
    /// Builds get their ranges of ids from `slots` and their sockets in `sockets`.
    #[must_use]
    pub fn new(launcher: Launcher, slots: Slots, sockets: OwnedFd, work_dir: String) -> Self {
        Self { launcher, slots, sockets, work_dir }
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
        if ended == StepEnd::Exited(0) {
            let committed = self.launcher.commit(&build, &step.layer).await;
            committed.map_err(|e| MachineError::new("keep the step's layer", e))?;
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
        follow(&init, step).await
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
            limits: Limits::default(),
            network: Network::Host,
            egress: Egress::default(),
            // Whoever starts its sessions: what a build may do is tested with this one.
            oci_runtime: OciRuntime::Builtin,
        }
    }
}

/// Run the step's command to its end, its output into the log.
async fn follow(init: &Init, step: &BuildStep) -> Result<StepEnd, MachineError> {
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
    let outcome = loop {
        tokio::select! {
            biased;
            outcome = &mut running.exited => break outcome.map_err(|_| MachineError::new("run the step", "the build sandbox ended"))?,
            () = out.readable() => copy(&mut out, &step.log),
            () = err.readable() => copy(&mut err, &step.log),
            () = sleep_until(deadline) => return Ok(expire(init, run, running).await),
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
        Outcome::Exited(status, ..) => Ok(StepEnd::Exited(status.exit_code())),
        Outcome::Refused(at, errno) => {
            let reason = std::io::Error::from_raw_os_error(errno);
            Err(MachineError::new(format!("start the step's program ({at:?})"), reason))
        }
    }
}

async fn expire(init: &Init, run: RunId, running: Running) -> StepEnd {
    init.stop(run, Duration::ZERO).await;
    // The sandbox is ended next in any case.
    let _ = timeout(KILL_WITHIN, running.emptied).await;
    StepEnd::TimedOut
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
    SessionId::parse(&format!("build-{}", &hex[..16])).map_err(|e| MachineError::new("name the build", e))
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

impl Machine for LaunchMachine {
    fn unpack<'a>(
        &'a self,
        blob: OwnedFd,
        layer: &'a LayerId,
        compression: Compression,
    ) -> MachineFuture<'a, Unpacked> {
        Box::pin(async move {
            let bytes = self.launcher.unpack(blob.as_fd(), layer, compression).await;
            bytes.map(|bytes| Unpacked { bytes }).map_err(|e| MachineError::new("unpack it", e))
        })
    }

    fn bootstrap<'a>(&'a self, recipe: &'a str, output: OwnedFd) -> MachineFuture<'a, ()> {
        Box::pin(async move {
            self.launcher.bootstrap(recipe, output.as_fd()).await.map_err(|e| MachineError::new("run its recipe", e))
        })
    }

    fn run_step(&self, step: BuildStep) -> MachineFuture<'_, StepEnd> {
        Box::pin(self.step(step))
    }

    fn remove_layer<'a>(&'a self, layer: &'a LayerId) -> MachineFuture<'a, ()> {
        Box::pin(async move { self.launcher.remove_layer(layer).await.map_err(|e| MachineError::new("remove it", e)) })
    }
}
