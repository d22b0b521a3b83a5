//! The machine itself: what the other tests rely on.

use std::fs;

use it::pair::Pair;
use serde_json::json;

/// Whether this is the guest of `make vm`. Elsewhere a test that asks does nothing, and says why.
#[must_use]
pub fn is_guest() -> bool {
    let guest = std::env::var_os("IT_LIMITS").is_some_and(|limits| limits == "enforce");
    if !guest {
        eprintln!("skipped: needs a host with every cgroup controller; `make vm` is one");
    }
    guest
}

#[test]
fn systemd_is_pid_1_and_every_controller_is_there() {
    if !is_guest() {
        return;
    }
    assert_eq!(fs::read_to_string("/proc/1/comm").unwrap().trim(), "systemd");
    let controllers = fs::read_to_string("/sys/fs/cgroup/cgroup.controllers").unwrap();
    for controller in ["cpu", "cpuset", "io", "memory", "pids"] {
        assert!(controllers.split_whitespace().any(|name| name == controller), "{controller}: {controllers}");
    }
}

#[test]
fn the_service_starts_with_limits_enforced_and_runs_a_command() {
    if !is_guest() {
        return;
    }
    let pair = Pair::start(&[]);
    let opened = pair.client.post("/sessions", json!({"runtime": "base"})).expect(200).json();
    let id = opened["session"]["session_id"].as_str().unwrap();
    let client = pair.client.with_token(opened["token"].as_str().unwrap().to_owned());
    let run = json!({"argv": ["sh", "-c", "echo from the guest"], "run_id": it::session::run_id()});
    let answer = client.post(&format!("/sessions/{id}/run"), run).expect(200).json();
    assert_eq!(answer["exit_code"], 0, "{answer}");
}
