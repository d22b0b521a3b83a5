//! What may be written on the command line.

mod catalog;
mod file;
mod service;
mod session;

use std::path::PathBuf;

use clap::{Parser, Subcommand};
use wire::id::{RequestId, SessionId, Tenant};
use wire::key::Scope;

pub use catalog::{CatalogCommand, CatalogOf, Export, Written};
pub use file::{Bounds, Cp, Ls, OnePath, Paths, Workspaces, WorkspacesCommand};
pub use service::{
    ContextCommand, ContextOf, ExportForm, ImagesCommand, ImagesOf, OpenApi, PolicyCommand, PolicyOf, Prepare, Token,
    TokenCommand,
};
pub use session::{Close, Events, Get, KeyOf, Logs, OneSession, Open, Operations, Run, Sessions, ShellIn, Stop, Top};

const AFTER: &str = "\
Where the service is: --url, --socket or --context; else SANDBOXD_URL, else SANDBOXD_SOCKET, else SANDBOXCTL_CONTEXT; \
else the context in use (`context use`); else the socket /run/sandboxd/sandboxd.sock.

The token: of the file of --token-file; else, for an address of a context, of the context's file; else SANDBOXD_TOKEN, \
which goes to the address of SANDBOXD_URL or SANDBOXD_SOCKET (or, without these, to that socket) and to no other, so \
not to another --url or --socket. It is never an argument, which every user of the machine could read. The service token opens everything; \
a session's own token reaches that session.

For whom it is asked, --for-agent and --for-run, else SANDBOXCTL_AGENT and SANDBOXCTL_RUN, goes with every request and is in the operations log.

Exit status: 0 done; 1 done in part; 2 usage; 65 refused as invalid or in conflict; 66 no such session or file; \
69 the service cannot be reached or failed; 74 a local file; 75 no room now, try again; \
76 not an answer of this service; 77 token missing or refused; 130 interrupted. \
run and shell: the command's own, 124 past its deadline, 125 over the output limit. \
doctor: 0 fine, 1 warnings, 2 errors.";

/// Opens sandboxes, runs commands in them and moves files in and out.
#[derive(Debug, Parser)]
#[command(name = "sandboxctl", version, after_help = AFTER, max_term_width = 110)]
pub struct Args {
    /// Where and how.
    #[command(flatten)]
    pub global: Global,
    /// What.
    #[command(subcommand)]
    pub command: Command,
}

/// What every command takes.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct Global {
    /// The service's address over TCP
    #[arg(long, global = true, value_name = "http://HOST:PORT", conflicts_with_all = ["socket", "context"])]
    pub url: Option<String>,
    /// The service's unix socket
    #[arg(long, global = true, value_name = "PATH", conflicts_with = "context")]
    pub socket: Option<PathBuf>,
    /// A context's address and token
    #[arg(long, global = true, value_name = "NAME", value_parser = context_name)]
    pub context: Option<String>,
    /// A file that holds the token
    #[arg(long, global = true, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// The agent for whom it is asked, for the operations log
    #[arg(long, global = true, value_name = "NAME", value_parser = caller)]
    pub for_agent: Option<String>,
    /// That agent's run, likewise
    #[arg(long, global = true, value_name = "NAME", value_parser = caller)]
    pub for_run: Option<String>,
    /// Print the API's JSON, one compact document
    #[arg(long, global = true)]
    pub json: bool,
}

/// The commands. Each group stands together: sessions, commands in them, their files, what is kept, the service, this program.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Open a session and print its id
    Open(Open),
    /// Show one session
    Get(Get),
    /// List the open sessions
    Sessions(Sessions),
    /// List the open sessions with what they use
    Ps,
    /// Show what the open sessions use, again and again
    Top(Top),
    /// End a session's processes and keep the session; its next command starts it again
    Hibernate(OneSession),
    /// Start a session's sandbox again before a command needs it
    Wake(OneSession),
    /// Close a session; its files stay unless --purge
    Close(Close),
    /// Print the id of the session that a key means
    Key(KeyOf),
    /// Run a command in a session, with its output and exit status
    Run(Run),
    /// Stop a command of a session, with all that it started
    Stop(Stop),
    /// Run commands in a session, line by line
    Shell(ShellIn),
    /// Show what was done in a session, or in all
    Logs(Logs),
    /// List the events of an open session, as the service answers them
    Events(Events),
    /// Search the operations log, newest first
    Operations(Operations),
    /// List a directory of a session, or one file
    Ls(Ls),
    /// Print files of a session
    Cat(Paths),
    /// Write standard input to a file of a session
    Write(OnePath),
    /// Copy a file or a directory into a session or out of it
    Cp(Cp),
    /// Show what is at a path of a session
    Stat(OnePath),
    /// Print a path of a session with every link resolved
    Realpath(OnePath),
    /// Make directories in a session, with their parents
    Mkdir(Paths),
    /// Remove files, links, or directories with all that is in them
    Rm(Paths),
    /// Look at the workspaces that sessions left behind, or delete one
    Workspaces(Workspaces),
    /// Show what sessions use of the disk, asleep and closed ones too
    Du,
    /// List the local images, fetch, remove, import and export them
    Images(ImagesOf),
    /// Look at the runtimes that are offered, and at catalogue files
    Catalog(CatalogOf),
    /// Make runtimes ready, so that their first session need not wait
    Prepare(Prepare),
    /// Show what is in force, or change it
    Policy(PolicyOf),
    /// Say what the service's host has and lacks, and how to mend it
    #[command(
        after_help = "Exit status: 0 all is well, 1 there are warnings, 2 there are errors. Where no service answers on this machine, \
which is an error, the rest is looked at by the installed sandboxd without it."
    )]
    Doctor,
    /// Say whether the service works, and how much of it is in use
    Health,
    /// Print the service's figures as Prometheus reads them; with --json, an object of them
    Metrics,
    /// Show what the service is and which routes it has
    Service,
    /// Print the description of the service's API
    Openapi(OpenApi),
    /// Make a token for the service
    Token(Token),
    /// Name services, so that they can be asked by name
    Context(ContextOf),
    /// Print what a shell sources to complete command lines of this program
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Print the manual page
    #[command(hide = true)]
    Manual,
    /// Print which command reaches which route of the API
    #[command(hide = true)]
    Routes,
}

fn scope(text: &str) -> Result<Scope, String> {
    let names = Scope::ALL.map(Scope::name).join(", ");
    Scope::parse(text).ok_or_else(|| format!("one of {names}"))
}

fn session_id(text: &str) -> Result<SessionId, String> {
    SessionId::parse(text).map_err(|e| e.to_string())
}

fn caller(text: &str) -> Result<String, String> {
    crate::caller::name(text).map(str::to_owned)
}

fn request(text: &str) -> Result<RequestId, String> {
    RequestId::parse(text).map_err(|e| e.to_string())
}

fn tenant(text: &str) -> Result<Tenant, String> {
    Tenant::parse(text).map_err(|e| e.to_string())
}

fn variable(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err("write NAME=VALUE".to_owned()),
    }
}

fn count(text: &str) -> Result<u64, String> {
    let number = text.parse().ok().filter(|number| i64::try_from(*number).is_ok());
    number.ok_or_else(|| "a whole number, 0 or more".to_owned())
}

fn context_name(text: &str) -> Result<String, String> {
    crate::config::name(text).map(str::to_owned)
}

fn moment(text: &str, least: f64, most: f64) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (least..=most).contains(&seconds) => Ok(seconds),
        _ => Err(format!("a number of seconds, {least} to {most}")),
    }
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(seconds) if seconds.is_finite() && seconds > 0.0 => Ok(seconds),
        _ => Err("a number of seconds above 0".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    fn parse(line: &str) -> Result<Args, clap::Error> {
        Args::try_parse_from(line.split_whitespace())
    }

    #[test]
    fn the_definition_is_sound() {
        Args::command().debug_assert();
    }

    #[test]
    fn a_command_keeps_its_own_options() {
        let args = parse("sandboxctl run s1 --env A=b=c --timeout 1.5 -- ls --json -l").unwrap();
        let Command::Run(run) = args.command else { panic!("not run") };
        assert_eq!(run.argv, ["ls", "--json", "-l"]);
        assert_eq!(run.env, [("A".to_owned(), "b=c".to_owned())]);
        assert_eq!(run.timeout, Some(1.5));
        assert!(!args.global.json);
    }

    #[test]
    fn a_session_is_attached_to_by_its_name_or_its_key() {
        let request = |line: &str| match parse(line).unwrap().command {
            Command::Open(open) => open.request(),
            other => panic!("{other:?}"),
        };
        assert!(request("sandboxctl open --attach").is_err() && request("sandboxctl open --reuse").is_err());
        assert!(request("sandboxctl open --attach --id a").unwrap().attach);
        let by_key = request("sandboxctl open --reuse --scope user --organization o --agent b --user u").unwrap();
        assert_eq!(by_key.key.unwrap().user.as_deref(), Some("u"));
        let narrow = request("sandboxctl open --scope user --organization o --agent b");
        assert!(narrow.unwrap_err().contains("user"));
    }

    #[test]
    fn options_go_before_or_after_the_command() {
        for line in ["sandboxctl --json --url http://h:1 images", "sandboxctl images --url http://h:1 --json"] {
            let args = parse(line).unwrap();
            assert!(args.global.json && args.global.url.is_some(), "{line}");
        }
    }

    #[test]
    fn what_makes_no_sense_is_a_usage_error() {
        for line in [
            "sandboxctl",
            "sandboxctl run s1",
            "sandboxctl run s1 ls",
            "sandboxctl run ../x -- ls",
            "sandboxctl run s1 --env =x -- ls",
            "sandboxctl run s1 --timeout 0 -- ls",
            "sandboxctl run s1 --timeout nan -- ls",
            "sandboxctl open --scope run",
            "sandboxctl open --agent a",
            "sandboxctl open --id a --scope agent --organization o --agent b",
            "sandboxctl --for-agent é sessions",
            "sandboxctl operations --request a/b",
            "sandboxctl logs --interval 0.1",
            "sandboxctl logs -n 201",
            "sandboxctl top --interval inf",
            "sandboxctl stop s1 nothex",
            "sandboxctl policy set",
            "sandboxctl policy set max_sessions",
            "sandboxctl context add a/b",
            "sandboxctl workspaces tree",
            "sandboxctl workspaces tree a --depth 0",
            "sandboxctl --context a --url http://h:1 images",
            "sandboxctl key --scope team --organization a --agent b",
            "sandboxctl key --scope agent --agent b",
            "sandboxctl open --id -x",
            "sandboxctl open --token secret",
            "sandboxctl --url http://h:1 --socket /s images",
        ] {
            assert_eq!(parse(line).unwrap_err().exit_code(), 2, "{line}");
        }
    }
}
