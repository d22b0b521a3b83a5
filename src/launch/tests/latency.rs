//! How long a launch takes, and where the time goes.
#![allow(clippy::unwrap_used, clippy::expect_used)] // Helpers of tests fail by panicking, as tests do.
mod common;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use common::{Launcher, ParseId, SLEEP, plan};
use wire::launch::{Answer, Request};

const ROUNDS: usize = 50;

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}

#[test]
fn a_launch_is_quick() {
    let launcher = Launcher::start(SLEEP, "");
    let base = launcher.base();
    let mut parts: BTreeMap<(usize, String), Vec<Duration>> = BTreeMap::new();
    let (mut starts, mut stops, mut empty) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let begun = Instant::now();
        let answer = launcher.start_sandbox(&plan("quick", 1, std::slice::from_ref(&base)));
        starts.push(begun.elapsed());
        let Answer::Started { phases, .. } = answer else { panic!("{answer:?}") };
        for (index, phase) in phases.into_iter().enumerate() {
            parts.entry((index, phase.name)).or_default().push(Duration::from_micros(phase.us));
        }
        let begun = Instant::now();
        launcher.ask(&Request::List {}, &[]);
        empty.push(begun.elapsed());
        let begun = Instant::now();
        assert_eq!(launcher.ask(&Request::Stop { id: "quick".parse_id() }, &[]), Answer::Done);
        stops.push(begun.elapsed());
    }
    for ((_, name), times) in parts {
        println!("{name:>20} {:>8.2?}", median(times));
    }
    let quickest = starts.iter().min().copied().unwrap();
    let (start, stop, empty) = (median(starts), median(stops), median(empty));
    println!(
        "{:>20} {start:>8.2?}\n{:>20} {stop:>8.2?}\n{:>20} {empty:>8.2?}",
        "start, whole", "stop, whole", "list, whole"
    );
    // The quickest one: this runs beside other tests, on a machine that may have others to serve.
    assert!(quickest < Duration::from_millis(100), "each launch takes {quickest:?} or longer");
}
