//! Which limits this host can enforce: asked at the start, before anything else.

use std::path::{Path, PathBuf};

use wire::api::{Finding, Level};

use super::{fine, mended};
use crate::config::{LimitsMode, Settings};

/// Controllers that limits need, and what each enforces.
const CONTROLLERS: [(&str, &str); 3] = [("memory", "memory"), ("cpu", "CPU"), ("pids", "processes")];

/// What was found at the start.
#[derive(Debug, Clone)]
pub struct Host {
    pub(super) cgroup2: Option<PathBuf>,
    pub(super) controllers: Vec<String>,
}

impl Host {
    /// Look at the cgroup2 mount and its controllers.
    #[must_use]
    pub fn look() -> Self {
        let cgroup2 = cgroup2_mount(&std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default());
        let controllers = cgroup2.as_ref().and_then(|dir| std::fs::read_to_string(dir.join("cgroup.controllers")).ok());
        let controllers = controllers.unwrap_or_default().split_whitespace().map(str::to_owned).collect();
        Self { cgroup2, controllers }
    }

    /// Where cgroup2 is mounted.
    #[must_use]
    pub fn cgroup2(&self) -> Option<&Path> {
        self.cgroup2.as_deref()
    }

    /// What cannot be limited here; empty where everything can.
    #[must_use]
    pub fn unenforced(&self) -> Vec<String> {
        let lacks = |controller: &str| !self.controllers.iter().any(|has| has == controller);
        CONTROLLERS.iter().filter(|(controller, _)| lacks(controller)).map(|(_, limit)| (*limit).to_owned()).collect()
    }

    /// The controllers that cgroup2 has.
    #[must_use]
    pub fn controllers(&self) -> &[String] {
        &self.controllers
    }

    /// Which limits are enforced.
    pub(super) fn limits(&self, settings: &Settings) -> Finding {
        let lacking = self.unenforced();
        if lacking.is_empty() {
            return fine("limits", "memory, CPU and processes are enforced by cgroup v2");
        }
        let level = match settings.limits {
            LimitsMode::Enforce => Level::Error,
            LimitsMode::BestEffort => Level::Warning,
        };
        let message = format!("NOT ENFORCED on this host: {}", lacking.join(", "));
        mended(
            "limits",
            level,
            &message,
            "boot with systemd.unified_cgroup_hierarchy=1, so that cgroup2 has these controllers",
        )
    }
}

fn cgroup2_mount(mountinfo: &str) -> Option<PathBuf> {
    mountinfo.lines().find_map(|line| {
        let (before, after) = line.split_once(" - ")?;
        let target = before.split(' ').nth(4)?;
        after.starts_with("cgroup2 ").then(|| PathBuf::from(target))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cgroup2_mount_is_found_on_unified_and_hybrid_hosts() {
        let hybrid = "31 24 0:27 / /sys/fs/cgroup ro - tmpfs tmpfs ro\n33 31 0:28 / /sys/fs/cgroup/unified rw,x shared:9 - cgroup2 cgroup2 rw\n";
        assert_eq!(cgroup2_mount(hybrid).unwrap(), Path::new("/sys/fs/cgroup/unified"));
        assert_eq!(cgroup2_mount("33 31 0:28 / /proc rw - proc proc rw"), None);
    }

    #[test]
    fn what_is_lacking_is_said() {
        let host = Host { cgroup2: None, controllers: vec!["cpu".into()] };
        assert_eq!(host.unenforced(), ["memory", "processes"]);
    }
}
