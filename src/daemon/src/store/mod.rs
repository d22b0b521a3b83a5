//! The state of the service on disk: SQLite, one thread that owns the connection.
//!
//! What is here is true: a session that was answered for is a row, and a row that has no
//! sandbox is repaired at the next start. Everything is one transaction, synced before the
//! caller goes on. Nobody outside of this room sees SQL.
//!
//! The database holds no secret: a session's token is derived from its nonce and the
//! installation's key, which is a file of its own (`token.key`).

mod kept;
mod migrations;
mod operations;
mod sessions;
mod workspaces;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use rusqlite::{Connection, ErrorCode, OpenFlags};
use tokio::sync::oneshot;

use crate::metrics;

pub use operations::{Filter, OperationRow, Operations, Page, Reader};
pub use sessions::{SessionRow, SessionState};
pub use workspaces::WorkspaceRow;

/// Requests that may wait for the thread; more are refused rather than piled up.
const QUEUE: usize = 4096;

/// Why the database did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// It cannot be opened or is not ours.
    #[error("open database {}: {reason}", path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// What is wrong with it, and the mend.
        reason: String,
    },
    /// The disk is full.
    #[error("{operation}: no space left on the state directory's disk; free some space and repeat")]
    Full {
        /// What was attempted.
        operation: &'static str,
    },
    /// SQLite refused.
    #[error("{operation}")]
    Sql {
        /// What was attempted.
        operation: &'static str,
        /// SQLite's reason.
        #[source]
        source: rusqlite::Error,
    },
    /// The journal beside it cannot be read or written.
    #[error("{operation}")]
    Journal {
        /// What was attempted.
        operation: &'static str,
        /// What the kernel says.
        #[source]
        source: std::io::Error,
    },
    /// Its thread is behind by more than it may be, or gone.
    #[error("{operation}: the database does not keep up")]
    Busy {
        /// What was attempted.
        operation: &'static str,
    },
}

type Job = Box<dyn FnOnce(&mut Connection) + Send>;

/// The database. Cheap to clone; the thread ends with the last clone.
#[derive(Clone)]
pub struct Store {
    jobs: mpsc::SyncSender<Job>,
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Store")
    }
}

impl Store {
    /// Open the database at `path`, creating or migrating it.
    ///
    /// # Errors
    /// [`StoreError::Open`] if the file is damaged, newer than this program, or cannot be
    /// written; it is left as it is.
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        let mut connection = connect(path)?;
        migrations::run(&mut connection).map_err(|reason| StoreError::Open { path: path.to_owned(), reason })?;
        let (jobs, queue) = mpsc::sync_channel::<Job>(QUEUE);
        std::thread::Builder::new()
            .name("store".into())
            .spawn(move || {
                for job in queue {
                    job(&mut connection);
                }
            })
            .map_err(|e| StoreError::Open { path: path.to_owned(), reason: format!("start its thread: {e}") })?;
        Ok(Self { jobs })
    }

    /// Wait until its thread has done what was asked of it before.
    ///
    /// # Errors
    /// [`StoreError::Busy`].
    pub async fn answers(&self) -> Result<(), StoreError> {
        self.call("ask after the database", |_| Ok(())).await
    }

    /// Bring everything into the one file, so that a copy of it is a backup.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn settle(&self) -> Result<(), StoreError> {
        self.call("settle the database", |connection| {
            connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))
        })
        .await
    }

    /// Run `work` on the connection and wait for what it returns.
    async fn call<T: Send + 'static>(
        &self,
        operation: &'static str,
        work: impl FnOnce(&mut Connection) -> Result<T, rusqlite::Error> + Send + 'static,
    ) -> Result<T, StoreError> {
        let (reply, answer) = oneshot::channel();
        let (asked, waiting) = (Instant::now(), metrics::STORE_QUEUE.one());
        let job = Box::new(move |connection: &mut Connection| {
            let begun = Instant::now();
            metrics::STORE_WAIT.observe(begun - asked);
            let result = work(connection);
            metrics::STORE.observe(begun.elapsed());
            drop(waiting);
            // A caller that went away does not undo what was asked.
            let _ = reply.send(result);
        });
        self.jobs.try_send(job).map_err(|_| StoreError::Busy { operation })?;
        let result = answer.await.map_err(|_| StoreError::Busy { operation })?;
        result.map_err(|source| match source.sqlite_error_code() {
            Some(ErrorCode::DiskFull) => StoreError::Full { operation },
            _ => StoreError::Sql { operation, source },
        })
    }
}

fn connect(path: &Path) -> Result<Connection, StoreError> {
    let open = |reason: String| StoreError::Open { path: path.to_owned(), reason };
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags).map_err(|e| open(e.to_string()))?;
    connection.busy_timeout(Duration::from_secs(2)).map_err(|e| open(e.to_string()))?;
    // FULL, because a commit is a promise that outlives a power cut. A small page cache: the
    // working set is a few hundred rows.
    connection
        .execute_batch(
            "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; PRAGMA foreign_keys = ON;
             PRAGMA cache_size = -512; PRAGMA trusted_schema = OFF;",
        )
        .map_err(|e| open(damage(&e)))?;
    let verdict: String =
        connection.query_row("PRAGMA quick_check(1)", [], |row| row.get(0)).map_err(|e| open(damage(&e)))?;
    if verdict == "ok" { Ok(connection) } else { Err(open(format!("it is damaged ({verdict}); {MEND}"))) }
}

const MEND: &str =
    "nothing was changed; restore it from a backup, or move it aside to start with no sessions (workspaces are kept)";

fn damage(error: &rusqlite::Error) -> String {
    match error.sqlite_error_code() {
        Some(ErrorCode::NotADatabase | ErrorCode::DatabaseCorrupt) => format!("it is damaged ({error}); {MEND}"),
        _ => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_no_database_is_refused_and_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state.db");
        std::fs::write(&path, b"this is no database, not even a small one").unwrap();
        let error = Store::open(&path).unwrap_err().to_string();
        assert!(error.contains("damaged") && error.contains("nothing was changed"), "{error}");
        assert_eq!(std::fs::read(&path).unwrap(), b"this is no database, not even a small one");
    }

    #[test]
    fn a_damaged_page_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state.db");
        drop(Store::open(&path).unwrap());
        // The thread closes the connection (and checkpoints) a moment after the handle is gone; then this file goes.
        let until = Instant::now() + Duration::from_secs(60);
        while dir.path().join("state.db-wal").exists() {
            assert!(Instant::now() < until, "the connection stays open");
            std::thread::sleep(Duration::from_millis(5));
        }
        let mut bytes = std::fs::read(&path).unwrap();
        let middle = 100..bytes.len();
        bytes[middle].fill(0xff);
        std::fs::write(&path, bytes).unwrap();
        assert!(Store::open(&path).unwrap_err().to_string().contains("damaged"));
    }
}
