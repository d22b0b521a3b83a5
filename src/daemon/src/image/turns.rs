//! Whose turn it is to change the store, among processes: a service and a `sandboxd prepare` work on the same one.
//!
//! Jobs of one process run together; those of another wait until it has none. So nothing is ever made twice, and what
//! a process sweeps away when it starts is nobody's work. The lock is the kernel's (flock(2)): it goes with the process.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::fs::{FlockOperation, Mode, OFlags};

use super::error::StoreError;

/// The file, in the store's directory.
const NAME: &str = "lock";
/// How often another process is asked whether it is done.
const AGAIN: Duration = Duration::from_millis(100);

/// The lock and how many jobs of this process work under it.
#[derive(Debug)]
pub(super) struct Turns {
    file: File,
    jobs: Mutex<usize>,
    gate: tokio::sync::Mutex<()>,
}

/// A job may work; given back when it is dropped.
#[derive(Debug)]
pub(super) struct Turn(Arc<Turns>);

impl Turns {
    /// The lock of the store in `directory`, which nobody takes yet.
    pub(super) fn open(directory: impl AsFd) -> Result<Arc<Self>, StoreError> {
        let flags = OFlags::CREATE | OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let file = rustix::fs::openat(directory, NAME, flags, Mode::from_raw_mode(0o600))
            .map_err(|e| StoreError::new("open", NAME, e))?;
        Ok(Arc::new(Self { file: file.into(), jobs: Mutex::new(0), gate: tokio::sync::Mutex::new(()) }))
    }

    /// Work now, if no other process does.
    pub(super) fn try_take(self: &Arc<Self>) -> Result<Option<Turn>, StoreError> {
        let mut jobs = self.jobs();
        if *jobs == 0 {
            match rustix::fs::flock(&self.file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => {}
                Err(rustix::io::Errno::WOULDBLOCK | rustix::io::Errno::INTR) => return Ok(None),
                Err(e) => return Err(StoreError::new("lock", NAME, e)),
            }
        }
        *jobs += 1;
        Ok(Some(Turn(Arc::clone(self))))
    }

    /// Work as soon as no other process does.
    pub(super) async fn take(self: &Arc<Self>) -> Result<Turn, StoreError> {
        let _first_come = self.gate.lock().await;
        loop {
            if let Some(turn) = self.try_take()? {
                return Ok(turn);
            }
            tokio::time::sleep(AGAIN).await;
        }
    }

    /// Whether a job of this process works.
    pub(super) fn is_ours(&self) -> bool {
        *self.jobs() > 0
    }

    fn jobs(&self) -> MutexGuard<'_, usize> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut jobs = self.0.jobs();
        *jobs -= 1;
        if *jobs == 0 {
            let unlocked: io::Result<()> =
                rustix::fs::flock(&self.0.file, FlockOperation::Unlock).map_err(io::Error::from);
            if let Err(error) = unlocked {
                tracing::error!(%error, "the image store stays locked for other processes");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn jobs_of_one_process_work_together_and_another_s_wait() {
        let root = tempfile::tempdir().unwrap();
        // Two descriptions of one file, as two processes have.
        let open = || Turns::open(File::open(root.path()).unwrap()).unwrap();
        let (ours, theirs) = (open(), open());
        let (first, second) = (ours.take().await.unwrap(), ours.take().await.unwrap());
        assert!(theirs.try_take().unwrap().is_none());
        drop(first);
        assert!(theirs.try_take().unwrap().is_none(), "the other job still works");
        let waiting = tokio::spawn(async move { theirs.take().await });
        tokio::time::sleep(Duration::from_millis(20)).await;
        assert!(!waiting.is_finished());
        drop(second);
        let turn = waiting.await.unwrap().unwrap();
        assert!(ours.try_take().unwrap().is_none());
        drop(turn);
        assert!(ours.try_take().unwrap().is_some());
    }
}
