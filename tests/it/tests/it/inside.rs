//! What a sandbox looks like from inside it: asserted by commands in it. The same whoever started it ([`crate::oci`]).

use it::{Daemon, Session, shared};

/// A test of each, of sandboxes that libcontainer started, and a list of all.
macro_rules! checks {
    ($($name:ident),* $(,)?) => {
        /// Each by its name.
        pub const ALL: &[(&str, fn(&Daemon))] = &[$((stringify!($name), $name)),*];

        mod by_libcontainer {
            $(#[test]
            fn $name() {
                super::$name(super::shared());
            })*
        }
    };
}

checks! {
    commands_run_as_the_sandbox_user,
    a_ready_made_image_runs_as_its_own_user_in_its_own_range,
    every_sandbox_has_a_range_of_its_own,
    commands_have_no_privilege_and_gain_none,
    a_command_has_three_descriptors,
    there_is_loopback_and_nothing_else,
    the_namespaces_are_not_the_host_s,
    no_other_process_is_seen,
    no_path_of_the_host_is_mounted_but_the_workspace_s,
    what_must_be_read_only_is,
    the_devices_are_the_usual_ones,
    dangerous_system_calls_are_refused,
    the_init_cannot_be_harmed,
    tmp_is_bounded_and_may_execute,
    a_write_layer_is_one_session_s,
    set_uid_programs_give_nothing,
}

fn status(s: &Session, key: &str) -> String {
    let outcome = s.run(["grep", &format!("^{key}:"), "/proc/self/status"]);
    outcome.expect_code(0).stdout().split_once(':').unwrap().1.trim().to_owned()
}

pub fn commands_run_as_the_sandbox_user(daemon: &Daemon) {
    let s = daemon.session("python");
    s.run(["id", "-u"]).expect("10001\n");
    s.run(["id", "-g"]).expect("10001\n");
    s.run(["id", "-un"]).expect("agent\n");
    assert_eq!(status(&s, "Groups"), "10001");
    s.run(["sh", "-c", "command -v python3; python3 -c 'import sys; print(sys.prefix)'"])
        .expect("/opt/venv/bin/python3\n/opt/venv\n");
    s.sh("touch /home/agent/x /opt/venv/y /tmp/z && echo yes").expect("yes\n");
}

pub fn a_ready_made_image_runs_as_its_own_user_in_its_own_range(daemon: &Daemon) {
    let s = daemon.session("base");
    s.run(["id", "-u"]).expect("0\n");
    let map = s.run(["cat", "/proc/self/uid_map"]);
    let fields: Vec<u64> = map.expect_code(0).stdout().split_whitespace().map(|n| n.parse().unwrap()).collect();
    assert_eq!((fields[0], fields[2]), (0, 65536), "{fields:?}");
    assert!(fields[1] >= 65536, "root inside is nobody outside: {fields:?}");
}

pub fn every_sandbox_has_a_range_of_its_own(daemon: &Daemon) {
    let (one, two) = (daemon.session("base"), daemon.session("base"));
    let map = |s: &Session| s.run(["cat", "/proc/self/uid_map"]).stdout().to_owned();
    assert_ne!(map(&one), map(&two));
}

pub fn commands_have_no_privilege_and_gain_none(daemon: &Daemon) {
    for runtime in ["python", "base"] {
        let s = daemon.session(runtime);
        for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
            assert_eq!(status(&s, set), "0000000000000000", "{runtime}: {set}");
        }
        assert_eq!((status(&s, "NoNewPrivs").as_str(), status(&s, "Seccomp").as_str()), ("1", "2"), "{runtime}");
    }
}

pub fn a_command_has_three_descriptors(daemon: &Daemon) {
    let s = daemon.session("python");
    // The fourth is the directory that is being read.
    s.run(["python3", "-c", "import os; print(sorted(int(f) for f in os.listdir('/proc/self/fd')))"])
        .expect("[0, 1, 2, 3]\n");
}

pub fn there_is_loopback_and_nothing_else(daemon: &Daemon) {
    let s = daemon.session("python");
    s.run(["sh", "-c", "tail -n +3 /proc/net/dev | cut -d: -f1 | tr -d ' '"]).expect("lo\n");
    s.run([
        "python3",
        "-c",
        "
import socket
a = socket.socket(); a.bind(('127.0.0.1', 0)); a.listen()
b = socket.create_connection(a.getsockname()); print('loopback')
for target in [('8.8.8.8', 53), ('169.254.169.254', 80), ('192.168.1.1', 80)]:
    try:
        socket.create_connection(target, timeout=2); print('reached', target)
    except OSError as error:
        print(error.errno)
",
    ])
    .expect("loopback\n101\n101\n101\n");
}

pub fn the_namespaces_are_not_the_host_s(daemon: &Daemon) {
    let s = daemon.session("python");
    for kind in ["user", "mnt", "pid", "ipc", "uts", "net", "cgroup"] {
        let inside = s.run(["readlink", &format!("/proc/self/ns/{kind}")]);
        let outside = std::fs::read_link(format!("/proc/self/ns/{kind}")).unwrap();
        assert_ne!(inside.expect_code(0).stdout().trim(), outside.to_string_lossy(), "{kind}");
    }
    assert_eq!(s.run(["readlink", "/proc/1/exe"]).code(), Some(1), "the init cannot be looked into");
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    assert_ne!(s.run(["cat", "/proc/sys/kernel/hostname"]).stdout(), host);
}

pub fn no_other_process_is_seen(daemon: &Daemon) {
    let (s, other) = (daemon.session("python"), daemon.session("python"));
    other.sh("sleep 5 & true").expect_code(0);
    let seen = s.run([
        "python3",
        "-c",
        "
import os
for pid in sorted(int(p) for p in os.listdir('/proc') if p.isdigit()):
    print(open(f'/proc/{pid}/comm').read().strip() if pid != os.getpid() else 'itself')
",
    ]);
    // Not even the init: it is another user's.
    seen.expect("itself\n");
}

pub fn no_path_of_the_host_is_mounted_but_the_workspace_s(daemon: &Daemon) {
    let s = daemon.session("python");
    let table = s.run(["cat", "/proc/self/mountinfo"]);
    let table = table.expect_code(0).stdout();
    for line in table.lines() {
        let fields: Vec<&str> = line.split(' ').collect();
        let (root, target) = (fields[3], fields[4]);
        let kind = line.split(" - ").nth(1).unwrap().split(' ').next().unwrap();
        let explained = ["/", "/workspace", "/.sandbox-init"].contains(&target)
            || target.starts_with("/etc/")
            || target.starts_with("/dev");
        let kernel = ["proc", "sysfs", "tmpfs", "devpts", "mqueue", "cgroup2"].contains(&kind)
            || (kind == "devtmpfs" && root == "/null");
        assert!(explained || kernel, "what is this? {line}");
        assert!(target == "/workspace" || !root.contains("/workspaces/"), "another workspace: {line}");
    }
    assert!(!table.contains("/root"), "{table}");
    let target = it::daemon::target();
    assert!(!s.run(["ls", "-d", &target.to_string_lossy()]).stdout().contains("target"));
}

pub fn what_must_be_read_only_is(daemon: &Daemon) {
    let s = daemon.session("base");
    for path in ["/proc/sys/kernel/hostname", "/proc/sysrq-trigger", "/.sandbox-init", "/sys/kernel/x"] {
        let outcome = s.sh(&format!("echo x > {path}"));
        assert_ne!(outcome.code(), Some(0), "{path} was written");
    }
    for path in ["/proc/kcore", "/proc/keys", "/proc/timer_list", "/sys/firmware"] {
        let outcome = s.sh(&format!(
            "cat {path} 2>/dev/null | head -c 1 | wc -c; ls {path} 2>/dev/null | grep -v '^{path}$' | wc -l"
        ));
        assert_eq!(outcome.stdout(), "0\n0\n", "{path} is not masked");
    }
}

pub fn the_devices_are_the_usual_ones(daemon: &Daemon) {
    let s = daemon.session("base");
    let list = s.sh("cd /dev; find . -type c -o -type b | sort | tr '\\n' ' '");
    let usual = ["./full", "./null", "./random", "./tty", "./urandom", "./zero", "./console", "./ptmx", "./pts/ptmx"];
    for device in list.expect_code(0).stdout().split_whitespace() {
        assert!(usual.contains(&device), "{device} is in /dev");
    }
    s.sh("echo x > /dev/null; head -c 4 /dev/zero | wc -c; head -c 4 /dev/urandom | wc -c").expect("4\n4\n");
    assert_ne!(s.sh("mknod /tmp/disk b 8 0").code(), Some(0), "a device was made");
}

pub fn dangerous_system_calls_are_refused(daemon: &Daemon) {
    let s = daemon.session("python");
    let code = "
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
def call(*args):
    ctypes.set_errno(0)
    return os.strerror(ctypes.get_errno()) if libc.syscall(*args) < 0 else 'DONE'
calls = {'mount': (165, b'none', b'/tmp', b'tmpfs', 0, 0), 'unshare': (272, 0x10000000), 'setns': (308, 0, 0), 'bpf': (321, 0, 0, 0),
    'perf_event_open': (298, 0, 0, 0, 0, 0), 'io_uring_setup': (425, 1, 0), 'userfaultfd': (323, 0), 'keyctl': (250, 0, 0, 0, 0, 0),
    'add_key': (248, b'user', b'x', b'y', 1, -3), 'kexec_load': (246, 0, 0, 0, 0), 'init_module': (175, 0, 0, b''), 'reboot': (169, 0, 0, 0, 0),
    'pivot_root': (155, b'/', b'/'), 'ptrace': (101, 16, 1, 0, 0), 'open_by_handle_at': (304, 0, 0, 0), 'umount2': (166, b'/proc', 2),
    'swapon': (167, b'/tmp/x', 0), 'move_mount': (429, -1, b'', -1, b'', 0), 'clone newuser': (56, 0x10000011, 0, 0, 0, 0)}
for name, args in calls.items():
    result = call(*args)
    if result == 'DONE' or result == 'Invalid argument' or result == 'Bad address':
        print(name, result)
";
    if std::env::consts::ARCH == "x86_64" {
        s.run(["python3", "-c", code]).expect("");
    }
}

pub fn the_init_cannot_be_harmed(daemon: &Daemon) {
    let s = daemon.session("base");
    for signal in ["TERM", "KILL", "STOP", "INT", "SEGV", "HUP"] {
        s.sh(&format!("kill -{signal} 1; true")).expect_code(0);
    }
    s.sh("kill -KILL -1; true").expect_code(0);
    s.sh("cat /proc/1/environ /proc/1/mem /proc/1/maps 2>/dev/null | wc -c").expect("0\n");
    s.run(["echo", "alive"]).expect("alive\n");
}

pub fn tmp_is_bounded_and_may_execute(daemon: &Daemon) {
    let s = daemon.session("python");
    let size = s.sh("df -k /tmp | tail -n 1 | tr -s ' ' | cut -d ' ' -f 2");
    assert_eq!(size.stdout(), "65536\n");
    assert_ne!(s.sh("head -c 70000000 /dev/zero > /tmp/fill").code(), Some(0));
    s.sh("rm /tmp/fill; printf '#!/bin/sh\\necho ran\\n' > /tmp/x; chmod +x /tmp/x; /tmp/x").expect("ran\n");
}

pub fn a_write_layer_is_one_session_s(daemon: &Daemon) {
    let (one, two) = (daemon.session("python"), daemon.session("python"));
    one.sh("echo mine > /home/agent/mine; rm -r /opt/venv/lib").expect("");
    two.sh("ls /home/agent/mine 2>/dev/null; ls -d /opt/venv/lib").expect("/opt/venv/lib\n");
}

pub fn set_uid_programs_give_nothing(daemon: &Daemon) {
    let s = daemon.session("python");
    let outcome = s.sh("for p in $(find / -xdev -perm -4000 -type f 2>/dev/null); do echo $p; done; cp /usr/bin/id /tmp/id; chmod 4755 /tmp/id; /tmp/id -u");
    assert!(outcome.stdout().ends_with("10001\n"), "{}", outcome.stdout());
}
