//! Every system call of the init, behind safe functions: the only unsafe code of this crate.
//!
//! The init has one thread. What is said to be sound below for that reason stops being so
//! with a second one.
#![allow(unsafe_code, reason = "the one room for system calls; each block says why it is sound")]

mod event;
mod file;
mod privilege;
mod process;
mod socket;
mod tunnel;

use std::{fmt, io};

pub use event::{Epoll, Interest, Signals, Token, block_signals, unblock_signals};
pub use file::{
    Access, Kind, access, clear_nonblocking, close_from, duplicate_onto, enter_dir, inherited, kind, make_dir, may,
    open_beneath, open_path, read, read_at, remove_dir, sealed_against_writing, set_nonblocking, write,
};
pub use privilege::{
    Capabilities, become_user, clear_ambient, drop_bounding, file_limits, install_filter, keep_capabilities,
    no_new_privileges, set_capabilities, set_dumpable, set_file_limits,
};
pub use process::{
    Fork, Reaped, SharedCells, Strings, end_after, execute, exit_now, fork_into, kill, new_session, set_umask, wait_any,
};
pub use socket::{accept, loopback_up, receive, send};
pub use tunnel::{
    Watched, available, connect_to, duplicate_high, fork, give, identity, listen_at, make_private_dir, mount_cgroup,
    pipe, poll, put, sealed_memfd, write_some,
};

/// An error number, errno(3).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Errno(pub i32);

impl Errno {
    /// That of the system call that has just failed.
    fn last() -> Self {
        Self(io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO))
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        io::Error::from_raw_os_error(self.0).fmt(f)
    }
}

/// What a system call answers.
pub type Result<T> = std::result::Result<T, Errno>;

/// The answer of a call that reports failure as -1 and errno.
fn check<T: PartialEq + From<i8>>(answer: T) -> Result<T> {
    if answer == T::from(-1) { Err(Errno::last()) } else { Ok(answer) }
}
