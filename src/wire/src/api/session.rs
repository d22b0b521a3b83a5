//! Sessions: opening them, and what can be seen of them.

use serde::{Deserialize, Serialize};

use crate::id::{SessionId, Tenant};
use crate::key::Key;

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
        /// What it uses; null unless asked for, and without a sandbox.
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
        /// What it was refused; absent without a network. Ours.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub network: Option<NetworkUsage>,
    }
}

wire_type! {
    /// What a sandbox with a network was refused since it was started.
    #[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
    pub struct NetworkUsage {
        /// Packets to where it may not connect: for a TCP connection, one.
        pub refused_packets: u64,
        /// Names that it may not ask for, or whose addresses it may not reach.
        pub refused_names: u64,
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
