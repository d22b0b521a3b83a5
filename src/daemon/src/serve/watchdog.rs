//! The watchdog of systemd (sd_watchdog_enabled(3)): told that the service lives, as long as its database answers.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinHandle;

use crate::session::Registry;

/// Tell it twice in each of its periods. What is asked before: a task runs, and the thread of the database answers.
/// Without a watchdog nothing is done.
pub fn feed(registry: &Arc<Registry>) -> JoinHandle<()> {
    let Some(period) = sd_notify::watchdog_enabled() else { return tokio::spawn(std::future::ready(())) };
    let registry = registry.clone();
    tokio::spawn(async move {
        loop {
            tokio::time::sleep(period / 2).await;
            match tokio::time::timeout(period / 2, registry.deps.store.answers()).await {
                Ok(Ok(())) => {
                    let _ = sd_notify::notify(&[sd_notify::NotifyState::Watchdog]);
                }
                Ok(Err(error)) => {
                    // It is at work: no reason to be killed.
                    tracing::warn!(error = &error as &dyn std::error::Error, "the database is too busy to answer");
                    let _ = sd_notify::notify(&[sd_notify::NotifyState::Watchdog]);
                }
                Err(_) => tracing::error!(seconds = Duration::as_secs(&(period / 2)), "the database does not answer"),
            }
        }
    })
}
