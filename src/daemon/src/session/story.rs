//! What happens to a session, told once: a line of the log with the session and its tenant, and one more in the figures.
//! `journalctl SANDBOXD_SESSION=ID` is what becomes of it.

use std::sync::Arc;
use std::time::Instant;

use wire::id::RunId;

use super::error::SessionError;
use super::handle::Session;
use super::run::Ran;
use crate::metrics::{self, End, One, Open, Run, Timing};

/// A log line about a session.
macro_rules! tell {
    ($level:ident, $session:expr, $($rest:tt)*) => {
        tracing::$level!(
            session = %$session.id,
            tenant = $session.tenant.as_ref().map(wire::id::Tenant::as_str),
            $($rest)*
        )
    };
}
pub(super) use tell;

/// It is open.
pub fn opened(session: &Session) {
    tell!(info, session, runtime = session.runtime.alias, "opened");
}

/// Its processes go on, or it has a sandbox again.
pub fn woken(session: &Session, how: metrics::Wake) {
    match how {
        metrics::Wake::Thawed => tell!(info, session, "thawed"),
        metrics::Wake::Launched => tell!(info, session, "woken"),
        // Whoever wanted it is told why, and that is logged.
        metrics::Wake::Failed => {}
    }
}

/// Its processes are held still.
pub fn frozen(session: &Session) {
    tell!(info, session, "frozen");
}

/// Its sandbox is gone, its files are kept.
pub fn hibernated(session: &Session) {
    metrics::ENDS.one(End::Hibernated);
    tell!(info, session, "hibernated");
}

/// Its sandbox ended without our doing, or because of the disk, which was told.
pub fn ended_by_itself(session: &Session) {
    if session.sandbox().is_some_and(|live| live.stopped.get().is_some()) {
        return;
    }
    metrics::ENDS.one(End::Itself);
    tell!(warn, session, "sandbox ended by itself");
}

/// It is closed.
pub fn closed(session: &Session, had_sandbox: bool, purge: bool) {
    if had_sandbox {
        metrics::ENDS.one(End::Closed);
    }
    tell!(info, session, purge, "closed");
}

/// How an opening ended.
pub fn how_opened(result: &Result<Arc<Session>, SessionError>, attached: bool) -> Open {
    match result {
        Ok(_) if attached => Open::Attached,
        Ok(_) => Open::Opened,
        Err(error) if error.is_refusal() => Open::Refused,
        Err(_) => Open::Failed,
    }
}

/// A command that runs.
#[derive(Debug)]
pub struct Command {
    session: Arc<Session>,
    run: RunId,
    begun: Instant,
    timing: Timing<Run, { Run::COUNT }>,
    _running: One,
}

impl Command {
    /// It begins. Dropped before its end, whoever asked has gone away.
    pub fn begin(session: &Arc<Session>, run: RunId) -> Self {
        let timing = metrics::RUNS.begin(Run::Abandoned);
        Self { session: session.clone(), run, begun: Instant::now(), timing, _running: metrics::RUNNING.one() }
    }

    /// It has ended. Said is how, and never what it was: arguments may hold secrets.
    pub fn end(self, result: &Result<Ran, SessionError>) {
        let how = how_ran(result);
        let (session, run, ms) = (&self.session, self.run, self.begun.elapsed().as_millis());
        let ended = result.as_ref().ok().map(|ran| &ran.response);
        match how {
            Run::Ok | Run::Refused | Run::Abandoned => {}
            Run::Failed => {
                tell!(info, session, %run, exit = ended.and_then(|end| end.exit_code), ms, "command failed");
            }
            Run::Limit => {
                tell!(warn, session, %run, limit = ended.and_then(|end| end.limit.as_deref()), ms, "command met a limit");
            }
            Run::TimedOut => tell!(warn, session, %run, ms, "command timed out"),
            Run::OutputLimit => tell!(warn, session, %run, ms, "command met the limit of output"),
            // Our failures are logged where they are answered.
            Run::SandboxGone => tell!(info, session, %run, ms, "command lost its sandbox"),
        }
        self.timing.end(how);
    }
}

fn how_ran(result: &Result<Ran, SessionError>) -> Run {
    let end = match result {
        Ok(ran) => &ran.response,
        Err(SessionError::Abandoned(_)) => return Run::Abandoned,
        Err(error) if error.is_refusal() => return Run::Refused,
        Err(_) => return Run::SandboxGone,
    };
    if end.timed_out {
        Run::TimedOut
    } else if end.output_limited {
        Run::OutputLimit
    } else if end.limit.is_some() {
        Run::Limit
    } else if end.exit_code == Some(0) {
        Run::Ok
    } else {
        Run::Failed
    }
}
