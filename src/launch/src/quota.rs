//! What a session may use of the disk: by a project quota of the file system, where it has one.
//!
//! Every session has a project id ([`FS_IOC_FSSETXATTR`](https://man7.org/linux/man-pages/man2/ioctl_xfs_fsgetxattr.2.html)):
//! on its directories, which hand it on to everything that is made in them. Nothing inside can change one: the kernel
//! takes that from the initial user namespace alone. The directories are the record of which id is whose, and the
//! kernel's own count says which are free: an id under which there is an inode is somebody's, if only because the
//! trash has not been emptied yet.
//!
//! ```text
//! workspaces/ID  workspaces/ID/workspace  sessions/ID  sessions/ID/{upper,work}     one project, one limit
//! ```
//! ext4 and xfs alike are asked through quotactl_fd(2). Elsewhere nothing is enforced here, and [`measure`] looks.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{FileType, FlockOperation, OFlags};
use rustix::io::Errno;
use wire::id::SessionId;
use wire::journal::Priority;
use wire::launch::{Answer, DiskEnforcement, DiskUsage, Kind, Limits, Plan};

use crate::config::{Config, PROJECTS};
use crate::error::{Failure, Result, Step};
use crate::log;
use crate::measure;
use crate::store::{self, Store};
use crate::sys;
use crate::sys::project::{self, Project};

/// What a start may take when the share is used up, in bytes and inodes: overlayfs makes a directory, and we make the places of
/// mounts. xfs sets some 400 KiB aside for each before it knows what it takes, for root as for others.
const START: DiskUsage = DiskUsage { bytes: 1 << 20, inodes: 64, complete: true };

/// Who holds sessions to their share of the disk on this host.
#[derive(Debug, Clone)]
pub struct Quotas {
    /// First project id of ours.
    base: u32,
    /// Why there is no project quota; none: there is.
    missing: Option<String>,
}

impl Quotas {
    /// Try whether the file systems of workspaces and write layers enforce project quotas.
    #[must_use]
    pub fn look(config: &Config, store: &Store) -> Self {
        let missing = [("workspaces", &store.workspaces), ("sessions", &store.sessions)]
            .into_iter()
            .find_map(|(name, dir)| lacks(dir.as_fd()).map(|why| format!("the file system of {name} {why}")));
        Self { base: config.quota_project_base, missing }
    }

    /// Say once, at start, how it is.
    pub fn report(&self) {
        match &self.missing {
            None => log::say(Priority::Info, "disk quotas are enforced by the file system (project quotas)"),
            Some(why) => log::say(Priority::Info, &format!("disk quotas are only measured: {why}")),
        }
    }

    /// Hold a session that is about to start to its limits, but for what the start itself may need: [`Room::close`] is for
    /// when it has started. Builds have none.
    ///
    /// # Errors
    /// Its directories are not there, or the file system refuses.
    pub fn assign(&self, config: &Config, store: &Store, plan: &Plan) -> Result<Room> {
        if self.missing.is_some() || plan.kind == Kind::Build {
            return Ok(Room::default());
        }
        let id = &plan.id;
        store.workspace(id, config.service_uid)?;
        let layer = store.write_layer(id, config.first_id(0))?;
        let workspace = open_dir(&store.workspaces, id.as_str()).step(|| format!("open workspaces/{id}"))?;
        let number = self.project_of(store, [workspace.as_fd(), layer.as_fd()], id)?;
        let mut room = Room { project: number, limits: plan.limits.clone(), dirs: Vec::new() };
        for dir in [workspace, layer] {
            let raised = set_start_limits(dir.as_fd(), number, &plan.limits)
                .step(|| format!("set the disk quota of {id}, project {number}"))?;
            hand_over(&dir, number)?;
            room.dirs.extend(raised.then_some(dir));
        }
        Ok(room)
    }

    /// The limits of a session whose workspace is about to go are nobody's.
    pub fn release(&self, store: &Store, id: &SessionId) {
        if self.missing.is_some() || open_dir(&store.sessions, id.as_str()).is_ok() {
            return;
        }
        if let Ok(dir) = open_dir(&store.workspaces, id.as_str())
            && let Some(project) = self.ours(dir.as_fd())
        {
            // What is left says nothing: an id is free when it has no inode.
            let _ = set_limits(dir.as_fd(), project, &Limits::default());
        }
    }

    /// What sessions use.
    #[must_use]
    pub fn usage(&self, store: &Store, ids: &[SessionId]) -> Answer {
        let enforcement = match self.missing {
            None => DiskEnforcement::Project,
            Some(_) => DiskEnforcement::Measured,
        };
        sys::run_in_background();
        let until = measure::soon();
        let usage = |id: &SessionId| self.counted(store, id).unwrap_or_else(|| measured(store, id, until));
        Answer::Usage { enforcement, usage: ids.iter().map(usage).collect() }
    }

    /// What the file system counts for a session; none if that is not all of it.
    fn counted(&self, store: &Store, id: &SessionId) -> Option<DiskUsage> {
        if self.missing.is_some() {
            return None;
        }
        let mut all = DiskUsage { complete: true, ..DiskUsage::default() };
        let mut seen: Vec<(u64, u32)> = Vec::new();
        for parent in [&store.workspaces, &store.sessions] {
            let dir = match open_dir(parent, id.as_str()) {
                Ok(dir) => dir,
                Err(Errno::NOENT) => continue,
                Err(_) => return None,
            };
            let place = (rustix::fs::fstat(&dir).ok()?.st_dev, self.ours(dir.as_fd())?);
            if !seen.contains(&place) {
                let usage = project::project_usage(dir.as_fd(), place.1).ok()?;
                all = add(all, usage);
                seen.push(place);
            }
        }
        Some(all)
    }

    /// The project of a session: its directories', else a free one.
    fn project_of(&self, store: &Store, dirs: [BorrowedFd<'_>; 2], id: &SessionId) -> Result<u32> {
        if let Some(project) = dirs.iter().find_map(|dir| self.ours(*dir)) {
            return Ok(project);
        }
        // Until it has an inode, it looks free to others.
        let lock = open_dir(&store.sessions, ".").step(|| "open the directory of write layers")?;
        rustix::fs::flock(&lock, FlockOperation::LockExclusive).step(|| "lock the project ids")?;
        let first = hash(id.as_str()) % PROJECTS;
        for step in 0..PROJECTS {
            let project = self.base + (first + step) % PROJECTS;
            let used = |dir: &BorrowedFd<'_>| project::project_usage(*dir, project).map(|usage| usage.inodes);
            let used: u64 = dirs.iter().map(used).sum::<Result<_, _>>().step(|| "look for a free project id")?;
            if used == 0 {
                // Not the layer itself, which says that all of it is given away.
                let work = open_dir(dirs[1], "work").step(|| format!("open the write layer of {id}"))?;
                let own = Project { id: project, inherited: true };
                project::set_project(work.as_fd(), own).step(|| format!("take project {project} for {id}"))?;
                return Ok(project);
            }
        }
        Err(Failure::new("look for a free project id: there is none"))
    }

    /// The project of a directory, if it is one of ours.
    fn ours(&self, dir: BorrowedFd<'_>) -> Option<u32> {
        let project = project::project(dir).ok()?.id;
        (self.base..self.base + PROJECTS).contains(&project).then_some(project)
    }
}

/// What a session may have beyond its share while it starts. Nothing of a stranger's runs in it before the start is answered.
#[derive(Debug, Default)]
pub struct Room {
    project: u32,
    limits: Limits,
    /// Of the file systems where it has more.
    dirs: Vec<OwnedFd>,
}

impl Room {
    /// The session has started, or will not: it has its share and no more. Where that fails it has [`START`] more until its next
    /// start, which is said in the log.
    pub fn close(self) {
        for dir in &self.dirs {
            if let Err(errno) = set_limits(dir.as_fd(), self.project, &self.limits) {
                log::say(Priority::Warning, &format!("lower the disk quota of project {}: {errno}", self.project));
            }
        }
    }
}

/// Why a file system does not enforce project quotas; none if it does.
fn lacks(dir: BorrowedFd<'_>) -> Option<String> {
    match project::enforces_projects(dir) {
        Ok(true) => project::project(dir).err().map(|errno| format!("has no project ids ({errno})")),
        Ok(false) => Some("does not enforce project quotas (mount it with prjquota)".to_owned()),
        Err(errno) => Some(format!("has no project quotas ({errno})")),
    }
}

fn set_limits(dir: BorrowedFd<'_>, project: u32, limits: &Limits) -> Result<(), Errno> {
    project::set_project_limits(dir, project, limits.disk_bytes.unwrap_or(0), limits.disk_inodes.unwrap_or(0))
}

/// The limits for as long as a session starts, and whether they are more than its share.
fn set_start_limits(dir: BorrowedFd<'_>, project: u32, limits: &Limits) -> Result<bool, Errno> {
    let own = (limits.disk_bytes, limits.disk_inodes);
    let room = with_room(own, project::project_usage(dir, project)?);
    project::set_project_limits(dir, project, room.0.unwrap_or(0), room.1.unwrap_or(0))?;
    Ok(room != own)
}

/// Limits, in bytes and inodes, that leave [`START`] to who has so much; none: nothing is limited.
fn with_room(limits: (Option<u64>, Option<u64>), used: DiskUsage) -> (Option<u64>, Option<u64>) {
    let bytes = limits.0.map(|limit| limit.max(used.bytes.saturating_add(START.bytes)));
    (bytes, limits.1.map(|limit| limit.max(used.inodes.saturating_add(START.inodes))))
}

/// Give a directory, and all that is in it, to a project: what was made before there were quotas, or before the
/// directory was given away. The directory comes last: until then it is not done, and is done again. Links and pipes
/// cannot be given away; each of those that there were is an inode that nobody is charged for.
fn hand_over(dir: &OwnedFd, project: u32) -> Result<()> {
    let own = Project { id: project, inherited: true };
    let step = || format!("give files to project {project}");
    if project::project(dir.as_fd()).step(step)? == own {
        return Ok(());
    }
    let complete = measure::walk(dir, measure::soon(), &mut |entry| {
        let inherited = match entry.kind() {
            FileType::Directory => true,
            FileType::RegularFile => false,
            _ => return Ok(()),
        };
        match measure::open_entry(entry.parent, entry.name, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY) {
            Ok(file) => project::set_project(file.as_fd(), Project { id: project, inherited }),
            Err(Errno::NOENT | Errno::LOOP) => Ok(()),
            Err(errno) => Err(errno),
        }
    });
    if !complete.step(step)? {
        return Err(Failure::new(format!("{}: they are too many for one start", step())));
    }
    project::set_project(dir.as_fd(), own).step(step)
}

fn measured(store: &Store, id: &SessionId, until: std::time::Instant) -> DiskUsage {
    let mut all = DiskUsage { complete: true, ..DiskUsage::default() };
    for parent in [&store.workspaces, &store.sessions] {
        match open_dir(parent, id.as_str()) {
            Ok(dir) => all = add(all, measure::tree(&dir, until)),
            Err(Errno::NOENT) => {}
            Err(_) => all.complete = false,
        }
    }
    all
}

fn add(a: DiskUsage, b: DiskUsage) -> DiskUsage {
    DiskUsage { bytes: a.bytes + b.bytes, inodes: a.inodes + b.inodes, complete: a.complete && b.complete }
}

fn open_dir(dir: impl AsFd, name: &str) -> Result<OwnedFd, Errno> {
    store::open_beneath(dir, name, OFlags::RDONLY | OFlags::DIRECTORY)
}

/// FNV-1a: where the search for a free project begins, so that it mostly ends there.
fn hash(text: &str) -> u32 {
    text.bytes().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_start_has_room_where_the_share_is_used_up_and_nowhere_else() {
        let used = |bytes, inodes| DiskUsage { bytes, inodes, complete: true };
        let share = (Some(32 << 20), Some(600));
        for (limits, used, expected) in [
            (share, used(0, 0), share),
            (share, used(31 << 20, 536), share),
            (share, used(32 << 20, 100), (Some(33 << 20), Some(600))),
            (share, used(1 << 20, 600), (Some(32 << 20), Some(664))),
            // Its quota was lowered meanwhile.
            (share, used(64 << 20, 5000), (Some(65 << 20), Some(5064))),
            ((None, None), used(64 << 20, 5000), (None, None)),
        ] {
            assert_eq!(with_room(limits, used), expected, "{used:?} of {limits:?}");
        }
    }
}
