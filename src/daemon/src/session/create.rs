//! Making a sandbox for a session, and undoing it: each step has its opposite.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;
use tokio::sync::{Notify, Semaphore};
use wire::id::SessionId;
use wire::launch::{Egress, Kind, Limits, Network, Plan};

use super::census::Tallies;
use super::error::SessionError;
use super::handle::{Live, Session};
use super::limits::Ceilings;
use super::network::Networks;
use super::policy::Policy;
use super::quota::{DiskError, Quotas};
use super::token::Key;
use crate::catalog::Runtime;
use crate::config::Settings;
use crate::fail;
use crate::files::Workspace;
use crate::image::{Images, ReadyImage, SharedError};
use crate::metrics::{self, Phase};
use crate::request;
use crate::runtime::{Init, LaunchError, Launcher, Slot, Slots, listener};
use crate::store::Store;

/// Name of an init's control socket in its directory.
pub const SOCKET: &str = "init.sock";

/// Told that a session was stopped, and why.
pub type OnStopped = Box<dyn Fn(&Session, &DiskError) + Send + Sync>;

/// What sessions are made of and with.
pub struct Deps {
    /// What is set.
    pub settings: Settings,
    /// The rows.
    pub store: Store,
    /// The privileged half.
    pub launcher: Launcher,
    /// Ranges of ids.
    pub slots: Slots,
    /// Those of sandboxes that could not be ended: nobody else is given one before they are.
    pub unended: Mutex<BTreeMap<SessionId, Arc<Slot>>>,
    /// Networks.
    pub networks: Networks,
    /// Where images come from.
    pub images: Images,
    /// Of the tokens.
    pub key: Key,
    /// Told the ends of commands whose requests died with a predecessor of this process.
    pub found: super::OnFound,
    /// How long the command of a note was to take at most, if its client has said.
    pub noted: fn(&[u8]) -> Option<Duration>,
    /// Told that a session was stopped, and why.
    pub stopped: OnStopped,
    /// What sessions may use of the disk.
    pub quotas: Quotas,
    /// What tenants have used.
    pub tallies: Tallies,
    /// Told that a sandbox runs, for who has nothing to do while none does.
    pub begun_running: Notify,
    /// Commands that may still be started.
    pub commands: Semaphore,
    /// `RUNTIME_DIR/sessions`.
    pub sockets: OwnedFd,
    /// `workspace_root`.
    pub workspaces: OwnedFd,
}

impl std::fmt::Debug for Deps {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Deps")
    }
}

/// What an opening found, for its undoing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found {
    /// There was no workspace; it was made.
    Nothing,
    /// A kept workspace was found again.
    Workspace,
}

impl Deps {
    /// Whether a workspace of that name is kept.
    #[must_use]
    pub fn keeps(&self, id: &SessionId) -> bool {
        Workspace::open(self.workspaces.as_fd(), id, &self.settings.work_dir).is_ok()
    }

    /// Make the session's workspace, or find it, and open it.
    ///
    /// # Errors
    /// [`SessionError::Io`].
    pub fn prepare(&self, session: &Session) -> Result<Found, SessionError> {
        let io =
            |source: io::Error| SessionError::Io { operation: "make the workspace", id: session.id.clone(), source };
        let found = make_workspace(&self.workspaces, &session.id).map_err(|e| io(e.into()))?;
        if found == Found::Nothing {
            self.quotas.fresh(&session.id);
        }
        self.find_again(session)?;
        Ok(found)
    }

    /// Open the workspace of a session that has had one.
    ///
    /// # Errors
    /// [`SessionError::FilesGone`]: it is not made anew, nobody is to take an empty directory for what was there.
    pub fn find_again(&self, session: &Session) -> Result<(), SessionError> {
        let workspace = Workspace::open(self.workspaces.as_fd(), &session.id, &self.settings.work_dir)
            .map_err(|_| SessionError::FilesGone(session.id.clone()))?;
        if let Err(error) = workspace.sweep() {
            tracing::warn!(session = %session.id, error = &error as &dyn std::error::Error, "leftovers of writes stay");
        }
        // Set once; a session that wakes keeps the one that it has.
        let _ = session.workspace.set(workspace);
        Ok(())
    }

    /// Start a sandbox for the session and wait until its init is ready.
    ///
    /// # Errors
    /// [`SessionError`]; then the caller sees to it that nothing of the sandbox is left, but perhaps its write layer.
    pub async fn launch(&self, session: &Session, policy: &Policy) -> Result<Live, SessionError> {
        let image = self.image(&session.runtime).await.map_err(SessionError::Image)?;
        self.fit_layer(&session.id, &image.tag).await?;
        let slot = Arc::new(self.slots.take().ok_or(SessionError::NoSlot)?);
        let (egress, lease) = self.networks.admit(&session.id, slot.number(), &session.runtime).await?.unzip();
        let plan = self.plan(session, &image, slot.number(), policy, egress);
        let io = |source| SessionError::Io { operation: "make the control socket", id: session.id.clone(), source };
        let dir = self.socket_dir(&session.id).map_err(io)?;
        let control = listener(dir.as_fd(), SOCKET).map_err(io)?;
        fail::point("start.listening");
        let started = self.launcher.start(plan, &control).await;
        fail::point("start.launched");
        let started = match started {
            Ok(started) => started,
            Err(error) => {
                // The launcher may have died over it, and not have undone it. It has to go before its range of ids is another's;
                // if it does not, that is logged when the caller tries.
                let _ = self.end(&session.id, &slot).await;
                return Err(SessionError::Launch(error));
            }
        };
        for part in &started.phases {
            metrics::PHASES.observe(phase(&part.name), Duration::from_micros(part.us));
        }
        tracing::debug!(session = %session.id, phases = ?started.phases, "launched");
        // Only the init's copy may keep the socket alive, so that its end is noticed.
        drop(control);
        match Init::connect(dir.as_fd(), SOCKET).await {
            Ok(init) => {
                fail::point("start.ready");
                Ok(Live::new(init, slot, image, started.cgroup, lease))
            }
            Err(error) => {
                let _ = self.end(&session.id, &slot).await;
                Err(SessionError::Init(error))
            }
        }
    }

    /// The runtime's image, made ready if it is not.
    pub(super) async fn image(&self, runtime: &Runtime) -> Result<Arc<ReadyImage>, SharedError> {
        match self.images.ready(runtime) {
            Some(image) => Ok(image),
            None => self.images.ensure(runtime).await,
        }
    }

    /// A write layer stands on the image that it was written over, and on no other: drop one that does not fit.
    async fn fit_layer(&self, id: &SessionId, tag: &str) -> Result<(), SessionError> {
        match self.store.layer_tag(id.clone()).await? {
            Some(kept) if kept != tag => {
                tracing::warn!(session = %id, "its runtime's image is another one now; what it had installed is dropped");
                self.drop_layer(id).await
            }
            Some(_) | None => Ok(()),
        }
    }

    /// Delete the write layer of a stopped session, open or closed.
    ///
    /// # Errors
    /// [`SessionError::Launch`] if it is there still, [`SessionError::Store`] if its end is not recorded.
    pub(super) async fn drop_layer(&self, id: &SessionId) -> Result<(), SessionError> {
        self.try_delete(id, false, false).await.map_err(SessionError::Launch)?;
        Ok(self.store.layer_dropped(id.clone()).await?)
    }

    /// End what is left of a session's sandbox. Its write layer stays.
    pub async fn clear(&self, id: &SessionId) {
        if let Err(error) = self.try_clear(id).await {
            tracing::error!(session = %id, error = &error as &dyn std::error::Error, "sandbox not ended");
        }
    }

    /// The same, for those who have to know.
    ///
    /// # Errors
    /// [`LaunchError`]; the directory of its control socket says that it is to be ended.
    pub(super) async fn try_clear(&self, id: &SessionId) -> Result<(), LaunchError> {
        self.launcher.stop(id).await?;
        self.unended().remove(id);
        self.remove_socket(id);
        Ok(())
    }

    /// The same for one in this range of ids, which is another's only when it has ended.
    ///
    /// # Errors
    /// [`LaunchError`]; somebody tries again.
    pub(super) async fn end(&self, id: &SessionId, slot: &Arc<Slot>) -> Result<(), LaunchError> {
        let cleared = self.try_clear(id).await;
        if cleared.is_err() {
            self.unended().insert(id.clone(), slot.clone());
        }
        cleared
    }

    /// Sandboxes that could not be ended.
    pub(super) fn unended(&self) -> MutexGuard<'_, BTreeMap<SessionId, Arc<Slot>>> {
        self.unended.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Delete what a stopped session keeps: its write layer unless `keep_layer`, its workspace if `purge`.
    ///
    /// # Errors
    /// [`LaunchError`]; some of it is there still, so whatever says so has to stay.
    pub(super) async fn try_delete(&self, id: &SessionId, keep_layer: bool, purge: bool) -> Result<(), LaunchError> {
        if !keep_layer {
            self.launcher.forget(id).await?;
        }
        self.quotas.removed(id);
        if purge {
            self.launcher.remove_workspace(id).await?;
            self.quotas.forget(id);
        }
        Ok(())
    }

    /// End and delete what nobody has: a sandbox without a row, a build whose service was killed.
    pub(super) async fn remove_leftover(&self, id: &SessionId) -> Result<(), SessionError> {
        tracing::warn!(sandbox = %id, "a sandbox that no session has; ending it");
        self.launcher.stop(id).await.map_err(SessionError::Launch)?;
        self.unended().remove(id);
        if self.store.layer_tag(id.clone()).await?.is_none() {
            self.launcher.forget(id).await.map_err(SessionError::Launch)?;
        }
        // Last: it is by this that a start finds what was begun.
        self.remove_socket(id);
        Ok(())
    }

    /// Every name that has a directory for a control socket: what runs, was being started, or was being ended.
    pub(super) fn begun(&self) -> BTreeSet<SessionId> {
        let entries = rustix::fs::Dir::read_from(&self.sockets).into_iter().flatten().flatten();
        let names = entries.filter_map(|entry| entry.file_name().to_str().ok().map(str::to_owned));
        names.filter_map(|name| SessionId::parse(&name).ok()).collect()
    }

    /// Remove a workspace that has nothing in it; whether it had nothing.
    pub(super) fn remove_empty_workspace(&self, id: &SessionId) -> bool {
        let workspace = rustix::fs::unlinkat(&self.workspaces, format!("{id}/workspace"), AtFlags::REMOVEDIR);
        matches!(workspace, Ok(()) | Err(Errno::NOENT))
            && rustix::fs::unlinkat(&self.workspaces, id.as_str(), AtFlags::REMOVEDIR).is_ok()
    }

    /// The directory of a session's control socket, made if need be.
    pub(super) fn socket_dir(&self, id: &SessionId) -> io::Result<OwnedFd> {
        match rustix::fs::mkdirat(&self.sockets, id.as_str(), Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(rustix::fs::openat(&self.sockets, id.as_str(), flags, Mode::empty())?)
    }

    pub(super) fn remove_socket(&self, id: &SessionId) {
        // Ours alone; what is not there needs no removing.
        let _ = rustix::fs::unlinkat(&self.sockets, format!("{id}/{SOCKET}"), AtFlags::empty());
        let _ = rustix::fs::unlinkat(&self.sockets, id.as_str(), AtFlags::REMOVEDIR);
    }

    fn plan(&self, session: &Session, image: &ReadyImage, slot: u32, policy: &Policy, egress: Option<Egress>) -> Plan {
        let settings = &self.settings;
        let ceilings = Ceilings::of(&session.runtime.alias, policy);
        Plan {
            id: session.id.clone(),
            kind: Kind::Session,
            slot,
            layers: image.layers.clone(),
            workspace_uid: image.uid,
            work_dir: settings.work_dir.clone(),
            hostname: hostname(&session.id),
            tmpfs_bytes: ceilings.tmpfs_size.as_ref().map(|size| size.bytes().clamp(4096, 1 << 40)),
            limits: Limits { disk_bytes: self.quotas.bytes, disk_inodes: self.quotas.inodes, ..ceilings.limits() },
            network: if egress.is_some() { Network::Bridge } else { Network::None },
            egress: egress.unwrap_or_default(),
            oci_runtime: session.runtime.oci_runtime.or(settings.oci_runtime).unwrap_or_default(),
            request: request::current().map(|request| request.id.clone()),
        }
    }
}

/// A part of a launch by what the launcher calls it.
fn phase(name: &str) -> Phase {
    match name {
        "cgroup" => Phase::Cgroup,
        "mappings" => Phase::Mappings,
        "limits" => Phase::Limits,
        "mounts" => Phase::Mounts,
        "rootfs" => Phase::Rootfs,
        "bundle" => Phase::Bundle,
        "libcontainer build" => Phase::Build,
        "libcontainer start" => Phase::Start,
        "network" => Phase::Network,
        "crun" | "runc" | "runsc" => Phase::Oci,
        _ => Phase::Other,
    }
}

fn make_workspace(root: &OwnedFd, id: &SessionId) -> Result<Found, Errno> {
    match rustix::fs::mkdirat(root, id.as_str(), Mode::from_raw_mode(0o755)) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(error) => return Err(error),
    }
    match rustix::fs::mkdirat(root, format!("{id}/workspace"), Mode::from_raw_mode(0o755)) {
        Ok(()) => Ok(Found::Nothing),
        Err(Errno::EXIST) => Ok(Found::Workspace),
        Err(error) => Err(error),
    }
}

/// A host name of the session's: letters, digits and hyphens, at most 63 (hostname(7)).
fn hostname(id: &SessionId) -> String {
    let name: String =
        id.as_str().bytes().take(63).map(|b| if b.is_ascii_alphanumeric() { b as char } else { '-' }).collect();
    name.trim_end_matches('-').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_session_id_makes_a_host_name() {
        for (id, name) in [("s-1", "s-1"), ("a.b_c", "a-b-c"), ("a...", "a")] {
            assert_eq!(hostname(&SessionId::parse(id).unwrap()), name);
        }
        assert_eq!(hostname(&SessionId::parse(&"x".repeat(64)).unwrap()).len(), 63);
    }
}
