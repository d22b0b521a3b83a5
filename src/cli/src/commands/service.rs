//! `images` and `policy`.

use wire::api::{ImageInfo, RuntimePolicy, ServicePolicy};

use crate::client::{Call, Client};
use crate::error::Failure;
use crate::output::{Table, age, harmless, print, size};

/// List the local images.
pub async fn images(client: &mut Client, json: bool) -> Result<(), Failure> {
    let answer = client.ask(Call::get("list the images", "/images")).await?;
    if json { answer.print_json() } else { print(image_table(&answer.parse::<Vec<ImageInfo>>()?)) }
}

fn image_table(images: &[ImageInfo]) -> String {
    if images.is_empty() {
        return "no images yet: a runtime's is made when it is first opened\n".to_owned();
    }
    let mut table = Table::new(&["IMAGE", "STATE", ">SIZE", ">LAYERS", ">AGE", "RUNTIMES"]);
    let none = || "-".to_owned();
    for image in images {
        let runtimes = if image.runtimes.is_empty() { none() } else { image.runtimes.join(", ") };
        let layers = image.layers.len().to_string();
        let made = image.created_at.map_or_else(none, age);
        table.row([
            image.reference.clone(),
            image.state.clone(),
            image.size.map_or_else(none, size),
            layers,
            made,
            runtimes,
        ]);
    }
    let mut text = table.render();
    for image in images {
        if let Some(error) = &image.error {
            text.push_str(&format!("{}: {}\n", harmless(&image.reference), harmless(error)));
        }
    }
    text
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
    fn a_failed_image_says_why() {
        let image = |state: &str, error: Option<&str>| ImageInfo {
            reference: "sandboxd/demo:1".into(),
            runtimes: vec!["demo".into()],
            state: state.into(),
            size: (state == "ready").then_some(300 << 20),
            layers: vec!["a".into()],
            created_at: None,
            error: error.map(str::to_owned),
        };
        let text = image_table(&[image("ready", None), image("failed", Some("pip: no such package\u{7}"))]);
        assert!(text.contains("ready   300.0 MiB       1"), "{text}");
        assert!(text.ends_with("sandboxd/demo:1: pip: no such package\\u{7}\n"), "{text}");
        assert!(image_table(&[]).contains("no images yet"));
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
