//! `sandboxctl`: the command line of sandboxd. argv in, HTTP, stdout.
//!
//! It knows the HTTP contract (`wire::api`) and nothing else of the service: whatever it does, any
//! other client can do.
//!
//! | module | what it does |
//! |---|---|
//! | [`args`] | what may be written on the command line |
//! | [`target`], [`address`], [`config`] | which service is asked, and with which token; contexts |
//! | [`client`], [`body`] | one HTTP exchange after another, over TCP or a unix socket |
//! | [`execute`], [`stream`] | a command in a session, its output as it comes, its end |
//! | [`layout`] | an OCI layout as a directory, from and to the stream that the service knows |
//! | [`remote`], [`shell`] | a session's files: by the file routes, or by commands where the service says so |
//! | [`commands`] | one module for each group of commands |
//! | [`routes`] | which command reaches which route |
//! | [`output`], [`progress`] | tables, sizes, ages, bars; what a sandbox wrote is made harmless before a terminal sees it |
//! | [`error`] | what can go wrong, what to do about it, and the exit status |

mod address;
mod args;
mod body;
mod caller;
mod client;
mod commands;
mod config;
mod error;
mod execute;
mod layout;
mod output;
mod progress;
mod remote;
mod routes;
mod shell;
mod stream;
mod target;
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
        Ok(runtime) => {
            let done = runtime.block_on(commands::run(args));
            // A thread that waits for a terminal or a pipe is not waited for.
            runtime.shutdown_background();
            done
        }
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
