//! Memory: who takes too much is killed, alone and whole, and told why.

use crate::guest::{Sandbox, service};

/// Takes so many MiB, all of it at once.
fn take(mib: u32) -> String {
    format!("perl -e '$a = \"x\" x ({mib} << 20); print length $a'")
}

#[test]
fn a_command_over_the_limit_is_killed_and_the_answer_and_the_event_name_it() {
    let Some(pair) = service(&[("mem_limit", "64m")]) else { return };
    let sandbox = Sandbox::open(&pair);
    sandbox.says("sleep 600 >/dev/null 2>&1 & echo $! > /workspace/pid");
    let answer = sandbox.sh(&format!("sleep 601 & {}; echo went on", take(200)));
    assert_eq!(answer["exit_code"], 137, "{answer}");
    assert_eq!(answer["stdout"], "", "one process of it lived on: {answer}");
    assert_eq!(answer["stderr"], "sandboxd: killed: memory limit 64 MiB\n");
    assert_eq!(answer["limit"], "memory limit 64 MiB");
    assert_eq!(sandbox.last_event(), "exit 137: memory limit 64 MiB");
    // The session, its init and its other processes are as they were.
    assert_eq!(sandbox.says("kill -0 $(cat /workspace/pid) && echo alive"), "alive");
    assert!(it::host::running("sleep 601").is_empty(), "the command was not killed whole");
    assert_eq!(sandbox.info()["alive"], true);
    // What fits goes on as ever.
    assert_eq!(sandbox.says(&take(20)), (20 << 20).to_string());
    let answer = sandbox.sh("kill -9 $$");
    assert_eq!((&answer["exit_code"], answer.get("limit")), (&137.into(), None), "a SIGKILL of its own: {answer}");
}

#[test]
fn a_neighbour_is_not_hit() {
    let Some(pair) = service(&[("mem_limit", "64m")]) else { return };
    let (greedy, neighbour) = (Sandbox::open(&pair), Sandbox::open(&pair));
    neighbour.says("sleep 600 >/dev/null 2>&1 & echo $! > /workspace/pid");
    for _ in 0..3 {
        assert_eq!(greedy.sh(&take(200))["limit"], "memory limit 64 MiB");
    }
    assert_eq!(neighbour.says("kill -0 $(cat /workspace/pid) && echo alive"), "alive");
}

#[test]
fn there_is_no_swap_unless_it_is_asked_for() {
    let hog = &take(100);
    let Some(pair) = service(&[("mem_limit", "64m")]) else { return };
    let sandbox = Sandbox::open(&pair);
    assert_eq!(sandbox.limit("memory.swap.max"), "0");
    assert_eq!(sandbox.sh(hog)["limit"], "memory limit 64 MiB");
    drop(pair);
    let Some(pair) = service(&[("mem_limit", "64m"), ("memswap_limit", "256m")]) else { return };
    let sandbox = Sandbox::open(&pair);
    assert_eq!(sandbox.limit("memory.swap.max"), (192 << 20).to_string());
    assert_eq!(sandbox.says(hog), (100 << 20).to_string());
}

#[test]
fn tmp_is_bounded_and_counts() {
    let Some(pair) = service(&[("tmpfs_size", "16m"), ("mem_limit", "48m")]) else { return };
    let sandbox = Sandbox::open(&pair);
    let answer = sandbox.sh("head -c 20M /dev/zero > /tmp/a");
    assert_ne!(answer["exit_code"], 0, "{answer}");
    assert!(answer["stderr"].as_str().unwrap().contains("No space left"), "{answer}");
    assert_eq!(sandbox.says("stat -c %s /tmp/a"), (16 << 20).to_string());
    let used = sandbox.number("memory.current");
    assert!(used >= 16 << 20, "what is in /tmp is memory of nobody: {used}");
    // The same for shared memory, which is bounded by the same limit.
    let answer = sandbox.sh("rm /tmp/a; head -c 60M /dev/zero > /dev/shm/b");
    assert_eq!(answer["limit"], "memory limit 48 MiB", "{answer}");
}
