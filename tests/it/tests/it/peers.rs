//! Who is let in at the unix socket, and by sockets and credentials that somebody else opened.

use std::os::fd::AsRawFd;
use std::os::unix::net::UnixListener;
use std::process::Command;
use std::time::Duration;

use it::daemon::{Options, StateDir, wait_for};
use it::http::Endpoint;
use it::{Client, shared};
use serde_json::json;

fn small() -> Options {
    Options::new().env("SANDBOXD_PREWARM", "false").env("SANDBOXD_DEFAULT_RUNTIME", "base")
}

#[test]
fn with_unix_auth_peer_the_socket_s_permissions_are_the_token_and_tcp_needs_one() {
    let daemon = small().env("SANDBOXD_UNIX_AUTH", "peer").start();
    let unix = daemon.over_unix().anonymous();
    let answer = unix.post("/sessions", json!({"session_id": "it-peer"})).expect(200);
    assert_eq!(answer.header("x-sandbox-peer"), Some("uid=0"), "the answer says who");
    let run = json!({"argv": ["echo", "hi"], "run_id": it::session::run_id()});
    assert_eq!(unix.post("/sessions/it-peer/run", run.clone()).expect(200).json()["stdout"], "hi\n");
    // A token is looked at where there is one.
    unix.with_token("wrong").get("/sessions").expect(401);
    let own = answer.json()["token"].as_str().unwrap().to_owned();
    let answer = unix.with_token(own.clone()).get("/sessions/it-peer").expect(200);
    assert_eq!(answer.header("x-sandbox-peer"), None, "it is the token's holder");
    unix.with_token(own).get("/sessions").expect(401);
    // A page of another site, or of a name that its owner let lead here, is not the user in whose browser it is.
    for headers in [
        "Host: localhost:8080\r\nOrigin: http://evil.example",
        "Host: evil.example:8080",
        "Host: printer:8080",
        "Host: localhost\r\nSec-Fetch-Site: cross-site",
    ] {
        let head = format!("GET /sessions HTTP/1.1\r\n{headers}\r\nContent-Length: 0\r\n\r\n");
        let answer = unix.connect().exchange(head.as_bytes(), b"").unwrap().expect(401);
        assert_eq!(answer.header("x-sandbox-peer"), None, "{headers}");
    }
    let head =
        "GET /sessions HTTP/1.1\r\nHost: localhost:8080\r\nOrigin: http://localhost:8080\r\nContent-Length: 0\r\n\r\n";
    unix.connect().exchange(head.as_bytes(), b"").unwrap().expect(200);
    // At TCP nobody is known.
    daemon.client.anonymous().get("/sessions").expect(401);
    daemon.client.anonymous().post("/sessions/it-peer/run", run).expect(401);
    daemon.client.delete("/sessions/it-peer?purge=true").expect(204);
}

#[test]
fn without_it_the_unix_socket_needs_a_token_as_well() {
    let answer = shared().over_unix().anonymous().get("/sessions").expect(401);
    assert_eq!(answer.header("x-sandbox-peer"), None);
}

/// A service that is given its socket and its token as systemd gives them.
#[test]
fn a_socket_and_a_token_that_are_passed_are_used_and_no_other_is_opened() {
    let pair = it::pair::Pair::start(&[]);
    let state = StateDir::new();
    let (run, credentials) = (state.0.join("run"), state.0.join("credentials"));
    for directory in [&run, &credentials] {
        std::fs::create_dir_all(directory).unwrap();
    }
    let socket = run.join("passed.sock");
    let token = "a-token-of-32-characters-or-more-passed";
    std::fs::write(credentials.join("token"), format!("{token}\n")).unwrap();
    let listener = UnixListener::bind(&socket).unwrap();
    rustix::io::fcntl_setfd(&listener, rustix::io::FdFlags::empty()).unwrap();
    let line = format!("exec 3<&{}; LISTEN_PID=$$ LISTEN_FDS=1 exec \"$0\"", listener.as_raw_fd());
    let mut command = Command::new("bash");
    command.args(["-c", &line]).arg(it::daemon::binary("sandboxd")).env("CREDENTIALS_DIRECTORY", &credentials);
    let settings = [
        ("STATE_DIR", state.0.clone()),
        ("RUNTIME_DIR", run.clone()),
        ("LAUNCH_SOCKET", pair.state.join("run/launch.sock")),
        ("CATALOG", it::daemon::repository().join("catalog/test.json")),
    ];
    command.envs(settings.iter().map(|(name, value)| (format!("SANDBOXD_{name}"), value)));
    command.envs([("SANDBOXD_LIMITS", "best-effort"), ("SANDBOXD_PREWARM", "false")]);
    // The launcher of the pair serves its service only; this one is asked for nothing that needs it.
    it::pair::as_service(&mut command, &state.0);
    let mut service = command.spawn().unwrap();
    drop(listener);
    let client = Client::new(Endpoint::Unix(socket), token);
    let served = wait_for(Duration::from_secs(20), || {
        it::pair::attempt(&client, "GET", "/sessions", &json!(null)).ok().map(|answer| answer.status)
    });
    assert_eq!(served, Some(200));
    assert!(!run.join("sandboxd.sock").exists(), "it opens no socket that nobody passed");
    client.with_token("another-token-of-32-characters-or-more").get("/sessions").expect(401);
    service.kill().unwrap();
    service.wait().unwrap();
}

#[test]
fn a_token_in_a_file_that_everybody_can_read_stops_the_start() {
    let state = StateDir::new();
    std::fs::create_dir_all(&state.0).unwrap();
    let file = state.0.join("sandboxd.toml");
    std::fs::write(&file, "token = \"a-token-of-32-characters-or-more-in-a-file\"\n").unwrap();
    let output = Command::new(it::daemon::binary("sandboxd")).arg("--config").arg(&file).output().unwrap();
    assert!(!output.status.success());
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("SANDBOXD_TOKEN (token in") && said.contains("chmod o-r"), "{said}");
}

#[test]
fn a_hangup_reads_the_settings_again_and_bad_ones_change_nothing() {
    let state = StateDir::new();
    std::fs::create_dir_all(&state.0).unwrap();
    let file = state.0.join("overrides.json");
    std::fs::write(&file, r#"{"idle_timeout": 77}"#).unwrap();
    let pair =
        it::pair::Pair::start(&[("SANDBOXD_POLICY_OVERRIDES", file.to_str().unwrap()), ("SANDBOXD_MAX_SESSIONS", "9")]);
    let policy = || pair.client.get("/policy").expect(200).json();
    assert_eq!((&policy()["idle_timeout"], &policy()["max_sessions"]), (&json!(77), &json!(9)));
    let put = json!({"max_sessions": 3}).to_string();
    pair.client.send("PUT", "/policy", Some("application/json"), put.as_bytes()).expect(200);
    assert_eq!(policy()["max_sessions"], 3);
    pair.hang_up();
    let back = wait_for(Duration::from_secs(5), || (policy()["max_sessions"] == 9).then_some(()));
    assert!(back.is_some(), "{}", policy());
    assert_eq!(policy()["idle_timeout"], 77, "the overrides are on top");
}
