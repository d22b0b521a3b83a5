//! The commands, by group. Each returns the exit status.

mod catalog;
mod context;
mod copy;
mod doctor;
mod du;
mod file;
mod images;
mod key;
mod line;
mod list;
mod logs;
mod manual;
mod opening;
mod operations;
mod policy;
mod prepare;
mod run;
mod service;
mod session;
mod token;
mod top;
mod workspaces;

use crate::args::{Args, Command, Global};
use crate::caller;
use crate::client::Client;
use crate::error::Failure;
use crate::routes;
use crate::target::{Env, Target};

/// Do what the command line says.
pub async fn run(args: Args) -> Result<u8, Failure> {
    let env: Env<'_> = &|name| std::env::var_os(name);
    let command = match alone(args.command, &args.global, env) {
        Alone::Done(done) => return done.map(|()| 0),
        Alone::Not(command) => command,
    };
    let Target { address, token, withheld, .. } = Target::choose(&args.global, env)?;
    let mut client = Client::new(address, token).on_behalf_of(caller::choose(&args.global, env)?);
    let done = ask(command, &mut client, args.global.json).await;
    if let (Err(Failure::Refused { status: 401 | 403, .. }), Some(why)) = (&done, withheld) {
        eprintln!("sandboxctl: {why}");
    }
    done
}

/// A command that asks nobody, which is done; or another.
enum Alone {
    Done(Result<(), Failure>),
    Not(Command),
}

/// Do what no service is asked for, so that nothing need be said about where one is.
fn alone(command: Command, global: &Global, env: Env<'_>) -> Alone {
    Alone::Done(match command {
        Command::Token(token) => token::token(&token.command),
        Command::Completions { shell } => manual::completions(shell),
        Command::Manual => manual::manual(),
        Command::Routes => routes::routes(global.json),
        Command::Catalog(asked) => match catalog::alone(&asked.command, global.json) {
            Some(done) => done,
            None => return Alone::Not(Command::Catalog(asked)),
        },
        Command::Context(context) => context::context(global, context.command, env),
        other => return Alone::Not(other),
    })
}

/// Do what a service is asked for.
pub async fn ask(command: Command, client: &mut Client, json: bool) -> Result<u8, Failure> {
    let done = match command {
        Command::Run(run) => return run::run(client, run, json).await,
        Command::Shell(shell) => return line::shell(client, shell, json).await,
        Command::Cp(cp) => return copy::copy(client, &cp, json).await,
        Command::Workspaces(asked) => return workspaces::workspaces(client, asked.command, json).await,
        Command::Prepare(prepare) => return prepare::prepare(client, prepare, json).await,
        Command::Doctor => return doctor::doctor(client, json).await,
        Command::Open(open) => session::open(client, open, json).await,
        Command::Get(get) => session::get(client, &get, json).await,
        Command::Hibernate(asked) => session::hibernate(client, &asked, json).await,
        Command::Wake(asked) => session::wake(client, &asked, json).await,
        Command::Close(close) => session::close(client, &close, json).await,
        Command::Sessions(sessions) => session::list(client, &sessions, json).await,
        Command::Ps => top::ps(client, json).await,
        Command::Top(asked) => top::top(client, asked, json).await,
        Command::Key(asked) => key::key(client, asked, json).await,
        Command::Stop(stop) => run::stop(client, stop, json).await,
        Command::Logs(logs) => logs::logs(client, logs, json).await,
        Command::Events(asked) => operations::events(client, asked, json).await,
        Command::Operations(asked) => operations::operations(client, asked, json).await,
        Command::Ls(ls) => list::list(client, ls, json).await,
        Command::Cat(cat) => file::cat(client, cat, json).await,
        Command::Write(write) => file::write(client, write, json).await,
        Command::Stat(stat) => file::stat(client, stat, json).await,
        Command::Realpath(asked) => file::realpath(client, asked, json).await,
        Command::Mkdir(mkdir) => file::mkdir(client, mkdir, json).await,
        Command::Rm(rm) => file::remove(client, rm, json).await,
        Command::Du => du::du(client, json).await,
        Command::Catalog(asked) => catalog::catalog(client, asked.command, json).await,
        Command::Images(asked) => images::images(client, asked.command, json).await,
        Command::Policy(policy) => policy::policy(client, policy.command, json).await,
        Command::Health => service::health(client, json).await,
        Command::Metrics => service::metrics(client, json).await,
        Command::Service => service::index(client, json).await,
        Command::Openapi(asked) => service::describe(client, asked.html, json).await,
        Command::Token(_) | Command::Completions { .. } | Command::Manual | Command::Routes | Command::Context(_) => {
            Ok(())
        }
    };
    done.map(|()| 0)
}
