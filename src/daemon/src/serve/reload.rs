//! SIGHUP (`systemctl reload sandboxd`): the settings are read again, and what may change while the service runs changes.
//!
//! That is what `PUT /policy` may change: ceilings and lifetimes, for the next sandbox. What was put since the last reading gives way to what
//! is written; the overrides file is applied on top, as at a start. Everything else takes a restart, which keeps sessions.
//! Settings that cannot be used change nothing.

use std::path::PathBuf;
use std::sync::Arc;

use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinHandle;

use super::{ServeError, overrides, settings};
use crate::session::Registry;

/// Listen for the signal; `file` is the configuration file that the command line names.
pub fn watch(registry: &Arc<Registry>, file: Option<PathBuf>) -> JoinHandle<()> {
    let registry = registry.clone();
    // Taken now: a signal that comes before a task runs would end the process.
    let hangups = signal(SignalKind::hangup());
    tokio::spawn(async move {
        let Ok(mut hangups) = hangups else { return };
        while hangups.recv().await.is_some() {
            match read(&registry, file.as_deref()) {
                Ok(changed) => {
                    tracing::info!(changed, "settings read again; what is not a ceiling or a lifetime takes a restart")
                }
                Err(error) => tracing::error!(
                    error = &error as &dyn std::error::Error,
                    "settings not read again; those in force stand"
                ),
            }
        }
    })
}

fn read(registry: &Registry, file: Option<&std::path::Path>) -> Result<bool, ServeError> {
    let settings = settings::read(file)?;
    let default = super::default_runtime(&settings, registry.runtimes())?;
    let changed = registry.reload_policy(&settings, default);
    overrides::apply_again(registry);
    Ok(changed)
}
