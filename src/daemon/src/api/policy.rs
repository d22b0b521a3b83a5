//! What is in force.

use axum::Json;
use axum::extract::State;
use axum::http::HeaderMap;
use wire::api::{ErrorBody, RuntimePolicy, ServicePolicy};

use super::error::ApiError;
use super::{App, Shared};
use crate::catalog::{Runtime, Size};
use crate::config::Settings;
use crate::session::Ceilings;

/// The allowlist, and every ceiling and lifetime in force.
#[utoipa::path(get, path = "/policy", tag = "service", responses(
    (status = 200, body = ServicePolicy), (status = 401, body = ErrorBody)))]
pub async fn get_policy(State(app): Shared, headers: HeaderMap) -> Result<Json<ServicePolicy>, ApiError> {
    app.service(&headers)?;
    Ok(Json(policy(&app)))
}

fn policy(app: &App) -> ServicePolicy {
    let settings = &app.registry.deps.settings;
    let mut runtimes: Vec<RuntimePolicy> = app.registry.runtimes().iter().map(|r| runtime(r, settings)).collect();
    runtimes.sort_by(|a, b| a.alias.cmp(&b.alias));
    ServicePolicy {
        runtimes,
        default_runtime: app.registry.default_runtime().to_owned(),
        max_sessions: settings.max_sessions,
        max_open_sessions: settings.max_open_sessions,
        max_sessions_per_tenant: settings.max_sessions_per_tenant,
        evict_idle_after: settings.evict_idle_after,
        mem_limit: text(settings.mem_limit.as_ref()),
        memswap_limit: text(settings.memswap_limit.as_ref()),
        cpus: settings.cpus,
        cpu_shares: settings.cpu_shares,
        pids_limit: settings.pids_limit,
        network_mode: settings.network_mode.as_str().to_owned(),
        oci_runtime: settings.oci_runtime.clone(),
        work_dir: settings.work_dir.clone(),
        idle_timeout: settings.idle_timeout,
        execute_timeout: settings.execute_timeout,
        max_read_bytes: settings.max_read_bytes,
        persist_containers: settings.persist_containers,
        sandbox_uid: Some(settings.sandbox_uid),
        workspace_ttl: settings.workspace_ttl,
        container_ttl: settings.container_ttl,
        tmpfs_size: text(settings.tmpfs_size.as_ref()),
        prewarm: settings.prewarm,
        buildkit: true,
        native_files: settings.native_files,
        native_writes: settings.native_files,
        native_realpath: settings.native_files,
        unenforced_limits: app.unenforced_limits.clone(),
    }
}

fn runtime(runtime: &Runtime, settings: &Settings) -> RuntimePolicy {
    let ceilings = Ceilings::of(runtime, settings);
    RuntimePolicy {
        alias: runtime.alias.clone(),
        image: runtime.policy_image(),
        description: runtime.description.clone(),
        builds: runtime.builds(),
        mem_limit: text(ceilings.mem_limit.as_ref()),
        memswap_limit: text(ceilings.memswap_limit.as_ref()),
        cpus: ceilings.cpus,
        cpu_shares: ceilings.cpu_shares,
        pids_limit: ceilings.pids_limit,
        network_mode: runtime.network.unwrap_or(settings.network_mode).as_str().to_owned(),
        oci_runtime: runtime.oci_runtime.clone().or_else(|| settings.oci_runtime.clone()),
    }
}

fn text(size: Option<&Size>) -> Option<String> {
    size.map(|size| size.text().to_owned())
}
