//! What a run of the tests leaves on its host: `leftovers take FILE` before it, `leftovers check FILE` after it.
//!
//! The check waits a moment for what is ending, then fails with a line for each process, mount, cgroup, network
//! namespace, interface, forwarding device, nft table or file of ours that was not there before.
#![allow(clippy::print_stdout)]

use std::process::ExitCode;
use std::time::Duration;

use it::daemon::wait_for;
use it::host::Snapshot;

/// How long what is ending may take.
const PATIENCE: Duration = Duration::from_secs(20);

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["take", file] => take(file),
        ["check", file] => check(file),
        _ => {
            eprintln!("usage: leftovers take|check FILE");
            ExitCode::from(2)
        }
    }
}

fn take(file: &str) -> ExitCode {
    let lines: Vec<String> = Snapshot::take().0.into_iter().collect();
    match std::fs::write(file, lines.join("\n")) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("leftovers: write {file}: {error}");
            ExitCode::FAILURE
        }
    }
}

fn check(file: &str) -> ExitCode {
    let Ok(text) = std::fs::read_to_string(file) else {
        eprintln!("leftovers: read {file}: it is what `leftovers take` wrote before the run");
        return ExitCode::FAILURE;
    };
    let before = Snapshot(text.lines().map(str::to_owned).collect());
    let mut left = Vec::new();
    let clean = wait_for(PATIENCE, || {
        left = Snapshot::take().since(&before);
        left.is_empty().then_some(())
    });
    for line in &left {
        println!("left behind: {line}");
    }
    let failed = u32::from(clean.is_none());
    println!("leftovers: {} passed, {failed} failed", 1 - failed);
    ExitCode::from(u8::from(clean.is_none()))
}
