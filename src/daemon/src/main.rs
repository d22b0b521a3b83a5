//! `sandboxd`: rents sandboxes to AI agents, one session each.
//!
//! | room | what it does | it does not know |
//! |---|---|---|
//! | [`api`] | HTTP: routes, tokens, validation, statuses | SQLite, the launcher |
//! | [`session`] | admission, state, the sandbox's life, commands | HTTP |
//! | [`archive`] | workspaces that sessions left behind, looked at without a sandbox | HTTP, sessions |
//! | [`document`] | text of PDFs and thumbnails, each in a child process | where they come from |
//! | [`image`] | pulls, bootstraps and builds root file systems | sessions |
//! | [`catalog`] | the runtimes that are offered | images |
//! | [`doctor`] | what this host has and lacks | sessions, HTTP |
//! | [`files`] | files of a workspace, off the host | sessions, sandboxes |
//! | [`runtime`] | clients of `sandboxd-launch` and of each init | what they are asked for |
//! | [`dashboard`] | the page for people, as text | everything else |
//! | [`operations`] | what was done in sessions | HTTP, sandboxes |
//! | [`store`] | SQLite | everything else |
//! | [`config`] | the settings | what they are for |
//! | [`serve`] | wires the rooms together and listens | |
//! | [`dev`] | starts launcher and service for development | |
//! | [`metrics`] | what is counted, for `GET /metrics`; any room may count | everything |
//! | [`request`] | which request a task works for; any room may ask | everything |
//! | [`fail`] | where chaos tests kill the service; any room may call it | everything |
//! | `fuzzing` | what the fuzz targets call; in no program | |

mod api;
mod archive;
mod catalog;
mod clock;
mod config;
mod dashboard;
mod dev;
mod doctor;
mod document;
mod fail;
mod files;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
mod image;
mod metrics;
mod operations;
mod request;
mod resolver;
mod runtime;
mod serve;
mod session;
mod store;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Rents sandboxes to AI agents, one session each.
#[derive(Debug, Parser)]
#[command(name = "sandboxd", version, about)]
struct Args {
    #[command(subcommand)]
    command: Option<Command>,
    /// The configuration file; one that is named must exist.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Start launcher and service together in the foreground, for development and tests.
    Dev(dev::Args),
    /// Print what this host has and lacks, as JSON: for `sandboxctl doctor` where no service answers.
    Doctor,
    /// Make every runtime's image ready, and end: before a deployment. Exit status: 0 all are ready; 1 some are not, and the
    /// last line names them; 2 the configuration cannot be used.
    Prepare,
    /// Read one hostile document on standard input, confined; the service starts this itself.
    #[command(hide = true)]
    Document {
        /// What to do with it.
        task: document::Task,
    },
}

fn main() -> ExitCode {
    let args = Args::parse();
    if let Some(Command::Document { task }) = args.command {
        return document::main(task);
    }
    if let Some(Command::Prepare) = args.command {
        // It says itself how far it is.
        serve::log::start("error");
        return serve::prepare::run(args.config.as_deref());
    }
    serve::log::start("info");
    let result = match args.command {
        Some(Command::Doctor) => return doctor(args.config.as_deref()),
        Some(Command::Dev(dev)) => dev::run(dev).map_err(|error| chain(&error)),
        Some(Command::Document { task }) => return document::main(task),
        Some(Command::Prepare) => return serve::prepare::run(args.config.as_deref()),
        None => serve::run(args.config.as_deref()).map_err(|error| chain(&error)),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("sandboxd: {message}");
            ExitCode::FAILURE
        }
    }
}

fn doctor(config: Option<&std::path::Path>) -> ExitCode {
    use std::io::Write;
    let written = serde_json::to_vec(&serve::doctor(config)).map_err(std::io::Error::from);
    match written.and_then(|report| std::io::stdout().write_all(&report)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

/// An error and its sources, in one line.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}
