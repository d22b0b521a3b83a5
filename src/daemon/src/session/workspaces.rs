//! Workspaces that are kept, whether or not they have a session now.

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
}
