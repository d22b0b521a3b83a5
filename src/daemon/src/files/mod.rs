//! File operations on a session's workspace, on the host, without its sandbox.
//!
//! The workspace is a directory of the service's own user. Code in the sandbox writes it too and
//! is hostile: it swaps what a path names while we look. So a path is never resolved by name; see [`resolve`].
//!
//! **Answers are the sandbox's own.** Where text and descriptors alone cannot tell what the
//! sandbox would answer (links, paths outside of the work directory, permissions), the answer is
//! [`FileError::NotNative`]: then the sandbox is asked ([`inside`] reads what it says), and where that cannot say either,
//! the client does the same by a command.
//! The service is the user who owns the files, so it is refused what the sandbox's user is refused.
//!
//! | operation | system calls on its common path |
//! |---|---|
//! | read | `openat2`, `fstat`, `read`, `close` |
//! | write | `openat2` (parent), `fstatat`, `openat2` (new file without a name), `write`…, `linkat`, 2 × `close`; over a file also `fchmod`, `getrandom`, `renameat` |
//! | stat | `openat2`, `fstat`, `close` |
//! | list | `openat2`, `getdents`…, an `fstatat` for each entry, `close` |
//! | realpath | `openat2`, `close` |
//! | mkdir | `openat2`, `close`; then `mkdirat` and `openat2` for each parent that is missing |
//! | remove | `openat2` (parent), `unlinkat`, `close`; a tree: [`remove`] |
//!
//! Nothing calls `fsync`: neither do the commands in the sandbox. A crash of the host may lose
//! what was written last, never what was there before (a write renames a complete file).
//!
//! New files are 0644 and new directories 0755, less the umask: the service sets 022, the sandbox's own.
//!
//! [`stored`] looks at the workspace for the platform instead, whether or not there is a sandbox.
//!
//! Everything here blocks, on the disk only: FIFOs, leases and devices cannot make it wait.

mod entry;
mod error;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
pub mod inside;
mod list;
mod mkdir;
mod place;
#[cfg(test)]
mod races;
mod read;
mod remove;
mod resolve;
pub mod stored;
#[cfg(test)]
mod testing;
mod text;
mod write;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use wire::id::SessionId;

pub use error::{FileError, Op, Why};
pub use list::MAX_ENTRIES;
pub use text::slice;
pub use write::PendingWrite;

/// A session's workspace: cheap to open, and good for as long as its directory exists.
#[derive(Debug)]
pub struct Workspace {
    root: OwnedFd,
    /// The directory above it, where no sandbox looks: what is about to take a file's place has its name there.
    beside: Option<Arc<OwnedFd>>,
    work_dir: String,
    /// The service's user, who owns what the sandbox's user writes.
    uid: u32,
}

impl Workspace {
    /// The workspace `ID/workspace` beneath the directory `workspaces`, which the sandbox sees as
    /// `work_dir`: absolute, normalised, not `/`.
    ///
    /// # Errors
    /// [`FileError::NotFound`] when the session has no workspace; [`FileError::Io`].
    pub fn open(workspaces: BorrowedFd<'_>, id: &SessionId, work_dir: &str) -> Result<Self, FileError> {
        let error = |errno| FileError::from_errno(Op::Open, work_dir, errno);
        let beside = resolve::open_dir(workspaces, id.as_str()).map_err(error)?;
        let root = resolve::open_dir(beside.as_fd(), "workspace").map_err(error)?;
        Ok(Self { beside: Some(Arc::new(beside)), ..Self::from_fd(root, work_dir) })
    }

    /// The workspace whose directory is `root` (`O_PATH` is enough), otherwise as [`Workspace::open`].
    #[must_use]
    pub fn from_fd(root: OwnedFd, work_dir: &str) -> Self {
        Self { root, beside: None, work_dir: work_dir.to_owned(), uid: rustix::process::geteuid().as_raw() }
    }
}
