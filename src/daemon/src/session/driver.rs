//! The one task of a session that changes it: opens, freezes, wakes, notices its sandbox's end, closes.
//!
//! A request asks and waits; if it goes away, what it asked for is finished all the same.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};

use super::create::{Deps, Found};
use super::error::SessionError;
use super::handle::{Ask, Asked, Live, Session, now};
use super::registry::{Registry, Waking};
use super::state::{Effect, Event, State};
use super::story;
use crate::fail;
use crate::metrics::{self, Wake};
use crate::request::{self, Request};
use crate::store::{SessionRow, SessionState};

/// Who waits for an opening.
pub type Opened = oneshot::Sender<Result<(), SessionError>>;

pub(super) struct Driver {
    pub registry: Arc<Registry>,
    pub session: Arc<Session>,
    pub asks: mpsc::Receiver<Asked>,
}

/// Whether the session is still there.
#[derive(PartialEq, Eq)]
enum Then {
    GoesOn,
    Gone,
}

impl Driver {
    /// Open the session, in the place of another if need be, tell `opened`, and serve it until it is closed.
    pub async fn open(mut self, gives_place: Option<Arc<Session>>, opened: Opened, request: Option<Arc<Request>>) {
        if request::scope(request, self.begin(gives_place, opened)).await == Then::GoesOn {
            self.serve().await;
        }
    }

    async fn begin(&mut self, gives_place: Option<Arc<Session>>, mut opened: Opened) -> Then {
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
            return Then::Gone;
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
        if opened.is_closed() {
            // Whoever asked is gone and never learnt of it, and nobody else has seen it: nothing is left behind.
            return self.undo(found, opened, SessionError::Broken(self.session.id.clone())).await;
        }
        self.step(Event::Launched);
        if opened.send(Ok(())).is_err() {
            // Gone in this moment; unless another has attached in it as well.
            let purge = found == Found::Nothing;
            if self.session.step_if_idle(Event::Close { purge }, Duration::ZERO).is_some() {
                let _ = self.remove(purge).await;
                return Then::Gone;
            }
        }
        story::opened(&self.session);
        Then::GoesOn
    }

    /// Serve a session that was found at the start of the service.
    pub async fn adopt(mut self, live: Option<Live>) {
        self.session.set_sandbox(live.map(Arc::new));
        self.deps().begun_running.notify_one();
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
                    let Some((ask, request)) = ask else { return };
                    if request::scope(request, self.answer(ask)).await == Then::Gone {
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
            Ask::Clear => self.clear().await,
            Ask::DropLayer { stopped_before } => self.drop_layer(stopped_before).await,
            Ask::Close { purge, idle, done } => return self.close(purge, idle, done).await,
        }
        Then::GoesOn
    }

    async fn sandbox_ended(&mut self) {
        story::ended_by_itself(&self.session);
        self.step(Event::SandboxEnded);
        self.stop_sandbox().await;
    }

    async fn wake(&mut self) -> Result<Arc<Live>, SessionError> {
        if let Some(live) = self.session.live() {
            return Ok(live);
        }
        match self.session.state() {
            State::Running => self.sandbox_ended().await,
            // Its place was given away, and whoever has it has not asked for it yet: it sleeps before it wakes.
            State::Dozing => self.doze().await,
            State::Opening | State::Frozen | State::Asleep | State::Waking | State::Closing => {}
        }
        let timing = metrics::WAKES.begin(Wake::Failed);
        let Waking { gives_place: place, effect } = self.registry.admit_wake(&self.session)?;
        give_place(place).await;
        let (live, how) = match effect {
            Effect::Thaw => (self.thaw().await, Wake::Thawed),
            Effect::Launch | Effect::Freeze | Effect::Clear | Effect::Undo | Effect::Remove { .. } => {
                (self.launch_again().await, Wake::Launched)
            }
        };
        match live {
            Ok(live) => {
                self.session.set_sandbox(Some(live.clone()));
                self.step(Event::Launched);
                timing.end(how);
                story::woken(&self.session, how);
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
        let live = Arc::new(live?);
        if let Err(error) = recorded {
            let _ = deps.end(&self.session.id, &live.slot).await;
            return Err(error.into());
        }
        self.promise(&live).await?;
        fail::point("open.promised");
        Ok(live)
    }

    async fn promise(&self, live: &Live) -> Result<(), SessionError> {
        let (id, tag) = (self.session.id.clone(), live.image.tag.clone());
        let recorded = self.deps().store.session_running(id, live.slot.number(), tag).await;
        if recorded.is_err() {
            // Here, while its range of ids is held; that it is not ended is found again by whoever undoes the rest.
            let _ = self.deps().end(&self.session.id, &live.slot).await;
        }
        Ok(recorded?)
    }

    async fn freeze(&mut self, idle: Duration) {
        if self.session.step_if_idle(Event::Freeze, idle) != Some(Effect::Freeze) {
            return;
        }
        if let Err(error) = self.deps().launcher.freeze(&self.session.id).await {
            let error = &error as &dyn std::error::Error;
            tracing::warn!(session = %self.session.id, error, "not frozen; the next command thaws what is");
        } else {
            story::frozen(&self.session);
        }
        fail::point("freeze.frozen");
    }

    async fn hibernate(&mut self, idle: Duration) {
        // Whoever needed its place has let it doze already.
        let dozes = self.session.state() == State::Dozing
            || self.session.step_if_idle(Event::Hibernate, idle) == Some(Effect::Clear);
        if dozes {
            self.doze().await;
        }
    }

    /// End the sandbox of a session whose place is given away.
    async fn doze(&mut self) {
        self.stop_sandbox().await;
        self.step(Event::SandboxEnded);
        story::hibernated(&self.session);
    }

    /// End what there is of the sandbox; its write layer is kept from now on.
    async fn stop_sandbox(&mut self) {
        let id = &self.session.id;
        self.deps().tallies.end(&self.session);
        let ended = match self.session.sandbox() {
            Some(live) => self.deps().end(id, &live.slot).await,
            None => self.deps().try_clear(id).await,
        };
        if let Err(error) = ended {
            let error = &error as &dyn std::error::Error;
            tracing::error!(session = %id, error, "its sandbox is not ended; the next sweep tries again");
        }
        fail::point("hibernate.cleared");
        self.session.set_sandbox(None);
        if let Err(error) = self.deps().store.layer_stopped(id.clone(), now()).await {
            tracing::error!(session = %id, error = &error as &dyn std::error::Error, "the stop is not recorded");
        }
        fail::point("hibernate.recorded");
    }

    /// End what could not be ended when it went to sleep.
    async fn clear(&mut self) {
        if self.session.state() == State::Asleep {
            self.deps().clear(&self.session.id).await;
        }
    }

    async fn drop_layer(&mut self, stopped_before: f64) {
        if self.session.state() != State::Asleep {
            return;
        }
        match self.try_drop_layer(stopped_before).await {
            Ok(true) => self.session.set_layer(false),
            Ok(false) => {}
            Err(error) => {
                let error = &error as &dyn std::error::Error;
                tracing::error!(session = %self.session.id, error, "its write layer is not deleted; the next sweep tries again");
            }
        }
    }

    /// Whether it was due, and is gone.
    async fn try_drop_layer(&self, stopped_before: f64) -> Result<bool, SessionError> {
        let id = &self.session.id;
        // It may have run and been stopped again since whoever asks has looked.
        let due = self.deps().store.is_layer_stopped_before(id.clone(), stopped_before).await?;
        if due {
            self.deps().drop_layer(id).await?;
        }
        Ok(due)
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
    async fn undo(&mut self, found: Found, opened: Opened, error: SessionError) -> Then {
        self.step(Event::LaunchFailed);
        let id = &self.session.id;
        if let Err(error) = self.try_undo(found == Found::Nothing).await {
            let error = &error as &dyn std::error::Error;
            tracing::error!(session = %id, error, "a failed opening is not all undone; the next sweep goes on");
        }
        self.registry.forget(id);
        let _ = opened.send(Err(error));
        Then::Gone
    }

    /// The row last: as long as it says `opening`, somebody comes back to this.
    async fn try_undo(&self, purge: bool) -> Result<(), SessionError> {
        let (id, deps) = (&self.session.id, self.deps());
        deps.try_clear(id).await.map_err(SessionError::Launch)?;
        let keep_layer = deps.settings.persist_containers && !purge;
        deps.try_delete(id, keep_layer, purge).await.map_err(SessionError::Launch)?;
        Ok(deps.store.remove_session(id.clone(), purge).await?)
    }

    /// Finish its end: recorded first, so that a crash in the middle is finished at the next start. What
    /// the launcher does not do now, the sweeper does later: until then the row says so.
    async fn remove(&mut self, purge: bool) -> Result<(), SessionError> {
        let id = self.session.id.clone();
        let keep = self.deps().settings.persist_containers && !purge;
        self.deps().tallies.end(&self.session);
        let record = async {
            let recorded = self.deps().store.session_closing(id.clone(), self.session.last_activity(), purge).await;
            fail::point("close.recorded");
            recorded
        };
        let live = self.session.sandbox();
        let clear = async {
            match &live {
                Some(live) => self.deps().end(&id, &live.slot).await,
                None => self.deps().try_clear(&id).await,
            }
        };
        let (recorded, cleared) = tokio::join!(record, clear);
        let had_sandbox = live.is_some();
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
        removed?;
        story::closed(&self.session, had_sandbox, purge);
        Ok(())
    }

    /// Let the event happen; what does not fit the state is a fault of ours and changes nothing.
    fn step(&self, event: Event) {
        if let Err(refused) = self.session.step(event) {
            tracing::error!(session = %self.session.id, "{refused}");
        }
        if event == Event::Launched {
            self.deps().begun_running.notify_one();
        }
    }

    fn deps(&self) -> &Deps {
        &self.registry.deps
    }
}

/// Wait until the session that gives its place has no sandbox any more.
async fn give_place(session: Option<Arc<Session>>) {
    if let Some(session) = session {
        // Of its own story: not of the request that takes its place. If it dozes no more, somebody has woken it in another place.
        request::scope(None, session.hibernate(Duration::MAX)).await;
    }
}
