//! What was done is told: a session's events, the operations log, and that neither holds a payload.

use std::fs;
use std::path::Path;
use std::time::Duration;

use it::daemon::{Options, StateDir, wait_for};
use it::host::{children, running};
use it::session::{escape, fresh_id, run_id};
use it::{Daemon, Session, shared};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::cli::{ctl, finish};

fn events(s: &Session, after: u64) -> (Vec<Value>, u64) {
    let answer = s.client.get(&s.path(&format!("/events?after={after}"))).expect(200).json();
    (answer["events"].as_array().unwrap().clone(), answer["latest_seq"].as_u64().unwrap())
}

/// `op target ok detail` of each.
fn told(events: &[Value]) -> Vec<String> {
    let text = |e: &Value, field: &str| e[field].as_str().unwrap().to_owned();
    events
        .iter()
        .map(|e| format!("{} {} {} {}", text(e, "op"), text(e, "target"), e["ok"], text(e, "detail")))
        .collect()
}

fn page(daemon: &Daemon, query: &str) -> Value {
    daemon.client.get(&format!("/operations?{query}")).expect(200).json()
}

#[test]
fn events_tell_every_operation_with_its_outcome() {
    let s = shared().session("python");
    assert_eq!(events(&s, 0), (vec![], 0));
    s.run(["true"]).expect("");
    s.sh("exit 3").expect_code(3);
    s.run_with(["sleep", "9"], json!({"timeout_seconds": 0.3}));
    s.sh("yes | head -c 20000000");
    s.write("/workspace/dir/a b", b"x").expect(204);
    s.file("read", "/workspace/dir/a b").expect(200);
    s.file("read", "/workspace/none").expect(404);
    s.file("read", "/workspace/dir").expect(400);
    s.file("stat", "/workspace/dir").expect(200);
    s.file("list", "/workspace").expect(200);
    s.file("realpath", "/workspace/dir").expect(200);
    s.file("realpath", "/etc/passwd").expect(200);
    s.file("read", "/dev/zero").expect(409);
    s.file("mkdir", "/workspace/new").expect(204);
    s.file("remove", "/workspace/dir").expect(204);
    s.file("stat", "relative").expect(400);
    let (list, latest) = events(&s, 0);
    assert_eq!(
        told(&list),
        [
            "run true true exit 0",
            "run sh -c 'exit 3' false exit 3",
            "run sleep 9 false timed out",
            "run sh -c 'yes | head -c 20000000' false output limit",
            "write /workspace/dir/a b true ",
            "read /workspace/dir/a b true ",
            "read /workspace/none false not found",
            "read /workspace/dir false IsADirectoryError",
            "stat /workspace/dir true ",
            "ls /workspace true ",
            "realpath /workspace/dir true ",
            "realpath /etc/passwd true via the sandbox",
            "read /dev/zero false via the sandbox",
            "mkdir /workspace/new true ",
            "remove /workspace/dir true ",
            "stat relative false ValueError",
        ]
    );
    let seqs: Vec<u64> = list.iter().map(|e| e["seq"].as_u64().unwrap()).collect();
    assert_eq!((seqs, latest), ((1..=16).collect(), 16));
    assert!(list[2]["duration_ms"].as_f64().unwrap() >= 300.0, "{}", list[2]);
    assert_eq!(told(&events(&s, 14).0).len(), 2);
    assert_eq!(events(&s, 999), (vec![], 16));
    s.client.get(&s.path("/events?after=-1")).expect(422).expect_invalid("after");
    s.client.get(&s.path("/events?after=x")).expect(422).expect_invalid("after");
    s.client.anonymous().get(&s.path("/events")).expect(401);
    // Looking is no operation.
    assert_eq!(events(&s, 0).1, 16);
}

#[test]
fn a_target_is_cut_after_200_characters() {
    let s = shared().session("base");
    s.run(["echo".to_owned(), "é".repeat(300)]);
    let (list, _) = events(&s, 0);
    let target = list[0]["target"].as_str().unwrap();
    assert_eq!(
        (target.chars().count(), target.ends_with('…'), target.starts_with("echo 'éé")),
        (201, true, true),
        "{target}"
    );
}

#[test]
fn a_command_whose_client_went_away_is_told() {
    let s = shared().session("base");
    s.run(["true"]);
    let body = json!({"argv": ["sleep", "7654321"], "run_id": run_id()}).to_string();
    let mut connection = s.client.connect();
    let head = s.client.head("POST", &s.path("/run"), Some("application/json"), body.len());
    connection.write(&head).unwrap();
    connection.write(body.as_bytes()).unwrap();
    assert!(wait_for(Duration::from_secs(5), || (!running("sleep 7654321").is_empty()).then_some(())).is_some());
    drop(connection);
    let gone = wait_for(Duration::from_secs(5), || (events(&s, 1).1 == 2).then_some(()));
    assert!(gone.is_some());
    assert_eq!(told(&events(&s, 1).0), ["run sleep 7654321 false client went away"]);
}

#[test]
fn the_log_is_paged_filtered_and_says_for_whom() {
    let daemon = shared();
    let tenant = fresh_id("tenant");
    let s = Session::open(daemon, json!({"runtime": "base", "tenant": tenant}));
    for n in 0..3 {
        s.run(["echo", &format!("N{n}_%")]).expect(&format!("N{n}_%\n"));
    }
    s.sh("exit 1");
    s.file("list", "/workspace").expect(200);
    let all = page(daemon, &format!("tenant={tenant}"));
    let rows = all["operations"].as_array().unwrap();
    assert_eq!((rows.len(), &all["total"], &all["skip"], &all["limit"]), (5, &json!(5), &json!(0), &json!(50)));
    assert_eq!((&rows[0]["op"], &rows[0]["session"], &rows[0]["tenant"]), (&json!("ls"), &json!(s.id), &json!(tenant)));
    assert_eq!((&rows[0]["agent"], &rows[0]["run"]), (&Value::Null, &Value::Null));
    assert!(rows.windows(2).all(|pair| pair[0]["id"].as_u64() > pair[1]["id"].as_u64()));
    assert!(all["ops"].as_array().unwrap().contains(&json!("run")), "{}", all["ops"]);
    let second = page(daemon, &format!("session={}&skip=1&limit=2", s.id));
    assert_eq!((second["operations"].as_array().unwrap().len(), &second["total"]), (2, &json!(5)));
    assert_eq!(second["operations"][0], rows[1]);
    for (filter, total) in [
        ("failed=true", 1),
        ("failed=no", 4),
        ("op=run", 4),
        ("q=n1", 1),
        ("q=N1_%25", 1),
        ("q=_", 3),
        ("q=%25%25", 0),
        ("q=LS", 1),
        ("q=exit%201", 1),
        ("op=mkdir", 0),
    ] {
        assert_eq!(page(daemon, &format!("session={}&{filter}", s.id))["total"], total, "{filter}");
    }
    for (query, field) in [
        ("limit=0", "limit"),
        ("limit=501", "limit"),
        ("skip=-1", "skip"),
        ("op=x", "op"),
        ("failed=x", "failed"),
        ("session=%2F", "session"),
        ("tenant=", "tenant"),
        ("sesion=a", "sesion"),
    ] {
        daemon.client.get(&format!("/operations?{query}")).expect(422).expect_invalid(field);
    }
    s.client.get("/operations").expect(401);
}

/// A request with the headers that say for whom it is.
fn run_for(s: &Session, headers: &str) -> u16 {
    let body = json!({"argv": ["true"], "run_id": run_id()}).to_string();
    let head = s.client.head("POST", &s.path("/run"), Some("application/json"), body.len());
    let head = String::from_utf8(head).unwrap().replacen("\r\n\r\n", &format!("\r\n{headers}\r\n\r\n"), 1);
    s.client.connect().exchange(head.as_bytes(), body.as_bytes()).unwrap().status
}

#[test]
fn agent_and_run_are_kept_or_refused() {
    let daemon = shared();
    let s = daemon.session("base");
    assert_eq!(run_for(&s, "X-Sandbox-Agent: clerk 7\r\nX-Sandbox-Run: r-1"), 200);
    assert_eq!(run_for(&s, &format!("X-Sandbox-Agent: {}", "a".repeat(129))), 422);
    assert_eq!(run_for(&s, "X-Sandbox-Run: é"), 422);
    let rows = page(daemon, &format!("session={}", s.id));
    assert_eq!(rows["total"], 1);
    assert_eq!((&rows["operations"][0]["agent"], &rows["operations"][0]["run"]), (&json!("clerk 7"), &json!("r-1")));
}

/// From the client to the record and to the log: one name of a request, and for whom it was.
#[test]
fn an_operation_has_its_request_and_for_whom_it_was_by_the_command_line() {
    let daemon = shared();
    let s = daemon.session("base");
    let run = ["--for-agent", "clerk 7", "run", &s.id, "--", "echo", "hi"];
    assert_eq!(finish(ctl(daemon, &run)).expect(0), "hi\n");
    let mut by_variables = ctl(daemon, &["ls", &s.id]);
    by_variables.env("SANDBOXCTL_AGENT", "porter").env("SANDBOXCTL_RUN", "r-2");
    finish(by_variables).expect(0);
    let found = finish(ctl(daemon, &["operations", "--session", &s.id, "--json"])).json();
    let of = |op: &str| found["operations"].as_array().unwrap().iter().find(|row| row["op"] == op).unwrap().clone();
    let (run, ls) = (of("run"), of("ls"));
    assert_eq!((&run["agent"], &run["run"]), (&json!("clerk 7"), &Value::Null));
    assert_eq!((&ls["agent"], &ls["run"]), (&json!("porter"), &json!("r-2")));
    let request = run["request"].as_str().unwrap();
    assert!(request.len() == 32 && ls["request"] != request, "{found}");
    let table = finish(ctl(daemon, &["operations", "--session", &s.id])).expect(0);
    for word in ["AGENT", "RUN", "REQUEST", "clerk 7", "porter", "r-2", request] {
        assert!(table.contains(word), "{word}: {table}");
    }
    // Its own name, where it gave one.
    assert_eq!(run_for(&s, "X-Request-Id: mine-43"), 200);
    let by_request = ["operations", "--session", &s.id, "--request", "mine-43", "--json"];
    let mine = finish(ctl(daemon, &by_request)).json();
    assert_eq!((&mine["total"], &mine["operations"][0]["op"]), (&json!(1), &json!("run")), "{mine}");
    assert_eq!(page(daemon, "q=mine-43")["total"], 0, "a text is looked for in what was done alone");
    daemon.client.get("/operations?request=a%20b").expect(422);
    finish(ctl(daemon, &["--for-agent", "é", "sessions"])).expect(2);
}

/// Every byte below the state directory that is not in a workspace, a layer or an image.
fn expect_no_trace(state: &Path, secret: &str) {
    for entry in fs::read_dir(state).unwrap().flatten() {
        if entry.file_type().unwrap().is_file() {
            let bytes = fs::read(entry.path()).unwrap();
            let found = bytes.windows(secret.len()).any(|window| window == secret.as_bytes());
            assert!(!found, "{} holds a payload", entry.path().display());
        }
    }
}

#[test]
fn a_payload_is_nowhere_and_the_record_outlives_the_session() {
    let state = StateDir::new();
    let options = || Options::new().state(&state).env("SANDBOXD_PREWARM", "false");
    let daemon = options().start();
    let secret = "s3cr3t-Zq81-payload";
    let s = Session::open(&daemon, json!({"runtime": "base", "session_id": "it-payload"}));
    s.write("/workspace/secret", secret.as_bytes()).expect(204);
    s.file("read", "/workspace/secret").expect(200);
    s.run(["cat", "/workspace/secret"]).expect(secret);
    s.run_with(["sh", "-c", "echo $HIDDEN; echo $HIDDEN >&2"], json!({"env": {"HIDDEN": secret}}));
    assert_eq!(page(&daemon, "session=it-payload")["total"], 4);
    expect_no_trace(&daemon.state, secret);
    s.client.delete(&s.path("?purge=true")).expect(204);
    assert_eq!(page(&daemon, "session=it-payload")["total"], 4, "the record outlives a purge");
    // A new session of that name begins anew.
    let s = Session::open(&daemon, json!({"runtime": "base", "session_id": "it-payload"}));
    assert_eq!(events(&s, 0), (vec![], 0));
    s.run(["true"]).expect("");
    assert_eq!(daemon.stop(), Some(0));
    expect_no_trace(&state.0, secret);
    let daemon = options().start();
    let answer =
        daemon.client.post("/sessions", json!({"session_id": "it-payload", "runtime": "base", "attach": true}));
    let s = Session::from_answer(&daemon, &answer.expect(200).json());
    s.run(["true"]).expect("");
    let (list, latest) = events(&s, 0);
    assert_eq!((told(&list).len(), latest), (2, 2), "numbers go on after a restart");
    assert_eq!(page(&daemon, &format!("q={}", escape("cat /work")))["total"], 1);
}

#[test]
fn a_key_opens_the_session_that_it_means() {
    let daemon = shared();
    let organization = fresh_id("org");
    let key = |more: Value| {
        let mut key =
            json!({"scope": "user", "organization": organization, "agent": "clerk", "user": "bob@example.org"});
        key.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        json!({"runtime": "base", "reuse": true, "key": key})
    };
    let one = Session::open(daemon, key(json!({})));
    let again = daemon.client.post("/sessions", key(json!({"conversation": "7"}))).expect(200).json();
    assert_eq!(again["session"]["session_id"], one.id.as_str());
    let host = daemon.client.get("/policy").expect(200).json()["host_id"].as_str().unwrap().to_owned();
    assert!(
        one.id.starts_with("xu-") && one.id.contains(&format!("-{host}-")) && !one.id.contains("bob"),
        "{}",
        one.id
    );
    let other = Session::open(daemon, key(json!({"user": "Bob@example.org"})));
    assert_ne!(other.id, one.id);
    let refused = |body: Value, field: &str| daemon.client.post("/sessions", body).expect(422).expect_invalid(field);
    refused(key(json!({"user": null})), "user");
    refused(key(json!({"scope": "run"})), "run");
    refused(key(json!({"scope": "team"})), "scope");
    refused(key(json!({"organization": "../x"})), "organization");
    refused(key(json!({"usr": "x"})), "key");
    let mut both = key(json!({}));
    both["session_id"] = json!("it-both");
    refused(both, "key");
}

#[test]
fn what_was_answered_for_outlives_a_kill() {
    let state = StateDir::new();
    let options = || Options::new().state(&state).env("SANDBOXD_PREWARM", "false");
    let daemon = options().start();
    let s = Session::open(&daemon, json!({"runtime": "base", "session_id": "it-oplog-killed"}));
    for n in 0..50 {
        s.run(["echo", &n.to_string()]).expect(&format!("{n}\n"));
    }
    let service = children(daemon.pid)
        .into_iter()
        .find(|pid| fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|exe| exe.ends_with("sandboxd")));
    let service = Pid::from_raw(i32::try_from(service.unwrap()).unwrap()).unwrap();
    kill_process(service, Signal::KILL).unwrap();
    daemon.stop();
    let daemon = options().start();
    assert_eq!(page(&daemon, "session=it-oplog-killed&op=run")["total"], 50);
    let attach = json!({"session_id": s.id, "attach": true});
    let s = Session::from_answer(&daemon, &daemon.client.post("/sessions", attach).expect(200).json());
    s.run(["true"]).expect("");
    let (list, latest) = events(&s, 48);
    assert_eq!(
        (told(&list), latest),
        (vec!["run echo 48 true exit 0".into(), "run echo 49 true exit 0".into(), "run true true exit 0".into()], 51)
    );
}
