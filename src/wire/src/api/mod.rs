//! A client → `sandboxd`: the JSON of the HTTP API.
//!
//! Field names, defaults and meanings are those that existing clients of the contract
//! rely on; additions are optional fields. Times are Unix seconds as floats,
//! sizes bytes, unless a field says otherwise. Every answer that is not 2xx is an [`ErrorBody`].

macro_rules! wire_type {
    ($(#[$meta:meta])* pub $kind:ident $name:ident $body:tt) => {
        $(#[$meta])*
        #[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
        pub $kind $name $body
    };
}

mod command;
mod error;
mod image;
mod operation;
mod policy;
mod runtime;
mod service;
mod session;
mod workspace;

pub use command::{FileEntry, FilePathRequest, RealpathResponse, RunExit, RunRequest, RunResponse, RunUsage};
pub use error::{Detail, ErrorBody, Invalid, PathError};
pub use image::{BuildCache, BuildCaches, GcRequest, ImageInfo, PullEvent, PullProgress, PullRequest, Removed};
pub use operation::{Operation, OperationsPage};
pub use policy::{PolicyUpdate, RuntimeLimitsUpdate, RuntimePolicy, ServicePolicy};
pub use runtime::{BuildProgress, RuntimeBriefing, RuntimeInfo, RuntimeList};
pub use service::{DoctorReport, Finding, Level, ServiceHealth, ServiceIndex};
pub use session::{
    CreateSessionRequest, NetworkUsage, SessionCreated, SessionEvent, SessionEvents, SessionInfo, SessionList,
    SessionState, SessionUsage, Tier,
};
pub use workspace::{
    BrowseEntry, BrowseRequest, BrowseResponse, KeyParts, MAX_DEPTH, MAX_PAGE, MAX_THUMBNAILS, MAX_TREE_ENTRIES,
    MAX_TREES, ReadBytesResponse, ReadRequest, ReadResponse, TreeRequest, TreeResponse, TreeResult, TreesRequest,
    TreesResponse, WorkspaceInfo, WorkspacePath, WorkspaceState, WorkspacesPage,
};

/// Header that carries the service token or a session's token.
pub const TOKEN_HEADER: &str = "x-sandbox-token";
/// Header of an answer that says as whom a request without a token was let in, at a unix socket with
/// `unix_auth = "peer"`: `uid=NUMBER`.
pub const PEER_HEADER: &str = "x-sandbox-peer";
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
