//! From what is written to what it means: defaults, ranges, and what goes together.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use wire::launch::OciRuntime;

use super::read::{ConfigError, Raw, boolean};
use super::{LimitsMode, Settings, UnixAuth};
use crate::catalog::{Egress, NetworkMode, Size};

const BOOLEAN: &str = "1/0, true/false, yes/no, on/off";
const COUNT: &str = "a whole number, 0 or more";
const POSITIVE: &str = "a whole number, 1 or more";
const SIZE: &str = "a size such as 512m or 2g";
/// Shortest service token, in bytes: 128 bits in hexadecimal.
const TOKEN_MIN: usize = 32;
/// Fewest different characters of it: a random one of hexadecimal digits has more than twice as many.
const TOKEN_DIFFERENT: usize = 6;
/// What a platform writes into workspaces for agents, not for people: the bodies of their skills, and what a tool's
/// output that was too long was spilled to.
const HIDDEN: &str = "skills/,.spill/";
/// Longest time that a setting may name, in seconds: a hundred years.
const TIME_MAX: u64 = 100 * 366 * 86_400;

/// The settings that `raw` means.
///
/// # Errors
/// [`ConfigError`]: the first that cannot be used.
pub fn load(raw: &Raw) -> Result<Settings, ConfigError> {
    let state_dir = path(raw, "state_dir", "/var/lib/sandboxd".into())?;
    let runtime_dir = path(raw, "runtime_dir", "/run/sandboxd".into())?;
    let settings = Settings {
        token: token(raw)?,
        metrics_token: metrics_token(raw)?,
        host: raw.parsed("host", IpAddr::V4(Ipv4Addr::LOCALHOST), "an IP address", |t| t.parse().ok())?,
        port: raw.parsed("port", 8080, "a port, 0 to 65535", |t| t.parse().ok())?,
        socket: path(raw, "socket", runtime_dir.join("sandboxd.sock"))?,
        unix_auth: raw.parsed("unix_auth", UnixAuth::Token, "peer, token", unix_auth)?,
        launch_socket: path(raw, "launch_socket", runtime_dir.join("launch.sock"))?,
        workspace_root: path(raw, "workspace_root", state_dir.join("workspaces"))?,
        images_dir: path(raw, "images_dir", state_dir.join("images"))?,
        images_shared: flag(raw, "images_shared", false)?,
        recipes_dir: path(raw, "recipes_dir", "/usr/share/sandboxd/images".into())?,
        catalog: catalog(raw)?,
        runtimes: raw.text("runtimes")?.map(str::to_owned),
        default_runtime: raw.nullable("default_runtime").filter(|t| !t.is_empty()).map(str::to_owned),
        max_sessions: off(raw, "max_sessions", Some(20))?,
        max_open_sessions: off(raw, "max_open_sessions", None)?,
        max_sessions_per_tenant: off(raw, "max_sessions_per_tenant", None)?,
        evict_idle_after: off(raw, "evict_idle_after", None)?,
        mem_limit: size(raw, "mem_limit", "1g")?,
        memswap_limit: size(raw, "memswap_limit", "")?,
        cpus: raw.parsed_or_off("cpus", Some(2.0), "a number above 0, at most 1024", cpus)?,
        cpu_shares: raw.parsed_or_off("cpu_shares", None, "a whole number, 2 to 262144", shares)?,
        pids_limit: raw.parsed_or_off("pids_limit", Some(512), POSITIVE, positive)?,
        io_weight: raw.parsed_or_off("io_weight", None, "a whole number, 1 to 10000", |t| {
            positive(t).filter(|weight| *weight <= 10_000)
        })?,
        open_files: raw.parsed_or_off("open_files", None, "a whole number, 64 to 1048576", |t| {
            positive(t).filter(|files| (64..=1_048_576).contains(files))
        })?,
        tmpfs_size: size(raw, "tmpfs_size", "64m")?,
        disk_quota: raw.parsed_or_off("disk_quota", Size::parse("10g").ok(), "a size, 1m or more", |t| {
            Size::parse(t).ok().filter(|size| (1 << 20..=1 << 60).contains(&size.bytes()))
        })?,
        disk_inodes: raw.parsed_or_off("disk_inodes", Some(1_000_000), "a whole number, 100 or more", |t| {
            positive(t).filter(|inodes| (100..=1 << 40).contains(inodes))
        })?,
        disk_reserve: size(raw, "disk_reserve", "1g")?,
        network_mode: raw.parsed("network_mode", NetworkMode::None, "none, bridge", NetworkMode::parse)?,
        egress: egress(raw)?,
        egress_log: flag(raw, "egress_log", false)?,
        dns_upstreams: raw
            .parsed_or_off("dns_upstreams", None, "addresses, ADDRESS or ADDRESS:PORT, at most 3", upstreams)?
            .unwrap_or_default(),
        oci_runtime: raw.parsed_or_off("oci_runtime", None, "builtin, crun, runc, runsc", OciRuntime::parse)?,
        work_dir: work_dir(raw)?,
        persist_containers: flag(raw, "persist_containers", false)?,
        prewarm: flag(raw, "prewarm", true)?,
        idle_timeout: raw.parsed("idle_timeout", 1800, COUNT, seconds)?,
        freeze_after: off(raw, "freeze_after", None)?,
        hibernate_after: off(raw, "hibernate_after", None)?,
        cleanup_interval: raw.parsed("cleanup_interval", 300, POSITIVE, |t| seconds(t).filter(|s| *s > 0))?,
        workspace_ttl: off(raw, "workspace_ttl", None)?,
        container_ttl: off(raw, "container_ttl", None)?,
        sandbox_uid: raw.parsed("sandbox_uid", 10_001, "a user id, 1 to 65533", |t| {
            t.parse().ok().filter(|uid| (1..65_534).contains(uid))
        })?,
        max_read_bytes: raw
            .parsed("max_read_bytes", 8 << 20, "bytes, 1 to 1073741824", |t| positive(t).filter(|b| *b <= 1 << 30))?,
        execute_timeout: raw.parsed("execute_timeout", 300, POSITIVE, |t| seconds(t).filter(|s| *s > 0))?,
        max_running_commands: raw.parsed("max_running_commands", 256, "1 to 100000", |t| {
            t.parse().ok().filter(|n| (1..=100_000).contains(n))
        })?,
        native_files: flag(raw, "native_files", true)?,
        ui_enabled: flag(raw, "ui_enabled", false)?,
        policy_overrides: raw.nullable("policy_overrides").filter(|t| !t.is_empty()).map(PathBuf::from),
        limits: raw.parsed("limits", LimitsMode::Enforce, "enforce, best-effort", limits)?,
        extra_ca_certs: raw.nullable("extra_ca_certs").filter(|t| !t.is_empty()).map(PathBuf::from),
        build_timeout: raw.parsed("build_timeout", 1800, "seconds, 1 to 86400", |t| {
            positive(t).filter(|seconds| *seconds <= 86_400)
        })?,
        build_memory: raw.parsed_or_off("build_memory", Size::parse("4g").ok(), "a size, 64m or more", |t| {
            Size::parse(t).ok().filter(|size| size.bytes() >= 64 << 20)
        })?,
        build_disk: size(raw, "build_disk", "20g")?,
        build_pids: raw.parsed_or_off("build_pids", Some(4096), "processes, 16 to 4194304", |t| {
            t.parse().ok().filter(|pids| (16..=4_194_304).contains(pids))
        })?,
        build_cache: size(raw, "build_cache", "10g")?,
        build_env: raw
            .parsed_or_off("build_env", None, "a JSON object of names and texts of one line", build_env)?
            .unwrap_or_default(),
        registry: raw.text("registry")?.unwrap_or("docker.io").to_owned(),
        registry_mirrors: list(raw.nullable("registry_mirrors").unwrap_or_default()),
        registry_hosts: list(raw.nullable("registry_hosts").unwrap_or_default()),
        registry_auth: path(raw, "registry_auth", "/etc/sandboxd/auth.json".into())?,
        insecure_registries: list(raw.nullable("insecure_registries").unwrap_or_default()),
        host_id: raw.parsed_or_off("host_id", None, "1 to 12 lower-case letters and digits", |t| {
            wire::key::is_host(t).then(|| t.to_owned())
        })?,
        operations_days: raw.parsed_or_off("operations_days", Some(30), "days, 1 to 36500", |t| {
            positive(t).filter(|days| *days <= 36_500)
        })?,
        hidden_prefixes: raw
            .parsed_or_off(
                "hidden_prefixes",
                Some(list(HIDDEN)),
                "relative paths without . or .., at most 16",
                prefixes,
            )?
            .unwrap_or_default(),
        slots: raw.parsed("slots", 4000, "3 to 4094", |t| t.parse().ok().filter(|n| (3..=4094).contains(n)))?,
        state_dir,
        runtime_dir,
    };
    if let Some(error) = raw.unknown() {
        return Err(error);
    }
    together(raw, &settings)?;
    Ok(settings)
}

/// Combinations that make no sense.
fn together(raw: &Raw, settings: &Settings) -> Result<(), ConfigError> {
    if settings.metrics_token.as_deref() == Some(settings.token.as_str()) {
        return Err(raw.error("metrics_token", "is the service's own; a scraper that has it could do everything"));
    }
    if let (Some(open), Some(resident)) = (settings.max_open_sessions, settings.max_sessions)
        && open < resident
    {
        return Err(raw.error("max_open_sessions", format!("{open} is below max_sessions ({resident})")));
    }
    if settings.max_open_sessions.is_some() && settings.max_sessions.is_none() {
        return Err(raw.error("max_open_sessions", "needs max_sessions to be set"));
    }
    if let (Some(both), Some(memory)) = (&settings.memswap_limit, &settings.mem_limit)
        && both.bytes() < memory.bytes()
    {
        return Err(raw.error("memswap_limit", format!("{both} is below mem_limit ({memory}), which it includes")));
    }
    Ok(())
}

fn token(raw: &Raw) -> Result<String, ConfigError> {
    let Some(token) = raw.text("token")? else {
        return Err(raw.error("token", "is not set; make one with: sandboxctl token new"));
    };
    sound(raw, "token", token)
}

fn metrics_token(raw: &Raw) -> Result<Option<String>, ConfigError> {
    let token = raw.nullable("metrics_token").filter(|token| !token.is_empty());
    token.map(|token| sound(raw, "metrics_token", token)).transpose()
}

/// A token that can be one.
fn sound(raw: &Raw, name: &'static str, token: &str) -> Result<String, ConfigError> {
    if token.len() < TOKEN_MIN {
        let problem = format!("is shorter than {TOKEN_MIN} characters; make one with: sandboxctl token new");
        return Err(raw.error(name, problem));
    }
    if !token.bytes().all(|b| b.is_ascii_graphic()) {
        return Err(raw.error(name, "has characters that cannot be in a header; use letters, digits and punctuation"));
    }
    if token.bytes().collect::<BTreeSet<u8>>().len() < TOKEN_DIFFERENT {
        let problem = "is the same few characters again and again; make one with: sandboxctl token new";
        return Err(raw.error(name, problem));
    }
    Ok(token.to_owned())
}

fn catalog(raw: &Raw) -> Result<Vec<PathBuf>, ConfigError> {
    let given = raw.text("catalog")?.map(|text| list(text).into_iter().map(PathBuf::from).collect());
    Ok(given.unwrap_or_else(|| vec![PathBuf::from("/etc/sandboxd/catalog.d")]))
}

fn path(raw: &Raw, name: &'static str, default: PathBuf) -> Result<PathBuf, ConfigError> {
    raw.parsed(name, default, "an absolute path", |t| Some(PathBuf::from(t)).filter(|p| p.is_absolute()))
}

fn work_dir(raw: &Raw) -> Result<String, ConfigError> {
    raw.parsed("work_dir", "/workspace".to_owned(), "an absolute path without . or .. below no system directory", |t| {
        let sound = Path::new(t).is_absolute()
            && t.split('/').skip(1).all(|part| !part.is_empty() && part != "." && part != "..")
            && !["/proc", "/sys", "/dev", "/tmp"].iter().any(|system| Path::new(t).starts_with(system));
        sound.then(|| t.to_owned())
    })
}

fn off(raw: &Raw, name: &'static str, default: Option<u64>) -> Result<Option<u64>, ConfigError> {
    raw.parsed_or_off(name, default, COUNT, seconds)
}

fn flag(raw: &Raw, name: &'static str, default: bool) -> Result<bool, ConfigError> {
    raw.parsed(name, default, BOOLEAN, boolean)
}

fn size(raw: &Raw, name: &'static str, default: &str) -> Result<Option<Size>, ConfigError> {
    raw.parsed_or_off(name, Size::parse(default).ok(), SIZE, |t| Size::parse(t).ok())
}

fn limits(text: &str) -> Option<LimitsMode> {
    match text {
        "enforce" => Some(LimitsMode::Enforce),
        "best-effort" => Some(LimitsMode::BestEffort),
        _ => None,
    }
}

fn egress(raw: &Raw) -> Result<Egress, ConfigError> {
    let rules = |name| list(raw.nullable(name).unwrap_or_default());
    let rest = raw.nullable("egress_default").filter(|text| !text.is_empty());
    Egress::read(rest, &rules("egress_allow"), &rules("egress_deny")).map_err(|error| {
        let (name, problem) = error.parts();
        raw.error(name, problem)
    })
}

fn upstreams(text: &str) -> Option<Vec<SocketAddr>> {
    let one = |text: &String| match text.parse::<IpAddr>() {
        Ok(address) => Some(SocketAddr::new(address, 53)),
        Err(_) => text.parse().ok(),
    };
    let all: Option<Vec<_>> = list(text).iter().map(one).collect();
    all.filter(|all| all.len() <= 3)
}

fn unix_auth(text: &str) -> Option<UnixAuth> {
    match text {
        "peer" => Some(UnixAuth::Peer),
        "token" => Some(UnixAuth::Token),
        _ => None,
    }
}

fn seconds(text: &str) -> Option<u64> {
    text.parse().ok().filter(|s| *s <= TIME_MAX)
}

fn positive(text: &str) -> Option<u64> {
    text.parse().ok().filter(|n| *n > 0)
}

fn shares(text: &str) -> Option<u64> {
    text.parse().ok().filter(|n| (2..=262_144).contains(n))
}

fn cpus(text: &str) -> Option<f64> {
    text.parse().ok().filter(|n: &f64| n.is_finite() && *n > 0.0 && *n <= 1024.0)
}

fn prefixes(text: &str) -> Option<Vec<String>> {
    let prefixes = list(text);
    let sound = |prefix: &String| {
        prefix.trim_end_matches('/').split('/').all(|part| !matches!(part, "" | "." | "..") && !part.contains('\0'))
    };
    (prefixes.len() <= 16 && prefixes.iter().all(sound)).then_some(prefixes)
}

fn build_env(text: &str) -> Option<BTreeMap<String, String>> {
    let variables: BTreeMap<String, String> = serde_json::from_str(text).ok()?;
    crate::catalog::variables(&variables).ok().map(|()| variables)
}

fn list(text: &str) -> Vec<String> {
    text.split(',').map(str::trim).filter(|item| !item.is_empty()).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOKEN: (&str, &str) = ("SANDBOXD_TOKEN", "0123456789abcdef0123456789abcdef");

    fn settings(file: &str, environment: &[(&str, &str)]) -> Result<Settings, ConfigError> {
        let environment = environment.iter().chain([&TOKEN]).map(|(k, v)| ((*k).to_owned(), (*v).to_owned()));
        load(&Raw::gather(Path::new("/etc/sandboxd/sandboxd.toml"), file, environment)?)
    }

    #[test]
    fn defaults_are_the_contract_s() {
        let settings = settings("", &[]).unwrap();
        assert_eq!((settings.max_sessions, settings.idle_timeout, settings.execute_timeout), (Some(20), 1800, 300));
        assert_eq!((settings.port, settings.sandbox_uid, settings.pids_limit), (8080, 10_001, Some(512)));
        assert_eq!(settings.hidden_prefixes, ["skills/", ".spill/"]);
        assert_eq!((settings.max_read_bytes, settings.cleanup_interval), (8_388_608, 300));
        assert_eq!(settings.mem_limit.unwrap().text(), "1g");
        assert!(settings.prewarm && settings.native_files && !settings.ui_enabled && !settings.persist_containers);
    }

    #[test]
    fn the_environment_wins_and_empty_is_off() {
        let file = "max_sessions = 3\nmem_limit = \"512m\"\ninsecure_registries = [\"localhost:5000\"]\n";
        let settings = settings(file, &[("SANDBOXD_MAX_SESSIONS", "7"), ("SANDBOXD_MEM_LIMIT", "")]).unwrap();
        assert_eq!((settings.max_sessions, settings.mem_limit), (Some(7), None));
        assert_eq!(settings.insecure_registries, ["localhost:5000"]);
    }

    #[test]
    fn every_error_is_one_line_that_names_the_variable() {
        type Case = (&'static str, &'static [(&'static str, &'static str)], &'static str);
        let cases: &[Case] = &[
            ("", &[("SANDBOXD_MAX_SESSIONS", "many")], "SANDBOXD_MAX_SESSIONS"),
            ("", &[("SANDBOXD_MAX_SESSIONS", "-1")], "SANDBOXD_MAX_SESSIONS"),
            ("", &[("SANDBOXD_METRICS_TOKEN", "short")], "SANDBOXD_METRICS_TOKEN"),
            ("", &[("SANDBOXD_METRICS_TOKEN", TOKEN.1)], "SANDBOXD_METRICS_TOKEN"),
            ("port = 70000", &[], "SANDBOXD_PORT"),
            ("", &[("SANDBOXD_PREWARM", "maybe")], "SANDBOXD_PREWARM"),
            ("", &[("SANDBOXD_CPUS", "NaN")], "SANDBOXD_CPUS"),
            ("", &[("SANDBOXD_WORK_DIR", "/a/../b")], "SANDBOXD_WORK_DIR"),
            ("", &[("SANDBOXD_WORK_DIR", "/proc/x")], "SANDBOXD_WORK_DIR"),
            ("", &[("SANDBOXD_HOST", "")], "SANDBOXD_HOST"),
            ("", &[("SANDBOXD_MAX_OPEN_SESSIONS", "5")], "SANDBOXD_MAX_OPEN_SESSIONS"),
            ("", &[("SANDBOXD_MEMSWAP_LIMIT", "1m")], "SANDBOXD_MEMSWAP_LIMIT"),
            ("", &[("SANDBOXD_SANDBOX_UID", "0")], "SANDBOXD_SANDBOX_UID"),
            ("", &[("SANDBOXD_EGRESS_ALLOW", "pypi")], "SANDBOXD_EGRESS_ALLOW"),
            ("egress_deny = [\"pypi.org\"]", &[], "SANDBOXD_EGRESS_DENY"),
            ("", &[("SANDBOXD_EGRESS_DEFAULT", "maybe")], "SANDBOXD_EGRESS_DEFAULT"),
            ("", &[("SANDBOXD_DNS_UPSTREAMS", "dns.example")], "SANDBOXD_DNS_UPSTREAMS"),
            ("", &[("SANDBOXD_OCI_RUNTIME", "nonesuch")], "SANDBOXD_OCI_RUNTIME"),
            ("", &[("SANDBOXD_HOST_ID", "a-b")], "SANDBOXD_HOST_ID"),
            ("", &[("SANDBOXD_OPERATIONS_DAYS", "0")], "SANDBOXD_OPERATIONS_DAYS"),
            ("", &[("SANDBOXD_DISK_QUOTA", "1k")], "SANDBOXD_DISK_QUOTA"),
            ("", &[("SANDBOXD_DISK_INODES", "99")], "SANDBOXD_DISK_INODES"),
            ("max_sesions = 3", &[], "SANDBOXD_MAX_SESIONS"),
            ("max_sessions = 1979-05-27", &[], "max_sessions"),
            ("max_sessions = = 3", &[], "sandboxd.toml"),
        ];
        for (file, environment, variable) in cases {
            let message = settings(file, environment).unwrap_err().to_string();
            assert!(message.contains(variable) && !message.contains('\n'), "{message}");
        }
    }

    #[test]
    fn a_weak_token_is_refused_and_never_repeated() {
        for (weak, why) in [
            ("hunter2", "is shorter"),
            ("hunter2 is a secret that nobody will guess", "cannot be in a header"),
            ("hunthunthunthunthunthunthunthunthunt", "the same few"),
        ] {
            let raw = Raw::gather(Path::new("/f"), "", [("SANDBOXD_TOKEN".to_owned(), weak.to_owned())]).unwrap();
            let message = load(&raw).unwrap_err().to_string();
            assert!(message.starts_with("SANDBOXD_TOKEN") && message.contains(why), "{message}");
            assert!(!message.contains("hunt"), "{message}");
        }
        let none = load(&Raw::gather(Path::new("/f"), "", []).unwrap()).unwrap_err();
        assert!(none.to_string().contains("not set"));
    }
}
