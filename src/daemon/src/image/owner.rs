//! Who works with the image store: one service alone, or several that are told that they share it.
//!
//! Only a service knows what its sessions stand on, so who removes something has to know that nobody else is there. The lock
//! is the kernel's (flock(2)) on the file `owner`: exclusive, or shared as long as nothing is removed. The file says who
//! took it last, for those who are refused.

use std::fs::File;
use std::io::{self, Seek, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;

use super::error::StoreError;
use super::store::read_bounded;

/// The file, in the store's directory.
const NAME: &str = "owner";
const MAX_TEXT: u64 = 8192;

/// How a process works with the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tenure {
    /// Alone: another that comes is refused.
    Sole,
    /// Beside others of this kind; nothing is removed while there are some.
    Shared,
    /// Beside a service, and removes nothing.
    Guest,
}

/// The lock, for as long as the process works with the store.
#[derive(Debug)]
pub(super) struct Owner {
    file: File,
    tenure: Tenure,
}

/// Nobody else works with the store while this is held.
#[derive(Debug)]
pub struct Alone(Option<Arc<Owner>>);

impl Owner {
    /// Take the store in `directory` as `tenure`, for the service called `name`. Waits for one that shares it and removes
    /// something. Blocks.
    pub(super) fn take(directory: impl AsFd, tenure: Tenure, name: &str) -> Result<Arc<Self>, StoreError> {
        let flags = OFlags::CREATE | OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let opened = rustix::fs::openat(directory, NAME, flags, Mode::from_raw_mode(0o600));
        let file: OwnedFd = opened.map_err(|e| StoreError::new("open", NAME, e))?;
        let mut owner = Self { file: file.into(), tenure };
        match tenure {
            Tenure::Guest => return Ok(Arc::new(owner)),
            Tenure::Sole => owner.lock(FlockOperation::NonBlockingLockExclusive)?,
            Tenure::Shared => match owner.lock(FlockOperation::NonBlockingLockShared) {
                Err(_) if owner.text().starts_with("shared ") => owner.lock(FlockOperation::LockShared)?,
                done => done?,
            },
        }
        owner.sign(name).map_err(|e| StoreError::new("write", NAME, e))?;
        Ok(Arc::new(owner))
    }

    /// Let nobody else work with the store; `None` if somebody does. Only one may ask at a time ([`super::turns`]): the
    /// kernel gives up the old lock before it looks whether there may be the new one.
    pub(super) fn alone(self: &Arc<Self>) -> Result<Option<Alone>, StoreError> {
        match self.tenure {
            Tenure::Sole | Tenure::Guest => return Ok(Some(Alone(None))),
            Tenure::Shared => {}
        }
        match rustix::fs::flock(&self.file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(Alone(Some(Arc::clone(self))))),
            Err(Errno::WOULDBLOCK | Errno::INTR) => {
                self.lock(FlockOperation::NonBlockingLockShared)?;
                Ok(None)
            }
            Err(e) => Err(StoreError::new("lock", NAME, e)),
        }
    }

    /// Who took it last.
    pub(super) fn last(&self) -> String {
        let text = self.text();
        let mut words = text.trim_end().splitn(3, ' ').skip(1);
        match (words.next(), words.next()) {
            (Some(process), Some(name)) => format!("the service of {name} (process {process})"),
            (_, _) => "another service".to_owned(),
        }
    }

    fn lock(&self, how: FlockOperation) -> Result<(), StoreError> {
        match rustix::fs::flock(&self.file, how) {
            Ok(()) => Ok(()),
            Err(Errno::WOULDBLOCK) => {
                let held = format!("{} works with it; end it, or set images_dir to another directory", self.last());
                Err(StoreError::new("take", NAME, io::Error::new(io::ErrorKind::ResourceBusy, held)))
            }
            Err(e) => Err(StoreError::new("lock", NAME, e)),
        }
    }

    fn text(&self) -> String {
        let read = self.file.try_clone().and_then(|mut file| {
            file.rewind()?;
            read_bounded(&mut file, MAX_TEXT)
        });
        let plain = |c: char| if c.is_control() { ' ' } else { c };
        read.map(|bytes| String::from_utf8_lossy(&bytes).chars().map(plain).collect()).unwrap_or_default()
    }

    fn sign(&mut self, name: &str) -> io::Result<()> {
        let kind = if self.tenure == Tenure::Shared { "shared" } else { "sole" };
        self.file.set_len(0)?;
        self.file.rewind()?;
        self.file.write_all(format!("{kind} {} {name}\n", std::process::id()).as_bytes())
    }
}

impl Drop for Alone {
    fn drop(&mut self) {
        let Some(owner) = &self.0 else { return };
        // From the stronger lock to the weaker: nobody else can have got it in between but another that shares.
        if let Err(error) = owner.lock(FlockOperation::LockShared) {
            tracing::error!(error = &error as &dyn std::error::Error, "the image store is not held any more");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(root: &tempfile::TempDir, tenure: Tenure, name: &str) -> Result<Arc<Owner>, StoreError> {
        Owner::take(File::open(root.path()).unwrap(), tenure, name)
    }

    #[test]
    fn one_alone_is_beside_nobody_but_guests() {
        let root = tempfile::tempdir().unwrap();
        let first = take(&root, Tenure::Sole, "/state dir").unwrap();
        for tenure in [Tenure::Sole, Tenure::Shared] {
            let refused = super::super::error::chain(&take(&root, tenure, "/other").unwrap_err());
            let who = format!("the service of /state dir (process {}) works with it", std::process::id());
            assert!(refused.contains(&who), "{refused}");
        }
        take(&root, Tenure::Guest, "/guest").unwrap();
        assert!(first.alone().unwrap().is_some());
        drop(first);
        take(&root, Tenure::Shared, "/other").unwrap();
    }

    #[test]
    fn of_those_that_share_one_removes_when_it_is_the_last() {
        let root = tempfile::tempdir().unwrap();
        let (one, two) = (take(&root, Tenure::Shared, "/one").unwrap(), take(&root, Tenure::Shared, "/two").unwrap());
        assert!(one.alone().unwrap().is_none());
        assert!(one.last().contains("/two"), "{}", one.last());
        assert!(take(&root, Tenure::Sole, "/three").is_err(), "both are still there");
        drop(two);
        let alone = one.alone().unwrap().unwrap();
        // Who comes now waits until nothing is removed any more.
        let path = root.path().to_owned();
        let waits =
            std::thread::spawn(move || Owner::take(File::open(path).unwrap(), Tenure::Shared, "/four").map(drop));
        drop(alone);
        waits.join().unwrap().unwrap();
        assert!(take(&root, Tenure::Sole, "/three").is_err(), "it is shared again");
    }
}
