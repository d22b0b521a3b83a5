//! `kill -9` of the service, of the launcher, of both, at every step: nothing that was acknowledged is lost, and
//! nothing is left that nobody has. The same at random for longer: `make chaos`.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use it::Client;
use it::daemon::{target, wait_for};
use it::host::running;
use it::pair::{Pair, Which, attempt, send};
use it::session::run_id;
use it::{Response, load};
use serde_json::{Value, json};

/// A session with a file in it and a process in its background.
struct Kept {
    id: String,
    client: Client,
    mark: String,
}

impl Kept {
    fn open(pair: &Pair, id: &str, mark: u32) -> Self {
        let answer = pair.client.post("/sessions", json!({"session_id": id})).expect(200).json();
        let client = pair.client.with_token(answer["token"].as_str().unwrap());
        let kept = Self { id: id.to_owned(), client, mark: format!("sleep {mark}") };
        assert_eq!(kept.write("/workspace/note", b"kept").unwrap().status, 204);
        assert_eq!(kept.sh(&format!("setsid {} </dev/null >/dev/null 2>&1 &", kept.mark)).unwrap()["exit_code"], 0);
        // The shell is done before what it left has become what it is.
        let runs = wait_for(Duration::from_secs(10), || (running(&kept.mark).len() == 1).then_some(()));
        assert!(runs.is_some(), "{}: {:?}", kept.mark, running(&kept.mark));
        kept
    }

    fn path(&self, rest: &str) -> String {
        format!("/sessions/{}{rest}", self.id)
    }

    fn write(&self, path: &str, bytes: &[u8]) -> std::io::Result<Response> {
        let path = self.path(&format!("/files/write?path={path}"));
        send(&self.client, "POST", &path, Some("application/octet-stream"), bytes)
    }

    /// Run a line; an error if there was no answer, or another than 200.
    fn sh(&self, line: &str) -> std::io::Result<Value> {
        let body = json!({"argv": ["sh", "-c", line], "run_id": run_id()});
        let answer = attempt(&self.client, "POST", &self.path("/run"), &body)?;
        if answer.status == 200 { Ok(answer.json()) } else { Err(std::io::Error::other(answer.text())) }
    }

    fn file(&self, path: &str) -> Response {
        self.client.post(&self.path("/files/read"), json!({"path": path}))
    }

    fn events(&self) -> Vec<Value> {
        self.client.get(&self.path("/events")).expect(200).json()["events"].as_array().unwrap().clone()
    }

    /// The event whose target holds this text.
    fn event(&self, text: &str) -> Option<Value> {
        let mut events = self.events().into_iter();
        events.find(|event| event["target"].as_str().is_some_and(|target| target.contains(text)))
    }

    /// Its token, its file and its background process are what they were.
    #[track_caller]
    fn expect_untouched(&self) {
        assert_eq!(running(&self.mark).len(), 1, "its background process");
        self.expect_files();
    }

    #[track_caller]
    fn expect_files(&self) {
        assert_eq!(self.file("/workspace/note").expect(200).text(), "kept");
        assert_eq!(self.sh("cat note").unwrap()["stdout"], "kept");
    }
}

fn kept(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

/// Start the service so that it dies at this point.
fn arm(pair: &mut Pair, point: &str) {
    pair.kill(Which::Service);
    pair.start_service(Some(point));
}

#[track_caller]
fn expect_nothing_left(pair: &Pair, names: &[&str], at: &str) {
    let leaks = pair.leaks(&kept(names));
    assert!(leaks.is_empty(), "killed at {at}, this is left: {leaks:?}\n{}", pair.said());
}

#[test]
fn an_open_that_is_cut_off_leaves_nothing_and_can_be_asked_for_again() {
    let mut pair = Pair::start(&[]);
    let neighbour = Kept::open(&pair, "neighbour", 7_100_001);
    let unpromised =
        ["open.admitted", "open.prepared", "open.recorded", "start.listening", "start.launched", "start.ready"];
    for point in unpromised {
        arm(&mut pair, point);
        assert!(pair.ask("POST", "/sessions", &json!({"session_id": "cut-off"})).is_err(), "{point}");
        pair.expect_death(Which::Service);
        pair.revive();
        assert_eq!(pair.client.get("/sessions/cut-off").status, 404, "{point}");
        expect_nothing_left(&pair, &["neighbour"], point);
        neighbour.expect_untouched();
    }
    for point in ["open.promised", "open.told"] {
        arm(&mut pair, point);
        assert!(pair.ask("POST", "/sessions", &json!({"session_id": "promised"})).is_err(), "{point}");
        pair.expect_death(Which::Service);
        pair.revive();
        let again = pair.client.post("/sessions", json!({"session_id": "promised", "reuse": true})).expect(200).json();
        let client = pair.client.with_token(again["token"].as_str().unwrap());
        let run = json!({"argv": ["echo", "hi"], "run_id": run_id()});
        assert_eq!(client.post("/sessions/promised/run", run).expect(200).json()["stdout"], "hi\n", "{point}");
        pair.client.delete("/sessions/promised?purge=true").expect(204);
        expect_nothing_left(&pair, &["neighbour"], point);
    }
    neighbour.expect_untouched();
}

#[test]
fn an_open_of_a_kept_workspace_that_is_cut_off_keeps_it() {
    let mut pair = Pair::start(&[]);
    let session = Kept::open(&pair, "again", 7_100_002);
    pair.client.delete("/sessions/again").expect(204);
    for point in ["open.prepared", "open.recorded", "start.ready"] {
        arm(&mut pair, point);
        assert!(pair.ask("POST", "/sessions", &json!({"session_id": "again"})).is_err(), "{point}");
        pair.expect_death(Which::Service);
        pair.revive();
        expect_nothing_left(&pair, &["again"], point);
        let stored = pair.client.post("/workspaces/again/read", json!({"path": "note"})).expect(200).json();
        assert_eq!(stored["content"], "kept", "{point}");
    }
    let answer = pair.client.post("/sessions", json!({"session_id": "again", "attach": true})).expect(200).json();
    let session = Kept { client: pair.client.with_token(answer["token"].as_str().unwrap()), ..session };
    session.expect_files();
}

#[test]
fn a_workspace_that_the_disk_has_lost_is_gone_and_never_an_empty_one() {
    let mut pair = Pair::start(&[]);
    let neighbour = Kept::open(&pair, "not-lost", 7_100_012);
    for (id, restart) in [("lost-asleep", Which::Both), ("lost-awake", Which::Launcher)] {
        let session = Kept::open(&pair, id, 7_100_013);
        pair.kill(restart);
        fs::remove_dir_all(pair.state.join("workspaces").join(id)).unwrap();
        pair.revive();
        if restart == Which::Launcher {
            // Its sandbox ends; what it stood on is not there when it is to be started again.
            fs::write(pair.cgroup.join(format!("sandbox-{id}/cgroup.kill")), "1").unwrap();
        }
        let run = json!({"argv": ["true"], "run_id": run_id()});
        let gone = wait_for(Duration::from_secs(10), || {
            let answer = session.client.post(&session.path("/run"), run.clone());
            let text = answer.text();
            // The first may be told that its sandbox has ended under it, which is 410 as well.
            (answer.status == 410 && text.contains("are gone from the disk")).then_some(())
        });
        assert!(gone.is_some(), "{id}: {}", session.client.post(&session.path("/run"), run).text());
        if restart == Which::Both {
            assert_eq!(session.file("/workspace/note").status, 410);
        }
        assert!(!pair.state.join("workspaces").join(id).exists(), "made anew");
        pair.client.delete(&session.path("?purge=true")).expect(204);
        expect_nothing_left(&pair, &["not-lost"], "rest");
    }
    neighbour.expect_untouched();
}

#[test]
fn background_processes_outlive_service_and_launcher() {
    let mut pair = Pair::start(&[]);
    let session = Kept::open(&pair, "outlives", 7_100_003);
    for which in [Which::Service, Which::Launcher, Which::Both] {
        pair.kill(which);
        pair.revive();
        session.expect_untouched();
        expect_nothing_left(&pair, &["outlives"], "rest");
    }
}

#[test]
fn a_command_under_way_goes_on_and_its_end_is_in_the_events() {
    let mut pair = Pair::start(&[]);
    let session = Kept::open(&pair, "at-work", 7_100_004);
    for (number, which) in [Which::Service, Which::Both].into_iter().enumerate() {
        // One ends after the service is back, one while it is away; one fails.
        let workspace = pair.state.join("workspaces/at-work/workspace");
        let is =
            |name: &str| wait_for(Duration::from_secs(20), || workspace.join(name).exists().then_some(())).is_some();
        let until = |name: &str, end: &str, more: &str| {
            format!(
                "echo > up-{name}-{number}; until [ -e {end}-{number} ]; do sleep 0.05; done; echo done > {name}-{number}{more}"
            )
        };
        let lines = [until("long", "back", ""), until("short", "away", "; exit 3")];
        std::thread::scope(|scope| {
            let runs: Vec<_> = lines.iter().map(|line| scope.spawn(|| session.sh(line))).collect();
            assert!(is(&format!("up-long-{number}")) && is(&format!("up-short-{number}")), "{}", pair.said());
            pair.kill(which);
            for run in runs {
                assert!(run.join().unwrap().is_err(), "the client of a service that died has an error");
            }
        });
        fs::write(workspace.join(format!("away-{number}")), "").unwrap();
        assert!(is(&format!("short-{number}")));
        pair.revive();
        fs::write(workspace.join(format!("back-{number}")), "").unwrap();
        let long = wait_for(Duration::from_secs(20), || session.event(&format!("long-{number}")));
        let long = long.unwrap_or_else(|| panic!("no event: {:?}\n{}", session.events(), pair.said()));
        assert_eq!((&long["op"], &long["ok"]), (&json!("run"), &json!(true)), "{long}");
        let short = wait_for(Duration::from_secs(20), || session.event(&format!("short-{number}")));
        let short = short.unwrap_or_else(|| panic!("no event: {:?}\n{}", session.events(), pair.said()));
        assert_eq!((&short["ok"], &short["detail"]), (&json!(false), &json!("exit 3")), "{short}");
        for name in ["long", "short"] {
            assert_eq!(session.file(&format!("/workspace/{name}-{number}")).expect(200).text(), "done\n");
        }
        session.expect_untouched();
    }
}

#[test]
fn a_command_that_outlives_the_service_does_not_outlive_its_deadline() {
    let mut pair = Pair::start(&[("SANDBOXD_EXECUTE_TIMEOUT", "12")]);
    let session = Kept::open(&pair, "deadlines", 7_100_014);
    let workspace = pair.state.join("workspaces/deadlines/workspace");
    let lines = [("own", Some(8), "sleep 7100015"), ("service", None, "sleep 7100016")];
    std::thread::scope(|scope| {
        for (name, seconds, sleep) in lines {
            let line = format!("echo > up-{name}; (setsid {sleep} &); {sleep}");
            let body = json!({"argv": ["sh", "-c", line], "run_id": run_id(), "timeout_seconds": seconds});
            let session = &session;
            scope.spawn(move || attempt(&session.client, "POST", &session.path("/run"), &body));
        }
        let up = |name: &str| workspace.join(format!("up-{name}")).exists();
        let all = wait_for(Duration::from_secs(20), || (up("own") && up("service")).then_some(()));
        assert!(all.is_some(), "{}", pair.said());
        pair.kill(Which::Service);
    });
    pair.revive();
    for (name, _, sleep) in lines {
        let event = wait_for(Duration::from_secs(40), || session.event(&format!("up-{name}")));
        let event = event.unwrap_or_else(|| panic!("{name}: {:?}\n{}", session.events(), pair.said()));
        assert_eq!((&event["ok"], &event["detail"]), (&json!(false), &json!("timed out")), "{event}");
        let gone = wait_for(Duration::from_secs(10), || running(sleep).is_empty().then_some(()));
        assert!(gone.is_some(), "{sleep} runs still");
    }
    session.expect_untouched();
}

#[test]
fn when_a_session_was_last_used_outlives_a_kill() {
    let mut pair = Pair::start(&[]);
    let session = Kept::open(&pair, "used", 7_100_017);
    let last = |pair: &Pair| pair.client.get("/sessions/used").expect(200).json()["last_activity"].as_f64().unwrap();
    let opened = pair.client.get("/sessions/used").json()["created_at"].as_f64().unwrap();
    // Long before the next sweep.
    std::thread::sleep(Duration::from_secs(2));
    session.sh("true").unwrap();
    let before = last(&pair);
    assert!(before > opened + 1.5);
    for which in [Which::Service, Which::Both] {
        pair.kill(which);
        pair.revive();
        assert!((last(&pair) - before).abs() < 0.5, "{} and {before}, {opened}", last(&pair));
    }
}

#[test]
fn a_command_cut_off_at_any_step_is_in_the_events_once() {
    let mut pair = Pair::start(&[]);
    let session = Kept::open(&pair, "steps", 7_100_005);
    for point in ["run.started", "run.exited", "op.recorded"] {
        arm(&mut pair, point);
        let file = format!("after-{point}");
        assert!(session.sh(&format!("echo done > {file}")).is_err(), "{point}");
        pair.expect_death(Which::Service);
        pair.revive();
        let event = wait_for(Duration::from_secs(20), || session.event(&file));
        assert!(event.is_some(), "{point}: {:?}\n{}", session.events(), pair.said());
        assert_eq!(session.file(&format!("/workspace/{file}")).expect(200).text(), "done\n", "{point}");
        session.expect_untouched();
    }
    // The one that takes the end up dies as well, after it has recorded it and before the init knows that.
    arm(&mut pair, "run.exited");
    assert!(session.sh("echo done > after-two-deaths").is_err());
    pair.expect_death(Which::Service);
    pair.kill(Which::Service);
    pair.begin_service(Some("op.recorded"));
    pair.expect_death(Which::Service);
    pair.revive();
    session.expect_untouched();
    for (name, op) in [("run.started", "run"), ("run.exited", "run"), ("op.recorded", "run"), ("two-deaths", "run")] {
        let text = format!("> after-{name}");
        let all = session.events();
        let of_it = |event: &&Value| event["target"].as_str().is_some_and(|target| target.contains(&text));
        let found: Vec<&Value> = all.iter().filter(of_it).collect();
        assert!(found.len() == 1 && found[0]["op"] == op, "{name}: {all:?}\n{}", pair.said());
    }
}

#[test]
fn a_write_that_is_cut_off_leaves_the_old_file_or_the_new() {
    let mut pair = Pair::start(&[]);
    let session = Kept::open(&pair, "writes", 7_100_006);
    for (point, after) in [("write.begun", "old"), ("write.linked", "old"), ("write.committed", "new")] {
        assert_eq!(session.write("/workspace/file", b"old").unwrap().status, 204);
        arm(&mut pair, point);
        assert!(session.write("/workspace/file", b"new").is_err(), "{point}");
        pair.expect_death(Which::Service);
        pair.revive();
        assert_eq!(session.file("/workspace/file").expect(200).text(), after, "{point}");
        expect_nothing_left(&pair, &["writes"], point);
        session.expect_untouched();
    }
}

#[test]
fn an_end_that_is_cut_off_is_finished() {
    let mut pair = Pair::start(&[]);
    let neighbour = Kept::open(&pair, "beside", 7_100_007);
    for point in ["close.recorded", "close.deleted", "close.removed"] {
        for (query, left) in [("?purge=true", vec!["beside"]), ("", vec!["beside", "ending"])] {
            pair.client.post("/sessions", json!({"session_id": "ending", "reuse": true})).expect(200);
            arm(&mut pair, point);
            assert!(pair.ask("DELETE", &format!("/sessions/ending{query}"), &Value::Null).is_err(), "{point}");
            pair.expect_death(Which::Service);
            pair.revive();
            // Killed before that was recorded for good, it was not acknowledged: asked again, it is.
            let again = pair.client.delete(&format!("/sessions/ending{query}"));
            assert!(matches!(again.status, 204 | 404), "{point}: {}", again.text());
            expect_nothing_left(&pair, &left, point);
        }
        neighbour.expect_untouched();
    }
}

#[test]
fn freezing_hibernating_and_waking_are_cut_off_without_loss() {
    let quick = [("SANDBOXD_CLEANUP_INTERVAL", "1"), ("SANDBOXD_PERSIST_CONTAINERS", "true")];
    let mut pair = Pair::start(&quick);
    let session = Kept::open(&pair, "sleeper", 7_100_008);
    session.sh("echo installed > /usr/local/mark").unwrap();
    pair.set("SANDBOXD_FREEZE_AFTER", "1");
    arm(&mut pair, "freeze.frozen");
    pair.expect_death(Which::Service);
    pair.set("SANDBOXD_FREEZE_AFTER", "");
    pair.revive();
    session.expect_untouched();
    for point in ["hibernate.cleared", "hibernate.recorded"] {
        pair.set("SANDBOXD_HIBERNATE_AFTER", "1");
        arm(&mut pair, point);
        pair.expect_death(Which::Service);
        pair.set("SANDBOXD_HIBERNATE_AFTER", "");
        pair.revive();
        expect_nothing_left(&pair, &["sleeper"], point);
        session.expect_files();
    }
    for point in ["wake.admitted", "start.listening", "start.launched", "wake.launched", "wake.promised"] {
        pair.set("SANDBOXD_HIBERNATE_AFTER", "1");
        pair.kill(Which::Service);
        pair.start_service(None);
        let asleep = wait_for(Duration::from_secs(20), || {
            let info = session.client.get(&session.path("")).expect(200).json();
            // It says so from when its sandbox is to go: one that is killed before it has gone finds it running.
            (info["state"] == "hibernated" && !pair.cgroup.join("sandbox-sleeper").exists()).then_some(())
        });
        assert!(asleep.is_some(), "{point}");
        pair.set("SANDBOXD_HIBERNATE_AFTER", "");
        arm(&mut pair, point);
        assert!(session.sh("echo woken").is_err(), "{point}");
        pair.expect_death(Which::Service);
        pair.revive();
        expect_nothing_left(&pair, &["sleeper"], point);
        session.expect_files();
        assert_eq!(session.sh("cat /usr/local/mark").unwrap()["stdout"], "installed\n", "{point}");
    }
}

#[test]
fn a_sweep_that_is_cut_off_is_done_by_the_next() {
    let mut pair = Pair::start(&[("SANDBOXD_CLEANUP_INTERVAL", "1"), ("SANDBOXD_PERSIST_CONTAINERS", "true")]);
    let neighbour = Kept::open(&pair, "swept-beside", 7_100_009);
    for (point, setting) in [
        ("sweep.begun", "SANDBOXD_WORKSPACE_TTL"),
        ("sweep.layer", "SANDBOXD_CONTAINER_TTL"),
        ("sweep.workspace", "SANDBOXD_WORKSPACE_TTL"),
    ] {
        pair.client.post("/sessions", json!({"session_id": "old"})).expect(200);
        pair.client.delete("/sessions/old").expect(204);
        pair.set(setting, "1");
        pair.kill(Which::Service);
        pair.begin_service(Some(point));
        pair.expect_death(Which::Service);
        pair.revive();
        if setting == "SANDBOXD_WORKSPACE_TTL" {
            let gone =
                wait_for(Duration::from_secs(20), || (!pair.state.join("workspaces/old").exists()).then_some(()));
            assert!(gone.is_some(), "{point}");
            expect_nothing_left(&pair, &["swept-beside"], point);
        } else {
            let gone = wait_for(Duration::from_secs(20), || (!pair.state.join("sessions/old").exists()).then_some(()));
            assert!(gone.is_some(), "{point}");
            expect_nothing_left(&pair, &["swept-beside", "old"], point);
            pair.client.post("/sessions", json!({"session_id": "old", "reuse": true})).expect(200);
            pair.client.delete("/sessions/old?purge=true").expect(204);
        }
        pair.set(setting, "");
        pair.kill(Which::Service);
        pair.start_service(None);
        neighbour.expect_untouched();
    }
}

/// Hard links to the layers of the store that the tests share, for a store of its own.
fn images(of: &Path) {
    let copied = Command::new("cp").args(["-al"]).arg(target().join("images")).arg(of).status().unwrap();
    assert!(copied.success());
    // Locks are the inode's: with these it would take its turns with every other test.
    for lock in ["lock", "owner"] {
        let _ = fs::remove_file(of.join(lock));
    }
}

/// At a start it cannot be told from a build of another process that works with the store, and is left alone.
#[test]
fn what_a_build_left_while_another_process_worked_goes_when_that_is_done() {
    drop(Kept::open(&Pair::start(&[]), "base", 7_100_012));
    let directory = it::daemon::StateDir::new();
    let (store, catalog) = (directory.0.join("images"), directory.0.join("catalog.json"));
    images(&store);
    let built = json!({"alias": "built", "base_image": "debian-bookworm", "setup_commands": ["true"]});
    let entries = json!([built, {"alias": "base", "image": "debian-bookworm"}]);
    fs::write(&catalog, entries.to_string()).unwrap();
    let mut pair = Pair::prepare(&[("SANDBOXD_CLEANUP_INTERVAL", "1")], Some(&catalog), Some(&store));
    pair.start_launcher(None);
    arm(&mut pair, "build.ran");
    assert!(pair.ask("POST", "/sessions", &json!({"session_id": "built", "runtime": "built"})).is_err());
    pair.expect_death(Which::Service);
    let lock = fs::File::open(store.join("lock")).unwrap();
    lock.lock().unwrap();
    pair.revive();
    let left = || fs::read_dir(pair.state.join("run/sessions")).unwrap().count();
    assert_eq!(left(), 1, "{}", pair.said());
    lock.unlock().unwrap();
    expect_nothing_left(&pair, &[], "build.ran");
}

#[test]
fn a_build_that_is_cut_off_is_built_again() {
    // The shared store has the base.
    drop(Kept::open(&Pair::start(&[]), "base", 7_100_011));
    let directory = it::daemon::StateDir::new();
    let (store, catalog) = (directory.0.join("images"), directory.0.join("catalog.json"));
    images(&store);
    let entry = |n: usize| json!({"alias": format!("built-{n}"), "base_image": "debian-bookworm", "setup_commands": [format!("echo {n} > /built")]});
    let mut entries: Vec<Value> = (0..6).map(entry).collect();
    entries.push(json!({"alias": "base", "image": "debian-bookworm"}));
    fs::write(&catalog, json!(entries).to_string()).unwrap();
    let mut pair = Pair::prepare(&[], Some(&catalog), Some(&store));
    pair.start_launcher(None);
    let points = ["build.started", "build.ran", "build.committed", "build.recorded"];
    for (number, point) in points.into_iter().enumerate() {
        let body = json!({"session_id": "built", "runtime": format!("built-{number}")});
        arm(&mut pair, point);
        assert!(pair.ask("POST", "/sessions", &body).is_err(), "{point}");
        pair.expect_death(Which::Service);
        pair.revive();
        expect_nothing_left(&pair, &[], point);
        expect_built(&pair, &body, number);
        expect_nothing_left(&pair, &[], point);
    }
    // The launcher dies over it: the service asks again, or says that the build failed, which the next one repairs.
    pair.kill(Which::Launcher);
    pair.start_launcher(Some("commit.committed"));
    let body = json!({"session_id": "built", "runtime": "built-4"});
    std::thread::scope(|scope| {
        let client = pair.client.clone();
        let (first, asked) = (body.clone(), json!("built"));
        let open = scope.spawn(move || attempt(&client, "POST", "/sessions", &first).unwrap());
        pair.expect_death(Which::Launcher);
        pair.revive();
        let answer = open.join().unwrap();
        assert!(matches!(answer.status, 200 | 502), "{asked}: {}", answer.text());
    });
    let body = json!({"session_id": "built", "runtime": "built-4", "reuse": true});
    expect_built(&pair, &body, 4);
    expect_nothing_left(&pair, &[], "commit.committed");
}

#[track_caller]
fn expect_built(pair: &Pair, body: &Value, number: usize) {
    let answer = pair.client.post("/sessions", body.clone()).expect(200).json();
    let client = pair.client.with_token(answer["token"].as_str().unwrap());
    let run = json!({"argv": ["cat", "/built"], "run_id": run_id()});
    assert_eq!(client.post("/sessions/built/run", run).expect(200).json()["stdout"], format!("{number}\n"));
    pair.client.delete("/sessions/built?purge=true").expect(204);
}

#[test]
fn a_launcher_that_dies_at_any_step_leaves_nothing_of_it() {
    let mut pair = Pair::start(&[]);
    let neighbour = Kept::open(&pair, "other", 7_100_010);
    for point in ["start.cgroup", "start.mounts", "start.rootfs", "start.built", "start.started"] {
        let answer = with_dying_launcher(&mut pair, point, "POST", "/sessions", &json!({"session_id": "unlucky"}));
        assert_eq!(answer.status, 502, "{point}: {}", answer.text());
        assert_eq!(pair.client.get("/sessions/unlucky").status, 404, "{point}");
        expect_nothing_left(&pair, &["other"], point);
        neighbour.expect_untouched();
    }
    for point in ["stop.stopped", "forget.removed", "workspace.removed"] {
        pair.client.post("/sessions", json!({"session_id": "ending"})).expect(200);
        let answer = with_dying_launcher(&mut pair, point, "DELETE", "/sessions/ending?purge=true", &Value::Null);
        assert_eq!(answer.status, 204, "{point}: {}", answer.text());
        expect_nothing_left(&pair, &["other"], point);
        neighbour.expect_untouched();
    }
}

/// A request during which the launcher dies at `point` and is started again.
fn with_dying_launcher(pair: &mut Pair, point: &str, method: &str, path: &str, body: &Value) -> Response {
    pair.kill(Which::Launcher);
    pair.start_launcher(Some(point));
    let client = pair.client.clone();
    std::thread::scope(|scope| {
        let asked = scope.spawn(move || attempt(&client, method, path, body).unwrap());
        pair.expect_death(Which::Launcher);
        pair.revive();
        asked.join().unwrap()
    })
}

/// Part of `make chaos`, where it runs for longer.
#[test]
fn kills_at_random_under_load_lose_nothing() {
    let seed = std::env::var("CHAOS_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(20);
    let mut pair = Pair::start(&[("SANDBOXD_MAX_SESSIONS", "100"), ("SANDBOXD_CLEANUP_INTERVAL", "1")]);
    let report = load::run(&mut pair, 20, seed, &load::points());
    println!("{report}; {} requests were acknowledged", report.acknowledged);
    assert!(report.lost.is_empty() && report.leaked.is_empty(), "{report:#?}\n{}", pair.said());
}

/// With this seed the service that is started last is armed: it dies while the clients finish what they are at, and
/// somebody has to start it again. Nobody did: the clients then waited in vain for a minute, which looked like a service
/// that stands still.
#[test]
fn a_service_that_dies_after_the_last_kill_is_started_again_for_the_clients() {
    let mut pair = Pair::start(&[("SANDBOXD_MAX_SESSIONS", "100"), ("SANDBOXD_CLEANUP_INTERVAL", "1")]);
    let points = [vec!["op.recorded".to_owned()], vec!["start.mounts".to_owned()]];
    let report = load::run(&mut pair, 6, 2, &points);
    assert!(pair.armed, "the seed arms nothing");
    // Clients that wait in vain say so: what they asked for is lost.
    assert!(report.lost.is_empty() && report.leaked.is_empty(), "{report:#?}\n{}", pair.said());
}
