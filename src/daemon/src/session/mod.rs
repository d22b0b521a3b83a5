//! Sessions: who has one, what state it is in, and what is done to it.
//!
//! ```text
//!              admitted                      Close (from anywhere)
//!   (nothing) ─────────► Opening                 └──► Closing ──► (nothing)
//!                          │ Launched
//!                          ▼        Freeze
//!                       Running ─────────────► Frozen
//!                        ▲ │ │ ◄──Launched──┐     │ │ Wake
//!               Launched │ │ │ SandboxEnded └─ Waking ◄──┘
//!                        │ │ └──────────┐      │  ▲
//!                        │ │ Hibernate  ▼      │  │ Wake
//!                        │ └──► Dozing ──► Asleep─┘
//!                        └──────────────────────── (LaunchFailed: Asleep again)
//! ```
//!
//! - **Opening**: admitted and counted; a row says so. Nobody was told yet: whatever fails here leaves nothing behind.
//! - **Running**: it was answered for. It has a sandbox.
//! - **Frozen**: its processes are held still (`cgroup.freeze`), memory is given back where there is swap. They go on
//!   with the next command, background processes included.
//! - **Dozing**: its sandbox is being ended. Its place is given away already; the newcomer waits for it.
//! - **Asleep**: it has no sandbox; row, token, workspace and, for `container_ttl`, write layer are kept. File operations
//!   go on off the host, a command wakes it.
//! - **Waking**: a sandbox is being started again; who asks meanwhile waits for the same one.
//! - **Closing**: no request reaches it; its sandbox, write layer and row are being removed.
//!
//! [`state`] decides (pure), one [`driver`] task per session acts, [`registry`] admits and finds,
//! [`run`] runs commands without any of them, and [`reach`] does to files what only a sandbox can resolve. This room
//! knows the clients of the launcher and of the init, the store and the images; it does not know HTTP.

mod census;
pub mod create;
pub mod driver;
mod error;
pub mod expiry;
mod handle;
mod images;
mod limits;
mod network;
mod policy;
pub mod quota;
mod quota_watch;
mod reach;
pub mod recover;
pub mod registry;
mod run;
mod running;
pub mod state;
mod story;
mod token;
mod usage;
mod workspaces;

pub use crate::image::{Form, ManageError, Pulling};
pub use census::{Census, Tallies};
pub use create::{Deps, OnStopped};
pub use error::SessionError;
pub use handle::{Session, now};
pub use limits::Ceilings;
pub use network::Networks;
pub use policy::{Policy, PolicyError};
pub use quota::Quotas;
pub use quota_watch::Watch;
pub use reach::{Payload, Reached};
pub use registry::{NewSession, Registry};
pub use run::{Asked, Piece, Ran};
pub use running::OnFound;
pub use token::{Key, constant_time_eq};
pub use workspaces::WorkspaceRow;
