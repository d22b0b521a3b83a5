//! A client → `sandboxd`: the JSON of the HTTP API.
//!
//! Field names, defaults and meanings are those that existing clients of the contract
//! rely on; additions are optional fields. Times are Unix seconds as floats,
//! sizes bytes, unless a field says otherwise. Every answer that is not 2xx is an [`ErrorBody`].

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::id::{RunId, SessionId, Tenant};
use crate::key::Key;

/// Header that carries the service token or a session's token.
pub const TOKEN_HEADER: &str = "x-sandbox-token";
/// Header that carries the id of a request, made by the service unless the client named one.
pub const REQUEST_ID_HEADER: &str = "x-request-id";
/// Optional header of the routes that work in a session: the agent on whose behalf, for the operations log.
/// 1 to [`CALLER_MAX`] printable ASCII characters.
pub const AGENT_HEADER: &str = "x-sandbox-agent";
/// Optional header, likewise: the agent's run.
pub const RUN_HEADER: &str = "x-sandbox-run";
/// Longest [`AGENT_HEADER`] and [`RUN_HEADER`], in characters.
pub const CALLER_MAX: usize = 128;
/// Combined output of a command at which it is stopped, in bytes.
pub const MAX_RUN_OUTPUT: u64 = 10 * 1024 * 1024;
/// What is kept of each stream of a command that was stopped, in bytes.
pub const STOPPED_OUTPUT: usize = 64 * 1024;

macro_rules! wire_type {
    ($(#[$meta:meta])* pub $kind:ident $name:ident $body:tt) => {
        $(#[$meta])*
        #[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
        pub $kind $name $body
    };
}

wire_type! {
    /// Body of `POST /sessions`. Names a runtime of the allowlist and nothing else about the sandbox.
    ///
    /// ```
    /// let body = r#"{"session_id": "chat-7", "runtime": "python", "tenant": "acme", "reuse": true}"#;
    /// let request: wire::api::CreateSessionRequest = serde_json::from_str(body).unwrap();
    /// assert!(request.reuse && !request.attach);
    /// ```
    #[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
    #[serde(default)]
    pub struct CreateSessionRequest {
        /// Name of the session; absent: `s-` and 16 hex digits.
        #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, pattern = "^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"))]
        pub session_id: Option<SessionId>,
        /// Who is to share the session, instead of its name: the service derives that. Ours.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub key: Option<Key>,
        /// Alias of an allowed runtime; absent: the default one.
        pub runtime: Option<String>,
        /// Whom it is counted against.
        #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, pattern = "^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"))]
        pub tenant: Option<Tenant>,
        /// Attach if a session of that name is open, else open it.
        pub reuse: bool,
        /// Attach, never create.
        pub attach: bool,
    }
}

wire_type! {
    /// Answer to `POST /sessions`.
    #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
    pub struct SessionCreated {
        /// The session.
        pub session: SessionInfo,
        /// Its token, worth this session only.
        pub token: String,
    }
}

wire_type! {
    /// One session as it can be seen from outside.
    #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
    pub struct SessionInfo {
        /// Its name.
        #[cfg_attr(feature = "openapi", schema(value_type = String))]
        pub session_id: SessionId,
        /// Alias of its runtime.
        pub runtime: String,
        /// Whom it is counted against.
        #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
        pub tenant: Option<Tenant>,
        /// Whether it holds a sandbox that answers.
        pub alive: bool,
        /// Whether it holds a sandbox.
        pub state: SessionState,
        /// When it was opened.
        pub created_at: f64,
        /// When it was last used.
        pub last_activity: f64,
        /// Seconds since then.
        pub idle_seconds: f64,
        /// What it uses; null unless asked for.
        pub usage: Option<SessionUsage>,
        /// How much of it is there now. Ours.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub tier: Option<Tier>,
    }
}

wire_type! {
    /// Whether a session holds a sandbox.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum SessionState {
        /// It does.
        Running,
        /// It was put to sleep; its next command wakes it. Token, events and files are kept.
        Hibernated,
    }
}

wire_type! {
    /// How much of a session is there: each tier gives back what the one before it holds.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum Tier {
        /// Its processes run.
        Running,
        /// Its processes are held still; a request lets them go on.
        Frozen,
        /// Its processes are gone; what it installed is kept. A command starts it again.
        Stopped,
        /// Its files are kept. A command starts it anew.
        Files,
    }
}

wire_type! {
    /// What a sandbox uses now.
    #[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
    pub struct SessionUsage {
        /// Memory in use.
        pub memory_bytes: Option<u64>,
        /// Its ceiling.
        pub memory_limit_bytes: Option<u64>,
        /// CPU time per wall time since the last reading, 100 for one whole CPU.
        pub cpu_percent: Option<f64>,
        /// Processes.
        pub pids: Option<u64>,
    }
}

wire_type! {
    /// Answer to `GET /sessions`.
    #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
    pub struct SessionList {
        /// Every open session, oldest first.
        pub sessions: Vec<SessionInfo>,
        /// `max_sessions`.
        pub limit: Option<u64>,
        /// `max_open_sessions`.
        pub open_limit: Option<u64>,
        /// `max_sessions_per_tenant`.
        pub tenant_limit: Option<u64>,
    }
}

wire_type! {
    /// One operation on a session. Never file contents, never a command's output.
    #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
    pub struct SessionEvent {
        /// Rises by one within the session.
        pub seq: u64,
        /// When it ended.
        pub at: f64,
        /// `run`, `read`, `write`, `stat`, `ls`, `realpath`, `mkdir` or `remove`.
        pub op: String,
        /// The command, shell-quoted, or the path; cut at 200 characters.
        pub target: String,
        /// Whether it succeeded.
        pub ok: bool,
        /// The outcome in the service's own words.
        pub detail: String,
        /// How long it took, in milliseconds.
        pub duration_ms: f64,
    }
}

wire_type! {
    /// Answer to `GET /sessions/{id}/events`.
    #[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
    pub struct SessionEvents {
        /// In order.
        pub events: Vec<SessionEvent>,
        /// Highest number given out; the next `after`.
        pub latest_seq: u64,
    }
}

wire_type! {
    /// One operation on a session, for whoever has to account for it. Kept when the session, its files, its
    /// agent and its tenant are gone. Never file contents, a variable, a command's input or its output. Ours.
    #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
    pub struct Operation {
        /// Rises with every operation of the service.
        pub id: u64,
        /// When it ended.
        pub at: f64,
        /// The session.
        #[cfg_attr(feature = "openapi", schema(value_type = String))]
        pub session: SessionId,
        /// Whom the session was counted against.
        #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
        pub tenant: Option<Tenant>,
        /// The agent, as [`AGENT_HEADER`] named it.
        pub agent: Option<String>,
        /// The agent's run, as [`RUN_HEADER`] named it.
        pub run: Option<String>,
        /// `run`, `read`, `write`, `stat`, `ls`, `realpath`, `mkdir` or `remove`.
        pub op: String,
        /// The command, shell-quoted, or the path; cut after 200 characters with `…`.
        pub target: String,
        /// Whether it succeeded.
        pub ok: bool,
        /// The outcome in the service's own words.
        pub detail: String,
        /// How long it took, in milliseconds.
        pub duration_ms: f64,
    }
}

wire_type! {
    /// Answer to `GET /operations` (service token). Ours.
    #[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
    pub struct OperationsPage {
        /// Newest first.
        pub operations: Vec<Operation>,
        /// How many match the filters, on all pages together.
        pub total: u64,
        /// How many of those are before this page.
        pub skip: u64,
        /// Most that a page holds.
        pub limit: u64,
        /// Names of the operations that the log holds, whatever the filters; sorted.
        pub ops: Vec<String>,
    }
}

wire_type! {
    /// Body of `POST /sessions/{id}/run`.
    ///
    /// ```
    /// let body = r#"{"argv": ["true"], "run_id": "0123456789abcdef0123456789abcdef"}"#;
    /// let request: wire::api::RunRequest = serde_json::from_str(body).unwrap();
    /// assert!(request.env.is_empty() && request.timeout_seconds.is_none());
    /// ```
    #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
    pub struct RunRequest {
        /// Program and arguments, at least one, passed literally.
        #[cfg_attr(feature = "openapi", schema(min_items = 1))]
        pub argv: Vec<String>,
        /// Variables over the sandbox's own.
        #[serde(default)]
        pub env: BTreeMap<String, String>,
        /// Deadline in seconds, more than 0; the service's `execute_timeout` bounds it.
        #[serde(default)]
        pub timeout_seconds: Option<f64>,
        /// The client's name for this run.
        #[cfg_attr(feature = "openapi", schema(value_type = String, pattern = "^[0-9a-f]{32}$"))]
        pub run_id: RunId,
    }
}

wire_type! {
    /// Answer to `POST /sessions/{id}/run`. Undecodable output bytes are U+FFFD.
    #[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
    pub struct RunResponse {
        /// Standard output; its first 64 KiB if the command was stopped.
        pub stdout: String,
        /// Standard error, likewise.
        pub stderr: String,
        /// Exit status, 128 + N for signal N; null if the service stopped the command.
        pub exit_code: Option<i32>,
        /// Its deadline passed.
        pub timed_out: bool,
        /// Its output passed `output_limit`.
        pub output_limited: bool,
        /// The ceiling that was passed, in bytes; null unless it was.
        pub output_limit: Option<u64>,
    }
}

wire_type! {
    /// Body of the file routes that name one path.
    #[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
    pub struct FilePathRequest {
        /// Absolute path inside the sandbox.
        pub path: String,
    }
}

wire_type! {
    /// One file, directory or link.
    #[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
    pub struct FileEntry {
        /// Last component of its path.
        pub name: String,
        /// Its path.
        pub path: String,
        /// Whether it is a directory.
        pub is_dir: bool,
        /// Bytes; null for a directory.
        pub size: Option<u64>,
        /// When it was last written, ISO 8601 in UTC.
        pub modified_at: Option<String>,
    }
}

wire_type! {
    /// Answer to `files/realpath`.
    #[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
    pub struct RealpathResponse {
        /// The path with every link resolved; a missing tail as it was written.
        pub path: String,
    }
}

wire_type! {
    /// Answer to `GET /healthz`.
    #[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
    pub struct ServiceHealth {
        /// `ok`.
        pub status: String,
        /// Sessions that hold a sandbox now.
        pub sessions: u64,
        /// `max_sessions`.
        pub limit: Option<u64>,
        /// Sessions that exist, asleep ones included.
        pub open_sessions: u64,
        /// `max_open_sessions`.
        pub open_limit: Option<u64>,
        /// Allowed aliases, sorted.
        pub runtimes: Vec<String>,
    }
}

wire_type! {
    /// Answer to `GET /`.
    #[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
    pub struct ServiceIndex {
        /// `sandboxd`.
        pub service: String,
        /// As `GET /healthz`.
        pub health: ServiceHealth,
        /// The API's description for people.
        pub docs_url: String,
        /// The API's description for machines.
        pub openapi_url: String,
        /// The dashboard; null when it is off.
        pub ui_url: Option<String>,
        /// The paths of every other route, sorted.
        pub endpoints: Vec<String>,
    }
}

wire_type! {
    /// One runtime of the allowlist with the values in force for it.
    #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
    pub struct RuntimePolicy {
        /// What a client names.
        pub alias: String,
        /// The image, or what it is built from: `BASE + N package(s)`.
        pub image: String,
        /// What it is for.
        pub description: String,
        /// Whether it is built here.
        pub builds: bool,
        /// Memory, in the syntax `2g`.
        pub mem_limit: Option<String>,
        /// Memory and swap together; null: no swap.
        pub memswap_limit: Option<String>,
        /// CPUs.
        pub cpus: Option<f64>,
        /// CPU weight in the syntax of `docker run --cpu-shares`.
        pub cpu_shares: Option<u64>,
        /// Processes.
        pub pids_limit: Option<u64>,
        /// `none` or `bridge`.
        pub network_mode: String,
        /// OCI runtime; null: the built-in one.
        pub oci_runtime: Option<String>,
    }
}

wire_type! {
    /// Answer to `GET /policy`: everything that is in force.
    #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
    pub struct ServicePolicy {
        /// The allowlist, sorted by alias.
        pub runtimes: Vec<RuntimePolicy>,
        /// What a request that names none gets.
        pub default_runtime: String,
        /// Sandboxes resident or starting.
        pub max_sessions: Option<u64>,
        /// Sessions resident and asleep.
        pub max_open_sessions: Option<u64>,
        /// Sessions of one tenant.
        pub max_sessions_per_tenant: Option<u64>,
        /// Seconds idle after which a session may be hibernated for a newcomer.
        pub evict_idle_after: Option<u64>,
        /// Default memory.
        pub mem_limit: Option<String>,
        /// Default memory and swap.
        pub memswap_limit: Option<String>,
        /// Default CPUs.
        pub cpus: Option<f64>,
        /// Default CPU weight.
        pub cpu_shares: Option<u64>,
        /// Default processes.
        pub pids_limit: Option<u64>,
        /// Default network.
        pub network_mode: String,
        /// Default OCI runtime.
        pub oci_runtime: Option<String>,
        /// Where commands start.
        pub work_dir: String,
        /// Seconds after which an idle sandbox is closed.
        pub idle_timeout: u64,
        /// Longest command, seconds.
        pub execute_timeout: u64,
        /// Largest file served, bytes.
        pub max_read_bytes: u64,
        /// Whether a stopped sandbox's write layer is kept.
        pub persist_containers: bool,
        /// User that built runtimes run as.
        pub sandbox_uid: Option<u32>,
        /// Seconds an unopened workspace is kept.
        pub workspace_ttl: Option<u64>,
        /// Seconds a stopped sandbox's write layer is kept.
        pub container_ttl: Option<u64>,
        /// Size of `/tmp`.
        pub tmpfs_size: Option<String>,
        /// Whether runtimes are made ready at start.
        pub prewarm: bool,
        /// Whether package caches are kept between builds.
        pub buildkit: bool,
        /// Files are read off the host.
        pub native_files: bool,
        /// Files are written off the host.
        pub native_writes: bool,
        /// Paths are resolved off the host.
        pub native_realpath: bool,
        /// Limits that this host cannot enforce, by name; empty in production. Ours.
        #[serde(default)]
        pub unenforced_limits: Vec<String>,
        /// This installation in session ids that are derived from keys ([`crate::key`]). Ours.
        #[serde(default)]
        pub host_id: String,
    }
}

wire_type! {
    /// Body of `PUT /policy`, and content of the overrides file: ceilings and lifetimes, nothing else.
    /// Absent leaves a value alone; null clears one that may be off.
    ///
    /// ```
    /// let update: wire::api::PolicyUpdate = serde_json::from_str(r#"{"max_sessions": null}"#).unwrap();
    /// assert_eq!((update.max_sessions, update.idle_timeout), (Some(None), None));
    /// assert!(serde_json::from_str::<wire::api::PolicyUpdate>(r#"{"network_mode": "none"}"#).is_err());
    /// ```
    #[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
    #[serde(default, deny_unknown_fields)]
    pub struct PolicyUpdate {
        /// An allowed alias.
        #[serde(deserialize_with = "given", skip_serializing_if = "Option::is_none")]
        #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
        pub default_runtime: Option<Option<String>>,
        /// 0 or more.
        #[serde(deserialize_with = "given", skip_serializing_if = "Option::is_none")]
        #[cfg_attr(feature = "openapi", schema(value_type = Option<u64>))]
        pub max_sessions: Option<Option<u64>>,
        /// 0 or more.
        #[serde(deserialize_with = "given", skip_serializing_if = "Option::is_none")]
        #[cfg_attr(feature = "openapi", schema(value_type = Option<u64>))]
        pub max_open_sessions: Option<Option<u64>>,
        /// 0 or more.
        #[serde(deserialize_with = "given", skip_serializing_if = "Option::is_none")]
        #[cfg_attr(feature = "openapi", schema(value_type = Option<u64>))]
        pub max_sessions_per_tenant: Option<Option<u64>>,
        /// Seconds, 0 or more.
        #[serde(deserialize_with = "given", skip_serializing_if = "Option::is_none")]
        #[cfg_attr(feature = "openapi", schema(value_type = Option<u64>))]
        pub evict_idle_after: Option<Option<u64>>,
        /// Seconds, 0 or more; not null.
        #[serde(deserialize_with = "given", skip_serializing_if = "Option::is_none")]
        #[cfg_attr(feature = "openapi", schema(value_type = Option<u64>))]
        pub idle_timeout: Option<Option<u64>>,
        /// Seconds, 0 or more.
        #[serde(deserialize_with = "given", skip_serializing_if = "Option::is_none")]
        #[cfg_attr(feature = "openapi", schema(value_type = Option<u64>))]
        pub workspace_ttl: Option<Option<u64>>,
        /// Seconds, 0 or more.
        #[serde(deserialize_with = "given", skip_serializing_if = "Option::is_none")]
        #[cfg_attr(feature = "openapi", schema(value_type = Option<u64>))]
        pub container_ttl: Option<Option<u64>>,
        /// Seconds, more than 0; not null.
        #[serde(deserialize_with = "given", skip_serializing_if = "Option::is_none")]
        #[cfg_attr(feature = "openapi", schema(value_type = Option<u64>))]
        pub execute_timeout: Option<Option<u64>>,
        /// Bytes, more than 0; not null.
        #[serde(deserialize_with = "given", skip_serializing_if = "Option::is_none")]
        #[cfg_attr(feature = "openapi", schema(value_type = Option<u64>))]
        pub max_read_bytes: Option<Option<u64>>,
        /// A size such as `2g`.
        #[serde(deserialize_with = "given", skip_serializing_if = "Option::is_none")]
        #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
        pub mem_limit: Option<Option<String>>,
        /// A size, memory included.
        #[serde(deserialize_with = "given", skip_serializing_if = "Option::is_none")]
        #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
        pub memswap_limit: Option<Option<String>>,
        /// More than 0.
        #[serde(deserialize_with = "given", skip_serializing_if = "Option::is_none")]
        #[cfg_attr(feature = "openapi", schema(value_type = Option<f64>))]
        pub cpus: Option<Option<f64>>,
        /// More than 0.
        #[serde(deserialize_with = "given", skip_serializing_if = "Option::is_none")]
        #[cfg_attr(feature = "openapi", schema(value_type = Option<u64>))]
        pub cpu_shares: Option<Option<u64>>,
        /// More than 0.
        #[serde(deserialize_with = "given", skip_serializing_if = "Option::is_none")]
        #[cfg_attr(feature = "openapi", schema(value_type = Option<u64>))]
        pub pids_limit: Option<Option<u64>>,
        /// A size.
        #[serde(deserialize_with = "given", skip_serializing_if = "Option::is_none")]
        #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
        pub tmpfs_size: Option<Option<String>>,
        /// Ceilings of single runtimes, by allowed alias.
        #[serde(deserialize_with = "given", skip_serializing_if = "Option::is_none")]
        #[cfg_attr(feature = "openapi", schema(value_type = Option<BTreeMap<String, RuntimeLimitsUpdate>>))]
        pub runtimes: Option<Option<BTreeMap<String, RuntimeLimitsUpdate>>>,
    }
}

wire_type! {
    /// New ceilings of one runtime; as in [`PolicyUpdate`].
    #[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
    #[serde(default, deny_unknown_fields)]
    pub struct RuntimeLimitsUpdate {
        /// A size such as `2g`.
        #[serde(deserialize_with = "given", skip_serializing_if = "Option::is_none")]
        #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
        pub mem_limit: Option<Option<String>>,
        /// A size, memory included.
        #[serde(deserialize_with = "given", skip_serializing_if = "Option::is_none")]
        #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
        pub memswap_limit: Option<Option<String>>,
        /// More than 0.
        #[serde(deserialize_with = "given", skip_serializing_if = "Option::is_none")]
        #[cfg_attr(feature = "openapi", schema(value_type = Option<f64>))]
        pub cpus: Option<Option<f64>>,
        /// More than 0.
        #[serde(deserialize_with = "given", skip_serializing_if = "Option::is_none")]
        #[cfg_attr(feature = "openapi", schema(value_type = Option<u64>))]
        pub cpu_shares: Option<Option<u64>>,
        /// More than 0.
        #[serde(deserialize_with = "given", skip_serializing_if = "Option::is_none")]
        #[cfg_attr(feature = "openapi", schema(value_type = Option<u64>))]
        pub pids_limit: Option<Option<u64>>,
    }
}

/// Tell null, which is `Some(None)`, from absent, which never gets here.
fn given<'de, T: Deserialize<'de>, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<Option<T>>, D::Error> {
    Option::deserialize(deserializer).map(Some)
}

wire_type! {
    /// What this host has and lacks, answered to `GET /doctor` (service token). Ours.
    #[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
    pub struct DoctorReport {
        /// Findings, worst first.
        pub findings: Vec<Finding>,
    }
}

wire_type! {
    /// One finding about the host.
    #[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
    pub struct Finding {
        /// What was looked at.
        pub subject: String,
        /// How it is.
        pub level: Level,
        /// What was found.
        pub message: String,
        /// What to do about it.
        pub mend: Option<String>,
    }
}

wire_type! {
    /// How bad a finding is.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum Level {
        /// As it should be.
        Ok,
        /// Works, with something missing.
        Warning,
        /// Does not work.
        Error,
    }
}

wire_type! {
    /// One image of the local store, an element of `GET /images` (service token). Ours.
    #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
    pub struct ImageInfo {
        /// Its reference, or the tag that its definition gives it.
        pub reference: String,
        /// Aliases of the runtimes that use it, sorted.
        pub runtimes: Vec<String>,
        /// `ready`, `building`, `failed` or `absent`.
        pub state: String,
        /// Bytes of its layers, shared ones included; null if it is not ready.
        pub size: Option<u64>,
        /// Its layers, topmost first.
        pub layers: Vec<String>,
        /// When it was made.
        pub created_at: Option<f64>,
        /// Why it failed, if it did.
        pub error: Option<String>,
    }
}

wire_type! {
    /// Body of every answer that is not 2xx.
    #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
    pub struct ErrorBody {
        /// What went wrong.
        pub detail: Detail,
    }
}

wire_type! {
    /// What went wrong: the three shapes that clients of the contract tell apart by their JSON type.
    #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
    #[serde(untagged)] // the contract's own shape: a string, an object or a list
    pub enum Detail {
        /// A sentence.
        Message(String),
        /// A path error, named as the clients' languages name it.
        Path(PathError),
        /// What did not validate.
        Invalid(Vec<Invalid>),
    }
}

wire_type! {
    /// A path error.
    #[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
    pub struct PathError {
        /// `FileNotFoundError`, `IsADirectoryError`, `NotADirectoryError`, `FileExistsError` or `ValueError`.
        pub error: String,
        /// In words, with the path.
        pub message: String,
    }
}

wire_type! {
    /// One field that did not validate.
    #[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
    pub struct Invalid {
        /// Where: `body`, `path` or `query`, then the field.
        pub loc: Vec<String>,
        /// What is allowed.
        pub msg: String,
        /// Kind of the violation.
        #[serde(rename = "type")]
        pub kind: String,
    }
}
