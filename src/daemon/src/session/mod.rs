//! Sessions: who has one, what state it is in, and what is done to it.
//!
//! ```text
//!              admitted                    Close
//!   (nothing) ─────────► Opening ────────────────────────┐
//!                          │ Launched      Close          ▼
//!                          ├────────► Running ───────► Closing ──Ended──► (nothing)
//!                          │           │   ▲               ▲
//!              LaunchFailed│   Sandbox │   │ Launched      │ Close
//!                          ▼     Ended ▼   │               │
//!                      (nothing)     Asleep ──Wake──► Waking
//!                                      ▲    LaunchFailed │
//!                                      └─────────────────┘
//! ```
//!
//! - **Opening**: admitted and counted; a row says so. Nobody was told yet: whatever fails here leaves nothing behind.
//! - **Running**: it was answered for. It has a sandbox.
//! - **Asleep**: its sandbox ended; row, token, workspace and write layer are kept. File operations go on off the
//!   host, a command wakes it.
//! - **Waking**: a sandbox is being started again; who asks meanwhile waits for the same one.
//! - **Closing**: no request reaches it; its sandbox, write layer and row are being removed.
//!
//! [`state`] decides (pure), one [`driver`] task per session acts, [`registry`] admits and finds,
//! [`run`] runs commands without any of them. This room knows the clients of the launcher
//! and of the init, the store and the images; it does not know HTTP.

pub mod create;
pub mod driver;
mod error;
mod limits;
pub mod recover;
pub mod registry;
mod run;
mod session;
pub mod state;
mod token;
mod usage;

pub use create::Deps;
pub use error::SessionError;
pub use limits::Ceilings;
pub use registry::{NewSession, Registry};
pub use session::Session;
pub use token::{Key, constant_time_eq};
