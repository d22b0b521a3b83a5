//! The file of policy overrides: read before anything is served, and again when it changes.
//!
//! What cannot be used is logged and ignored, and the earlier values stand: a typing error in a
//! file neither stops a service nor keeps one from starting. A file that is deleted reverts nothing.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::task::JoinHandle;
use wire::api::PolicyUpdate;

use crate::session::Registry;

/// How often the file is looked at.
const INTERVAL: Duration = Duration::from_secs(1);
/// Largest file, in bytes.
const FILE_MAX: u64 = 1 << 20;

/// Apply the overrides file now, and whenever its time of modification moves.
pub fn watch(registry: &Arc<Registry>) -> JoinHandle<()> {
    let registry = registry.clone();
    let Some(path) = registry.deps.settings.policy_overrides.clone() else {
        return tokio::spawn(std::future::ready(()));
    };
    let mut seen = look(&registry, &path, None);
    tokio::spawn(async move {
        loop {
            tokio::time::sleep(INTERVAL).await;
            seen = look(&registry, &path, seen);
        }
    })
}

/// Apply the overrides file, if there is one, whether it has changed or not.
pub fn apply_again(registry: &Registry) {
    if let Some(path) = &registry.deps.settings.policy_overrides {
        look(registry, path, None);
    }
}

/// Apply the file if it is another than the one seen; which one that is.
fn look(registry: &Registry, path: &Path, seen: Option<SystemTime>) -> Option<SystemTime> {
    let modified = std::fs::metadata(path).and_then(|metadata| metadata.modified()).ok();
    if modified.is_some() && modified != seen {
        match apply(registry, path) {
            Ok(true) => tracing::info!(file = %path.display(), "policy overrides applied"),
            Ok(false) => {}
            Err(reason) => tracing::warn!(file = %path.display(), "policy overrides ignored: {reason}"),
        }
    }
    modified.or(seen)
}

fn apply(registry: &Registry, path: &Path) -> Result<bool, String> {
    let mut text = String::new();
    let read: io::Result<usize> = File::open(path).and_then(|file| file.take(FILE_MAX).read_to_string(&mut text));
    read.map_err(|error| error.to_string())?;
    let update: PolicyUpdate = serde_json::from_str(&text).map_err(|error| error.to_string())?;
    registry.update_policy(&update).map_err(|error| error.to_string())
}
