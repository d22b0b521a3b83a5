//! At the start: compare the rows with what runs, adopt what matches, remove the rest.

use std::collections::HashMap;
use std::os::fd::AsFd;
use std::sync::Arc;

use wire::id::SessionId;
use wire::launch::Sandbox;

use super::create::{Deps, SOCKET};
use super::error::SessionError;
use super::registry::Registry;
use super::session::{Live, Parts, now};
use super::state::State;
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
        let mut recovered = Recovered::default();
        for row in rows {
            let sandbox = running.remove(&row.id);
            match row.state {
                SessionState::Running => self.readopt(row, sandbox, &mut recovered).await,
                SessionState::Opening | SessionState::Closing => self.discard(&row, false, &mut recovered).await?,
                SessionState::Purging => self.discard(&row, true, &mut recovered).await?,
            }
        }
        self.find_workspaces().await?;
        for id in running.into_keys() {
            tracing::warn!(sandbox = %id, "a sandbox that no session has; ending it");
            self.deps.clear(&id).await;
            self.deps.delete(&id, false, false).await;
            recovered.removed += 1;
        }
        Ok(recovered)
    }

    /// A session that was promised, with or without its sandbox.
    async fn readopt(self: &Arc<Self>, row: SessionRow, sandbox: Option<Sandbox>, recovered: &mut Recovered) {
        let Some(runtime) = self.runtime(&row.runtime).cloned() else {
            // Its files are kept; it comes back when its runtime does.
            tracing::error!(session = %row.id, runtime = row.runtime, "its runtime is not allowed any more; left asleep in the database");
            self.deps.clear(&row.id).await;
            return;
        };
        let live = match sandbox {
            Some(sandbox) => reconnect(&self.deps, &row, &runtime, sandbox).await,
            None => None,
        };
        if live.is_none() {
            self.deps.clear(&row.id).await;
            if let Err(error) = self.deps.store.layer_stopped(row.id.clone(), now()).await {
                tracing::error!(session = %row.id, error = &error as &dyn std::error::Error, "the stop is not recorded");
            }
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
        if let Err(error) = self.deps.prepare(&driver.session) {
            tracing::error!(session = %driver.session.id, error = &error as &dyn std::error::Error, "workspace not opened");
        }
        if let Some(live) = &live {
            self.follow(&driver.session, &live.init).await;
        }
        tokio::spawn(driver.adopt(live));
    }

    /// Record workspaces that are on disk and in no row: of a database that was moved aside.
    async fn find_workspaces(&self) -> Result<(), SessionError> {
        let entries = rustix::fs::Dir::read_from(&self.deps.workspaces).into_iter().flatten().flatten();
        let names = entries.filter_map(|entry| entry.file_name().to_str().ok().map(str::to_owned));
        let ids = names.filter_map(|name| SessionId::parse(&name).ok()).collect();
        let runtime = self.policy().default_runtime.clone();
        Ok(self.deps.store.find_workspaces(ids, runtime, now()).await?)
    }

    /// A session that nobody was told of, or whose end was asked for.
    async fn discard(&self, row: &SessionRow, purge: bool, recovered: &mut Recovered) -> Result<(), SessionError> {
        self.deps.clear(&row.id).await;
        self.deps.delete(&row.id, self.deps.settings.persist_containers && !purge, purge).await;
        self.deps.store.remove_session(row.id.clone(), purge).await?;
        recovered.removed += 1;
        Ok(())
    }
}

async fn reconnect(
    deps: &Deps,
    row: &SessionRow,
    runtime: &Arc<crate::catalog::Runtime>,
    sandbox: Sandbox,
) -> Option<Live> {
    let slot = deps.slots.claim(row.slot?)?;
    if sandbox.frozen {
        // It does not answer before; the sweeper freezes it again.
        deps.launcher.thaw(&row.id).await.ok()?;
    }
    let image = deps.image(runtime).await.ok()?;
    match connect(deps, &row.id).await {
        Ok(init) => Some(Live::new(init, slot, image, sandbox.cgroup.into())),
        Err(error) => {
            tracing::warn!(session = %row.id, error = &error as &dyn std::error::Error, "its init does not answer; ending the sandbox");
            None
        }
    }
}

async fn connect(deps: &Deps, id: &SessionId) -> Result<Init, InitError> {
    let dir = deps.socket_dir(id)?;
    Init::connect(dir.as_fd(), SOCKET).await
}
