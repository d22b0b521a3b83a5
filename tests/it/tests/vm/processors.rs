//! CPUs: how much, and how many are seen.

use std::time::{Duration, Instant};

use crate::guest::{Sandbox, service};

/// Two processes that take what they get for four seconds.
const BUSY: &str = "for i in 1 2; do perl -e 'my $t = time + 4; 1 while time < $t' & done; wait";

/// A figure of `cpu.stat`.
fn figure(sandbox: &Sandbox, key: &str) -> u64 {
    let stat = sandbox.limit("cpu.stat");
    let value = stat.lines().find_map(|line| line.strip_prefix(key)).unwrap_or_else(|| panic!("{stat}"));
    value.trim().parse().unwrap()
}

#[test]
fn a_quota_holds_all_commands_of_a_session_together() {
    let Some(pair) = service(&[("cpus", "0.4")]) else { return };
    let sandbox = Sandbox::open(&pair);
    let (before, begun) = (figure(&sandbox, "usage_usec "), Instant::now());
    sandbox.says(BUSY);
    let used = Duration::from_micros(figure(&sandbox, "usage_usec ") - before);
    let allowed = begun.elapsed().mul_f64(0.4);
    // Neither may be exact: a period is 100 ms, and this is a machine in a machine.
    assert!(used < allowed.mul_f64(1.5) && used > allowed / 5, "{used:?} of CPU time, where {allowed:?} are allowed");
    assert!(figure(&sandbox, "nr_throttled ") > 0, "it never had to wait");
}

#[test]
fn a_weight_is_written_as_cgroups_have_it() {
    let Some(pair) = service(&[("cpu_shares", "2048")]) else { return };
    // 1 + (2048 - 2) * 9999 / 262142
    assert_eq!(Sandbox::open(&pair).limit("cpu.weight"), "79");
}

#[test]
fn programs_see_as_many_cpus_as_they_may_use() {
    let there = std::thread::available_parallelism().unwrap().get();
    for (cpus, seen) in [("0.5", 1), ("1", 1), ("1.5", 2), ("2", 2), ("64", there)] {
        let Some(pair) = service(&[("cpus", cpus)]) else { return };
        let nproc = Sandbox::open(&pair).says("nproc");
        assert_eq!(nproc, seen.min(there).to_string(), "with cpus = {cpus}");
    }
}

#[test]
fn sessions_spread_over_the_cpus() {
    let Some(pair) = service(&[("cpus", "1")]) else { return };
    if std::thread::available_parallelism().unwrap().get() < 2 {
        return eprintln!("skipped: this machine has one CPU");
    }
    let sandboxes = [Sandbox::open(&pair), Sandbox::open(&pair)];
    let allowed = sandboxes.each_ref().map(|one| one.says("grep Cpus_allowed_list /proc/self/status"));
    assert_ne!(allowed[0], allowed[1], "two sessions on one CPU, and the other idle");
}
