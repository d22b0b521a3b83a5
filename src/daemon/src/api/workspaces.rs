//! Stored workspaces, for the platform and for people: the service token's alone. No sandbox is started.

use std::sync::Arc;

use axum::Json;
use axum::body::Body;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, StatusCode};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use wire::api::{
    BrowseRequest, BrowseResponse, ErrorBody, FileEntry, KeyParts, MAX_PAGE, ReadBytesResponse, ReadRequest,
    ReadResponse, SessionState, TreeRequest, TreeResponse, TreeResult, TreesRequest, TreesResponse, WorkspaceInfo,
    WorkspacePath, WorkspaceState, WorkspacesPage,
};
use wire::id::SessionId;
use wire::key;
use wire::launch::DiskUsage;

use super::error::ApiError;
use super::{App, Shared, body};
use crate::archive::{ArchiveError, Sum};
use crate::document::DocumentError;
use crate::files::stored::StoredError;
use crate::session::WorkspaceRow;

/// Workspaces on a page unless the client says otherwise.
const PAGE: u64 = 50;
/// Who can see a workspace whose id says nothing.
const UNKNOWN_ACCESS: &str = "whoever the platform gives this session to";

/// Which part of the list is wanted.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[serde(default)]
pub struct Part {
    /// How many come before it.
    skip: u64,
    /// How many it may hold, 1 to 100.
    #[param(minimum = 1, maximum = 100)]
    limit: u64,
    /// Only that of this session.
    session: Option<String>,
}

impl Default for Part {
    fn default() -> Self {
        Self { skip: 0, limit: PAGE, session: None }
    }
}

macro_rules! describe {
    ($(#[$doc:meta])* $op:literal, $request:ty, $answer:ty, $item:item) => {
        $(#[$doc])*
        #[utoipa::path(post, path = concat!("/workspaces/{session_id}/", $op), tag = "workspaces",
            params(("session_id" = String, Path)), request_body = $request, responses(
            (status = 200, body = $answer),
            (status = 400, description = "Outside of the workspace, through a link, too large, or no text", body = ErrorBody),
            (status = 401, body = ErrorBody),
            (status = 403, description = "The sandbox has closed it to itself", body = ErrorBody),
            (status = 404, description = "No such workspace, or no such file", body = ErrorBody),
            (status = 413, body = ErrorBody),
            (status = 422, body = ErrorBody),
            (status = 503, description = "Too many requests of this kind at once", body = ErrorBody)))]
        $item
    };
}

describe!(
    /// One directory of a stored workspace: directories first, then by name.
    "ls", WorkspacePath, Vec<FileEntry>,
    pub async fn ls(State(app): Shared, headers: HeaderMap, Path(id): Path<String>, request: Body) -> Result<Json<Vec<FileEntry>>, ApiError> {
        let (id, WorkspacePath { path }) = admit(&app, &headers, &id, request).await?;
        Ok(Json(app.archive.ls(id, path).await?))
    }
);

describe!(
    /// A directory of a stored workspace and those beneath it, breadth first.
    "tree", TreeRequest, TreeResponse,
    pub async fn tree(State(app): Shared, headers: HeaderMap, Path(id): Path<String>, request: Body) -> Result<Json<TreeResponse>, ApiError> {
        let (id, request) = admit(&app, &headers, &id, request).await?;
        Ok(Json(app.archive.tree(id, request).await?))
    }
);

describe!(
    /// Lines of a file: of its text, whatever its encoding; of the text in a PDF.
    "read", ReadRequest, ReadResponse,
    pub async fn read(State(app): Shared, headers: HeaderMap, Path(id): Path<String>, request: Body) -> Result<Json<ReadResponse>, ApiError> {
        let (id, request) = admit(&app, &headers, &id, request).await?;
        let max = app.registry.policy().max_read_bytes;
        Ok(Json(ReadResponse { content: app.archive.read(id, request, max).await? }))
    }
);

describe!(
    /// A whole file.
    "read_bytes", WorkspacePath, ReadBytesResponse,
    pub async fn read_bytes(State(app): Shared, headers: HeaderMap, Path(id): Path<String>, request: Body) -> Result<Json<ReadBytesResponse>, ApiError> {
        let (id, WorkspacePath { path }) = admit(&app, &headers, &id, request).await?;
        let max = app.registry.policy().max_read_bytes;
        Ok(Json(ReadBytesResponse { content_b64: app.archive.read_bytes(id, path, max).await? }))
    }
);

describe!(
    /// A tree for people: without what is not for them, with thumbnails of images if asked.
    "files", BrowseRequest, BrowseResponse,
    pub async fn files(State(app): Shared, headers: HeaderMap, Path(id): Path<String>, request: Body) -> Result<Json<BrowseResponse>, ApiError> {
        let (id, request) = admit(&app, &headers, &id, request).await?;
        let max = app.registry.policy().max_read_bytes;
        Ok(Json(app.archive.browse(id, request, max).await?))
    }
);

/// The same directory of several stored workspaces. One that is missing or refuses is its own error.
#[utoipa::path(post, path = "/workspaces/trees", tag = "workspaces", request_body = TreesRequest, responses(
    (status = 200, body = TreesResponse), (status = 401, body = ErrorBody), (status = 413, body = ErrorBody),
    (status = 422, body = ErrorBody), (status = 503, body = ErrorBody)))]
pub async fn trees(State(app): Shared, headers: HeaderMap, request: Body) -> Result<Json<TreesResponse>, ApiError> {
    app.service(&headers)?;
    let request: TreesRequest = body::json(request, body::JSON_MAX).await?;
    let result = |(session_id, tree): (SessionId, Result<TreeResponse, ArchiveError>)| match tree {
        Ok(tree) => TreeResult { session_id, tree: Some(tree), error: None, status_code: None },
        Err(error) => {
            let status_code = Some(status(&error).as_u16());
            TreeResult { session_id, tree: None, error: Some(error.to_string()), status_code }
        }
    };
    Ok(Json(TreesResponse { results: app.archive.trees(request).await?.into_iter().map(result).collect() }))
}

/// What is kept, last opened first.
#[utoipa::path(get, path = "/workspaces", tag = "workspaces", params(Part), responses(
    (status = 200, body = WorkspacesPage), (status = 401, body = ErrorBody), (status = 422, body = ErrorBody),
    (status = 503, body = ErrorBody)))]
pub async fn list(
    State(app): Shared,
    headers: HeaderMap,
    part: Result<Query<Part>, QueryRejection>,
) -> Result<Json<WorkspacesPage>, ApiError> {
    app.service(&headers)?;
    let Query(Part { skip, limit, session }) =
        part.map_err(|error| ApiError::field("query", "", error.body_text(), "value_error"))?;
    if !(1..=MAX_PAGE).contains(&limit) {
        let msg = format!("Input should be between 1 and {MAX_PAGE}");
        return Err(ApiError::field("query", "limit", msg, "value_error"));
    }
    let only = session.map(|id| SessionId::parse(&id)).transpose();
    let only = only.map_err(|e| ApiError::field("query", "session", e.to_string(), "string_pattern_mismatch"))?;
    let (rows, total) = app.registry.workspaces(skip, limit, only).await?;
    let sums = app.archive.sums(rows.iter().map(|row| row.id.clone()).collect()).await?;
    let disk = app.registry.disk_usage(&rows.iter().map(|row| row.id.clone()).collect::<Vec<_>>()).await;
    let sum = |part: fn(&DiskUsage) -> u64| disk.iter().flatten().map(part).fold(0, u64::saturating_add);
    let (disk_bytes, disk_inodes) = (sum(|usage| usage.bytes), sum(|usage| usage.inodes));
    let workspaces =
        rows.into_iter().zip(sums).zip(disk).map(|((row, sum), disk)| info(&app, row, sum, disk)).collect();
    Ok(Json(WorkspacesPage { workspaces, total, skip, limit, disk_bytes, disk_inodes }))
}

/// Delete the workspace of a session that is closed, with what it had installed. No sandbox is started.
#[utoipa::path(delete, path = "/workspaces/{session_id}", tag = "workspaces",
    params(("session_id" = String, Path)), responses(
    (status = 204), (status = 401, body = ErrorBody),
    (status = 404, description = "No such workspace", body = ErrorBody),
    (status = 409, description = "Its session is open, opening or closing", body = ErrorBody),
    (status = 422, body = ErrorBody)))]
pub async fn purge(State(app): Shared, headers: HeaderMap, Path(id): Path<String>) -> Result<StatusCode, ApiError> {
    app.service(&headers)?;
    let id = session_id(&id)?;
    if !app.registry.purge(id.clone()).await? {
        return Err(ArchiveError::NoWorkspace(id).into());
    }
    Ok(StatusCode::NO_CONTENT)
}

fn info(app: &App, row: WorkspaceRow, sum: Result<Sum, ArchiveError>, disk: Option<DiskUsage>) -> WorkspaceInfo {
    let state = match app.registry.find(&row.id).map(|session| session.info(false).state) {
        Ok(SessionState::Running) => WorkspaceState::Open,
        Ok(SessionState::Hibernated) => WorkspaceState::Asleep,
        Err(_) => WorkspaceState::Closed,
    };
    let shown = key::shown(&row.id);
    let access = shown.map_or(UNKNOWN_ACCESS, |(scope, _, _)| scope.audience()).to_owned();
    let key = shown.map(|(scope, organization, host)| KeyParts {
        scope,
        organization: organization.to_owned(),
        host: host.to_owned(),
    });
    let counted = sum.as_ref().ok();
    WorkspaceInfo {
        runtime: row.runtime,
        tenant: row.tenant,
        key,
        access,
        state,
        files: counted.map(|sum| sum.files),
        bytes: counted.map(|sum| sum.bytes),
        truncated: counted.is_some_and(|sum| sum.truncated),
        error: sum.as_ref().err().map(ToString::to_string),
        disk_bytes: disk.map(|usage| usage.bytes),
        disk_inodes: disk.map(|usage| usage.inodes),
        disk_quota_bytes: app.registry.deps.quotas.bytes,
        disk_quota_inodes: app.registry.deps.quotas.inodes,
        created_at: row.created_at,
        last_opened: row.last_opened,
        session_id: row.id,
    }
}

/// The service token, a session's name, and a body.
async fn admit<T: DeserializeOwned>(
    app: &Arc<App>,
    headers: &HeaderMap,
    id: &str,
    request: Body,
) -> Result<(SessionId, T), ApiError> {
    app.service(headers)?;
    let id = session_id(id)?;
    Ok((id, body::json(request, body::JSON_MAX).await?))
}

fn session_id(id: &str) -> Result<SessionId, ApiError> {
    SessionId::parse(id).map_err(|e| ApiError::field("path", "session_id", e.to_string(), "string_pattern_mismatch"))
}

/// What a client is told that it cannot have something of a stored workspace.
pub(super) fn status(error: &ArchiveError) -> StatusCode {
    match error {
        ArchiveError::NoWorkspace(_) => StatusCode::NOT_FOUND,
        ArchiveError::Stored(error) => match error {
            StoredError::NoDirectory { .. } | StoredError::NoFile { .. } => StatusCode::NOT_FOUND,
            StoredError::Outside { .. }
            | StoredError::TooLarge { .. }
            | StoredError::TooMany { .. }
            | StoredError::Binary => StatusCode::BAD_REQUEST,
            StoredError::Denied { .. } => StatusCode::FORBIDDEN,
            StoredError::Io { .. } => StatusCode::INTERNAL_SERVER_ERROR,
        },
        ArchiveError::Document(error) => match error {
            DocumentError::Unreadable { .. } => StatusCode::BAD_REQUEST,
            DocumentError::Busy => StatusCode::SERVICE_UNAVAILABLE,
            DocumentError::Child(_) => StatusCode::INTERNAL_SERVER_ERROR,
        },
        ArchiveError::Busy => StatusCode::SERVICE_UNAVAILABLE,
        ArchiveError::Open { .. } => StatusCode::INTERNAL_SERVER_ERROR,
    }
}
