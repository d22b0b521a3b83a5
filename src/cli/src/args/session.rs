//! The arguments of what is done with sessions and in them.

use wire::api::CreateSessionRequest;
use wire::id::{RequestId, RunId, SessionId, Tenant};
use wire::key::{Key, Scope};

use super::{count, moment, request, scope, seconds, session_id, tenant, variable};

/// `open`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "A session is named by --id, by a key (--scope and what belongs to it: see `key`), or by the service."
)]
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
    #[arg(long)]
    pub reuse: bool,
    /// Attach to a session or to its kept files; never create
    #[arg(long)]
    pub attach: bool,
    /// What is shared: run, conversation, channel, user or agent
    #[arg(long, value_parser = scope, conflicts_with = "id", requires_all = ["organization", "agent"])]
    pub scope: Option<Scope>,
    /// Whose it is
    #[arg(long, requires = "scope")]
    pub organization: Option<String>,
    /// The agent
    #[arg(long, requires = "scope")]
    pub agent: Option<String>,
    /// One run of the agent
    #[arg(long, requires = "scope")]
    pub run: Option<String>,
    /// One conversation
    #[arg(long, requires = "scope")]
    pub conversation: Option<String>,
    /// One person
    #[arg(long, requires = "scope")]
    pub user: Option<String>,
    /// One channel of a messenger
    #[arg(long, requires = "scope")]
    pub channel: Option<String>,
}

impl Open {
    /// The request's body.
    ///
    /// # Errors
    /// In words: what is wrong with the key, or that there is nothing to attach to.
    pub fn request(self) -> Result<CreateSessionRequest, String> {
        let Self { id, runtime, tenant, reuse, attach, scope, organization, agent, run, conversation, user, channel } =
            self;
        let key = match (scope, organization, agent) {
            (Some(scope), Some(organization), Some(agent)) => {
                let key = Key { scope, organization, agent, run, conversation, user, channel };
                key.check().map_err(|error| error.to_string())?;
                Some(key)
            }
            _ => None,
        };
        if (reuse || attach) && id.is_none() && key.is_none() {
            return Err("--reuse and --attach need --id or a key: a new name is in use by nobody".to_owned());
        }
        Ok(CreateSessionRequest { session_id: id, key, runtime, tenant, reuse, attach })
    }
}

/// `key`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Whoever sends the same key to POST /sessions gets this session. A scope needs its own subject: \
--run, --conversation, --channel or --user; the agent is part of the key in the scopes channel, user and agent. \
Without --host the service is asked who it is, which takes the service token."
)]
pub struct KeyOf {
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

/// `get`.
#[derive(Debug, clap::Args)]
pub struct Get {
    /// The session
    #[arg(value_parser = session_id)]
    pub session: SessionId,
    /// Measure what it uses
    #[arg(long)]
    pub usage: bool,
}

/// `run`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Output is shown as it comes. An interrupt (Ctrl-C), a SIGTERM or a hang-up stops the command in the sandbox \
with all that it started; so does the end of whoever reads the output. With --json the answer is one document, at the end."
)]
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
    /// The run's name for `stop`: 32 hex digits; without it a random one
    #[arg(long, value_name = "RUN", value_parser = run_id)]
    pub run_id: Option<RunId>,
    /// Program and arguments, after `--`, passed literally: no shell unless you name one
    #[arg(last = true, required = true, value_name = "ARGV")]
    pub argv: Vec<String>,
}

/// `stop`.
#[derive(Debug, clap::Args)]
pub struct Stop {
    /// The session
    #[arg(value_parser = session_id)]
    pub session: SessionId,
    /// The run, as `run --run-id` or another client named it
    #[arg(value_parser = run_id)]
    pub run: RunId,
}

/// `shell`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Each line is a process of its own (sh -c): the working directory and exported variables are \
carried from one to the next; functions, aliases, other variables, shell options and jobs are not. It has no terminal: \
programs that want one do not work, and a line reads nothing. Ctrl-C stops the line that runs; Ctrl-D or `exit [STATUS]` ends \
the shell, with the status of the last line.")]
pub struct ShellIn {
    /// The session
    #[arg(value_parser = session_id)]
    pub session: SessionId,
    /// A program of the sandbox that takes `-c` and the syntax of sh(1)
    #[arg(long, default_value = "sh", value_name = "PROGRAM")]
    pub program: String,
    /// Deadline of each line in seconds; the service has one of its own as well
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub timeout: Option<f64>,
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

/// `hibernate` and `wake`.
#[derive(Debug, clap::Args)]
pub struct OneSession {
    /// The session
    #[arg(value_parser = session_id)]
    pub session: SessionId,
}

/// `sessions`.
#[derive(Debug, clap::Args)]
pub struct Sessions {
    /// Measure what each uses
    #[arg(long)]
    pub usage: bool,
}

/// `top`.
#[derive(Debug, clap::Args)]
pub struct Top {
    /// Seconds between two looks, 0.5 to 3600
    #[arg(long, default_value = "2", value_parser = interval)]
    pub interval: f64,
    /// Show one screen and end
    #[arg(long)]
    pub once: bool,
}

/// `logs`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "What was done, never contents or output. Of an open session these are its events, for which its own token \
is enough; of all sessions, and of those that are closed, the operations log, for which it takes the service token. With -f it goes on through a restart \
of the service, and ends when the session is closed."
)]
pub struct Logs {
    /// Of this session; without it of all
    #[arg(value_parser = session_id)]
    pub session: Option<SessionId>,
    /// Go on with what is done from now on
    #[arg(long, short)]
    pub follow: bool,
    /// Begin with the last so many, 0 to 200
    #[arg(long, short = 'n', default_value = "50", value_name = "NUMBER", value_parser = clap::value_parser!(u64).range(0..=200))]
    pub lines: u64,
    /// Seconds between two looks, 0.5 to 3600
    #[arg(long, default_value = "1", value_name = "SECONDS", value_parser = interval)]
    pub interval: f64,
    /// Those that failed alone
    #[arg(long)]
    pub failed: bool,
}

/// `events`.
#[derive(Debug, clap::Args)]
pub struct Events {
    /// The session
    #[arg(value_parser = session_id)]
    pub session: SessionId,
    /// Only those with a higher number
    #[arg(long, default_value = "0", value_name = "NUMBER", value_parser = count)]
    pub after: u64,
}

/// `operations`.
#[derive(Debug, clap::Args)]
pub struct Operations {
    /// Of this session
    #[arg(long, value_parser = session_id)]
    pub session: Option<SessionId>,
    /// Of this tenant
    #[arg(long, value_parser = tenant)]
    pub tenant: Option<Tenant>,
    /// Of this name: run, read, write, stat, ls, realpath, mkdir, remove or stop
    #[arg(long, value_name = "NAME")]
    pub op: Option<String>,
    /// Those that failed
    #[arg(long, conflicts_with = "succeeded")]
    pub failed: bool,
    /// Those that did not fail
    #[arg(long)]
    pub succeeded: bool,
    /// Whose name or target holds this text
    #[arg(long, short = 'q', value_name = "TEXT")]
    pub query: Option<String>,
    /// Of the request with this id
    #[arg(long, value_name = "ID", value_parser = request)]
    pub request: Option<RequestId>,
    /// Leave out so many
    #[arg(long, default_value = "0", value_name = "NUMBER", value_parser = count)]
    pub skip: u64,
    /// At most so many, 1 to 500
    #[arg(long, default_value = "50", value_name = "NUMBER", value_parser = clap::value_parser!(u64).range(1..=500))]
    pub limit: u64,
}

fn run_id(text: &str) -> Result<RunId, String> {
    RunId::parse(text).map_err(|e| e.to_string())
}

fn interval(text: &str) -> Result<f64, String> {
    moment(text, 0.5, 3600.0)
}
