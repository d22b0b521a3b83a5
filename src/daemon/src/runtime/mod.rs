//! What runs: the clients of `sandboxd-launch` and of each sandbox's init.
//!
//! Nothing here decides anything: it carries requests and answers, bounded in bytes and
//! time, and treats what comes from an init as hostile.

pub mod init;
pub mod launcher;
pub mod pipes;
mod seqpacket;
pub mod slots;
mod sys;

pub use init::{Init, InitError, Outcome};
pub use launcher::{About, LaunchError, Launcher};
pub use seqpacket::listener;
pub use slots::{Slot, Slots};
pub use sys::watch;
