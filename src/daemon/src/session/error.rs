//! Why a session does not do what it was asked.

use wire::id::SessionId;

use super::quota::DiskError;
use crate::image::{ManageError, SharedError};
use crate::runtime::{InitError, LaunchError};
use crate::store::StoreError;

/// Why a session does not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// No such alias on the allowlist.
    #[error("Runtime not allowed: {alias}. Allowed: {}", allowed.join(", "))]
    UnknownRuntime {
        /// What was named.
        alias: String,
        /// What may be, sorted.
        allowed: Vec<String>,
    },
    /// An attach that names nothing.
    #[error("attach needs the session_id to attach to")]
    AttachNeedsId,
    /// No such session is open.
    #[error("No such session: {0}")]
    NoSuchSession(SessionId),
    /// What was asked of the images.
    #[error(transparent)]
    Images(#[from] ManageError),
    /// Neither a session nor a kept workspace.
    #[error("Nothing to attach to: {0}")]
    NothingToAttach(SessionId),
    /// The name is taken.
    #[error("Session exists: {0}")]
    Exists(SessionId),
    /// Another request is opening it.
    #[error("Session is opening: {0}")]
    Opening(SessionId),
    /// It is being closed.
    #[error("Session is closing: {0}")]
    Closing(SessionId),
    /// It is being used, so that its sandbox is not to be ended.
    #[error("Session {0} is at work; stop its commands, or try again later")]
    AtWork(SessionId),
    /// It was opened on another runtime.
    #[error("Session {id} is open on runtime {open}, not {asked}")]
    RuntimeDiffers {
        /// The session.
        id: SessionId,
        /// Its runtime.
        open: String,
        /// What was asked for.
        asked: String,
    },
    /// Every sandbox of the service is in use.
    #[error("The service holds {held} of {limit} sessions; close one, or try again later")]
    Full {
        /// Resident or starting.
        held: u64,
        /// `max_sessions`.
        limit: u64,
    },
    /// Every session of the service is in use.
    #[error("The service has {held} of {limit} open sessions; close one, or try again later")]
    OpenFull {
        /// Open.
        held: u64,
        /// `max_open_sessions`.
        limit: u64,
    },
    /// The tenant has all that it may.
    #[error("Tenant {tenant} already holds {held} of {limit} sessions; close one, or try again later")]
    TenantFull {
        /// Who.
        tenant: String,
        /// Open.
        held: u64,
        /// `max_sessions_per_tenant`.
        limit: u64,
    },
    /// Too many commands run.
    #[error("The service runs {0} commands at once, and all of them are running; try again later")]
    CommandsFull(usize),
    /// Its sandbox ended while something was asked of it.
    #[error("The sandbox of session {0} has ended; the next command starts it again")]
    SandboxEnded(SessionId),
    /// Its workspace is not on disk any more: there is nothing to come back to.
    #[error("The files of session {0} are gone from the disk; close it, and open another")]
    FilesGone(SessionId),
    /// The disk has no room for that: the session's own share, or the host's.
    #[error(transparent)]
    Disk(#[from] DiskError),
    /// Its sandbox was stopped because it uses too much of the disk.
    #[error("Session {0} was stopped, its files are kept: {1}")]
    StoppedForDisk(SessionId, DiskError),
    /// Whoever took a command's output has gone away, and it was stopped.
    #[error("Run {0} was stopped: nobody reads its output")]
    Abandoned(wire::id::RunId),
    /// A run of that name is running.
    #[error("Run {0} is running already")]
    RunExists(wire::id::RunId),
    /// The command is too long for the kernel.
    #[error("{0}")]
    TooLong(InitError),
    /// The runtime needs something that this version does not have.
    #[error("Could not start sandbox: {0}")]
    Unsupported(String),
    /// This host gives no networks, and its runtime needs one.
    #[error("Could not start sandbox: it needs a network, and this host gives none: {}", chain(.0))]
    Network(super::network::NetworkError),
    /// Every range of ids is in use.
    #[error("Could not start sandbox: every range of user ids is in use; raise slots")]
    NoSlot,
    /// Its image could not be made ready.
    #[error("Could not start sandbox: {}", chain(.0.as_ref()))]
    Image(SharedError),
    /// The launcher did not start it.
    #[error("Could not start sandbox: {}", chain(.0))]
    Launch(LaunchError),
    /// Its init did not answer.
    #[error("Could not start sandbox: {}", chain(.0))]
    Init(InitError),
    /// Its directories or pipes could not be made.
    #[error("{operation} of session {id}: {source}")]
    Io {
        /// What was attempted.
        operation: &'static str,
        /// The session.
        id: SessionId,
        /// What the kernel says.
        #[source]
        source: std::io::Error,
    },
    /// The database did not record it.
    #[error("{}", chain(.0))]
    Store(#[from] StoreError),
    /// An opening or a purge ended without a result.
    #[error("What was asked of session {0} was broken off")]
    Broken(SessionId),
}

impl SessionError {
    /// Whether the client is told no, and nothing has failed: a ceiling, a name, a runtime.
    #[must_use]
    pub fn is_refusal(&self) -> bool {
        match self {
            Self::UnknownRuntime { .. }
            | Self::AttachNeedsId
            | Self::NoSuchSession(_)
            | Self::NothingToAttach(_)
            | Self::Exists(_)
            | Self::Opening(_)
            | Self::Closing(_)
            | Self::AtWork(_)
            | Self::RuntimeDiffers { .. }
            | Self::Full { .. }
            | Self::OpenFull { .. }
            | Self::TenantFull { .. }
            | Self::CommandsFull(_)
            | Self::FilesGone(_)
            | Self::Disk(_)
            | Self::RunExists(_)
            | Self::TooLong(_) => true,
            Self::SandboxEnded(_)
            | Self::StoppedForDisk(..)
            | Self::Abandoned(_)
            | Self::Unsupported(_)
            | Self::Network(_)
            | Self::NoSlot
            | Self::Image(_)
            | Self::Images(_)
            | Self::Launch(_)
            | Self::Init(_)
            | Self::Io { .. }
            | Self::Store(_)
            | Self::Broken(_) => false,
        }
    }

    /// Whether the reason is a full disk.
    #[must_use]
    pub fn is_full(&self) -> bool {
        match self {
            Self::Launch(error) => error.is_full(),
            Self::Image(error) => error.is_full(),
            Self::Images(error) => error.is_full(),
            Self::Store(StoreError::Full { .. }) | Self::Disk(_) | Self::StoppedForDisk(..) => true,
            Self::Io { source, .. } => source.raw_os_error().is_some_and(|e| [libc::ENOSPC, libc::EDQUOT].contains(&e)),
            Self::UnknownRuntime { .. }
            | Self::AttachNeedsId
            | Self::NoSuchSession(_)
            | Self::NothingToAttach(_)
            | Self::Exists(_)
            | Self::Opening(_)
            | Self::Closing(_)
            | Self::AtWork(_)
            | Self::RuntimeDiffers { .. }
            | Self::Full { .. }
            | Self::OpenFull { .. }
            | Self::TenantFull { .. }
            | Self::CommandsFull(_)
            | Self::SandboxEnded(_)
            | Self::FilesGone(_)
            | Self::Abandoned(_)
            | Self::RunExists(_)
            | Self::TooLong(_)
            | Self::Unsupported(_)
            | Self::Network(_)
            | Self::NoSlot
            | Self::Init(_)
            | Self::Store(_)
            | Self::Broken(_) => false,
        }
    }
}

/// An error and its sources, in one line.
pub(super) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}
