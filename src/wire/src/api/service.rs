//! The service itself, its host and its images.

use serde::{Deserialize, Serialize};

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
    /// What this host has and lacks, answered to `GET /doctor` (service token). Ours.
    #[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
    pub struct DoctorReport {
        /// Findings, worst first.
        pub findings: Vec<Finding>,
        /// Version of the program that looked.
        #[serde(default)]
        pub version: String,
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
