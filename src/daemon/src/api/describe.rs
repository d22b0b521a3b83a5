//! The API's description, made from the handlers themselves.

use std::fmt::Write;
use std::sync::OnceLock;

use axum::extract::State;
use axum::http::header::{CONTENT_SECURITY_POLICY, CONTENT_TYPE};
use axum::response::{Html, IntoResponse, Response};
use utoipa::OpenApi;

use super::{Shared, ui};
use super::{files, images, metering, operations, policy, run, runtimes, service, sessions, workspaces};

#[derive(OpenApi)]
#[openapi(
    info(
        title = "sandboxd",
        description = "Sandboxes for AI agents, one session each. Every route but /, /healthz, /docs and /openapi.json wants a token in the header X-Sandbox-Token."
    ),
    paths(
        service::index,
        service::healthz,
        service::doctor,
        images::list,
        images::caches,
        images::pull,
        images::remove,
        images::collect,
        images::import,
        images::export,
        metering::metrics,
        policy::get_policy,
        policy::put_policy,
        runtimes::list,
        runtimes::get,
        runtimes::briefing,
        runtimes::log,
        openapi_json,
        docs,
        sessions::create,
        sessions::list,
        sessions::get,
        sessions::delete,
        sessions::hibernate,
        sessions::wake,
        operations::events,
        operations::list,
        run::run,
        run::stop,
        files::read,
        files::write,
        files::stat,
        files::list,
        files::realpath,
        files::mkdir,
        files::remove,
        workspaces::list,
        workspaces::purge,
        workspaces::trees,
        workspaces::ls,
        workspaces::tree,
        workspaces::read,
        workspaces::read_bytes,
        workspaces::files,
    ),
    // In a stream, so that no answer names it.
    components(schemas(wire::api::RunExit))
)]
struct Description;

/// The description.
#[must_use]
pub fn openapi() -> &'static utoipa::openapi::OpenApi {
    static DESCRIPTION: OnceLock<utoipa::openapi::OpenApi> = OnceLock::new();
    DESCRIPTION.get_or_init(Description::openapi)
}

/// The paths of every route, sorted; with the page for people, if it is there.
#[must_use]
pub fn endpoints(dashboard: bool) -> Vec<String> {
    let mut paths: Vec<String> = openapi().paths.paths.keys().filter(|path| *path != "/").cloned().collect();
    // A page is no operation of the API, so that the description for machines has none of it.
    paths.extend(dashboard.then(|| ui::PATH.to_owned()));
    paths.sort();
    paths
}

/// This description, for machines.
#[utoipa::path(get, path = "/openapi.json", tag = "service", responses((status = 200)))]
pub async fn openapi_json() -> Response {
    static TEXT: OnceLock<String> = OnceLock::new();
    let text = TEXT.get_or_init(|| openapi().to_json().unwrap_or_else(|_| "{}".into()));
    ([(CONTENT_TYPE, "application/json")], text.as_str()).into_response()
}

/// This description, for people.
#[utoipa::path(get, path = "/docs", tag = "service", responses((status = 200)))]
pub async fn docs(State(app): Shared) -> Response {
    static PAGE: OnceLock<String> = OnceLock::new();
    let page = PAGE.get_or_init(|| page(app.registry.deps.settings.ui_enabled));
    let policy =
        "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
    ([(CONTENT_SECURITY_POLICY, policy)], Html(page.as_str())).into_response()
}

/// A plain page: each route, what it does, what it answers.
fn page(dashboard: bool) -> String {
    let description = serde_json::to_value(openapi()).unwrap_or_default();
    let mut page = String::from(
        "<!doctype html><html lang=en><meta charset=utf-8><title>sandboxd API</title>\
         <style>body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}\
         code{background:#8882;padding:.1em .3em}dt{margin-top:1rem}:root{color-scheme:light dark}</style>\
         <h1>sandboxd API</h1><p>Send a token as <code>X-Sandbox-Token</code>. For machines: <a href=/openapi.json>openapi.json</a>.</p>",
    );
    if dashboard {
        page.push_str("<p>For people there is <a href=/ui>the dashboard</a>.</p>");
    }
    page.push_str("<dl>");
    let paths = description["paths"].as_object().cloned().unwrap_or_default();
    for (path, methods) in paths {
        for (method, operation) in methods.as_object().cloned().unwrap_or_default() {
            let summary = operation["summary"].as_str().unwrap_or_default();
            let statuses: Vec<&String> =
                operation["responses"].as_object().map(|r| r.keys().collect()).unwrap_or_default();
            let statuses = statuses.into_iter().map(String::as_str).collect::<Vec<_>>().join(", ");
            let method = method.to_uppercase();
            // Writing to a string does not fail.
            let _ = write!(page, "<dt><code>{method} {path}</code></dt><dd>{summary} ({statuses})</dd>");
        }
    }
    page.push_str("</dl></html>");
    page
}
