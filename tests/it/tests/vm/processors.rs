//! CPUs: how much, and how many are seen.

use crate::guest::{Sandbox, service};

/// CPU seconds that a loop gets in four seconds.
const BUSY: &str = "perl -e 'my $t = time + 4; 1 while time < $t; my @t = times; print $t[0] + $t[1]'";

#[test]
fn a_quota_holds_all_commands_of_a_session_together() {
    let Some(pair) = service(&[("cpus", "0.4")]) else { return };
    let sandbox = Sandbox::open(&pair);
    let both = sandbox.says(&format!("({BUSY}; echo) & ({BUSY}; echo) & wait"));
    let used: f64 = both.split_whitespace().map(|text| text.parse::<f64>().unwrap()).sum();
    // 1.6 seconds; some before the first period ends, and clocks of a machine in a machine.
    assert!((0.4..2.6).contains(&used), "{used} CPU seconds of 8");
    let throttled = sandbox.limit("cpu.stat");
    let count = throttled.lines().find_map(|line| line.strip_prefix("nr_throttled ")).unwrap().to_owned();
    assert!(count.parse::<u64>().unwrap() > 0, "{throttled}");
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
