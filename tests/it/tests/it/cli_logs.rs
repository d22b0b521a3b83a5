//! `sandboxctl logs`: what was done, and what is done from now on, through a restart of the service.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use it::daemon::{Options, StateDir};
use it::{Daemon, Session, shared};
use serde_json::{Value, json};

use crate::cli::{bare, ctl, finish};

/// How long a line may take to be shown.
const SOON: Duration = Duration::from_secs(20);

/// A log that is followed; ended when it goes out of scope.
struct Followed {
    child: Child,
    lines: Receiver<Value>,
}

impl Followed {
    fn start(mut command: Command) -> Self {
        let mut child = command.spawn().unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in out.lines().map_while(Result::ok) {
                let _ = sender.send(serde_json::from_str(&line).unwrap());
            }
        });
        Self { child, lines }
    }

    #[track_caller]
    fn next(&self) -> String {
        let line = self.lines.recv_timeout(SOON).unwrap_or_else(|error| panic!("no line: {error}"));
        line["target"].as_str().unwrap().to_owned()
    }

    #[track_caller]
    fn expect_silence(&self) {
        if let Ok(line) = self.lines.recv_timeout(Duration::from_secs(2)) {
            panic!("shown twice, or of another: {line}");
        }
    }
}

impl Drop for Followed {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn over_unix(daemon: &Daemon, arguments: &[&str]) -> Command {
    let mut command = bare();
    command.env("SANDBOXD_SOCKET", &daemon.socket);
    command.env("SANDBOXD_TOKEN", String::from_utf8_lossy(&daemon.client.token).as_ref()).args(arguments);
    command
}

#[test]
fn a_log_is_shown_oldest_first_as_far_as_it_is_wanted() {
    let s = shared().session("base");
    for line in ["true one", "false two", "true three"] {
        s.run(line.split(' '));
    }
    let logs = |more: &[&str]| finish(ctl(shared(), &[&["logs", &s.id], more].concat())).expect(0);
    let all = logs(&[]);
    let lines: Vec<&str> = all.lines().collect();
    assert!(lines.len() == 3 && lines[0].contains("true one") && lines[1].contains("FAILED: exit 1"), "{all}");
    assert!(logs(&["-n", "1"]).contains("true three") && logs(&["-n", "1"]).lines().count() == 1);
    assert_eq!((logs(&["-n", "0"]).as_str(), logs(&["--failed"]).lines().count()), ("", 1));
    assert_eq!(logs(&["--json"]).lines().filter(|line| serde_json::from_str::<Value>(line).is_ok()).count(), 3);
    let of_all = finish(ctl(shared(), &["logs", "-n", "200"])).expect(0);
    assert!(of_all.contains(&s.id), "{of_all}");
    assert!(finish(ctl(shared(), &["logs", "it-no-such-session"])).expect(66).is_empty());
    let quiet = shared().session("base");
    assert!(finish(ctl(shared(), &["logs", &quiet.id])).expect(0).is_empty());
    // Of a session that is gone as well.
    let id = s.id.clone();
    drop(s);
    assert_eq!(finish(ctl(shared(), &["logs", &id])).expect(0), all);
}

#[test]
fn a_session_s_own_token_follows_it_to_its_end() {
    let s = shared().session("base");
    s.run(["true", "before"]).expect("");
    let mut command = ctl(shared(), &["logs", "-f", "--json", "--interval", "0.5", &s.id]);
    command.env("SANDBOXD_TOKEN", String::from_utf8_lossy(&s.client.token).as_ref());
    let mut followed = Followed::start(command);
    assert_eq!(followed.next(), "true before");
    s.run(["true", "after"]).expect("");
    assert_eq!(followed.next(), "true after");
    followed.expect_silence();
    shared().client.delete(&s.path("?purge=true")).expect(204);
    let status = it::daemon::wait_for(SOON, || followed.child.try_wait().unwrap()).expect("it ends with the session");
    assert_eq!(status.code(), Some(0));
}

#[test]
fn a_followed_log_goes_on_through_a_restart_and_shows_nothing_twice() {
    let state = StateDir::new();
    let token = "a-token-of-a-test-that-is-long-enough-for-it";
    let start = || Options::new().env("SANDBOXD_PREWARM", "false").env("SANDBOXD_TOKEN", token).state(&state).start();
    let daemon = start();
    let s = Session::open(&daemon, json!({"session_id": "it-follow", "runtime": "base"}));
    s.run(["true", "1"]).expect("");
    let followed = Followed::start(over_unix(&daemon, &["logs", "-f", "--json", "--interval", "0.5", "it-follow"]));
    assert_eq!(followed.next(), "true 1");
    s.run(["true", "2"]).expect("");
    assert_eq!(followed.next(), "true 2");
    assert_eq!(daemon.stop(), Some(0));
    std::thread::sleep(Duration::from_secs(1));
    let daemon = start();
    let again = Session::from_answer(
        &daemon,
        &daemon.client.post("/sessions", json!({"session_id": "it-follow", "attach": true})).expect(200).json(),
    );
    for number in 3..300 {
        again.run(["true", &number.to_string()]).expect("");
    }
    for number in 3..300 {
        assert_eq!(followed.next(), format!("true {number}"));
    }
    followed.expect_silence();
}
