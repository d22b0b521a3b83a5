//! The service itself: what it is, how it is, what it holds.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::HeaderMap;
use wire::api::{DoctorReport, ErrorBody, ImageInfo, ServiceHealth, ServiceIndex};

use super::error::ApiError;
use super::{App, Shared, describe};

/// What this service is and where its routes are.
#[utoipa::path(get, path = "/", tag = "service", responses((status = 200, body = ServiceIndex)))]
pub async fn index(State(app): Shared) -> Json<ServiceIndex> {
    Json(ServiceIndex {
        service: "sandboxd".into(),
        health: health(&app),
        docs_url: "/docs".into(),
        openapi_url: "/openapi.json".into(),
        ui_url: None,
        endpoints: describe::endpoints(),
    })
}

/// Whether it works, and how much of it is in use.
#[utoipa::path(get, path = "/healthz", tag = "service", responses((status = 200, body = ServiceHealth)))]
pub async fn healthz(State(app): Shared) -> Json<ServiceHealth> {
    Json(health(&app))
}

/// What this host has and lacks.
#[utoipa::path(get, path = "/doctor", tag = "service", responses(
    (status = 200, body = DoctorReport), (status = 401, body = ErrorBody)))]
pub async fn doctor(State(app): Shared, headers: HeaderMap) -> Result<Json<DoctorReport>, ApiError> {
    app.service(&headers)?;
    let mut report = (app.doctor)(app.registry.deps.quotas.enforcement().await);
    report.findings.push(app.registry.deps.networks.finding(app.registry.runtimes()).await);
    report.findings.sort_by_key(|finding| std::cmp::Reverse(finding.level));
    Ok(Json(report))
}

/// The local images.
#[utoipa::path(get, path = "/images", tag = "service", responses(
    (status = 200, body = Vec<ImageInfo>), (status = 401, body = ErrorBody)))]
pub async fn images(State(app): Shared, headers: HeaderMap) -> Result<Json<Vec<ImageInfo>>, ApiError> {
    app.service(&headers)?;
    Ok(Json((app.images)()))
}

fn health(app: &Arc<App>) -> ServiceHealth {
    let counts = app.registry.counts();
    let policy = app.registry.policy();
    let mut runtimes: Vec<String> = app.registry.runtimes().iter().map(|runtime| runtime.alias.clone()).collect();
    runtimes.sort();
    ServiceHealth {
        status: "ok".into(),
        sessions: counts.resident,
        limit: policy.max_sessions,
        open_sessions: counts.open,
        open_limit: policy.max_open_sessions,
        runtimes,
    }
}
