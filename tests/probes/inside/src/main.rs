//! What the probes run inside a session, and on the host for the controls: `probe-inside WHAT [ARGUMENT…]`. It tells
//! one line for each thing that it tried, `NAME<tab>RESULT`, where `DONE` is what a sandbox must not answer.
//!
//! | module | what it tries |
//! |---|---|
//! | [`calls`], [`netlink`] | system calls |
//! | [`writes`] | files of the kernel |
//! | [`places`] | what of the host is within reach: descriptors, directories, PID 1, other programs |
//! | [`network`] | addresses |
//! | [`storms`] | using up what others need |
//! | [`free`] | the same where nothing stops it |
#![allow(clippy::print_stdout)]

mod calls;
mod free;
mod name;
mod netlink;
mod network;
mod places;
mod storms;
mod sys;
mod writes;

use std::process::ExitCode;

/// One attempt that hangs is ended after so many seconds.
const PATIENCE: u32 = 10;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    if act(&arguments) {
        ExitCode::SUCCESS
    } else {
        eprintln!("probe-inside: what is {arguments:?}?");
        ExitCode::from(2)
    }
}

/// Whether there is such a thing to try.
fn act(arguments: &[&str]) -> bool {
    match arguments {
        ["free", rest @ ..] => return free::run(rest, act),
        ["calls"] => each(calls::CALLS.iter().map(|(name, call)| (*name, move || name::answer(call())))),
        ["writes"] => each(writes::all()),
        ["descriptors"] => say("descriptors", &places::descriptors()),
        ["climb", marker] => say("climb", &sys::in_child(PATIENCE, || places::climb(marker))),
        ["climb-from", root, cwd, marker] => {
            say("climb", &sys::in_child(PATIENCE, || places::climb_from(root, cwd, marker)));
        }
        ["process", pid] => each(places::process(pid)),
        ["sibling"] => each(places::sibling()),
        ["overwrite", program] => say("overwrite", &sys::in_child(PATIENCE, || places::overwrite(program))),
        ["identity"] => say("identity", &places::identity()),
        ["devices", directory] => each(places::devices(directory)),
        ["link", target, path] => say("link", &name::io(std::os::unix::fs::symlink(target, path))),
        ["swap", one, other, times] => say("swap", &places::swap(one, other, times)),
        ["plant", path] => say("plant", &places::plant(path)),
        ["mounts"] => say("mounts", &places::mounts()),
        ["find", name] => say("find", &places::find(name)),
        ["connect", targets @ ..] => each(network::connect(targets)),
        ["listen", port, seconds] => say("listen", &network::listen(port, seconds)),
        ["storm", what @ ..] => return storms::act(what),
        _ => return false,
    }
    true
}

fn say(name: &str, result: &str) {
    println!("{name}\t{result}");
}

/// Try each in a process of its own, so that none is changed by what another did.
fn each<N: AsRef<str>, A: FnOnce() -> String>(attempts: impl IntoIterator<Item = (N, A)>) {
    for (name, attempt) in attempts {
        say(name.as_ref(), &sys::in_child(PATIENCE, attempt));
    }
}
