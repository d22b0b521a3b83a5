//! The commands, by group. Each returns the exit status.

mod copy;
mod doctor;
mod du;
mod key;
mod list;
mod manual;
mod run;
mod service;
mod session;
mod token;

use crate::address::{self, Address};
use crate::args::{self, Args, Command};
use crate::client::Client;
use crate::error::Failure;

/// Do what the command line says.
pub async fn run(args: Args) -> Result<u8, Failure> {
    // Nobody is asked for these, so that nothing need be said about where the service is.
    if let Command::Token(args::Token { command }) = &args.command {
        return token::token(command).map(|()| 0);
    }
    if let Command::Completions { shell } = args.command {
        return manual::completions(shell).map(|()| 0);
    }
    let env = |name: &str| std::env::var(name).ok();
    let address = Address::choose(&args.global, env)?;
    let token = address::token(&args.global, env)?;
    let mut client = Client::new(address, token);
    let json = args.global.json;
    match args.command {
        Command::Open(open) => session::open(&mut client, open, json).await.map(|()| 0),
        Command::Close(close) => session::close(&mut client, &close, json).await.map(|()| 0),
        Command::Sessions(sessions) => session::list(&mut client, &sessions, json).await.map(|()| 0),
        Command::Run(run) => run::run(&mut client, run, json).await,
        Command::Ls(ls) => list::list(&mut client, ls, json).await.map(|()| 0),
        Command::Cp(cp) => copy::copy(&mut client, &cp, json).await,
        Command::Key(asked) => key::key(&mut client, asked, json).await.map(|()| 0),
        Command::Du => du::du(&mut client, json).await.map(|()| 0),
        Command::Images => service::images(&mut client, json).await.map(|()| 0),
        Command::Policy => service::policy(&mut client, json).await.map(|()| 0),
        Command::Doctor => doctor::doctor(&mut client, json).await,
        Command::Token(args::Token { command }) => token::token(&command).map(|()| 0),
        Command::Completions { shell } => manual::completions(shell).map(|()| 0),
        Command::Manual => manual::manual().map(|()| 0),
    }
}
