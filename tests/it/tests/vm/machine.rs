//! The machine itself: what the other tests rely on.

use std::fs;

use crate::guest::{Sandbox, is_guest, service};

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
    assert!(fs::read_to_string("/proc/swaps").unwrap().lines().count() > 1, "there is no swap");
}

#[test]
fn the_service_starts_with_limits_enforced_and_runs_a_command() {
    let Some(pair) = service(&[]) else { return };
    let policy = pair.client.get("/policy").expect(200).json();
    assert_eq!(policy["unenforced_limits"], serde_json::json!([]), "{policy}");
    let sandbox = Sandbox::open(&pair);
    assert_eq!(sandbox.says("echo from the guest"), "from the guest");
    // What the service's defaults are.
    let limits = ["memory.max", "memory.swap.max", "cpu.max", "pids.max"].map(|file| sandbox.limit(file));
    assert_eq!(limits, ["1073741824", "0", "200000 100000", "512"]);
}
