//! The file of policy overrides: read before anything is served, and again when it changes.
//!
//! What cannot be used is logged and ignored, and the earlier values stand: a typing error in a
//! file neither stops a service nor keeps one from starting. A file that is deleted reverts nothing.
//!
//! The kernel says when something in the file's directory changes (inotify(7)). What that does not show, a file behind a link
//! or on another machine, is found by looking now and then; where the kernel says nothing, by looking often.

use std::fs::File;
use std::io::{self, Read};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use rustix::io::Errno;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::task::JoinHandle;
use wire::api::PolicyUpdate;

use crate::runtime;
use crate::session::Registry;

/// How often the file is looked at where nobody tells of changes, and where somebody does.
const OFTEN: Duration = Duration::from_secs(1);
const SELDOM: Duration = Duration::from_secs(30);
/// What is changed in many steps is looked at after the last of them.
const SETTLED: Duration = Duration::from_millis(20);
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
        let mut changes = None;
        loop {
            // A directory that was not there may be there now.
            changes = changes.or_else(|| Changes::beside(&path).ok());
            let told = match &changes {
                Some(changes) => tokio::time::timeout(SELDOM, changes.next()).await.unwrap_or(Ok(())),
                None => {
                    tokio::time::sleep(OFTEN).await;
                    Ok(())
                }
            };
            if told.is_err() {
                changes = None;
            }
            seen = look(&registry, &path, seen);
        }
    })
}

/// What happens in the directory of a file.
struct Changes(AsyncFd<OwnedFd>);

impl Changes {
    fn beside(path: &Path) -> io::Result<Self> {
        let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or_else(|| Path::new("."));
        let events = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
        let what = WatchFlags::CLOSE_WRITE | WatchFlags::ATTRIB | WatchFlags::MOVED_TO | WatchFlags::CREATE;
        let gone = WatchFlags::DELETE_SELF | WatchFlags::MOVE_SELF;
        inotify::add_watch(&events, directory, what | gone | WatchFlags::ONLYDIR)?;
        Ok(Self(runtime::watch(events, Interest::READABLE)?))
    }

    /// Wait for the next change, and for those that come with it; an error if the directory is another one now.
    async fn next(&self) -> io::Result<()> {
        let mut ready = self.0.readable().await?;
        tokio::time::sleep(SETTLED).await;
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut reader = inotify::Reader::new(self.0.get_ref(), &mut buffer);
        let gone = ReadFlags::DELETE_SELF | ReadFlags::MOVE_SELF | ReadFlags::IGNORED | ReadFlags::UNMOUNT;
        loop {
            match reader.next() {
                Ok(event) if event.events().intersects(gone) => return Err(io::ErrorKind::NotFound.into()),
                Ok(_) => {}
                Err(Errno::AGAIN) => {
                    ready.clear_ready();
                    return Ok(());
                }
                Err(error) => return Err(error.into()),
            }
        }
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_change_in_the_directory_is_told() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("policy.json");
        let changes = Changes::beside(&path).unwrap();
        let soon = async |changes: &Changes| tokio::time::timeout(Duration::from_secs(60), changes.next()).await;
        std::fs::write(&path, "{}").unwrap();
        soon(&changes).await.unwrap().unwrap();
        let quiet = tokio::time::timeout(Duration::from_millis(100), changes.next()).await;
        assert!(quiet.is_err(), "nothing happens");
        let fresh = directory.path().join("fresh");
        std::fs::write(&fresh, "{}").unwrap();
        std::fs::rename(&fresh, &path).unwrap();
        soon(&changes).await.unwrap().unwrap();
        assert!(Changes::beside(&directory.path().join("none/policy.json")).is_err());
        drop(directory);
        while soon(&changes).await.unwrap().is_ok() {}
    }
}
