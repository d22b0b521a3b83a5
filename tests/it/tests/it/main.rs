//! The black-box tests: the real binaries through the real API.
//!
//! Most share one instance ([`it::shared`]) and open sessions of their own, so they run at once and in any order.
//! A test that needs a state of the service of its own starts its own instance.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]

mod builds;
mod builds_packages;
mod bursts;
mod catalogues;
mod chaos;
mod cli;
mod cli_context;
mod cli_doctor;
mod cli_logs;
mod cli_run;
mod commands;
mod endings;
mod files;
mod idle;
mod images;
mod input;
mod inside;
mod journal;
mod launcher;
mod layering;
mod layout;
mod layouts;
mod metrics;
mod network;
mod notify;
mod oci;
mod operations;
mod peers;
mod pull_progress;
mod pulls;
mod quota;
mod reach;
mod service;
mod sessions;
mod sleeping;
mod state;
mod tokens;
mod units;
mod workspaces;
