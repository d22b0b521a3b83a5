//! At the start: compare the rows with what runs, adopt what matches, remove the rest.

use std::collections::{BTreeSet, HashMap};
use std::os::fd::AsFd;
use std::sync::Arc;

use wire::id::SessionId;
use wire::launch::Sandbox;

use super::create::{Deps, SOCKET};
use super::error::SessionError;
use super::handle::{Ask, Live, Parts, now};
use super::registry::Registry;
use super::state::State;
use crate::image::ReadyImage;
use crate::runtime::{Init, InitError};
use crate::store::{SessionRow, SessionState};

/// What a start has found.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Recovered {
    /// Sessions whose sandbox goes on.
    pub adopted: usize,
    /// Sessions whose sandbox is gone; the next command starts it.
    pub asleep: usize,
    /// Sandboxes and rows that nobody was promised.
    pub removed: usize,
}

impl Registry {
    /// Bring back every session that was promised, and remove everything else that is ours.
    ///
    /// # Errors
    /// [`SessionError`] if the database or the launcher does not answer.
    pub async fn recover(self: &Arc<Self>) -> Result<Recovered, SessionError> {
        let rows = self.deps.store.sessions().await?;
        let running = self.deps.launcher.list().await.map_err(SessionError::Launch)?;
        let mut running: HashMap<SessionId, Sandbox> = running.into_iter().map(|s| (s.id.clone(), s)).collect();
        // Also what the launcher is about to start or to end for a predecessor of this process.
        let mut begun = self.deps.begun();
        let mut recovered = Recovered::default();
        let mut stopped = Vec::new();
        for row in rows {
            let sandbox = running.remove(&row.id);
            let was_begun = begun.remove(&row.id) || sandbox.is_some();
            match row.state {
                SessionState::Running => {
                    let id = row.id.clone();
                    if !self.readopt(row, sandbox, was_begun, &mut recovered).await {
                        stopped.push(id);
                    }
                }
                SessionState::Opening | SessionState::Closing | SessionState::Purging => {
                    removed(&row.id, self.discard(&row).await, &mut recovered);
                }
            }
        }
        self.deps.store.layers_stopped(stopped, now()).await?;
        begun.extend(running.into_keys());
        if self.deps.images.others_work() {
            begun.retain(|id| !is_build(id));
        }
        for id in begun {
            removed(&id, self.deps.remove_leftover(&id).await, &mut recovered);
        }
        self.find_workspaces().await?;
        Ok(recovered)
    }

    /// A session that was promised, with or without its sandbox; whether it has one.
    async fn readopt(
        self: &Arc<Self>,
        row: SessionRow,
        sandbox: Option<Sandbox>,
        was_begun: bool,
        recovered: &mut Recovered,
    ) -> bool {
        let Some(runtime) = self.runtime(&row.runtime).cloned() else {
            // Its files are kept; it comes back when its runtime does.
            tracing::error!(session = %row.id, runtime = row.runtime, "its runtime is not allowed any more; left asleep in the database");
            self.deps.clear(&row.id).await;
            return false;
        };
        let live = match sandbox.filter(|_| self.deps.keeps(&row.id)) {
            Some(sandbox) => reconnect(&self.deps, &row, &runtime, sandbox).await,
            None => None,
        };
        if live.is_none() && was_begun {
            self.deps.clear(&row.id).await;
        }
        let state = if live.is_some() { State::Running } else { State::Asleep };
        recovered.adopted += usize::from(live.is_some());
        recovered.asleep += usize::from(live.is_none());
        let token = self.deps.key.token(&row.id, &row.nonce);
        let driver = self.enter(Parts {
            id: row.id,
            runtime,
            tenant: row.tenant,
            created_at: row.created_at,
            last_activity: row.last_activity,
            nonce: row.nonce,
            token,
            state,
        });
        if let Err(error) = self.deps.find_again(&driver.session) {
            tracing::error!(session = %driver.session.id, error = &error as &dyn std::error::Error, "workspace not opened");
        }
        if let Some(live) = &live {
            self.follow(&driver.session, &live.init).await;
        }
        let has_sandbox = live.is_some();
        tokio::spawn(driver.adopt(live));
        has_sandbox
    }

    /// Finish the ends that the launcher did not help with when they were asked for, and end what nobody has.
    pub(super) async fn finish_leftovers(self: &Arc<Self>) {
        if let Err(error) = self.try_finish_leftovers().await {
            tracing::error!(error = &error as &dyn std::error::Error, "not everything that is left was removed");
        }
    }

    async fn try_finish_leftovers(self: &Arc<Self>) -> Result<(), SessionError> {
        let unended: Vec<SessionId> = self.deps.unended().keys().cloned().collect();
        for session in unended.iter().filter_map(|id| self.get(id)) {
            let _ = session.ask(Ask::Clear).await;
        }
        // While nothing is made, by us or another process, a build sandbox is one that somebody left.
        let still = self.deps.images.hold_still().ok();
        let running = self.deps.launcher.list().await.map_err(SessionError::Launch)?;
        let mut left: BTreeSet<SessionId> = running.into_iter().map(|sandbox| sandbox.id).collect();
        // One that has ended already may have been another's when this process started, and left since.
        left.extend(self.deps.begun().into_iter().filter(is_build));
        let nobodys = |id: &SessionId| self.get(id).is_none() && (!is_build(id) || still.is_some());
        for id in left.into_iter().filter(nobodys) {
            // Reserved, so that nobody opens it meanwhile.
            if let Some(_reserved) = self.reserve(&id) {
                self.deps.remove_leftover(&id).await?;
            }
        }
        // One that runs, and that nobody has, is one whose end could not be recorded (a full disk) — unless its runtime is not
        // allowed now: then it waits for that.
        let ends = |row: &SessionRow| row.state != SessionState::Running || self.runtime(&row.runtime).is_some();
        let left = |row: &SessionRow| ends(row) && self.get(&row.id).is_none();
        for id in self.deps.store.sessions().await?.into_iter().filter(left).map(|row| row.id) {
            let Some(_reserved) = self.reserve(&id) else { continue };
            // It may have been opened and closed since.
            let rows = self.deps.store.sessions().await?;
            if let Some(row) = rows.iter().find(|row| row.id == id && ends(row)) {
                self.discard(row).await?;
            }
        }
        Ok(())
    }

    /// Workspaces that are on disk and in no row. One with nothing in it is of an opening that was cut off, and goes;
    /// the others are of a database that was moved aside, and are recorded.
    async fn find_workspaces(&self) -> Result<(), SessionError> {
        let entries = rustix::fs::Dir::read_from(&self.deps.workspaces).into_iter().flatten().flatten();
        let names = entries.filter_map(|entry| entry.file_name().to_str().ok().map(str::to_owned));
        let ids = names.filter_map(|name| SessionId::parse(&name).ok()).collect();
        let mut ids = self.deps.store.unrecorded(ids).await?;
        ids.retain(|id| !self.deps.remove_empty_workspace(id));
        let runtime = self.policy().default_runtime.clone();
        Ok(self.deps.store.find_workspaces(ids, runtime, now()).await?)
    }

    /// A session that nobody was told of, or whose end was asked for.
    async fn discard(&self, row: &SessionRow) -> Result<(), SessionError> {
        let (id, deps) = (&row.id, &self.deps);
        let purge = match row.state {
            SessionState::Purging => true,
            SessionState::Opening => deps.store.workspace_is_new(id.clone(), row.created_at).await?,
            SessionState::Closing | SessionState::Running => false,
        };
        let keep_layer = deps.settings.persist_containers && !purge;
        deps.try_clear(id).await.map_err(SessionError::Launch)?;
        deps.try_delete(id, keep_layer, purge).await.map_err(SessionError::Launch)?;
        if keep_layer {
            deps.store.layer_stopped(id.clone(), now()).await?;
        } else {
            deps.store.layer_dropped(id.clone()).await?;
        }
        Ok(deps.store.remove_session(id.clone(), purge).await?)
    }
}

async fn reconnect(
    deps: &Deps,
    row: &SessionRow,
    runtime: &Arc<crate::catalog::Runtime>,
    sandbox: Sandbox,
) -> Option<Live> {
    let slot = Arc::new(deps.slots.claim(row.slot?)?);
    if sandbox.frozen {
        // It does not answer before; the sweeper freezes it again.
        deps.launcher.thaw(&row.id).await.ok()?;
    }
    let image = stands_on(deps, &row.id, runtime).await?;
    match connect(deps, &row.id).await {
        Ok(init) => {
            // Without it, it goes on, and nobody answers its questions for names.
            let admitted = deps.networks.admit(&row.id, slot.number(), runtime).await;
            let lease = admitted.unwrap_or_else(|error| {
                tracing::error!(session = %row.id, error = &error as &dyn std::error::Error, "no names for it");
                None
            });
            Some(Live::new(init, slot, image, sandbox.cgroup.into(), lease.map(|(_, lease)| lease)))
        }
        Err(error) => {
            tracing::warn!(session = %row.id, error = &error as &dyn std::error::Error, "its init does not answer; ending the sandbox");
            let _ = deps.end(&row.id, &slot).await;
            None
        }
    }
}

/// The image that a sandbox which runs was started on. None is made for it, nor another taken: a start waits for no build, and
/// its commands are the user that they were.
async fn stands_on(deps: &Deps, id: &SessionId, runtime: &Arc<crate::catalog::Runtime>) -> Option<Arc<ReadyImage>> {
    let tag = match deps.store.layer_tag(id.clone()).await {
        Ok(tag) => tag?,
        Err(error) => {
            tracing::error!(session = %id, error = &error as &dyn std::error::Error, "its image is not known");
            return None;
        }
    };
    let image = deps.images.tagged(runtime, &tag);
    if image.is_none() {
        tracing::warn!(session = %id, tag, "the image that it stands on is not here any more; ending the sandbox");
    }
    image
}

/// One that cannot be removed now stops no other session from coming back: the sweeper tries again.
fn removed(id: &SessionId, result: Result<(), SessionError>, recovered: &mut Recovered) {
    match result {
        Ok(()) => recovered.removed += 1,
        Err(error) => tracing::error!(session = %id, error = &error as &dyn std::error::Error, "not removed"),
    }
}

/// A name as builds have; a session of such a name is swept at the next start.
fn is_build(id: &SessionId) -> bool {
    id.as_str().starts_with("build-")
}

async fn connect(deps: &Deps, id: &SessionId) -> Result<Init, InitError> {
    let dir = deps.socket_dir(id)?;
    Init::connect(dir.as_fd(), SOCKET).await
}
