//! Workspaces that are kept, whether or not they have a session now.

use wire::id::SessionId;
use wire::launch::DiskUsage;

use super::error::SessionError;
use super::registry::Registry;
pub use crate::store::WorkspaceRow;

impl Registry {
    /// Workspaces `skip..skip + limit` of all, last opened first, and how many there are.
    ///
    /// # Errors
    /// [`SessionError::Store`].
    pub async fn workspaces(&self, skip: u64, limit: u64) -> Result<(Vec<WorkspaceRow>, u64), SessionError> {
        Ok(self.deps.store.workspaces(skip, limit).await?)
    }

    /// What each of these uses of the disk, whether or not it is open; at most 100 are looked at.
    pub async fn disk_usage(&self, ids: &[SessionId]) -> Vec<Option<DiskUsage>> {
        let runs = |id: &SessionId| self.get(id).is_some_and(|session| session.sandbox().is_some());
        self.deps.quotas.shown(ids, runs).await
    }
}
