//! `sandboxctl`: the command line of sandboxd. argv in, HTTP, stdout.
//!
//! It knows the HTTP contract (`wire::api`) and nothing else of the service: whatever it does, any
//! other client can do.
//!
//! | module | what it does |
//! |---|---|
//! | [`args`] | what may be written on the command line |
//! | [`address`] | where the service is, and with which token it is asked |
//! | [`client`], [`body`] | one HTTP exchange after another, over TCP or a unix socket |
//! | [`remote`], [`shell`] | a session's files: by the file routes, or by commands where the service says so |
//! | [`commands`] | one module for each group of commands |
//! | [`output`] | tables, sizes, ages; what a sandbox wrote is made harmless before a terminal sees it |
//! | [`error`] | what can go wrong, what to do about it, and the exit status |

mod address;
mod args;
mod body;
mod client;
mod commands;
mod error;
mod output;
mod remote;
mod shell;
#[cfg(test)]
mod testing;

use std::process::ExitCode;

use clap::Parser;

use crate::args::Args;
use crate::error::Failure;

fn main() -> ExitCode {
    let args = Args::parse();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let done = match runtime {
        Ok(runtime) => runtime.block_on(commands::run(args)),
        Err(source) => Err(Failure::local("start", "the event loop", source)),
    };
    match done {
        Ok(status) => ExitCode::from(status),
        Err(failure) => {
            failure.report();
            ExitCode::from(failure.status())
        }
    }
}
