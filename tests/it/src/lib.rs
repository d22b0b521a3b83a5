//! The harness of the black-box tests: it starts the real binaries, speaks to them over real sockets, and
//! looks at the host from outside.
//!
//! | module | what it is |
//! |---|---|
//! | [`daemon`] | an instance of `sandboxd dev`: one that tests share, or one of a test's own |
//! | [`session`] | a session of it, and what a command answered |
//! | [`http`] | a small blocking HTTP client that may also misbehave |
//! | [`launcher`] | somebody who speaks to the launcher's socket |
//! | [`pair`] | launcher and service as two programs, each of which can be killed |
//! | [`load`] | clients that know what was acknowledged, and a run of kills under them |
//! | [`world`] | a host and an internet, network namespaces of a test's own |
//! | [`host`] | what of ours is on this host: processes, mounts, cgroups, networks, files |
//!
//! A harness fails by panicking, with what it saw.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::missing_panics_doc)]

pub mod daemon;
pub mod host;
pub mod http;
pub mod launcher;
pub mod load;
pub mod pair;
pub mod session;
pub mod world;

pub use daemon::{Daemon, shared};
pub use http::{Client, Response};
pub use session::{Outcome, Session};
