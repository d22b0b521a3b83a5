//! The log as journald gets it: a session's story by one field, a request's by another, and nobody forges either.

use std::fs;
use std::time::Duration;

use it::daemon::wait_for;
use it::pair::{Pair, Which};
use it::session::run_id;
use serde_json::json;

/// A pair whose log is read by the test.
fn pair(environment: &[(&str, &str)]) -> (Pair, it::journal::Journal) {
    let mut pair = Pair::prepare(environment, None, None);
    let journal = pair.journal();
    pair.start_launcher(None);
    pair.start_service(None);
    (pair, journal)
}

fn run(pair: &Pair, id: &str, request: &str, argv: &[&str], timeout: f64) -> String {
    let run = run_id();
    let body = json!({"argv": argv, "run_id": run, "timeout_seconds": timeout}).to_string();
    let mut head = pair.client.head("POST", &format!("/sessions/{id}/run"), Some("application/json"), body.len());
    head.truncate(head.len() - 2);
    head.extend_from_slice(format!("X-Request-Id: {request}\r\n\r\n").as_bytes());
    let answer = pair.client.connect().exchange(&head, body.as_bytes()).unwrap();
    assert_eq!(answer.header("x-request-id"), Some(request));
    run
}

#[test]
fn a_session_s_story_is_told_by_its_name() {
    let settings =
        [("SANDBOXD_FREEZE_AFTER", "1"), ("SANDBOXD_HIBERNATE_AFTER", "3"), ("SANDBOXD_CLEANUP_INTERVAL", "1")];
    let (pair, mut journal) = pair(&settings);
    let body = json!({"runtime": "base", "session_id": "tale", "tenant": "acme"});
    pair.client.post("/sessions", body).expect(200);
    pair.client.post("/sessions", json!({"runtime": "base", "session_id": "other"})).expect(200);
    let secret = "argument-that-is-a-secret";
    let failed = run(&pair, "tale", "r-failed", &["sh", "-c", "exit 7", secret], 10.0);
    let late = run(&pair, "tale", "r-late", &["sleep", "30"], 0.2);
    assert!(journal.story("tale", "hibernated").last().is_some_and(|line| line.starts_with("hibernated")));
    run(&pair, "tale", "r-wakes", &["true"], 10.0);
    pair.client.delete("/sessions/tale?purge=true");
    let story = journal.story("tale", "closed");
    let told: Vec<&str> = story.iter().map(|line| line.split(" session=").next().unwrap()).collect();
    let expected = ["opened", "command failed", "command timed out", "frozen", "hibernated", "woken", "closed"];
    assert_eq!(told, expected, "{story:#?}");

    let entry = |run: &str| journal.entries.iter().find(|entry| entry.get("SANDBOXD_RUN").is_some_and(|of| of == run));
    let field = |run: &str, name: &str| entry(run).and_then(|entry| entry.get(name)).cloned().unwrap_or_default();
    for (run, request, priority) in [(&failed, "r-failed", "6"), (&late, "r-late", "4")] {
        assert_eq!(field(run, "SANDBOXD_REQUEST"), request);
        assert_eq!(field(run, "SANDBOXD_TENANT"), "acme");
        assert_eq!(field(run, "SYSLOG_IDENTIFIER"), "sandboxd");
        assert_eq!(field(run, "PRIORITY"), priority);
    }
    assert!(field(&failed, "MESSAGE").contains("exit=7"));
    // The request that woke it is told with the waking, whose work another task did.
    assert!(journal.of("SANDBOXD_REQUEST", "r-wakes").iter().any(|line| line.starts_with("woken")));
    for entry in &journal.entries {
        assert!(entry.values().all(|value| !value.contains(secret)), "{entry:?}");
        assert!(entry["MESSAGE"].lines().count() == 1, "{entry:?}");
    }
    let said = pair.said();
    assert!(!said.contains("session=") && !said.contains(" INFO "), "what the journal has is not said twice:\n{said}");
}

#[test]
fn a_failure_of_ours_is_one_entry_with_its_chain() {
    let (mut pair, mut journal) = pair(&[]);
    pair.client.post("/sessions", json!({"runtime": "base", "session_id": "one"})).expect(200);
    // The launcher dies in the middle of the next start, and is there again for what undoes it.
    pair.kill(Which::Launcher);
    pair.start_launcher(Some("start.mounts"));
    let client = pair.client.clone();
    let body = json!({"runtime": "base", "session_id": "unlucky", "tenant": "acme"});
    let asking = std::thread::spawn(move || client.post("/sessions", body));
    pair.expect_death(Which::Launcher);
    pair.start_launcher(None);
    let answer = asking.join().unwrap();
    assert!(answer.status >= 500, "{} {}", answer.status, answer.text());
    let request = answer.header("x-request-id").unwrap().to_owned();
    journal.until("SANDBOXD_REQUEST", &request, "Could not start sandbox");
    let of_request: Vec<_> =
        journal.entries.iter().filter(|entry| entry.get("SANDBOXD_REQUEST") == Some(&request)).collect();
    let failures: Vec<_> = of_request
        .iter()
        .filter(|entry| entry["SYSLOG_IDENTIFIER"] == "sandboxd" && entry["MESSAGE"].contains("path=/sessions"))
        .collect();
    assert_eq!(failures.len(), 1, "{of_request:#?}");
    let failure = failures[0];
    assert_eq!((failure["PRIORITY"].as_str(), failure["SANDBOXD_SESSION"].as_str()), ("3", "unlucky"));
    assert_eq!(failure["SANDBOXD_TENANT"], "acme");
    assert!(failure["MESSAGE"].contains("start sandbox unlucky: "), "{failure:?}");
}

#[test]
fn a_start_without_a_launcher_says_once_what_is_not_ended() {
    let (mut pair, mut journal) = pair(&[]);
    pair.client.post("/sessions", json!({"runtime": "base", "session_id": "sleeper"})).expect(200);
    pair.client.post("/sessions/sleeper/hibernate", json!({})).expect(200);
    pair.kill(Which::Launcher);
    for (path, body) in
        [("/sessions", json!({"runtime": "base", "session_id": "newcomer"})), ("/sessions/sleeper/wake", json!({}))]
    {
        let answer = pair.client.post(path, body);
        assert_eq!(answer.status, 502, "{path}: {}", answer.text());
        let request = answer.header("x-request-id").unwrap().to_owned();
        journal.until("SANDBOXD_REQUEST", &request, "Could not start sandbox");
        let lines = journal.of("SANDBOXD_REQUEST", &request);
        let times = lines.iter().filter(|line| line.contains("stop sandbox ")).count();
        assert_eq!(times, 1, "{path}: {lines:#?}");
    }
}

#[test]
fn the_launcher_tells_what_it_was_asked_and_may_not() {
    let mut pair = Pair::prepare(&[], None, None);
    let mut journal = pair.journal();
    // The service believes in more ranges of ids than there are.
    let file = pair.state.join("run/launch.toml");
    let config = format!("slots = 2\n{}", fs::read_to_string(&file).unwrap());
    fs::write(&file, config).unwrap();
    pair.start_launcher(None);
    pair.start_service(None);
    pair.client.post("/sessions", json!({"runtime": "base", "session_id": "fits"})).expect(200);
    let answer = pair.client.post("/sessions", json!({"runtime": "base", "session_id": "too-many"})).expect(502);
    let request = answer.header("x-request-id").unwrap();
    journal.story("too-many", "start sandbox too-many is not allowed");
    let own = |entry: &&it::journal::Fields| {
        entry["SYSLOG_IDENTIFIER"] == "sandboxd-launch" && entry.contains_key("SANDBOXD_SESSION")
    };
    let entries: Vec<_> = journal.entries.iter().filter(own).collect();
    assert_eq!(entries.len(), 1, "{:#?}", journal.entries);
    assert_eq!(entries[0]["SANDBOXD_SESSION"], "too-many");
    assert_eq!(entries[0]["SANDBOXD_REQUEST"], request);
    assert!(entries[0]["MESSAGE"].starts_with("start sandbox too-many is not allowed: slot: "), "{:?}", entries[0]);
}

#[test]
fn without_a_journal_lines_are_on_standard_error() {
    let pair = Pair::start(&[]);
    pair.client.post("/sessions", json!({"runtime": "base", "session_id": "plain", "tenant": "acme"})).expect(200);
    let line = wait_for(Duration::from_secs(5), || {
        pair.said().lines().find(|line| line.contains("opened session=plain")).map(str::to_owned)
    });
    let line = line.unwrap_or_else(|| panic!("{}", pair.said()));
    assert!(line.contains(" INFO ") && line.contains("tenant=acme") && line.contains("request="), "{line}");
}
