//! File operations that the sandbox does, because from the host they cannot be resolved.

use std::sync::Arc;

use wire::file::FileOp;

use super::App;
use super::error::ApiError;
use crate::files::{FileError, PendingWrite, Workspace};
use crate::session::{Payload, Reached, Session};

/// An operation as the sandbox is asked for it, and what reads its answer about a path.
pub struct Inside<T> {
    /// What is asked.
    pub op: FileOp,
    /// What that answer is.
    pub answer: fn(&str, Vec<u8>) -> Result<T, FileError>,
}

/// Who did an operation, or was the last to try.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum By {
    /// This service.
    Service,
    /// The sandbox.
    Sandbox,
}

/// Where a body that is written goes.
#[derive(Debug)]
pub enum Taking {
    /// Into its file.
    Host(PendingWrite),
    /// Into memory, for the sandbox, and why that is so.
    Sandbox(Payload, FileError),
}

impl Taking {
    /// Starts to write at most `max` bytes to `path`.
    ///
    /// # Errors
    /// Those of a write.
    pub fn begin(files: &Workspace, path: &str, max: u64) -> Result<Self, FileError> {
        match files.begin_write(path, max) {
            Ok(pending) => Ok(Self::Host(pending)),
            Err(error) if error.is_for_the_sandbox(FileOp::Write, path) => match Payload::new(max) {
                Ok(payload) => Ok(Self::Sandbox(payload, error)),
                // No memory for it: then it is a command's.
                Err(_) => Err(error),
            },
            Err(error) => Err(error),
        }
    }

    /// Takes a piece of it.
    ///
    /// # Errors
    /// [`FileError::TooLarge`], [`FileError::NoSpace`], [`FileError::Io`].
    pub fn take(&mut self, path: &str, max: u64, piece: &[u8]) -> Result<(), FileError> {
        match self {
            Self::Host(pending) => pending.write_all(piece),
            Self::Sandbox(payload, _) => payload.append(path, max, piece),
        }
    }

    /// All of it is here: puts it in its place, as far as that is done from here.
    ///
    /// # Errors
    /// Those of a write.
    pub fn commit(self) -> Result<Option<Self>, FileError> {
        match self {
            Self::Host(pending) => pending.commit().map(|()| None),
            Self::Sandbox(..) => Ok(Some(self)),
        }
    }

    /// What the sandbox has to write.
    #[must_use]
    pub fn for_the_sandbox(self) -> Option<(Payload, FileError)> {
        match self {
            Self::Host(_) => None,
            Self::Sandbox(payload, unresolved) => Some((payload, unresolved)),
        }
    }
}

impl App {
    /// Have the sandbox do what from here is `unresolved`. If it cannot either, or there is none to be had, that is the
    /// answer: the client then runs a command, and learns from it what is the matter.
    ///
    /// # Errors
    /// [`ApiError`].
    pub async fn ask<T>(
        &self,
        session: &Arc<Session>,
        inside: Inside<T>,
        path: &str,
        body: Option<Payload>,
        unresolved: FileError,
    ) -> Result<T, ApiError> {
        let max = self.registry.policy().max_read_bytes;
        match self.registry.reach(session, inside.op, path, body).await {
            Ok(Reached::Done(bytes)) => Ok((inside.answer)(path, bytes)?),
            Ok(Reached::Fault(fault)) => Err(FileError::of_the_sandbox(inside.op, path, fault, max).into()),
            Ok(Reached::Undone) => Err(unresolved.into()),
            Err(error) if error.is_full() => Err(error.into()),
            Err(error) => {
                let error = &error as &dyn std::error::Error;
                tracing::debug!(session = %session.id, error, "no sandbox could be asked");
                Err(unresolved.into())
            }
        }
    }
}
