//! Workspaces that are kept, whether or not they have a session now.

use std::sync::Arc;

use wire::id::SessionId;
use wire::launch::DiskUsage;

use super::error::SessionError;
use super::registry::{Registry, Reserved};
use super::state::State;
pub use crate::store::WorkspaceRow;

impl Registry {
    /// Workspaces `skip..skip + limit` of all, or of `only` this session, last opened first, and how many there are.
    ///
    /// # Errors
    /// [`SessionError::Store`].
    pub async fn workspaces(
        &self,
        skip: u64,
        limit: u64,
        only: Option<SessionId>,
    ) -> Result<(Vec<WorkspaceRow>, u64), SessionError> {
        Ok(self.deps.store.workspaces(skip, limit, only).await?)
    }

    /// What each of these uses of the disk, whether or not it is open; at most 100 are looked at.
    pub async fn disk_usage(&self, ids: &[SessionId]) -> Vec<Option<DiskUsage>> {
        let runs = |id: &SessionId| self.get(id).is_some_and(|session| session.sandbox().is_some());
        self.deps.quotas.shown(ids, runs).await
    }

    /// Delete the workspace of a session that is closed, with what it had installed; `false` if there is none of that name.
    /// No sandbox is started for it, and nobody opens it meanwhile. Whoever stops waiting does not stop it in the middle.
    ///
    /// # Errors
    /// [`SessionError`] if its session is open, or it is not all gone: then it is listed still, and can be deleted again.
    pub async fn purge(self: &Arc<Self>, id: SessionId) -> Result<bool, SessionError> {
        let Some(reserved) = self.reserve(&id) else { return Err(self.in_use(id)) };
        let registry = self.clone();
        let task = {
            let id = id.clone();
            tokio::spawn(async move { registry.purge_reserved(&reserved, &id).await })
        };
        task.await.map_err(|_| SessionError::Broken(id))?
    }

    async fn purge_reserved(&self, _reserved: &Reserved, id: &SessionId) -> Result<bool, SessionError> {
        if self.deps.store.workspace_runtime(id.clone()).await?.is_none() {
            return Ok(false);
        }
        self.deps.try_delete(id, false, true).await.map_err(SessionError::Launch)?;
        self.deps.store.remove_session(id.clone(), true).await?;
        tracing::info!(workspace = %id, "deleted, as somebody asked");
        Ok(true)
    }

    /// Why a name cannot be reserved.
    fn in_use(&self, id: SessionId) -> SessionError {
        match self.get(&id).map(|session| session.state()) {
            Some(State::Opening) => SessionError::Opening(id),
            // Without a session it is being deleted already.
            Some(State::Closing) | None => SessionError::Closing(id),
            Some(State::Running | State::Frozen | State::Dozing | State::Asleep | State::Waking) => {
                SessionError::Exists(id)
            }
        }
    }
}
