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
mod images;
mod inside;
mod metering;
mod operations;
mod path;
mod policy;
mod run;
mod runtimes;
mod service;
mod sessions;
mod stream;
mod ui;
mod workspaces;

use std::error::Error;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Instant;

use axum::Router;
use axum::extract::{DefaultBodyLimit, Request, State};
use axum::http::header::{CONTENT_SECURITY_POLICY, HeaderName, X_CONTENT_TYPE_OPTIONS};
use axum::http::{HeaderValue, StatusCode};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get, post};
use wire::api::{BuildProgress, DoctorReport, ImageInfo, PullProgress, REQUEST_ID_HEADER};
use wire::id::RequestId;

pub use error::ApiError;

use crate::archive::Archive;
use crate::catalog::Runtime;
use crate::operations::Log;
use crate::session::Registry;
use crate::{metrics, request};

/// Looks at the host, with what the sessions know of it. One look at a time.
pub type Doctor = Box<dyn Fn(Arc<Registry>) -> Pin<Box<dyn Future<Output = DoctorReport> + Send>> + Send + Sync>;

/// Where a runtime's last build is told of, if it was built.
pub type BuildLog = Box<dyn Fn(&Runtime) -> Result<Option<String>, Box<dyn Error + Send + Sync>> + Send + Sync>;

/// How far a runtime's image is.
#[derive(Debug, Clone, PartialEq)]
pub struct ImageStatus {
    /// `ready`, `building`, `failed` or `absent`.
    pub state: String,
    /// What identifies it, if that is known.
    pub tag: Option<String>,
    /// Where its build is.
    pub progress: Option<BuildProgress>,
    /// How far the pull of it, or of its base, is.
    pub pull: Option<PullProgress>,
    /// Why the last attempt failed.
    pub error: Option<String>,
}

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
    pub doctor: Doctor,
    /// The local images.
    pub images: Box<dyn Fn() -> Vec<ImageInfo> + Send + Sync>,
    /// How far a runtime's image is.
    pub image_status: Box<dyn Fn(&Runtime) -> ImageStatus + Send + Sync>,
    /// The log of a runtime's last build; blocks.
    pub build_log: BuildLog,
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
    let ui = if app.registry.deps.settings.ui_enabled { ui::routes() } else { Router::new() };
    let routes = Router::new()
        .merge(ui)
        .route("/", get(service::index))
        .route("/healthz", get(service::healthz))
        .route("/openapi.json", get(describe::openapi_json))
        .route("/docs", get(describe::docs))
        .route("/policy", get(policy::get_policy).put(policy::put_policy))
        .route("/doctor", get(service::doctor))
        .route("/images", get(images::list))
        .route("/images/caches", get(images::caches))
        .route("/images/pull", post(images::pull))
        .route("/images/gc", post(images::collect))
        .route("/images/import", post(images::import))
        .route("/images/{name}/archive", get(images::export))
        .route("/images/{name}", delete(images::remove))
        .route("/runtimes", get(runtimes::list))
        .route("/runtimes/{alias}", get(runtimes::get))
        .route("/runtimes/{alias}/briefing", get(runtimes::briefing))
        .route("/runtimes/{alias}/log", get(runtimes::log))
        .route("/metrics", get(metering::metrics))
        .route("/operations", get(operations::list))
        .route("/sessions", post(sessions::create).get(sessions::list))
        .route("/sessions/{session_id}", get(sessions::get).delete(sessions::delete))
        .route("/sessions/{session_id}/hibernate", post(sessions::hibernate))
        .route("/sessions/{session_id}/wake", post(sessions::wake))
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
        .route("/workspaces/{session_id}", delete(workspaces::purge))
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
        .with_state(app);
    // Around all of it: a layer within comes after the path has been read.
    Router::new().fallback_service(routes).layer(middleware::map_request(path::readable))
}

/// Give each request an id, put it on the answer, and log what failed on our side once, with it.
async fn name_request(request: Request, next: Next) -> Response {
    let given = request.headers().get(REQUEST_ID_HEADER).and_then(|id| RequestId::parse(id.to_str().ok()?).ok());
    let named = request::Request::new(given.unwrap_or_else(request::fresh));
    let id = named.id.clone();
    let mut response = request::scope(Some(named), answer(request, next)).await;
    metrics::ANSWERS.one(counted(response.status()));
    if let Ok(id) = HeaderValue::from_str(id.as_str()) {
        response.headers_mut().insert(REQUEST_ID_HEADER, id);
    }
    hold_down(&mut response);
    response
}

/// Answers are for programs, and may hold what a sandbox wrote: a browser that is led to one takes it for what its type says,
/// runs nothing in it, and shows it in no other page. The pages that are meant for people have a policy of their own.
fn hold_down(response: &mut Response) {
    const RESOURCE_POLICY: HeaderName = HeaderName::from_static("cross-origin-resource-policy");
    let headers = response.headers_mut();
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(RESOURCE_POLICY, HeaderValue::from_static("same-origin"));
    let policy = HeaderValue::from_static("default-src 'none'; frame-ancestors 'none'; sandbox");
    headers.entry(CONTENT_SECURITY_POLICY).or_insert(policy);
}

async fn answer(request: Request, next: Next) -> Response {
    let begun = Instant::now();
    let route = (request.method().clone(), request.uri().path().to_owned());
    let (request, rest) = drain::lend(request);
    let mut response = next.run(request).await;
    rest.settle(&mut response).await;
    if let Some(failure) = response.extensions_mut().remove::<error::Failure>() {
        let (method, path) = route;
        let ms = begun.elapsed().as_millis();
        tracing::error!(%method, path, status = response.status().as_u16(), ms, "{}", failure.0);
    }
    response
}

fn counted(status: StatusCode) -> metrics::Answer {
    match status.as_u16() {
        200..=299 => metrics::Answer::Success,
        401 => metrics::Answer::Unauthorized,
        429 => metrics::Answer::TooMany,
        400..=499 => metrics::Answer::Client,
        507 => metrics::Answer::Full,
        500..=599 => metrics::Answer::Server,
        _ => metrics::Answer::Other,
    }
}
