//! The runtimes that are offered, and what is told of them. Ours.

use serde::{Deserialize, Serialize};

use super::PullProgress;

wire_type! {
    /// Answer to `GET /runtimes` (service token).
    #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
    pub struct RuntimeList {
        /// In the order of the catalogue.
        pub runtimes: Vec<RuntimeInfo>,
    }
}

wire_type! {
    /// A runtime, answered to `GET /runtimes/{alias}` (service token). What is in force of its ceilings is in `GET /policy`.
    #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
    pub struct RuntimeInfo {
        /// What a request names.
        pub alias: String,
        /// What it is for; may be empty.
        pub description: String,
        /// Whether a request gets it that names none.
        pub default: bool,
        /// Whether it is, or is made from, an entry of the catalogue: only then is something told of what is in it.
        pub shipped: bool,
        /// Whether its image is built here.
        pub builds: bool,
        /// Its image, or the one that it is built on.
        pub image: String,
        /// What is installed when it is built, as the entry names it.
        pub packages: Vec<String>,
        /// What installs them: `pip`, `npm`, `apt` or `cargo`; null if nothing is built.
        pub package_manager: Option<String>,
        /// `none` or `bridge`.
        pub network_mode: String,
        /// Whether the parser of documents is among its packages; null if it is not built here, so that nobody knows.
        pub reads_documents: Option<bool>,
        /// Of its image: `ready`, `building`, `failed` or `absent`.
        pub state: String,
        /// What identifies the image: the digest of its definition, of its manifest, or of its layer; null if that is not known before it
        /// is here.
        pub tag: Option<String>,
        /// Where its build is; null if none goes on.
        pub progress: Option<BuildProgress>,
        /// How far the pull of its image is, or of the image that it is built on; null if none goes on.
        pub pull: Option<PullProgress>,
        /// Why it failed, if it did.
        pub error: Option<String>,
    }
}

wire_type! {
    /// Where a build is.
    #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
    pub struct BuildProgress {
        /// The step that is under way.
        pub step: String,
        /// Its number; 0 is the base.
        pub number: u64,
        /// How many there are beside the base.
        pub steps: u64,
        /// When it began.
        pub since: f64,
    }
}

wire_type! {
    /// Answer to `GET /runtimes/{alias}/briefing` (service token).
    #[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
    pub struct RuntimeBriefing {
        /// The runtime.
        pub alias: String,
        /// What a model is told about it, one paragraph; null for a runtime that no catalogue ships.
        pub briefing: Option<String>,
        /// As in `GET /runtimes/{alias}`.
        pub reads_documents: Option<bool>,
    }
}
