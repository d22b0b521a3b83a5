//! The one unsafe call of the service: telling tokio's poller about a descriptor.
#![allow(unsafe_code)] // tokio's registration of a descriptor is an unsafe function

use std::io;
use std::os::fd::OwnedFd;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Let tokio watch a descriptor, which must not block.
///
/// # Errors
/// What the kernel says, for a descriptor that cannot be polled.
pub fn watch(fd: OwnedFd, interest: Interest) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: an `OwnedFd` is open, always names the same descriptor, and closes only when dropped.
    // The `AsyncFd` owns it; nobody here replaces what it refers to (dup2 onto it).
    unsafe { AsyncFd::register_with_interest(fd, interest) }.map_err(io::Error::from)
}
