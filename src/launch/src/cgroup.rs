//! Cgroups: one subtree for each sandbox, the launcher's only record of what runs.
//!
//! ```text
//! cgroup_root/                  the launcher's; controllers are enabled here and below, never above
//!   launcher/                   the launcher itself, if it was started in cgroup_root
//!   sandbox-ID/                 root of the sandbox's cgroup namespace
//!     init/                     PID 1, outside of the limits
//!     commands/                 the limits; the sandbox's root makes one below for each command
//! ```

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{AtFlags, Gid, Mode, OFlags, Uid};
use rustix::io::Errno;
use wire::id::SessionId;
use wire::journal::Priority;
use wire::launch::{Limits, Plan, Sandbox};

use crate::config::{Config, LimitsPolicy};
use crate::cpuset;
use crate::error::{Failure, Result, Step};
use crate::log;
use crate::store::open_beneath;

/// File system type of a cgroup2 mount, statfs(2).
const CGROUP2_MAGIC: i64 = 0x6367_7270;
/// Controllers that every sandbox's limits need, and every command's cgroup has: it is killed whole, and says why.
const CONTROLLERS: [&str; 3] = ["cpu", "memory", "pids"];
/// Those that only some limits need.
const MORE_CONTROLLERS: [&str; 2] = ["cpuset", "io"];
/// A sandbox's directory is this and its id: no file of the kernel's is called so.
const PREFIX: &str = "sandbox-";
/// How long killing or freezing everything in a cgroup may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// The directory under which all sandboxes are.
pub struct CgroupRoot {
    path: PathBuf,
    dir: OwnedFd,
    controllers: Vec<&'static str>,
    /// CPUs that there are.
    cpus: Vec<u32>,
}

/// The cgroups of one sandbox that is being started.
pub struct SandboxCgroup {
    /// `sandbox-ID`.
    pub dir: OwnedFd,
    /// `sandbox-ID/init`, once [`SandboxCgroup::split`] has made it.
    pub init: Option<OwnedFd>,
}

fn open_dir(dir: impl AsFd, name: &str) -> Result<OwnedFd, Errno> {
    open_beneath(dir, name, OFlags::RDONLY | OFlags::DIRECTORY)
}

fn write(dir: impl AsFd, file: &str, text: &str) -> Result<(), Errno> {
    let fd = open_beneath(dir, file, OFlags::WRONLY)?;
    rustix::io::write(fd, text.as_bytes()).map(|_| ())
}

fn read(dir: impl AsFd, file: &str) -> Result<String, Errno> {
    let fd = open_beneath(dir, file, OFlags::RDONLY)?;
    let mut buffer = vec![0; 16 * 1024];
    let length = rustix::io::read(fd, &mut buffer)?;
    buffer.truncate(length);
    Ok(String::from_utf8_lossy(&buffer).into_owned())
}

impl AsFd for CgroupRoot {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.dir.as_fd()
    }
}

impl CgroupRoot {
    /// Where it is, and which controllers sandboxes have in it.
    #[must_use]
    pub fn about(&self) -> (String, Vec<String>) {
        let controllers = self.controllers.iter().map(|name| (*name).to_owned()).collect();
        (self.path.display().to_string(), controllers)
    }

    /// Open `cgroup_root`, making it if it is missing, and enable the controllers that limits need.
    ///
    /// # Errors
    /// It is not in a cgroup2 mount, or cannot be made. A missing controller is no error here.
    pub fn open(config: &Config) -> Result<Self> {
        let path = config.cgroup_root.clone();
        let step = || format!("open cgroup {}", path.display());
        make_dirs(&path).step(|| format!("make cgroup {}", path.display()))?;
        let dir =
            rustix::fs::open(&path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).step(step)?;
        let magic = rustix::fs::fstatfs(&dir).step(step)?.f_type;
        if magic != CGROUP2_MAGIC {
            return Err(Failure::new(format!("{}: not in a cgroup2 mount", step())));
        }
        leave_root(&dir).step(|| format!("move the launcher below {}", path.display()))?;
        let mut controllers = enable_controllers(&dir, &CONTROLLERS);
        controllers.extend(enable_controllers(&dir, &MORE_CONTROLLERS));
        let cpus = cpuset::parse(&read(&dir, "cpuset.cpus.effective").unwrap_or_default());
        Ok(Self { path, dir, controllers, cpus })
    }

    /// Controllers of [`Limits`] that work here.
    #[must_use]
    pub fn controllers(&self) -> &[&'static str] {
        &self.controllers
    }

    /// Absolute path of a sandbox's cgroup.
    #[must_use]
    pub fn path_of(&self, id: &SessionId) -> String {
        self.path.join(format!("{PREFIX}{id}")).to_string_lossy().into_owned()
    }

    /// Make the cgroup of a new sandbox.
    ///
    /// # Errors
    /// One of that name has processes.
    pub fn create(&self, id: &SessionId) -> Result<SandboxCgroup> {
        let name = format!("{PREFIX}{id}");
        if let Ok(dir) = open_dir(&self.dir, &name) {
            if is_populated(&dir) {
                return Err(Failure::new(format!("make cgroup {name}: a sandbox of that name is running")));
            }
            self.remove(id)?;
        }
        rustix::fs::mkdirat(&self.dir, &name, Mode::from_raw_mode(0o755)).step(|| format!("make cgroup {name}"))?;
        let dir = open_dir(&self.dir, &name).step(|| format!("open cgroup {name}"))?;
        Ok(SandboxCgroup { dir, init: None })
    }

    /// End every process of a sandbox and remove its cgroups. Done also if there are none.
    ///
    /// # Errors
    /// Processes are left after ten seconds, or a directory cannot be removed.
    pub fn remove(&self, id: &SessionId) -> Result<()> {
        let name = format!("{PREFIX}{id}");
        let dir = match open_dir(&self.dir, &name) {
            Ok(dir) => dir,
            Err(Errno::NOENT) => return Ok(()),
            Err(errno) => return Err(Failure::of(format!("open cgroup {name}"), errno)),
        };
        match write(&dir, "cgroup.kill", "1") {
            Ok(()) | Err(Errno::NODEV | Errno::NOENT) => {}
            Err(errno) => return Err(Failure::of(format!("kill cgroup {name}"), errno)),
        }
        match wait_for(&dir, "populated 0") {
            // The launch that it was of may have removed it meanwhile.
            Ok(()) | Err(Errno::NODEV | Errno::NOENT) => {}
            Err(errno) => return Err(Failure::of(format!("wait until cgroup {name} is empty"), errno)),
        }
        remove_tree(&self.dir, &name, 4).step(|| format!("remove cgroup {name}"))
    }

    /// Hold every process of a sandbox still, or let them go on.
    ///
    /// # Errors
    /// There is no such sandbox, or it takes longer than ten seconds.
    pub fn set_frozen(&self, id: &SessionId, frozen: bool) -> Result<()> {
        let value = if frozen { "1" } else { "0" };
        let step = || format!("write {value} to cgroup.freeze of sandbox {id}");
        let dir = open_dir(&self.dir, &format!("{PREFIX}{id}")).step(step)?;
        write(&dir, "cgroup.freeze", value).step(step)?;
        wait_for(&dir, if frozen { "frozen 1" } else { "frozen 0" }).step(step)?;
        if frozen {
            give_back_memory(&dir);
        }
        Ok(())
    }

    /// The sandboxes that have processes.
    ///
    /// # Errors
    /// The directory cannot be read.
    pub fn list(&self) -> Result<Vec<Sandbox>> {
        let mut sandboxes = Vec::new();
        for id in self.ids()? {
            let Ok(dir) = open_dir(&self.dir, &format!("{PREFIX}{id}")) else { continue };
            let Ok(events) = read(&dir, "cgroup.events") else { continue };
            if events.contains("populated 1") {
                sandboxes.push(Sandbox { cgroup: self.path_of(&id), frozen: events.contains("frozen 1"), id });
            }
        }
        Ok(sandboxes)
    }

    /// Remove the cgroups of sandboxes that have no processes: what an interrupted launch left.
    ///
    /// # Errors
    /// The directory cannot be read, or a cgroup not removed.
    pub fn sweep(&self) -> Result<()> {
        for id in self.ids()? {
            let empty = open_dir(&self.dir, &format!("{PREFIX}{id}")).is_ok_and(|dir| !is_populated(&dir));
            if empty {
                self.remove(&id)?;
            }
        }
        Ok(())
    }

    /// Whether a sandbox has processes.
    #[must_use]
    pub fn is_running(&self, id: &SessionId) -> bool {
        open_dir(&self.dir, &format!("{PREFIX}{id}")).is_ok_and(|dir| is_populated(&dir))
    }

    /// The cgroup of a sandbox, if it has one.
    #[must_use]
    pub fn open_sandbox(&self, id: &SessionId) -> Option<OwnedFd> {
        open_dir(&self.dir, &format!("{PREFIX}{id}")).ok()
    }

    fn ids(&self) -> Result<Vec<SessionId>> {
        let step = || format!("read cgroup {}", self.path.display());
        let names = subdirs(&self.dir).step(step)?;
        Ok(names.iter().filter_map(|name| SessionId::parse(name.strip_prefix(PREFIX)?).ok()).collect())
    }
}

impl SandboxCgroup {
    /// Make `init` and `commands`, write the limits, and let `owner`, root inside, make cgroups for commands.
    ///
    /// # Errors
    /// A limit is to be enforced and its controller is missing, or a file cannot be written.
    pub fn split(&mut self, root: &CgroupRoot, plan: &Plan, policy: LimitsPolicy, owner: u32) -> Result<()> {
        let limits = &plan.limits;
        let cpus = limits.cpus.and_then(|count| cpuset::choose(&root.cpus, count, plan.slot));
        let mut wanted = CONTROLLERS.to_vec();
        wanted.extend(cpus.as_ref().map(|_| "cpuset"));
        wanted.extend(limits.io_weight.map(|_| "io"));
        let enabled = enable_controllers(&self.dir, &wanted);
        self.init = Some(make(&self.dir, "init")?);
        let commands = make(&self.dir, "commands")?;
        for (file, value) in limit_files(limits) {
            let controller = file.split('.').next().unwrap_or(file);
            if enabled.contains(&controller) && root.controllers().contains(&controller) {
                match write(&commands, file, &value) {
                    // Some files need more of the kernel than their controller: `io.weight`, a cost model or a scheduler.
                    Err(Errno::NOENT) if policy == LimitsPolicy::BestEffort => {}
                    written => written.step(|| format!("write {value} to {file}"))?,
                }
            } else if policy == LimitsPolicy::Enforce {
                return Err(Failure::new(format!("set {file}: this host's cgroups have no {controller} controller")));
            }
        }
        if let Some(cpus) = cpus.filter(|_| enabled.contains(&"cpuset")) {
            write(&commands, "cpuset.cpus", &cpus).step(|| format!("write {cpus} to cpuset.cpus"))?;
        }
        enable_controllers(&commands, &CONTROLLERS);
        let (uid, gid) = (Some(Uid::from_raw(owner)), Some(Gid::from_raw(owner)));
        let give = |dir: &OwnedFd, file: &str| {
            rustix::fs::chownat(dir, file, uid, gid, AtFlags::SYMLINK_NOFOLLOW)
                .step(|| format!("give {file} to uid {owner}"))
        };
        rustix::fs::fchown(&commands, uid, gid).step(|| format!("give cgroup commands to uid {owner}"))?;
        give(&commands, "cgroup.procs")?;
        give(&commands, "cgroup.subtree_control")?;
        // A process is placed in a cgroup only by who may write the nearest common ancestor's too (cgroups(7)).
        give(&self.dir, "cgroup.procs")
    }
}

impl SandboxCgroup {
    /// Make one more at `name`.
    ///
    /// # Errors
    /// What mkdir(2) says.
    pub fn make(&self, name: &str) -> Result<OwnedFd> {
        make(&self.dir, name)
    }
}

/// The processes in the cgroup `name` below `dir`.
///
/// # Errors
/// It cannot be read.
pub fn processes(dir: impl AsFd, name: &str) -> Result<Vec<u32>, Errno> {
    Ok(read(dir, &format!("{name}/cgroup.procs"))?.lines().filter_map(|pid| pid.parse().ok()).collect())
}

fn limit_files(limits: &Limits) -> Vec<(&'static str, String)> {
    [
        ("memory.max", limits.memory_bytes.map(|v| v.to_string())),
        ("memory.swap.max", limits.swap_bytes.map(|v| v.to_string())),
        ("cpu.max", limits.cpu_quota_us.map(|v| format!("{v} 100000"))),
        ("cpu.weight", limits.cpu_weight.map(|v| v.to_string())),
        ("pids.max", limits.pids.map(|v| v.to_string())),
        ("io.weight", limits.io_weight.map(|v| v.to_string())),
    ]
    .into_iter()
    .filter_map(|(file, value)| Some((file, value?)))
    .collect()
}

fn make(dir: &OwnedFd, name: &str) -> Result<OwnedFd> {
    rustix::fs::mkdirat(dir, name, Mode::from_raw_mode(0o755)).step(|| format!("make cgroup {name}"))?;
    open_dir(dir, name).step(|| format!("open cgroup {name}"))
}

/// Enable what there is of `wanted` for the children of `dir`; which are enabled now.
fn enable_controllers(dir: &OwnedFd, wanted: &[&'static str]) -> Vec<&'static str> {
    let available = read(dir, "cgroup.controllers").unwrap_or_default();
    let has = |name: &&'static str| available.split_whitespace().any(|word| word == *name);
    let names: Vec<&'static str> = wanted.iter().copied().filter(has).collect();
    let enable = |names: &[&str]| write(dir, "cgroup.subtree_control", &format!("+{}", names.join(" +")));
    // All at once is cheaper; one that is refused refuses all.
    if !names.is_empty() && enable(&names).is_ok() {
        return names;
    }
    let works = |name: &&'static str| match enable(&[name]) {
        Ok(()) => true,
        Err(errno) => {
            log::say(Priority::Warning, &format!("enable the {name} controller: {errno}"));
            false
        }
    };
    names.into_iter().filter(works).collect()
}

fn make_dirs(path: &std::path::Path) -> Result<(), Errno> {
    match rustix::fs::mkdir(path, Mode::from_raw_mode(0o755)) {
        Err(Errno::NOENT) => {
            make_dirs(path.parent().ok_or(Errno::NOENT)?)?;
            make_dirs(path)
        }
        Err(Errno::EXIST) => Ok(()),
        other => other,
    }
}

/// A cgroup with processes cannot have controllers for its children: if the launcher is in `root`, move it below.
fn leave_root(root: &OwnedFd) -> Result<(), Errno> {
    let own = std::process::id().to_string();
    let inside = read(root, "cgroup.procs")?.lines().any(|pid| pid == own);
    if !inside {
        return Ok(());
    }
    match rustix::fs::mkdirat(root, "launcher", Mode::from_raw_mode(0o755)) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(errno) => return Err(errno),
    }
    write(root, "launcher/cgroup.procs", &own)
}

fn is_populated(dir: &OwnedFd) -> bool {
    read(dir, "cgroup.events").is_ok_and(|events| events.contains("populated 1"))
}

/// Wait until `cgroup.events` says `line`. The kernel signals a change as an exceptional condition, but at most one in
/// 10 ms: so it is looked at again soon, then less and less often.
fn wait_for(dir: &OwnedFd, line: &str) -> Result<(), Errno> {
    let events = open_beneath(dir, "cgroup.events", OFlags::RDONLY)?;
    let deadline = Instant::now() + PATIENCE;
    let mut pause = Duration::from_micros(100);
    let mut buffer = [0; 256];
    loop {
        let length = rustix::io::pread(&events, &mut buffer, 0)?;
        if String::from_utf8_lossy(&buffer[..length]).lines().any(|found| found == line) {
            return Ok(());
        }
        if Instant::now() >= deadline {
            return Err(Errno::TIMEDOUT);
        }
        let timeout = Timespec::try_from(pause).unwrap_or_default();
        poll(&mut [PollFd::new(&events, PollFlags::PRI)], Some(&timeout))?;
        pause = (pause * 5 / 4).min(Duration::from_millis(20));
    }
}

fn subdirs(dir: &OwnedFd) -> Result<Vec<String>, Errno> {
    let mut names = Vec::new();
    for entry in rustix::fs::Dir::read_from(dir)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy();
        if entry.file_type().is_dir() && name != "." && name != ".." {
            names.push(name.into_owned());
        }
    }
    Ok(names)
}

/// Remove an empty cgroup and those below it, at most `depth` levels.
fn remove_tree(parent: &OwnedFd, name: &str, depth: u32) -> Result<(), Errno> {
    if let Ok(dir) = open_dir(parent, name).and_then(|dir| subdirs(&dir).map(|names| (dir, names))) {
        let (dir, names) = dir;
        for child in names {
            if depth == 0 {
                return Err(Errno::MLINK);
            }
            remove_tree(&dir, &child, depth - 1)?;
        }
    }
    // A process that has just died may hold its cgroup for a moment longer.
    let deadline = Instant::now() + Duration::from_secs(1);
    loop {
        match rustix::fs::unlinkat(parent, name, AtFlags::REMOVEDIR) {
            Ok(()) | Err(Errno::NOENT) => return Ok(()),
            Err(Errno::BUSY) if Instant::now() < deadline => {
                poll(&mut [], Some(&Timespec { tv_sec: 0, tv_nsec: 200_000 }))?;
            }
            Err(errno) => return Err(errno),
        }
    }
}
/// Ask the kernel to move a frozen sandbox's memory out: to swap what has no file (cgroup-v2.rst, `memory.reclaim`).
/// What it cannot move stays; a host without the file, or without swap, keeps it all.
fn give_back_memory(dir: &OwnedFd) {
    let Ok(used) = read(dir, "memory.current") else { return };
    let _ = write(dir, "memory.reclaim", used.trim());
}
