//! The dashboard's page and its files: the same for everybody, so no token is asked for. Off, there are no such routes.
//!
//! Each says which edition of the page it is of (`ETag`): a browser that has it fetches nothing, and a page that is open sees that
//! the service has another one by now.

use axum::Router;
use axum::extract::Path;
use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, ETAG, HeaderName, IF_NONE_MATCH, REFERRER_POLICY,
};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::get;

use super::error::ApiError;
use crate::dashboard::{self, Asset};

/// Where the page is.
pub const PATH: &str = "/ui";

/// The page's routes.
pub fn routes<S: Clone + Send + Sync + 'static>() -> Router<S> {
    // Relative, so that a prefix of a proxy is kept.
    let slash = get(async || Redirect::permanent("../ui"));
    Router::new().route(PATH, get(page)).route("/ui/", slash).route("/ui/{name}", get(file))
}

async fn page(asked: HeaderMap) -> Response {
    respond(&dashboard::PAGE, &asked)
}

async fn file(Path(name): Path<String>, asked: HeaderMap) -> Result<Response, ApiError> {
    dashboard::asset(&name).map(|asset| respond(asset, &asked)).ok_or(ApiError::NoRoute)
}

fn respond(asset: &Asset, asked: &HeaderMap) -> Response {
    let edition = dashboard::edition();
    let headers = [
        (ETAG, edition),
        (CONTENT_TYPE, asset.kind),
        (CONTENT_SECURITY_POLICY, dashboard::CONTENT_SECURITY_POLICY),
        (REFERRER_POLICY, "no-referrer"),
        (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
        // What it shows is another's after an upgrade.
        (CACHE_CONTROL, "no-cache"),
    ];
    let known = asked.get_all(IF_NONE_MATCH).iter().any(|tag| tag.as_bytes() == edition.as_bytes());
    if known { (StatusCode::NOT_MODIFIED, headers).into_response() } else { (headers, asset.text).into_response() }
}
