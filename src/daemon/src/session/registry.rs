//! Which sessions there are: admission, and finding one.
//!
//! The map holds a session from its admission to the end of its removal, so whatever is
//! counted is counted under one lock, opens in flight included.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use tokio::sync::oneshot;
use uuid::Uuid;
use wire::id::{SessionId, Tenant};

use super::create::Deps;
use super::driver::Driver;
use super::error::SessionError;
use super::handle::{Activity, Parts, Session, now};
use super::policy::{Policy, PolicyError};
use super::state::{Effect, Event, State};
use super::story;
use crate::catalog::Runtime;
use crate::config::Settings;
use crate::{fail, metrics, request};

/// How long an open waits for the end of a session of that name.
const CLOSING_PATIENCE: Duration = Duration::from_secs(10);

/// What a request to open a session says, validated.
#[derive(Debug, Clone)]
pub struct NewSession {
    /// Its name; absent: a new one.
    pub id: Option<SessionId>,
    /// Alias of its runtime; absent: the workspace's, else the default.
    pub runtime: Option<String>,
    /// Whom it is counted against.
    pub tenant: Option<Tenant>,
    /// An open session of that name will do.
    pub reuse: bool,
    /// Nothing else will do.
    pub attach: bool,
}

/// The sessions of this service.
#[derive(Debug)]
pub struct Registry {
    /// What sessions are made with.
    pub deps: Deps,
    /// The allowlist, in the operator's order; the first is the default unless one is named.
    runtimes: Vec<Arc<Runtime>>,
    policy: RwLock<Arc<Policy>>,
    held: Mutex<Held>,
}

/// What is counted together.
#[derive(Debug, Default)]
struct Held {
    sessions: BTreeMap<SessionId, Arc<Session>>,
    /// Names whose workspaces are being deleted: nobody opens them meanwhile.
    reserved: BTreeSet<SessionId>,
}

/// A name that nobody can open until this is dropped.
#[derive(Debug)]
pub struct Reserved {
    registry: Arc<Registry>,
    id: SessionId,
}

impl Drop for Reserved {
    fn drop(&mut self) {
        self.registry.held().reserved.remove(&self.id);
    }
}

/// What letting a session wake takes.
#[derive(Debug)]
pub(super) struct Waking {
    /// Who gives its place.
    pub gives_place: Option<Arc<Session>>,
    /// What is to be done.
    pub effect: Effect,
}

/// Who may give place to one more sandbox.
struct Givers<'a> {
    /// The idlest first.
    idlest: Vec<&'a Arc<Session>>,
    /// How long each has to have been idle still when it is asked.
    idle: Duration,
    /// What is said if each has something to do by then.
    full: SessionError,
}

/// A newcomer that is counted, and the session that gives it its place.
struct Admitted {
    driver: Driver,
    gives_place: Option<Arc<Session>>,
}

/// How many sessions there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Counts {
    /// That hold a sandbox, or get or lose one.
    pub resident: u64,
    /// All.
    pub open: u64,
}

impl Registry {
    /// No sessions yet.
    #[must_use]
    pub fn new(deps: Deps, runtimes: Vec<Arc<Runtime>>, default_runtime: String) -> Arc<Self> {
        let policy = Policy::new(&deps.settings, default_runtime, &runtimes);
        Arc::new(Self { deps, runtimes, policy: RwLock::new(Arc::new(policy)), held: Mutex::default() })
    }

    /// The ceilings and lifetimes in force.
    #[must_use]
    pub fn policy(&self) -> Arc<Policy> {
        self.policy.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Change them: for the next sandbox; whether anything is different now.
    ///
    /// # Errors
    /// [`PolicyError`]; then nothing is changed.
    pub fn update_policy(&self, update: &wire::api::PolicyUpdate) -> Result<bool, PolicyError> {
        let mut policy = self.policy.write().unwrap_or_else(PoisonError::into_inner);
        let next = policy.updated(update)?;
        let changed = next != **policy;
        *policy = Arc::new(next);
        Ok(changed)
    }

    /// Replace them by what settings say that were read again; whether anything is different now.
    pub fn reload_policy(&self, settings: &Settings, default_runtime: String) -> bool {
        let mut policy = self.policy.write().unwrap_or_else(PoisonError::into_inner);
        let next = Policy::new(settings, default_runtime, &self.runtimes);
        let changed = next != **policy;
        *policy = Arc::new(next);
        changed
    }

    /// The allowlist, in the operator's order.
    #[must_use]
    pub fn runtimes(&self) -> &[Arc<Runtime>] {
        &self.runtimes
    }

    /// The runtime of this alias.
    #[must_use]
    pub fn runtime(&self, alias: &str) -> Option<&Arc<Runtime>> {
        self.runtimes.iter().find(|runtime| runtime.alias == alias)
    }

    /// Open a session, or attach to one.
    ///
    /// The opening belongs to the session's driver: whoever goes away while it is under way does not stop it in
    /// the middle, and leaves nothing behind.
    ///
    /// # Errors
    /// [`SessionError`]; then nothing was made.
    pub async fn open(self: &Arc<Self>, new: NewSession) -> Result<Arc<Session>, SessionError> {
        let timing = metrics::OPENS.begin(metrics::Open::Abandoned);
        let mut attached = false;
        let result = self.try_open(new, &mut attached).await;
        timing.end(story::how_opened(&result, attached));
        result
    }

    async fn try_open(self: &Arc<Self>, new: NewSession, attached: &mut bool) -> Result<Arc<Session>, SessionError> {
        if let Some(alias) = &new.runtime {
            self.known(alias)?;
        }
        if new.attach && new.id.is_none() {
            return Err(SessionError::AttachNeedsId);
        }
        self.see_off(&new).await;
        if let Some((session, _at_work)) = self.attach(&new)? {
            *attached = true;
            request::about(&session.id, session.tenant.as_ref());
            // Somebody who attaches is about to work: have the sandbox there.
            session.wake().await?;
            return Ok(session);
        }
        self.deps.quotas.free().check()?;
        let runtime = self.runtime_for(&new).await?;
        let Admitted { driver, gives_place } = self.admit(&new, runtime)?;
        let session = driver.session.clone();
        request::about(&session.id, session.tenant.as_ref());
        let (tell, told) = oneshot::channel();
        tokio::spawn(driver.open(gives_place, tell, request::current()));
        told.await.map_err(|_| SessionError::Broken(session.id.clone()))??;
        fail::point("open.told");
        Ok(session)
    }

    /// Whether a client may write so many bytes, and make so many files, in a session.
    ///
    /// # Errors
    /// [`SessionError::Disk`].
    pub async fn admit_write(&self, session: &Session, bytes: u64, files: u64) -> Result<(), SessionError> {
        Ok(self.deps.quotas.admit(&session.id, session.sandbox().is_some(), bytes, files).await?)
    }

    /// Whether a write of so many bytes found no space because the session's share is used up.
    pub async fn has_used_its_share(&self, session: &Session, bytes: u64) -> bool {
        self.deps.quotas.is_used_up(&session.id, session.sandbox().is_some(), bytes).await
    }

    /// An open session.
    ///
    /// # Errors
    /// [`SessionError::NoSuchSession`], also while it is being opened or closed.
    pub fn find(&self, id: &SessionId) -> Result<Arc<Session>, SessionError> {
        let missing = || SessionError::NoSuchSession(id.clone());
        let session = self.get(id).ok_or_else(missing)?;
        if session.state().is_open() { Ok(session) } else { Err(missing()) }
    }

    /// A session in whatever state.
    pub(super) fn get(&self, id: &SessionId) -> Option<Arc<Session>> {
        self.held().sessions.get(id).cloned()
    }

    /// Keep a name from being opened; `None` if it is.
    pub(super) fn reserve(self: &Arc<Self>, id: &SessionId) -> Option<Reserved> {
        let mut held = self.held();
        if held.sessions.contains_key(id) || !held.reserved.insert(id.clone()) {
            return None;
        }
        Some(Reserved { registry: self.clone(), id: id.clone() })
    }

    /// Every open session, oldest first.
    #[must_use]
    pub fn list(&self) -> Vec<Arc<Session>> {
        let mut list: Vec<_> = self.held().sessions.values().cloned().collect();
        list.retain(|session| session.state().is_open());
        list.sort_by(|a, b| a.created_at.total_cmp(&b.created_at));
        list
    }

    /// Every session in whatever state.
    pub(super) fn all(&self) -> Vec<Arc<Session>> {
        self.held().sessions.values().cloned().collect()
    }

    /// How many there are.
    #[must_use]
    pub fn counts(&self) -> Counts {
        counts(&self.held().sessions)
    }

    pub(super) fn forget(&self, id: &SessionId) {
        self.held().sessions.remove(id);
    }

    /// Enter a session that was found at the start.
    pub(super) fn enter(self: &Arc<Self>, parts: Parts) -> Driver {
        let (session, asks) = Session::new(parts);
        self.held().sessions.insert(session.id.clone(), session.clone());
        Driver { registry: self.clone(), session, asks }
    }

    /// Let a session wake, if there is room for one more sandbox or somebody gives place: who that is, and what is to be done.
    pub(super) fn admit_wake(&self, session: &Session) -> Result<Waking, SessionError> {
        let held = self.held();
        // What is frozen has its place; what sleeps needs one.
        let gives_place = if session.state() == State::Asleep { self.make_room(&held.sessions)? } else { None };
        // Counted from here on, under the lock. One that is to be closed is not started once more.
        let effect = session.step(Event::Wake).ok().flatten();
        let effect = effect.ok_or_else(|| SessionError::NoSuchSession(session.id.clone()))?;
        fail::point("wake.admitted");
        Ok(Waking { gives_place, effect })
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn known(&self, alias: &str) -> Result<&Arc<Runtime>, SessionError> {
        self.runtime(alias).ok_or_else(|| {
            let mut allowed: Vec<String> = self.runtimes.iter().map(|r| r.alias.clone()).collect();
            allowed.sort();
            SessionError::UnknownRuntime { alias: alias.to_owned(), allowed }
        })
    }

    /// Wait for the end of a session that is being closed under the name of `new`: for whoever opens it, it is gone already.
    async fn see_off(&self, new: &NewSession) {
        let Some(session) = new.id.as_ref().and_then(|id| self.get(id)) else { return };
        if session.state() == State::Closing {
            // If it takes longer, the answer says what is going on.
            let _ = tokio::time::timeout(CLOSING_PATIENCE, session.ended()).await;
        }
    }

    /// The open session that `new` may be answered with, at work from now on, so that it is neither closed nor put to sleep
    /// under whoever attaches.
    fn attach(&self, new: &NewSession) -> Result<Option<(Arc<Session>, Activity)>, SessionError> {
        let Some(id) = &new.id else { return Ok(None) };
        let Some(session) = self.get(id) else { return Ok(None) };
        check_open(&session)?;
        if !new.reuse && !new.attach {
            return Err(SessionError::Exists(id.clone()));
        }
        match &new.runtime {
            Some(asked) if *asked != session.runtime.alias => Err(SessionError::RuntimeDiffers {
                id: id.clone(),
                open: session.runtime.alias.clone(),
                asked: asked.clone(),
            }),
            Some(_) | None => {
                let at_work = session.activity();
                // Looked at again: whoever closes the idle has seen the activity, or has closed it before.
                check_open(&session)?;
                Ok(Some((session, at_work)))
            }
        }
    }

    /// The runtime of a session that is to be opened: named, else the kept workspace's, else the default.
    async fn runtime_for(&self, new: &NewSession) -> Result<Arc<Runtime>, SessionError> {
        let kept = match &new.id {
            Some(id) if self.deps.keeps(id) => self.deps.store.workspace_runtime(id.clone()).await?,
            Some(id) if new.attach => return Err(SessionError::NothingToAttach(id.clone())),
            Some(_) | None => None,
        };
        let kept = kept.filter(|alias| self.runtime(alias).is_some());
        let policy = self.policy();
        let alias = new.runtime.as_deref().or(kept.as_deref()).unwrap_or(&policy.default_runtime);
        self.known(alias).cloned()
    }

    /// Count the newcomer and enter it, under one lock with the counting.
    fn admit(self: &Arc<Self>, new: &NewSession, runtime: Arc<Runtime>) -> Result<Admitted, SessionError> {
        let id = new.id.clone().map_or_else(generate, Ok)?;
        let nonce = *Uuid::new_v4().as_bytes();
        let mut held = self.held();
        if held.sessions.contains_key(&id) || held.reserved.contains(&id) {
            return Err(SessionError::Opening(id));
        }
        self.check_tenant(&held.sessions, new.tenant.as_ref())?;
        // Before somebody is closed for a newcomer that is refused after all.
        self.givers(&held.sessions)?;
        if let Some(closed) = self.make_open_room(&held.sessions)? {
            tokio::spawn(async move { closed.close(false).await });
        }
        let gives_place = self.make_room(&held.sessions)?;
        let created_at = now();
        let token = self.deps.key.token(&id, &nonce);
        let (session, asks) = Session::new(Parts {
            id: id.clone(),
            runtime,
            tenant: new.tenant.clone(),
            created_at,
            last_activity: created_at,
            nonce,
            token,
            state: State::Opening,
        });
        held.sessions.insert(id, session.clone());
        fail::point("open.admitted");
        Ok(Admitted { driver: Driver { registry: self.clone(), session, asks }, gives_place })
    }

    fn check_tenant(
        &self,
        sessions: &BTreeMap<SessionId, Arc<Session>>,
        tenant: Option<&Tenant>,
    ) -> Result<(), SessionError> {
        let (Some(tenant), Some(limit)) = (tenant, self.policy().max_sessions_per_tenant) else { return Ok(()) };
        let held = sessions.values().filter(|session| session.tenant.as_ref() == Some(tenant)).count() as u64;
        if held >= limit {
            return Err(SessionError::TenantFull { tenant: tenant.to_string(), held, limit });
        }
        Ok(())
    }

    /// At the ceiling of resident sandboxes: the session that has been idle longest gives its place, if it may.
    fn make_room(&self, sessions: &BTreeMap<SessionId, Arc<Session>>) -> Result<Option<Arc<Session>>, SessionError> {
        let Some(Givers { idlest, idle, full }) = self.givers(sessions)? else { return Ok(None) };
        let dozes = |session: &&Arc<Session>| session.step_if_idle(Event::Hibernate, idle).is_some();
        idlest.into_iter().find(dozes).map(|session| Some(Arc::clone(session))).ok_or(full)
    }

    /// Who may give place to one more sandbox; none if nobody has to.
    ///
    /// # Errors
    /// [`SessionError::Full`] if nobody may.
    fn givers<'a>(&self, sessions: &'a BTreeMap<SessionId, Arc<Session>>) -> Result<Option<Givers<'a>>, SessionError> {
        let policy = self.policy();
        let held = counts(sessions).resident;
        let Some(limit) = policy.max_sessions.filter(|limit| held >= *limit) else { return Ok(None) };
        let full = SessionError::Full { held, limit };
        let Some(idle) = policy.evict_idle_after.map(Duration::from_secs) else { return Err(full) };
        let may = |session: &&Arc<Session>| {
            matches!(session.state(), State::Running | State::Frozen) && session.busy() == 0 && session.idle() >= idle
        };
        let mut idlest: Vec<&Arc<Session>> = sessions.values().filter(may).collect();
        idlest.sort_by_key(|session| std::cmp::Reverse(session.idle()));
        if idlest.is_empty() { Err(full) } else { Ok(Some(Givers { idlest, idle, full })) }
    }

    /// At the ceiling of open sessions: the one that has been asleep longest is to be closed.
    fn make_open_room(
        &self,
        sessions: &BTreeMap<SessionId, Arc<Session>>,
    ) -> Result<Option<Arc<Session>>, SessionError> {
        let held = sessions.values().filter(|session| session.state() != State::Closing).count() as u64;
        let Some(limit) = self.policy().max_open_sessions.filter(|limit| held >= *limit) else { return Ok(None) };
        let mut asleep: Vec<_> = sessions.values().filter(|session| session.state() == State::Asleep).collect();
        asleep.sort_by_key(|session| std::cmp::Reverse(session.idle()));
        let closes =
            |session: &&&Arc<Session>| session.step_if_idle(Event::Close { purge: false }, Duration::ZERO).is_some();
        asleep
            .iter()
            .find(closes)
            .map(|session| Some(Arc::clone(session)))
            .ok_or(SessionError::OpenFull { held, limit })
    }
}

/// Whether a session can be attached to.
fn check_open(session: &Session) -> Result<(), SessionError> {
    match session.state() {
        State::Opening => Err(SessionError::Opening(session.id.clone())),
        State::Closing => Err(SessionError::Closing(session.id.clone())),
        State::Running | State::Frozen | State::Dozing | State::Asleep | State::Waking => Ok(()),
    }
}

fn counts(sessions: &BTreeMap<SessionId, Arc<Session>>) -> Counts {
    let resident = sessions.values().filter(|session| session.is_resident()).count() as u64;
    Counts { resident, open: sessions.len() as u64 }
}

/// A new name: `s-` and 16 hexadecimal digits of a version 4 UUID.
fn generate() -> Result<SessionId, SessionError> {
    let hex = Uuid::new_v4().simple().to_string();
    SessionId::parse(&format!("s-{}", &hex[..16]))
        .map_err(|e| SessionError::Unsupported(format!("generated a name that is none: {e}")))
}
