//! The one task of a session that changes it: opens, wakes, notices its sandbox's end, closes.
//!
//! A request asks and waits; if it goes away, what it asked for is finished all the same.

use std::sync::{Arc, PoisonError};

use tokio::sync::{mpsc, oneshot};

use super::create::{Deps, Found};
use super::error::SessionError;
use super::registry::Registry;
use super::session::{Ask, Live, Session};
use super::state::{self, Effect, Event, State};
use crate::store::{SessionRow, SessionState};

/// Who waits for an opening.
pub type Opened = oneshot::Sender<Result<(), SessionError>>;

pub(super) struct Driver {
    pub registry: Arc<Registry>,
    pub session: Arc<Session>,
    pub asks: mpsc::Receiver<Ask>,
}

impl Driver {
    /// Open the session, tell `opened`, and serve it until it is closed.
    pub async fn open(mut self, opened: Opened) {
        let found = match self.deps().prepare(&self.session) {
            Ok(found) => found,
            Err(error) => return self.undo(Found::Workspace, opened, error).await,
        };
        match self.first_launch().await {
            Ok(live) => self.set_live(Some(live)),
            Err(error) => return self.undo(found, opened, error).await,
        }
        self.step(Event::Launched);
        if opened.send(Ok(())).is_err() {
            // Whoever asked is gone and never learnt of it: nothing is left behind.
            let _ = self.remove(found == Found::Nothing).await;
            return;
        }
        self.serve().await;
    }

    /// Serve a session that was found at the start of the service.
    pub async fn adopt(mut self, live: Option<Live>) {
        self.set_live(live.map(Arc::new));
        self.serve().await;
    }

    async fn serve(&mut self) {
        loop {
            let live = self.session.live.lock().unwrap_or_else(PoisonError::into_inner).clone();
            let ended = async {
                match &live {
                    Some(live) => live.init.gone().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = ended => self.sandbox_ended().await,
                ask = self.asks.recv() => match ask {
                    Some(Ask::Wake(reply)) => {
                        // A reply that nobody waits for is no failure.
                        let _ = reply.send(self.wake().await);
                    }
                    Some(Ask::Close { purge, done }) => {
                        let result = self.remove(purge).await;
                        let _ = done.send(result);
                        return;
                    }
                    // The registry holds the session, and the session its inbox: until it is removed.
                    None => return,
                },
            }
        }
    }

    async fn sandbox_ended(&mut self) {
        tracing::warn!(session = %self.session.id, "sandbox ended by itself");
        if self.step(Event::SandboxEnded) == Some(Effect::Clear) {
            self.deps().clear(&self.session.id).await;
            self.set_live(None);
        }
    }

    async fn wake(&mut self) -> Result<Arc<Live>, SessionError> {
        if let Some(live) = self.session.live() {
            return Ok(live);
        }
        if self.session.state() == State::Running {
            self.sandbox_ended().await;
        }
        self.registry.admit_wake(&self.session)?;
        self.step(Event::Wake);
        match self.launch_again().await {
            Ok(live) => {
                self.set_live(Some(live.clone()));
                self.step(Event::Launched);
                Ok(live)
            }
            Err(error) => {
                self.step(Event::LaunchFailed);
                self.deps().clear(&self.session.id).await;
                Err(error)
            }
        }
    }

    async fn launch_again(&self) -> Result<Arc<Live>, SessionError> {
        let live = Arc::new(self.deps().launch(&self.session).await?);
        self.deps().store.session_running(self.session.id.clone(), live.slot.number()).await?;
        Ok(live)
    }

    /// The row and the sandbox are made at once; both are there before anybody is told.
    async fn first_launch(&self) -> Result<Arc<Live>, SessionError> {
        let deps = self.deps();
        let row = SessionRow {
            id: self.session.id.clone(),
            state: SessionState::Opening,
            runtime: self.session.runtime.alias.clone(),
            tenant: self.session.tenant.clone(),
            nonce: self.session.nonce,
            slot: None,
            created_at: self.session.created_at,
            last_activity: self.session.last_activity(),
        };
        let (recorded, live) = tokio::join!(deps.store.insert_session(row), deps.launch(&self.session));
        recorded?;
        let live = Arc::new(live?);
        deps.store.session_running(self.session.id.clone(), live.slot.number()).await?;
        Ok(live)
    }

    /// An opening that failed: remove what it made, newest first.
    async fn undo(&mut self, found: Found, opened: Opened, error: SessionError) {
        self.step(Event::LaunchFailed);
        let id = &self.session.id;
        let purge = found == Found::Nothing;
        self.deps().clear(id).await;
        self.deps().delete(id, self.deps().settings.persist_containers && !purge, purge).await;
        if let Err(error) = self.deps().store.remove_session(id.clone(), purge).await {
            // Its row says `opening`: the next start removes it.
            tracing::error!(session = %id, error = &error as &dyn std::error::Error, "row not removed");
        }
        self.registry.forget(id);
        let _ = opened.send(Err(error));
    }

    /// End it: recorded first, so that a crash in the middle is finished at the next start.
    async fn remove(&mut self, purge: bool) -> Result<(), SessionError> {
        self.step(Event::Close { purge });
        let id = self.session.id.clone();
        let (recorded, ()) = tokio::join!(self.deps().store.session_closing(id.clone(), purge), self.deps().clear(&id));
        self.set_live(None);
        self.deps().delete(&id, self.deps().settings.persist_containers && !purge, purge).await;
        let removed = self.deps().store.remove_session(id.clone(), purge).await;
        self.registry.forget(&id);
        recorded?;
        Ok(removed?)
    }

    /// Let the event happen; what does not fit the state is a fault of ours and changes nothing.
    fn step(&self, event: Event) -> Option<Effect> {
        let mut state = self.session.state.lock().unwrap_or_else(PoisonError::into_inner);
        match state::next(*state, event) {
            Ok((to, effect)) => {
                *state = to.unwrap_or(State::Closing);
                effect
            }
            Err(refused) => {
                tracing::error!(session = %self.session.id, "{refused}");
                None
            }
        }
    }

    fn set_live(&self, live: Option<Arc<Live>>) {
        *self.session.live.lock().unwrap_or_else(PoisonError::into_inner) = live;
    }

    fn deps(&self) -> &Deps {
        &self.registry.deps
    }
}
