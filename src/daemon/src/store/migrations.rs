//! The schema, as numbered steps. A step is never changed once released.

use rusqlite::Connection;

/// Each element moves the schema from its index to the next version (`PRAGMA user_version`).
const STEPS: &[&str] = &[
    "
    CREATE TABLE sessions (
        id            TEXT PRIMARY KEY,
        state         TEXT NOT NULL,           -- opening | running | closing | purging
        runtime       TEXT NOT NULL,           -- alias
        tenant        TEXT,
        nonce         BLOB NOT NULL,           -- 16 bytes, of the token
        slot          INTEGER,                 -- range of ids while it has a sandbox
        created_at    REAL NOT NULL,           -- Unix seconds
        last_activity REAL NOT NULL
    ) STRICT, WITHOUT ROWID;
    CREATE TABLE workspaces (
        id            TEXT PRIMARY KEY,        -- the session's
        runtime       TEXT NOT NULL,
        tenant        TEXT,
        created_at    REAL NOT NULL,
        last_opened   REAL NOT NULL
    ) STRICT, WITHOUT ROWID;
",
    "
    ALTER TABLE workspaces ADD COLUMN layer_tag TEXT;   -- image on which its write layer stands; NULL: it has none
    ALTER TABLE workspaces ADD COLUMN stopped_at REAL;  -- since when that layer has no sandbox; NULL: it has one
",
];

/// Bring the schema up to date, each step in its own transaction.
///
/// # Errors
/// A sentence, if a step fails or the database is newer than this program.
pub fn run(connection: &mut Connection) -> Result<(), String> {
    steps(connection, STEPS)
}

/// The same by these steps, for a database of its own.
///
/// # Errors
/// As [`run`].
pub fn steps(connection: &mut Connection, steps: &[&str]) -> Result<(), String> {
    let newest = steps.len();
    let at: i64 = connection
        .query_row("PRAGMA user_version", [], |row| row.get(0))
        .map_err(|e| format!("read its version: {e}"))?;
    let at = usize::try_from(at).map_err(|_| format!("its version is {at}"))?;
    if at > newest {
        return Err(format!(
            "its version is {at}, made by a newer sandboxd (this one knows {newest}); upgrade sandboxd"
        ));
    }
    for (from, step) in steps.iter().enumerate().skip(at) {
        apply(connection, from, step).map_err(|e| format!("migrate it from version {from}: {e}"))?;
    }
    Ok(())
}

fn apply(connection: &mut Connection, from: usize, step: &str) -> Result<(), rusqlite::Error> {
    let transaction = connection.transaction()?;
    transaction.execute_batch(step)?;
    transaction.execute_batch(&format!("PRAGMA user_version = {}", from + 1))?;
    transaction.commit()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_newer_database_is_refused() {
        let mut connection = Connection::open_in_memory().unwrap();
        connection.execute_batch("PRAGMA user_version = 999").unwrap();
        assert!(run(&mut connection).unwrap_err().contains("newer"));
    }

    #[test]
    fn migrating_twice_changes_nothing() {
        let mut connection = Connection::open_in_memory().unwrap();
        run(&mut connection).unwrap();
        run(&mut connection).unwrap();
        let version: i64 = connection.query_row("PRAGMA user_version", [], |r| r.get(0)).unwrap();
        assert_eq!(usize::try_from(version).unwrap(), STEPS.len());
    }
}
