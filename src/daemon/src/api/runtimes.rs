//! The runtimes that are offered: what they are, how far their images are, what a model is told of them.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use axum::http::HeaderMap;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use wire::api::{ErrorBody, RuntimeBriefing, RuntimeInfo, RuntimeList};
use wire::id::SessionId;

use super::error::ApiError;
use super::{App, Shared};
use crate::catalog::{self, InForce, NetworkMode, Runtime, Source};
use crate::session::Ceilings;

/// Every runtime, in the order of the catalogue.
#[utoipa::path(get, path = "/runtimes", tag = "runtimes", responses(
    (status = 200, body = RuntimeList), (status = 401, body = ErrorBody)))]
pub async fn list(State(app): Shared, headers: HeaderMap) -> Result<Json<RuntimeList>, ApiError> {
    app.service(&headers)?;
    Ok(Json(RuntimeList { runtimes: app.registry.runtimes().iter().map(|runtime| info(&app, runtime)).collect() }))
}

/// One runtime.
#[utoipa::path(get, path = "/runtimes/{alias}", tag = "runtimes", params(("alias" = String, Path)), responses(
    (status = 200, body = RuntimeInfo), (status = 401, body = ErrorBody),
    (status = 404, description = "No such runtime", body = ErrorBody),
    (status = 422, description = "Not an alias", body = ErrorBody)))]
pub async fn get(
    State(app): Shared,
    headers: HeaderMap,
    Path(alias): Path<String>,
) -> Result<Json<RuntimeInfo>, ApiError> {
    let runtime = find(&app, &headers, alias)?;
    Ok(Json(info(&app, &runtime)))
}

/// What a model is told about a runtime: one paragraph, or nothing if no catalogue ships it.
#[utoipa::path(get, path = "/runtimes/{alias}/briefing", tag = "runtimes", params(("alias" = String, Path)), responses(
    (status = 200, body = RuntimeBriefing), (status = 401, body = ErrorBody),
    (status = 404, description = "No such runtime", body = ErrorBody),
    (status = 422, description = "Not an alias", body = ErrorBody)))]
pub async fn briefing(
    State(app): Shared,
    headers: HeaderMap,
    Path(alias): Path<String>,
) -> Result<Json<RuntimeBriefing>, ApiError> {
    let runtime = find(&app, &headers, alias)?;
    let ceilings = Ceilings::of(&runtime.alias, &app.registry.policy());
    let work_dir = &app.registry.deps.settings.work_dir;
    let in_force = InForce { network: network(&app, &runtime), memory: ceilings.mem_limit.as_ref(), work_dir };
    Ok(Json(RuntimeBriefing {
        briefing: catalog::briefing(&runtime, in_force),
        reads_documents: catalog::reads_documents(&runtime),
        alias: runtime.alias.clone(),
    }))
}

/// The log of the last build of a runtime, also of one that goes on: what each step has printed.
#[utoipa::path(get, path = "/runtimes/{alias}/log", tag = "runtimes", params(("alias" = String, Path)), responses(
    (status = 200, body = String, content_type = "text/plain"), (status = 401, body = ErrorBody),
    (status = 404, description = "No such runtime, or it was not built here", body = ErrorBody),
    (status = 422, description = "Not an alias", body = ErrorBody),
    (status = 500, description = "The log cannot be read", body = ErrorBody)))]
pub async fn log(State(app): Shared, headers: HeaderMap, Path(alias): Path<String>) -> Result<Response, ApiError> {
    let runtime = find(&app, &headers, alias)?;
    let (reader, of) = (app.clone(), runtime.clone());
    let read = tokio::task::spawn_blocking(move || (reader.build_log)(&of));
    let text = read.await.map_err(|error| ApiError::Log(error.into()))?.map_err(ApiError::Log)?;
    let text = text.ok_or_else(|| ApiError::NoLog(runtime.alias.clone()))?;
    Ok(([(CONTENT_TYPE, "text/plain; charset=utf-8")], text).into_response())
}

fn find(app: &Arc<App>, headers: &HeaderMap, alias: String) -> Result<Arc<Runtime>, ApiError> {
    app.service(headers)?;
    // Aliases have the form of session ids.
    SessionId::parse(&alias).map_err(|e| ApiError::field("path", "alias", e.to_string(), "string_pattern_mismatch"))?;
    let found = app.registry.runtimes().iter().find(|runtime| runtime.alias == alias);
    found.cloned().ok_or(ApiError::NoRuntime(alias))
}

fn network(app: &App, runtime: &Runtime) -> NetworkMode {
    runtime.network.unwrap_or(app.registry.deps.settings.network_mode)
}

fn info(app: &Arc<App>, runtime: &Arc<Runtime>) -> RuntimeInfo {
    let image = (app.image_status)(runtime);
    let (name, definition) = match &runtime.source {
        Source::Image { reference, .. } => (reference.clone(), None),
        Source::Build(definition) => (definition.base.clone(), Some(definition)),
    };
    RuntimeInfo {
        alias: runtime.alias.clone(),
        description: runtime.description.clone(),
        default: app.registry.policy().default_runtime == runtime.alias,
        shipped: runtime.shipped,
        builds: definition.is_some(),
        image: name,
        packages: definition.map(|definition| definition.packages.clone()).unwrap_or_default(),
        package_manager: definition.map(|definition| definition.package_manager.to_string()),
        network_mode: network(app, runtime).as_str().to_owned(),
        reads_documents: catalog::reads_documents(runtime),
        state: image.state,
        tag: image.tag,
        progress: image.progress,
        pull: image.pull,
        error: image.error,
    }
}
