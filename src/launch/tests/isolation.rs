//! What a sandbox sees, told from inside, and where what it writes lands.
#![allow(clippy::unwrap_used, clippy::expect_used)] // Helpers of tests fail by panicking, as tests do.
mod common;

use std::os::unix::fs::MetadataExt;

use common::{DISK, Launcher, SERVICE, Tar, USER, plan};
use wire::launch::{Answer, Plan};

/// Writes what it finds into files of the workspace, the last of them `done`.
const SCRIPT: &str = r#"
exec 2>/workspace/errors
cat() { busybox cat "$@"; }
cat /proc/self/uid_map /proc/self/gid_map > /workspace/maps
cat /proc/self/mountinfo > /workspace/mountinfo
cat /proc/self/cgroup > /workspace/cgroup
cat /proc/self/status > /workspace/status
cat /proc/sys/user/max_user_namespaces > /workspace/userns
cat /proc/net/dev > /workspace/net
busybox hostname > /workspace/hostname
busybox ls -l /dev > /workspace/dev
busybox ls / > /workspace/root
busybox ls -l /proc/self/fd > /workspace/fds
busybox wc -c /proc/kcore /proc/keys /proc/timer_list > /workspace/masked
echo 1 > /proc/sys/kernel/pid_max
busybox unshare -U true
busybox mknod /tmp/disk b 8 0
busybox mount -t tmpfs none /tmp
echo "$$" > /workspace/pid
busybox env > /workspace/env
echo root > /workspace/by_root
echo root > /in_root
busybox chown 5:6 /in_root
agent() { busybox su -s /bin/sh agent -c "$*"; }
agent busybox touch /workspace/by_user
agent busybox touch /tmp/by_user
agent 'busybox ls -d /proc/1; busybox ls /proc/self/status' > /workspace/hidepid
busybox ls -ln /tmp/by_user > /workspace/tmp
busybox df -k /tmp > /workspace/tmp_size
busybox sha256sum /etc/sandboxd/ca-certificates.crt > /workspace/ca
echo > /workspace/done
exec busybox sleep 1000
"#;

fn start(more: &str, change: impl FnOnce(&mut Plan)) -> Launcher {
    let launcher = Launcher::start(SCRIPT, more);
    let mut plan = plan("inside", 3, &[launcher.base()]);
    change(&mut plan);
    let answer = launcher.start_sandbox(&plan);
    assert!(matches!(answer, Answer::Started { .. }), "{answer:?}");
    launcher
}

#[test]
fn it_has_namespaces_of_its_own_and_nothing_of_the_host() {
    let launcher = start("", |_| ());
    let see = |name: &str| launcher.report("inside", name);
    println!("{}", see("errors"));
    let first = DISK + 3 * 65_536;
    for map in see("maps").lines() {
        assert_eq!(map.split_whitespace().collect::<Vec<_>>(), ["0", &first.to_string(), "65536"]);
    }
    assert_eq!(see("pid"), "1\n");
    assert_eq!(see("hostname"), "box\n");
    assert_eq!(see("userns"), "0\n");
    let net = see("net");
    let mut devices: Vec<_> = net.lines().filter_map(|line| Some(line.split_once(':')?.0.trim())).collect();
    // Some kernels give every namespace one end of a tunnel, which is down.
    devices.retain(|name| !["sit0", "tunl0", "ip6tnl0", "gre0", "gretap0", "erspan0"].contains(name));
    assert_eq!(devices, ["lo"]);
    let cgroup = see("cgroup");
    assert!(cgroup.lines().any(|line| line == "0::/init"), "{cgroup}");
    let mut env: Vec<_> = see("env").lines().map(str::to_owned).collect();
    env.retain(|line| !["HOME=", "PATH=", "PWD=", "SHLVL=", "_="].iter().any(|known| line.starts_with(known)));
    assert_eq!(env, Vec::<String>::new());
}

#[test]
fn its_mounts_are_those_that_must_be() {
    let launcher = start("", |_| ());
    let mountinfo = launcher.report("inside", "mountinfo");
    let mut points: Vec<_> = mountinfo.lines().map(|line| line.split(' ').nth(4).unwrap().to_owned()).collect();
    points.retain(|point| !point.starts_with("/proc/") && !point.starts_with("/sys/"));
    points.sort();
    let expected = [
        "/",
        "/.sandbox-init",
        "/dev",
        "/dev/full",
        "/dev/mqueue",
        "/dev/null",
        "/dev/pts",
        "/dev/random",
        "/dev/shm",
        "/dev/tty",
        "/dev/urandom",
        "/dev/zero",
        "/proc",
        "/sys",
        "/tmp",
        "/workspace",
    ];
    assert_eq!(points, expected, "{mountinfo}");
    let flags = |point: &str| {
        let line = mountinfo.lines().find(|line| line.split(' ').nth(4) == Some(point)).unwrap();
        line.split(' ').nth(5).unwrap().to_owned()
    };
    for (point, wanted) in [
        ("/", "nosuid,nodev"),
        ("/.sandbox-init", "ro,nosuid,nodev"),
        ("/workspace", "rw,nosuid,nodev"),
        ("/tmp", "rw,nosuid,nodev"),
        ("/proc", "rw,nosuid,nodev,noexec"),
        ("/sys", "ro,nosuid,nodev,noexec"),
    ] {
        assert!(wanted.split(',').all(|flag| flags(point).split(',').any(|f| f == flag)), "{point}: {}", flags(point));
    }
    // Only a bind mount must tell where it comes from: the state directory's own layout.
    let tells: Vec<_> = mountinfo.lines().filter(|line| line.contains("launch-test-")).collect();
    assert_eq!(tells.len(), 2, "the workspace and the init: {tells:#?}");
}

#[test]
fn devices_descriptors_and_capabilities_are_the_few_that_it_needs() {
    let launcher = start("", |_| ());
    let see = |name: &str| launcher.report("inside", name);
    let dev = see("dev");
    let devices: Vec<_> = dev.lines().filter(|l| l.starts_with('c')).filter_map(|l| l.rsplit(' ').next()).collect();
    assert_eq!(devices, ["full", "null", "random", "tty", "urandom", "zero"]);
    // The script is read by the shell as a descriptor of its own; 0 to 4 are what the init is given.
    let fds = see("fds");
    for wanted in ["0 -> /dev/null", "3 -> socket:", "4 -> /commands"] {
        assert!(fds.contains(wanted), "{fds}");
    }
    let count = fds
        .lines()
        .filter(|line| line.contains(" -> ") && !line.contains("/proc/") && !line.contains("/.sandbox-init"))
        .count();
    assert!(count <= 5, "{fds}");
    let status = see("status");
    let capabilities = |name: &str| {
        let line = status.lines().find(|line| line.starts_with(name)).unwrap();
        u64::from_str_radix(line.split_whitespace().nth(1).unwrap(), 16).unwrap()
    };
    // DAC_OVERRIDE, KILL, SETGID, SETUID, SETPCAP, NET_ADMIN.
    assert_eq!(capabilities("CapBnd:"), 1 << 1 | 1 << 5 | 1 << 6 | 1 << 7 | 1 << 8 | 1 << 12);
    assert_eq!(capabilities("CapInh:") | capabilities("CapAmb:"), 0);
    assert!(status.contains("SigIgn:\t0000000000000000") && status.contains("SigBlk:\t0000000000000000"), "{status}");
}

#[test]
fn kernel_interfaces_are_masked_or_read_only() {
    let launcher = start("", |_| ());
    let see = |name: &str| launcher.report("inside", name);
    let masked = see("masked");
    assert!(masked.lines().all(|line| line.trim_start().starts_with('0')), "{masked}");
    let errors = see("errors");
    assert!(errors.contains("/proc/sys/kernel/pid_max: Read-only file system"), "{errors}");
    assert!(errors.contains("unshare"), "a new user namespace was possible: {errors}");
    assert!(errors.contains("mknod"), "a device was made: {errors}");
    assert!(errors.contains("mount"), "something was mounted: {errors}");
    assert_eq!(see("hidepid"), "/proc/self/status\n", "another user's process is visible");
}

#[test]
fn what_it_writes_belongs_on_disk_to_the_service_or_to_nobody() {
    let launcher = start("", |_| ());
    launcher.report("inside", "done");
    let owner = |path: std::path::PathBuf| {
        let metadata = std::fs::symlink_metadata(&path).unwrap();
        (metadata.uid(), metadata.gid())
    };
    let workspace = launcher.state("workspaces/inside/workspace");
    assert_eq!(owner(workspace.join("by_user")), (SERVICE, SERVICE));
    assert_eq!(owner(workspace.join("by_root")), (DISK, DISK));
    assert_eq!(owner(launcher.state("sessions/inside/upper/in_root")), (DISK, DISK), "no CAP_CHOWN");
    assert!(!launcher.state("images/layers").join("in_root").exists());
    assert!(launcher.report("inside", "tmp").contains(&format!(" {USER} ")));
    assert!(launcher.report("inside", "tmp_size").contains("65536"));
}

#[test]
fn it_finds_the_operators_certificates() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "certificates").unwrap();
    common::chmod(file.path(), 0o644);
    let launcher = start(&format!("ca_bundle = {:?}", file.path()), |_| ());
    let digest = launcher.report("inside", "ca");
    assert!(digest.starts_with("f78c06aa55a0e2d18b5653884184079a5e77f231af10d7cbdc121b5cb40ef187"), "{digest}");
}

#[test]
fn the_workspace_may_be_anywhere_and_tmp_the_write_layers() {
    let launcher = Launcher::start(common::SLEEP, "");
    let mut plan = plan("inside", 3, &[launcher.base()]);
    plan.tmpfs_bytes = None;
    plan.work_dir = "/home/agent/deep/work".into();
    let answer = launcher.start_sandbox(&plan);
    assert!(matches!(answer, Answer::Started { .. }), "{answer:?}");
    assert!(launcher.state("sessions/inside/upper/home/agent/deep/work").is_dir(), "the mount point is made");
    assert!(!launcher.state("sessions/inside/upper/tmp").exists(), "nothing is mounted there");
}

#[test]
fn a_link_where_something_is_to_be_mounted_is_refused() {
    let launcher = Launcher::start(SCRIPT, "");
    let base = launcher.base();
    for (index, link) in ["proc", "dev", "sys", "tmp", "workspace", ".sandbox-init"].into_iter().enumerate() {
        for target in ["/etc", "../../../../etc", "/proc/self"] {
            let (layer, answer) = launcher.unpack_tar(Tar::new().symlink(link, target).done());
            assert!(matches!(answer, Answer::Unpacked { .. }), "{answer:?}");
            let id = format!("link-{index}");
            let answer = launcher.start_sandbox(&plan(&id, 1, &[layer, base.clone()]));
            let Answer::Failed { step, message, .. } = answer else { panic!("/{link} -> {target}: {answer:?}") };
            assert!(step.contains(link) && message.contains("link"), "{step}: {message}");
            assert!(!launcher.cgroup_of(&id).exists());
        }
    }
}
