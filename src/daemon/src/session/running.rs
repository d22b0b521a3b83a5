//! Commands that a predecessor of this process started: they go on, to their deadline at most, and their ends are recorded.

use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::time::timeout;
use wire::id::RunId;
use wire::init::{Met, Status};

use super::handle::Session;
use super::registry::Registry;
use super::run::{KILL_GRACE, TERM_GRACE};
use crate::runtime::init::{Found as Listed, Running};
use crate::runtime::pipes::{Pipe, Read};
use crate::runtime::{Init, Outcome};

/// The end of a command whose request died with a predecessor of this process.
#[derive(Debug, Clone)]
pub struct Found {
    /// Where.
    pub session: Arc<Session>,
    /// What was sent with the command. It comes out of the sandbox: hostile.
    pub note: Vec<u8>,
    /// How it ended; `None` if its sandbox ended first, or its deadline came.
    pub status: Option<Status>,
    /// Whether it was stopped because its deadline came.
    pub timed_out: bool,
    /// The limit of the sandbox that made it fail, in words.
    pub limit: Option<String>,
    /// From its start to its end.
    pub duration: Duration,
}

/// Records the end of a command, unless that is recorded already.
pub type OnFound = Box<dyn Fn(Found) -> Pin<Box<dyn Future<Output = ()> + Send>> + Send + Sync>;

impl Registry {
    /// Follow every command of an adopted session to its end, which is then recorded.
    pub(super) async fn follow(self: &Arc<Self>, session: &Arc<Session>, init: &Init) {
        let listed = match init.list().await {
            Ok(listed) => listed,
            Err(error) => {
                let error = &error as &dyn std::error::Error;
                return tracing::warn!(session = %session.id, error, "its commands are not known");
            }
        };
        for one in listed {
            let (registry, session, init) = (self.clone(), session.clone(), init.clone());
            tokio::spawn(async move { registry.follow_one(&session, &init, one).await });
        }
    }

    async fn follow_one(&self, session: &Arc<Session>, init: &Init, listed: Listed) {
        let Listed { run, note, age, exited, met, forgotten, streams, running } = listed;
        let begun = Instant::now().checked_sub(age);
        if let Some(streams) = streams {
            // Nobody asked for this output any more; but who writes it must not wait for ever.
            for stream in streams {
                tokio::spawn(drain(stream));
            }
        }
        if forgotten {
            return;
        }
        let at_work = session.activity();
        let end = match (exited, running) {
            (Some(status), _) => End::Exited(status, met),
            (None, Some(running)) => {
                let noted = (self.deps.noted)(&note).unwrap_or(Duration::MAX);
                let within = noted.min(Duration::from_secs(self.policy().execute_timeout));
                end_of(init, run, running, within.saturating_sub(age)).await
            }
            (None, None) => End::SandboxGone,
        };
        let (status, limit) = match end {
            End::Exited(status, met) => {
                (Some(status), session.live().and_then(|live| live.meter.limit_met(status, met)))
            }
            End::TimedOut | End::SandboxGone => (None, None),
        };
        let timed_out = end == End::TimedOut;
        drop(at_work);
        let duration = if exited.is_some() { age } else { begun.map_or(age, |begun| begun.elapsed()) };
        (self.deps.found)(Found { session: session.clone(), note, status, timed_out, limit, duration }).await;
        init.forget(run);
    }
}

/// How a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Exited(Status, Met),
    TimedOut,
    SandboxGone,
}

/// Wait for the end of a run, and bring it about with everything that it has started when it has not ended `within` so long.
async fn end_of(init: &Init, run: RunId, running: Running, within: Duration) -> End {
    let Running { exited, emptied } = running;
    match timeout(within, exited).await {
        Ok(Ok(Outcome::Exited(status, _, met))) => End::Exited(status, met),
        Ok(Ok(Outcome::Refused(..)) | Err(_)) => End::SandboxGone,
        Err(_) => {
            init.stop(run, TERM_GRACE).await;
            if timeout(TERM_GRACE + KILL_GRACE, emptied).await.is_err() {
                tracing::error!(%run, "processes outlive their SIGKILL");
            }
            End::TimedOut
        }
    }
}

/// Read a stream to its end, into nothing.
pub(super) async fn drain(mut stream: Pipe) {
    let mut nothing = Vec::new();
    while !stream.ended() {
        stream.readable().await;
        // One piece at a time: whoever writes without end must not have a thread of ours to itself.
        if let Ok(Read::Bytes(_)) = stream.read_now(&mut nothing, 0) {
            tokio::task::yield_now().await;
        }
    }
}
