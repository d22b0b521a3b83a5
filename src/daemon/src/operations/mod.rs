//! The operations log: what was done in which session, for whom, and how it ended. Never a payload.
//!
//! ```text
//! request ── record() ──▶ operations.journal ── mover, every second ──▶ operations.db ──▶ events, pages
//!            one write(2), in order            a thread of its own      kept for `operations_days`
//! ```
//!
//! A record is in the journal before the request is answered. The page cache outlives the process, so
//! killing it loses nothing; the mover takes over at the next start where it was (a row that is
//! there already is left, a line that was torn off is none). A power cut may cost the last moment: nothing
//! waits for the disk. The request never waits for SQLite either.
//!
//! When SQLite does not keep up (its disk is full), the journal goes on up to [`JOURNAL_MAX`]. From there on
//! new operations are not recorded, which the log says: what is recorded stays, and no request fails for it.
//!
//! Numbers: `id` rises over the whole service, `seq` by one within a session. A session whose name was
//! used before is another one: rows carry when their session was opened.

mod journal;
mod mover;
pub mod note;
mod observe;
mod quote;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Semaphore;
use uuid::Uuid;
use wire::api::{Operation as Shown, OperationsPage, SessionEvent, SessionEvents};
use wire::id::SessionId;

use crate::clock::Jumps;
use crate::fail;
pub use crate::store::Filter;
use crate::store::{OperationRow, Operations, Page, Reader, StoreError};
use journal::Journal;
use mover::Mover;
pub use note::Noted;
pub use observe::{Caller, Observed, Subject};
pub use quote::command;

/// Size at which the journal takes no more, in bytes: some 200,000 operations.
pub const JOURNAL_MAX: u64 = 64 << 20;
/// Searches at once; more wait.
const SEARCHES: usize = 2;
/// Longest search.
const SEARCH_MAX: Duration = Duration::from_secs(20);
/// How often what is too old is deleted.
const SWEEP_EVERY: Duration = Duration::from_secs(86_400);
/// How often sessions that are gone are forgotten.
const PRUNE_EVERY: Duration = Duration::from_secs(600);
const DAY: f64 = 86_400.0;

/// What was done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Op {
    /// A command.
    Run,
    /// A file was read.
    Read,
    /// A file was written.
    Write,
    /// A path was described.
    Stat,
    /// A directory was listed.
    Ls,
    /// The links of a path were resolved.
    Realpath,
    /// A directory was made.
    Mkdir,
    /// A file or a tree was removed.
    Remove,
    /// The service stopped the sandbox.
    Stop,
}

impl Op {
    /// Every operation, sorted by name.
    pub const ALL: [Self; 9] = [
        Self::Ls,
        Self::Mkdir,
        Self::Read,
        Self::Realpath,
        Self::Remove,
        Self::Run,
        Self::Stat,
        Self::Stop,
        Self::Write,
    ];

    /// Its name in the contract.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Run => "run",
            Self::Read => "read",
            Self::Write => "write",
            Self::Stat => "stat",
            Self::Ls => "ls",
            Self::Realpath => "realpath",
            Self::Mkdir => "mkdir",
            Self::Remove => "remove",
            Self::Stop => "stop",
        }
    }

    /// The operation of that name.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|op| op.name() == name)
    }
}

/// One operation that has ended.
#[derive(Debug, Clone)]
pub struct Operation {
    /// Its end, Unix seconds.
    pub at: f64,
    /// Where.
    pub subject: Subject,
    /// Whether it succeeded.
    pub ok: bool,
    /// The outcome, in words of the service alone.
    pub detail: String,
    /// How long it took.
    pub duration: Duration,
}

/// The log. Its thread ends with it, after moving what is left.
#[derive(Debug)]
pub struct Log {
    journal: Arc<Mutex<Journal>>,
    mover: Mover,
    database: PathBuf,
    searches: Semaphore,
}

impl Log {
    /// Open the log in a directory, and take up what an earlier process left in its journal.
    ///
    /// # Errors
    /// [`StoreError::Open`].
    pub fn open(directory: &Path) -> Result<Self, StoreError> {
        Self::open_gathering(directory, mover::GATHER)
    }

    /// The same, where records wait for `gather` in the journal.
    fn open_gathering(directory: &Path, gather: Duration) -> Result<Self, StoreError> {
        let database = directory.join("operations.db");
        let operations = Operations::open(&database)?;
        let path = directory.join("operations.journal");
        let journal = Journal::open(&path, operations.last_id()?);
        let journal = journal.map_err(|e| StoreError::Open { path: path.clone(), reason: e.to_string() })?;
        let journal = Arc::new(Mutex::new(journal));
        let mover = Mover::start(operations, journal.clone(), gather);
        let mover = mover.map_err(|e| StoreError::Open { path, reason: format!("start its thread: {e}") })?;
        Ok(Self { journal, mover, database, searches: Semaphore::new(SEARCHES) })
    }

    /// Record one operation: it is in the journal when this returns, in microseconds.
    /// What cannot be recorded is counted and logged; the caller has nothing to do about it.
    pub fn record(&self, operation: Operation) {
        let urgency = self.journal().append(operation);
        self.mover.wake(urgency);
        fail::point("op.recorded");
    }

    /// Take up the numbers of sessions that an earlier process opened, each with when that was (Unix seconds). When the last
    /// operation of each ended, of those that have one: until then it was used.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn adopt(&self, sessions: Vec<(SessionId, f64)>) -> Result<Vec<(SessionId, f64)>, StoreError> {
        self.mover
            .call("read the operations log", move |operations, journal| {
                let mut used = Vec::new();
                for (session, opened) in sessions {
                    let opened = micros(opened);
                    let (last, at) = operations.last(&session, opened)?;
                    let at = lock(journal).adopt(session.clone(), opened, last, at);
                    used.extend(Some((session, at)).filter(|_| at > 0.0));
                }
                Ok(used)
            })
            .await
    }

    /// Whether the end of a command that outlived an earlier process was recorded by that. The session's opening is in Unix seconds.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn has_command(&self, session: SessionId, opened: f64, command: Uuid) -> Result<bool, StoreError> {
        if self.journal().has_inherited(command) {
            return Ok(true);
        }
        let look = move |operations: &mut Operations, _: &Mutex<Journal>| {
            operations.has_command(&session, micros(opened), command)
        };
        self.mover.call("read the operations log", look).await
    }

    /// What was done in a session since it was opened (Unix seconds): the newest 200, with a number above `after`, in order.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn events(&self, session: SessionId, opened: f64, after: u64) -> Result<SessionEvents, StoreError> {
        let opened = micros(opened);
        // Read before the rows: what comes in between is in the rows, or in the next answer.
        let given = self.journal().last_seq(&session, opened);
        let rows = self
            .mover
            .call_moved("read the operations log", move |operations, _| operations.events(&session, opened, after))
            .await?;
        let latest_seq = rows.last().map_or(given, |row| row.seq.max(given));
        Ok(SessionEvents { events: rows.into_iter().map(event).collect(), latest_seq })
    }

    /// A page of the log, newest first, everything included that was recorded before the call.
    ///
    /// # Errors
    /// [`StoreError`]; [`StoreError::Busy`] for a search that takes too long.
    pub async fn page(&self, filter: Filter) -> Result<OperationsPage, StoreError> {
        const OPERATION: &str = "search the operations log";
        let busy = || StoreError::Busy { operation: OPERATION };
        let (skip, limit) = (filter.skip, filter.limit);
        let search = async {
            let _permit = self.searches.acquire().await.map_err(|_| busy())?;
            self.mover.call_moved(OPERATION, |_, _| Ok(())).await?;
            search(self.database.clone(), filter).await.unwrap_or_else(|| Err(busy()))
        };
        let page = tokio::time::timeout(SEARCH_MAX, search).await.map_err(|_| busy())??;
        Ok(OperationsPage {
            operations: page.rows.into_iter().map(shown).collect(),
            total: page.total,
            skip,
            limit,
            ops: page.ops.into_iter().map(str::to_owned).collect(),
        })
    }

    /// Delete what ended more than so many days ago; how many rows that were.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn sweep(&self, now: f64, days: u64) -> Result<usize, StoreError> {
        #[allow(clippy::cast_precision_loss)] // days fit
        let before = now - days as f64 * DAY;
        let mut swept = 0;
        loop {
            // In pieces, so that events are read in between.
            let some =
                self.mover.call("sweep the operations log", move |operations, _| operations.sweep(before)).await?;
            swept += some;
            if some == 0 {
                return Ok(swept);
            }
        }
    }

    /// Forget the numbers of sessions that are no more. Their rows stay.
    pub fn retain(&self, open: impl FnOnce() -> BTreeSet<SessionId>) {
        // Asked under the lock: a session that is opened meanwhile has recorded nothing yet.
        let mut journal = self.journal();
        let open = open();
        journal.retain(|session| open.contains(session));
    }

    fn journal(&self) -> MutexGuard<'_, Journal> {
        lock(&self.journal)
    }
}

/// Sweep and prune, now and then, for as long as the future is polled. `days`: absent, rows are kept for ever.
pub async fn keep_house(log: Arc<Log>, days: Option<u64>, open: impl Fn() -> BTreeSet<SessionId>) {
    let mut jumps = Jumps::watch();
    let mut since_sweep = SWEEP_EVERY;
    loop {
        let jumped = jumps.ahead();
        if jumped {
            tracing::warn!("the wall clock jumped; the operations log is not swept now");
        }
        if let Some(days) = days.filter(|_| is_due(since_sweep, jumped)) {
            since_sweep = Duration::ZERO;
            match log.sweep(observe::now(), days).await {
                Ok(0) => {}
                Ok(rows) => tracing::info!(rows, days, "swept the operations log"),
                Err(error) => tracing::error!(error = &error as &dyn std::error::Error, "operations log not swept"),
            }
        }
        log.retain(&open);
        tokio::time::sleep(PRUNE_EVERY).await;
        since_sweep += PRUNE_EVERY;
    }
}

/// Whether it is time to sweep: not while a wall clock that has jumped would make all of it old. Somebody has until the next
/// look to see that in the log.
fn is_due(since_sweep: Duration, jumped: bool) -> bool {
    since_sweep >= SWEEP_EVERY && !jumped
}

/// Search on a thread of its own, which is interrupted when the caller goes away. `None`: it ended without a result.
async fn search(database: PathBuf, filter: Filter) -> Option<Result<Page, StoreError>> {
    let opened = tokio::task::spawn_blocking(move || Reader::open(&database)).await.ok()?;
    let mut reader = match opened {
        Ok(reader) => reader,
        Err(error) => return Some(Err(error)),
    };
    let _interrupt = reader.interrupt_on_drop();
    tokio::task::spawn_blocking(move || reader.page(&filter, &Op::ALL.map(Op::name))).await.ok()
}

fn lock(journal: &Mutex<Journal>) -> MutexGuard<'_, Journal> {
    journal.lock().unwrap_or_else(PoisonError::into_inner)
}

fn event(row: OperationRow) -> SessionEvent {
    SessionEvent {
        seq: row.seq,
        at: row.at,
        op: row.op,
        target: row.target,
        ok: row.ok,
        detail: row.detail,
        duration_ms: row.duration_ms,
    }
}

fn shown(row: OperationRow) -> Shown {
    Shown {
        id: row.id,
        at: row.at,
        session: row.session,
        tenant: row.tenant,
        agent: row.agent,
        run: row.run,
        op: row.op,
        target: row.target,
        ok: row.ok,
        detail: row.detail,
        duration_ms: row.duration_ms,
        request: row.request,
    }
}

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // a float cast saturates
fn micros(seconds: f64) -> u64 {
    (seconds * 1e6) as u64
}
