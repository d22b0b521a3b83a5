//! The one task of a session that changes it: opens, freezes, wakes, notices its sandbox's end, closes.
//!
//! A request asks and waits; if it goes away, what it asked for is finished all the same.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};

use super::create::{Deps, Found};
use super::error::SessionError;
use super::handle::{Ask, Live, Session, now};
use super::registry::{Registry, Waking};
use super::state::{Effect, Event, State};
use crate::fail;
use crate::store::{SessionRow, SessionState};

/// Who waits for an opening.
pub type Opened = oneshot::Sender<Result<(), SessionError>>;

pub(super) struct Driver {
    pub registry: Arc<Registry>,
    pub session: Arc<Session>,
    pub asks: mpsc::Receiver<Ask>,
}

/// Whether the session is still there.
#[derive(PartialEq, Eq)]
enum Then {
    GoesOn,
    Gone,
}

impl Driver {
    /// Open the session, in the place of another if need be, tell `opened`, and serve it until it is closed.
    pub async fn open(mut self, gives_place: Option<Arc<Session>>, mut opened: Opened) {
        give_place(gives_place).await;
        // An image can take minutes. Whoever goes away meanwhile holds no place; the image is made all the same.
        let image = tokio::select! {
            image = self.deps().image(&self.session.runtime) => image.map_err(SessionError::Image),
            () = opened.closed() => Err(SessionError::Broken(self.session.id.clone())),
        };
        if let Err(error) = image {
            self.step(Event::LaunchFailed);
            self.registry.forget(&self.session.id);
            let _ = opened.send(Err(error));
            return;
        }
        let found = match self.deps().prepare(&self.session) {
            Ok(found) => found,
            Err(error) => return self.undo(Found::Workspace, opened, error).await,
        };
        fail::point("open.prepared");
        match self.first_launch().await {
            Ok(live) => self.session.set_sandbox(Some(live)),
            Err(error) => return self.undo(found, opened, error).await,
        }
        self.step(Event::Launched);
        if opened.send(Ok(())).is_err() {
            // Whoever asked is gone and never learnt of it: nothing is left behind.
            let purge = found == Found::Nothing;
            self.step(Event::Close { purge });
            let _ = self.remove(purge).await;
            return;
        }
        self.serve().await;
    }

    /// Serve a session that was found at the start of the service.
    pub async fn adopt(mut self, live: Option<Live>) {
        self.session.set_sandbox(live.map(Arc::new));
        self.serve().await;
    }

    async fn serve(&mut self) {
        loop {
            let live = self.session.sandbox();
            let ended = async {
                match &live {
                    Some(live) => live.init.gone().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = ended => self.sandbox_ended().await,
                ask = self.asks.recv() => {
                    // The registry holds the session, and the session its inbox: until it is removed.
                    let Some(ask) = ask else { return };
                    if self.answer(ask).await == Then::Gone {
                        return;
                    }
                }
            }
        }
    }

    async fn answer(&mut self, ask: Ask) -> Then {
        match ask {
            Ask::Wake(reply) => {
                // A reply that nobody waits for is no failure.
                let _ = reply.send(self.wake().await);
            }
            Ask::Freeze { idle } => self.freeze(idle).await,
            Ask::Hibernate { idle, done } => {
                self.hibernate(idle).await;
                let _ = done.send(());
            }
            Ask::DropLayer => self.drop_layer().await,
            Ask::Close { purge, idle, done } => return self.close(purge, idle, done).await,
        }
        Then::GoesOn
    }

    async fn sandbox_ended(&mut self) {
        tracing::warn!(session = %self.session.id, "sandbox ended by itself");
        self.step(Event::SandboxEnded);
        self.stop_sandbox().await;
    }

    async fn wake(&mut self) -> Result<Arc<Live>, SessionError> {
        if let Some(live) = self.session.live() {
            return Ok(live);
        }
        if self.session.state() == State::Running {
            self.sandbox_ended().await;
        }
        let Waking { gives_place: place, effect } = self.registry.admit_wake(&self.session)?;
        give_place(place).await;
        let live = match effect {
            Some(Effect::Thaw) => self.thaw().await,
            Some(Effect::Launch | Effect::Freeze | Effect::Clear | Effect::Undo | Effect::Remove { .. }) | None => {
                self.launch_again().await
            }
        };
        match live {
            Ok(live) => {
                self.session.set_sandbox(Some(live.clone()));
                self.step(Event::Launched);
                Ok(live)
            }
            Err(error) => {
                self.step(Event::LaunchFailed);
                self.stop_sandbox().await;
                Err(error)
            }
        }
    }

    async fn thaw(&mut self) -> Result<Arc<Live>, SessionError> {
        let thawed = self.deps().launcher.thaw(&self.session.id).await;
        match self.session.sandbox().filter(|live| !live.init.is_gone()) {
            Some(live) if thawed.is_ok() => Ok(live),
            // It died in its sleep, or does not wake: start it anew.
            Some(_) | None => {
                self.stop_sandbox().await;
                self.launch_again().await
            }
        }
    }

    async fn launch_again(&self) -> Result<Arc<Live>, SessionError> {
        if !self.deps().keeps(&self.session.id) {
            return Err(SessionError::FilesGone(self.session.id.clone()));
        }
        let live = Arc::new(self.deps().launch(&self.session, &self.registry.policy()).await?);
        fail::point("wake.launched");
        self.promise(&live).await?;
        fail::point("wake.promised");
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
        let policy = self.registry.policy();
        let record = async {
            let recorded = deps.store.insert_session(row).await;
            fail::point("open.recorded");
            recorded
        };
        let (recorded, live) = tokio::join!(record, deps.launch(&self.session, &policy));
        recorded?;
        let live = Arc::new(live?);
        self.promise(&live).await?;
        fail::point("open.promised");
        Ok(live)
    }

    async fn promise(&self, live: &Live) -> Result<(), SessionError> {
        let (id, tag) = (self.session.id.clone(), live.image.tag.clone());
        Ok(self.deps().store.session_running(id, live.slot.number(), tag).await?)
    }

    async fn freeze(&mut self, idle: Duration) {
        if self.session.step_if_idle(Event::Freeze, idle) != Some(Effect::Freeze) {
            return;
        }
        if let Err(error) = self.deps().launcher.freeze(&self.session.id).await {
            let error = &error as &dyn std::error::Error;
            tracing::warn!(session = %self.session.id, error, "not frozen; the next command thaws what is");
        }
        fail::point("freeze.frozen");
    }

    async fn hibernate(&mut self, idle: Duration) {
        // Whoever needed its place has let it doze already.
        let dozes = self.session.state() == State::Dozing
            || self.session.step_if_idle(Event::Hibernate, idle) == Some(Effect::Clear);
        if dozes {
            self.stop_sandbox().await;
            self.step(Event::SandboxEnded);
        }
    }

    /// End what there is of the sandbox; its write layer is kept from now on.
    async fn stop_sandbox(&mut self) {
        let id = &self.session.id;
        self.deps().clear(id).await;
        fail::point("hibernate.cleared");
        self.session.set_sandbox(None);
        if let Err(error) = self.deps().store.layer_stopped(id.clone(), now()).await {
            tracing::error!(session = %id, error = &error as &dyn std::error::Error, "the stop is not recorded");
        }
        fail::point("hibernate.recorded");
    }

    async fn drop_layer(&mut self) {
        if self.session.state() != State::Asleep {
            return;
        }
        match self.deps().drop_layer(&self.session.id).await {
            Ok(()) => self.session.set_layer(false),
            Err(error) => {
                let error = &error as &dyn std::error::Error;
                tracing::error!(session = %self.session.id, error, "the write layer's deletion is not recorded");
            }
        }
    }

    async fn close(
        &mut self,
        purge: bool,
        idle: Option<Duration>,
        done: oneshot::Sender<Result<(), SessionError>>,
    ) -> Then {
        let event = Event::Close { purge };
        let closes = match idle {
            Some(idle) => self.session.step_if_idle(event, idle).is_some(),
            None => self.session.step(event).is_ok(),
        };
        // Whoever needed its place has closed it already.
        if !closes && self.session.state() != State::Closing {
            return Then::GoesOn;
        }
        let _ = done.send(self.remove(purge).await);
        Then::Gone
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

    /// Finish its end: recorded first, so that a crash in the middle is finished at the next start. What
    /// the launcher does not do now, the sweeper does later: until then the row says so.
    async fn remove(&mut self, purge: bool) -> Result<(), SessionError> {
        let id = self.session.id.clone();
        let keep = self.deps().settings.persist_containers && !purge;
        let had_sandbox = self.session.sandbox().is_some();
        let record = async {
            let recorded = self.deps().store.session_closing(id.clone(), purge).await;
            fail::point("close.recorded");
            recorded
        };
        let (recorded, cleared) = tokio::join!(record, self.deps().try_clear(&id));
        self.session.set_sandbox(None);
        if let Err(error) = cleared {
            self.registry.forget(&id);
            return Err(SessionError::Launch(error));
        }
        let kept = match keep {
            true if had_sandbox => self.deps().store.layer_stopped(id.clone(), now()).await,
            true => Ok(()),
            false => self.deps().store.layer_dropped(id.clone()).await,
        };
        if let Err(error) = self.deps().try_delete(&id, keep, purge).await {
            self.registry.forget(&id);
            return Err(SessionError::Launch(error));
        }
        fail::point("close.deleted");
        let removed = self.deps().store.remove_session(id.clone(), purge).await;
        fail::point("close.removed");
        self.registry.forget(&id);
        recorded?;
        kept?;
        Ok(removed?)
    }

    /// Let the event happen; what does not fit the state is a fault of ours and changes nothing.
    fn step(&self, event: Event) {
        if let Err(refused) = self.session.step(event) {
            tracing::error!(session = %self.session.id, "{refused}");
        }
    }

    fn deps(&self) -> &Deps {
        &self.registry.deps
    }
}

/// Wait until the session that gives its place has no sandbox any more.
async fn give_place(session: Option<Arc<Session>>) {
    if let Some(session) = session {
        tracing::info!(session = %session.id, "hibernated to make room");
        session.hibernate(Duration::ZERO).await;
    }
}
