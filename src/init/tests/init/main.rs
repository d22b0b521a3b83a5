//! The real init as PID 1 of real namespaces, in a cgroup of the test's own, driven over its socket.
//! Needs root and cgroup v2. `SANDBOX_INIT` names another build of the init to test, such as the static one.
#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs, reason = "a test reports by failing")]

mod confine;
mod connection;
mod end;
mod ended;
mod files;
mod limits;
mod probe;
mod run;
mod sandbox;
mod speed;
mod sys;
