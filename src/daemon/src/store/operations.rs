//! Rows of the operations log, in a database of their own beside the sessions': `operations.db`.
//!
//! Apart, because it is another kind of data: it grows to millions of rows that matter to people, not to
//! the service. So a long search holds up no session, the sessions' database stays small enough to be
//! checked whole at every start, and a log that is damaged or full costs no session.
//!
//! Everything here blocks: the callers are threads of the room `operations`.

use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Duration;

use rusqlite::types::Value;
use rusqlite::{Connection, ErrorCode, InterruptHandle, OpenFlags, Row, params, params_from_iter};
use serde::{Deserialize, Serialize};
use uuid::Uuid;
use wire::id::{RequestId, SessionId, Tenant};

use super::{StoreError, migrations};

const STEPS: &[&str] = &[
    "
    CREATE TABLE operations (
        id          INTEGER PRIMARY KEY,   -- rises with every operation of the service
        session     TEXT NOT NULL,
        opened      INTEGER NOT NULL,      -- when that session was opened, microseconds: its name may be used again
        seq         INTEGER NOT NULL,      -- rises by one within session and opening
        at          REAL NOT NULL,         -- Unix seconds, of the end
        tenant      TEXT,
        agent       TEXT,
        run         TEXT,
        op          TEXT NOT NULL,
        target      TEXT NOT NULL,
        folded      TEXT,                  -- target in lower case, if it is not ASCII, which LIKE folds by itself
        ok          INTEGER NOT NULL,
        detail      TEXT NOT NULL,
        duration_ms REAL NOT NULL
    ) STRICT;
    -- Each index ends in the id, so each serves its filter newest first.
    CREATE INDEX operations_session ON operations (session);
    CREATE INDEX operations_tenant ON operations (tenant) WHERE tenant IS NOT NULL;
    CREATE INDEX operations_op ON operations (op);
    CREATE INDEX operations_failed ON operations (ok) WHERE ok = 0;
    CREATE INDEX operations_at ON operations (at);
",
    "
    ALTER TABLE operations ADD COLUMN request TEXT;   -- id of the request that it was done for
    ALTER TABLE operations ADD COLUMN command BLOB;   -- of a command: 16 bytes that no other has
",
];

/// Events of one session that are shown.
const EVENTS: u32 = 200;
/// Rows deleted at once, so that nothing waits long for its turn.
const SWEEP: u32 = 2000;
const COLUMNS: &str =
    "id, session, opened, seq, at, tenant, agent, run, op, target, ok, detail, duration_ms, request, command";

/// One operation, as a row and as a line of the journal.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OperationRow {
    /// Rises with every operation of the service.
    pub id: u64,
    /// Where it was done.
    pub session: SessionId,
    /// When that session was opened, microseconds since 1970.
    pub opened: u64,
    /// Rises by one within session and opening.
    pub seq: u64,
    /// Its end, Unix seconds.
    pub at: f64,
    /// Whom the session was counted against.
    pub tenant: Option<Tenant>,
    /// The agent, as the client named it.
    pub agent: Option<String>,
    /// The agent's run, likewise.
    pub run: Option<String>,
    /// What was done.
    pub op: String,
    /// To what.
    pub target: String,
    /// Whether it succeeded.
    pub ok: bool,
    /// The outcome in the service's own words.
    pub detail: String,
    /// How long it took, in milliseconds.
    pub duration_ms: f64,
    /// Id of the request that it was done for.
    #[serde(default)]
    pub request: Option<String>,
    /// Of a command: what tells it from every other.
    #[serde(default)]
    pub command: Option<Uuid>,
}

/// Which operations. What is absent does not restrict.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Filter {
    /// Of this session.
    pub session: Option<SessionId>,
    /// Of this tenant.
    pub tenant: Option<Tenant>,
    /// Of this name.
    pub op: Option<String>,
    /// Those that failed, or those that did not.
    pub failed: Option<bool>,
    /// That were done for this request.
    pub request: Option<RequestId>,
    /// Whose name or target holds this text, in any case.
    pub text: Option<String>,
    /// Leave out so many.
    pub skip: u64,
    /// Most rows.
    pub limit: u64,
}

/// Rows, newest first, and how many there are.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Page {
    /// The rows.
    pub rows: Vec<OperationRow>,
    /// How many match.
    pub total: u64,
    /// Which of the names asked about the log holds.
    pub ops: Vec<&'static str>,
}

/// The one connection that writes.
#[derive(Debug)]
pub struct Operations {
    connection: Connection,
}

/// A connection that searches.
#[derive(Debug)]
pub struct Reader {
    connection: Connection,
}

impl Operations {
    /// Open the database at `path`, creating or migrating it.
    ///
    /// # Errors
    /// [`StoreError::Open`].
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        let fail = |reason: String| StoreError::Open { path: path.to_owned(), reason };
        // Commands are for nobody's eyes but the operator's; SQLite's other files take after this one.
        let mut options = OpenOptions::new();
        options.create(true).truncate(false).write(true).mode(0o600);
        options.open(path).map_err(|e| fail(e.to_string()))?;
        let mut connection = connect(path, OpenFlags::SQLITE_OPEN_READ_WRITE)?;
        // NORMAL: what the journal holds survives the process; a power cut may take the last moment.
        connection
            .execute_batch("PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL; PRAGMA cache_size = -1024;")
            .map_err(|e| fail(damage(&e)))?;
        migrations::steps(&mut connection, STEPS).map_err(fail)?;
        Ok(Self { connection })
    }

    /// Highest id.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn last_id(&self) -> Result<u64, StoreError> {
        let sql = "SELECT max(id) FROM operations";
        let last = self.connection.query_row(sql, [], |row| row.get::<_, Option<i64>>(0));
        last.map(|id| id.map_or(0, unsigned)).map_err(failed("read the operations log"))
    }

    /// Add rows, all or none. One that is there already is left as it is.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn insert(&mut self, rows: &[OperationRow]) -> Result<(), StoreError> {
        insert(&mut self.connection, rows).map_err(failed("write the operations log"))
    }

    /// Highest number within one opening of a session, and when the last of them ended (Unix seconds); 0 and 0 if it has none
    /// among its newest.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn last(&self, session: &SessionId, opened: u64) -> Result<(u64, f64), StoreError> {
        let sql = format!(
            "SELECT ifnull(max(seq), 0), ifnull(max(at), 0.0)
             FROM (SELECT opened, seq, at FROM operations WHERE session = ?1 ORDER BY id DESC LIMIT {EVENTS}) WHERE opened = ?2"
        );
        let read = || {
            let mut statement = self.connection.prepare_cached(&sql)?;
            let values = params![session.as_str(), signed(opened)];
            statement.query_row(values, |row| Ok((row.get::<_, i64>(0)?, row.get(1)?)))
        };
        read().map(|(seq, at)| (unsigned(seq), at)).map_err(failed("read the operations log"))
    }

    /// Whether the end of this command is there, in this opening of a session.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn has_command(&self, session: &SessionId, opened: u64, command: Uuid) -> Result<bool, StoreError> {
        let sql = "SELECT EXISTS (SELECT 1 FROM operations WHERE session = ?1 AND opened = ?2 AND command = ?3)";
        let read = || {
            let mut statement = self.connection.prepare_cached(sql)?;
            statement.query_row(params![session.as_str(), signed(opened), command.into_bytes()], |row| row.get(0))
        };
        read().map_err(failed("read the operations log"))
    }

    /// The newest 200 of a session, those of this opening with a number above `after`, in order.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn events(&self, session: &SessionId, opened: u64, after: u64) -> Result<Vec<OperationRow>, StoreError> {
        let sql = format!(
            "SELECT * FROM (SELECT {COLUMNS} FROM operations WHERE session = ?1 ORDER BY id DESC LIMIT {EVENTS})
             WHERE opened = ?2 AND seq > ?3 ORDER BY id"
        );
        let values = params![session.as_str(), signed(opened), signed(after)];
        rows(&self.connection, &sql, values).map_err(failed("read the operations log"))
    }

    /// Delete some of what ended before `before`; how many rows. Repeat until none.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn sweep(&mut self, before: f64) -> Result<usize, StoreError> {
        let sql = format!("DELETE FROM operations WHERE id IN (SELECT id FROM operations WHERE at < ?1 LIMIT {SWEEP})");
        self.connection.execute(&sql, [before]).map_err(failed("sweep the operations log"))
    }
}

impl Reader {
    /// A connection that only reads.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        let connection = connect(path, OpenFlags::SQLITE_OPEN_READ_ONLY)?;
        Ok(Self { connection })
    }

    /// What ends the search when it is dropped, from whichever thread.
    #[must_use]
    pub fn interrupt_on_drop(&self) -> Interrupt {
        Interrupt(self.connection.get_interrupt_handle())
    }

    /// One page, the count of all, and which of `ops` there are: as of one moment.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn page(&mut self, filter: &Filter, ops: &[&'static str]) -> Result<Page, StoreError> {
        page(&mut self.connection, filter, ops).map_err(failed("search the operations log"))
    }
}

/// Ends a [`Reader`]'s search when it is dropped.
pub struct Interrupt(InterruptHandle);

impl Drop for Interrupt {
    fn drop(&mut self) {
        // A search that is over does not mind.
        self.0.interrupt();
    }
}

fn connect(path: &Path, mode: OpenFlags) -> Result<Connection, StoreError> {
    let fail = |e: rusqlite::Error| StoreError::Open { path: path.to_owned(), reason: damage(&e) };
    let connection = Connection::open_with_flags(path, mode | OpenFlags::SQLITE_OPEN_NO_MUTEX).map_err(fail)?;
    connection.busy_timeout(Duration::from_secs(2)).map_err(fail)?;
    connection.execute_batch("PRAGMA trusted_schema = OFF;").map_err(fail)?;
    Ok(connection)
}

fn damage(error: &rusqlite::Error) -> String {
    match error.sqlite_error_code() {
        Some(ErrorCode::NotADatabase | ErrorCode::DatabaseCorrupt) => {
            format!(
                "it is damaged ({error}); nothing was changed; restore it from a backup, or move it aside to start a new log"
            )
        }
        _ => error.to_string(),
    }
}

fn failed(operation: &'static str) -> impl FnOnce(rusqlite::Error) -> StoreError {
    move |source| match source.sqlite_error_code() {
        Some(ErrorCode::DiskFull) => StoreError::Full { operation },
        _ => StoreError::Sql { operation, source },
    }
}

fn insert(connection: &mut Connection, rows: &[OperationRow]) -> Result<(), rusqlite::Error> {
    let transaction = connection.transaction()?;
    let sql = format!(
        "INSERT OR IGNORE INTO operations ({COLUMNS}, folded) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16)"
    );
    let mut statement = transaction.prepare_cached(&sql)?;
    for row in rows {
        let folded = (!row.target.is_ascii()).then(|| row.target.to_lowercase());
        statement.execute(params![
            signed(row.id),
            row.session.as_str(),
            signed(row.opened),
            signed(row.seq),
            row.at,
            row.tenant.as_ref().map(Tenant::as_str),
            row.agent,
            row.run,
            row.op,
            row.target,
            row.ok,
            row.detail,
            row.duration_ms,
            row.request,
            row.command.map(Uuid::into_bytes),
            folded,
        ])?;
    }
    drop(statement);
    transaction.commit()
}

fn page(connection: &mut Connection, filter: &Filter, ops: &[&'static str]) -> Result<Page, rusqlite::Error> {
    let transaction = connection.transaction()?;
    let (condition, mut values) = condition(filter);
    let sql = format!("SELECT count(*) FROM operations{condition}");
    let total = transaction.query_row(&sql, params_from_iter(&values), |row| row.get(0)).map(unsigned)?;
    let sql = format!("SELECT {COLUMNS} FROM operations{condition} ORDER BY id DESC LIMIT ? OFFSET ?");
    values.extend([Value::from(signed(filter.limit)), Value::from(signed(filter.skip))]);
    let rows = rows(&transaction, &sql, params_from_iter(&values))?;
    let mut seen = Vec::new();
    for op in ops {
        let sql = "SELECT EXISTS (SELECT 1 FROM operations WHERE op = ?1)";
        if transaction.prepare_cached(sql)?.query_row([op], |row| row.get(0))? {
            seen.push(*op);
        }
    }
    Ok(Page { rows, total, ops: seen })
}

/// ` WHERE …` with its values. The texts are ours; what a client sent is in the values alone.
fn condition(filter: &Filter) -> (String, Vec<Value>) {
    let mut parts: Vec<&str> = Vec::new();
    let mut values: Vec<Value> = Vec::new();
    let mut equals = |part: &'static str, value: Option<&str>| {
        if let Some(value) = value {
            parts.push(part);
            values.push(value.to_owned().into());
        }
    };
    equals("session = ?", filter.session.as_ref().map(SessionId::as_str));
    equals("tenant = ?", filter.tenant.as_ref().map(Tenant::as_str));
    equals("op = ?", filter.op.as_deref());
    equals("request = ?", filter.request.as_ref().map(RequestId::as_str));
    match filter.failed {
        Some(true) => parts.push("ok = 0"),
        Some(false) => parts.push("ok = 1"),
        None => {}
    }
    if let Some(text) = &filter.text {
        parts.push(r"(op LIKE ? ESCAPE '\' OR target LIKE ? ESCAPE '\' OR instr(folded, ?) > 0)");
        let like = format!("%{}%", text.replace('\\', r"\\").replace('%', r"\%").replace('_', r"\_"));
        values.extend([Value::from(like.clone()), Value::from(like), Value::from(text.to_lowercase())]);
    }
    if parts.is_empty() { (String::new(), values) } else { (format!(" WHERE {}", parts.join(" AND ")), values) }
}

fn rows(
    connection: &Connection,
    sql: &str,
    values: impl rusqlite::Params,
) -> Result<Vec<OperationRow>, rusqlite::Error> {
    let mut statement = connection.prepare_cached(sql)?;
    let rows = statement.query_map(values, read)?.collect::<Result<Vec<_>, _>>()?;
    Ok(rows.into_iter().flatten().collect())
}

/// A row; none if it is not one of ours (edited by hand).
fn read(row: &Row<'_>) -> Result<Option<OperationRow>, rusqlite::Error> {
    let Ok(session) = SessionId::parse(&row.get::<_, String>(1)?) else { return Ok(None) };
    let tenant: Option<String> = row.get(5)?;
    Ok(Some(OperationRow {
        id: unsigned(row.get(0)?),
        session,
        opened: unsigned(row.get(2)?),
        seq: unsigned(row.get(3)?),
        at: row.get(4)?,
        tenant: tenant.and_then(|tenant| Tenant::parse(&tenant).ok()),
        agent: row.get(6)?,
        run: row.get(7)?,
        op: row.get(8)?,
        target: row.get(9)?,
        ok: row.get(10)?,
        detail: row.get(11)?,
        duration_ms: row.get(12)?,
        request: row.get(13)?,
        command: row.get::<_, Option<[u8; 16]>>(14)?.map(Uuid::from_bytes),
    }))
}

/// SQLite's integers are signed; ours stay far below where that matters.
fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

fn unsigned(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_of_an_earlier_version_is_read_and_goes_on() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("operations.db");
        let mut connection = Connection::open(&path).unwrap();
        migrations::steps(&mut connection, &STEPS[..1]).unwrap();
        let sql = "INSERT INTO operations (id, session, opened, seq, at, op, target, ok, detail, duration_ms)
                   VALUES (7, 'a', 5, 1, 2.5, 'run', 'true', 1, 'exit 0', 1.5)";
        connection.execute_batch(sql).unwrap();
        drop(connection);

        let mut operations = Operations::open(&path).unwrap();
        let session = SessionId::parse("a").unwrap();
        let old = operations.events(&session, 5, 0).unwrap().remove(0);
        assert_eq!((old.id, old.request.as_deref(), old.command), (7, None, None));
        let (request, command) = (Some("q-1".to_owned()), Some(Uuid::from_u128(9)));
        let new = OperationRow { id: 8, seq: 2, request, command, ..old };
        operations.insert(std::slice::from_ref(&new)).unwrap();
        assert_eq!(operations.events(&session, 5, 1).unwrap(), [new]);
        assert!(operations.has_command(&session, 5, Uuid::from_u128(9)).unwrap());
        let of_request = Filter { request: RequestId::parse("q-1").ok(), limit: 5, ..Filter::default() };
        assert_eq!(Reader::open(&path).unwrap().page(&of_request, &[]).unwrap().total, 1);
    }
}
