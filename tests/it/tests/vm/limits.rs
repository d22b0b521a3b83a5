//! Processes, descriptors and I/O; and who says what the ceilings are.

use std::fs;
use std::time::{Duration, Instant};

use it::daemon::wait_for;
use serde_json::json;

use crate::guest::{Sandbox, service};

/// Starts processes until no more can be, and says how often that worked.
const BOMB: &str = "perl -e 'my $n = 0; while (1) { my $p = fork; last unless defined $p; \
    unless ($p) { sleep 600; exit } $n++ } print $n; exit 3'";

#[test]
fn a_fork_that_fails_is_answered_and_the_session_goes_on() {
    let Some(pair) = service(&[("pids_limit", "24")]) else { return };
    let (sandbox, neighbour) = (Sandbox::open(&pair), Sandbox::open(&pair));
    let answer = sandbox.sh(&format!("({BOMB}) 2>&1"));
    assert_eq!((&answer["exit_code"], &answer["limit"]), (&3.into(), &"process limit 24".into()), "{answer}");
    assert_eq!(answer["stderr"], "sandboxd: a fork failed: process limit 24\n");
    assert_eq!(sandbox.last_event(), "exit 3: process limit 24");
    let started: u64 = answer["stdout"].as_str().unwrap().parse().unwrap();
    assert!((20..24).contains(&started), "{answer}");
    // Its processes are still there, in the background. With one more that takes all that is left there is room for no
    // command, and that is answered, at once.
    std::thread::scope(|scope| {
        let filler = "exec perl -e '1 while grep { defined } map { my $p = fork; sleep 600 if defined $p && !$p; $p } 1; sleep 8'";
        scope.spawn(|| sandbox.sh(filler));
        let full = wait_for(Duration::from_secs(8), || (sandbox.limit("pids.current") == "24").then_some(()));
        assert!(full.is_some(), "{} processes", sandbox.limit("pids.current"));
        let begun = Instant::now();
        let answer = sandbox.sh("true");
        assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
        assert_eq!((&answer["exit_code"], &answer["limit"]), (&126.into(), &"process limit 24".into()), "{answer}");
        assert_eq!(answer["stderr"], "sandboxd: cannot fork: process limit 24\n");
    });
    // Neighbours, files and the API do not notice.
    assert_eq!(neighbour.says("sh -c 'echo fine'"), "fine");
    let file = format!("/sessions/{}/files/write?path=/workspace/a", sandbox.id);
    sandbox.client.post_bytes(&file, b"x").expect(204);
    let info = sandbox.info();
    assert_eq!((&info["alive"], info["usage"]["pids"].as_u64() >= Some(22)), (&true.into(), true), "{info}");
    pair.client.delete(&format!("/sessions/{}", sandbox.id)).expect(204);
}

#[test]
fn a_failed_fork_that_is_put_up_with_is_not_told() {
    let Some(pair) = service(&[("pids_limit", "24")]) else { return };
    let sandbox = Sandbox::open(&pair);
    let line = format!("({BOMB}) > /dev/null; perl -e 'kill 9, -1' ; true");
    let answer = sandbox.sh(&format!("{line}; exit 0"));
    // Either the shell lived and ended well, or it went with the rest: by a signal, and without a limit that killed it.
    if answer["exit_code"] == 0 {
        assert_eq!((answer.get("limit"), &answer["stderr"]), (None, &"".into()), "{answer}");
    }
    assert_eq!(sandbox.says("echo again"), "again");
}

#[test]
fn open_files_are_bounded() {
    let Some(pair) = service(&[("open_files", "100")]) else { return };
    let sandbox = Sandbox::open(&pair);
    assert_eq!(sandbox.says("ulimit -Sn; ulimit -Hn"), "100\n100");
    let open = "perl -e 'my @f; while (open my $f, \"<\", \"/dev/null\") { push @f, $f } print scalar @f'";
    let opened: u64 = sandbox.says(open).parse().unwrap();
    assert!((90..100).contains(&opened), "{opened}");
}

#[test]
fn io_has_a_weight() {
    let Some(pair) = service(&[]) else { return };
    let sandbox = Sandbox::open(&pair);
    let supported =
        sandbox.cgroup.parent().and_then(|root| root.parent()).is_some_and(|own| {
            fs::read_dir(own).unwrap().flatten().any(|entry| entry.path().join("io.weight").exists())
        });
    if !supported {
        return eprintln!("skipped: this kernel has no I/O weights (CONFIG_BLK_CGROUP_IOCOST); VM_TIER=qemu has");
    }
    drop(pair);
    let Some(pair) = service(&[("io_weight", "50")]) else { return };
    assert_eq!(Sandbox::open(&pair).limit("io.weight"), "default 50");
}

#[test]
fn ceilings_are_the_runtimes_own_else_the_services_and_change_for_the_next_sandbox() {
    let settings = [("mem_limit", "256m"), ("cpus", "2"), ("pids_limit", "50"), ("tmpfs_size", "32m")];
    let Some(pair) = service(&settings) else { return };
    let before = Sandbox::open(&pair);
    let of = |sandbox: &Sandbox| {
        let tmp = sandbox.says("stat -f -c '%b %S' /tmp | { read b s; echo $((b * s)); }");
        (sandbox.limit("memory.max"), sandbox.limit("cpu.max"), sandbox.limit("pids.max"), tmp)
    };
    let mib = |n: u64| (n << 20).to_string();
    let text = str::to_owned;
    assert_eq!(of(&before), (mib(256), text("200000 100000"), text("50"), mib(32)));
    let update = json!({"pids_limit": 60, "runtimes": {"base": {"mem_limit": "96m", "cpus": 0.5, "tmpfs_size": "8m"}}});
    let update =
        pair.client.send("PUT", "/policy", Some("application/json"), update.to_string().as_bytes()).expect(200);
    assert_eq!(update.json()["pids_limit"], 60);
    let after = Sandbox::open(&pair);
    assert_eq!(of(&after), (mib(96), text("50000 100000"), text("60"), mib(8)));
    assert_eq!(of(&before), (mib(256), text("200000 100000"), text("50"), mib(32)), "one that runs has changed");
    assert_eq!(after.info()["usage"]["memory_limit_bytes"], 96 << 20);
    // By the runtime's own ceiling, not by the service's.
    assert_eq!(after.sh("perl -e '$a = \"x\" x (200 << 20)'")["limit"], "memory limit 96 MiB");
}

#[test]
fn usage_tells_what_the_kernel_counts() {
    let Some(pair) = service(&[("mem_limit", "256m")]) else { return };
    let sandbox = Sandbox::open(&pair);
    sandbox.says("perl -e '$a = \"x\" x (50 << 20); sleep 600' >/dev/null 2>&1 & echo ok");
    wait_for(Duration::from_secs(20), || (sandbox.number("memory.current") > 50 << 20).then_some(()));
    let list = || {
        let answer = pair.client.get("/sessions?usage=true").expect(200).json();
        answer["sessions"].as_array().unwrap().iter().find(|s| s["session_id"] == sandbox.id.as_str()).unwrap().clone()
    };
    let usage = list()["usage"].clone();
    let memory = usage["memory_bytes"].as_u64().unwrap();
    assert!((50 << 20..200 << 20).contains(&memory), "{usage}");
    assert_eq!(usage["memory_limit_bytes"], 256 << 20, "{usage}");
    assert!(usage["pids"].as_u64().is_some_and(|pids| (2..20).contains(&pids)), "{usage}");
    // Two seconds at one CPU, between two readings.
    sandbox.says("perl -e 'my $t = time + 3; 1 while time < $t'");
    let busy = list()["usage"]["cpu_percent"].as_f64().unwrap();
    assert!((20.0..=250.0).contains(&busy), "{busy} % of a CPU");
    std::thread::sleep(Duration::from_secs(2));
    let idle = list()["usage"]["cpu_percent"].as_f64().unwrap();
    assert!(idle < busy / 2.0, "{idle} % of a CPU when idle, {busy} % when busy");
}
