//! The seccomp filters, compiled by `build.rs` from `seccomp.policy`, which says what they refuse and how.

use crate::sys::{Result, install_filter};

include!(concat!(env!("OUT_DIR"), "/filters.rs"));

/// Confines this process and every descendant: what is not in the policy is `ENOSYS`, what it refuses `EPERM`.
///
/// # Errors
/// Those of seccomp(2).
pub fn confine() -> Result<()> {
    install_filter(&KNOWN)?;
    install_filter(&REFUSED)
}

/// In the child of a command: no clone3 from here on.
///
/// # Errors
/// Those of seccomp(2).
pub fn confine_command() -> Result<()> {
    install_filter(&COMMAND)
}
