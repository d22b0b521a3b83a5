//! What may be written on the command line.

use std::path::PathBuf;

use clap::{Parser, Subcommand};
use wire::id::{SessionId, Tenant};
use wire::key::Scope;

const AFTER: &str = "\
Where the service is: --url or --socket, else SANDBOXD_URL, else SANDBOXD_SOCKET, else the socket \
/run/sandboxd/sandboxd.sock. The token: --token-file, else SANDBOXD_TOKEN; never an argument, which \
every user of the machine could read. The service token opens everything; a session's own token \
reaches that session.

Exit status: 0 done; 1 done in part; 2 usage; 65 refused as invalid or in conflict; 66 no such session or file; \
69 the service cannot be reached or failed; 74 a local file; 75 no room now, try again; \
76 not an answer of this service; 77 token missing or refused; 130 interrupted. \
run: the command's own, 124 past its deadline, 125 over the output limit. \
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
#[derive(Debug, clap::Args)]
pub struct Global {
    /// The service's address over TCP
    #[arg(long, global = true, value_name = "http://HOST:PORT", conflicts_with = "socket")]
    pub url: Option<String>,
    /// The service's unix socket
    #[arg(long, global = true, value_name = "PATH")]
    pub socket: Option<PathBuf>,
    /// A file that holds the token
    #[arg(long, global = true, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// Print the API's JSON, one compact document
    #[arg(long, global = true)]
    pub json: bool,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Open a session and print its id
    Open(Open),
    /// Run a command in a session, with its output and exit status
    Run(Run),
    /// List a directory of a session, or one file
    Ls(Ls),
    /// Copy a file or a directory into a session or out of it
    Cp(Cp),
    /// Close a session; its files stay unless --purge
    Close(Close),
    /// List the open sessions
    Sessions(Sessions),
    /// Print the id of the session that a key means
    Key(Key),
    /// Show what sessions use of the disk, asleep and closed ones too
    Du,
    /// List the local images
    Images,
    /// Show everything that is in force
    Policy,
    /// Say what the service's host has and lacks
    Doctor,
    /// Make a token for the service
    Token(Token),
    /// Print what a shell sources to complete command lines of this program
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Print the manual page
    #[command(hide = true)]
    Manual,
}

/// `token`.
#[derive(Debug, clap::Args)]
pub struct Token {
    /// What to do
    #[command(subcommand)]
    pub command: TokenCommand,
}

/// What `token` does.
#[derive(Debug, Subcommand)]
pub enum TokenCommand {
    /// Print a new one, of 244 random bits; or write it to a file that only its owner can read
    New {
        /// The file; one that is there is not replaced
        #[arg(long, value_name = "PATH")]
        file: Option<PathBuf>,
    },
}

/// `open`.
#[derive(Debug, clap::Args)]
pub struct Open {
    /// The session's name; without it the service makes one up
    #[arg(long, value_name = "ID", value_parser = session_id)]
    pub id: Option<SessionId>,
    /// An allowed runtime; without it the service's default
    #[arg(long, value_name = "ALIAS")]
    pub runtime: Option<String>,
    /// Whom the session is counted against
    #[arg(long, value_parser = tenant)]
    pub tenant: Option<Tenant>,
    /// Attach if a session of that name is open, else open it
    #[arg(long, requires = "id")]
    pub reuse: bool,
    /// Attach to a session or to its kept files; never create
    #[arg(long, requires = "id")]
    pub attach: bool,
}

/// `key`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Whoever sends the same key to POST /sessions gets this session. A scope needs its own subject: \
--run, --conversation, --channel or --user; the agent is part of the key in the scopes channel, user and agent. \
Without --host the service is asked who it is, which takes the service token."
)]
pub struct Key {
    /// What is shared: run, conversation, channel, user or agent
    #[arg(long, value_parser = scope)]
    pub scope: Scope,
    /// Whose it is
    #[arg(long)]
    pub organization: String,
    /// The agent
    #[arg(long)]
    pub agent: String,
    /// One run of the agent
    #[arg(long)]
    pub run: Option<String>,
    /// One conversation
    #[arg(long)]
    pub conversation: Option<String>,
    /// One person
    #[arg(long)]
    pub user: Option<String>,
    /// One channel of a messenger
    #[arg(long)]
    pub channel: Option<String>,
    /// The installation, as `host_id` of its policy names it
    #[arg(long, value_name = "HOST_ID")]
    pub host: Option<String>,
}

/// `run`.
#[derive(Debug, clap::Args)]
pub struct Run {
    /// The session
    #[arg(value_parser = session_id)]
    pub session: SessionId,
    /// A variable of the command; may be repeated
    #[arg(long, value_name = "NAME=VALUE", value_parser = variable)]
    pub env: Vec<(String, String)>,
    /// Deadline in seconds; the service has one of its own as well
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub timeout: Option<f64>,
    /// Program and arguments, after `--`, passed literally: no shell unless you name one
    #[arg(last = true, required = true, value_name = "ARGV")]
    pub argv: Vec<String>,
}

/// `ls`.
#[derive(Debug, clap::Args)]
pub struct Ls {
    /// The session
    #[arg(value_parser = session_id)]
    pub session: SessionId,
    /// Path inside; a relative one starts at the work directory
    #[arg(default_value = ".")]
    pub path: String,
}

/// `cp`.
#[derive(Debug, clap::Args)]
#[command(after_help = "One side is SESSION:PATH, the other a local path, or - for standard input or output. \
A directory is copied whole; links in it are left out, and modes are not kept. An existing directory as the target \
takes the source under its own name. A local name with a colon: write ./NAME.")]
pub struct Cp {
    /// SESSION:PATH, a local path, or -
    pub source: String,
    /// SESSION:PATH, a local path, or -
    pub target: String,
}

/// `close`.
#[derive(Debug, clap::Args)]
pub struct Close {
    /// The session
    #[arg(value_parser = session_id)]
    pub session: SessionId,
    /// Delete its files as well
    #[arg(long)]
    pub purge: bool,
}

/// `sessions`.
#[derive(Debug, clap::Args)]
pub struct Sessions {
    /// Measure what each uses
    #[arg(long)]
    pub usage: bool,
}

fn scope(text: &str) -> Result<Scope, String> {
    let names = Scope::ALL.map(Scope::name).join(", ");
    Scope::parse(text).ok_or_else(|| format!("one of {names}"))
}

fn session_id(text: &str) -> Result<SessionId, String> {
    SessionId::parse(text).map_err(|e| e.to_string())
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
            "sandboxctl open --attach",
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
