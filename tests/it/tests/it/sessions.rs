//! Opening, finding, attaching to and closing sessions, and the ceilings on how many there may be.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use it::daemon::Options;
use it::session::fresh_id;
use it::{Session, shared};
use serde_json::{Value, json};

#[test]
fn a_session_is_described() {
    let s = shared().session("python");
    assert!(s.id.len() == 18 && s.id.starts_with("s-") && s.id[2..].bytes().all(|b| b.is_ascii_hexdigit()), "{}", s.id);
    s.run(["true"]).expect("");
    let info = s.client.get(&s.path("")).expect(200).json();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64();
    assert_eq!(
        (&info["session_id"], &info["runtime"], &info["tenant"]),
        (&json!(s.id), &json!("python"), &Value::Null)
    );
    assert_eq!((&info["alive"], &info["state"], &info["usage"]), (&json!(true), &json!("running"), &Value::Null));
    for time in ["created_at", "last_activity"] {
        let at = info[time].as_f64().unwrap();
        assert!((now - at).abs() < 60.0, "{time} {at} {now}");
    }
    assert!(info["idle_seconds"].as_f64().unwrap() < 30.0, "{info}");
    let usage = s.client.get(&s.path("?usage=true")).expect(200).json()["usage"].clone();
    for field in ["memory_bytes", "memory_limit_bytes", "cpu_percent", "pids"] {
        assert!(usage.get(field).is_some(), "{usage}");
    }
    assert!(usage["pids"].as_u64().is_some_and(|pids| pids >= 1), "{usage}");
}

#[test]
fn the_list_has_every_open_session_and_the_ceilings() {
    let daemon = shared();
    let (one, two) = (daemon.session("base"), daemon.session("python"));
    let list = daemon.client.get("/sessions").expect(200).json();
    let ids: Vec<&str> =
        list["sessions"].as_array().unwrap().iter().map(|s| s["session_id"].as_str().unwrap()).collect();
    assert!(ids.contains(&one.id.as_str()) && ids.contains(&two.id.as_str()), "{ids:?}");
    assert_eq!((&list["limit"], &list["open_limit"], &list["tenant_limit"]), (&json!(200), &Value::Null, &Value::Null));
    one.close();
    let list = daemon.client.get("/sessions?usage=1").expect(200).text();
    assert!(!list.contains(&one.id) && list.contains(&two.id));
}

#[test]
fn a_chosen_name_is_taken_once() {
    let daemon = shared();
    let id = fresh_id("name");
    let s = Session::open(daemon, json!({"session_id": id, "runtime": "base", "tenant": "acme"}));
    assert_eq!(s.id, id);
    daemon.client.post("/sessions", json!({"session_id": id, "runtime": "base"})).expect(409);
    let info = s.client.get(&s.path("")).expect(200).json();
    assert_eq!(info["tenant"], "acme");
}

#[test]
fn reuse_and_attach_find_the_open_session_with_its_token() {
    let daemon = shared();
    let id = fresh_id("reuse");
    let s = Session::open(daemon, json!({"session_id": id, "runtime": "python", "reuse": true}));
    s.write("/workspace/note", b"mine").expect(204);
    let token = String::from_utf8(s.client.token.clone()).unwrap();
    for body in [
        json!({"session_id": id, "reuse": true}),
        json!({"session_id": id, "attach": true}),
        json!({"session_id": id, "attach": true, "runtime": "python"}),
        json!({"session_id": id, "reuse": true, "attach": true}),
    ] {
        let answer = daemon.client.post("/sessions", body).expect(200).json();
        assert_eq!((&answer["token"], &answer["session"]["session_id"]), (&json!(token), &json!(id)));
        assert_eq!(answer["session"]["runtime"], "python");
    }
    for how in ["reuse", "attach"] {
        daemon.client.post("/sessions", json!({"session_id": id, "runtime": "base", how: true})).expect(409);
    }
}

#[test]
fn an_attach_is_use() {
    let daemon = shared();
    let s = daemon.session("base");
    let last = || s.client.get(&s.path("")).expect(200).json()["last_activity"].as_f64().unwrap();
    for how in ["reuse", "attach"] {
        std::thread::sleep(Duration::from_millis(50));
        let before = last();
        let mut body = json!({"session_id": s.id});
        body[how] = json!(true);
        daemon.client.post("/sessions", body).expect(200);
        assert!(last() > before + 0.04, "{how}");
        // One that is refused is none.
        let before = last();
        std::thread::sleep(Duration::from_millis(50));
        daemon.client.post("/sessions", json!({"session_id": s.id})).expect(409);
        assert!((last() - before).abs() < 0.04);
    }
}

#[test]
fn attach_never_creates() {
    let daemon = shared();
    daemon.client.post("/sessions", json!({"attach": true})).expect(400);
    let id = fresh_id("attach");
    daemon.client.post("/sessions", json!({"session_id": id, "attach": true})).expect(404);
    let _ = daemon.client.get(&format!("/sessions/{id}")).expect(404);
}

#[test]
fn a_closed_session_s_workspace_is_found_again() {
    let daemon = shared();
    let id = fresh_id("kept");
    let s = Session::open(daemon, json!({"session_id": id, "runtime": "python"}));
    s.sh("echo a note > notes.txt; echo gone > /home/agent/layer; echo gone > /tmp/x").expect("");
    s.close();
    let _ = daemon.client.get(&s.path("")).expect(404);
    daemon.client.delete(&s.path("")).expect(404);
    let again = Session::open(daemon, json!({"session_id": id, "attach": true}));
    assert_eq!(
        again.client.get(&again.path("")).expect(200).json()["runtime"],
        "python",
        "on the runtime that it was opened on"
    );
    again.run(["cat", "notes.txt"]).expect("a note\n");
    again.sh("ls /home/agent/layer /tmp/x 2>/dev/null; true").expect("");
    again.close();
    let reused = Session::open(daemon, json!({"session_id": id, "runtime": "base", "reuse": true}));
    reused.run(["cat", "notes.txt"]).expect("a note\n");
    reused.close();
    let fresh = Session::open(daemon, json!({"session_id": id, "runtime": "python"}));
    fresh.run(["cat", "notes.txt"]).expect("a note\n");
}

#[test]
fn a_purge_leaves_nothing() {
    let daemon = shared();
    let id = fresh_id("purge");
    let s = Session::open(daemon, json!({"session_id": id, "runtime": "python"}));
    // Files of every owner that there can be inside, some closed to everybody.
    s.sh("mkdir -p a/b; echo x > a/b/c; chmod 000 a/b; mkfifo p; ln -s / root; echo y > /home/agent/z").expect("");
    let workspace = daemon.state.join("workspaces").join(&id);
    assert!(workspace.exists());
    daemon.client.delete(&s.path("?purge=true")).expect(204);
    daemon.client.post("/sessions", json!({"session_id": id, "attach": true})).expect(404);
    assert!(!workspace.exists(), "the workspace is left");
    assert!(!daemon.state.join("sessions").join(&id).exists(), "the write layer is left");
    assert!(!daemon.runtime_dir().join("sessions").join(&id).exists(), "the control socket is left");
    let fresh = Session::open(daemon, json!({"session_id": id, "runtime": "python"}));
    fresh.run(["ls", "-A"]).expect("");
}

#[test]
fn a_purge_takes_what_root_inside_has_made() {
    let daemon = shared();
    let id = fresh_id("root");
    let s = Session::open(daemon, json!({"session_id": id, "runtime": "base"}));
    s.sh("id -u; mkdir -p d/e; echo x > d/e/f; chown -R 1234:1234 d 2>/dev/null; chmod 700 d; true").expect("0\n");
    daemon.client.delete(&s.path("?purge=true")).expect(204);
    assert!(!daemon.state.join("workspaces").join(&id).exists());
}

#[test]
fn one_of_many_opens_of_a_name_wins() {
    let daemon = shared();
    let id = fresh_id("race");
    let body = json!({"session_id": id, "runtime": "base"});
    let statuses: Vec<u16> = std::thread::scope(|scope| {
        let all: Vec<_> =
            (0..8).map(|_| scope.spawn(|| daemon.client.post("/sessions", body.clone()).status)).collect();
        all.into_iter().map(|one| one.join().unwrap()).collect()
    });
    assert_eq!(statuses.iter().filter(|status| **status == 200).count(), 1, "{statuses:?}");
    assert!(statuses.iter().all(|status| matches!(status, 200 | 409)), "{statuses:?}");
    daemon.client.delete(&format!("/sessions/{id}?purge=true")).expect(204);
}

#[test]
fn many_open_at_once() {
    let daemon = shared();
    std::thread::scope(|scope| {
        for i in 0..12 {
            scope.spawn(move || {
                let s = daemon.session(if i % 2 == 0 { "python" } else { "base" });
                s.run(["echo", "hi"]).expect("hi\n");
            });
        }
    });
}

#[test]
fn an_open_that_nobody_waits_for_leaves_no_half() {
    let daemon = shared();
    let id = fresh_id("gone");
    let body = json!({"session_id": id, "runtime": "base"}).to_string();
    let mut connection = daemon.client.connect();
    let head = daemon.client.head("POST", "/sessions", Some("application/json"), body.len());
    connection.write(&[head.as_slice(), body.as_bytes()].concat()).unwrap();
    drop(connection);
    let settled = it::daemon::wait_for(Duration::from_secs(30), || {
        let answer = daemon.client.post("/sessions", json!({"session_id": id, "runtime": "base", "reuse": true}));
        (answer.status == 200).then(|| Session::from_answer(daemon, &answer.json()))
    });
    settled.expect("finished or removed").run(["echo", "whole"]).expect("whole\n");
}

#[test]
fn ceilings_refuse_with_429_and_say_what_is_held() {
    let daemon = Options::new()
        .env("SANDBOXD_MAX_SESSIONS", "3")
        .env("SANDBOXD_MAX_SESSIONS_PER_TENANT", "2")
        .env("SANDBOXD_DEFAULT_RUNTIME", "base")
        .env("SANDBOXD_PREWARM", "false")
        .start();
    let tenant = json!({"tenant": "acme"});
    let first = Session::open(&daemon, tenant.clone());
    let second = Session::open(&daemon, tenant.clone());
    let refused = daemon.client.post("/sessions", tenant.clone()).expect(429);
    let text = refused.detail().as_str().unwrap().to_owned();
    assert!(text.contains("acme") && text.contains("already holds 2 of 2"), "{text}");
    let other = Session::open(&daemon, json!({"tenant": "umbrella"}));
    let full = daemon.client.post("/sessions", json!({})).expect(429);
    assert!(full.detail().as_str().unwrap().contains("3 of 3"), "{}", full.text());
    assert_eq!(daemon.client.get("/healthz").json()["sessions"], 3);
    second.close();
    let third = Session::open(&daemon, tenant);
    third.run(["true"]).expect("");
    drop((first, third, other));
    assert_eq!(daemon.client.get("/healthz").json()["open_sessions"], 0);
}

#[test]
fn opens_in_flight_count_towards_the_ceiling() {
    let daemon = Options::new()
        .env("SANDBOXD_MAX_SESSIONS", "4")
        .env("SANDBOXD_DEFAULT_RUNTIME", "base")
        .env("SANDBOXD_PREWARM", "false")
        .start();
    let statuses: Vec<u16> = std::thread::scope(|scope| {
        let all: Vec<_> = (0..12).map(|_| scope.spawn(|| daemon.client.post("/sessions", json!({})).status)).collect();
        all.into_iter().map(|one| one.join().unwrap()).collect()
    });
    assert_eq!(statuses.iter().filter(|status| **status == 200).count(), 4, "{statuses:?}");
    assert!(statuses.iter().all(|status| matches!(status, 200 | 429)), "{statuses:?}");
    let health = daemon.client.get("/healthz").json();
    assert_eq!((&health["sessions"], &health["limit"]), (&json!(4), &json!(4)));
}

#[test]
fn commands_at_once_have_a_ceiling_of_their_own() {
    let daemon = Options::new().env("SANDBOXD_MAX_RUNNING_COMMANDS", "2").env("SANDBOXD_PREWARM", "false").start();
    let s = daemon.session("base");
    s.write("/workspace/held", b"").expect(204);
    std::thread::scope(|scope| {
        let hold = |number| format!("echo up > up-{number}; while [ -e held ]; do sleep 0.1; done");
        let two: Vec<_> = [hold(0), hold(1)].into_iter().map(|line| scope.spawn(|| s.sh(&{ line }))).collect();
        for number in 0..2 {
            let up = || (s.file("stat", &format!("/workspace/up-{number}")).status == 200).then_some(());
            it::daemon::wait_for(Duration::from_secs(20), up).expect("it runs");
        }
        s.try_run(["true"], json!({})).expect(429);
        s.file("remove", "/workspace/held").expect(204);
        for one in two {
            one.join().unwrap().expect("");
        }
    });
    s.run(["true"]).expect("");
}
