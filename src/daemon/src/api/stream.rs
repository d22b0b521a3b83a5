//! The same `/run`, as a stream of server-sent events, for whoever asks with `Accept: text/event-stream`.
//!
//! ```text
//! event: stdout            event: stderr            : heartbeat            event: exit
//! data: aGVsbG8K           data: b29wcwo=           (every 10 s)           data: {"exit_code": 0, …}
//! ```
//! Pieces are base64. Exactly one of `exit` and `error` ends it. A reader that goes away stops the run.

use std::convert::Infallible;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::HeaderMap;
use axum::http::header::{ACCEPT, CACHE_CONTROL, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use futures_util::stream;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use wire::api::{ErrorBody, RunExit, RunResponse};

use super::error::ApiError;
use crate::session::{Piece, SessionError};

/// How often a silent stream shows that it is alive.
const HEARTBEAT: Duration = Duration::from_secs(10);
/// Pieces that may wait for a slow reader; then the command waits.
pub const PIECES: usize = 16;

/// Whether a client asks for a stream.
pub fn is_asked_for(headers: &HeaderMap) -> bool {
    headers.get_all(ACCEPT).iter().any(|value| {
        let value = value.to_str().unwrap_or_default();
        value.split(',').any(|kind| kind.split(';').next().is_some_and(|kind| kind.trim() == "text/event-stream"))
    })
}

struct Events {
    pieces: mpsc::Receiver<Piece>,
    /// Taken when the pieces are through.
    run: Option<JoinHandle<Result<RunResponse, SessionError>>>,
}

/// The answer: the pieces as they come, and the end of the run.
pub fn respond(pieces: mpsc::Receiver<Piece>, run: JoinHandle<Result<RunResponse, SessionError>>) -> Response {
    let events = stream::unfold(Events { pieces, run: Some(run) }, next);
    let headers = [(CONTENT_TYPE, "text/event-stream"), (CACHE_CONTROL, "no-store")];
    (headers, Body::from_stream(events)).into_response()
}

async fn next(mut events: Events) -> Option<(Result<Bytes, Infallible>, Events)> {
    events.run.as_ref()?;
    let piece = tokio::time::timeout(HEARTBEAT, events.pieces.recv()).await;
    let text = match piece {
        Err(_) => ": heartbeat\n\n".to_owned(),
        // Whoever answers has waited for it; a comment says the same.
        Ok(Some(Piece::Begun)) => ": begun\n\n".to_owned(),
        Ok(Some(Piece::Out(bytes))) => event("stdout", &STANDARD.encode(bytes)),
        Ok(Some(Piece::Err(bytes))) => event("stderr", &STANDARD.encode(bytes)),
        // The run holds the other end: it is over.
        Ok(None) => end(events.run.take()?.await.ok()),
    };
    Some((Ok(Bytes::from(text)), events))
}

fn end(result: Option<Result<RunResponse, SessionError>>) -> String {
    let broken = |error: ApiError| {
        let body: ErrorBody = error.body();
        event("error", &serde_json::to_string(&body).unwrap_or_else(|_| "{}".into()))
    };
    match result {
        Some(Ok(run)) => {
            let exit = RunExit {
                exit_code: run.exit_code,
                timed_out: run.timed_out,
                output_limited: run.output_limited,
                output_limit: run.output_limit,
                limit: run.limit,
                usage: run.usage,
            };
            event("exit", &serde_json::to_string(&exit).unwrap_or_else(|_| "{}".into()))
        }
        Some(Err(error)) => broken(error.into()),
        // The task does not panic, and nobody aborts it but the end of the service.
        None => broken(ApiError::Broken),
    }
}

fn event(name: &str, data: &str) -> String {
    format!("event: {name}\ndata: {data}\n\n")
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    #[test]
    fn only_who_asks_gets_a_stream() {
        for (accept, asked) in [
            ("text/event-stream", true),
            ("application/json, text/event-stream;q=0.9", true),
            ("*/*", false),
            ("text/event-streams", false),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(ACCEPT, HeaderValue::from_static(accept));
            assert_eq!(is_asked_for(&headers), asked, "{accept}");
        }
    }
}
