//! Files of the kernel through which a host is changed, or read: opened for that and left alone.

use std::fs::OpenOptions;
use std::io::{Read, Write};

use crate::name;

/// Opened for writing; nothing is written.
const WRITTEN: &[&str] = &[
    "/proc/sys/kernel/core_pattern",
    "/proc/sysrq-trigger",
    "/sys/kernel/uevent_helper",
    "/proc/sys/kernel/modprobe",
    "/proc/sys/kernel/hostname",
    "/proc/sys/kernel/ns_last_pid",
    "/proc/sys/vm/panic_on_oom",
    "/proc/sys/vm/drop_caches",
    "/proc/sys/fs/file-max",
    "/proc/sys/user/max_user_namespaces",
    "/proc/sys/net/ipv4/ip_forward",
    "/proc/1/oom_score_adj",
    "/proc/irq/default_smp_affinity",
    "/proc/mtrr",
    "/dev/mem",
    "/dev/kmsg",
    "/dev/vda",
    "/sys/kernel/mm/transparent_hugepage/enabled",
    "/sys/power/state",
    "/sys/class/block/vda/queue/scheduler",
    "/sys/class/net/lo/mtu",
];
/// Of the cgroup that is mounted, its parent's in a sandbox: `cgroup.procs` of a parent is how one leaves.
const CGROUP: &[&str] = &[
    "cgroup.procs",
    "cgroup.subtree_control",
    "cgroup.kill",
    "cgroup.freeze",
    "memory.max",
    "pids.max",
    "release_agent",
];
/// Read: at least a byte.
const READ: &[&str] =
    &["/proc/kcore", "/proc/kmsg", "/proc/keys", "/proc/timer_list", "/sys/firmware/acpi/tables/DSDT"];

type Attempt = (String, Box<dyn FnOnce() -> String>);

/// Every attempt.
pub fn all() -> Vec<Attempt> {
    let mut attempts: Vec<Attempt> = Vec::new();
    for path in WRITTEN {
        attempts.push((format!("write {path}"), Box::new(move || name::io(OpenOptions::new().write(true).open(path)))));
    }
    for file in CGROUP {
        let path = format!("{}/{file}", cgroup_mount());
        let open = move || name::io(OpenOptions::new().write(true).open(path));
        attempts.push((format!("write cgroup {file}"), Box::new(open)));
    }
    attempts.push(("lower oom_score_adj".to_owned(), Box::new(lower_oom_score)));
    for path in READ {
        attempts.push((format!("read {path}"), Box::new(move || read(path))));
    }
    attempts
}

fn cgroup_mount() -> String {
    let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let found = table.lines().find(|line| line.contains(" - cgroup2 ")).and_then(|line| line.split(' ').nth(4));
    found.unwrap_or("/sys/fs/cgroup").to_owned()
}

fn lower_oom_score() -> String {
    let file = OpenOptions::new().write(true).open("/proc/self/oom_score_adj");
    name::io(file.and_then(|mut file| file.write_all(b"-1")))
}

fn read(path: &str) -> String {
    let mut byte = [0];
    let open = OpenOptions::new().read(true).open(path);
    match open.and_then(|mut file| file.read(&mut byte)) {
        Ok(0) => "empty".to_owned(),
        other => name::io(other),
    }
}
