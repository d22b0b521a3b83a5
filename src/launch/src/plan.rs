//! Pure checks: every field of every request against the configuration, before anything is done.
//!
//! Ids are valid by construction ([`wire::id`]); what is checked here is everything else. A request
//! that passes can name no directory, id range, mount or network but those that the configuration gives to the service.

use wire::launch::{
    Egress, Kind, Limits, MAX_LAYERS, MAX_MEASURED, MAX_PERMITS, Network, OciRuntime, Permit, Plan, Request,
};

use crate::config::Config;
use crate::error::Error;

/// Longest working directory, in bytes, and most components of one.
const MAX_WORK_DIR: usize = 1024;
const MAX_DEPTH: usize = 32;
/// Where no workspace may be mounted, nor below it: kernel file systems.
const KERNEL_DIRS: [&str; 3] = ["proc", "sys", "dev"];
/// Where none may be mounted: places that the launcher fills itself.
const OUR_PATHS: [&str; 4] = ["/tmp", wire::init::INIT_PATH, "/etc/sandboxd", "/var/cache/sandboxd-build"];

fn refused<T>(field: &'static str, reason: impl Into<String>) -> Result<T, Error> {
    Err(Error::Refused { field, reason: reason.into() })
}

/// Check a request that arrived with `descriptors` descriptors.
///
/// # Errors
/// [`Error::Refused`] with the first field that is not allowed.
pub fn check(request: &Request, descriptors: usize, config: &Config) -> Result<(), Error> {
    let wanted = match request {
        Request::Start { .. } | Request::Unpack { .. } | Request::Pack { .. } | Request::Bootstrap { .. } => 1,
        Request::Stop { .. }
        | Request::Freeze { .. }
        | Request::Thaw { .. }
        | Request::List {}
        | Request::About {}
        | Request::Runtime { .. }
        | Request::Commit { .. }
        | Request::Forget { .. }
        | Request::RemoveLayer { .. }
        | Request::RemoveWorkspace { .. }
        | Request::Usage { .. }
        | Request::Caches { .. }
        | Request::Network {}
        | Request::Permit { .. }
        | Request::Refusals {} => 0,
    };
    if descriptors != wanted {
        return refused("descriptors", format!("{descriptors} came with the message, {wanted} belong to it"));
    }
    match request {
        Request::Start { plan } => check_plan(plan, config),
        Request::Bootstrap { recipe } => check_recipe(recipe),
        Request::Usage { ids } if ids.len() > MAX_MEASURED => {
            refused("ids", format!("{} sessions; at most {MAX_MEASURED} at once", ids.len()))
        }
        Request::Stop { .. }
        | Request::Freeze { .. }
        | Request::Thaw { .. }
        | Request::List {}
        | Request::About {}
        | Request::Runtime { .. }
        | Request::Unpack { .. }
        | Request::Pack { .. }
        | Request::Commit { .. }
        | Request::Forget { .. }
        | Request::RemoveLayer { .. }
        | Request::RemoveWorkspace { .. }
        | Request::Usage { .. }
        | Request::Caches { .. }
        | Request::Network {}
        | Request::Refusals {} => Ok(()),
        Request::Permit { permits, .. } => check_permits(permits),
    }
}

fn check_plan(plan: &Plan, config: &Config) -> Result<(), Error> {
    if plan.slot == 0 || plan.slot >= config.slots {
        return refused("slot", format!("{} is not within 1..{}", plan.slot, config.slots));
    }
    if plan.layers.is_empty() || plan.layers.len() > MAX_LAYERS {
        return refused("layers", format!("{} layers; 1 to {MAX_LAYERS} are possible", plan.layers.len()));
    }
    if plan.workspace_uid >= wire::launch::IDS_PER_SANDBOX {
        return refused("workspace_uid", format!("{} is not within 0..65536", plan.workspace_uid));
    }
    if let Some(reason) = bad_work_dir(&plan.work_dir) {
        return refused("work_dir", reason);
    }
    if !is_hostname(&plan.hostname) {
        return refused("hostname", "must match [A-Za-z0-9][A-Za-z0-9._-]{0,63}");
    }
    if plan.tmpfs_bytes.is_some_and(|bytes| !(4096..=1 << 40).contains(&bytes)) {
        return refused("tmpfs_bytes", "not within 4096..=2^40");
    }
    check_limits(&plan.limits)?;
    check_network(plan, config)
}

fn check_network(plan: &Plan, config: &Config) -> Result<(), Error> {
    if plan.network != Network::Bridge && plan.egress != Egress::default() {
        return refused("egress", "belongs to the network bridge");
    }
    match (plan.network, plan.kind) {
        (Network::None, Kind::Session | Kind::Build) => Ok(()),
        (Network::Bridge, Kind::Session | Kind::Build) if plan.oci_runtime == OciRuntime::Runsc => refused(
            "network",
            "runsc gives sandboxes none; the runtime needs another oci_runtime: builtin, crun or runc",
        ),
        (Network::Bridge, Kind::Session | Kind::Build) => crate::net::check(&plan.egress, config.network.as_ref()),
        (Network::Host, Kind::Session) => refused("network", "only a build may use the host's"),
        (Network::Host, Kind::Build) if config.allow_host_network_builds => Ok(()),
        (Network::Host, Kind::Build) => {
            refused("network", "the host's is for builds, and only where allow_host_network_builds is set")
        }
    }
}

fn check_permits(permits: &[Permit]) -> Result<(), Error> {
    if permits.is_empty() || permits.len() > MAX_PERMITS {
        return refused("permits", format!("{} permits; 1 to {MAX_PERMITS} are possible", permits.len()));
    }
    if permits.iter().any(|permit| !(1..=86_400).contains(&permit.seconds)) {
        return refused("permits.seconds", "not within 1..=86400");
    }
    Ok(())
}

fn check_limits(limits: &Limits) -> Result<(), Error> {
    if limits.memory_bytes.is_some_and(|bytes| bytes < 64 * 1024) {
        return refused("limits.memory_bytes", "less than 65536");
    }
    if limits.cpu_quota_us.is_some_and(|us| !(1000..=100_000 * 4096).contains(&us)) {
        return refused("limits.cpu_quota_us", "not within 1000..=409600000 of each 100000");
    }
    if limits.cpu_weight.is_some_and(|weight| !(1..=10_000).contains(&weight)) {
        return refused("limits.cpu_weight", "not within 1..=10000");
    }
    if limits.pids.is_some_and(|pids| !(1..=4_194_304).contains(&pids)) {
        return refused("limits.pids", "not within 1..=4194304");
    }
    if limits.cpus.is_some_and(|cpus| !(1..=4096).contains(&cpus)) {
        return refused("limits.cpus", "not within 1..=4096");
    }
    if limits.io_weight.is_some_and(|weight| !(1..=10_000).contains(&weight)) {
        return refused("limits.io_weight", "not within 1..=10000");
    }
    if limits.files.is_some_and(|files| !(64..=1_048_576).contains(&files)) {
        return refused("limits.files", "not within 64..=1048576");
    }
    if limits.disk_bytes.is_some_and(|bytes| !(1 << 20..=1 << 60).contains(&bytes)) {
        return refused("limits.disk_bytes", "not within 2^20..=2^60");
    }
    if limits.disk_inodes.is_some_and(|inodes| !(100..=1 << 40).contains(&inodes)) {
        return refused("limits.disk_inodes", "not within 100..=2^40");
    }
    Ok(())
}

fn bad_work_dir(path: &str) -> Option<String> {
    let Some(relative) = path.strip_prefix('/') else { return Some("not absolute".into()) };
    if path.len() > MAX_WORK_DIR {
        return Some(format!("longer than {MAX_WORK_DIR} bytes"));
    }
    if path.bytes().any(|byte| byte.is_ascii_control()) {
        return Some("contains a control character".into());
    }
    let parts: Vec<&str> = relative.split('/').collect();
    if parts.len() > MAX_DEPTH {
        return Some(format!("deeper than {MAX_DEPTH}"));
    }
    if parts.iter().any(|part| part.is_empty() || *part == "." || *part == ".." || part.len() > 255) {
        return Some("not a normalised path below /".into());
    }
    if KERNEL_DIRS.contains(&parts[0]) {
        return Some(format!("/{} is the kernel's", parts[0]));
    }
    OUR_PATHS
        .iter()
        .find(|ours| path == **ours || (**ours != "/tmp" && path.starts_with(&format!("{ours}/"))))
        .map(|ours| format!("{ours} is mounted already"))
}

fn is_hostname(text: &str) -> bool {
    let bytes = text.as_bytes();
    (1..=64).contains(&bytes.len())
        && bytes.iter().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_'))
        && bytes.first().is_some_and(u8::is_ascii_alphanumeric)
}

fn check_recipe(name: &str) -> Result<(), Error> {
    let bytes = name.as_bytes();
    let first = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let rest = |byte: &u8| first(byte) || matches!(byte, b'.' | b'-');
    if (1..=64).contains(&bytes.len()) && bytes.first().is_some_and(first) && bytes.iter().all(rest) {
        Ok(())
    } else {
        refused("recipe", "must match [a-z0-9][a-z0-9.-]{0,63}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::id::{LayerId, SessionId};

    fn config() -> Config {
        toml::from_str(
            r#"
            state_dir = "/s"
            runtime_dir = "/r"
            socket = "/r/l"
            service_uid = 900
            service_gid = 900
            slots = 8
            cgroup_root = "/c"
            init = "/i"
            recipes_dir = "/i"
        "#,
        )
        .unwrap()
    }

    fn plan() -> Plan {
        Plan {
            id: SessionId::parse("s1").unwrap(),
            kind: Kind::Session,
            slot: 1,
            layers: vec![LayerId::parse(&"0".repeat(64)).unwrap()],
            workspace_uid: 10001,
            work_dir: "/workspace".into(),
            hostname: "box".into(),
            tmpfs_bytes: Some(64 << 20),
            limits: Limits::default(),
            network: Network::None,
            egress: Egress::default(),
            oci_runtime: OciRuntime::Builtin,
            request: None,
        }
    }

    fn refusal(change: impl FnOnce(&mut Plan)) -> &'static str {
        let mut plan = plan();
        change(&mut plan);
        match check(&Request::Start { plan }, 1, &config()) {
            Err(Error::Refused { field, .. }) => field,
            Ok(()) => "accepted",
            Err(Error::Failed(failure)) => panic!("{failure}"),
        }
    }

    #[test]
    fn every_field_outside_its_bounds_is_refused_by_name() {
        assert_eq!(refusal(|_| ()), "accepted");
        assert_eq!(refusal(|p| p.slot = 0), "slot");
        assert_eq!(refusal(|p| p.slot = 8), "slot");
        assert_eq!(refusal(|p| p.layers.clear()), "layers");
        assert_eq!(refusal(|p| p.layers = vec![p.layers[0].clone(); 129]), "layers");
        assert_eq!(refusal(|p| p.workspace_uid = 65_536), "workspace_uid");
        assert_eq!(refusal(|p| p.hostname = "-a".into()), "hostname");
        assert_eq!(refusal(|p| p.hostname = "a".repeat(65)), "hostname");
        assert_eq!(refusal(|p| p.tmpfs_bytes = Some(0)), "tmpfs_bytes");
        assert_eq!(refusal(|p| p.limits.pids = Some(0)), "limits.pids");
        assert_eq!(refusal(|p| p.limits.cpus = Some(0)), "limits.cpus");
        assert_eq!(refusal(|p| p.limits.io_weight = Some(10_001)), "limits.io_weight");
        assert_eq!(refusal(|p| p.limits.files = Some(3)), "limits.files");
        assert_eq!(refusal(|p| p.limits.disk_bytes = Some(0)), "limits.disk_bytes");
        assert_eq!(refusal(|p| p.limits.disk_inodes = Some(99)), "limits.disk_inodes");
        assert_eq!(refusal(|p| p.limits.cpu_weight = Some(0)), "limits.cpu_weight");
        assert_eq!(refusal(|p| p.limits.cpu_quota_us = Some(1)), "limits.cpu_quota_us");
        assert_eq!(refusal(|p| p.limits.memory_bytes = Some(1)), "limits.memory_bytes");
        assert_eq!(refusal(|p| p.network = Network::Host), "network");
        assert_eq!(
            refusal(|p| {
                p.network = Network::Host;
                p.kind = Kind::Build;
            }),
            "network"
        );
    }

    #[test]
    fn a_workspace_goes_only_where_nothing_else_is() {
        for bad in [
            "",
            "/",
            "workspace",
            "/a/../b",
            "/a/./b",
            "/a//b",
            "/a/",
            "/proc",
            "/proc/self",
            "/sys/x",
            "/dev",
            "/tmp",
            "/.sandbox-init",
            "/etc/sandboxd",
            "/etc/sandboxd/x",
            "/a\nb",
            "/a\0b",
        ] {
            assert_eq!(refusal(|p| p.work_dir = bad.into()), "work_dir", "{bad:?}");
        }
        for good in ["/workspace", "/home/agent/work", "/tmp/work", "/procedures", "/etc/sandboxd2"] {
            assert_eq!(refusal(|p| p.work_dir = good.into()), "accepted", "{good:?}");
        }
    }

    #[test]
    fn descriptors_are_counted_and_recipes_are_plain_names() {
        let start = Request::Start { plan: plan() };
        for count in [0, 2, 8] {
            assert!(check(&start, count, &config()).is_err());
        }
        assert!(check(&Request::List {}, 1, &config()).is_err());
        for bad in ["", "../x", "a/b", ".hidden", "A", "-x", "a b", &"a".repeat(65)] {
            assert!(check(&Request::Bootstrap { recipe: bad.into() }, 1, &config()).is_err(), "{bad:?}");
        }
        assert!(check(&Request::Bootstrap { recipe: "debian-12".into() }, 1, &config()).is_ok());
    }
}
