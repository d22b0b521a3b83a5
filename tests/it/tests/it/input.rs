//! What a client may send wrong, and what it is told.

use it::{Client, shared};
use serde_json::json;

fn post(client: &Client, path: &str, body: &[u8]) -> it::Response {
    client.send("POST", path, Some("application/json"), body)
}

#[test]
fn a_body_that_is_no_json_is_a_list_of_complaints() {
    let daemon = shared();
    let s = daemon.session("base");
    for body in [
        &b""[..],
        b"{",
        b"{\"session_id\": }",
        b"nonsense",
        b"{} {}",
        b"\xff\xfe",
        b"\0",
        b"[1, 2",
        b"{\"path\": \"\\ud800",
    ] {
        post(&daemon.client, "/sessions", body).expect_invalid("body");
        post(&s.client, &s.path("/run"), body).expect_invalid("body");
        post(&s.client, &s.path("/files/read"), body).expect_invalid("body");
    }
}

#[test]
fn a_name_that_is_no_text_is_one_that_nothing_has() {
    let daemon = shared();
    let (nobody, service) = (daemon.client.anonymous(), &daemon.client);
    for (method, path) in [
        ("GET", "/sessions/%ff"),
        ("DELETE", "/sessions/%ff"),
        ("GET", "/sessions/%ff/events"),
        ("POST", "/sessions/%C3/run"),
        ("POST", "/sessions/%ff/files/read"),
        ("POST", "/sessions/%ff/runs/%ff/stop"),
        ("POST", "/workspaces/%ff/ls"),
        ("DELETE", "/workspaces/%ff"),
    ] {
        let ask = |client: &Client| client.send(method, path, Some("application/json"), b"{\"path\": \".\"}");
        assert!(ask(&nobody).expect(401).detail().is_string(), "{method} {path}");
        ask(service).expect_invalid("session_id");
    }
    for path in ["/runtimes/%ff", "/images/%ff/archive"] {
        nobody.get(path).expect(401);
        let answer = service.get(path);
        assert!(matches!(answer.status, 404 | 422) && !answer.detail().is_null(), "{path}: {}", answer.text());
    }
    assert!(nobody.get("/%ff").expect(404).detail().is_string());
}

#[test]
fn a_body_of_another_shape_is_a_list_of_complaints() {
    let daemon = shared();
    for body in ["[]", "null", "1", "\"text\""] {
        let answer = post(&daemon.client, "/sessions", body.as_bytes()).expect(422);
        assert!(answer.detail().is_array(), "{}", answer.text());
    }
}

#[test]
fn json_that_is_nested_without_end_is_refused() {
    let daemon = shared();
    let deep = format!("{{\"runtime\": {}", "[".repeat(200_000));
    post(&daemon.client, "/sessions", deep.as_bytes()).expect(422);
}

#[test]
fn an_unknown_alias_is_told_what_is_allowed() {
    let answer = shared().client.post("/sessions", json!({"runtime": "no-such-runtime"})).expect(400);
    let detail = answer.detail();
    let text = detail.as_str().unwrap();
    assert!(text.contains("no-such-runtime") && text.contains("python") && text.contains("base"), "{text}");
}

#[test]
fn a_request_can_name_nothing_else_about_the_sandbox() {
    let daemon = shared();
    let body = json!({"runtime": "base", "image": "evil", "privileged": true, "mounts": ["/"], "network_mode": "host"});
    let answer = daemon.client.post("/sessions", body);
    match answer.status {
        200 => {
            let s = it::Session::from_answer(daemon, &answer.json());
            s.sh("ls /sys/class/net").expect("lo\n");
        }
        status => assert_eq!(status, 422, "{}", answer.text()),
    }
}

#[test]
fn ids_that_traverse_are_422() {
    let daemon = shared();
    let long = "a".repeat(65);
    for id in ["..", ".", "../x", "a/b", "/etc", "", ".hidden", "-x", "a b", "ü", "a\0b", "a\n", long.as_str()] {
        daemon.client.post("/sessions", json!({"session_id": id, "runtime": "base"})).expect_invalid("session_id");
        daemon.client.post("/sessions", json!({"tenant": id, "runtime": "base"})).expect_invalid("tenant");
        daemon.client.post("/sessions", json!({"session_id": id, "attach": true})).expect_invalid("session_id");
    }
}

#[test]
fn ids_that_traverse_in_a_url_reach_nothing() {
    let daemon = shared();
    for id in ["..", "%2e%2e", "..%2f..%2fetc", "%00", "a%2fb", "%ff", "a%0a", ".hidden"] {
        for rest in ["", "?purge=true"] {
            let answer = daemon.client.delete(&format!("/sessions/{id}{rest}"));
            assert!(matches!(answer.status, 400 | 404 | 405 | 422), "{id}: {} {}", answer.status, answer.text());
        }
        let answer =
            daemon.client.post(&format!("/sessions/{id}/run"), json!({"argv": ["id"], "run_id": "0".repeat(32)}));
        assert!(matches!(answer.status, 400 | 404 | 422), "{id}: {} {}", answer.status, answer.text());
    }
    daemon.client.get("/sessions/a%20b").expect_invalid("session_id");
}

#[test]
fn a_run_that_does_not_validate_names_the_field() {
    let s = shared().session("base");
    let id = it::session::run_id();
    let run = |body: serde_json::Value| s.client.post(&s.path("/run"), body);
    run(json!({"run_id": id})).expect_invalid("argv");
    run(json!({"argv": [], "run_id": id})).expect_invalid("argv");
    run(json!({"argv": "true", "run_id": id})).expect_invalid("argv");
    run(json!({"argv": ["a\0b"], "run_id": id})).expect_invalid("argv");
    run(json!({"argv": ["true"]})).expect_invalid("run_id");
    for bad in ["", "0", "../../x", "0123456789ABCDEF0123456789ABCDEF", "g0000000000000000000000000000000"] {
        run(json!({"argv": ["true"], "run_id": bad})).expect_invalid("run_id");
    }
    for bad in [json!(0), json!(-1), json!("soon"), json!(-0.5)] {
        run(json!({"argv": ["true"], "run_id": id, "timeout_seconds": bad})).expect_invalid("timeout_seconds");
    }
    for bad in [json!({"A=B": "x"}), json!({"": "x"}), json!({"A": "x\0y"}), json!({"A": 1}), json!([])] {
        run(json!({"argv": ["true"], "run_id": id, "env": bad})).expect_invalid("env");
    }
    run(json!({"argv": ["true"], "run_id": id})).expect(200);
    s.client.post(&s.path("/runs/NOT-HEX/stop"), json!({})).expect_invalid("run_id");
}

#[test]
fn a_query_that_does_not_validate_is_422() {
    let daemon = shared();
    let s = daemon.session("base");
    daemon.client.get("/sessions?usage=perhaps").expect(422);
    s.client.get(&s.path("?usage=perhaps")).expect(422);
    s.client.delete(&s.path("?purge=perhaps")).expect(422);
    s.client.post_bytes(&s.path("/files/write"), b"x").expect_invalid("path");
    s.client.get(&s.path("")).expect(200);
}

#[test]
fn a_body_without_end_is_refused() {
    let daemon = shared();
    let body = format!("{{\"runtime\": \"{}\"}}", "x".repeat(4 << 20));
    let status = post(&daemon.client, "/sessions", body.as_bytes()).status;
    assert!(matches!(status, 413 | 422), "{status}");
    daemon.client.get("/healthz").expect(200);
}

#[test]
fn what_is_no_http_is_no_trouble() {
    let daemon = shared();
    for bytes in [
        &b"\x16\x03\x01\x02\x00"[..],
        b"GET\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"\r\n\r\n\r\n",
        b"POST /sessions HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
        b"GET / HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
    ] {
        let mut connection = daemon.client.connect();
        connection.write(bytes).unwrap();
        let _ = connection.end();
        if let Ok(answer) = connection.answer() {
            assert!(answer.status < 500, "{bytes:?}: {}", answer.status);
        }
    }
    daemon.client.get("/healthz").expect(200);
}

#[test]
fn an_unknown_route_is_404_and_a_wrong_method_405() {
    let daemon = shared();
    assert!(daemon.client.get("/no/such/route").expect(404).detail().is_string());
    assert!(daemon.client.delete("/healthz").expect(405).detail().is_string());
    daemon.client.send("PUT", "/sessions", None, b"").expect(405);
}
