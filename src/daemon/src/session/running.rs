//! Commands that a predecessor of this process started: they go on, and their ends are recorded.

use std::sync::Arc;
use std::time::{Duration, Instant};

use wire::init::{Met, Status};

use super::handle::Session;
use super::registry::Registry;
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
    /// How it ended; `None` if its sandbox ended first.
    pub status: Option<Status>,
    /// The limit of the sandbox that made it fail, in words.
    pub limit: Option<String>,
    /// From its start to its end.
    pub duration: Duration,
}

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
            (Some(status), _) => Some((status, met)),
            (None, Some(running)) => end_of(running).await,
            (None, None) => None,
        };
        let limit = end.and_then(|(status, met)| session.live()?.meter.limit_met(status, met));
        let status = end.map(|(status, _)| status);
        drop(at_work);
        let duration = if exited.is_some() { age } else { begun.map_or(age, |begun| begun.elapsed()) };
        (self.deps.found)(Found { session: session.clone(), note, status, limit, duration });
        init.forget(run);
    }
}

async fn end_of(running: Running) -> Option<(Status, Met)> {
    match running.exited.await {
        Ok(Outcome::Exited(status, _, met)) => Some((status, met)),
        Ok(Outcome::Refused(..)) | Err(_) => None,
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
