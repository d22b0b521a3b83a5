//! `make scale`: 1,000 open sessions of which 20 are resident; how long things take then.
//!
//! `scale [SESSIONS]`. Ends with 1 if adoption takes a second or more.
#![allow(clippy::print_stdout, clippy::expect_used)] // a program for tests: it may stop

use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use it::load::Dice;
use it::pair::{Pair, Which, attempt};
use it::session::run_id;
use serde_json::json;

/// Clients that open at once.
const CLIENTS: usize = 8;
/// Resident at most.
const RESIDENT: &str = "20";
/// Sessions that are woken.
const WAKES: usize = 20;
/// The service is to be back within this.
const ADOPTION: Duration = Duration::from_secs(1);

fn main() -> ExitCode {
    let count = std::env::args().nth(1).map_or(Ok(1000), |text| text.parse::<usize>());
    let Ok(count) = count else {
        eprintln!("usage: scale [SESSIONS]");
        return ExitCode::from(2);
    };
    let open_limit = count.max(20).to_string();
    let mut pair = Pair::start(&[
        ("SANDBOXD_MAX_SESSIONS", RESIDENT),
        ("SANDBOXD_MAX_OPEN_SESSIONS", &open_limit),
        ("SANDBOXD_EVICT_IDLE_AFTER", "0"),
        ("SANDBOXD_IDLE_TIMEOUT", "0"),
    ]);
    let begun = Instant::now();
    open(&pair, count);
    let opening = begun.elapsed();
    println!("opening {count} sessions: {:.1} s, {:.1} ms each", opening.as_secs_f64(), ms(opening) / count as f64);
    let listing = list(&pair, count);
    println!("listing them with usage: {listing:.1} ms");
    pair.kill(Which::Service);
    let restart = pair.start_service(None);
    println!("restart until requests are answered: {:.0} ms", ms(restart));
    assert_eq!(pair.open_sessions().len(), count, "sessions after the restart");
    let wake = wake(&pair, count);
    println!("waking one and running a command in it: {wake:.1} ms in the median");
    println!(
        "scale: {count} sessions, opened in {:.1} s, listed in {listing:.0} ms, adopted in {:.0} ms, woken in {wake:.0} ms",
        opening.as_secs_f64(),
        ms(restart)
    );
    ExitCode::from(u8::from(restart >= ADOPTION))
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

fn open(pair: &Pair, count: usize) {
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..CLIENTS {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= count {
                        return;
                    }
                    let body = json!({"session_id": format!("scale-{number}")});
                    // While the others' openings hold every place, nobody is idle.
                    while pair.client.post("/sessions", body.clone()).status == 429 {}
                }
            });
        }
    });
    assert_eq!(pair.open_sessions().len(), count, "sessions that are open");
}

fn list(pair: &Pair, count: usize) -> f64 {
    let mut times: Vec<f64> = (0..5)
        .map(|_| {
            let begun = Instant::now();
            let list = pair.client.get("/sessions?usage=true").expect(200).json();
            let took = ms(begun.elapsed());
            assert_eq!(list["sessions"].as_array().map(Vec::len), Some(count));
            took
        })
        .collect();
    median(&mut times)
}

fn wake(pair: &Pair, count: usize) -> f64 {
    let mut dice = Dice::new(7);
    let mut times: Vec<f64> = (0..WAKES)
        .map(|_| {
            let path = format!("/sessions/scale-{}/run", dice.below(count as u64));
            let body = json!({"argv": ["echo", "awake"], "run_id": run_id()});
            let begun = Instant::now();
            let answer = attempt(&pair.client, "POST", &path, &body).expect("an answer").expect(200);
            let took = ms(begun.elapsed());
            assert_eq!(answer.json()["stdout"], "awake\n");
            took
        })
        .collect();
    median(&mut times)
}

fn median(times: &mut [f64]) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}
