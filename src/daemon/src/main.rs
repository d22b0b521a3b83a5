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
//! | [`files`] | files of a workspace, off the host | sessions, sandboxes |
//! | [`runtime`] | clients of `sandboxd-launch` and of each init | what they are asked for |
//! | [`operations`] | what was done in sessions | HTTP, sandboxes |
//! | [`store`] | SQLite | everything else |
//! | [`config`] | the settings | what they are for |
//! | [`serve`] | wires the rooms together and listens | |
//! | [`dev`] | starts launcher and service for development | |
//! | [`fail`] | where chaos tests kill the service; any room may call it | everything |
//! | `fuzzing` | what the fuzz targets call; in no program | |

mod api;
mod archive;
mod catalog;
mod config;
mod dev;
mod document;
mod fail;
mod files;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
mod image;
mod operations;
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
    serve::log::start();
    let result = match args.command {
        Some(Command::Dev(dev)) => dev::run(dev).map_err(|error| chain(&error)),
        Some(Command::Document { task }) => return document::main(task),
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
