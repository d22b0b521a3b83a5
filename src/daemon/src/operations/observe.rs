//! Watching one operation from its beginning to its end, whichever way it ends.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use uuid::Uuid;
use wire::id::{RequestId, SessionId, Tenant};

use super::quote::cut;
use super::{Log, Op, Operation};

/// On whose behalf, as the client names them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Caller {
    /// The agent.
    pub agent: Option<String>,
    /// Its run.
    pub run: Option<String>,
}

/// What an operation is about.
#[derive(Debug, Clone)]
pub struct Subject {
    /// The session.
    pub session: SessionId,
    /// When that was opened, Unix seconds.
    pub opened: f64,
    /// Whom it is counted against.
    pub tenant: Option<Tenant>,
    /// For whom.
    pub caller: Caller,
    /// The request that it is done for, if it is one.
    pub request: Option<RequestId>,
    /// Of a command: what tells it from every other, so that its end is recorded once.
    pub command: Option<Uuid>,
    /// What is done.
    pub op: Op,
    /// To what: the quoted command, or the path. Cut when it is recorded.
    pub target: String,
}

/// An operation that is going on. Dropped before its end, it is recorded as one whose client went away.
#[derive(Debug)]
pub struct Observed {
    log: Arc<Log>,
    subject: Option<Subject>,
    begun: Instant,
}

impl Log {
    /// Begin an operation.
    #[must_use]
    pub fn observe(self: &Arc<Self>, mut subject: Subject) -> Observed {
        subject.target = cut(&subject.target);
        Observed { log: self.clone(), subject: Some(subject), begun: Instant::now() }
    }
}

impl Observed {
    /// It has ended: record that. `detail` is the service's own words, never a client's or a sandbox's.
    pub fn finish(mut self, ok: bool, detail: impl Into<Cow<'static, str>>) {
        self.record(ok, detail.into());
    }

    /// What a command's init is to keep of it, which may take so long if its client has said; see [`super::note`].
    #[must_use]
    pub fn note(&self, within: Option<Duration>) -> Vec<u8> {
        self.subject.as_ref().map(|subject| super::note::write(subject, within)).unwrap_or_default()
    }

    fn record(&mut self, ok: bool, detail: Cow<'static, str>) {
        let Some(subject) = self.subject.take() else { return };
        let detail = detail.into_owned();
        self.log.record(Operation { at: now(), subject, ok, detail, duration: self.begun.elapsed() });
    }
}

impl Drop for Observed {
    fn drop(&mut self) {
        self.record(false, Cow::Borrowed("client went away"));
    }
}

/// Unix seconds.
pub(super) fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}
