//! What the service says about itself.

use std::collections::BTreeSet;

use it::shared;
use serde_json::{Value, json};

/// Everything that the contract promises in `GET /policy`.
const POLICY: [&str; 35] = [
    "runtimes",
    "default_runtime",
    "max_sessions",
    "max_open_sessions",
    "max_sessions_per_tenant",
    "evict_idle_after",
    "mem_limit",
    "memswap_limit",
    "cpus",
    "cpu_shares",
    "pids_limit",
    "network_mode",
    "oci_runtime",
    "work_dir",
    "idle_timeout",
    "execute_timeout",
    "max_read_bytes",
    "persist_containers",
    "sandbox_uid",
    "workspace_ttl",
    "container_ttl",
    "tmpfs_size",
    "prewarm",
    "buildkit",
    "native_files",
    "native_writes",
    "native_realpath",
    "disk_enforcement",
    "disk_inodes",
    "disk_quota",
    "disk_reserve",
    "unenforced_limits",
    "host_id",
    "io_weight",
    "open_files",
];
const RUNTIME: [&str; 14] = [
    "alias",
    "image",
    "description",
    "builds",
    "mem_limit",
    "memswap_limit",
    "cpus",
    "cpu_shares",
    "pids_limit",
    "network_mode",
    "oci_runtime",
    "io_weight",
    "open_files",
    "tmpfs_size",
];

fn description() -> Value {
    shared().client.anonymous().get("/openapi.json").expect(200).json()
}

/// Every method and path of the description.
fn described() -> BTreeSet<(String, String)> {
    let description = description();
    let paths = description["paths"].as_object().unwrap();
    let methods = |path: &String, item: &Value| -> Vec<(String, String)> {
        item.as_object().unwrap().keys().map(|method| (method.to_uppercase(), path.clone())).collect()
    };
    paths.iter().flat_map(|(path, item)| methods(path, item)).collect()
}

#[test]
fn health_needs_no_token() {
    let health = shared().client.anonymous().get("/healthz").expect(200).json();
    assert_eq!((&health["status"], &health["limit"]), (&json!("ok"), &json!(200)));
    assert_eq!(health["runtimes"], json!(["base", "python"]));
    assert!(health["sessions"].is_u64() && health["open_sessions"].is_u64() && health["open_limit"].is_null());
}

#[test]
fn the_index_names_the_real_routes() {
    let index = shared().client.anonymous().get("/").expect(200).json();
    assert_eq!((&index["service"], &index["ui_url"]), (&json!("sandboxd"), &Value::Null));
    assert_eq!((&index["docs_url"], &index["openapi_url"]), (&json!("/docs"), &json!("/openapi.json")));
    assert_eq!(index["health"]["status"], "ok");
    let endpoints: Vec<&str> = index["endpoints"].as_array().unwrap().iter().map(|e| e.as_str().unwrap()).collect();
    let mut sorted = endpoints.clone();
    sorted.sort_unstable();
    assert_eq!(endpoints, sorted);
    for route in ["/sessions", "/healthz", "/policy"] {
        assert!(
            endpoints.iter().any(|e| e.split_whitespace().last() == Some(route)),
            "{route} is not in {endpoints:?}"
        );
    }
    assert!(!endpoints.contains(&"/ui"), "it is off");
    let page = shared().client.anonymous().get("/docs").expect(200);
    assert!(page.header("content-type").unwrap().starts_with("text/html") && page.text().contains("/sessions"));
}

#[test]
fn every_described_route_is_real() {
    let client = &shared().client;
    for (method, path) in described() {
        let real = path.replace("{session_id}", "no-such-session").replace("{run_id}", &"0".repeat(32));
        let answer = client.send(&method, &real, Some("application/json"), b"{\"runtime\": 1}");
        let unknown = answer.status == 405 || (answer.status == 404 && answer.detail() == "Not Found");
        assert!(!unknown, "{method} {path}: {} {}", answer.status, answer.text());
    }
}

#[test]
fn every_real_route_is_described() {
    let described = described();
    let router = std::fs::read_to_string(it::daemon::repository().join("src/daemon/src/api/mod.rs")).unwrap();
    let mut count = 0;
    for line in router.lines() {
        let Some((path, handlers)) = line.trim().strip_prefix(".route(\"").and_then(|rest| rest.split_once("\", "))
        else {
            continue;
        };
        for method in ["get", "post", "put", "delete"] {
            if handlers.contains(&format!("{method}(")) {
                count += 1;
                let route = (method.to_uppercase(), path.to_owned());
                assert!(described.contains(&route), "{route:?} is served and not described");
            }
        }
    }
    assert_eq!(count, described.len(), "the router's lines were not understood: {described:?}");
}

#[test]
fn the_contract_s_routes_are_there() {
    let described = described();
    for (method, path) in [
        ("GET", "/"),
        ("GET", "/healthz"),
        ("GET", "/policy"),
        ("GET", "/docs"),
        ("GET", "/openapi.json"),
        ("POST", "/sessions"),
        ("GET", "/sessions"),
        ("GET", "/sessions/{session_id}"),
        ("DELETE", "/sessions/{session_id}"),
        ("POST", "/sessions/{session_id}/run"),
        ("POST", "/sessions/{session_id}/runs/{run_id}/stop"),
        ("POST", "/sessions/{session_id}/files/read"),
        ("POST", "/sessions/{session_id}/files/write"),
        ("POST", "/sessions/{session_id}/files/stat"),
        ("POST", "/sessions/{session_id}/files/list"),
        ("POST", "/sessions/{session_id}/files/realpath"),
        ("POST", "/sessions/{session_id}/files/mkdir"),
        ("POST", "/sessions/{session_id}/files/remove"),
    ] {
        assert!(described.contains(&(method.to_owned(), path.to_owned())), "{method} {path}");
    }
}

#[test]
fn the_policy_has_the_contract_s_shape_and_is_honest() {
    let policy = shared().client.get("/policy").expect(200).json();
    let fields: BTreeSet<&str> = policy.as_object().unwrap().keys().map(String::as_str).collect();
    assert_eq!(fields, POLICY.into_iter().collect());
    let runtimes = policy["runtimes"].as_array().unwrap();
    let aliases: Vec<&str> = runtimes.iter().map(|r| r["alias"].as_str().unwrap()).collect();
    assert_eq!(aliases, ["base", "python"], "sorted");
    for runtime in runtimes {
        let fields: BTreeSet<&str> = runtime.as_object().unwrap().keys().map(String::as_str).collect();
        assert_eq!(fields, RUNTIME.into_iter().collect());
        assert_eq!(
            (&runtime["mem_limit"], &runtime["pids_limit"], &runtime["network_mode"]),
            (&json!("1g"), &json!(512), &json!("none"))
        );
    }
    assert_eq!((&runtimes[0]["builds"], &runtimes[1]["builds"]), (&json!(false), &json!(true)));
    assert_eq!(
        (&policy["default_runtime"], &policy["sandbox_uid"], &policy["work_dir"]),
        (&json!("python"), &json!(10001), &json!("/workspace"))
    );
    assert_eq!(
        (&policy["execute_timeout"], &policy["idle_timeout"], &policy["max_read_bytes"]),
        (&json!(300), &json!(1800), &json!(8_388_608))
    );
    for flag in ["native_files", "native_writes", "native_realpath", "buildkit"] {
        assert_eq!(policy[flag], true, "{flag}");
    }
    assert_eq!(policy["max_sessions"], 200, "what this instance was started with");
}

#[test]
fn limits_that_this_host_cannot_enforce_are_reported() {
    let daemon = shared();
    let policy = daemon.client.get("/policy").json();
    let unenforced: Vec<&str> =
        policy["unenforced_limits"].as_array().unwrap().iter().map(|l| l.as_str().unwrap()).collect();
    let report = daemon.client.get("/doctor").expect(200).json();
    let findings = report["findings"].as_array().unwrap();
    let limits = findings.iter().find(|f| f["subject"] == "limits").unwrap_or_else(|| panic!("{report}"));
    let controllers = controllers();
    for (controller, limit) in [("memory", "memory"), ("cpu", "CPU"), ("pids", "processes")] {
        let lacks = !controllers.contains(&controller.to_owned());
        assert_eq!(unenforced.contains(&limit), lacks, "{limit}: {unenforced:?}, controllers {controllers:?}");
        let warned = limits["message"].as_str().unwrap().contains("NOT ENFORCED")
            && limits["message"].as_str().unwrap().contains(limit);
        assert_eq!(warned, lacks, "{limits}");
    }
    if !unenforced.is_empty() {
        assert_eq!(limits["level"], "warning", "{limits}");
        assert!(limits["mend"].is_string(), "{limits}");
    }
    assert!(findings.iter().all(|f| f["level"] != "error"), "{report}");
}

/// The controllers of the host's cgroup2 mount.
fn controllers() -> Vec<String> {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    let line = mounts.lines().find(|line| line.contains(" - cgroup2 ")).expect("a cgroup2 mount");
    let target = line.split(' ').nth(4).unwrap();
    let list = std::fs::read_to_string(format!("{target}/cgroup.controllers")).unwrap();
    list.split_whitespace().map(str::to_owned).collect()
}

#[test]
fn the_images_are_listed() {
    let _warm = shared().session("python");
    let images = shared().client.get("/images").expect(200).json();
    let used = |alias: &str| {
        images
            .as_array()
            .unwrap()
            .iter()
            .find(|i| i["runtimes"].as_array().is_some_and(|r| r.contains(&json!(alias))))
            .cloned()
    };
    let python = used("python").unwrap_or_else(|| panic!("{images}"));
    assert_eq!(python["state"], "ready", "{python}");
    assert!(python["size"].as_u64().is_some_and(|size| size > 10 << 20), "{python}");
}

#[test]
fn the_service_is_another_user_without_capabilities() {
    let daemon = shared();
    let children = it::host::children(daemon.pid);
    let service = children.iter().copied().find(|pid| program(*pid) == "sandboxd").expect("the service");
    let launcher = children.iter().copied().find(|pid| program(*pid) == "sandboxd-launch").expect("the launcher");
    let status = |pid: u32, key: &str| it::host::status(pid, key).unwrap();
    assert!(status(service, "Uid").split_whitespace().all(|uid| uid != "0"), "{}", status(service, "Uid"));
    assert!(status(service, "Gid").split_whitespace().all(|gid| gid != "0"), "{}", status(service, "Gid"));
    for set in ["CapInh", "CapPrm", "CapEff", "CapAmb"] {
        assert_eq!(status(service, set), "0000000000000000", "{set}");
    }
    assert_eq!(status(service, "Groups"), "", "no supplementary group");
    assert_eq!(status(launcher, "Threads"), "1", "the launcher forks: it has one thread");
}

fn program(pid: u32) -> String {
    let exe = std::fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_default();
    exe.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

#[test]
fn both_sockets_serve_the_same() {
    let daemon = shared();
    let (tcp, unix) = (daemon.client.get("/policy"), daemon.over_unix().get("/policy"));
    assert_eq!(tcp.json(), unix.json());
}

#[test]
fn a_failed_request_has_an_id() {
    let mut connection = shared().client.connect();
    let answer =
        connection.exchange(b"GET /healthz HTTP/1.1\r\nHost: x\r\nX-Request-Id: mine-42\r\n\r\n", b"").unwrap();
    assert_eq!((answer.status, answer.header("x-request-id")), (200, Some("mine-42")));
    let answer =
        connection.exchange(b"GET /healthz HTTP/1.1\r\nHost: x\r\nX-Request-Id: <not allowed>\r\n\r\n", b"").unwrap();
    assert_ne!(answer.header("x-request-id"), Some("<not allowed>"));
}
