//! The service itself: what it is, how it is, what it holds.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::HeaderMap;
use wire::api::{DoctorReport, ErrorBody, ServiceHealth, ServiceIndex};

use super::error::ApiError;
use super::{App, Shared, describe, ui};

/// What this service is and where its routes are.
#[utoipa::path(get, path = "/", tag = "service", responses((status = 200, body = ServiceIndex)))]
pub async fn index(State(app): Shared) -> Json<ServiceIndex> {
    let dashboard = app.registry.deps.settings.ui_enabled;
    Json(ServiceIndex {
        service: "sandboxd".into(),
        health: health(&app),
        docs_url: "/docs".into(),
        openapi_url: "/openapi.json".into(),
        ui_url: dashboard.then(|| ui::PATH.into()),
        endpoints: describe::endpoints(dashboard),
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
    Ok(Json((app.doctor)(app.registry.clone()).await))
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
