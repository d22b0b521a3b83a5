//! `policy get`, `health`, `metrics`, `service`, `openapi`: the service itself.

use std::collections::BTreeMap;

use wire::api::{RuntimePolicy, ServiceHealth, ServiceIndex, ServicePolicy};

use crate::client::{Call, Client};
use crate::error::Failure;
use crate::output::{Table, harmless, print, print_json, size};

/// Say whether the service works: it answered.
pub async fn health(client: &mut Client, json: bool) -> Result<(), Failure> {
    let answer = client.ask(Call::get("ask for the health", "/healthz")).await?;
    if json { answer.print_json() } else { print(health_text(&answer.parse()?)) }
}

fn health_text(health: &ServiceHealth) -> String {
    let of = |limit: Option<u64>| limit.map_or_else(String::new, |limit| format!(" of {limit}"));
    format!(
        "{}: {}{} awake, {}{} open; runtimes: {}\n",
        harmless(&health.status),
        health.sessions,
        of(health.limit),
        health.open_sessions,
        of(health.open_limit),
        harmless(&health.runtimes.join(", "))
    )
}

/// Print the figures as they are, or as an object: what is before the value of a line, and the value.
pub async fn metrics(client: &mut Client, json: bool) -> Result<(), Failure> {
    let text = client.ask(Call::get("read the figures", "/metrics")).await?.ok()?.body;
    if json { print_json(&figures(&String::from_utf8_lossy(&text))) } else { print(text) }
}

fn figures(text: &str) -> BTreeMap<&str, f64> {
    let samples = text.lines().filter(|line| !line.starts_with('#'));
    samples
        .filter_map(|line| line.rsplit_once(' ').and_then(|(name, value)| Some((name, value.parse().ok()?))))
        .collect()
}

/// Show what the service is, and its routes.
pub async fn index(client: &mut Client, json: bool) -> Result<(), Failure> {
    let address = client.address();
    let answer = client.ask(Call::get("look at the service", "/")).await?;
    if json {
        return answer.print_json();
    }
    let index: ServiceIndex = answer.parse()?;
    let routes: Vec<String> = index.endpoints.iter().map(|route| format!("  {}\n", harmless(route))).collect();
    print(format!("{} at {address}\n{}{}", harmless(&index.service), health_text(&index.health), routes.concat()))
}

/// Print the API's description, for machines or for people.
pub async fn describe(client: &mut Client, html: bool, json: bool) -> Result<(), Failure> {
    if html {
        return print(client.ask(Call::get("read the documentation", "/docs")).await?.ok()?.body);
    }
    let answer = client.ask(Call::get("read the description", "/openapi.json")).await?;
    if json { answer.print_json() } else { print(answer.ok()?.body) }
}

/// Show everything that is in force.
pub async fn policy(client: &mut Client, json: bool) -> Result<(), Failure> {
    let answer = client.ask(Call::get("read the policy", "/policy")).await?;
    if json { answer.print_json() } else { print(policy_text(&answer.parse()?)) }
}

fn policy_text(policy: &ServicePolicy) -> String {
    let mut text = String::new();
    if !policy.unenforced_limits.is_empty() {
        let limits = harmless(&policy.unenforced_limits.join(", "));
        text.push_str(&format!("NOT ENFORCED on this host: {limits}. Not for production; see sandboxctl doctor.\n\n"));
    }
    text.push_str(&runtime_table(&policy.runtimes, &policy.default_runtime));
    text.push('\n');
    let mut table = Table::new(&["SETTING", "VALUE"]);
    for (name, value) in settings(policy) {
        table.row([name.to_owned(), value]);
    }
    text.push_str(&table.render());
    text
}

fn runtime_table(runtimes: &[RuntimePolicy], default: &str) -> String {
    let mut table = Table::new(&["RUNTIME", "MEMORY", ">CPUS", ">PROCESSES", "NETWORK", "IMAGE", "DESCRIPTION"]);
    for runtime in runtimes {
        let mark = if runtime.alias == default { " (default)" } else { "" };
        table.row([
            format!("{}{mark}", runtime.alias),
            shown(runtime.mem_limit.as_ref()),
            shown(runtime.cpus.as_ref()),
            shown(runtime.pids_limit.as_ref()),
            runtime.network_mode.clone(),
            runtime.image.clone(),
            runtime.description.clone(),
        ]);
    }
    table.render()
}

fn settings(policy: &ServicePolicy) -> Vec<(&'static str, String)> {
    let seconds = |value: u64| format!("{value} s");
    let optional_seconds = |value: Option<u64>| value.map_or_else(|| "never".to_owned(), seconds);
    let yes = |value: bool| if value { "yes" } else { "no" }.to_owned();
    vec![
        ("default_runtime", policy.default_runtime.clone()),
        ("max_sessions", shown(policy.max_sessions.as_ref())),
        ("max_open_sessions", shown(policy.max_open_sessions.as_ref())),
        ("max_sessions_per_tenant", shown(policy.max_sessions_per_tenant.as_ref())),
        ("evict_idle_after", optional_seconds(policy.evict_idle_after)),
        ("mem_limit", shown(policy.mem_limit.as_ref())),
        ("memswap_limit", shown(policy.memswap_limit.as_ref())),
        ("cpus", shown(policy.cpus.as_ref())),
        ("cpu_shares", shown(policy.cpu_shares.as_ref())),
        ("pids_limit", shown(policy.pids_limit.as_ref())),
        ("io_weight", shown(policy.io_weight.as_ref())),
        ("open_files", shown(policy.open_files.as_ref())),
        ("network_mode", policy.network_mode.clone()),
        ("oci_runtime", policy.oci_runtime.clone().unwrap_or_else(|| "built in".to_owned())),
        ("work_dir", policy.work_dir.clone()),
        ("idle_timeout", seconds(policy.idle_timeout)),
        ("execute_timeout", seconds(policy.execute_timeout)),
        ("max_read_bytes", size(policy.max_read_bytes)),
        ("persist_containers", yes(policy.persist_containers)),
        ("sandbox_uid", shown(policy.sandbox_uid.as_ref())),
        ("workspace_ttl", optional_seconds(policy.workspace_ttl)),
        ("container_ttl", optional_seconds(policy.container_ttl)),
        ("tmpfs_size", shown(policy.tmpfs_size.as_ref())),
        ("disk_quota", shown(policy.disk_quota.as_ref())),
        ("disk_inodes", shown(policy.disk_inodes.as_ref())),
        ("disk_reserve", shown(policy.disk_reserve.as_ref())),
        ("disk_enforcement", shown(Some(&policy.disk_enforcement).filter(|by| !by.is_empty()))),
        ("prewarm", yes(policy.prewarm)),
        ("buildkit", yes(policy.buildkit)),
        ("native_files", yes(policy.native_files)),
        ("native_writes", yes(policy.native_writes)),
        ("native_realpath", yes(policy.native_realpath)),
        ("host_id", shown(Some(&policy.host_id).filter(|id| !id.is_empty()))),
    ]
}

fn shown<T: ToString>(value: Option<&T>) -> String {
    value.map_or_else(|| "-".to_owned(), ToString::to_string)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_named_by_what_is_before_their_value() {
        let found = figures("# HELP x What.\n# TYPE x gauge\nx{a=\"b c\"} 1.5\nbroken\ny 2\n");
        assert_eq!(found, BTreeMap::from([("x{a=\"b c\"}", 1.5), ("y", 2.0)]));
    }

    #[test]
    fn every_setting_of_the_policy_is_shown() {
        let policy: ServicePolicy = serde_json::from_value(serde_json::json!({
            "runtimes": [{"alias": "demo", "image": "debian + 3 package(s)", "description": "d", "builds": true, "mem_limit": "1g",
                "memswap_limit": null, "cpus": 2.0, "cpu_shares": null, "pids_limit": 512, "network_mode": "none", "oci_runtime": null}],
            "default_runtime": "demo", "max_sessions": 20, "max_open_sessions": null, "max_sessions_per_tenant": null,
            "evict_idle_after": null, "mem_limit": "1g", "memswap_limit": null, "cpus": 2.0, "cpu_shares": null, "pids_limit": 512,
            "network_mode": "none", "oci_runtime": null, "work_dir": "/workspace", "idle_timeout": 1800, "execute_timeout": 300,
            "max_read_bytes": 8_388_608, "persist_containers": false, "sandbox_uid": 10001, "workspace_ttl": null, "container_ttl": null,
            "tmpfs_size": "64m", "prewarm": true, "buildkit": true, "native_files": true, "native_writes": true, "native_realpath": true,
            "unenforced_limits": ["memory"]
        }))
        .unwrap();
        let text = policy_text(&policy);
        assert!(text.starts_with("NOT ENFORCED on this host: memory."), "{text}");
        let fields = serde_json::to_value(&policy).unwrap();
        let fields =
            fields.as_object().unwrap().keys().filter(|key| !matches!(key.as_str(), "runtimes" | "unenforced_limits"));
        for field in fields {
            assert!(text.contains(&format!("\n{field} ")), "{field} is not shown");
        }
    }
}
