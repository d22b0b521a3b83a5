//! A file operation inside a sandbox: what `sandboxd` asks its init for, and how the answer travels.
//!
//! The init forks a child for it as for a command: in a cgroup of its own, with a command's user, limits and
//! filters. The child executes nothing. It resolves the path as any process of the sandbox does, does the one
//! thing and ends. What it found is on its standard output and means something only if its exit
//! status is 0; any other status is a [`Fault`].
//!
//! | operation | standard output |
//! |---|---|
//! | read | the bytes |
//! | stat | one [`Stat`] in postcard |
//! | list | one [`Entry`] in postcard after another, in no order |
//! | realpath | the path, any bytes without NUL |
//! | write, mkdir, remove | nothing |
//!
//! The child is a process of the sandbox: all of this is as hostile as the output of a command.

use serde::{Deserialize, Serialize};

/// Longest path of a request, in bytes: `PATH_MAX` without its NUL.
pub const MAX_PATH: usize = 4095;
/// Longest answer to realpath, in bytes: forty links, each as long as a path.
pub const MAX_REALPATH: usize = 41 * (MAX_PATH + 1);
/// Longest name of an entry, in bytes: `NAME_MAX`.
pub const MAX_NAME: usize = 255;
/// Most of one encoded [`Entry`], in bytes.
pub const MAX_ENTRY: usize = MAX_NAME + 32;
/// Seconds after which the child ends itself, whatever it waits for. Who asked gives up earlier.
pub const CHILD_SECONDS: u32 = 60;

/// What is asked for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileRequest {
    /// Which operation.
    pub op: FileOp,
    /// Absolute path, at most [`MAX_PATH`] bytes without NUL, resolved by the sandbox's kernel as it is written.
    pub path: String,
    /// Absolute directory to start in, which commands start in too; it and what holds it is not removed.
    pub work_dir: String,
    /// User id inside the sandbox, as a command's.
    pub uid: u32,
    /// Group id inside the sandbox, as a command's.
    pub gid: u32,
    /// Most bytes of a file, or most entries of a directory.
    pub max: u64,
}

/// A file operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum FileOp {
    /// The bytes of a plain file. More than `max`: [`Fault::TooLarge`].
    Read,
    /// Standard input takes the place of a plain file, at once, keeping its mode; parents are made. A link at the
    /// path is [`Fault::Link`]; one that appears meanwhile is replaced.
    Write,
    /// What a path leads to: a directory, or a plain file that the user may read.
    Stat,
    /// The entries of a directory, each described as what it leads to. More than `max`: [`Fault::TooMany`].
    List,
    /// A path with every link resolved, as far as there is anything; the rest as it is written.
    Realpath,
    /// A directory and its parents.
    Mkdir,
    /// A file, a link itself, or a tree.
    Remove,
}

/// What something is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stat {
    /// Its kind.
    pub kind: Kind,
    /// Bytes of a plain file; 0 for anything else.
    pub size: u64,
    /// When it was last written, seconds since 1970.
    pub seconds: i64,
    /// And nanoseconds.
    pub nanoseconds: u32,
}

/// The kinds that matter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Kind {
    /// A plain file.
    File,
    /// A directory.
    Directory,
    /// Anything else, and what leads nowhere.
    Other,
}

/// One entry of a directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry<'a> {
    /// Its name, any bytes without `/` and NUL, at most [`MAX_NAME`].
    #[serde(borrow)]
    pub name: &'a [u8],
    /// What it leads to.
    pub stat: Stat,
}

/// Why an operation was not done, as the exit status of its process: an errno(3), or a number from 200 on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// What the kernel said, 1 to 199.
    Errno(u8),
    /// Neither a plain file nor a directory.
    Special,
    /// A link where a file is to be written.
    Link,
    /// More bytes than were asked for.
    TooLarge,
    /// More entries than were asked for.
    TooMany,
    /// The work directory, or one that holds it, was to be removed.
    WorkDir,
    /// `/proc` would tell of the process that asks, which is no command.
    Itself,
}

impl Fault {
    const NAMED: [Self; 6] = [Self::Special, Self::Link, Self::TooLarge, Self::TooMany, Self::WorkDir, Self::Itself];
    const FIRST: u8 = 200;

    /// The exit status that says so, 1 to 255.
    #[must_use]
    pub fn exit_status(self) -> u8 {
        match self {
            Self::Errno(errno) => errno.clamp(1, Self::FIRST - 1),
            Self::Special => Self::FIRST,
            Self::Link => Self::FIRST + 1,
            Self::TooLarge => Self::FIRST + 2,
            Self::TooMany => Self::FIRST + 3,
            Self::WorkDir => Self::FIRST + 4,
            Self::Itself => Self::FIRST + 5,
        }
    }

    /// What an exit status says; `None` for success, and for one that says nothing.
    #[must_use]
    pub fn from_exit_status(status: u8) -> Option<Self> {
        match status.checked_sub(Self::FIRST) {
            Some(place) => Self::NAMED.get(usize::from(place)).copied(),
            None => (status > 0).then_some(Self::Errno(status)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_fault_is_an_exit_status_and_comes_back() {
        for status in 1..=205 {
            assert_eq!(Fault::from_exit_status(status).unwrap().exit_status(), status);
        }
        for status in [0, 206, 255] {
            assert_eq!(Fault::from_exit_status(status), None);
        }
        assert_eq!(Fault::Errno(0).exit_status(), 1);
    }

    #[test]
    fn an_entry_fits_where_it_is_made() {
        let stat = Stat { kind: Kind::Other, size: u64::MAX, seconds: i64::MIN, nanoseconds: u32::MAX };
        let bytes = postcard::to_allocvec(&Entry { name: &[b'x'; MAX_NAME], stat }).unwrap();
        assert!(bytes.len() <= MAX_ENTRY, "{}", bytes.len());
    }
}
