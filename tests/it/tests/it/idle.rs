//! What the programs cost while nobody wants anything of them: they sleep. And how soon they are there. `make idle` measures
//! the same over a minute, alone.

use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;

use it::host::{numbers, proportional_memory};
use it::pair::{Pair, Which};
use serde_json::json;

/// How long they are looked at.
const WATCHED: Duration = Duration::from_secs(20);
/// Longest start, until requests are answered, beside other tests. `make idle` holds it to 100 ms.
const START: Duration = Duration::from_millis(500);
/// Most memory of both together, in KiB.
const MEMORY: u64 = 25 * 1024;

/// How often each thread of a process has gone to sleep, by its id: as often as it was woken.
fn sleeps(pid: u32) -> BTreeMap<u32, (String, u64)> {
    let mut found = BTreeMap::new();
    for thread in numbers(&format!("/proc/{pid}/task")) {
        let text = fs::read_to_string(format!("/proc/{pid}/task/{thread}/status")).unwrap_or_default();
        let value = |key: &str| text.lines().find_map(|line| line.strip_prefix(key)).map(str::trim);
        if let (Some(name), Some(count)) = (value("Name:"), value("voluntary_ctxt_switches:")) {
            found.insert(thread, (name.to_owned(), count.parse().unwrap()));
        }
    }
    found
}

/// Wakings of a process's threads from now on, by name.
fn wakings(pids: &[u32]) -> BTreeMap<String, u64> {
    let before: Vec<_> = pids.iter().map(|pid| sleeps(*pid)).collect();
    std::thread::sleep(WATCHED);
    let mut woken = BTreeMap::new();
    for (pid, before) in pids.iter().zip(before) {
        for (thread, (name, count)) in sleeps(*pid) {
            let earlier = before.get(&thread).map_or(0, |(_, count)| *count);
            if count > earlier {
                *woken.entry(format!("{name}/{thread}")).or_default() += count - earlier;
            }
        }
    }
    woken
}

/// Whether a process is of a build as it is installed.
fn is_optimised(pid: u32) -> bool {
    let program = fs::read_link(format!("/proc/{pid}/exe")).unwrap();
    program.parent().is_some_and(|directory| !directory.ends_with("debug"))
}

/// A pair that has done its work of the start.
fn quiet_pair(environment: &[(&str, &str)]) -> (Pair, [u32; 2]) {
    let pair = Pair::start(environment);
    let pids = [pair.pid(Which::Service), pair.pid(Which::Launcher)];
    (pair, pids)
}

#[test]
fn without_a_session_both_sleep_and_are_small() {
    let (pair, pids) = quiet_pair(&[]);
    // One that was opened and closed leaves nothing behind that ticks.
    pair.client.post("/sessions", json!({"runtime": "base", "session_id": "short"})).expect(200);
    pair.client.delete("/sessions/short?purge=true").expect(204);
    std::thread::sleep(Duration::from_secs(5));
    let woken = wakings(&pids);
    let total: u64 = woken.values().sum();
    println!("woken in {} s: {total}, {woken:?}", WATCHED.as_secs());
    assert!(total <= WATCHED.as_secs() / 10, "in {} s: {woken:?}", WATCHED.as_secs());
    let [service, launcher] = pids.map(proportional_memory);
    println!("PSS: service {service} KiB, launcher {launcher} KiB");
    if !is_optimised(pids[0]) {
        return it::skipped("the programs are not optimised, and far larger than those that are installed");
    }
    assert!(service + launcher < MEMORY, "service {service} KiB, launcher {launcher} KiB");
}

#[test]
fn a_session_at_rest_costs_little() {
    // Nothing to measure: as where the file system has project quotas.
    let (pair, pids) = quiet_pair(&[("SANDBOXD_DISK_QUOTA", ""), ("SANDBOXD_DISK_INODES", "")]);
    pair.client.post("/sessions", json!({"runtime": "base", "session_id": "rests"})).expect(200);
    std::thread::sleep(Duration::from_secs(5));
    let woken = wakings(&pids);
    let total: u64 = woken.values().sum();
    println!("woken in {} s: {total}, {woken:?}", WATCHED.as_secs());
    // What is free is asked every ten seconds, or once a second where little is left.
    assert!(total <= 2 * WATCHED.as_secs(), "in {} s: {woken:?}", WATCHED.as_secs());
}

#[test]
fn a_hundred_known_sessions_delay_no_start() {
    let settings =
        [("SANDBOXD_MAX_SESSIONS", "2"), ("SANDBOXD_MAX_OPEN_SESSIONS", "100"), ("SANDBOXD_EVICT_IDLE_AFTER", "0")];
    let mut pair = Pair::start(&settings);
    for number in 0..100 {
        pair.client.post("/sessions", json!({"runtime": "base", "session_id": format!("known-{number}")})).expect(200);
    }
    // The best of some: the machine has other work as well.
    let starts = (0..5).map(|_| {
        pair.kill(Which::Service);
        let took = pair.start_service(None);
        assert_eq!(pair.open_sessions().len(), 100);
        took
    });
    let best = starts.min().unwrap();
    println!("from the start to the first answer: {} ms", best.as_millis());
    if !is_optimised(pair.pid(Which::Service)) {
        return it::skipped("the programs are not optimised");
    }
    assert!(best < START, "{best:?}");
}
