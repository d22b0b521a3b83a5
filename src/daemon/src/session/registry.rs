//! Which sessions there are: admission, and finding one.
//!
//! The map holds a session from its admission to the end of its removal, so whatever is
//! counted is counted under one lock, opens in flight included.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;
use uuid::Uuid;
use wire::id::{SessionId, Tenant};

use super::create::Deps;
use super::driver::Driver;
use super::error::SessionError;
use super::session::{Parts, Session, now};
use super::state::State;
use crate::catalog::Runtime;

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
    default_runtime: String,
    sessions: Mutex<BTreeMap<SessionId, Arc<Session>>>,
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
        Arc::new(Self { deps, runtimes, default_runtime, sessions: Mutex::default() })
    }

    /// The allowlist, in the operator's order.
    #[must_use]
    pub fn runtimes(&self) -> &[Arc<Runtime>] {
        &self.runtimes
    }

    /// Alias of the default runtime.
    #[must_use]
    pub fn default_runtime(&self) -> &str {
        &self.default_runtime
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
        if let Some(alias) = &new.runtime {
            self.known(alias)?;
        }
        if new.attach && new.id.is_none() {
            return Err(SessionError::AttachNeedsId);
        }
        if let Some(session) = self.attach(&new)? {
            // Somebody who attaches is about to work: have the sandbox there.
            session.wake().await?;
            return Ok(session);
        }
        let runtime = self.runtime_for(&new).await?;
        let driver = self.admit(&new, runtime)?;
        let session = driver.session.clone();
        let (tell, told) = oneshot::channel();
        tokio::spawn(driver.open(tell));
        told.await.map_err(|_| SessionError::Broken(session.id.clone()))??;
        Ok(session)
    }

    /// An open session.
    ///
    /// # Errors
    /// [`SessionError::NoSuchSession`], also while it is being opened or closed.
    pub fn find(&self, id: &SessionId) -> Result<Arc<Session>, SessionError> {
        let missing = || SessionError::NoSuchSession(id.clone());
        let session = self.sessions().get(id).cloned().ok_or_else(missing)?;
        match session.state() {
            State::Running | State::Asleep | State::Waking => Ok(session),
            State::Opening | State::Closing => Err(missing()),
        }
    }

    /// Every open session, oldest first.
    #[must_use]
    pub fn list(&self) -> Vec<Arc<Session>> {
        let mut list: Vec<_> = self.sessions().values().cloned().collect();
        list.retain(|session| !matches!(session.state(), State::Opening | State::Closing));
        list.sort_by(|a, b| a.created_at.total_cmp(&b.created_at));
        list
    }

    /// How many there are.
    #[must_use]
    pub fn counts(&self) -> Counts {
        counts(&self.sessions())
    }

    pub(super) fn forget(&self, id: &SessionId) {
        self.sessions().remove(id);
    }

    /// Enter a session that was found at the start.
    pub(super) fn enter(self: &Arc<Self>, parts: Parts) -> Driver {
        let (session, asks) = Session::new(parts);
        self.sessions().insert(session.id.clone(), session.clone());
        Driver { registry: self.clone(), session, asks }
    }

    /// Whether one more sandbox may be resident.
    pub(super) fn admit_wake(&self, session: &Session) -> Result<(), SessionError> {
        let sessions = self.sessions();
        let held = sessions.values().filter(|s| s.id != session.id && s.state().is_resident()).count() as u64;
        match self.deps.settings.max_sessions {
            Some(limit) if held >= limit => Err(SessionError::Full { held, limit }),
            Some(_) | None => Ok(()),
        }
    }

    fn sessions(&self) -> MutexGuard<'_, BTreeMap<SessionId, Arc<Session>>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn known(&self, alias: &str) -> Result<&Arc<Runtime>, SessionError> {
        self.runtime(alias).ok_or_else(|| {
            let mut allowed: Vec<String> = self.runtimes.iter().map(|r| r.alias.clone()).collect();
            allowed.sort();
            SessionError::UnknownRuntime { alias: alias.to_owned(), allowed }
        })
    }

    /// The open session that `new` may be answered with.
    fn attach(&self, new: &NewSession) -> Result<Option<Arc<Session>>, SessionError> {
        let Some(id) = &new.id else { return Ok(None) };
        let Some(session) = self.sessions().get(id).cloned() else { return Ok(None) };
        match session.state() {
            State::Opening => return Err(SessionError::Opening(id.clone())),
            State::Closing => return Err(SessionError::Closing(id.clone())),
            State::Running | State::Asleep | State::Waking => {}
        }
        if !new.reuse && !new.attach {
            return Err(SessionError::Exists(id.clone()));
        }
        match &new.runtime {
            Some(asked) if *asked != session.runtime.alias => Err(SessionError::RuntimeDiffers {
                id: id.clone(),
                open: session.runtime.alias.clone(),
                asked: asked.clone(),
            }),
            Some(_) | None => Ok(Some(session)),
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
        let alias = new.runtime.as_deref().or(kept.as_deref()).unwrap_or(&self.default_runtime);
        self.known(alias).cloned()
    }

    /// Count the newcomer and enter it, under one lock with the counting.
    fn admit(self: &Arc<Self>, new: &NewSession, runtime: Arc<Runtime>) -> Result<Driver, SessionError> {
        let id = new.id.clone().map_or_else(generate, Ok)?;
        let nonce = *Uuid::new_v4().as_bytes();
        let mut sessions = self.sessions();
        if sessions.contains_key(&id) {
            return Err(SessionError::Opening(id));
        }
        self.check(&sessions, new.tenant.as_ref())?;
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
        sessions.insert(id, session.clone());
        Ok(Driver { registry: self.clone(), session, asks })
    }

    fn check(
        &self,
        sessions: &BTreeMap<SessionId, Arc<Session>>,
        tenant: Option<&Tenant>,
    ) -> Result<(), SessionError> {
        let settings = &self.deps.settings;
        let Counts { resident, open } = counts(sessions);
        if let Some(limit) = settings.max_sessions.filter(|limit| resident >= *limit) {
            return Err(SessionError::Full { held: resident, limit });
        }
        if let Some(limit) = settings.max_open_sessions.filter(|limit| open >= *limit) {
            return Err(SessionError::OpenFull { held: open, limit });
        }
        let (Some(tenant), Some(limit)) = (tenant, settings.max_sessions_per_tenant) else { return Ok(()) };
        let held = sessions.values().filter(|session| session.tenant.as_ref() == Some(tenant)).count() as u64;
        if held >= limit {
            return Err(SessionError::TenantFull { tenant: tenant.to_string(), held, limit });
        }
        Ok(())
    }
}

fn counts(sessions: &BTreeMap<SessionId, Arc<Session>>) -> Counts {
    let resident = sessions.values().filter(|session| session.state().is_resident()).count() as u64;
    Counts { resident, open: sessions.len() as u64 }
}

/// A new name: `s-` and 16 hexadecimal digits of a version 4 UUID.
fn generate() -> Result<SessionId, SessionError> {
    let hex = Uuid::new_v4().simple().to_string();
    SessionId::parse(&format!("s-{}", &hex[..16]))
        .map_err(|e| SessionError::Unsupported(format!("generated a name that is none: {e}")))
}
