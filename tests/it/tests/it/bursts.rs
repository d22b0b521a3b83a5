//! Many things at once to the same few sessions.

use std::collections::BTreeMap;
use std::sync::Barrier;
use std::time::{Duration, Instant};

use it::daemon::wait_for;
use it::host::running;
use it::pair::{Pair, attempt};
use it::session::run_id;
use serde_json::{Value, json};

/// Ask for all of these at the same moment; the answers' statuses, and how long each took.
fn at_once(pair: &Pair, bodies: &[Value]) -> Vec<(u16, Value, Duration)> {
    let gate = Barrier::new(bodies.len());
    std::thread::scope(|scope| {
        let ask = |body: &Value| {
            gate.wait();
            let begun = Instant::now();
            let answer = attempt(&pair.client, "POST", "/sessions", body).unwrap();
            (answer.status, answer.json(), begun.elapsed())
        };
        let threads: Vec<_> = bodies.iter().map(|body| scope.spawn(move || ask(body))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

#[test]
fn of_two_opens_of_one_name_one_wins_and_its_token_stays_good() {
    let pair = Pair::start(&[]);
    for _ in 0..5 {
        let answers = at_once(&pair, &[json!({"session_id": "twice"}), json!({"session_id": "twice"})]);
        let mut statuses: Vec<u16> = answers.iter().map(|(status, ..)| *status).collect();
        statuses.sort_unstable();
        assert_eq!(statuses, [200, 409], "{answers:?}");
        let won = answers.iter().find(|(status, ..)| *status == 200).unwrap();
        let client = pair.client.with_token(won.1["token"].as_str().unwrap());
        client.get("/sessions/twice").expect(200);
        client.post("/sessions/twice/run", json!({"argv": ["true"], "run_id": run_id()})).expect(200);
        pair.client.delete("/sessions/twice?purge=true").expect(204);
    }
    assert_eq!(pair.leaks(&[].into()), Vec::<String>::new());
}

#[test]
fn fifty_opens_at_a_ceiling_of_twenty_are_twenty_sessions_and_thirty_prompt_refusals() {
    let pair = Pair::start(&[("SANDBOXD_MAX_SESSIONS", "20")]);
    let bodies: Vec<Value> = (0..50).map(|number| json!({"session_id": format!("burst-{number}")})).collect();
    let answers = at_once(&pair, &bodies);
    let mut by_status: BTreeMap<u16, Vec<Duration>> = BTreeMap::new();
    for (status, _, took) in &answers {
        by_status.entry(*status).or_default().push(*took);
    }
    let counts: Vec<(u16, usize)> = by_status.iter().map(|(status, times)| (*status, times.len())).collect();
    assert_eq!(counts, [(200, 20), (429, 30)], "{answers:?}");
    let slowest = by_status[&429].iter().max().unwrap();
    assert!(*slowest < Duration::from_secs(60), "a refusal took {slowest:?}");
    let open = pair.open_sessions();
    assert_eq!(open.len(), 20);
    assert_eq!(pair.leaks(&[].into()), Vec::<String>::new(), "of those that were refused");
    for id in open {
        pair.client.delete(&format!("/sessions/{id}?purge=true")).expect(204);
    }
    assert_eq!(pair.leaks(&[].into()), Vec::<String>::new());
}

#[test]
fn a_delete_during_a_command_ends_it_and_says_so() {
    let pair = Pair::start(&[]);
    pair.client.post("/sessions", json!({"session_id": "busy"})).expect(200);
    let body = json!({"argv": ["sleep", "7100020"], "run_id": run_id()});
    std::thread::scope(|scope| {
        let run = scope.spawn(|| attempt(&pair.client, "POST", "/sessions/busy/run", &body).unwrap());
        assert!(wait_for(Duration::from_secs(10), || (!running("sleep 7100020").is_empty()).then_some(())).is_some());
        let begun = Instant::now();
        pair.client.delete("/sessions/busy?purge=true").expect(204);
        let answer = run.join().unwrap();
        assert!(matches!(answer.status, 404 | 410), "{} {}", answer.status, answer.text());
        assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", begun.elapsed());
    });
    assert!(running("sleep 7100020").is_empty());
    pair.client.get("/sessions/busy").expect(404);
    assert_eq!(pair.leaks(&[].into()), Vec::<String>::new());
}

#[test]
fn an_open_waits_for_the_end_of_the_session_that_had_its_name() {
    let pair = Pair::start(&[]);
    let body = json!({"session_id": "again"});
    for _ in 0..10 {
        pair.client.post("/sessions", body.clone()).expect(200);
        std::thread::scope(|scope| {
            let delete = scope.spawn(|| pair.client.delete("/sessions/again?purge=true").status);
            // From when it is open no more.
            while pair.client.get("/sessions/again").status == 200 {}
            pair.client.post("/sessions", body.clone()).expect(200);
            assert_eq!(delete.join().unwrap(), 204);
        });
        pair.client.delete("/sessions/again?purge=true").expect(204);
    }
    assert_eq!(pair.leaks(&[].into()), Vec::<String>::new());
}

#[test]
fn a_purge_of_a_hibernated_session_leaves_nothing() {
    let pair = Pair::start(&[("SANDBOXD_MAX_SESSIONS", "1"), ("SANDBOXD_EVICT_IDLE_AFTER", "0")]);
    let first = pair.client.post("/sessions", json!({"session_id": "asleep"})).expect(200).json();
    let client = pair.client.with_token(first["token"].as_str().unwrap());
    client.post_bytes("/sessions/asleep/files/write?path=/workspace/note", b"kept").expect(204);
    pair.client.post("/sessions", json!({"session_id": "awake"})).expect(200);
    assert_eq!(client.get("/sessions/asleep").expect(200).json()["state"], "hibernated");
    pair.client.delete("/sessions/asleep?purge=true").expect(204);
    client.get("/sessions/asleep").expect(401);
    assert_eq!(pair.leaks(&["awake".to_owned()].into()), Vec::<String>::new());
    // Its name begins with nothing.
    pair.client.post("/sessions", json!({"session_id": "asleep", "attach": true})).expect(404);
}
