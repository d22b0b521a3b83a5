//! What a file operation answers when it is not done.

use rustix::io::Errno;

/// Most characters of an unchecked path that an error repeats.
const MAX_SHOWN: usize = 255;

/// Why a file operation of a live session was not done. The text of each is what the client shows.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// Nothing is there.
    #[error("No such file or directory: '{path}'")]
    NotFound {
        /// As the client named it, normalised.
        path: String,
    },
    /// A directory is where a file was wanted.
    #[error("Is a directory: '{path}'")]
    IsADirectory {
        /// As the client named it, normalised.
        path: String,
    },
    /// A file is where a directory was wanted, at the path or on the way to it.
    #[error("Not a directory: '{path}'")]
    NotADirectory {
        /// As the client named it, normalised.
        path: String,
    },
    /// A file is where a directory was to be made.
    #[error("File exists: '{path}'")]
    Exists {
        /// As the client named it, normalised.
        path: String,
    },
    /// The request makes no sense, whatever the workspace holds.
    #[error("{reason}: '{path}'")]
    Invalid {
        /// As the client named it.
        path: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// The sandbox has to resolve this one: 409. Nothing that the client asked for was done, except
    /// that parents may have been made or a part of a tree removed, which doing it again does not mind.
    #[error("'{path}' {why}: the sandbox has to resolve it")]
    NotNative {
        /// As the client named it.
        path: String,
        /// Why.
        why: Why,
    },
    /// More bytes than one request moves; the sandbox moves them in pieces: 409.
    #[error("'{path}' is over the limit of {limit} bytes")]
    TooLarge {
        /// As the client named it, normalised.
        path: String,
        /// The ceiling, in bytes.
        limit: u64,
    },
    /// The session's share of the disk is used up. What was there before is as it was.
    #[error("{op} '{path}': disk quota exceeded; remove something first")]
    OverQuota {
        /// The operation.
        op: Op,
        /// As the client named it, normalised.
        path: String,
    },
    /// The disk is full. What was there before is as it was.
    #[error("{op} '{path}': disk full, no space left")]
    NoSpace {
        /// The operation.
        op: Op,
        /// As the client named it, normalised.
        path: String,
    },
    /// The host failed: not the client's doing.
    #[error("{op} '{path}'")]
    Io {
        /// The operation.
        op: Op,
        /// As the client named it, normalised.
        path: String,
        /// What the kernel said.
        #[source]
        source: std::io::Error,
    },
}

/// Why only the sandbox can resolve a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Why {
    /// It is not beneath the work directory, or climbs out of it.
    Outside,
    /// It is a link, or one is on the way.
    Link,
    /// It is a FIFO, a socket or a device, or a file whose opening would have to wait.
    Special,
    /// The service may not do this; the sandbox says what its own user may.
    Denied,
    /// Longer than the kernel resolves.
    TooLong,
    /// Written so that text alone does not say what it names: `file/`, `missing/..`.
    Unclear,
    /// It holds a name that is not UTF-8.
    Encoding,
    /// It holds more entries than one request handles.
    TooMany,
    /// The sandbox changed it during the operation.
    Changed,
}

impl std::fmt::Display for Why {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Outside => "is outside of the work directory",
            Self::Link => "is a link or behind one",
            Self::Special => "is neither a plain file nor a directory",
            Self::Denied => "is not open to the service",
            Self::TooLong => "is too long a path",
            Self::Unclear => "is not normalised",
            Self::Encoding => "holds a name that is not UTF-8",
            Self::TooMany => "holds too many entries for one request",
            Self::Changed => "changed meanwhile",
        })
    }
}

/// A file operation, as errors and a session's events name it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Op {
    /// Open the workspace itself.
    Open,
    /// Read a file.
    Read,
    /// Write a file.
    Write,
    /// Describe a path.
    Stat,
    /// List a directory.
    Ls,
    /// Resolve the links in a path.
    Realpath,
    /// Make a directory.
    Mkdir,
    /// Remove a file or a tree.
    Remove,
}

impl Op {
    /// Its name: `read`, `write`, `stat`, `ls`, `realpath`, `mkdir`, `remove`; `open` is no request.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Read => "read",
            Self::Write => "write",
            Self::Stat => "stat",
            Self::Ls => "ls",
            Self::Realpath => "realpath",
            Self::Mkdir => "mkdir",
            Self::Remove => "remove",
        }
    }
}

impl std::fmt::Display for Op {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

impl FileError {
    /// The error's name in the contract; none for what is not a path error (409 and 5xx).
    #[must_use]
    pub fn name(&self) -> Option<&'static str> {
        match self {
            Self::NotFound { .. } => Some("FileNotFoundError"),
            Self::IsADirectory { .. } => Some("IsADirectoryError"),
            Self::NotADirectory { .. } => Some("NotADirectoryError"),
            Self::Exists { .. } => Some("FileExistsError"),
            Self::Invalid { .. } => Some("ValueError"),
            Self::NotNative { .. }
            | Self::TooLarge { .. }
            | Self::OverQuota { .. }
            | Self::NoSpace { .. }
            | Self::Io { .. } => None,
        }
    }

    pub(super) fn invalid(path: &str, reason: &'static str) -> Self {
        Self::Invalid { path: shown(path), reason }
    }

    pub(super) fn not_native(path: &str, why: Why) -> Self {
        Self::NotNative { path: path.to_owned(), why }
    }

    /// What `errno` means when `op` meets it at `path`.
    pub(super) fn from_errno(op: Op, path: &str, errno: Errno) -> Self {
        let path = path.to_owned();
        match errno {
            Errno::NOENT => Self::NotFound { path },
            Errno::ISDIR => Self::IsADirectory { path },
            Errno::NOTDIR => Self::NotADirectory { path },
            Errno::EXIST => Self::Exists { path },
            Errno::NOSPC => Self::NoSpace { op, path },
            Errno::DQUOT => Self::OverQuota { op, path },
            Errno::LOOP => Self::NotNative { path, why: Why::Link },
            // A mount point: the sandbox's view of it may differ.
            Errno::XDEV => Self::NotNative { path, why: Why::Outside },
            Errno::ACCESS | Errno::PERM => Self::NotNative { path, why: Why::Denied },
            // A socket or device without a driver; a file under a lease that the sandbox holds.
            Errno::NXIO | Errno::NODEV | Errno::AGAIN => Self::NotNative { path, why: Why::Special },
            Errno::NAMETOOLONG => Self::NotNative { path, why: Why::TooLong },
            other => Self::Io { op, path, source: other.into() },
        }
    }
}

/// A path that has not been checked, as an error may repeat it: of bounded length, without NULs.
pub(super) fn shown(path: &str) -> String {
    let mut shown: String = path.chars().take(MAX_SHOWN).map(|c| if c == '\0' { '\u{fffd}' } else { c }).collect();
    if path.chars().nth(MAX_SHOWN).is_some() {
        shown.push('…');
    }
    shown
}
