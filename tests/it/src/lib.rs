//! The harness of the black-box tests: it starts the real binaries, speaks to them over real sockets, and
//! looks at the host from outside.
//!
//! | module | what it is |
//! |---|---|
//! | [`daemon`] | an instance of `sandboxd dev`: one that tests share, or one of a test's own |
//! | [`session`] | a session of it, and what a command answered |
//! | [`http`] | a small blocking HTTP client that may also misbehave |
//! | [`journal`] | who stands for the journal of systemd |
//! | [`launcher`] | somebody who speaks to the launcher's socket |
//! | [`pair`] | launcher and service as two programs, each of which can be killed |
//! | [`load`] | clients that know what was acknowledged, and a run of kills under them |
//! | [`index`] | what stands before PyPI and npm's registry, and counts |
//! | [`registry`] | a registry of Debian's, images made from Debian's packages, and a proxy that misbehaves |
//! | [`token_service`] | what gives the tokens that a registry wants |
//! | [`world`] | a host and an internet, network namespaces of a test's own |
//! | [`disk`] | a file system of a test's own |
//! | [`quota`] | a session's share of the disk, where the file system enforces it |
//! | [`host`] | what of ours is on this host: processes, mounts, cgroups, networks, files |
//!
//! A harness fails by panicking, with what it saw.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::missing_panics_doc)]

pub mod daemon;
pub mod disk;
pub mod host;
pub mod http;
pub mod index;
pub mod journal;
pub mod launcher;
pub mod load;
pub mod pair;
pub mod quota;
pub mod registry;
pub mod session;
pub mod token_service;
pub mod world;

pub use daemon::{Daemon, shared};
pub use http::{Client, Response};
pub use session::{Outcome, Session};

/// Say, past what the test runner keeps to itself, that a test does not show what it is there for here, and why.
/// `make test` counts these lines.
pub fn skipped(why: &str) {
    use std::io::Write;

    let test = std::thread::current().name().unwrap_or("a test").to_owned();
    let _ = std::io::stderr().write_all(format!("skipped: {test}: {why}\n").as_bytes());
}
