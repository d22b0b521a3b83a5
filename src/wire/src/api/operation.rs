//! The operations log.

use serde::{Deserialize, Serialize};

use crate::id::{SessionId, Tenant};

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
        /// The request that it was done for, as its `X-Request-Id` had it and as the log of the service has it; null of what the
        /// service did by itself.
        #[serde(default)]
        pub request: Option<String>,
        /// `run`, `read`, `write`, `stat`, `ls`, `realpath`, `mkdir`, `remove` or `stop`.
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
