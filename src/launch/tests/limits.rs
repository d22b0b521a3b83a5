//! Limits: written on the commands' cgroup where the kernel has the controller, and nowhere else.
#![allow(clippy::unwrap_used, clippy::expect_used)] // Helpers of tests fail by panicking, as tests do.
mod common;

use std::os::unix::fs::MetadataExt;

use common::{DISK, Launcher, SLEEP, plan};
use wire::launch::{Answer, Limits};

#[test]
fn limits_hold_the_commands_and_not_the_init() {
    let launcher = Launcher::start(SLEEP, "");
    let mut plan = plan("limited", 2, &[launcher.base()]);
    plan.limits = Limits {
        memory_bytes: Some(256 << 20),
        swap_bytes: Some(0),
        cpu_quota_us: Some(50_000),
        cpu_weight: Some(50),
        pids: Some(99),
        ..Limits::default()
    };
    let answer = launcher.start_sandbox(&plan);
    assert!(matches!(answer, Answer::Started { .. }), "{answer:?}");
    let sandbox = launcher.cgroup_of("limited");
    let read = |name: &str| std::fs::read_to_string(sandbox.join(name)).map(|text| text.trim().to_owned());
    let controllers = std::fs::read_to_string(sandbox.parent().unwrap().join("cgroup.controllers")).unwrap();
    let mut held = 0;
    for (file, value) in [
        ("memory.max", "268435456"),
        ("memory.swap.max", "0"),
        ("cpu.max", "50000 100000"),
        ("cpu.weight", "50"),
        ("pids.max", "99"),
    ] {
        if controllers.contains(file.split('.').next().unwrap()) {
            assert_eq!(read(&format!("commands/{file}")).unwrap(), value, "{file}");
            assert_ne!(read(&format!("init/{file}")).unwrap(), value, "{file} of the init");
            let metadata = std::fs::metadata(sandbox.join("commands").join(file)).unwrap();
            assert_eq!((metadata.uid(), metadata.mode() & 0o022), (0, 0), "who is limited could change {file}");
            held += 1;
        }
    }
    println!("{held} limits held");
    let owner = |name: &str| std::fs::metadata(sandbox.join(name)).unwrap().uid();
    let root_inside = DISK + 2 * 65_536;
    for ours in ["commands", "commands/cgroup.procs", "commands/cgroup.subtree_control", "cgroup.procs"] {
        assert_eq!(owner(ours), root_inside, "{ours}");
    }
    for not_ours in [".", "init", "init/cgroup.procs", "cgroup.kill", "cgroup.freeze", "cgroup.subtree_control"] {
        assert_eq!(owner(not_ours), 0, "{not_ours}");
    }
    assert_eq!(read("cgroup.procs").unwrap(), "", "nothing is beside the two");
    assert_eq!(read("init/cgroup.procs").unwrap().lines().count(), 1);
    launcher.stop("limited");
}
