//! The kernel: its version, what it was built with, and the limits of its namespaces.

use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags};
use wire::api::{Finding, Level};

use super::{file, fine, mended};

/// Oldest kernel that is supported.
const KERNEL: (u32, u32) = (6, 1);
/// Namespaces of a sandbox, and the option of the kernel that has each.
const NAMESPACES: [(&str, &str); 7] = [
    ("cgroup", "CONFIG_CGROUPS"),
    ("ipc", "CONFIG_IPC_NS"),
    ("mnt", "CONFIG_NAMESPACES"),
    ("net", "CONFIG_NET_NS"),
    ("pid", "CONFIG_PID_NS"),
    ("user", "CONFIG_USER_NS"),
    ("uts", "CONFIG_UTS_NS"),
];
/// What a seccomp filter has to be able to do.
const ACTIONS: [&str; 2] = ["errno", "kill_process"];
/// Fewer namespaces than this are not enough for many sandboxes, each of which takes up to three of a kind.
const FEW: u64 = 1000;

/// What is found.
pub fn findings() -> Vec<Finding> {
    let release = file(Path::new("/proc/sys/kernel/osrelease"));
    vec![
        version(&release),
        features(&lacking()),
        overlay(&file(Path::new("/proc/filesystems")), module(&release, "overlay")),
        user_namespaces(&file(Path::new("/proc/sys/user/max_user_namespaces"))),
        other_namespaces(&|kind| file(Path::new(&format!("/proc/sys/user/max_{kind}_namespaces")))),
    ]
}

fn version(release: &str) -> Finding {
    let release = release.trim();
    let mut numbers = release.split(['.', '-']).map(|part| part.parse::<u32>().unwrap_or(0));
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    if version >= KERNEL {
        return fine("kernel", release);
    }
    let message = format!("{release} is older than {}.{}", KERNEL.0, KERNEL.1);
    mended("kernel", Level::Error, &message, "upgrade the kernel: id-mapped mounts and cgroup.kill are needed")
}

/// What the kernel that runs has not, each in words.
fn lacking() -> Vec<String> {
    let mut lacking: Vec<String> = NAMESPACES
        .iter()
        .filter(|(name, _)| !Path::new("/proc/self/ns").join(name).exists())
        .map(|(name, option)| format!("{name} namespaces ({option})"))
        .collect();
    let actions = file(Path::new("/proc/sys/kernel/seccomp/actions_avail"));
    if !ACTIONS.iter().all(|action| actions.split_whitespace().any(|has| has == *action)) {
        lacking.push("seccomp filters (CONFIG_SECCOMP_FILTER)".to_owned());
    }
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    if rustix::fs::openat2(CWD, "/", flags, Mode::empty(), ResolveFlags::NO_SYMLINKS).is_err() {
        lacking.push("openat2".to_owned());
    }
    if rustix::process::pidfd_open(rustix::process::getpid(), rustix::process::PidfdFlags::empty()).is_err() {
        lacking.push("pidfds".to_owned());
    }
    lacking
}

fn features(lacking: &[String]) -> Finding {
    if lacking.is_empty() {
        return fine("kernel features", "namespaces, seccomp filters, openat2 and pidfds are there");
    }
    let message = format!("missing: {}", lacking.join(", "));
    mended("kernel features", Level::Error, &message, "use a kernel that has them: those of the distributions do")
}

/// Whether a module is among those of the kernel that runs; nothing where they cannot be looked at.
fn module(release: &str, name: &str) -> Option<bool> {
    let directory = PathBuf::from(format!("/lib/modules/{}", release.trim()));
    if !directory.is_dir() {
        return None;
    }
    let listed = file(&directory.join("modules.dep")) + &file(&directory.join("modules.builtin"));
    (!listed.is_empty()).then(|| listed.contains(&format!("/{name}.ko")))
}

fn overlay(filesystems: &str, module: Option<bool>) -> Finding {
    let is_there = filesystems.lines().any(|line| line.split_whitespace().last() == Some("overlay"));
    match (is_there, module) {
        (true, _) => fine("overlay", "the kernel has it"),
        (false, Some(true)) => fine("overlay", "a module, which the first sandbox loads"),
        (false, None) => mended(
            "overlay",
            Level::Warning,
            "is not loaded, and whether there is a module cannot be seen from here",
            "modprobe overlay",
        ),
        (false, Some(false)) => {
            mended("overlay", Level::Error, "the kernel does not have it", "use a kernel with CONFIG_OVERLAY_FS")
        }
    }
}

fn user_namespaces(maximum: &str) -> Finding {
    const SYSCTL: &str = "sysctl -w user.max_user_namespaces=65536, and the same in /etc/sysctl.d";
    match maximum.trim().parse::<u64>() {
        Ok(0) => mended("user namespaces", Level::Error, "are switched off", SYSCTL),
        Ok(maximum) if maximum < FEW => {
            mended("user namespaces", Level::Warning, &format!("at most {maximum}, three for each sandbox"), SYSCTL)
        }
        Ok(maximum) => fine("user namespaces", &format!("at most {maximum}")),
        Err(_) => mended("user namespaces", Level::Error, "the kernel has none", "use a kernel with CONFIG_USER_NS"),
    }
}

fn other_namespaces(maximum: &dyn Fn(&str) -> String) -> Finding {
    let kinds = ["cgroup", "ipc", "mnt", "net", "pid", "uts"];
    let limits = kinds.map(|kind| (kind, maximum(kind).trim().parse::<u64>()));
    let few: Vec<String> = limits
        .iter()
        .filter_map(|(kind, limit)| {
            limit.as_ref().ok().filter(|limit| **limit < FEW).map(|limit| format!("{kind}: {limit}"))
        })
        .collect();
    if few.is_empty() {
        return fine("other namespaces", &format!("at least {FEW} of each kind"));
    }
    let none = limits.iter().any(|(_, limit)| matches!(limit, Ok(0)));
    let level = if none { Level::Error } else { Level::Warning };
    let message = format!("so many may be: {}", few.join(", "));
    mended(
        "other namespaces",
        level,
        &message,
        "sysctl -w user.max_KIND_namespaces=65536, and the same in /etc/sysctl.d",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_are_new_enough_or_not() {
        for (release, level) in [
            ("5.10.0-1\n", Level::Error),
            ("6.0.19", Level::Error),
            ("6.1.0-1-amd64\n", Level::Ok),
            ("10.0", Level::Ok),
            ("", Level::Error),
        ] {
            assert_eq!(version(release).level, level, "{release}");
        }
    }

    #[test]
    fn what_the_kernel_lacks_is_named() {
        assert_eq!(features(&[]).level, Level::Ok);
        let finding = features(&["user namespaces (CONFIG_USER_NS)".into(), "pidfds".into()]);
        assert!(finding.level == Level::Error && finding.message.ends_with("(CONFIG_USER_NS), pidfds"), "{finding:?}");
        assert!(lacking().is_empty(), "the tests run on a kernel that has all of it");
    }

    #[test]
    fn overlay_is_there_loadable_unknown_or_missing() {
        for (text, module, level) in [
            ("nodev\tproc\nnodev\toverlay\n", None, Level::Ok),
            ("nodev\tproc\n", Some(true), Level::Ok),
            ("nodev\tproc\n", None, Level::Warning),
            ("\text4\nnodev\toverlayish\n", Some(false), Level::Error),
        ] {
            assert_eq!(overlay(text, module).level, level, "{text} {module:?}");
        }
    }

    #[test]
    fn namespaces_are_enough_few_or_none() {
        for (text, level) in
            [("96364\n", Level::Ok), ("999", Level::Warning), ("0\n", Level::Error), ("", Level::Error)]
        {
            assert_eq!(user_namespaces(text).level, level, "{text}");
        }
        let others =
            |net: &'static str| other_namespaces(&move |kind| if kind == "net" { net } else { "5000" }.to_owned());
        assert_eq!((others("5000").level, others("").level), (Level::Ok, Level::Ok));
        assert_eq!((others("10").level, others("0").level), (Level::Warning, Level::Error));
        assert!(others("10").message.ends_with("net: 10"));
    }
}
