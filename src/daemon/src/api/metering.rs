//! `GET /metrics`: what was counted, and what there is now, as Prometheus reads it.

use axum::extract::State;
use axum::http::HeaderMap;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use wire::api::ErrorBody;

use super::error::ApiError;
use super::{App, Shared};
use crate::metrics::{self, Kind, Text};
use crate::session::Census;

/// Figures for Prometheus, in its text format. The service token opens it, and the one that is for nothing else
/// (`metrics_token`), as X-Sandbox-Token or as Authorization: Bearer.
#[utoipa::path(get, path = "/metrics", tag = "service", responses(
    (status = 200, content((String = "text/plain"))), (status = 401, body = ErrorBody)))]
pub async fn metrics(State(app): Shared, headers: HeaderMap) -> Result<Response, ApiError> {
    app.scrape(&headers)?;
    app.registry.deps.networks.count().await;
    let registry = app.registry.clone();
    // It reads files of the kernel's, some for each sandbox.
    let census = tokio::task::spawn_blocking(move || registry.census()).await.unwrap_or_default();
    let mut text = Text::default();
    build(&mut text);
    metrics::process::write(&mut text);
    sessions(&app, &mut text, &census);
    tenants(&mut text, &census);
    metrics::write(&mut text);
    let headers = [(CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8"), (CACHE_CONTROL, "no-store")];
    Ok((headers, text.done()).into_response())
}

fn build(text: &mut Text) {
    text.name("sandboxd_build_info", Kind::Gauge, "1, with what this is.");
    text.sample("sandboxd_build_info", &[("version", env!("CARGO_PKG_VERSION"))], 1);
}

fn sessions(app: &App, text: &mut Text, census: &Census) {
    text.name("sandboxd_sessions", Kind::Gauge, "Sessions now, by state.");
    for (state, count) in &census.states {
        text.sample("sandboxd_sessions", &[("state", state)], count);
    }
    let policy = app.registry.policy();
    text.name("sandboxd_sessions_limit", Kind::Gauge, "Ceilings of sessions; none where there is none.");
    for (of, limit) in [("resident", policy.max_sessions), ("open", policy.max_open_sessions)] {
        if let Some(limit) = limit {
            text.sample("sandboxd_sessions_limit", &[("of", of)], limit);
        }
    }
    let free = app.registry.deps.quotas.free();
    text.single("sandboxd_disk_free_bytes", Kind::Gauge, "What is free on the disk of the sessions.", free.bytes);
    text.single(
        "sandboxd_disk_reserve_bytes",
        Kind::Gauge,
        "Below so much nothing is opened or written.",
        free.reserve,
    );
    text.name("sandboxd_egress_refused", Kind::Gauge, "What the sandboxes that run now were refused of the network.");
    text.sample("sandboxd_egress_refused", &[("what", "packets")], census.refused_packets);
    text.sample("sandboxd_egress_refused", &[("what", "names")], census.refused_names);
}

fn tenants(text: &mut Text, census: &Census) {
    text.name("sandboxd_tenant_sessions", Kind::Gauge, "Sessions now, by tenant.");
    for tenant in &census.tenants {
        text.sample("sandboxd_tenant_sessions", &[("tenant", &tenant.name)], tenant.sessions);
    }
    text.name("sandboxd_tenant_memory_bytes", Kind::Gauge, "Memory of sandboxes now, by tenant.");
    for tenant in &census.tenants {
        text.sample("sandboxd_tenant_memory_bytes", &[("tenant", &tenant.name)], tenant.memory);
    }
    text.name("sandboxd_tenant_cpu_seconds_total", Kind::Counter, "CPU time of sandboxes, by tenant.");
    for tenant in &census.tenants {
        let seconds = metrics::seconds(tenant.cpu_us);
        text.sample("sandboxd_tenant_cpu_seconds_total", &[("tenant", &tenant.name)], seconds);
    }
}
