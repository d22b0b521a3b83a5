//! What is kept for a time: write layers of stopped sandboxes, and workspaces.

use rusqlite::{OptionalExtension, params};
use wire::id::SessionId;

use super::{Store, StoreError};

impl Store {
    /// The image on which a session's write layer stands; `None` if it has none.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn layer_tag(&self, id: SessionId) -> Result<Option<String>, StoreError> {
        self.call("look up the write layer", move |connection| {
            let sql = "SELECT layer_tag FROM workspaces WHERE id = ?1";
            let found = connection.prepare_cached(sql)?.query_row([id.as_str()], |row| row.get(0)).optional()?;
            Ok(found.flatten())
        })
        .await
    }

    /// Every write layer that is kept: whose, and the image on which it stands.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn layer_tags(&self) -> Result<Vec<(SessionId, String)>, StoreError> {
        self.call("list the write layers", move |connection| {
            let sql = "SELECT id, layer_tag FROM workspaces WHERE layer_tag IS NOT NULL ORDER BY id";
            let mut statement = connection.prepare_cached(sql)?;
            let rows = statement.query_map([], |row| Ok((row.get::<_, String>(0)?, row.get(1)?)))?;
            let rows: Vec<(String, String)> = rows.collect::<Result<_, _>>()?;
            Ok(rows.into_iter().filter_map(|(id, tag)| Some((SessionId::parse(&id).ok()?, tag))).collect())
        })
        .await
    }

    /// Record that a session's write layer has no sandbox any more, since `at` (Unix seconds).
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn layer_stopped(&self, id: SessionId, at: f64) -> Result<(), StoreError> {
        self.layers_stopped(vec![id], at).await
    }

    /// The same for many, of which some may have been stopped longer. None has a range of ids any more, so that a
    /// sandbox which is being started when the service dies is not taken for the one before.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn layers_stopped(&self, ids: Vec<SessionId>, at: f64) -> Result<(), StoreError> {
        self.call("record the stop", move |connection| {
            let transaction = connection.transaction()?;
            for id in &ids {
                let sql = "UPDATE workspaces SET stopped_at = ?2
                           WHERE id = ?1 AND layer_tag IS NOT NULL AND stopped_at IS NULL";
                transaction.prepare_cached(sql)?.execute(params![id.as_str(), at])?;
                let sql = "UPDATE sessions SET slot = NULL WHERE id = ?1 AND slot IS NOT NULL";
                transaction.prepare_cached(sql)?.execute([id.as_str()])?;
            }
            transaction.commit()
        })
        .await
    }

    /// Whether a session's workspace was first recorded with this opening, at `created_at`.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn workspace_is_new(&self, id: SessionId, created_at: f64) -> Result<bool, StoreError> {
        self.call("look up the workspace", move |connection| {
            let sql = "SELECT count(*) FROM workspaces WHERE id = ?1 AND created_at = ?2";
            connection.prepare_cached(sql)?.query_row(params![id.as_str(), created_at], |row| row.get::<_, bool>(0))
        })
        .await
    }

    /// Record that a session has no write layer any more.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn layer_dropped(&self, id: SessionId) -> Result<(), StoreError> {
        self.call("record the deletion of the write layer", move |connection| {
            let sql = "UPDATE workspaces SET layer_tag = NULL, stopped_at = NULL WHERE id = ?1";
            connection.prepare_cached(sql)?.execute([id.as_str()]).map(drop)
        })
        .await
    }

    /// Sessions, open or closed, whose write layer was stopped before `at`.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn layers_stopped_before(&self, at: f64) -> Result<Vec<SessionId>, StoreError> {
        self.ids("list stopped write layers", "SELECT id FROM workspaces WHERE stopped_at < ?1", at).await
    }

    /// Whether a session's write layer is stopped, since before `at`.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn is_layer_stopped_before(&self, id: SessionId, at: f64) -> Result<bool, StoreError> {
        let sql = "SELECT EXISTS (SELECT 1 FROM workspaces WHERE id = ?1 AND stopped_at < ?2)";
        self.is("look up the write layer", sql, id, at).await
    }

    /// Whether a workspace is of no open session and was last opened before `at`.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn is_workspace_unopened_since(&self, id: SessionId, at: f64) -> Result<bool, StoreError> {
        let sql = "SELECT EXISTS (SELECT 1 FROM workspaces WHERE id = ?1 AND last_opened < ?2)
                   AND NOT EXISTS (SELECT 1 FROM sessions WHERE id = ?1)";
        self.is("look up the workspace", sql, id, at).await
    }

    async fn is(&self, operation: &'static str, sql: &'static str, id: SessionId, at: f64) -> Result<bool, StoreError> {
        self.call(operation, move |connection| {
            connection.prepare_cached(sql)?.query_row(params![id.as_str(), at], |row| row.get(0))
        })
        .await
    }

    /// Workspaces of no open session that were last opened before `at`.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn workspaces_unopened_since(&self, at: f64) -> Result<Vec<SessionId>, StoreError> {
        let sql = "SELECT id FROM workspaces WHERE last_opened < ?1 AND id NOT IN (SELECT id FROM sessions)";
        self.ids("list old workspaces", sql, at).await
    }

    /// Those of `ids` that have no row of a workspace.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn unrecorded(&self, ids: Vec<SessionId>) -> Result<Vec<SessionId>, StoreError> {
        self.call("look up workspaces", move |connection| {
            let mut statement = connection.prepare_cached("SELECT 1 FROM workspaces WHERE id = ?1")?;
            let mut unrecorded = Vec::new();
            for id in ids {
                if !statement.exists([id.as_str()])? {
                    unrecorded.push(id);
                }
            }
            Ok(unrecorded)
        })
        .await
    }

    /// Record workspaces that are on disk and in no row (the database was moved aside): as opened `at`.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn find_workspaces(&self, ids: Vec<SessionId>, runtime: String, at: f64) -> Result<(), StoreError> {
        self.call("record the workspaces on disk", move |connection| {
            let transaction = connection.transaction()?;
            for id in &ids {
                let sql = "INSERT INTO workspaces (id, runtime, tenant, created_at, last_opened)
                           VALUES (?1, ?2, NULL, ?3, ?3) ON CONFLICT (id) DO NOTHING";
                transaction.prepare_cached(sql)?.execute(params![id.as_str(), runtime, at])?;
            }
            transaction.commit()
        })
        .await
    }

    async fn ids(&self, operation: &'static str, sql: &'static str, at: f64) -> Result<Vec<SessionId>, StoreError> {
        self.call(operation, move |connection| {
            let mut statement = connection.prepare_cached(sql)?;
            let ids = statement.query_map([at], |row| row.get::<_, String>(0))?.collect::<Result<Vec<_>, _>>()?;
            Ok(ids.iter().filter_map(|id| SessionId::parse(id).ok()).collect())
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use crate::store::{SessionRow, SessionState};

    use super::*;

    #[tokio::test]
    async fn a_layer_is_due_only_once_it_is_stopped_and_a_workspace_only_when_it_is_closed() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(&dir.path().join("state.db")).unwrap();
        let id = SessionId::parse("a").unwrap();
        let row = SessionRow {
            id: id.clone(),
            state: SessionState::Opening,
            runtime: "python".into(),
            tenant: None,
            nonce: [0; 16],
            slot: None,
            created_at: 1.0,
            last_activity: 1.0,
        };
        store.insert_session(row).await.unwrap();
        store.layer_stopped(id.clone(), 5.0).await.unwrap();
        assert!(store.layers_stopped_before(100.0).await.unwrap().is_empty());
        store.session_running(id.clone(), 1, "tag".into()).await.unwrap();
        assert_eq!(store.layer_tag(id.clone()).await.unwrap().as_deref(), Some("tag"));
        assert_eq!(store.layer_tags().await.unwrap(), [(id.clone(), "tag".to_owned())]);
        assert!(store.layers_stopped_before(100.0).await.unwrap().is_empty());
        store.layer_stopped(id.clone(), 5.0).await.unwrap();
        assert_eq!(store.layers_stopped_before(100.0).await.unwrap(), std::slice::from_ref(&id));
        assert!(store.layers_stopped_before(4.0).await.unwrap().is_empty());
        assert!(store.is_layer_stopped_before(id.clone(), 6.0).await.unwrap());
        assert!(!store.is_layer_stopped_before(id.clone(), 5.0).await.unwrap());
        // Who looks again finds one that has run meanwhile, and was stopped again.
        store.session_running(id.clone(), 1, "tag".into()).await.unwrap();
        assert!(!store.is_layer_stopped_before(id.clone(), 6.0).await.unwrap());
        store.layer_stopped(id.clone(), 50.0).await.unwrap();
        assert!(!store.is_layer_stopped_before(id.clone(), 6.0).await.unwrap());
        assert!(store.workspaces_unopened_since(100.0).await.unwrap().is_empty());
        store.remove_session(id.clone(), false).await.unwrap();
        assert_eq!(store.workspaces_unopened_since(100.0).await.unwrap(), std::slice::from_ref(&id));
        store.layer_dropped(id.clone()).await.unwrap();
        assert_eq!(store.layer_tag(id).await.unwrap(), None);
    }
}
