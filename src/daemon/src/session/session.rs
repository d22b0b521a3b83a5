//! One session as requests see it: found in the registry, used without the driver.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use tokio::sync::{mpsc, oneshot};
use wire::api::{SessionInfo, SessionState, SessionUsage};
use wire::id::{SessionId, Tenant};

use super::error::SessionError;
use super::state::State;
use super::usage::Meter;
use crate::catalog::Runtime;
use crate::files::Workspace;
use crate::image::ReadyImage;
use crate::runtime::{Init, Slot};

/// What somebody asks of a session's driver.
#[derive(Debug)]
pub enum Ask {
    /// Have a sandbox; answered with it.
    Wake(oneshot::Sender<Result<Arc<Live>, SessionError>>),
    /// Be gone; answered when that is done and recorded.
    Close {
        /// With write layer and workspace.
        purge: bool,
        /// The answer.
        done: oneshot::Sender<Result<(), SessionError>>,
    },
}

/// A sandbox that runs.
#[derive(Debug)]
pub struct Live {
    /// Its init.
    pub init: Init,
    /// Its range of ids, held as long as it runs.
    pub slot: Slot,
    /// Its image.
    pub image: Arc<ReadyImage>,
    /// Its cgroup.
    pub meter: Meter,
}

/// A session. What never changes is here; what changes, its driver writes.
#[derive(Debug)]
pub struct Session {
    /// Its name.
    pub id: SessionId,
    /// What it runs on.
    pub runtime: Arc<Runtime>,
    /// Whom it is counted against.
    pub tenant: Option<Tenant>,
    /// Unix seconds.
    pub created_at: f64,
    /// Of its token.
    pub nonce: [u8; 16],
    /// Worth this session.
    pub token: String,
    pub(super) state: Mutex<State>,
    pub(super) live: Mutex<Option<Arc<Live>>>,
    pub(super) workspace: OnceLock<Workspace>,
    pub(super) inbox: mpsc::Sender<Ask>,
    /// Microseconds since the epoch.
    last_activity: AtomicU64,
    busy: AtomicUsize,
}

/// From what a session is made.
pub(super) struct Parts {
    pub id: SessionId,
    pub runtime: Arc<Runtime>,
    pub tenant: Option<Tenant>,
    pub created_at: f64,
    pub last_activity: f64,
    pub nonce: [u8; 16],
    pub token: String,
    pub state: State,
}

/// A request that is at work in a session: activity from its beginning to its end.
#[derive(Debug)]
pub struct Activity(Arc<Session>);

impl Session {
    pub(super) fn new(parts: Parts) -> (Arc<Self>, mpsc::Receiver<Ask>) {
        let (inbox, asks) = mpsc::channel(64);
        let session = Self {
            id: parts.id,
            runtime: parts.runtime,
            tenant: parts.tenant,
            created_at: parts.created_at,
            nonce: parts.nonce,
            token: parts.token,
            state: Mutex::new(parts.state),
            live: Mutex::new(None),
            workspace: OnceLock::new(),
            inbox,
            last_activity: AtomicU64::new(micros(parts.last_activity)),
            busy: AtomicUsize::new(0),
        };
        (Arc::new(session), asks)
    }

    /// Where it is.
    #[must_use]
    pub fn state(&self) -> State {
        *self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Its sandbox, if it has one that has not ended.
    #[must_use]
    pub fn live(&self) -> Option<Arc<Live>> {
        let live = self.live.lock().unwrap_or_else(PoisonError::into_inner).clone();
        live.filter(|live| !live.init.is_gone())
    }

    /// Its files, which are there with and without a sandbox.
    ///
    /// # Errors
    /// [`SessionError::NoSuchSession`] before they are.
    pub fn workspace(&self) -> Result<&Workspace, SessionError> {
        self.workspace.get().ok_or_else(|| SessionError::NoSuchSession(self.id.clone()))
    }

    /// Count as used, from now until what is returned is dropped.
    #[must_use]
    pub fn activity(self: &Arc<Self>) -> Activity {
        self.busy.fetch_add(1, Ordering::Relaxed);
        self.touch();
        Activity(self.clone())
    }

    /// How many requests are at work in it.
    #[must_use]
    pub fn busy(&self) -> usize {
        self.busy.load(Ordering::Relaxed)
    }

    /// When it was last used, Unix seconds.
    #[must_use]
    #[allow(clippy::cast_precision_loss)] // microseconds since 1970 fit 53 bits until 2255
    pub fn last_activity(&self) -> f64 {
        self.last_activity.load(Ordering::Relaxed) as f64 / 1e6
    }

    /// Its sandbox, started again if it has none.
    ///
    /// # Errors
    /// [`SessionError`].
    pub async fn wake(&self) -> Result<Arc<Live>, SessionError> {
        if let Some(live) = self.live() {
            return Ok(live);
        }
        let (reply, answer) = oneshot::channel();
        let gone = || SessionError::NoSuchSession(self.id.clone());
        self.inbox.send(Ask::Wake(reply)).await.map_err(|_| gone())?;
        answer.await.map_err(|_| gone())?
    }

    /// End it, and wait until that is done.
    ///
    /// # Errors
    /// [`SessionError::NoSuchSession`] if somebody else has; [`SessionError::Store`].
    pub async fn close(&self, purge: bool) -> Result<(), SessionError> {
        let (done, answer) = oneshot::channel();
        let gone = || SessionError::NoSuchSession(self.id.clone());
        self.inbox.send(Ask::Close { purge, done }).await.map_err(|_| gone())?;
        answer.await.map_err(|_| gone())?
    }

    /// As it can be seen from outside; with what it uses if `usage`.
    #[must_use]
    pub fn info(&self, usage: bool) -> SessionInfo {
        let live = self.live();
        let last_activity = self.last_activity();
        SessionInfo {
            session_id: self.id.clone(),
            runtime: self.runtime.alias.clone(),
            tenant: self.tenant.clone(),
            alive: live.is_some(),
            state: match self.state() {
                State::Asleep => SessionState::Hibernated,
                State::Opening | State::Running | State::Waking | State::Closing => SessionState::Running,
            },
            created_at: self.created_at,
            last_activity,
            idle_seconds: if self.busy() > 0 { 0.0 } else { (now() - last_activity).max(0.0) },
            usage: usage.then(|| live.map_or_else(SessionUsage::default, |live| live.meter.read())),
        }
    }

    fn touch(&self) {
        self.last_activity.store(micros(now()), Ordering::Relaxed);
    }
}

impl Live {
    pub(super) fn new(init: Init, slot: Slot, image: Arc<ReadyImage>, cgroup: PathBuf) -> Self {
        Self { init, slot, image, meter: Meter::new(cgroup) }
    }
}

impl Drop for Activity {
    fn drop(&mut self) {
        self.0.busy.fetch_sub(1, Ordering::Relaxed);
        self.0.touch();
    }
}

/// Unix seconds.
#[must_use]
pub fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // a float cast saturates
fn micros(seconds: f64) -> u64 {
    (seconds * 1e6) as u64
}
