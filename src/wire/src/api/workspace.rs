//! Stored workspaces: looked at by the platform, without a sandbox (service token).

use serde::{Deserialize, Deserializer, Serialize};

use crate::api::FileEntry;
use crate::id::{SessionId, Tenant};
use crate::key::Scope;

/// Most workspaces that one request may ask for.
pub const MAX_TREES: usize = 100;
/// Deepest look, in levels.
pub const MAX_DEPTH: u32 = 64;
/// Most entries of one tree.
pub const MAX_TREE_ENTRIES: usize = 100_000;
/// Most thumbnails of one listing.
pub const MAX_THUMBNAILS: usize = 24;
/// Most workspaces on one page of their list.
pub const MAX_PAGE: u64 = 100;

wire_type! {
    /// Body of `POST /workspaces/{id}/ls` and `…/read_bytes`.
    #[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
    pub struct WorkspacePath {
        /// Relative to the workspace, or absolute as the sandbox sees it.
        pub path: String,
    }
}

wire_type! {
    /// Body of `POST /workspaces/{id}/tree`.
    ///
    /// ```
    /// let request: wire::api::TreeRequest = serde_json::from_str("{}").unwrap();
    /// assert_eq!((request.path.as_str(), request.max_depth, request.max_entries), (".", 6, 2000));
    /// assert!(serde_json::from_str::<wire::api::TreeRequest>(r#"{"max_depth": 65}"#).is_err());
    /// ```
    #[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
    #[serde(default)]
    pub struct TreeRequest {
        /// Where to begin.
        pub path: String,
        /// Levels, 1 to [`MAX_DEPTH`]; 1 is the directory alone.
        #[serde(deserialize_with = "depth")]
        #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 64))]
        pub max_depth: u32,
        /// Entries, 1 to [`MAX_TREE_ENTRIES`].
        #[serde(deserialize_with = "entries")]
        #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 100_000))]
        pub max_entries: usize,
    }
}

impl Default for TreeRequest {
    fn default() -> Self {
        Self { path: default_path(), max_depth: default_depth(), max_entries: default_entries() }
    }
}

wire_type! {
    /// A directory and those beneath it.
    #[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
    pub struct TreeResponse {
        /// Each directory's entries before those of its children; paths relative to the workspace.
        pub entries: Vec<FileEntry>,
        /// Whether there is more than this.
        pub truncated: bool,
    }
}

wire_type! {
    /// Body of `POST /workspaces/trees`.
    #[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
    pub struct TreesRequest {
        /// Whose, 1 to [`MAX_TREES`].
        #[serde(deserialize_with = "sessions")]
        #[cfg_attr(feature = "openapi", schema(value_type = Vec<String>, min_items = 1, max_items = 100))]
        pub sessions: Vec<SessionId>,
        /// Where to begin, in each.
        #[serde(default = "default_path")]
        pub path: String,
        /// Levels, as of one tree.
        #[serde(default = "default_depth", deserialize_with = "depth")]
        #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 64))]
        pub max_depth: u32,
        /// Entries of each, as of one tree.
        #[serde(default = "default_entries", deserialize_with = "entries")]
        #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 100_000))]
        pub max_entries: usize,
    }
}

wire_type! {
    /// One workspace's tree, or why there is none.
    #[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
    pub struct TreeResult {
        /// Whose.
        #[cfg_attr(feature = "openapi", schema(value_type = String))]
        pub session_id: SessionId,
        /// What is there.
        pub tree: Option<TreeResponse>,
        /// What the request for this tree alone would have been refused with.
        pub error: Option<String>,
        /// Likewise, its status.
        pub status_code: Option<u16>,
    }
}

wire_type! {
    /// Answer to `POST /workspaces/trees`.
    #[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
    pub struct TreesResponse {
        /// In the order asked.
        pub results: Vec<TreeResult>,
    }
}

wire_type! {
    /// Body of `POST /workspaces/{id}/read`.
    #[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
    pub struct ReadRequest {
        /// The file.
        pub path: String,
        /// First line, counted from 0.
        #[serde(default)]
        pub offset: u64,
        /// Most lines, 1 or more.
        #[serde(default = "default_limit", deserialize_with = "lines")]
        #[cfg_attr(feature = "openapi", schema(minimum = 1))]
        pub limit: u64,
    }
}

wire_type! {
    /// Answer to `POST /workspaces/{id}/read`.
    #[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
    pub struct ReadResponse {
        /// The lines, and how to get the rest.
        pub content: String,
    }
}

wire_type! {
    /// Answer to `POST /workspaces/{id}/read_bytes`.
    #[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
    pub struct ReadBytesResponse {
        /// The whole file.
        pub content_b64: String,
    }
}

wire_type! {
    /// Answer to `GET /workspaces` (service token): what is kept, for people. Ours.
    #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
    pub struct WorkspacesPage {
        /// Last opened first.
        pub workspaces: Vec<WorkspaceInfo>,
        /// How many there are, on all pages together.
        pub total: u64,
        /// How many of those are before this page.
        pub skip: u64,
        /// Most that a page holds, 1 to [`MAX_PAGE`].
        pub limit: u64,
        /// What those of this page use of the disk together, bytes, as far as it is known.
        #[serde(default)]
        pub disk_bytes: u64,
        /// Likewise, files, directories and links.
        #[serde(default)]
        pub disk_inodes: u64,
    }
}

wire_type! {
    /// One kept workspace. Files and bytes are those that its listing shows with its default bounds. Ours.
    #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
    pub struct WorkspaceInfo {
        /// The session's name.
        #[cfg_attr(feature = "openapi", schema(value_type = String))]
        pub session_id: SessionId,
        /// Alias of the runtime on which it was last opened.
        pub runtime: String,
        /// Whom it is counted against.
        #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
        pub tenant: Option<Tenant>,
        /// What its id says, if that is derived from a key.
        pub key: Option<KeyParts>,
        /// Who can see it, in words that name nobody.
        pub access: String,
        /// Whether somebody is using it.
        pub state: WorkspaceState,
        /// Files; null when it cannot be read.
        pub files: Option<u64>,
        /// Their bytes; null when it cannot be read.
        pub bytes: Option<u64>,
        /// Whether there are more than were counted.
        pub truncated: bool,
        /// Why it cannot be read, if so.
        pub error: Option<String>,
        /// Bytes of the disk that it uses with its write layer, everything included; null when not known. A sandbox
        /// that runs may have changed it by now.
        #[serde(default)]
        pub disk_bytes: Option<u64>,
        /// Likewise, files, directories and links.
        #[serde(default)]
        pub disk_inodes: Option<u64>,
        /// Bytes that it may use; null: no quota.
        #[serde(default)]
        pub disk_quota_bytes: Option<u64>,
        /// Files, directories and links that it may have; null: no quota.
        #[serde(default)]
        pub disk_quota_inodes: Option<u64>,
        /// When it was made.
        pub created_at: f64,
        /// When it was last opened; of a session that is closed, when that was last used.
        pub last_opened: f64,
    }
}

wire_type! {
    /// What a session id says that is derived from a [`crate::key::Key`]. Ours.
    #[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
    pub struct KeyParts {
        /// What is shared.
        pub scope: Scope,
        /// The organization's first characters.
        pub organization: String,
        /// The installation that keeps it.
        pub host: String,
    }
}

wire_type! {
    /// Whether somebody is using a workspace.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum WorkspaceState {
        /// Its session holds a sandbox.
        Open,
        /// Its session sleeps; its next command wakes it.
        Asleep,
        /// It has no session; opening one of its name finds it again.
        Closed,
    }
}

wire_type! {
    /// Body of `POST /workspaces/{id}/files`: a tree for people. Ours.
    #[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
    #[serde(default, deny_unknown_fields)]
    pub struct BrowseRequest {
        /// Where to begin.
        pub path: String,
        /// Levels, 1 to [`MAX_DEPTH`].
        #[serde(deserialize_with = "depth")]
        #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 64))]
        pub max_depth: u32,
        /// Entries, 1 to [`MAX_TREE_ENTRIES`].
        #[serde(deserialize_with = "entries")]
        #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 100_000))]
        pub max_entries: usize,
        /// Images of which thumbnails are drawn, the first in the listing: 0 to [`MAX_THUMBNAILS`].
        #[serde(deserialize_with = "thumbnails")]
        #[cfg_attr(feature = "openapi", schema(minimum = 0, maximum = 24))]
        pub thumbnails: usize,
    }
}

impl Default for BrowseRequest {
    fn default() -> Self {
        Self { path: default_path(), max_depth: default_depth(), max_entries: default_entries(), thumbnails: 0 }
    }
}

wire_type! {
    /// Answer to `POST /workspaces/{id}/files`. Ours.
    #[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
    pub struct BrowseResponse {
        /// As of a tree, without what is hidden from people.
        pub entries: Vec<BrowseEntry>,
        /// How many of them are no directories.
        pub files: u64,
        /// Bytes of those.
        pub bytes: u64,
        /// Whether there is more than this.
        pub truncated: bool,
        /// The same in words, for who would take this for everything; null when it is.
        pub notice: Option<String>,
    }
}

wire_type! {
    /// One file or directory, for people. Ours.
    #[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
    pub struct BrowseEntry {
        /// Last component of its path.
        pub name: String,
        /// Relative to the workspace.
        pub path: String,
        /// Whether it is a directory.
        pub is_dir: bool,
        /// Bytes; null for a directory.
        pub size: Option<u64>,
        /// When it was last written, ISO 8601 in UTC.
        pub modified_at: Option<String>,
        /// Whether a person attached it: it is beneath `uploads/`.
        pub attached: bool,
        /// A small picture of it, as a `data:` URI.
        pub thumbnail: Option<String>,
    }
}

fn default_path() -> String {
    ".".to_owned()
}

fn default_depth() -> u32 {
    6
}

fn default_entries() -> usize {
    2000
}

fn default_limit() -> u64 {
    2000
}

fn within<'de, D: Deserializer<'de>>(deserializer: D, least: u64, most: u64) -> Result<u64, D::Error> {
    let value = u64::deserialize(deserializer)?;
    if (least..=most).contains(&value) {
        Ok(value)
    } else if most == u64::MAX {
        Err(serde::de::Error::custom(format!("Input should be greater than or equal to {least}")))
    } else {
        Err(serde::de::Error::custom(format!("Input should be between {least} and {most}")))
    }
}

fn depth<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    within(deserializer, 1, MAX_DEPTH.into()).map(|value| u32::try_from(value).unwrap_or(MAX_DEPTH))
}

fn entries<'de, D: Deserializer<'de>>(deserializer: D) -> Result<usize, D::Error> {
    let most = MAX_TREE_ENTRIES as u64;
    within(deserializer, 1, most).map(|value| usize::try_from(value).unwrap_or(MAX_TREE_ENTRIES))
}

fn thumbnails<'de, D: Deserializer<'de>>(deserializer: D) -> Result<usize, D::Error> {
    let most = MAX_THUMBNAILS as u64;
    within(deserializer, 0, most).map(|value| usize::try_from(value).unwrap_or(MAX_THUMBNAILS))
}

fn lines<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    within(deserializer, 1, u64::MAX)
}

fn sessions<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<SessionId>, D::Error> {
    let sessions = Vec::deserialize(deserializer)?;
    if (1..=MAX_TREES).contains(&sessions.len()) {
        Ok(sessions)
    } else {
        Err(serde::de::Error::custom(format!("List should have 1 to {MAX_TREES} items, not {}", sessions.len())))
    }
}
