//! Opening, finding and closing sessions.

use axum::Json;
use axum::body::Body;
use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, StatusCode};
use serde::Deserialize;
use wire::api::{CreateSessionRequest, ErrorBody, Invalid, SessionCreated, SessionInfo, SessionList};
use wire::id::SessionId;
use wire::key::Key;

use super::error::ApiError;
use super::{App, Shared, body};
use crate::session::NewSession;

/// Query of the routes that show sessions.
#[derive(Debug, Default, Deserialize, utoipa::IntoParams)]
#[serde(default)]
pub struct Show {
    /// Also what each uses.
    #[param(value_type = bool)]
    usage: Flag,
}

/// Query of the route that closes one.
#[derive(Debug, Default, Deserialize, utoipa::IntoParams)]
#[serde(default)]
pub struct Close {
    /// Also delete its write layer and its workspace.
    #[param(value_type = bool)]
    purge: Flag,
}

/// `true`, `1`, `yes`, `on` and their opposites, as clients in other languages write them.
#[derive(Debug, Default, Clone, Copy)]
pub struct Flag(bool);

impl<'de> Deserialize<'de> for Flag {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        crate::config::boolean(&text)
            .map(Self)
            .ok_or_else(|| serde::de::Error::custom("Input should be a valid boolean"))
    }
}

/// Open a session, or attach to one.
#[utoipa::path(post, path = "/sessions", tag = "sessions", request_body = CreateSessionRequest, responses(
    (status = 200, body = SessionCreated),
    (status = 400, description = "The runtime is not allowed, or attach names no session", body = ErrorBody),
    (status = 401, body = ErrorBody),
    (status = 404, description = "Nothing to attach to", body = ErrorBody),
    (status = 409, description = "It exists, or is being opened, or is open on another runtime", body = ErrorBody),
    (status = 413, body = ErrorBody),
    (status = 422, body = ErrorBody),
    (status = 429, description = "A ceiling is reached", body = ErrorBody),
    (status = 502, description = "The sandbox did not start", body = ErrorBody),
    (status = 503, description = "Too much is being recorded at once", body = ErrorBody),
    (status = 507, description = "No space is left", body = ErrorBody)))]
pub async fn create(State(app): Shared, headers: HeaderMap, request: Body) -> Result<Json<SessionCreated>, ApiError> {
    app.service(&headers)?;
    let request: CreateSessionRequest = body::json(request, body::JSON_MAX).await?;
    let id = name(&app, request.session_id, request.key.as_ref())?;
    let new = NewSession {
        id,
        runtime: request.runtime,
        tenant: request.tenant,
        reuse: request.reuse,
        attach: request.attach,
    };
    let session = app.registry.open(new).await?;
    Ok(Json(SessionCreated { session: session.info(false), token: session.token.clone() }))
}

/// The session that is asked for: by its name, or by the key that means one.
fn name(app: &App, id: Option<SessionId>, key: Option<&Key>) -> Result<Option<SessionId>, ApiError> {
    let Some(key) = key else { return Ok(id) };
    if id.is_some() {
        return Err(ApiError::field("body", "key", "Give either session_id or key", "value_error"));
    }
    let derived = key.derive(&app.host_id, wire::key::SANDBOX);
    derived.map(Some).map_err(|error| {
        let loc = ["body", "key"].into_iter().chain(error.field()).map(str::to_owned).collect();
        ApiError::Invalid(vec![Invalid { loc, msg: error.to_string(), kind: "value_error".into() }])
    })
}

/// Every open session.
#[utoipa::path(get, path = "/sessions", tag = "sessions", params(Show), responses(
    (status = 200, body = SessionList), (status = 401, body = ErrorBody), (status = 422, body = ErrorBody)))]
pub async fn list(
    State(app): Shared,
    headers: HeaderMap,
    show: Result<Query<Show>, axum::extract::rejection::QueryRejection>,
) -> Result<Json<SessionList>, ApiError> {
    app.service(&headers)?;
    let Flag(usage) = query(show, "usage")?.usage;
    if usage {
        app.registry.deps.networks.count().await;
    }
    let policy = app.registry.policy();
    Ok(Json(SessionList {
        sessions: app.registry.list().iter().map(|session| session.info(usage)).collect(),
        limit: policy.max_sessions,
        open_limit: policy.max_open_sessions,
        tenant_limit: policy.max_sessions_per_tenant,
    }))
}

/// One session. Asking changes nothing.
#[utoipa::path(get, path = "/sessions/{session_id}", tag = "sessions",
    params(("session_id" = String, Path), Show), responses(
    (status = 200, body = SessionInfo), (status = 401, body = ErrorBody), (status = 404, body = ErrorBody),
    (status = 422, body = ErrorBody)))]
pub async fn get(
    State(app): Shared,
    headers: HeaderMap,
    Path(id): Path<String>,
    show: Result<Query<Show>, axum::extract::rejection::QueryRejection>,
) -> Result<Json<SessionInfo>, ApiError> {
    let session = app.session(&headers, &id)?;
    let Flag(usage) = query(show, "usage")?.usage;
    if usage {
        app.registry.deps.networks.count().await;
    }
    Ok(Json(session.info(usage)))
}

/// Close a session; with `purge` its files go as well.
#[utoipa::path(delete, path = "/sessions/{session_id}", tag = "sessions",
    params(("session_id" = String, Path), Close), responses(
    (status = 204), (status = 401, body = ErrorBody), (status = 404, body = ErrorBody),
    (status = 422, body = ErrorBody)))]
pub async fn delete(
    State(app): Shared,
    headers: HeaderMap,
    Path(id): Path<String>,
    close: Result<Query<Close>, axum::extract::rejection::QueryRejection>,
) -> Result<StatusCode, ApiError> {
    let session = app.session(&headers, &id)?;
    let Flag(purge) = query(close, "purge")?.purge;
    session.close(purge).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// End a session's sandbox, and with it every process in it, and keep the session: its token, its files and what it installed.
/// Its next command, or `wake`, starts it again. One that has no sandbox is left as it is.
#[utoipa::path(post, path = "/sessions/{session_id}/hibernate", tag = "sessions",
    params(("session_id" = String, Path)), responses(
    (status = 200, body = SessionInfo), (status = 401, body = ErrorBody), (status = 404, body = ErrorBody),
    (status = 409, description = "A command or a file operation is at work in it", body = ErrorBody),
    (status = 422, body = ErrorBody)))]
pub async fn hibernate(
    State(app): Shared,
    headers: HeaderMap,
    Path(id): Path<String>,
) -> Result<Json<SessionInfo>, ApiError> {
    let session = app.session(&headers, &id)?;
    session.sleep().await?;
    Ok(Json(session.info(false)))
}

/// Have a session's sandbox there before a command needs it: started again, or its processes let go on.
#[utoipa::path(post, path = "/sessions/{session_id}/wake", tag = "sessions",
    params(("session_id" = String, Path)), responses(
    (status = 200, body = SessionInfo), (status = 401, body = ErrorBody), (status = 404, body = ErrorBody),
    (status = 410, description = "Its files are gone from the disk", body = ErrorBody),
    (status = 422, body = ErrorBody),
    (status = 429, description = "There is no room to wake it", body = ErrorBody),
    (status = 502, description = "The sandbox did not start again", body = ErrorBody),
    (status = 503, description = "Too much is being recorded at once", body = ErrorBody),
    (status = 507, description = "No space is left", body = ErrorBody)))]
pub async fn wake(
    State(app): Shared,
    headers: HeaderMap,
    Path(id): Path<String>,
) -> Result<Json<SessionInfo>, ApiError> {
    let session = app.session(&headers, &id)?;
    let activity = session.activity();
    session.wake().await?;
    drop(activity);
    Ok(Json(session.info(false)))
}

/// A query of one field, which is the one that a complaint names.
fn query<T>(query: Result<Query<T>, axum::extract::rejection::QueryRejection>, field: &str) -> Result<T, ApiError> {
    query.map(|Query(query)| query).map_err(|error| ApiError::field("query", field, error.body_text(), "bool_parsing"))
}
