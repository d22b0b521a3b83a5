//! The frozen tier on a machine with swap: what sleeps gives its memory back, and wakes with its processes.

use std::time::Duration;

use it::daemon::wait_for;

use crate::guest::{Sandbox, service};

#[test]
fn what_is_frozen_gives_its_memory_back_and_wakes_with_its_processes() {
    let settings = [("mem_limit", "256m"), ("memswap_limit", "512m"), ("freeze_after", "4"), ("cleanup_interval", "1")];
    let Some(pair) = service(&settings) else { return };
    let sandbox = Sandbox::open(&pair);
    // Once a second it counts on, over memory that it touches only at its end.
    let program = "$| = 1; $a = \"x\" x (80 << 20); $SIG{TERM} = sub { $b = $a =~ tr/x//; open F, \">\", \"/workspace/sum\"; \
        print F $b; close F; exit }; while (1) { open F, \">\", \"/workspace/turn\"; print F ++$n; close F; sleep 1 }";
    sandbox.says(&format!("perl -e '{program}' >/dev/null 2>&1 & echo $! > /workspace/pid"));
    let full = wait_for(Duration::from_secs(20), || {
        let used = sandbox.number("memory.current");
        (used > 80 << 20).then_some(used)
    });
    let full = full.expect("80 MiB are taken");
    let frozen = wait_for(Duration::from_secs(60), || {
        let events = std::fs::read_to_string(sandbox.cgroup.join("cgroup.events")).unwrap();
        events.contains("frozen 1").then_some(())
    });
    assert!(frozen.is_some(), "it is not frozen");
    let given = wait_for(Duration::from_secs(20), || {
        let used = sandbox.number("memory.current");
        (used + (40 << 20) < full).then_some(used)
    });
    let used = sandbox.number("memory.current");
    assert!(given.is_some(), "{} MiB before, {} MiB when frozen", full >> 20, used >> 20);
    println!("{} MiB before, {} MiB when frozen", full >> 20, used >> 20);
    // It wakes for a command, and what was in the background goes on with all that it had.
    let turn: u64 = sandbox.says("kill -0 $(cat /workspace/pid) && cat /workspace/turn").parse().unwrap();
    let later = wait_for(Duration::from_secs(20), || {
        let now: u64 = sandbox.says("cat /workspace/turn").parse().unwrap_or(0);
        (now > turn).then_some(())
    });
    assert!(later.is_some(), "it does not go on");
    let sum = "kill $(cat /workspace/pid); for i in $(seq 100); do [ -s /workspace/sum ] && break; sleep 0.1; done; cat /workspace/sum";
    assert_eq!(sandbox.says(sum), (80 << 20).to_string());
}
