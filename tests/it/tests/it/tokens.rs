//! Who may do what. Without a valid token nobody learns what exists.

use it::{Client, Response, shared};
use serde_json::json;

/// The routes of a session: method, path below it, body.
const SESSION_ROUTES: [(&str, &str, &str); 13] = [
    ("GET", "", ""),
    ("POST", "/hibernate", ""),
    ("POST", "/wake", ""),
    ("POST", "/run", r#"{"argv": ["true"], "run_id": "0123456789abcdef0123456789abcdef"}"#),
    ("POST", "/runs/0123456789abcdef0123456789abcdef/stop", ""),
    ("POST", "/files/read", r#"{"path": "/workspace/x"}"#),
    ("POST", "/files/write?path=/workspace/x", "x"),
    ("POST", "/files/stat", r#"{"path": "/workspace/x"}"#),
    ("POST", "/files/list", r#"{"path": "/workspace"}"#),
    ("POST", "/files/realpath", r#"{"path": "/workspace/x"}"#),
    ("POST", "/files/mkdir", r#"{"path": "/workspace/d"}"#),
    ("POST", "/files/remove", r#"{"path": "/workspace/d"}"#),
    ("DELETE", "?purge=true", ""),
];
const SERVICE_ROUTES: [(&str, &str, &str); 11] = [
    ("GET", "/metrics", ""),
    ("POST", "/sessions", r#"{"runtime": "base"}"#),
    ("GET", "/sessions", ""),
    ("GET", "/policy", ""),
    ("GET", "/doctor", ""),
    ("GET", "/images", ""),
    ("POST", "/images/pull", r#"{"reference": "no:image"}"#),
    ("POST", "/images/gc", r#"{"dry_run": true}"#),
    ("POST", "/images/import?name=a", ""),
    ("GET", "/images/a/archive", ""),
    ("DELETE", "/images/a", ""),
];
const OPEN_ROUTES: [&str; 4] = ["/", "/healthz", "/docs", "/openapi.json"];

fn ask(client: &Client, (method, path, body): (&str, &str, &str)) -> Response {
    client.send(method, path, Some("application/json"), body.as_bytes())
}

/// Tokens that open nothing: absent, wrong, almost right, not ASCII, very long.
fn useless(right: &[u8]) -> Vec<Vec<u8>> {
    let mut almost = right.to_vec();
    if let Some(last) = almost.last_mut() {
        *last ^= 1;
    }
    vec![
        b"".to_vec(),
        b"wrong".to_vec(),
        right[..right.len() - 1].to_vec(),
        almost,
        "tökén-\u{1F980}".as_bytes().to_vec(),
        vec![0xff, 0xfe, 0x80],
        vec![b'x'; 8000],
    ]
}

#[test]
fn useless_tokens_are_401_everywhere_and_never_500() {
    let daemon = shared();
    let s = daemon.session("base");
    for token in useless(&daemon.client.token) {
        let client = daemon.client.with_token(token.clone());
        for route in SERVICE_ROUTES {
            ask(&client, route).expect(401);
        }
        for (method, rest, body) in SESSION_ROUTES {
            // The same answer for a session that exists and for one that does not.
            let real = ask(&client, (method, &s.path(rest), body)).expect(401);
            let none = ask(&client, (method, &format!("/sessions/no-such-session{rest}"), body)).expect(401);
            assert_eq!(real.text(), none.text());
        }
        for route in OPEN_ROUTES {
            let _ = client.get(route).expect(200);
        }
    }
    let answer = daemon.client.anonymous().get("/policy").expect(401);
    assert!(answer.detail().is_string());
    s.run(["true"]).expect("");
}

#[test]
fn a_session_s_token_reaches_its_session_only() {
    let daemon = shared();
    let (own, other) = (daemon.session("base"), daemon.session("base"));
    let _ = own.client.get(&own.path("")).expect(200);
    for (method, rest, body) in SESSION_ROUTES {
        ask(&own.client, (method, &other.path(rest), body)).expect(401);
        ask(&own.client, (method, &format!("/sessions/no-such-session{rest}"), body)).expect(401);
    }
    for route in SERVICE_ROUTES {
        ask(&own.client, route).expect(401);
    }
    other.run(["true"]).expect("");
}

#[test]
fn the_service_token_reaches_every_session_and_learns_what_does_not_exist() {
    let daemon = shared();
    let s = daemon.session("base");
    for (method, rest, body) in SESSION_ROUTES {
        ask(&daemon.client, (method, &format!("/sessions/no-such-session{rest}"), body)).expect(404);
    }
    let run = json!({"argv": ["true"], "run_id": it::session::run_id()});
    daemon.client.post(&s.path("/run"), run).expect(200);
    let _ = daemon.client.get(&s.path("")).expect(200);
}

#[test]
fn a_token_dies_with_its_session() {
    let daemon = shared();
    let s = daemon.session("base");
    daemon.client.delete(&s.path("?purge=true")).expect(204);
    let _ = s.client.get(&s.path("")).expect(401);
    let _ = daemon.client.get(&s.path("")).expect(404);
    let again = it::Session::open(daemon, json!({"session_id": s.id, "runtime": "base"}));
    assert_ne!(again.client.token, s.client.token, "a new session has a new token");
    let _ = s.client.get(&s.path("")).expect(401);
}

#[test]
fn a_token_is_in_one_header_and_nowhere_else() {
    let daemon = shared();
    let token = String::from_utf8_lossy(&daemon.client.token).into_owned();
    let client = daemon.client.anonymous();
    let _ = client.get(&format!("/policy?token={token}")).expect(401);
    let mut connection = client.connect();
    let head = format!("GET /policy HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n\r\n");
    assert_eq!(connection.exchange(head.as_bytes(), b"").unwrap().status, 401);
}

#[test]
fn the_unix_socket_wants_the_token_as_well() {
    let daemon = shared();
    let unix = daemon.over_unix();
    let _ = unix.get("/policy").expect(200);
    let _ = unix.anonymous().get("/policy").expect(401);
    let s = daemon.session("base");
    let own = Client::new(unix.endpoint.clone(), s.client.token.clone());
    own.post(&s.path("/run"), json!({"argv": ["true"], "run_id": it::session::run_id()})).expect(200);
}
