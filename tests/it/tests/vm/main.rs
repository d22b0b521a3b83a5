//! The guest's part of the black-box tests: what needs a systemd host with every cgroup controller. `make vm` builds this
//! and runs it in a machine (`tests/vm`); each test says so and does nothing elsewhere.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]

mod builds;
mod clocks;
mod freeze;
mod guest;
mod limits;
mod machine;
mod memory;
mod processors;
mod quotas;
