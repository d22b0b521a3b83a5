//! What time does to sessions: freezing, hibernating, closing, and giving back what nobody came for.
//!
//! Idle times are counted on a clock that does not jump. How long workspaces and write layers have
//! been kept is wall-clock data on disk; a wall clock that jumps ahead makes one sweep hold back,
//! so that an operator has the time of one interval to see it in the log.

use std::sync::Arc;
use std::time::Duration;

use wire::id::SessionId;

use super::error::SessionError;
use super::handle::{Ask, Session, now};
use super::registry::Registry;
use super::state::State;
use crate::clock::Jumps;
use crate::fail;
use crate::store::StoreError;

/// Looks for what is due, again and again.
#[derive(Debug)]
pub struct Sweeper {
    registry: Arc<Registry>,
    jumps: Jumps,
}

/// What is due for a session that has been idle for so long. Only one thing at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Due {
    Nothing,
    Freeze,
    Hibernate,
    Close,
}

/// After how long idle what is due; `None`: never.
#[derive(Debug, Clone, Copy)]
struct Thresholds {
    freeze: Option<Duration>,
    hibernate: Option<Duration>,
    close: Option<Duration>,
}

impl Sweeper {
    /// A sweeper of these sessions.
    #[must_use]
    pub fn new(registry: Arc<Registry>) -> Self {
        Self { registry, jumps: Jumps::watch() }
    }

    /// Sweep every `cleanup_interval`, until dropped.
    pub async fn run(mut self) {
        let interval = Duration::from_secs(self.registry.deps.settings.cleanup_interval);
        loop {
            tokio::time::sleep(interval).await;
            if let Err(error) = self.sweep().await {
                tracing::error!(error = &error as &dyn std::error::Error, "not everything that is due was done");
            }
        }
    }

    async fn sweep(&mut self) -> Result<(), StoreError> {
        let registry = self.registry.clone();
        let used = registry.list().iter().map(|session| (session.id.clone(), session.last_activity())).collect();
        registry.deps.store.touch_sessions(used).await?;
        fail::point("sweep.begun");
        for session in registry.list() {
            self.session(&session).await;
        }
        registry.finish_leftovers().await;
        if self.jumps.ahead() {
            tracing::warn!("the wall clock jumped; nothing that is kept for a time is deleted in this sweep");
            return Ok(());
        }
        self.layers().await?;
        self.workspaces().await
    }

    async fn session(&self, session: &Arc<Session>) {
        let policy = self.registry.policy();
        let settings = &self.registry.deps.settings;
        let seconds = |seconds: Option<u64>| seconds.map(Duration::from_secs);
        let thresholds = Thresholds {
            freeze: seconds(settings.freeze_after),
            hibernate: seconds(settings.hibernate_after),
            close: seconds(Some(policy.idle_timeout).filter(|s| *s > 0)),
        };
        // Whoever comes meanwhile is seen by the driver, which looks again.
        match due(session.state(), session.idle(), thresholds) {
            Due::Nothing => {}
            Due::Freeze => {
                let idle = thresholds.freeze.unwrap_or_default();
                let _ = session.ask(Ask::Freeze { idle }).await;
            }
            Due::Hibernate => session.hibernate(thresholds.hibernate.unwrap_or_default()).await,
            Due::Close => {
                let (done, answer) = tokio::sync::oneshot::channel();
                let _ = session.ask(Ask::Close { purge: false, idle: thresholds.close, done }).await;
                // It is told by itself, and what of it failed as well.
                let _ = answer.await;
            }
        }
    }

    /// Delete the write layers that were stopped too long ago.
    async fn layers(&self) -> Result<(), StoreError> {
        let Some(ttl) = self.registry.policy().container_ttl else { return Ok(()) };
        let before = now() - seconds(ttl);
        for id in self.registry.deps.store.layers_stopped_before(before).await? {
            report(&id, self.layer(&id, before).await);
            fail::point("sweep.layer");
        }
        Ok(())
    }

    /// The same for one. Deleting those ahead of it may have taken long: it may have been used since it was listed.
    async fn layer(&self, id: &SessionId, before: f64) -> Result<(), SessionError> {
        let deps = &self.registry.deps;
        if let Some(session) = self.registry.get(id) {
            // Its driver knows whether it is stopped still, and starts nothing on it meanwhile.
            let _ = session.ask(Ask::DropLayer { stopped_before: before }).await;
            return Ok(());
        }
        // Reserved, so that nobody opens it while it goes.
        let Some(_reserved) = self.registry.reserve(id) else { return Ok(()) };
        if deps.store.is_layer_stopped_before(id.clone(), before).await? {
            deps.drop_layer(id).await?;
        }
        Ok(())
    }

    /// Delete the workspaces that were not opened for too long, never one that is open.
    async fn workspaces(&self) -> Result<(), StoreError> {
        let Some(ttl) = self.registry.policy().workspace_ttl else { return Ok(()) };
        let before = now() - seconds(ttl);
        for id in self.registry.deps.store.workspaces_unopened_since(before).await? {
            report(&id, self.workspace(&id, before).await);
            fail::point("sweep.workspace");
        }
        Ok(())
    }

    /// The same for one, likewise.
    async fn workspace(&self, id: &SessionId, before: f64) -> Result<(), SessionError> {
        let deps = &self.registry.deps;
        let Some(_reserved) = self.registry.reserve(id) else { return Ok(()) };
        if deps.store.is_workspace_unopened_since(id.clone(), before).await? {
            deps.try_delete(id, false, true).await.map_err(SessionError::Launch)?;
            deps.store.remove_session(id.clone(), true).await?;
            tracing::info!(workspace = %id, "deleted after its time to live");
        }
        Ok(())
    }
}

/// One that cannot be deleted now stops no other, and is due at the next sweep as well.
fn report(id: &SessionId, result: Result<(), SessionError>) {
    if let Err(error) = result {
        tracing::error!(session = %id, error = &error as &dyn std::error::Error, "not swept");
    }
}

#[allow(clippy::cast_precision_loss)] // at most a hundred years
fn seconds(seconds: u64) -> f64 {
    seconds as f64
}

fn due(state: State, idle: Duration, thresholds: Thresholds) -> Due {
    let after = |threshold: Option<Duration>| threshold.is_some_and(|threshold| idle >= threshold);
    match state {
        State::Running | State::Frozen if after(thresholds.close) => Due::Close,
        State::Running | State::Frozen if after(thresholds.hibernate) => Due::Hibernate,
        State::Running if after(thresholds.freeze) => Due::Freeze,
        // A session that sleeps has a clock of its own: the time to live of its files.
        State::Opening
        | State::Running
        | State::Frozen
        | State::Dozing
        | State::Asleep
        | State::Waking
        | State::Closing => Due::Nothing,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_due_goes_down_the_tiers() {
        let seconds = |s| Some(Duration::from_secs(s));
        let all = Thresholds { freeze: seconds(10), hibernate: seconds(20), close: seconds(30) };
        let none = Thresholds { freeze: None, hibernate: None, close: None };
        for (state, idle, what) in [
            (State::Running, 9, Due::Nothing),
            (State::Running, 10, Due::Freeze),
            (State::Frozen, 19, Due::Nothing),
            (State::Running, 20, Due::Hibernate),
            (State::Frozen, 20, Due::Hibernate),
            (State::Running, 30, Due::Close),
            (State::Frozen, 30, Due::Close),
            (State::Asleep, 1_000_000, Due::Nothing),
            (State::Closing, 1_000_000, Due::Nothing),
        ] {
            assert_eq!(due(state, Duration::from_secs(idle), all), what, "{state:?} {idle}");
            assert_eq!(due(state, Duration::from_secs(idle), none), Due::Nothing);
        }
    }
}
