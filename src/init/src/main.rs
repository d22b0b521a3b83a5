//! PID 1 of every sandbox: runs commands for `sandboxd`, reaps, kills exactly.
//!
//! `wire::init` is what it speaks. It is small, static, has one thread, and waits in one place:
//!
//! ```text
//!  main ── setup: descriptors, signals, user 65535, capabilities, seccomp
//!    └──── serve: epoll ─┬─ listener, connection ── frames ── Run  ── exec ── fork, drop, execve
//!                        │                                    File ── files ── fork, drop, do it, end
//!                        │                                    Stop ── cgroup (TERM, cgroup.kill)
//!                        ├─ SIGCHLD ── reap ── Exited, Refused
//!                        └─ cgroup.events of a run whose main process is gone ── Emptied
//! ```
//!
//! Commands cannot harm it: it has a user of its own inside the sandbox, is PID 1 (so
//! that no signal from inside has an effect, and all are blocked), is outside of their cgroup limits, takes nothing from
//! them but exit statuses, and does at most a bounded amount of work for any of them in a turn.
//!
//! The launcher starts it as `/.sandbox-init`, or `/.sandbox-init --build` in a build sandbox, as user 0 of
//! the sandbox's user namespace with `/proc` and `/dev/null` in place, with the capabilities that [`setup`] lists,
//! and with `oom_score_adj` 0. `cgroup.procs` of the cgroup above both the init's own and
//! descriptor 4, and all that is in descriptor 4, belong to that user 0.

mod cgroup;
mod child;
mod ended;
mod exec;
mod files;
mod frames;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
mod gvisor;
mod reap;
mod runs;
mod search;
mod seccomp;
mod serve;
mod setup;
mod sys;
mod tunnel;

use std::process::ExitCode;

/// Exit status when the init cannot start; the reason is on standard error, if that is open.
const CANNOT_START: u8 = 70;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let build = match arguments.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        [] => false,
        ["--build"] => true,
        ["--inside"] => match gvisor::inside() {
            Ok(()) => false,
            Err(failure) => return fail(&failure.to_string()),
        },
        ["--outside", id] if id.parse::<u32>().is_ok_and(|id| id > 0) => {
            return fail(&gvisor::outside(id.parse().unwrap_or(u32::MAX)).to_string());
        }
        _ => {
            return fail("usage: sandbox-init [--build], with the control socket as descriptor 3 and the cgroup as 4");
        }
    };
    match setup::prepare(build).and_then(serve::Init::new).map(serve::Init::run) {
        Ok(failure) | Err(failure) => fail(&failure.to_string()),
    }
}

fn fail(reason: &str) -> ExitCode {
    eprintln!("sandbox-init: {reason}");
    ExitCode::from(CANNOT_START)
}
