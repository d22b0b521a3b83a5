//! What a command is given and what is told of its end.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use wire::init::{Privilege, Step};

use crate::sandbox::{AGENT, Sandbox, command};

#[test]
fn arguments_are_literal() {
    let mut sandbox = Sandbox::new();
    let nasty = ["printf", "%s|", "a b", "", "$HOME", "`id`", "*", "'\"\\", "é\n", "-n"];
    let done = sandbox.output(command(&nasty));
    assert_eq!(done.out, "a b||$HOME|`id`|*|'\"\\|é\n|-n|");
    assert_eq!((done.code, done.err.as_str()), (0, ""));
}

#[test]
fn environment_is_exactly_what_was_asked() {
    let mut sandbox = Sandbox::new();
    let mut env = command(&["/usr/bin/env"]);
    env.env = vec![("B".into(), "1=2".into()), ("A".into(), String::new()), ("PATH".into(), "/x".into())];
    assert_eq!(sandbox.output(env).out, "B=1=2\nA=\nPATH=/x\n");
    let mut none = command(&["/usr/bin/env"]);
    none.env.clear();
    assert_eq!(sandbox.output(none).out, "");
}

#[test]
fn programs_are_found_on_the_commands_own_path() {
    let mut sandbox = Sandbox::new();
    let home = sandbox.home();
    for (name, mode, text) in
        [("mine", 0o755, "#!/bin/sh\necho mine\n"), ("closed", 0o644, ""), ("raw", 0o755, "echo x\n")]
    {
        fs::write(home.join(name), text).unwrap();
        fs::set_permissions(home.join(name), fs::Permissions::from_mode(mode)).unwrap();
    }
    let on_path = |name: &str, path: &str| {
        let mut command = command(&[name]);
        command.env = vec![("PATH".into(), path.to_owned())];
        command
    };
    let path = format!("/nowhere:/etc/passwd:{}:/usr/bin:/bin", home.display());
    assert_eq!(sandbox.output(on_path("mine", &path)).out, "mine\n");
    assert_eq!(sandbox.refusal(on_path("mine", "/usr/bin:/bin")), (Step::Exec, libc::ENOENT));
    // One that may not be executed is told only if none that may comes later.
    assert_eq!(sandbox.refusal(on_path("closed", &path)), (Step::Exec, libc::EACCES));
    assert_eq!(sandbox.refusal(on_path("raw", &path)), (Step::Exec, libc::ENOEXEC));
    assert_eq!(sandbox.refusal(command(&["./mine"])), (Step::Exec, libc::ENOENT));
    let mut here = on_path("mine", "");
    here.cwd = home.to_str().unwrap().into();
    assert_eq!(sandbox.output(here).out, "mine\n");
    let mut default = command(&["true"]);
    default.env.clear();
    assert_eq!(sandbox.output(default).code, 0);
    assert_eq!(sandbox.refusal(command(&[""])), (Step::Exec, libc::ENOENT));
}

#[test]
fn the_working_directory_is_entered_as_the_user() {
    let mut sandbox = Sandbox::new();
    let home = sandbox.home();
    let within = |dir: &str| {
        let mut command = command(&["pwd"]);
        command.cwd = dir.into();
        command
    };
    let home = home.to_str().unwrap();
    assert_eq!(sandbox.output(within(home)).out, format!("{home}\n"));
    assert_eq!(sandbox.refusal(within("/nowhere")), (Step::Chdir, libc::ENOENT));
    assert_eq!(sandbox.refusal(within("/etc/passwd")), (Step::Chdir, libc::ENOTDIR));
    fs::set_permissions(home, fs::Permissions::from_mode(0o000)).unwrap();
    assert_eq!(sandbox.refusal(within(home)), (Step::Chdir, libc::EACCES));
    fs::set_permissions(home, fs::Permissions::from_mode(0o700)).unwrap();
    assert_eq!(sandbox.output(within(home)).code, 0);
    // Refused ones leave nothing.
    assert_eq!(sandbox.cgroups(), Vec::<String>::new());
}

#[test]
fn exit_codes_and_signals_come_home() {
    let mut sandbox = Sandbox::new();
    for code in [0, 1, 7, 126, 127, 255] {
        assert_eq!(sandbox.sh(&format!("exit {code}")).code, code);
    }
    for signal in [1, 9, 11, 13, 15] {
        assert_eq!(sandbox.sh(&format!("kill -{signal} $$")).code, 128 + signal);
    }
}

#[test]
fn streams_are_apart_and_standard_input_is_at_its_end() {
    let mut sandbox = Sandbox::new();
    let done = sandbox.sh("cat; echo $?; echo to err >&2");
    assert_eq!((done.out.as_str(), done.err.as_str()), ("0\n", "to err\n"));
}

#[test]
fn a_command_has_three_descriptors_and_default_signals() {
    let mut sandbox = Sandbox::new();
    // ls itself opens one more, for the directory.
    assert_eq!(sandbox.output(command(&["ls", "/proc/self/fd"])).out, "0\n1\n2\n3\n");
    let status = sandbox.output(command(&["cat", "/proc/self/status"])).out;
    for set in ["SigPnd", "ShdPnd", "SigBlk", "SigIgn", "SigCgt"] {
        assert!(status.contains(&format!("{set}:\t0000000000000000")), "{status}");
    }
    assert_eq!(sandbox.sh("yes | head -1; umask; ps -o pid=,sid= -p $$ | awk '{print $1==$2}'").out, "y\n0022\n1\n");
}

#[test]
fn usage_is_that_of_the_command() {
    let mut sandbox = Sandbox::new();
    let busy = sandbox.sh("i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done").usage;
    assert!(busy.user_us + busy.system_us > 50_000, "{busy:?}");
    let idle = sandbox.output(command(&["true"])).usage;
    assert!(idle.user_us + idle.system_us < 50_000 && idle.max_rss_kib < 16 * 1024, "{idle:?}");
}

#[test]
fn every_run_is_in_its_own_cgroup_and_session() {
    let sandbox = Sandbox::new();
    let mut run = sandbox.client.run(command(&["sh", "-c", "echo up; exec sleep 1000"]));
    assert_eq!(run.line(), "up");
    assert_eq!(sandbox.cgroups(), [run.id.to_string()]);
    let procs = fs::read_to_string(sandbox.cgroup.join("commands").join(run.id.to_string()).join("cgroup.procs"));
    assert_eq!(procs.unwrap().lines().count(), 1);
    assert_eq!(fs::read_to_string(sandbox.cgroup.join("init/cgroup.procs")).unwrap().lines().count(), 1);
}

#[test]
fn limits_are_the_launchers_and_memory_pressure_takes_commands_first() {
    let mut sandbox = Sandbox::new();
    let own = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let (soft, hard) = (own.current.unwrap(), own.maximum.unwrap());
    assert_eq!(sandbox.sh("ulimit -Sn; ulimit -Hn").out, format!("{soft}\n{hard}\n"));
    let done =
        sandbox.sh("cat /proc/self/oom_score_adj; echo -1 > /proc/self/oom_score_adj; cat /proc/self/oom_score_adj");
    assert_eq!(done.out, "500\n500\n", "{}", done.err);
}

#[test]
fn ids_are_the_ones_asked_for() {
    let mut sandbox = Sandbox::new();
    assert_eq!(sandbox.sh("id -u; id -g; id -G").out, format!("{AGENT}\n{AGENT}\n{AGENT}\n"));
    let mut root = command(&["sh", "-c", "id -u; id -g; id -G; cat /proc/self/oom_score_adj"]);
    (root.uid, root.gid) = (0, 0);
    assert_eq!(sandbox.output(root).out, "0\n0\n0\n500\n");
    for id in [65_535, 65_536, u32::MAX] {
        let mut bad = command(&["true"]);
        bad.uid = id;
        assert_eq!(sandbox.refusal(bad), (Step::Request, libc::EINVAL));
    }
    let mut build = command(&["true"]);
    build.privilege = Privilege::Build;
    assert_eq!(sandbox.refusal(build), (Step::Request, libc::EPERM));
}

#[test]
fn what_keeps_the_init_from_starting_is_said() {
    let start = |arguments: &[&str]| {
        let output = std::process::Command::new(env!("CARGO_BIN_EXE_sandbox-init")).args(arguments).output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let (code, reason) = start(&[]);
    assert_eq!(code, Some(70));
    assert!(reason.starts_with("sandbox-init: take the control socket, descriptor 3: "), "{reason}");
    assert_eq!(start(&["--bulid"]).0, Some(70));
}
