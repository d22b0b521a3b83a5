//! Sessions that somebody puts to sleep and wakes by name.

use std::time::Duration;

use it::daemon::{Options, wait_for};
use it::host::running;
use it::pair::{Pair, Which, attempt};
use it::session::run_id;
use it::shared;
use serde_json::json;

#[test]
fn a_session_is_put_to_sleep_and_woken_and_loses_its_processes_alone() {
    let daemon = shared();
    let s = daemon.session("base");
    let own = s.client.clone();
    s.sh("echo kept > file; echo installed > /opt/thing; sleep 1000 >/dev/null 2>&1 &").expect("");
    let asleep = own.post(&s.path("/hibernate"), json!(null)).expect(200).json();
    assert_eq!(
        (&asleep["state"], &asleep["tier"], &asleep["alive"]),
        (&json!("hibernated"), &json!("stopped"), &json!(false))
    );
    // Once more changes nothing, and neither does looking at its files.
    own.post(&s.path("/hibernate"), json!(null)).expect(200);
    assert_eq!(s.file("read", "/workspace/file").expect(200).text(), "kept\n");
    assert_eq!(own.get(&s.path("")).expect(200).json()["state"], "hibernated");
    let awake = own.post(&s.path("/wake"), json!(null)).expect(200).json();
    assert_eq!(
        (&awake["state"], &awake["tier"], &awake["alive"]),
        (&json!("running"), &json!("running"), &json!(true))
    );
    own.post(&s.path("/wake"), json!(null)).expect(200);
    s.sh("cat file /opt/thing; cat /proc/[0-9]*/comm | grep -c sleep").expect_code(1);
    s.sh("cat file /opt/thing").expect("kept\ninstalled\n");
}

#[test]
fn a_session_that_is_at_work_is_not_put_to_sleep() {
    let s = shared().session("base");
    std::thread::scope(|scope| {
        let work = scope.spawn(|| s.sh("echo begun > mark; until [ -e go ]; do sleep 0.05; done; echo done"));
        while s.file("stat", "/workspace/mark").status != 200 {
            std::thread::sleep(Duration::from_millis(20));
        }
        let refused = s.client.post(&s.path("/hibernate"), json!(null)).expect(409);
        assert!(refused.detail().as_str().is_some_and(|text| text.contains("is at work")), "{}", refused.text());
        s.write("/workspace/go", b"").expect(204);
        work.join().unwrap().expect("done\n");
    });
    s.client.post(&s.path("/hibernate"), json!(null)).expect(200);
}

#[test]
fn a_session_that_is_woken_needs_room() {
    let daemon = Options::new()
        .env("SANDBOXD_PREWARM", "false")
        .env("SANDBOXD_MAX_SESSIONS", "1")
        .env("SANDBOXD_MAX_OPEN_SESSIONS", "5")
        .start();
    let first = daemon.session("base");
    daemon.client.post(&first.path("/hibernate"), json!(null)).expect(200);
    let second = daemon.session("base");
    daemon.client.post(&first.path("/wake"), json!(null)).expect(429);
    daemon.client.post(&second.path("/hibernate"), json!(null)).expect(200);
    daemon.client.post(&first.path("/wake"), json!(null)).expect(200);
}

#[test]
fn a_newcomer_that_is_refused_has_closed_nobody() {
    let ceilings = [("MAX_SESSIONS", "1"), ("MAX_OPEN_SESSIONS", "2"), ("PREWARM", "false")];
    let options =
        ceilings.iter().fold(Options::new(), |options, (name, value)| options.env(&format!("SANDBOXD_{name}"), value));
    let daemon = options.start();
    let (first, state) =
        (daemon.session("base"), |s: &it::Session| daemon.client.get(&s.path("")).json()["state"].clone());
    daemon.client.post(&first.path("/hibernate"), json!(null)).expect(200);
    let second = daemon.session("base");
    // It would be the second sandbox; nobody may give it place. So the one that sleeps does not go for it either.
    for _ in 0..3 {
        daemon.client.post("/sessions", json!({"runtime": "base"})).expect(429);
        assert_eq!(state(&first), "hibernated");
    }
    daemon.client.post(&second.path("/hibernate"), json!(null)).expect(200);
    let third = daemon.session("base");
    assert_eq!(state(&third), "running");
    daemon.client.get(&first.path("")).expect(404);
    assert_eq!(daemon.client.get("/healthz").json()["open_sessions"], 2);
}

#[test]
fn whoever_gives_its_place_may_be_woken_at_once() {
    let ceilings = [("MAX_SESSIONS", "1"), ("EVICT_IDLE_AFTER", "0"), ("PREWARM", "false")];
    let options =
        ceilings.iter().fold(Options::new(), |options, (name, value)| options.env(&format!("SANDBOXD_{name}"), value));
    let daemon = options.start();
    let s = daemon.session("base");
    s.write("/workspace/note", b"kept").expect(204);
    for round in 0..30 {
        let newcomer = json!({"session_id": format!("it-newcomer-{round}"), "runtime": "base"});
        std::thread::scope(|scope| {
            let open = scope.spawn(|| daemon.client.post("/sessions", newcomer.clone()));
            let runs: Vec<_> = (0..3).map(|_| scope.spawn(|| s.try_run(["cat", "note"], json!({})))).collect();
            // One of them has the place; the other is told that there is none, and nothing else goes wrong.
            for answer in runs.into_iter().chain([open]).map(|thread| thread.join().unwrap()) {
                assert!(matches!(answer.status, 200 | 429), "{}: {}", answer.status, answer.text());
            }
        });
        daemon.client.delete(&format!("/sessions/it-newcomer-{round}?purge=true"));
    }
    s.run(["cat", "note"]).expect("kept");
}

#[test]
fn nobody_gets_the_range_of_ids_of_a_sandbox_that_could_not_be_ended() {
    // One range of ids for all sessions.
    let mut pair = Pair::start(&[("SANDBOXD_SLOTS", "3"), ("SANDBOXD_CLEANUP_INTERVAL", "1")]);
    let open = |pair: &Pair, id: &str| attempt(&pair.client, "POST", "/sessions", &json!({"session_id": id})).unwrap();
    assert_eq!(open(&pair, "first").status, 200);
    let body = json!({"argv": ["sh", "-c", "setsid sleep 7100041 >/dev/null 2>&1 &"], "run_id": run_id()});
    pair.client.post("/sessions/first/run", body).expect(200);
    assert!(wait_for(Duration::from_secs(10), || (running("sleep 7100041").len() == 1).then_some(())).is_some());
    assert_eq!(open(&pair, "second").status, 502, "there is a second range");
    pair.kill(Which::Launcher);
    let asleep = pair.client.post("/sessions/first/hibernate", json!(null)).expect(200).json();
    assert_eq!((&asleep["state"], running("sleep 7100041").len()), (&json!("hibernated"), 1), "{}", pair.said());
    pair.start_launcher(None);
    // As soon as there is a launcher, it is ended after all.
    let opened = wait_for(Duration::from_secs(20), || (open(&pair, "second").status == 200).then_some(()));
    assert!(opened.is_some(), "{}", pair.said());
    assert!(running("sleep 7100041").is_empty(), "two sandboxes have one range of ids");
}

#[test]
fn the_dashboard_is_there_when_it_is_switched_on_and_otherwise_not() {
    let client = &shared().client.anonymous();
    for path in ["/ui", "/ui/app.js", "/ui/none"] {
        client.get(path).expect(404);
    }
    let daemon = Options::new().env("SANDBOXD_PREWARM", "false").env("SANDBOXD_UI_ENABLED", "true").start();
    let client = daemon.client.anonymous();
    let index = client.get("/").expect(200).json();
    assert_eq!(index["ui_url"], "/ui");
    assert!(
        index["endpoints"].as_array().unwrap().contains(&json!("/ui")) && client.get("/docs").text().contains("=/ui>")
    );
    for (path, kind) in [("/ui", "text/html"), ("/ui/app.js", "text/javascript"), ("/ui/style.css", "text/css")] {
        let answer = client.get(path).expect(200);
        assert!(answer.header("content-type").is_some_and(|value| value.starts_with(kind)), "{path}");
        assert_eq!(answer.header("x-content-type-options"), Some("nosniff"), "{path}");
        let policy = answer.header("content-security-policy").unwrap().to_owned();
        assert!(policy.starts_with("default-src 'none'") && !policy.contains("unsafe"), "{path}: {policy}");
        // A browser that has it, of this edition, gets no second copy; with the same headers, by which it goes on.
        let edition = answer.header("etag").unwrap().to_owned();
        let ask = |known: &str| {
            let head = format!("GET {path} HTTP/1.1\r\nHost: sandboxd\r\nIf-None-Match: {known}\r\n\r\n");
            client.connect().exchange(head.as_bytes(), b"").unwrap()
        };
        let again = ask(&edition).expect(304);
        assert!(again.text().is_empty(), "{path}");
        assert_eq!(again.header("content-security-policy"), Some(policy.as_str()), "{path}");
        ask("\"another\"").expect(200);
    }
    let slash = client.get("/ui/").expect(308);
    assert_eq!(slash.header("location"), Some("../ui"));
    for path in ["/ui/none.js", "/ui/../ui/app.js", "/ui/index.html", "/ui/%2e%2e%2fmod.rs"] {
        client.get(path).expect(404);
    }
}

/// What a browser is told of answers that are no page: nothing that a sandbox wrote runs, is guessed at, or is shown elsewhere.
#[test]
fn answers_with_bytes_of_a_sandbox_are_no_pages() {
    let s = shared().session("base");
    s.write("/workspace/evil.html", b"<script>alert(1)</script>").expect(204);
    let bytes = s.file("read", "/workspace/evil.html").expect(200);
    assert_eq!(bytes.header("content-disposition"), Some("attachment"));
    assert_eq!(bytes.header("content-type"), Some("application/octet-stream"));
    let run = s.try_run(["cat", "evil.html"], json!({})).expect(200);
    let listed = shared().client.post(&format!("/workspaces/{}/ls", s.id), json!({"path": "."})).expect(200);
    let missing = s.file("read", "/workspace/<script>").expect(404);
    let unknown = shared().client.anonymous().get("/%3Cscript%3E").expect(404);
    let health = shared().client.get("/healthz").expect(200);
    for answer in [bytes, run, listed, missing, unknown, health] {
        assert_eq!(answer.header("x-content-type-options"), Some("nosniff"), "{answer:?}");
        assert_eq!(answer.header("cross-origin-resource-policy"), Some("same-origin"), "{answer:?}");
        let policy = answer.header("content-security-policy").unwrap_or_default();
        assert_eq!(policy, "default-src 'none'; frame-ancestors 'none'; sandbox", "{answer:?}");
        assert!(answer.header("content-type").is_none_or(|kind| !kind.contains("html")), "{answer:?}");
    }
    let docs = shared().client.anonymous().get("/docs").expect(200);
    assert!(
        docs.header("content-security-policy").unwrap().contains("style-src")
            && docs.header("x-content-type-options").is_some()
    );
}
