//! Files of a session: off the host, with and without a sandbox; and what only the sandbox can resolve, inside it.

use std::sync::Arc;

use axum::Json;
use axum::body::{Body, Bytes};
use axum::extract::{Path, Query, State};
use axum::http::header::{CONTENT_DISPOSITION, CONTENT_TYPE};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use futures_util::{Stream, TryStreamExt};
use serde::Deserialize;
use wire::api::{ErrorBody, FileEntry, FilePathRequest, RealpathResponse};
use wire::file::FileOp;

use super::error::ApiError;
use super::inside::{By, Inside, Taking};
use super::operations::{caller, done};
use super::{App, Shared, body};
use crate::files::{FileError, Workspace, inside};
use crate::operations::Op;
use crate::session::{Payload, Session};

/// What of a body is gathered in memory before it is written, in bytes.
const BATCH: usize = 256 << 10;

/// Query of `files/write`.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
pub struct Target {
    /// Absolute path inside the sandbox.
    path: String,
}

const READ: Inside<Vec<u8>> = Inside { op: FileOp::Read, answer: inside::bytes };
const STAT: Inside<FileEntry> = Inside { op: FileOp::Stat, answer: inside::entry };
const LIST: Inside<Vec<FileEntry>> = Inside { op: FileOp::List, answer: inside::entries };
const REALPATH: Inside<String> = Inside { op: FileOp::Realpath, answer: inside::real };
const MKDIR: Inside<()> = Inside { op: FileOp::Mkdir, answer: inside::nothing };
const REMOVE: Inside<()> = Inside { op: FileOp::Remove, answer: inside::nothing };
const WRITE: Inside<()> = Inside { op: FileOp::Write, answer: inside::nothing };

macro_rules! describe {
    ($(#[$doc:meta])* $op:literal, $answer:tt, $item:item) => {
        $(#[$doc])*
        #[utoipa::path(post, path = concat!("/sessions/{session_id}/files/", $op), tag = "files",
            params(("session_id" = String, Path)), request_body = FilePathRequest, responses(
            $answer,
            (status = 400, description = "A path error", body = ErrorBody),
            (status = 401, body = ErrorBody),
            (status = 404, description = "No such file, or no such session", body = ErrorBody),
            (status = 409, description = "A command has to do this one: a special file, one over the limit, one that the sandbox's user may not open, or no room to wake the session", body = ErrorBody),
            (status = 413, body = ErrorBody),
            (status = 422, body = ErrorBody),
            (status = 507, description = "No space is left", body = ErrorBody)))]
        $item
    };
}

describe!(
    /// A file's bytes.
    "read", (status = 200, body = Vec<u8>, content_type = "application/octet-stream"),
    pub async fn read(State(app): Shared, headers: HeaderMap, Path(id): Path<String>, request: Body) -> Result<Response, ApiError> {
        let max = app.registry.policy().max_read_bytes;
        let bytes = operate(&app, &headers, &id, request, Op::Read, move |files, path| files.read(path, max), READ).await?;
        // To be kept, not looked at: what a sandbox wrote is no page of the service, whatever is in it.
        let kind = [(CONTENT_TYPE, "application/octet-stream"), (CONTENT_DISPOSITION, "attachment")];
        let kind = kind.map(|(header, value)| (header, HeaderValue::from_static(value)));
        Ok((kind, Bytes::from(bytes)).into_response())
    }
);

describe!(
    /// What a path is.
    "stat", (status = 200, body = FileEntry),
    pub async fn stat(State(app): Shared, headers: HeaderMap, Path(id): Path<String>, request: Body) -> Result<Json<FileEntry>, ApiError> {
        operate(&app, &headers, &id, request, Op::Stat, Workspace::stat, STAT).await.map(Json)
    }
);

describe!(
    /// A directory's entries, sorted by name.
    "list", (status = 200, body = Vec<FileEntry>),
    pub async fn list(State(app): Shared, headers: HeaderMap, Path(id): Path<String>, request: Body) -> Result<Json<Vec<FileEntry>>, ApiError> {
        operate(&app, &headers, &id, request, Op::Ls, Workspace::list, LIST).await.map(Json)
    }
);

describe!(
    /// A path with its links resolved.
    "realpath", (status = 200, body = RealpathResponse),
    pub async fn realpath(State(app): Shared, headers: HeaderMap, Path(id): Path<String>, request: Body) -> Result<Json<RealpathResponse>, ApiError> {
        let path = operate(&app, &headers, &id, request, Op::Realpath, Workspace::realpath, REALPATH).await?;
        Ok(Json(RealpathResponse { path }))
    }
);

describe!(
    /// Make a directory and its parents.
    "mkdir", (status = 204),
    pub async fn mkdir(State(app): Shared, headers: HeaderMap, Path(id): Path<String>, request: Body) -> Result<StatusCode, ApiError> {
        operate(&app, &headers, &id, request, Op::Mkdir, Workspace::mkdir, MKDIR).await.map(|()| StatusCode::NO_CONTENT)
    }
);

describe!(
    /// Remove a file, a link itself, or a tree.
    "remove", (status = 204),
    pub async fn remove(State(app): Shared, headers: HeaderMap, Path(id): Path<String>, request: Body) -> Result<StatusCode, ApiError> {
        operate(&app, &headers, &id, request, Op::Remove, Workspace::remove, REMOVE).await.map(|()| StatusCode::NO_CONTENT)
    }
);

/// Write the body to a file, creating its parents. Readers see the old content or the new.
#[utoipa::path(post, path = "/sessions/{session_id}/files/write", tag = "files",
    params(("session_id" = String, Path), Target), request_body(content = Vec<u8>, content_type = "application/octet-stream"),
    responses(
    (status = 204),
    (status = 400, description = "A path error", body = ErrorBody),
    (status = 401, body = ErrorBody),
    (status = 404, body = ErrorBody),
    (status = 409, description = "A command has to do this one: a link or a special file, one that the sandbox's user may not write, one over the limit, or no room to wake the session", body = ErrorBody),
    (status = 422, body = ErrorBody),
    (status = 507, description = "No space is left", body = ErrorBody)))]
pub async fn write(
    State(app): Shared,
    headers: HeaderMap,
    Path(id): Path<String>,
    target: Result<Query<Target>, axum::extract::rejection::QueryRejection>,
    request: Body,
) -> Result<StatusCode, ApiError> {
    let session = native(&app, &headers, &id)?;
    let Query(Target { path }) = target.map_err(|_| ApiError::field("query", "path", "Field required", "missing"))?;
    let _activity = session.activity();
    let max = app.registry.policy().max_read_bytes;
    let files = session.workspace()?;
    let observed = app.observe(&headers, &session, Op::Write, &path)?;
    let mut size = 0;
    let (result, by) = match receive((&app, &session), files, &path, max, request, &mut size).await {
        Ok(None) => (Ok(()), By::Service),
        Ok(Some((payload, unresolved))) => {
            (app.ask(&session, WRITE, &path, Some(payload), unresolved).await, By::Sandbox)
        }
        Err(error) => (Err(error), By::Service),
    };
    let result = share_or_disk(&app, &session, size, result).await;
    done(observed, &result, by);
    result.map(|()| StatusCode::NO_CONTENT)
}

/// Write what comes, as it comes, as far as the disk has room for it; `total` is how many bytes came. What the sandbox has to
/// write is returned whole, with the reason.
async fn receive(
    (app, session): (&Arc<App>, &Arc<Session>),
    files: &Workspace,
    path: &str,
    max: u64,
    request: Body,
    total: &mut u64,
) -> Result<Option<(Payload, FileError)>, ApiError> {
    let mut pieces = body::pieces(request);
    let mut taking: Option<Taking> = None;
    loop {
        let (batch, last) = gather(&mut pieces).await?;
        *total += batch.iter().map(|piece| piece.len() as u64).sum::<u64>();
        app.registry.admit_write(session, *total, 1).await?;
        // A disk that is behind makes writers wait, and so may the flush when a file is replaced. Most bodies are
        // one batch: they change threads once.
        taking = tokio::task::block_in_place(|| -> Result<_, FileError> {
            let mut taking = taking.take().map_or_else(|| Taking::begin(files, path, max), Ok)?;
            for piece in &batch {
                taking.take(path, max, piece)?;
            }
            if last { taking.commit() } else { Ok(Some(taking)) }
        })?;
        if last {
            app.registry.deps.quotas.wrote(&session.id, *total, 1);
            return Ok(taking.and_then(Taking::for_the_sandbox));
        }
    }
}

/// Where no space was left for so many bytes: whether on the disk, or of the session's share. Not every file system says.
async fn share_or_disk<T>(
    app: &App,
    session: &Session,
    bytes: u64,
    result: Result<T, ApiError>,
) -> Result<T, ApiError> {
    match result {
        Err(ApiError::File(FileError::NoSpace { op, path }))
            if app.registry.has_used_its_share(session, bytes).await =>
        {
            Err(FileError::OverQuota { op, path }.into())
        }
        other => other,
    }
}

/// Pieces that together are about a [`BATCH`], and whether they are the last.
async fn gather(
    pieces: &mut (impl Stream<Item = Result<Bytes, ApiError>> + Unpin),
) -> Result<(Vec<Bytes>, bool), ApiError> {
    let (mut batch, mut size) = (Vec::new(), 0);
    while size < BATCH {
        let Some(piece) = pieces.try_next().await? else { return Ok((batch, true)) };
        size += piece.len() + size_of::<Bytes>();
        batch.push(piece);
    }
    Ok((batch, false))
}

/// One operation on one path. It blocks on the disk only, mostly for microseconds: on the worker
/// itself, which hands its other tasks over should it take long. What cannot be resolved from here is done inside.
async fn operate<T: Send>(
    app: &Arc<App>,
    headers: &HeaderMap,
    id: &str,
    request: Body,
    op: Op,
    operation: impl FnOnce(&Workspace, &str) -> Result<T, FileError> + Send,
    inside: Inside<T>,
) -> Result<T, ApiError> {
    let session = native(app, headers, id)?;
    let caller = caller(headers)?;
    let FilePathRequest { path } = body::json(request, body::JSON_MAX).await?;
    let _activity = session.activity();
    let files = session.workspace()?;
    let observed = app.observe_for(caller, &session, op, &path);
    let admitted = match op {
        Op::Mkdir => app.registry.admit_write(&session, 0, 1).await,
        Op::Run | Op::Read | Op::Write | Op::Stat | Op::Ls | Op::Realpath | Op::Remove | Op::Stop => Ok(()),
    };
    let (result, by) = match admitted.map(|()| tokio::task::block_in_place(|| operation(files, &path))) {
        Ok(Err(error)) if error.is_for_the_sandbox(inside.op, &path) => {
            (app.ask(&session, inside, &path, None, error).await, By::Sandbox)
        }
        Ok(result) => (result.map_err(ApiError::from), By::Service),
        Err(error) => (Err(error.into()), By::Service),
    };
    let result = share_or_disk(app, &session, 0, result).await;
    match op {
        Op::Remove => app.registry.deps.quotas.removed(&session.id),
        // Those that were there already are found out.
        Op::Mkdir => app.registry.deps.quotas.wrote(&session.id, 1, 1),
        Op::Run | Op::Read | Op::Write | Op::Stat | Op::Ls | Op::Realpath | Op::Stop => {}
    }
    done(observed, &result, by);
    result
}

fn native(app: &Arc<App>, headers: &HeaderMap, id: &str) -> Result<Arc<Session>, ApiError> {
    let session = app.session(headers, id)?;
    if app.registry.deps.settings.native_files { Ok(session) } else { Err(ApiError::FilesOff) }
}
