//! This test program as a command inside a sandbox: tries things and prints what came of them.

use std::io::Write;

use crate::sys::{exit, raw};

/// With `PROBE` in the environment, what it names; in a normal test run, nothing.
#[test]
fn probe() {
    let Ok(what) = std::env::var("PROBE") else {
        return;
    };
    match what.as_str() {
        "calls" => calls(),
        "reach" => reach(),
        "storm" => storm(),
        "compat" => compat(),
        other => panic!("no probe {other}"),
    }
    exit(0)
}

fn say(text: &str) {
    // Not println: the harness has its own lines.
    let _ = writeln!(std::io::stdout(), "\nprobe {text}");
}

/// Each system call of the golden table: its name and errno.
fn calls() {
    for (name, number, args) in crate::confine::table() {
        say(&format!("{name} {}", raw(number, args)));
    }
}

/// What a command could do to the init.
fn reach() {
    let tries: [(&str, i64, [u64; 6]); 6] = [
        ("kill", libc::SYS_kill, [1, 9, 0, 0, 0, 0]),
        ("stop", libc::SYS_kill, [1, 19, 0, 0, 0, 0]),
        // No new limit, no old limit: only the permission is asked.
        ("limits", libc::SYS_prlimit64, [1, libc::RLIMIT_NOFILE as u64, 0, 0, 0, 0]),
        ("nice", libc::SYS_setpriority, [0, 1, 19, 0, 0, 0]),
        ("affinity", libc::SYS_sched_setaffinity, [1, 0, 0, 0, 0, 0]),
        ("io priority", libc::SYS_ioprio_set, [1, 1, 3 << 13, 0, 0, 0]),
    ];
    for (name, number, args) in tries {
        say(&format!("{name}={}", raw(number, args)));
    }
    for file in ["mem", "environ", "maps", "fd", "root", "cwd", "exe", "oom_score_adj"] {
        let path = format!("/proc/1/{file}");
        let answer = match file {
            "fd" => std::fs::read_dir(path).map(drop),
            "root" | "cwd" | "exe" => std::fs::read_link(path).map(drop),
            "oom_score_adj" => std::fs::write(path, "1000"),
            _ => std::fs::read(path).map(drop),
        };
        say(&format!("{file}={}", answer.err().and_then(|e| e.raw_os_error()).unwrap_or(0)));
    }
}

/// Stops every process that this one may signal, without end.
fn storm() {
    say("storm");
    loop {
        raw(libc::SYS_kill, [u64::MAX, 19, 0, 0, 0, 0]);
    }
}

/// The other system call table of this architecture.
fn compat() {
    #[cfg(target_arch = "x86_64")]
    say(&format!("compat {}", crate::sys::getpid_32()));
}
