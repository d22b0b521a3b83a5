//! One session as requests see it: found in the registry, used without the driver.

use std::path::PathBuf;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tokio::sync::{mpsc, oneshot};
use wire::api::{SessionInfo, SessionState, SessionUsage, Tier};
use wire::id::{SessionId, Tenant};

use super::error::SessionError;
use super::network;
use super::quota::DiskError;
use super::state::{self, Effect, Event, Refused, State};
use super::usage::Meter;
use crate::catalog::Runtime;
use crate::files::Workspace;
use crate::image::ReadyImage;
use crate::request::{self, Request};
use crate::resolver::Lease;
use crate::runtime::{Init, Slot};

/// What somebody asks of a session's driver.
#[derive(Debug)]
pub enum Ask {
    /// Have a sandbox whose processes run; answered with it.
    Wake(oneshot::Sender<Result<Arc<Live>, SessionError>>),
    /// Hold its processes still, if it has been idle for so long.
    Freeze {
        /// Idle at least this long, with nothing at work.
        idle: Duration,
    },
    /// End its sandbox; answered when that is done. It dozes already, or has been idle for so long.
    Hibernate {
        /// Idle at least this long, with nothing at work.
        idle: Duration,
        /// The answer.
        done: oneshot::Sender<()>,
    },
    /// End a sandbox that could not be ended when it was to be.
    Clear,
    /// Give back what a stopped sandbox keeps beside its files.
    DropLayer {
        /// If it was stopped before this, Unix seconds.
        stopped_before: f64,
    },
    /// Be gone; answered when that is done and recorded.
    Close {
        /// With write layer and workspace.
        purge: bool,
        /// Only if it has been idle at least this long, with nothing at work.
        idle: Option<Duration>,
        /// The answer.
        done: oneshot::Sender<Result<(), SessionError>>,
    },
}

/// With the request on whose behalf, if it is one's.
pub(super) type Asked = (Ask, Option<Arc<Request>>);

/// A sandbox that runs.
#[derive(Debug)]
pub struct Live {
    /// Its init.
    pub init: Init,
    /// Its range of ids, held as long as it runs.
    pub slot: Arc<Slot>,
    /// Its image.
    pub image: Arc<ReadyImage>,
    /// What the resolver knows it by; none without a network.
    pub network: Option<Lease>,
    /// Its cgroup.
    pub meter: Meter,
    /// Why it was stopped, if it was for the disk's sake.
    pub stopped: OnceLock<DiskError>,
}

impl Live {
    fn usage(&self) -> SessionUsage {
        SessionUsage { network: self.network.as_ref().map(network::usage), ..self.meter.read() }
    }

    /// What those are told who waited for something of it, now that it has ended.
    #[must_use]
    pub fn end(&self, id: &SessionId) -> SessionError {
        match self.stopped.get() {
            Some(error) => SessionError::StoppedForDisk(id.clone(), error.clone()),
            None => SessionError::SandboxEnded(id.clone()),
        }
    }
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
    now: Mutex<Now>,
    pub(super) workspace: OnceLock<Workspace>,
    pub(super) inbox: mpsc::Sender<Asked>,
    /// Microseconds on the clock of [`BEGINNING`], so that a wall clock that jumps makes nobody idle.
    last_activity: AtomicI64,
    busy: AtomicUsize,
}

/// What changes together.
#[derive(Debug)]
struct Now {
    state: State,
    /// Whether it counts as a resident sandbox. One that is being closed has the place that it had when that began: who
    /// slept has none, and takes none from a newcomer.
    resident: bool,
    live: Option<Arc<Live>>,
    /// Whether a stopped sandbox's write layer is kept.
    layer: bool,
}

impl Now {
    /// `None`: it is no more, and being cleared away.
    fn enter(&mut self, to: Option<State>) {
        self.state = to.unwrap_or(State::Closing);
        if self.state != State::Closing {
            self.resident = self.state.is_resident();
        }
    }
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

/// From where idle times are counted.
static BEGINNING: LazyLock<Instant> = LazyLock::new(Instant::now);

impl Session {
    pub(super) fn new(parts: Parts) -> (Arc<Self>, mpsc::Receiver<Asked>) {
        let (inbox, asks) = mpsc::channel(64);
        let idle = (now() - parts.last_activity).max(0.0);
        let session = Self {
            id: parts.id,
            runtime: parts.runtime,
            tenant: parts.tenant,
            created_at: parts.created_at,
            nonce: parts.nonce,
            token: parts.token,
            now: Mutex::new(Now { state: parts.state, resident: parts.state.is_resident(), live: None, layer: true }),
            workspace: OnceLock::new(),
            inbox,
            last_activity: AtomicI64::new(tick() - micros(idle)),
            busy: AtomicUsize::new(0),
        };
        (Arc::new(session), asks)
    }

    /// Until nobody works for it any more: it is closed, and its name is free.
    pub(super) async fn ended(&self) {
        self.inbox.closed().await;
    }

    fn lock(&self) -> MutexGuard<'_, Now> {
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where it is.
    #[must_use]
    pub fn state(&self) -> State {
        self.lock().state
    }

    /// Whether it holds one of the places of sandboxes.
    #[must_use]
    pub fn is_resident(&self) -> bool {
        self.lock().resident
    }

    /// Its sandbox, if it has one whose processes run, and go on: one that is being stopped takes no more.
    #[must_use]
    pub fn live(&self) -> Option<Arc<Live>> {
        let now = self.lock();
        let goes_on = |live: &&Arc<Live>| !live.init.is_gone() && live.stopped.get().is_none();
        now.live.as_ref().filter(|_| now.state == State::Running).filter(goes_on).cloned()
    }

    /// Its sandbox, whatever its state.
    pub(super) fn sandbox(&self) -> Option<Arc<Live>> {
        self.lock().live.clone()
    }

    pub(super) fn set_sandbox(&self, live: Option<Arc<Live>>) {
        let mut now = self.lock();
        now.layer |= live.is_some();
        now.live = live;
    }

    pub(super) fn set_layer(&self, layer: bool) {
        self.lock().layer = layer;
    }

    /// Let an event happen: the state changes, and the caller does what it brings.
    ///
    /// # Errors
    /// [`Refused`].
    pub(super) fn step(&self, event: Event) -> Result<Option<Effect>, Refused> {
        let mut now = self.lock();
        let (to, effect) = state::next(now.state, event)?;
        now.enter(to);
        Ok(effect)
    }

    /// The same, if the session has been idle for `idle` and nothing is at work in it. A request counts
    /// itself before it looks at the state, so either it is seen here, or it sees the new state.
    pub(super) fn step_if_idle(&self, event: Event, idle: Duration) -> Option<Effect> {
        let mut now = self.lock();
        if self.busy() > 0 || self.idle() < idle {
            return None;
        }
        let (to, effect) = state::next(now.state, event).ok()?;
        now.enter(to);
        effect
    }

    /// Its files, which are there with and without a sandbox.
    ///
    /// # Errors
    /// [`SessionError::FilesGone`] if a restart did not find them.
    pub fn workspace(&self) -> Result<&Workspace, SessionError> {
        self.workspace.get().ok_or_else(|| SessionError::FilesGone(self.id.clone()))
    }

    /// Count as used, from now until what is returned is dropped.
    #[must_use]
    pub fn activity(self: &Arc<Self>) -> Activity {
        self.busy.fetch_add(1, Ordering::SeqCst);
        self.touch();
        Activity(self.clone())
    }

    /// How many requests are at work in it.
    #[must_use]
    pub fn busy(&self) -> usize {
        self.busy.load(Ordering::SeqCst)
    }

    /// How long ago it was last used.
    #[must_use]
    pub fn idle(&self) -> Duration {
        if self.busy() > 0 {
            return Duration::ZERO;
        }
        let idle = tick() - self.last_activity.load(Ordering::Relaxed);
        Duration::from_micros(u64::try_from(idle).unwrap_or(0))
    }

    /// When it was last used, Unix seconds.
    #[must_use]
    pub fn last_activity(&self) -> f64 {
        now() - self.idle().as_secs_f64()
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
        self.ask(Ask::Wake(reply)).await?;
        answer.await.map_err(|_| self.gone())?
    }

    /// End it, and wait until that is done.
    ///
    /// # Errors
    /// [`SessionError::NoSuchSession`] if somebody else has; [`SessionError::Store`].
    pub async fn close(&self, purge: bool) -> Result<(), SessionError> {
        let (done, answer) = oneshot::channel();
        self.ask(Ask::Close { purge, idle: None, done }).await?;
        answer.await.map_err(|_| self.gone())?
    }

    /// End its sandbox and keep the session, because somebody wants so, and wait until that is done.
    ///
    /// # Errors
    /// [`SessionError::AtWork`]; [`SessionError::NoSuchSession`] if it has been closed meanwhile.
    pub async fn sleep(&self) -> Result<(), SessionError> {
        self.hibernate(Duration::ZERO).await;
        match self.state() {
            State::Dozing | State::Asleep => Ok(()),
            State::Opening | State::Running | State::Frozen | State::Waking => {
                Err(SessionError::AtWork(self.id.clone()))
            }
            State::Closing => Err(self.gone()),
        }
    }

    /// End its sandbox, which it has given up, and wait until that is done.
    pub(super) async fn hibernate(&self, idle: Duration) {
        let (done, answer) = oneshot::channel();
        if self.ask(Ask::Hibernate { idle, done }).await.is_ok() {
            // A session that is closed meanwhile has no sandbox either.
            let _ = answer.await;
        }
    }

    pub(super) async fn ask(&self, ask: Ask) -> Result<(), SessionError> {
        self.inbox.send((ask, request::current())).await.map_err(|_| self.gone())
    }

    fn gone(&self) -> SessionError {
        SessionError::NoSuchSession(self.id.clone())
    }

    /// As it can be seen from outside; with what it uses if `usage`.
    #[must_use]
    pub fn info(&self, usage: bool) -> SessionInfo {
        let (state, live, layer) = {
            let now = self.lock();
            (now.state, now.live.clone().filter(|live| !live.init.is_gone()), now.layer)
        };
        let tier = match state {
            State::Opening | State::Running | State::Waking | State::Closing => Tier::Running,
            State::Frozen => Tier::Frozen,
            State::Dozing | State::Asleep if layer => Tier::Stopped,
            State::Dozing | State::Asleep => Tier::Files,
        };
        let hibernated = matches!(tier, Tier::Stopped | Tier::Files);
        let idle = self.idle().as_secs_f64();
        SessionInfo {
            session_id: self.id.clone(),
            runtime: self.runtime.alias.clone(),
            tenant: self.tenant.clone(),
            alive: live.is_some() && !hibernated,
            state: if hibernated { SessionState::Hibernated } else { SessionState::Running },
            created_at: self.created_at,
            last_activity: now() - idle,
            idle_seconds: idle,
            usage: live.filter(|_| usage).map(|live| live.usage()),
            tier: Some(tier),
        }
    }

    fn touch(&self) {
        self.last_activity.store(tick(), Ordering::Relaxed);
    }
}

impl Live {
    pub(super) fn new(
        init: Init,
        slot: Arc<Slot>,
        image: Arc<ReadyImage>,
        cgroup: PathBuf,
        network: Option<Lease>,
    ) -> Self {
        Self { init, slot, image, network, meter: Meter::new(cgroup), stopped: OnceLock::new() }
    }
}

impl Drop for Activity {
    fn drop(&mut self) {
        self.0.touch();
        self.0.busy.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Unix seconds.
#[must_use]
pub fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}

/// Microseconds since the beginning.
fn tick() -> i64 {
    i64::try_from(BEGINNING.elapsed().as_micros()).unwrap_or(i64::MAX)
}

#[allow(clippy::cast_possible_truncation)] // a float cast saturates
fn micros(seconds: f64) -> i64 {
    (seconds * 1e6) as i64
}
