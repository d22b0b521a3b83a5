//! `make chaos`: kill the service, the launcher or both, again and again, under load; then compare.
//!
//! `chaos [KILLS [SEED]]`: 200 kills, a seed from the clock. Ends with 1 if anything was lost or leaked.
#![allow(clippy::print_stdout)]

use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

use it::load;
use it::pair::Pair;

fn main() -> ExitCode {
    let numbers: Result<Vec<u64>, _> = std::env::args().skip(1).map(|text| text.parse()).collect();
    let Ok(numbers) = numbers else {
        eprintln!("usage: chaos [KILLS [SEED]]");
        return ExitCode::from(2);
    };
    let clock = SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |since| since.as_secs());
    let kills = numbers.first().copied().and_then(|kills| usize::try_from(kills).ok()).unwrap_or(200);
    let seed = numbers.get(1).copied().unwrap_or(clock);
    println!("chaos: {kills} kills, seed {seed}");
    let mut pair = Pair::start(&[("SANDBOXD_MAX_SESSIONS", "100"), ("SANDBOXD_CLEANUP_INTERVAL", "1")]);
    let report = load::run(&mut pair, kills, seed, &load::points());
    if !(report.lost.is_empty() && report.leaked.is_empty()) {
        println!("{}", pair.said());
    }
    report.lost.iter().for_each(|what| println!("lost: {what}"));
    report.leaked.iter().for_each(|what| println!("leaked: {what}"));
    println!("{} requests were acknowledged", report.acknowledged);
    println!("{report}");
    ExitCode::from(u8::from(!(report.lost.is_empty() && report.leaked.is_empty())))
}
