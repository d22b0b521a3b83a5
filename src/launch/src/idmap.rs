//! User namespaces that say how ids on disk look in a sandbox, for idmapped mounts (mount_setattr(2)).
//!
//! A mapping is a user namespace's. A short-lived helper makes each; the descriptor keeps it. The helper of the
//! first also makes the sandbox's cgroup namespace: it must be in the cgroup that is to be its root.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{Mode, OFlags};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::thread::UnshareFlags;
use wire::launch::IDS_PER_SANDBOX;

use crate::error::{Failure, Result, Step};
use crate::sys::{self, Forked};

/// One line of a `uid_map`: ids from `disk` on appear as ids from `host` on.
#[derive(Clone, Copy)]
pub struct Extent {
    /// First id on disk.
    pub disk: u32,
    /// First id outside of the sandbox, as processes have it.
    pub host: u32,
    /// How many.
    pub count: u32,
}

/// Content of layers and write layers: the whole fixed range to the sandbox's.
#[must_use]
pub fn content(disk: u32, host: u32) -> Vec<Extent> {
    vec![Extent { disk, host, count: IDS_PER_SANDBOX }]
}

/// A workspace: the service's own id to the sandbox user's, and the rest of the fixed range as [`content`].
#[must_use]
pub fn workspace(disk: u32, host: u32, service: u32, inside: u32) -> Vec<Extent> {
    let after = inside + 1;
    [
        Extent { disk, host, count: inside },
        Extent { disk: service, host: host + inside, count: 1 },
        Extent { disk: disk + after, host: host + after, count: IDS_PER_SANDBOX - after },
    ]
    .into_iter()
    .filter(|extent| extent.count > 0)
    .collect()
}

/// A user namespace with these mappings of users and of groups.
///
/// # Errors
/// A process or a namespace cannot be made.
pub fn user_namespace(users: &[Extent], groups: &[Extent]) -> Result<OwnedFd> {
    let helper = Helper::start(None, UnshareFlags::NEWUSER)?;
    helper.map("uid_map", users)?;
    helper.map("gid_map", groups)?;
    helper.namespace("user")
}

/// A cgroup namespace whose root is `cgroup`, and a user namespace as [`user_namespace`].
///
/// # Errors
/// A process or a namespace cannot be made.
pub fn cgroup_and_user_namespace(cgroup: BorrowedFd<'_>, ids: &[Extent]) -> Result<(OwnedFd, OwnedFd)> {
    let helper = Helper::start(Some(cgroup), UnshareFlags::NEWCGROUP)?;
    helper.map("uid_map", ids)?;
    helper.map("gid_map", ids)?;
    Ok((helper.namespace("cgroup")?, helper.namespace("user")?))
}

/// A process that has made its namespaces and waits to be dismissed.
struct Helper {
    child: sys::Child,
    proc_dir: OwnedFd,
    /// The helper ends when this closes, also if the launcher dies.
    _hold: OwnedFd,
}

impl Helper {
    /// `first` is unshared before the user namespace, so that it belongs to the host's.
    fn start(cgroup: Option<BorrowedFd<'_>>, first: UnshareFlags) -> Result<Self> {
        let (held, hold) = pipe_with(PipeFlags::CLOEXEC).step(|| "make a pipe")?;
        let (ready, report) = pipe_with(PipeFlags::CLOEXEC).step(|| "make a pipe")?;
        match sys::fork(cgroup).step(|| "fork a helper for namespaces")? {
            Forked::Child => {
                drop(hold);
                drop(ready);
                let made = sys::unshare(first).and_then(|()| {
                    if first.contains(UnshareFlags::NEWUSER) { Ok(()) } else { sys::unshare(UnshareFlags::NEWUSER) }
                });
                let errno = made.err().map_or(0, rustix::io::Errno::raw_os_error);
                let _ = rustix::io::write(&report, &errno.to_le_bytes());
                let _ = rustix::io::read(&held, &mut [0; 1]);
                sys::exit(0);
            }
            Forked::Parent(child) => {
                drop(held);
                drop(report);
                let mut errno = [0; 4];
                let length = rustix::io::read(&ready, &mut errno).step(|| "wait for namespaces")?;
                if length != errno.len() {
                    return Err(Failure::new("make namespaces: the helper ended"));
                }
                match i32::from_le_bytes(errno) {
                    0 => {}
                    errno => return Err(Failure::of("make namespaces", rustix::io::Errno::from_raw_os_error(errno))),
                }
                let path = format!("/proc/{}", child.pid.as_raw_nonzero());
                let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
                let proc_dir = rustix::fs::open(&path, flags, Mode::empty()).step(|| format!("open {path}"))?;
                Ok(Self { child, proc_dir, _hold: hold })
            }
        }
    }

    fn map(&self, file: &str, extents: &[Extent]) -> Result<()> {
        write_map(self.proc_dir.as_fd(), file, extents)
    }

    fn namespace(&self, name: &str) -> Result<OwnedFd> {
        let path = format!("ns/{name}");
        rustix::fs::openat(&self.proc_dir, &path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
            .step(|| format!("open the {name} namespace"))
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        let _ = rustix::process::pidfd_send_signal(&self.child.pidfd, rustix::process::Signal::KILL);
        let _ = rustix::process::waitid(
            rustix::process::WaitId::PidFd(self.child.pidfd.as_fd()),
            rustix::process::WaitIdOptions::EXITED,
        );
    }
}

/// Write `extents` as the id map `file` of the process whose directory in /proc is `proc_dir`.
///
/// # Errors
/// What user_namespaces(7) says.
pub fn write_map(proc_dir: BorrowedFd<'_>, file: &str, extents: &[Extent]) -> Result<()> {
    let text: String = extents.iter().map(|e| format!("{} {} {}\n", e.disk, e.host, e.count)).collect();
    let step = || format!("write {file}");
    let fd = rustix::fs::openat(proc_dir, file, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty()).step(step)?;
    rustix::io::write(fd, text.as_bytes()).step(step)?;
    Ok(())
}
