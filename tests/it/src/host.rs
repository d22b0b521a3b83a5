//! What of ours is on this host: everything that we make has `sandboxd` in its name.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

/// Our programs.
const PROGRAMS: [&str; 3] = ["sandboxd", "sandboxd-launch", "sandbox-init"];
/// Where files may be left.
const PLACES: [&str; 4] = ["/tmp", "/run", "/var/tmp", "/dev/shm"];
/// Directories of the cgroup file systems are looked at down to here.
const CGROUP_DEPTH: usize = 6;

/// What there was at one time, one line for each thing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Snapshot(pub BTreeSet<String>);

impl Snapshot {
    /// Look.
    #[must_use]
    pub fn take() -> Self {
        let mut found = BTreeSet::new();
        processes(&mut found);
        mounts(&mut found);
        cgroups(Path::new("/sys/fs/cgroup"), CGROUP_DEPTH, &mut found);
        for place in PLACES {
            files(Path::new(place), "file", &mut found);
        }
        files(Path::new("/run/netns"), "network namespace", &mut found);
        links(&mut found);
        rules(&mut found);
        forwarding(&mut found);
        Self(found)
    }

    /// What there is now and was not in `before`.
    #[must_use]
    pub fn since(&self, before: &Self) -> Vec<String> {
        self.0.difference(&before.0).cloned().collect()
    }

    /// The lines that hold this text.
    #[must_use]
    pub fn mentioning(&self, text: &str) -> Vec<String> {
        self.0.iter().filter(|line| line.contains(text)).cloned().collect()
    }
}

fn processes(found: &mut BTreeSet<String>) {
    for pid in numbers("/proc") {
        let base = format!("/proc/{pid}");
        let Ok(exe) = fs::read_link(format!("{base}/exe")) else { continue };
        let name = exe.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let cgroup = fs::read_to_string(format!("{base}/cgroup")).unwrap_or_default();
        let ours = PROGRAMS.contains(&name.trim_end_matches(" (deleted)")) || cgroup.contains("sandboxd");
        if ours {
            let bytes = fs::read(format!("{base}/cmdline")).unwrap_or_default();
            let line = String::from_utf8_lossy(&bytes).replace('\0', " ");
            let group = cgroup.lines().find(|line| line.contains("sandboxd")).unwrap_or_default().to_owned();
            found.insert(format!("process {pid} {} {group}", line.trim()));
        }
    }
}

fn mounts(found: &mut BTreeSet<String>) {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    for line in table.lines().filter(|line| line.contains("sandboxd")) {
        // The ids at the front are given out anew.
        let rest: Vec<&str> = line.split(' ').skip(3).collect();
        found.insert(format!("mount {}", rest.join(" ")));
    }
}

fn cgroups(directory: &Path, depth: usize, found: &mut BTreeSet<String>) {
    let Ok(entries) = fs::read_dir(directory) else { return };
    for entry in entries.flatten().filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())) {
        let path = entry.path();
        if entry.file_name().to_string_lossy().contains("sandboxd") {
            found.insert(format!("cgroup {}", path.display()));
        }
        if depth > 0 {
            cgroups(&path, depth - 1, found);
        }
    }
}

fn files(directory: &Path, what: &str, found: &mut BTreeSet<String>) {
    let Ok(entries) = fs::read_dir(directory) else { return };
    for entry in entries.flatten().filter(|entry| entry.file_name().to_string_lossy().contains("sandboxd")) {
        found.insert(format!("{what} {}", entry.path().display()));
    }
}

fn links(found: &mut BTreeSet<String>) {
    for entry in fs::read_dir("/sys/class/net").into_iter().flatten().flatten() {
        found.insert(format!("network interface {}", entry.file_name().to_string_lossy()));
    }
}

fn rules(found: &mut BTreeSet<String>) {
    let Ok(output) = Command::new("nft").args(["list", "tables"]).output() else { return };
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    found.extend(text.lines().filter(|line| line.contains("sandboxd")).map(|line| format!("nft {line}")));
}

/// Devices that forward.
fn forwarding(found: &mut BTreeSet<String>) {
    for device in fs::read_dir("/proc/sys/net/ipv4/conf").into_iter().flatten().flatten() {
        let value = fs::read_to_string(device.path().join("forwarding")).unwrap_or_default();
        if value.trim() == "1" {
            found.insert(format!("forwarding by {}", device.file_name().to_string_lossy()));
        }
    }
}

/// The entries of a directory that are numbers.
#[must_use]
pub fn numbers(directory: &str) -> Vec<u32> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// Process ids of every process of the host whose command line holds this text.
#[must_use]
pub fn running(text: &str) -> Vec<u32> {
    let holds = |pid: &u32| {
        let bytes = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&bytes).replace('\0', " ").contains(text)
    };
    numbers("/proc").into_iter().filter(|pid| *pid != std::process::id()).filter(holds).collect()
}

/// The value of a line `KEY: value` of `/proc/PID/status`.
#[must_use]
pub fn status(pid: u32, key: &str) -> Option<String> {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':')).map(|value| value.trim().to_owned())
}

/// What a process takes of the memory, in KiB: what it shares with others by shares.
#[must_use]
pub fn proportional_memory(pid: u32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("Pss:")).expect("a line Pss");
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

/// The direct children of a process.
#[must_use]
pub fn children(pid: u32) -> Vec<u32> {
    numbers("/proc")
        .into_iter()
        .filter(|child| status(*child, "PPid").is_some_and(|parent| parent == pid.to_string()))
        .collect()
}
