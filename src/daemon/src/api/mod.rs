//! HTTP: routes, tokens, validation, and one table of statuses.
//!
//! Handlers convert and call. This room knows sessions and files; it does not know that SQLite,
//! the launcher or libcontainer exist.

mod auth;
mod body;
mod describe;
mod drain;
mod error;
mod files;
mod inside;
mod operations;
mod policy;
mod run;
mod service;
mod sessions;
mod stream;
mod workspaces;

use std::sync::Arc;
use std::time::Instant;

use axum::Router;
use axum::extract::{DefaultBodyLimit, Request, State};
use axum::http::HeaderValue;
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use uuid::Uuid;
use wire::api::{DoctorReport, ImageInfo, REQUEST_ID_HEADER};
use wire::launch::DiskEnforcement;

pub use error::ApiError;

use crate::archive::Archive;
use crate::operations::Log;
use crate::session::Registry;

/// What the handlers need.
pub struct App {
    /// Sessions.
    pub registry: Arc<Registry>,
    /// What sessions left behind.
    pub archive: Archive,
    /// What was done.
    pub operations: Arc<Log>,
    /// This installation in the session ids that are derived from keys.
    pub host_id: String,
    /// Limits that this host cannot enforce.
    pub unenforced_limits: Vec<String>,
    /// What this host has and lacks.
    pub doctor: Box<dyn Fn(DiskEnforcement) -> DoctorReport + Send + Sync>,
    /// The local images.
    pub images: Box<dyn Fn() -> Vec<ImageInfo> + Send + Sync>,
}

impl std::fmt::Debug for App {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("App")
    }
}

/// The handlers' view of it.
pub type Shared = State<Arc<App>>;

/// Every route.
pub fn router(app: Arc<App>) -> Router {
    Router::new()
        .route("/", get(service::index))
        .route("/healthz", get(service::healthz))
        .route("/openapi.json", get(describe::openapi_json))
        .route("/docs", get(describe::docs))
        .route("/policy", get(policy::get_policy).put(policy::put_policy))
        .route("/doctor", get(service::doctor))
        .route("/images", get(service::images))
        .route("/operations", get(operations::list))
        .route("/sessions", post(sessions::create).get(sessions::list))
        .route("/sessions/{session_id}", get(sessions::get).delete(sessions::delete))
        .route("/sessions/{session_id}/events", get(operations::events))
        .route("/sessions/{session_id}/run", post(run::run))
        .route("/sessions/{session_id}/runs/{run_id}/stop", post(run::stop))
        .route("/sessions/{session_id}/files/read", post(files::read))
        .route("/sessions/{session_id}/files/write", post(files::write))
        .route("/sessions/{session_id}/files/stat", post(files::stat))
        .route("/sessions/{session_id}/files/list", post(files::list))
        .route("/sessions/{session_id}/files/realpath", post(files::realpath))
        .route("/sessions/{session_id}/files/mkdir", post(files::mkdir))
        .route("/sessions/{session_id}/files/remove", post(files::remove))
        .route("/workspaces", get(workspaces::list))
        .route("/workspaces/trees", post(workspaces::trees))
        .route("/workspaces/{session_id}/ls", post(workspaces::ls))
        .route("/workspaces/{session_id}/tree", post(workspaces::tree))
        .route("/workspaces/{session_id}/read", post(workspaces::read))
        .route("/workspaces/{session_id}/read_bytes", post(workspaces::read_bytes))
        .route("/workspaces/{session_id}/files", post(workspaces::files))
        .fallback(|| async { ApiError::NoRoute.into_response() })
        .method_not_allowed_fallback(|| async { ApiError::MethodNotAllowed.into_response() })
        // Each handler bounds its own body, and says so in its own words.
        .layer(DefaultBodyLimit::disable())
        .layer(middleware::from_fn(name_request))
        .with_state(app)
}

/// Give each request an id, put it on the answer, and log what failed on our side once, with it.
async fn name_request(request: Request, next: Next) -> Response {
    let id = request.headers().get(REQUEST_ID_HEADER).filter(|id| is_request_id(id)).cloned();
    let begun = Instant::now();
    let route = (request.method().clone(), request.uri().path().to_owned());
    let (request, rest) = drain::lend(request);
    let mut response = next.run(request).await;
    rest.settle(&mut response).await;
    let failed = response.extensions_mut().remove::<error::Failure>();
    if id.is_none() && failed.is_none() {
        return response;
    }
    let id = id.unwrap_or_else(new_request_id);
    if let Some(failure) = failed {
        let (method, path) = route;
        let ms = begun.elapsed().as_millis();
        tracing::error!(request = ?id, %method, path, status = response.status().as_u16(), ms, "{}", failure.0);
    }
    response.headers_mut().insert(REQUEST_ID_HEADER, id);
    response
}

fn is_request_id(id: &HeaderValue) -> bool {
    (1..=64).contains(&id.len())
        && id.as_bytes().iter().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'))
}

fn new_request_id() -> HeaderValue {
    let text = Uuid::new_v4().simple().to_string();
    HeaderValue::from_str(&text).unwrap_or_else(|_| HeaderValue::from_static("unnamed"))
}
