//! The black-box tests: the real binaries through the real API.
//!
//! Most share one instance ([`it::shared`]) and open sessions of their own, so they run at once and in any order.
//! A test that needs a state of the service of its own starts its own instance.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]

mod bursts;
mod chaos;
mod commands;
mod endings;
mod files;
mod input;
mod inside;
mod launcher;
mod layering;
mod layout;
mod network;
mod oci;
mod operations;
mod peers;
mod quota;
mod reach;
mod service;
mod sessions;
mod state;
mod tokens;
mod units;
mod workspaces;
