//! What this host has and lacks: at the start, and for `doctor`.

use std::path::{Path, PathBuf};

use wire::api::{DoctorReport, Finding, Level};

use wire::launch::DiskEnforcement;

use crate::config::{LimitsMode, Settings};

/// Controllers that limits need, and what each enforces.
const CONTROLLERS: [(&str, &str); 3] = [("memory", "memory"), ("cpu", "CPU"), ("pids", "processes")];
/// Oldest kernel that is supported.
const KERNEL: (u32, u32) = (6, 1);
/// Below this many free bytes on the state directory's disk, `doctor` warns.
const FREE_BYTES: u64 = 2 << 30;

/// What was found at the start.
#[derive(Debug, Clone)]
pub struct Host {
    cgroup2: Option<PathBuf>,
    controllers: Vec<String>,
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

    /// Findings, worst first.
    #[must_use]
    pub fn report(&self, settings: &Settings, enforcement: DiskEnforcement) -> DoctorReport {
        let mut findings = vec![
            disk_quota(settings, enforcement),
            self.limits(settings),
            kernel(&std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default()),
            user_namespaces(&std::fs::read_to_string("/proc/sys/user/max_user_namespaces").unwrap_or_default()),
            overlay(&std::fs::read_to_string("/proc/filesystems").unwrap_or_default()),
            disk(&settings.state_dir),
            launcher(&settings.launch_socket),
        ];
        findings.sort_by_key(|finding| std::cmp::Reverse(finding.level));
        DoctorReport { findings }
    }

    fn limits(&self, settings: &Settings) -> Finding {
        let lacking = self.unenforced();
        if lacking.is_empty() {
            return finding("limits", Level::Ok, "memory, CPU and processes are enforced by cgroup v2");
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

fn kernel(release: &str) -> Finding {
    let release = release.trim();
    let mut numbers = release.split(['.', '-']).map(|part| part.parse::<u32>().unwrap_or(0));
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    if version >= KERNEL {
        finding("kernel", Level::Ok, release)
    } else {
        let message = format!("{release} is older than {}.{}", KERNEL.0, KERNEL.1);
        mended("kernel", Level::Error, &message, "upgrade the kernel: idmapped mounts and cgroup.kill are needed")
    }
}

fn user_namespaces(maximum: &str) -> Finding {
    match maximum.trim().parse::<u64>() {
        Ok(0) => mended("user namespaces", Level::Error, "are switched off", "sysctl user.max_user_namespaces=65536"),
        Ok(maximum) if maximum < 1000 => {
            let message = format!("at most {maximum}, three for each sandbox");
            mended("user namespaces", Level::Warning, &message, "sysctl user.max_user_namespaces=65536")
        }
        Ok(maximum) => finding("user namespaces", Level::Ok, &format!("at most {maximum}")),
        Err(_) => mended("user namespaces", Level::Error, "the kernel has none", "use a kernel with CONFIG_USER_NS"),
    }
}

fn overlay(filesystems: &str) -> Finding {
    if filesystems.lines().any(|line| line.ends_with("\toverlay")) {
        finding("overlay", Level::Ok, "the kernel has it")
    } else {
        mended("overlay", Level::Error, "the kernel does not have it", "modprobe overlay")
    }
}

fn disk(state_dir: &Path) -> Finding {
    let Ok(stat) = rustix::fs::statvfs(state_dir) else {
        return mended(
            "disk",
            Level::Error,
            &format!("{} cannot be read", state_dir.display()),
            "check that it exists",
        );
    };
    let free = stat.f_bavail.saturating_mul(stat.f_frsize);
    let message = format!("{} MiB free in {}", free >> 20, state_dir.display());
    if free < FREE_BYTES || stat.f_favail < 10_000 {
        mended("disk", Level::Warning, &message, "free some space, or set SANDBOXD_WORKSPACE_TTL")
    } else {
        finding("disk", Level::Ok, &message)
    }
}

fn disk_quota(settings: &Settings, enforcement: DiskEnforcement) -> Finding {
    if settings.disk_quota.is_none() && settings.disk_inodes.is_none() {
        return mended(
            "disk quota",
            Level::Warning,
            "sessions have none",
            "set SANDBOXD_DISK_QUOTA and SANDBOXD_DISK_INODES",
        );
    }
    match enforcement {
        DiskEnforcement::Project => finding("disk quota", Level::Ok, "enforced by the file system (project quotas)"),
        DiskEnforcement::Measured => mended(
            "disk quota",
            Level::Warning,
            "measured: a session is stopped a few seconds after it went over",
            "put state_dir on ext4 with the features quota and project, or on xfs, mounted with prjquota",
        ),
    }
}

fn launcher(socket: &Path) -> Finding {
    if socket.exists() {
        finding("launcher", Level::Ok, &format!("listens at {}", socket.display()))
    } else {
        let message = format!("nothing listens at {}", socket.display());
        mended("launcher", Level::Error, &message, "start sandboxd-launch")
    }
}

fn finding(subject: &str, level: Level, message: &str) -> Finding {
    Finding { subject: subject.to_owned(), level, message: message.to_owned(), mend: None }
}

fn mended(subject: &str, level: Level, message: &str, mend: &str) -> Finding {
    Finding { mend: Some(mend.to_owned()), ..finding(subject, level, message) }
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
    fn what_is_lacking_is_said_with_its_mend() {
        let host = Host { cgroup2: None, controllers: vec!["cpu".into()] };
        assert_eq!(host.unenforced(), ["memory", "processes"]);
        for finding in [kernel("5.10.0-1"), user_namespaces("0"), overlay("nodev\tproc\n")] {
            assert!(finding.level == Level::Error && finding.mend.is_some(), "{finding:?}");
        }
        for finding in [kernel("6.1.0-1-amd64"), kernel("10.0"), user_namespaces("96364"), overlay("nodev\toverlay\n")]
        {
            assert_eq!(finding.level, Level::Ok, "{finding:?}");
        }
    }
}
