//! How a command ends that does not end by itself: exactly, with everything that it started.

use std::time::{Duration, Instant};

use it::daemon::{quickest, wait_for};
use it::host::running;
use it::{Session, shared};
use serde_json::json;

/// A number of seconds to sleep that names one test's processes in the host's process table.
fn mark() -> String {
    use std::sync::atomic::{AtomicU64, Ordering};
    static NEXT: AtomicU64 = AtomicU64::new(1);
    format!("{}.{}", 7_000_000 + u64::from(std::process::id() % 1000), NEXT.fetch_add(1, Ordering::Relaxed))
}

/// Seen from the host: no process of this mark is left within a while.
#[track_caller]
fn expect_gone(mark: &str) {
    let text = format!("sleep {mark}");
    let gone = wait_for(Duration::from_secs(5), || running(&text).is_empty().then_some(()));
    assert!(gone.is_some(), "still running: {:?}", running(&text));
}

#[track_caller]
fn expect_running(mark: &str, count: usize) {
    let text = format!("sleep {mark}");
    let there = wait_for(Duration::from_secs(5), || (running(&text).len() >= count).then_some(()));
    assert!(there.is_some(), "{:?} of {count} run", running(&text));
}

/// A shell line that starts processes in every way that hides them from their parent.
fn hiding(mark: &str) -> String {
    format!(
        "sleep {mark} & setsid sleep {mark} & (setsid sh -c '(sleep {mark} &) ; exit 0' &) ; \
         sh -c 'trap \"\" TERM HUP INT; sleep {mark}; sleep {mark}' & \
         python3 -c 'import os
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        for fd in range(3): os.close(fd)
        os.execvp(\"sleep\", [\"sleep\", \"{mark}\"])
    os._exit(0)
' ; sleep {mark}"
    )
}

#[test]
fn a_deadline_ends_it_in_time_with_what_it_wrote() {
    let s = shared().session("python");
    s.run(["true"]).expect("");
    let argv = ["sh", "-c", "echo begun; echo err >&2; exec sleep 600"];
    let outcome = s.until_deadline(&argv, 1.0, |outcome| (outcome.stdout(), outcome.stderr()) == ("begun\n", "err\n"));
    assert_eq!(outcome.body["output_limited"], false);
    quickest(Duration::from_millis(1150), || {
        let outcome = s.run_with(["sleep", "600"], json!({"timeout_seconds": 1.0}));
        assert_eq!((outcome.code(), outcome.body["timed_out"].as_bool()), (None, Some(true)), "{}", outcome.body);
        assert!(outcome.took >= Duration::from_secs(1), "before its deadline: {:?}", outcome.took);
        outcome.took
    });
}

#[test]
fn a_deadline_ends_every_descendant_even_those_that_ignore_sigterm() {
    let s = shared().session("python");
    // The deadline, TERM, 2 s, KILL.
    quickest(Duration::from_millis(3600), || {
        let mark = mark();
        let outcome = s.run_with(["sh", "-c", &hiding(&mark)], json!({"timeout_seconds": 1.0}));
        assert_eq!(outcome.body["timed_out"], true, "{}", outcome.body);
        expect_gone(&mark);
        outcome.took
    });
    s.run(["echo", "on"]).expect("on\n");
}

#[test]
fn a_program_may_tidy_up_when_its_deadline_passes() {
    let s = shared().session("python");
    let line = "trap 'echo tidied > /workspace/note; exit 0' TERM; echo up; sleep 600 & wait";
    s.until_deadline(&["sh", "-c", line], 0.5, |outcome| outcome.stdout() == "up\n");
    assert_eq!(s.file("read", "/workspace/note").expect(200).text(), "tidied\n");
}

#[test]
fn stop_ends_every_descendant() {
    let s = shared().session("python");
    let (mark, id) = (mark(), it::session::run_id());
    std::thread::scope(|scope| {
        let run = scope.spawn(|| s.run_with(["sh", "-c", &hiding(&mark)], json!({"run_id": id})));
        expect_running(&mark, 5);
        let begun = Instant::now();
        s.client.post(&s.path(&format!("/runs/{id}/stop")), json!({})).expect(204);
        run.join().unwrap();
        assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
    });
    expect_gone(&mark);
}

#[test]
fn stop_of_a_run_that_is_over_or_never_was_is_nothing() {
    let s = shared().session("python");
    let id = it::session::run_id();
    s.run_with(["true"], json!({"run_id": id})).expect("");
    for id in [id, "0".repeat(32)] {
        s.client.post(&s.path(&format!("/runs/{id}/stop")), json!({})).expect(204);
        s.client.send("POST", &s.path(&format!("/runs/{id}/stop")), None, b"").expect(204);
    }
}

#[test]
fn a_client_that_hangs_up_leaves_nothing_running() {
    let s = shared().session("python");
    let mark = mark();
    let body = json!({"argv": ["sh", "-c", hiding(&mark)], "run_id": it::session::run_id()}).to_string();
    let mut connection = s.client.connect();
    let head = s.client.head("POST", &s.path("/run"), Some("application/json"), body.len());
    connection.write(&[head.as_slice(), body.as_bytes()].concat()).unwrap();
    expect_running(&mark, 5);
    drop(connection);
    expect_gone(&mark);
    s.run(["echo", "on"]).expect("on\n");
}

#[test]
fn a_client_that_hangs_up_on_the_unix_socket_leaves_nothing_running() {
    let daemon = shared();
    let s = daemon.session("python");
    let mark = mark();
    let client = daemon.over_unix();
    let body = json!({"argv": ["sleep", mark], "run_id": it::session::run_id()}).to_string();
    let mut connection = client.connect();
    let head = client.head("POST", &s.path("/run"), Some("application/json"), body.len());
    connection.write(&[head.as_slice(), body.as_bytes()].concat()).unwrap();
    expect_running(&mark, 1);
    drop(connection);
    expect_gone(&mark);
}

#[test]
fn output_over_the_limit_stops_it_and_keeps_the_beginning() {
    let s = shared().session("python");
    let mark = mark();
    let line = format!("setsid sleep {mark} & echo first; echo error >&2; yes 0123456789");
    let outcome = s.sh(&line);
    assert_eq!(outcome.body["output_limited"], true, "{}", outcome.stderr());
    assert_eq!(outcome.body["output_limit"], 10 * 1024 * 1024);
    assert_eq!((outcome.code(), outcome.body["timed_out"].as_bool()), (None, Some(false)));
    assert!(outcome.stdout().starts_with("first\n0123456789\n"), "{:?}", &outcome.stdout()[..40]);
    assert_eq!((outcome.stdout().len(), outcome.stderr()), (64 * 1024, "error\n"));
    assert!(outcome.took < Duration::from_secs(60), "{:?}", outcome.took);
    expect_gone(&mark);
}

#[test]
fn output_under_the_limit_arrives_whole() {
    let s = shared().session("python");
    let outcome = s.sh("head -c 10485760 /dev/zero | tr '\\0' x");
    outcome.expect_code(0);
    assert_eq!(outcome.stdout().len(), 10 * 1024 * 1024);
}

#[test]
fn both_streams_count_towards_the_limit() {
    let s = shared().session("python");
    let outcome = s.sh("yes out & yes err >&2");
    assert_eq!(outcome.body["output_limited"], true);
    assert_eq!(outcome.code(), None);
    assert!(outcome.stdout().len() <= 64 * 1024 && outcome.stderr().len() <= 64 * 1024);
}

#[test]
fn closing_a_session_ends_its_commands_and_their_waiters_within_a_second() {
    let daemon = shared();
    quickest(Duration::from_secs(1), || {
        let s = daemon.session("python");
        let mark = mark();
        let told = std::thread::scope(|scope| {
            let run = scope.spawn(|| s.try_run(["sh", "-c", &hiding(&mark)], json!({})));
            expect_running(&mark, 5);
            let begun = Instant::now();
            daemon.client.delete(&s.path("?purge=true")).expect(204);
            let answer = run.join().unwrap();
            assert!(matches!(answer.status, 404 | 410), "{} {}", answer.status, answer.text());
            begun.elapsed()
        });
        expect_gone(&mark);
        told
    });
}

#[test]
fn a_sandbox_that_dies_is_told_and_its_session_goes_on() {
    let s = shared().session("python");
    s.write("/workspace/kept", b"kept").expect(204);
    let mark = mark();
    std::thread::scope(|scope| {
        let run = scope.spawn(|| s.try_run(["sleep", &mark], json!({})));
        expect_running(&mark, 1);
        let begun = Instant::now();
        kill_sandbox_of(&mark);
        let answer = run.join().unwrap();
        assert_eq!(answer.status, 410, "{}", answer.text());
        assert!(begun.elapsed() < Duration::from_secs(20), "told after {:?}", begun.elapsed());
    });
    let events = s.client.get(&s.path("/events")).expect(200).json();
    let event = events["events"].as_array().unwrap().iter().find(|event| event["target"] == format!("sleep {mark}"));
    let event = event.unwrap_or_else(|| panic!("{events}"));
    assert_eq!((&event["ok"], &event["detail"]), (&json!(false), &json!("sandbox gone")), "{event}");
    assert_eq!(s.file("read", "/workspace/kept").expect(200).text(), "kept");
    wakes(&s);
}

#[track_caller]
fn wakes(s: &Session) {
    let woken = wait_for(Duration::from_secs(5), || {
        let answer = s.try_run(["cat", "/workspace/kept"], json!({}));
        (answer.status == 200).then(|| answer.json())
    });
    assert_eq!(woken.expect("the session wakes")["stdout"], "kept");
}

/// From the host: `SIGKILL` to the init of the sandbox in which a process of this mark runs.
fn kill_sandbox_of(mark: &str) {
    let pid = running(&format!("sleep {mark}"))[0];
    let mut next = pid;
    for _ in 0..20 {
        let exe = std::fs::read_link(format!("/proc/{next}/exe")).unwrap_or_default();
        if exe.to_string_lossy().contains("sandbox-init") {
            let init = rustix::process::Pid::from_raw(i32::try_from(next).unwrap()).unwrap();
            rustix::process::kill_process(init, rustix::process::Signal::KILL).unwrap();
            return;
        }
        next = it::host::status(next, "PPid").and_then(|text| text.parse().ok()).unwrap_or(0);
    }
    panic!("no sandbox-init above process {pid}");
}

#[test]
fn a_fork_storm_is_ended_with_its_command() {
    let s = shared().session("python");
    let code = "import os, time
for _ in range(100):
    if os.fork() == 0:
        os.setsid()
        for _ in range(2):
            if os.fork() == 0:
                time.sleep(7654321)
        time.sleep(7654321)
print('up', flush=True)
time.sleep(7654321)";
    s.until_deadline(&["python3", "-c", code], 4.0, |outcome| outcome.stdout() == "up\n");
    // All are killed at once; whoever is dead is there until PID 1 has seen it.
    let count = || s.sh("ls /proc | grep -c '^[0-9]'; true").stdout().trim().parse::<u32>().unwrap();
    let few = wait_for(Duration::from_secs(5), || (count() <= 6).then_some(()));
    assert!(few.is_some(), "{} processes are left in the sandbox", count());
}

#[test]
fn a_stopped_command_does_not_disturb_another() {
    let s = shared().session("python");
    std::thread::scope(|scope| {
        let other = scope.spawn(|| s.sh("echo > up; until [ -e go ]; do sleep 0.05; done; echo whole"));
        let up = || (s.file("stat", "/workspace/up").status == 200).then_some(());
        wait_for(Duration::from_secs(20), up).expect("it runs");
        let stopped = s.run_with(["sleep", "600"], json!({"timeout_seconds": 0.3}));
        assert_eq!(stopped.body["timed_out"], true);
        assert!(!other.is_finished());
        s.write("/workspace/go", b"").expect(204);
        other.join().unwrap().expect("whole\n");
    });
}
