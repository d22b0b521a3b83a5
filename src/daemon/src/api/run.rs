//! Running and stopping commands.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use tokio::sync::mpsc;
use tokio::time::Instant;
use wire::api::{ErrorBody, RunRequest, RunResponse};
use wire::id::RunId;

use super::error::ApiError;
use super::operations::ended;
use super::{App, Shared, body, stream};
use crate::operations::{self, Observed, Op};
use crate::request;
use crate::session::{Asked, Piece, Ran, Session, SessionError};

/// Run one command and wait for its end, or have its output as it comes with `Accept: text/event-stream`.
///
/// The stream has events `stdout` and `stderr`, each with a piece in base64; a comment after ten seconds without one; and at its end
/// exactly one of `exit` (a `RunExit`) and `error` (an `ErrorBody`). It begins when the command does: what is refused has a status
/// and no stream. Whoever goes away stops the command.
#[utoipa::path(post, path = "/sessions/{session_id}/run", tag = "commands",
    params(("session_id" = String, Path)), request_body = RunRequest, responses(
    (status = 200, content((RunResponse = "application/json"), (String = "text/event-stream"))),
    (status = 400, body = ErrorBody),
    (status = 401, body = ErrorBody),
    (status = 404, body = ErrorBody),
    (status = 409, description = "A run of that id is running", body = ErrorBody),
    (status = 410, description = "The sandbox ended under the command", body = ErrorBody),
    (status = 413, body = ErrorBody),
    (status = 422, body = ErrorBody),
    (status = 429, description = "Too many commands run, or there is no room to wake the session", body = ErrorBody),
    (status = 502, description = "The sandbox did not start again", body = ErrorBody),
    (status = 507, description = "The session, or the host, has no room on the disk", body = ErrorBody)))]
pub async fn run(
    State(app): Shared,
    headers: HeaderMap,
    Path(id): Path<String>,
    request: Body,
) -> Result<Response, ApiError> {
    let session = app.session(&headers, &id)?;
    let request: RunRequest = body::json(request, body::RUN_MAX).await?;
    check(&request)?;
    let at = Instant::now();
    let observed = app.observe(&headers, &session, Op::Run, &operations::command(&request.argv))?;
    if !stream::is_asked_for(&headers) {
        return Ok(Json(observe_run(app, session, request, observed, (at, None)).await?).into_response());
    }
    let (sink, mut pieces) = mpsc::channel(stream::PIECES);
    let work = observe_run(app, session, request, observed, (at, Some(sink)));
    let run = tokio::spawn(request::scope(request::current(), work));
    // What can be refused is refused with a status: the stream begins when the command has, or when it is over without.
    match pieces.recv().await {
        Some(_begun) => Ok(stream::respond(pieces, run)),
        None => {
            let response = run.await.map_err(|_| ApiError::Broken)??;
            Ok(stream::respond(pieces, tokio::spawn(std::future::ready(Ok(response)))))
        }
    }
}

/// Run, and record how it ended before the init forgets it.
async fn observe_run(
    app: Arc<App>,
    session: Arc<Session>,
    request: RunRequest,
    observed: Observed,
    (at, sink): (Instant, Option<mpsc::Sender<Piece>>),
) -> Result<RunResponse, SessionError> {
    let within = request.timeout_seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    let asked = Asked { at, note: observed.note(within), sink };
    let (result, unrecorded) = match app.registry.run(&session, request, asked).await {
        Ok(Ran { response, unrecorded }) => (Ok(response), unrecorded),
        Err(error) => (Err(error), None),
    };
    ended(observed, &result);
    drop(unrecorded);
    result
}

/// Stop a run with everything that it has started. One that is over is none to stop.
#[utoipa::path(post, path = "/sessions/{session_id}/runs/{run_id}/stop", tag = "commands",
    params(("session_id" = String, Path), ("run_id" = String, Path)), responses(
    (status = 204), (status = 401, body = ErrorBody), (status = 404, body = ErrorBody), (status = 422, body = ErrorBody)))]
pub async fn stop(
    State(app): Shared,
    headers: HeaderMap,
    Path((id, run)): Path<(String, String)>,
) -> Result<StatusCode, ApiError> {
    let session = app.session(&headers, &id)?;
    let run =
        RunId::parse(&run).map_err(|e| ApiError::field("path", "run_id", e.to_string(), "string_pattern_mismatch"))?;
    app.registry.stop(&session, run).await;
    Ok(StatusCode::NO_CONTENT)
}

/// What the types do not say of a command.
fn check(request: &RunRequest) -> Result<(), ApiError> {
    if request.argv.is_empty() {
        return Err(ApiError::field("body", "argv", "List should have at least 1 item", "too_short"));
    }
    if request.argv.iter().any(|argument| argument.contains('\0')) {
        return Err(ApiError::field("body", "argv", "An argument cannot hold a NUL character", "value_error"));
    }
    let sound =
        |(name, value): (&String, &String)| !name.is_empty() && !name.contains(['=', '\0']) && !value.contains('\0');
    if !request.env.iter().all(sound) {
        let msg = "A variable's name cannot be empty or hold = or NUL, nor its value NUL";
        return Err(ApiError::field("body", "env", msg, "value_error"));
    }
    match request.timeout_seconds {
        Some(seconds) if !(seconds > 0.0 && seconds.is_finite()) => {
            Err(ApiError::field("body", "timeout_seconds", "Input should be greater than 0", "greater_than"))
        }
        Some(_) | None => Ok(()),
    }
}
