//! Starting a sandbox: a plan, a control socket, and then processes of somebody else's.
//!
//! ```text
//! launch child          makes cgroups, mappings, mounts          answers the service
//!   └ container child   born in sandbox-ID/init; private root;   ends when the sandbox runs
//!       └ libcontainer: intermediate, then the init (a child of the container child, later of the host's PID 1)
//! ```
//! or, where the plan says so, a program in libcontainer's place ([`crate::oci`]).
//! libcontainer runs in a process of its own because it changes the one that it runs in, may panic, and never gives up
//! by itself: the container child can be killed, and dies with the launch child.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;

use libcontainer::container::builder::ContainerBuilder;
use libcontainer::syscall::syscall::SyscallType;
use rustix::fs::{Mode, OFlags};
use rustix::thread::LinkNameSpaceType;
use wire::init::{CGROUP_FD, LISTENER_FD};
use wire::launch::{Answer, Network, OciRuntime, Phase, Plan};

use crate::cgroup::{CgroupRoot, SandboxCgroup};
use crate::config::Config;
use crate::error::{Failure, Result, Step};
use crate::oci::{self, Program};
use crate::rootfs::{self, Sources};
use crate::spec;
use crate::store::Store;
use crate::{executor, fail, gvisor, net, subprocess, sys};

/// Measures consecutive parts of a launch.
struct Clock {
    last: Instant,
    phases: Vec<Phase>,
}

impl Clock {
    fn start() -> Self {
        Self { last: Instant::now(), phases: Vec::new() }
    }

    fn mark(&mut self, name: &str) {
        let now = Instant::now();
        let us = u64::try_from((now - self.last).as_micros()).unwrap_or(u64::MAX);
        self.phases.push(Phase { name: name.to_owned(), us });
        self.last = now;
    }
}

/// Everything that a launch is given.
pub struct Launch<'a> {
    /// The launcher's configuration.
    pub config: &'a Config,
    /// Its state directory.
    pub store: &'a Store,
    /// Its cgroups.
    pub cgroups: &'a CgroupRoot,
    /// What to start.
    pub plan: &'a Plan,
    /// The init's control socket.
    pub listener: OwnedFd,
    /// The program of the plan's OCI runtime; none: libcontainer.
    pub runtime: Option<OwnedFd>,
}

/// Start a sandbox. When this fails, what it had made is removed again.
///
/// # Errors
/// The first step that failed.
pub fn start(launch: &Launch<'_>) -> Result<Answer> {
    let mut clock = Clock::start();
    let mut cgroup = launch.cgroups.create(&launch.plan.id)?;
    fail::point("start.cgroup");
    match try_start(launch, &mut cgroup, &mut clock) {
        Ok(()) => Ok(Answer::Started { cgroup: launch.cgroups.path_of(&launch.plan.id), phases: clock.phases }),
        Err(failure) => {
            drop(cgroup);
            // Whatever happens here, the failure of the launch is what the service has to know.
            let slot = net::slot_of(launch.cgroups, &launch.plan.id);
            let _ = launch.cgroups.remove(&launch.plan.id);
            let _ = net::forget(slot, launch.config.network.as_ref());
            Err(failure)
        }
    }
}

fn try_start(launch: &Launch<'_>, cgroup: &mut SandboxCgroup, clock: &mut Clock) -> Result<()> {
    let (config, plan) = (launch.config, launch.plan);
    let first_id = config.first_id(plan.slot);
    clock.mark("cgroup");
    let (cgroup_ns, mappings) = rootfs::namespaces(plan, config, &cgroup.dir)?;
    clock.mark("mappings");
    cgroup.split(launch.cgroups, plan, config.limits, first_id)?;
    clock.mark("limits");
    let program = launch.runtime.as_ref().map(Program::clone_of).transpose()?;
    let sources = Sources::open(plan, config, launch.store, &mappings, &cgroup.dir)?.with_program(program);
    clock.mark("mounts");
    fail::point("start.mounts");
    let own = own_cgroup(plan.oci_runtime, cgroup)?;
    let beside = cgroup.init.as_ref().unwrap_or(&cgroup.dir).as_fd();
    let born_in = own.as_ref().map_or(beside, AsFd::as_fd);
    let what = format!("start sandbox {}", plan.id);
    let body = |_: &OwnedFd| {
        let phases = contain(launch, &sources, &cgroup_ns, beside)?;
        Ok(Answer::Started { cgroup: String::new(), phases })
    };
    match subprocess::run(&what, Some(born_in), body, |_| Ok(()))? {
        Answer::Started { phases, .. } => clock.phases.extend(phases),
        Answer::Done
        | Answer::Sandboxes { .. }
        | Answer::Network { .. }
        | Answer::Refusals { .. }
        | Answer::About { .. }
        | Answer::Unpacked { .. }
        | Answer::Usage { .. }
        | Answer::Caches { .. }
        | Answer::Refused { .. }
        | Answer::Failed { .. } => {
            return Err(Failure::new(format!("{what}: its report makes no sense")));
        }
    }
    if !launch.cgroups.is_running(&plan.id) {
        return Err(Failure::new(format!("{what}: its init ended at once")));
    }
    if plan.network == Network::Bridge {
        net::attach(plan, config.network.as_ref(), launch.cgroups)?;
        clock.mark("network");
    }
    Ok(())
}

/// A cgroup of the container child's own, for a runtime that insists on moving the init into an empty one (and pays
/// for it, some 11 ms). The others leave the init where it is born.
fn own_cgroup(runtime: OciRuntime, cgroup: &SandboxCgroup) -> Result<Option<OwnedFd>> {
    match runtime {
        OciRuntime::Builtin | OciRuntime::Crun => Ok(None),
        OciRuntime::Runc => cgroup.make("launch").map(Some),
        // Its kernel is what uses memory and processor on behalf of commands.
        OciRuntime::Runsc => cgroup.make("commands/gvisor").map(Some),
    }
}

/// In the container child: build the root file system and have the init started in it.
fn contain(launch: &Launch<'_>, sources: &Sources, cgroup_ns: &OwnedFd, beside: BorrowedFd<'_>) -> Result<Vec<Phase>> {
    let mut clock = Clock::start();
    rustix::thread::move_into_link_name_space(cgroup_ns.as_fd(), Some(LinkNameSpaceType::ControlGroup))
        .step(|| "enter the cgroup namespace")?;
    set_oom_score()?;
    rootfs::enter(sources, launch.plan, launch.config)?;
    clock.mark("rootfs");
    fail::point("start.rootfs");
    write_bundle(launch)?;
    place_descriptors(launch)?;
    clock.mark("bundle");
    match launch.plan.oci_runtime {
        OciRuntime::Builtin => by_libcontainer(launch, &mut clock)?,
        other @ (OciRuntime::Crun | OciRuntime::Runc) => {
            oci::start(other, launch.plan.id.as_str())?;
            clock.mark(other.name());
        }
        OciRuntime::Runsc => {
            gvisor::start(launch.plan.id.as_str(), launch.config.first_id(launch.plan.slot), beside)?;
            clock.mark("runsc");
        }
    }
    fail::point("start.started");
    Ok(clock.phases)
}

fn by_libcontainer(launch: &Launch<'_>, clock: &mut Clock) -> Result<()> {
    let (executor, outcome) = executor::new()?;
    let step = |what| format!("{what} sandbox {} with libcontainer", launch.plan.id);
    let mut container = ContainerBuilder::new(launch.plan.id.to_string(), SyscallType::Linux)
        .with_root_path("/state")
        .step(|| step("prepare"))?
        .with_preserved_fds(2)
        .with_executor(executor)
        .as_init("/bundle")
        .with_systemd(false)
        .with_detach(true)
        .build()
        .step(|| step("build"))?;
    clock.mark("libcontainer build");
    fail::point("start.built");
    container.start().step(|| step("start"))?;
    outcome.wait()?;
    clock.mark("libcontainer start");
    Ok(())
}

/// Whatever the launcher's is: no sandbox is spared at the host's expense. The init raises that of its commands, and a
/// command could go back to the lowest that a privileged process ever set, so nothing lower is set here.
fn set_oom_score() -> Result<()> {
    let step = || "write oom_score_adj";
    let path = "/proc/self/oom_score_adj";
    let fd = rustix::fs::open(path, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty()).step(step)?;
    rustix::io::write(fd, b"0").step(step)?;
    Ok(())
}

fn write_bundle(launch: &Launch<'_>) -> Result<()> {
    let spec =
        spec::build(launch.plan, launch.config.first_id(launch.plan.slot)).step(|| "write the OCI configuration")?;
    spec.save("/bundle/config.json").step(|| "write the OCI configuration")
}

/// Standard streams on `/dev/null`, the control socket as 3, the directory of the command cgroup as 4, and nothing
/// else that survives an exec. The directory is opened in a mount whose root is the sandbox's cgroup: no `..` leads on.
fn place_descriptors(launch: &Launch<'_>) -> Result<()> {
    let step = || "place the descriptors of the init";
    let directory = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let commands = rustix::fs::open(rootfs::COMMANDS, directory, Mode::empty()).step(step)?;
    let null = rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).step(step)?;
    for number in 0..3 {
        sys::place_fd(null.as_fd(), number).step(step)?;
    }
    sys::place_fd(launch.listener.as_fd(), LISTENER_FD).step(step)?;
    sys::place_fd(commands.as_fd(), CGROUP_FD).step(step)
}
