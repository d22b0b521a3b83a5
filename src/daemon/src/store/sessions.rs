//! Rows of sessions and of the workspaces that outlive them.

use rusqlite::{Connection, OptionalExtension, Row, params};
use wire::id::{SessionId, Tenant};

use super::{Store, StoreError};

/// What a session's row promises.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SessionState {
    /// It was admitted; nobody has been told about it yet. Found at a start, it is removed.
    Opening,
    /// It was answered for. Found at a start, it is adopted.
    Running,
    /// Somebody asked for its end. Found at a start, that is finished.
    Closing,
    /// Somebody asked for its end and that of its files. Found at a start, that is finished.
    Purging,
}

impl SessionState {
    fn text(self) -> &'static str {
        match self {
            Self::Opening => "opening",
            Self::Running => "running",
            Self::Closing => "closing",
            Self::Purging => "purging",
        }
    }

    fn parse(text: &str) -> Option<Self> {
        [Self::Opening, Self::Running, Self::Closing, Self::Purging].into_iter().find(|s| s.text() == text)
    }
}

/// One session.
#[derive(Debug, Clone, PartialEq)]
pub struct SessionRow {
    /// Its name.
    pub id: SessionId,
    /// How far it is.
    pub state: SessionState,
    /// Alias of its runtime.
    pub runtime: String,
    /// Whom it is counted against.
    pub tenant: Option<Tenant>,
    /// From which its token is derived, with the installation's key.
    pub nonce: [u8; 16],
    /// Its range of ids while it has a sandbox.
    pub slot: Option<u32>,
    /// Unix seconds.
    pub created_at: f64,
    /// Unix seconds.
    pub last_activity: f64,
}

impl Store {
    /// Record a session that is being opened, and its workspace.
    ///
    /// # Errors
    /// [`StoreError`]; then there is no such row.
    pub async fn insert_session(&self, row: SessionRow) -> Result<(), StoreError> {
        self.call("record the session", move |connection| insert(connection, &row)).await
    }

    /// Record that a session has its sandbox, in range `slot`, on the image `tag`: from here on it is a promise.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn session_running(&self, id: SessionId, slot: u32, tag: String) -> Result<(), StoreError> {
        self.call("record the session's start", move |connection| {
            let transaction = connection.transaction()?;
            let sql = "UPDATE sessions SET state = 'running', slot = ?2 WHERE id = ?1";
            transaction.prepare_cached(sql)?.execute(params![id.as_str(), slot])?;
            let sql = "UPDATE workspaces SET layer_tag = ?2, stopped_at = NULL WHERE id = ?1";
            transaction.prepare_cached(sql)?.execute(params![id.as_str(), tag])?;
            transaction.commit()
        })
        .await
    }

    /// Record that a session, last used `at` (Unix seconds), is to be ended, with its files if `purge`.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn session_closing(&self, id: SessionId, at: f64, purge: bool) -> Result<(), StoreError> {
        self.call("record the session's end", move |connection| {
            let state = if purge { SessionState::Purging } else { SessionState::Closing };
            let sql = "UPDATE sessions SET state = ?2, last_activity = max(last_activity, ?3) WHERE id = ?1";
            connection.prepare_cached(sql)?.execute(params![id.as_str(), state.text(), at]).map(drop)
        })
        .await
    }

    /// Forget a session, and its workspace's record too when `purge`; one that is kept was opened as long as it was used.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn remove_session(&self, id: SessionId, purge: bool) -> Result<(), StoreError> {
        self.call("remove the session", move |connection| {
            let transaction = connection.transaction()?;
            let sql = "UPDATE workspaces SET last_opened = sessions.last_activity FROM sessions
                       WHERE workspaces.id = ?1 AND sessions.id = ?1 AND sessions.last_activity > workspaces.last_opened";
            transaction.prepare_cached(sql)?.execute([id.as_str()])?;
            transaction.prepare_cached("DELETE FROM sessions WHERE id = ?1")?.execute([id.as_str()])?;
            if purge {
                transaction.prepare_cached("DELETE FROM workspaces WHERE id = ?1")?.execute([id.as_str()])?;
            }
            transaction.commit()
        })
        .await
    }

    /// Record when sessions were last used; one that is known to have been used since stays so.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn touch_sessions(&self, used: Vec<(SessionId, f64)>) -> Result<(), StoreError> {
        self.call("record activity", move |connection| {
            let transaction = connection.transaction()?;
            for (id, at) in &used {
                let sql = "UPDATE sessions SET last_activity = max(last_activity, ?2) WHERE id = ?1";
                transaction.prepare_cached(sql)?.execute(params![id.as_str(), at])?;
            }
            transaction.commit()
        })
        .await
    }

    /// Every session, oldest first. A row that is not one (edited by hand) is left out.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn sessions(&self) -> Result<Vec<SessionRow>, StoreError> {
        self.call("list sessions", |connection| {
            let sql = "SELECT id, state, runtime, tenant, nonce, slot, created_at, last_activity
                       FROM sessions ORDER BY created_at, id";
            let mut statement = connection.prepare(sql)?;
            let rows = statement.query_map([], read)?.collect::<Result<Vec<_>, _>>()?;
            Ok(rows.into_iter().flatten().collect())
        })
        .await
    }

    /// The runtime of a kept workspace, if one is recorded.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn workspace_runtime(&self, id: SessionId) -> Result<Option<String>, StoreError> {
        self.call("look up the workspace", move |connection| {
            let sql = "SELECT runtime FROM workspaces WHERE id = ?1";
            connection.prepare_cached(sql)?.query_row([id.as_str()], |row| row.get(0)).optional()
        })
        .await
    }
}

fn insert(connection: &mut Connection, row: &SessionRow) -> Result<(), rusqlite::Error> {
    let tenant = row.tenant.as_ref().map(Tenant::as_str);
    let transaction = connection.transaction()?;
    let entered = transaction
        .prepare_cached(
            // One that was not removed to the end gives way; one that was promised does not. One on another runtime was not
            // taken up at the start, because that runtime is not allowed any more: nobody has it.
            "INSERT INTO sessions (id, state, runtime, tenant, nonce, slot, created_at, last_activity)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)
             ON CONFLICT (id) DO UPDATE SET state = ?2, runtime = ?3, tenant = ?4, nonce = ?5, slot = ?6,
                                            created_at = ?7, last_activity = ?8
             WHERE sessions.state <> 'running' OR sessions.runtime <> ?3",
        )?
        .execute(params![
            row.id.as_str(),
            row.state.text(),
            row.runtime,
            tenant,
            row.nonce,
            row.slot,
            row.created_at,
            row.last_activity
        ])?;
    if entered != 1 {
        return Err(rusqlite::Error::StatementChangedRows(entered));
    }
    transaction
        .prepare_cached(
            "INSERT INTO workspaces (id, runtime, tenant, created_at, last_opened) VALUES (?1, ?2, ?3, ?4, ?4)
             ON CONFLICT (id) DO UPDATE SET runtime = ?2, tenant = ?3, last_opened = ?4",
        )?
        .execute(params![row.id.as_str(), row.runtime, tenant, row.created_at])?;
    transaction.commit()
}

fn read(row: &Row<'_>) -> Result<Option<SessionRow>, rusqlite::Error> {
    let id: String = row.get(0)?;
    let state: String = row.get(1)?;
    let tenant: Option<String> = row.get(3)?;
    let tenant = match tenant.as_deref().map(Tenant::parse) {
        None => None,
        Some(Ok(tenant)) => Some(tenant),
        Some(Err(_)) => return Ok(None),
    };
    let (Ok(id), Some(state)) = (SessionId::parse(&id), SessionState::parse(&state)) else {
        return Ok(None);
    };
    Ok(Some(SessionRow {
        id,
        state,
        runtime: row.get(2)?,
        tenant,
        nonce: row.get(4)?,
        slot: row.get(5)?,
        created_at: row.get(6)?,
        last_activity: row.get(7)?,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(id: &str) -> SessionRow {
        SessionRow {
            id: SessionId::parse(id).unwrap(),
            state: SessionState::Opening,
            runtime: "python".into(),
            tenant: Some(Tenant::parse("acme").unwrap()),
            nonce: [7; 16],
            slot: None,
            created_at: 1.5,
            last_activity: 2.5,
        }
    }

    #[tokio::test]
    async fn a_session_survives_reopening_the_database() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state.db");
        let store = Store::open(&path).unwrap();
        store.insert_session(row("a")).await.unwrap();
        store.session_running(row("a").id, 3, "tag".into()).await.unwrap();
        drop(store);
        let rows = Store::open(&path).unwrap().sessions().await.unwrap();
        let expected = SessionRow { state: SessionState::Running, slot: Some(3), ..row("a") };
        assert_eq!(rows, [expected]);
    }

    #[tokio::test]
    async fn a_workspace_was_opened_as_long_as_its_session_was_used() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(&dir.path().join("state.db")).unwrap();
        let id = row("a").id;
        store.insert_session(row("a")).await.unwrap();
        store.touch_sessions(vec![(id.clone(), 50.0), (id.clone(), 40.0)]).await.unwrap();
        assert_eq!(store.sessions().await.unwrap()[0].last_activity, 50.0);
        store.session_closing(id.clone(), 60.0, false).await.unwrap();
        assert!(!store.is_workspace_unopened_since(id.clone(), 1000.0).await.unwrap(), "it is open");
        store.remove_session(id.clone(), false).await.unwrap();
        assert!(store.workspaces_unopened_since(60.0).await.unwrap().is_empty());
        assert!(!store.is_workspace_unopened_since(id.clone(), 60.0).await.unwrap());
        assert!(store.is_workspace_unopened_since(id, 61.0).await.unwrap());
    }

    #[tokio::test]
    async fn one_name_is_one_session_and_its_workspace_outlives_it() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(&dir.path().join("state.db")).unwrap();
        let id = row("a").id;
        store.insert_session(row("a")).await.unwrap();
        // One that nobody was told of gives way; one that was promised does not.
        store.insert_session(row("a")).await.unwrap();
        store.session_running(id.clone(), 3, "tag".into()).await.unwrap();
        assert!(store.insert_session(row("a")).await.is_err());
        // Unless its runtime is none any more.
        store.insert_session(SessionRow { runtime: "node".into(), ..row("a") }).await.unwrap();
        assert_eq!(store.workspace_runtime(id.clone()).await.unwrap().as_deref(), Some("node"));
        store.insert_session(row("a")).await.unwrap();
        store.remove_session(id.clone(), false).await.unwrap();
        assert!(store.sessions().await.unwrap().is_empty());
        assert_eq!(store.workspace_runtime(id.clone()).await.unwrap().as_deref(), Some("python"));
        store.remove_session(id.clone(), true).await.unwrap();
        assert_eq!(store.workspace_runtime(id).await.unwrap(), None);
    }
}
