//! Commands and files of a session.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::id::RunId;

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
        /// The limit of the sandbox that made it fail, in words (`memory limit 64 MiB`, `process limit 512`), also in a last
        /// line of `stderr`. Absent unless one did. Ours.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub limit: Option<String>,
        /// What the command used: its main process and what that waited for. Absent if the service stopped it, or it did not
        /// start. Ours.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub usage: Option<RunUsage>,
    }
}

wire_type! {
    /// What one command used, getrusage(2).
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
    pub struct RunUsage {
        /// User CPU time in microseconds.
        pub user_us: u64,
        /// System CPU time in microseconds.
        pub system_us: u64,
        /// Largest resident set of any one of its processes, in bytes.
        pub max_rss_bytes: u64,
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
    /// Data of the event `exit` that ends a streamed run.
    ///
    /// ```
    /// let exit: wire::api::RunExit =
    ///     serde_json::from_str(r#"{"exit_code": 0, "timed_out": false, "output_limited": false, "output_limit": null}"#).unwrap();
    /// assert_eq!(exit.exit_code, Some(0));
    /// ```
    #[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
    pub struct RunExit {
        /// As in [`RunResponse`].
        pub exit_code: Option<i32>,
        /// As in [`RunResponse`].
        pub timed_out: bool,
        /// As in [`RunResponse`].
        pub output_limited: bool,
        /// As in [`RunResponse`].
        pub output_limit: Option<u64>,
        /// As in [`RunResponse`].
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub limit: Option<String>,
        /// As in [`RunResponse`].
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub usage: Option<RunUsage>,
    }
}
