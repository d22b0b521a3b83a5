//! A wall clock that jumps, on a machine whose clock is nobody else's: what is counted in time is neither late nor lost.

use std::process::Command;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use it::daemon::wait_for;
use it::session::run_id;
use serde_json::{Value, json};

use crate::guest::{Sandbox, service};

/// Longer than anything is kept or may be idle.
const JUMP: Duration = Duration::from_secs(2 * 86_400);
/// Between two sweeps: a slow machine has to be done with what is looked at within one.
const INTERVAL: Duration = Duration::from_secs(15);
const SOON: Duration = Duration::from_secs(60);

/// The machine's clock; right again when this is dropped.
struct Clock {
    begun: (Instant, Duration),
}

impl Clock {
    fn take() -> Self {
        Self { begun: (Instant::now(), SystemTime::now().duration_since(UNIX_EPOCH).unwrap()) }
    }

    fn right(&self) -> Duration {
        self.begun.1 + self.begun.0.elapsed()
    }

    fn set(to: Duration) {
        let status = Command::new("date").args(["--utc", "--set", &format!("@{}", to.as_secs())]).status().unwrap();
        assert!(status.success(), "the clock is not set: {status}");
    }
}

impl Drop for Clock {
    fn drop(&mut self) {
        Self::set(self.right());
    }
}

#[test]
#[ignore = "it moves the clock of the machine: the payload runs it behind the others"]
fn a_wall_clock_that_jumps_ends_loses_and_deletes_nothing() {
    let kept = [("idle_timeout", "3600"), ("workspace_ttl", "3600"), ("operations_days", "1")];
    let interval = INTERVAL.as_secs().to_string();
    let Some(pair) = service(&[&kept[..], &[("cleanup_interval", &interval)]].concat()) else { return };
    let (closed, open) = (Sandbox::open(&pair), Sandbox::open(&pair));
    closed.says("echo kept > /workspace/file");
    pair.client.delete(&format!("/sessions/{}", closed.id)).expect(204);
    let held_back = || pair.log().matches("the wall clock jumped; nothing that is kept").count();
    let operations = || pair.client.get("/operations").expect(200).json()["total"].as_u64().unwrap();
    let all_there = |when: &str| {
        let session = open.info();
        assert_eq!((&session["state"], &session["alive"]), (&json!("running"), &json!(true)), "{when}: {session}");
        let stored: Value = pair.client.get("/workspaces").expect(200).json();
        assert!(stored.to_string().contains(&closed.id), "{when}: {stored}");
    };
    let before = operations();
    let clock = Clock::take();
    let (client, path) = (open.client.clone(), format!("/sessions/{}/run", open.id));
    let running = std::thread::spawn(move || {
        let line = "until [ -e /workspace/go ]; do sleep 0.1; done; echo through";
        let argv = json!({"argv": ["sh", "-c", line], "run_id": run_id(), "timeout_seconds": 600});
        client.post(&path, argv).expect(200).json()
    });

    // Ahead, and the first sweep says that it deletes nothing; back until one has seen it; ahead again.
    for (at, jumps) in [(clock.right() + JUMP, 1), (clock.right() - JUMP, 1), (clock.right(), 2)] {
        Clock::set(at);
        let swept = wait_for(SOON, || (held_back() == jumps).then_some(()));
        assert!(swept.is_some(), "{jumps}: {}", pair.said());
        all_there(&format!("at {}", at.as_secs()));
        assert_eq!(open.says("echo well"), "well");
        let idle = open.info()["idle_seconds"].as_f64().unwrap();
        assert!((0.0..600.0).contains(&idle), "idle for {idle} s");
        if at < clock.begun.1 {
            std::thread::sleep(2 * INTERVAL);
        }
    }
    drop(clock);
    open.says("touch /workspace/go");
    let ran = running.join().unwrap();
    assert_eq!((&ran["stdout"], &ran["timed_out"]), (&json!("through\n"), &json!(false)), "{ran}");
    assert!(operations() >= before + 3, "{} of {before} and more", operations());
    all_there("afterwards");
    let found = pair.client.post("/sessions", json!({"runtime": "base", "session_id": closed.id})).expect(200).json();
    let found = pair.client.with_token(found["token"].as_str().unwrap().to_owned());
    let read = found.post(&format!("/sessions/{}/files/read", closed.id), json!({"path": "/workspace/file"}));
    assert_eq!(read.expect(200).text(), "kept\n");
}
