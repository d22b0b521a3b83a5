//! Looking at the rows of workspaces. They are written where sessions are.

use rusqlite::{Row, params};
use wire::id::{SessionId, Tenant};

use super::{Store, StoreError};

/// One kept workspace.
#[derive(Debug, Clone, PartialEq)]
pub struct WorkspaceRow {
    /// The session's name.
    pub id: SessionId,
    /// Alias of the runtime on which it was last opened.
    pub runtime: String,
    /// Whom it was counted against when it was last opened.
    pub tenant: Option<Tenant>,
    /// Unix seconds.
    pub created_at: f64,
    /// Unix seconds.
    pub last_opened: f64,
}

impl Store {
    /// Workspaces `skip..skip + limit` of all, or of `only` this session, last opened first, and how many there are; of one moment.
    /// A row that is not one (edited by hand) is left out of the page.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn workspaces(
        &self,
        skip: u64,
        limit: u64,
        only: Option<SessionId>,
    ) -> Result<(Vec<WorkspaceRow>, u64), StoreError> {
        self.call("list workspaces", move |connection| {
            let transaction = connection.transaction()?;
            let only = only.as_ref().map(SessionId::as_str);
            let count = "SELECT count(*) FROM workspaces WHERE ?1 IS NULL OR id = ?1";
            let total = transaction.query_row(count, params![only], |row| row.get::<_, i64>(0))?;
            let sql = "SELECT id, runtime, tenant, created_at, last_opened FROM workspaces WHERE ?3 IS NULL OR id = ?3
                       ORDER BY last_opened DESC, id LIMIT ?1 OFFSET ?2";
            let bound = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
            let mut statement = transaction.prepare_cached(sql)?;
            let rows =
                statement.query_map(params![bound(limit), bound(skip), only], read)?.collect::<Result<Vec<_>, _>>()?;
            Ok((rows.into_iter().flatten().collect(), total.unsigned_abs()))
        })
        .await
    }
}

fn read(row: &Row<'_>) -> Result<Option<WorkspaceRow>, rusqlite::Error> {
    let id: String = row.get(0)?;
    let tenant: Option<String> = row.get(2)?;
    let (Ok(id), Ok(tenant)) = (SessionId::parse(&id), tenant.as_deref().map(Tenant::parse).transpose()) else {
        return Ok(None);
    };
    Ok(Some(WorkspaceRow { id, runtime: row.get(1)?, tenant, created_at: row.get(3)?, last_opened: row.get(4)? }))
}

#[cfg(test)]
mod tests {
    use super::super::{SessionRow, SessionState};
    use super::*;

    #[tokio::test]
    async fn pages_are_newest_first_and_the_total_is_of_all() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(&dir.path().join("state.db")).unwrap();
        assert_eq!(store.workspaces(0, 10, None).await.unwrap(), (vec![], 0));
        for (at, id) in [(1.0, "b"), (3.0, "c"), (2.0, "a"), (3.0, "d")] {
            let row = SessionRow {
                id: SessionId::parse(id).unwrap(),
                state: SessionState::Opening,
                runtime: "python".into(),
                tenant: None,
                nonce: [7; 16],
                slot: None,
                created_at: at,
                last_activity: at,
            };
            store.insert_session(row).await.unwrap();
        }
        let page = async |skip, limit| {
            let (rows, total) = store.workspaces(skip, limit, None).await.unwrap();
            (rows.iter().map(|row| row.id.to_string()).collect::<String>(), total)
        };
        assert_eq!(page(0, 10).await, ("cdab".to_owned(), 4));
        assert_eq!(page(1, 2).await, ("da".to_owned(), 4));
        let (rows, total) = store.workspaces(0, 10, Some(SessionId::parse("a").unwrap())).await.unwrap();
        assert_eq!((rows.len(), rows[0].id.as_str(), total), (1, "a", 1));
        assert_eq!(page(u64::MAX, u64::MAX).await, (String::new(), 4));
        store.remove_session(SessionId::parse("c").unwrap(), true).await.unwrap();
        store.remove_session(SessionId::parse("d").unwrap(), false).await.unwrap();
        assert_eq!(page(0, 10).await, ("dab".to_owned(), 3));
    }
}
