//! What commands may not do. The tables here are what the documentation promises.

use std::collections::BTreeMap;

use wire::init::{Command, Privilege};

use crate::sandbox::{Sandbox, command};

const NONE: [u64; 6] = [0; 6];
const NEVER: u64 = u64::MAX;

fn first(value: u64) -> [u64; 6] {
    [value, 0, 0, 0, 0, 0]
}

/// System calls to try, with arguments that do no harm where they are let through.
pub fn table() -> Vec<(&'static str, i64, [u64; 6])> {
    golden().into_iter().map(|(name, number, args, _)| (name, number, args)).collect()
}

/// Each with the errno that a command without privilege gets.
fn golden() -> Vec<(&'static str, i64, [u64; 6], i32)> {
    let eperm = |name, number| (name, number, NONE, libc::EPERM);
    let clone = |name, flag: i32| (name, libc::SYS_clone, first(flag as u64 | libc::SIGCHLD as u64), libc::EPERM);
    let socket = |name, family: i32, errno| {
        (name, libc::SYS_socket, [family as u64, libc::SOCK_STREAM as u64, 0, 0, 0, 0], errno)
    };
    let mut table = vec![
        ("unshare", libc::SYS_unshare, first(libc::CLONE_NEWUSER as u64), libc::EPERM),
        eperm("unshare nothing", libc::SYS_unshare),
        eperm("setns", libc::SYS_setns),
        clone("clone user", libc::CLONE_NEWUSER),
        clone("clone mount", libc::CLONE_NEWNS),
        clone("clone pid", libc::CLONE_NEWPID),
        clone("clone net", libc::CLONE_NEWNET),
        clone("clone ipc", libc::CLONE_NEWIPC),
        clone("clone uts", libc::CLONE_NEWUTS),
        clone("clone cgroup", libc::CLONE_NEWCGROUP),
        ("clone3", libc::SYS_clone3, NONE, libc::ENOSYS),
        eperm("mount", libc::SYS_mount),
        eperm("umount2", libc::SYS_umount2),
        eperm("pivot_root", libc::SYS_pivot_root),
        eperm("fsopen", libc::SYS_fsopen),
        eperm("fsmount", libc::SYS_fsmount),
        eperm("fsconfig", libc::SYS_fsconfig),
        eperm("fspick", libc::SYS_fspick),
        eperm("open_tree", libc::SYS_open_tree),
        eperm("move_mount", libc::SYS_move_mount),
        eperm("mount_setattr", libc::SYS_mount_setattr),
        eperm("open_by_handle_at", libc::SYS_open_by_handle_at),
        eperm("ptrace", libc::SYS_ptrace),
        eperm("process_vm_readv", libc::SYS_process_vm_readv),
        eperm("process_vm_writev", libc::SYS_process_vm_writev),
        eperm("process_madvise", libc::SYS_process_madvise),
        eperm("pidfd_getfd", libc::SYS_pidfd_getfd),
        eperm("kcmp", libc::SYS_kcmp),
        eperm("add_key", libc::SYS_add_key),
        eperm("request_key", libc::SYS_request_key),
        eperm("keyctl", libc::SYS_keyctl),
        eperm("bpf", libc::SYS_bpf),
        eperm("perf_event_open", libc::SYS_perf_event_open),
        eperm("io_uring_setup", libc::SYS_io_uring_setup),
        eperm("io_uring_enter", libc::SYS_io_uring_enter),
        eperm("io_uring_register", libc::SYS_io_uring_register),
        eperm("userfaultfd", libc::SYS_userfaultfd),
        eperm("fanotify_init", libc::SYS_fanotify_init),
        eperm("mbind", libc::SYS_mbind),
        eperm("move_pages", libc::SYS_move_pages),
        eperm("init_module", libc::SYS_init_module),
        eperm("finit_module", libc::SYS_finit_module),
        eperm("delete_module", libc::SYS_delete_module),
        eperm("kexec_load", libc::SYS_kexec_load),
        eperm("kexec_file_load", libc::SYS_kexec_file_load),
        eperm("reboot", libc::SYS_reboot),
        eperm("swapon", libc::SYS_swapon),
        eperm("swapoff", libc::SYS_swapoff),
        eperm("syslog", libc::SYS_syslog),
        eperm("acct", libc::SYS_acct),
        eperm("quotactl", libc::SYS_quotactl),
        eperm("quotactl_fd", libc::SYS_quotactl_fd),
        eperm("settimeofday", libc::SYS_settimeofday),
        eperm("clock_settime", libc::SYS_clock_settime),
        eperm("sethostname", libc::SYS_sethostname),
        eperm("setdomainname", libc::SYS_setdomainname),
        eperm("vhangup", libc::SYS_vhangup),
        ("personality query", libc::SYS_personality, first(0xffff_ffff), 0),
        ("personality no randomisation", libc::SYS_personality, first(0x004_0000), libc::EPERM),
        socket("socket unix", libc::AF_UNIX, 0),
        socket("socket inet", libc::AF_INET, 0),
        socket("socket inet6", libc::AF_INET6, 0),
        socket("socket vsock", libc::AF_VSOCK, libc::EPERM),
        socket("socket alg", libc::AF_ALG, libc::EPERM),
        socket("socket packet", libc::AF_PACKET, libc::EPERM),
        socket("socket bluetooth", libc::AF_BLUETOOTH, libc::EPERM),
        ("socketpair tipc", libc::SYS_socketpair, first(libc::AF_TIPC as u64), libc::EPERM),
        // Allowed by the filter: the kernel itself answers.
        ("close", libc::SYS_close, first(NEVER), libc::EBADF),
        ("chroot", libc::SYS_chroot, NONE, libc::EFAULT),
        ("setuid", libc::SYS_setuid, NONE, libc::EPERM),
        ("statmount", 457, NONE, libc::ENOSYS),
        ("of the future", 999, NONE, libc::ENOSYS),
    ];
    #[cfg(target_arch = "x86_64")]
    table.extend([
        eperm("iopl", libc::SYS_iopl),
        eperm("ioperm", libc::SYS_ioperm),
        ("create_module", 174, NONE, libc::ENOSYS),
        ("x32", libc::SYS_getpid | 0x4000_0000, NONE, libc::ENOSYS),
    ]);
    table
}

fn probed(out: &str) -> BTreeMap<String, String> {
    let lines = out.lines().filter_map(|line| line.strip_prefix("probe "));
    lines.map(|line| line.rsplit_once(['=', ' ']).unwrap()).map(|(name, errno)| (name.into(), errno.into())).collect()
}

#[test]
fn system_calls_are_refused_as_promised() {
    let mut sandbox = Sandbox::new();
    let done = sandbox.output(sandbox.probe("calls"));
    let found = probed(&done.out);
    let wrong: Vec<_> = golden()
        .iter()
        .map(|(name, _, _, errno)| (*name, errno.to_string(), found.get(*name).cloned().unwrap_or_default()))
        .filter(|(_, expected, found)| expected != found)
        .collect();
    assert!(wrong.is_empty(), "name, expected, found: {wrong:?}\n{}{}", done.out, done.err);
}

#[test]
#[cfg(target_arch = "x86_64")]
fn the_32_bit_table_is_no_way_around() {
    let mut sandbox = Sandbox::new();
    let done = sandbox.output(sandbox.probe("compat"));
    // SIGSYS by the filter, or SIGSEGV where the kernel has no such table.
    assert!([128 + 31, 128 + 11].contains(&done.code), "{done:?}");
}

#[test]
fn commands_have_no_privilege_and_cannot_gain_any() {
    let mut sandbox = Sandbox::new();
    for uid in [0, 10001] {
        let mut show = command(&["cat", "/proc/self/status"]);
        (show.uid, show.gid) = (uid, uid);
        let status = sandbox.output(show).out;
        for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
            assert!(status.contains(&format!("{set}:\t0000000000000000\n")), "{uid}: {status}");
        }
        assert!(status.contains("NoNewPrivs:\t1\n") && status.contains("Seccomp:\t2\n"), "{status}");
        assert!(status.contains("Seccomp_filters:\t3\n"), "{status}");
    }
}

#[test]
fn commands_cannot_reach_the_init() {
    let mut sandbox = Sandbox::new();
    for uid in [0, 10001] {
        let mut probe = sandbox.probe("reach");
        (probe.uid, probe.gid) = (uid, uid);
        let done = sandbox.output(probe);
        let found = probed(&done.out);
        for what in ["kill", "stop", "limits", "nice", "affinity", "io priority"] {
            assert_eq!(found[what], libc::EPERM.to_string(), "{what} as {uid}: {found:?}");
        }
        for what in ["mem", "environ", "maps", "fd", "root", "cwd", "exe"] {
            assert_eq!(found[what], libc::EACCES.to_string(), "{what} as {uid}: {found:?}");
        }
        assert_eq!(found["oom_score_adj"], libc::EACCES.to_string(), "{found:?}");
    }
    assert_eq!(sandbox.sh("echo on").out, "on\n");
}

#[test]
fn loopback_is_up_and_the_only_interface() {
    let mut sandbox = Sandbox::new();
    let out = sandbox.sh("cut -d: -f1 /proc/net/dev | tail -n +3 | tr -d ' '").out;
    assert!(out.split_whitespace().any(|name| name == "lo"), "{out}");
    let script = "import socket; s = socket.create_server(('127.0.0.1', 0)); c = socket.create_connection(s.getsockname()); print('met')";
    let done = sandbox.output(command(&["/usr/bin/python3", "-c", script]));
    assert_eq!(done.out, "met\n", "{}", done.err);
}

fn build(argv: &[&str]) -> Command {
    Command { privilege: Privilege::Build, uid: 0, gid: 0, ..command(argv) }
}

#[test]
fn build_steps_own_files_and_nothing_more() {
    let mut sandbox = Sandbox::start(true);
    let home = sandbox.home();
    let status = sandbox.output(build(&["cat", "/proc/self/status"])).out;
    // The numbers of wire's BUILD_CAPABILITIES.
    let set = [0, 1, 3, 4, 5, 6, 7, 8, 18, 27, 31].iter().fold(0_u64, |set, bit| set | 1 << bit);
    for name in ["CapPrm", "CapEff", "CapBnd"] {
        assert!(status.contains(&format!("{name}:\t{set:016x}\n")), "{status}");
    }
    assert!(status.contains("NoNewPrivs:\t0\n") && status.contains("Seccomp:\t2\n"), "{status}");
    let script = format!(
        "cd {} && touch f && chown 10001:33 f && stat -c %u:%g f && chmod 4755 f && /usr/sbin/chroot / id -u",
        home.display()
    );
    let done = sandbox.output(build(&["sh", "-c", &script]));
    assert_eq!(done.out, "10001:33\n0\n", "{}", done.err);
    let found =
        probed(&sandbox.output(Command { privilege: Privilege::Build, uid: 0, gid: 0, ..sandbox.probe("calls") }).out);
    for name in ["unshare", "setns", "mount", "clone user", "bpf", "keyctl", "ptrace", "io_uring_setup", "reboot"] {
        assert_eq!(found[name], libc::EPERM.to_string(), "{name}");
    }
    assert_eq!(found["clone3"], libc::ENOSYS.to_string());
}

#[test]
fn a_command_without_privilege_in_a_build_has_none() {
    let mut sandbox = Sandbox::start(true);
    let mut show = command(&["cat", "/proc/self/status"]);
    (show.uid, show.gid) = (0, 0);
    let status = sandbox.output(show).out;
    for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
        assert!(status.contains(&format!("{set}:\t0000000000000000\n")), "{status}");
    }
    assert!(status.contains("NoNewPrivs:\t1\n") && status.contains("Seccomp:\t2\n"), "{status}");
}
