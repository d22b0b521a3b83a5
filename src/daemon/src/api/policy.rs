//! What is in force.

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderMap;
use wire::api::{ErrorBody, PolicyUpdate, RuntimePolicy, ServicePolicy};
use wire::launch::OciRuntime;

use super::error::ApiError;
use super::{App, Shared, body};
use crate::catalog::{Runtime, Size};
use crate::config::Settings;
use crate::session::{Ceilings, Policy};

/// The allowlist, and every ceiling and lifetime in force.
#[utoipa::path(get, path = "/policy", tag = "service", responses(
    (status = 200, body = ServicePolicy), (status = 401, body = ErrorBody)))]
pub async fn get_policy(State(app): Shared, headers: HeaderMap) -> Result<Json<ServicePolicy>, ApiError> {
    app.service(&headers)?;
    Ok(Json(policy(&app).await))
}

/// Change ceilings and lifetimes, for the next sandbox. What a runtime is, and whether it is isolated, is not changed here.
#[utoipa::path(put, path = "/policy", tag = "service", request_body = PolicyUpdate, responses(
    (status = 200, body = ServicePolicy),
    (status = 400, description = "No such runtime", body = ErrorBody),
    (status = 401, body = ErrorBody),
    (status = 413, body = ErrorBody),
    (status = 422, description = "A field that may not be changed, or not to that", body = ErrorBody)))]
pub async fn put_policy(
    State(app): Shared,
    headers: HeaderMap,
    request: Body,
) -> Result<Json<ServicePolicy>, ApiError> {
    app.service(&headers)?;
    let update: PolicyUpdate = body::json(request, body::JSON_MAX).await?;
    if app.registry.update_policy(&update)? {
        tracing::info!("policy updated");
    }
    Ok(Json(policy(&app).await))
}

async fn policy(app: &App) -> ServicePolicy {
    let settings = &app.registry.deps.settings;
    let policy = app.registry.policy();
    let mut runtimes: Vec<RuntimePolicy> =
        app.registry.runtimes().iter().map(|r| runtime(r, &policy, settings)).collect();
    runtimes.sort_by(|a, b| a.alias.cmp(&b.alias));
    ServicePolicy {
        runtimes,
        default_runtime: policy.default_runtime.clone(),
        max_sessions: policy.max_sessions,
        max_open_sessions: policy.max_open_sessions,
        max_sessions_per_tenant: policy.max_sessions_per_tenant,
        evict_idle_after: policy.evict_idle_after,
        mem_limit: text(policy.limits.mem_limit.as_ref()),
        memswap_limit: text(policy.limits.memswap_limit.as_ref()),
        cpus: policy.limits.cpus,
        cpu_shares: policy.limits.cpu_shares,
        pids_limit: policy.limits.pids_limit,
        io_weight: policy.limits.io_weight,
        open_files: policy.limits.open_files,
        network_mode: settings.network_mode.as_str().to_owned(),
        oci_runtime: settings.oci_runtime.map(name),
        work_dir: settings.work_dir.clone(),
        idle_timeout: policy.idle_timeout,
        execute_timeout: policy.execute_timeout,
        max_read_bytes: policy.max_read_bytes,
        persist_containers: settings.persist_containers,
        sandbox_uid: Some(settings.sandbox_uid),
        workspace_ttl: policy.workspace_ttl,
        container_ttl: policy.container_ttl,
        tmpfs_size: text(policy.limits.tmpfs_size.as_ref()),
        prewarm: settings.prewarm,
        buildkit: true,
        native_files: settings.native_files,
        native_writes: settings.native_files,
        native_realpath: settings.native_files,
        disk_quota: text(settings.disk_quota.as_ref()),
        disk_inodes: settings.disk_inodes,
        disk_reserve: text(settings.disk_reserve.as_ref()),
        disk_enforcement: app.registry.deps.quotas.enforced_by().await.to_owned(),
        unenforced_limits: app.unenforced_limits.clone(),
        host_id: app.host_id.clone(),
    }
}

fn runtime(runtime: &Runtime, policy: &Policy, settings: &Settings) -> RuntimePolicy {
    let ceilings = Ceilings::of(&runtime.alias, policy);
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
        io_weight: ceilings.io_weight,
        open_files: ceilings.open_files,
        tmpfs_size: text(ceilings.tmpfs_size.as_ref()),
        network_mode: runtime.network.unwrap_or(settings.network_mode).as_str().to_owned(),
        oci_runtime: runtime.oci_runtime.or(settings.oci_runtime).map(name),
    }
}

fn name(runtime: OciRuntime) -> String {
    runtime.name().to_owned()
}

fn text(size: Option<&Size>) -> Option<String> {
    size.map(|size| size.text().to_owned())
}
