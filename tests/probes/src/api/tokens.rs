//! Another session's token, on every route: what is somebody else's and what is not there are the same answer, byte for byte.

use it::{Client, Response, Session};

use super::row;
use crate::ground::Ground;
use crate::report::{Control, Report};

/// Every route of a session and of a workspace, by what follows `/ID`: method, kind, rest, body.
const ROUTES: [(&str, &str, &str, &str); 19] = [
    ("GET", "sessions", "", ""),
    ("GET", "sessions", "/events", ""),
    ("POST", "sessions", "/run", r#"{"argv": ["/probe", "identity"], "run_id": "0123456789abcdef0123456789abcdef"}"#),
    ("POST", "sessions", "/run", "{"),
    ("POST", "sessions", "/runs/0123456789abcdef0123456789abcdef/stop", ""),
    ("POST", "sessions", "/files/read", r#"{"path": "/workspace/x"}"#),
    ("POST", "sessions", "/files/write?path=/workspace/written", "x"),
    ("POST", "sessions", "/files/stat", r#"{"path": "/workspace/x"}"#),
    ("POST", "sessions", "/files/list", r#"{"path": "/workspace"}"#),
    ("POST", "sessions", "/files/realpath", r#"{"path": "/workspace/x"}"#),
    ("POST", "sessions", "/files/mkdir", r#"{"path": "/workspace/d"}"#),
    ("POST", "sessions", "/files/remove", r#"{"path": "/workspace/d"}"#),
    ("POST", "workspaces", "/ls", r#"{"path": "."}"#),
    ("POST", "workspaces", "/tree", r#"{"path": "."}"#),
    ("POST", "workspaces", "/read", r#"{"path": "x"}"#),
    ("POST", "workspaces", "/read_bytes", r#"{"path": "x"}"#),
    ("POST", "workspaces", "/files", "{}"),
    ("GET", "sessions", "/no-such-route", ""),
    ("DELETE", "sessions", "?purge=true", ""),
];
/// Routes of the service token alone.
const SERVICE: [(&str, &str, &str); 9] = [
    ("POST", "/sessions", r#"{"runtime": "root"}"#),
    ("GET", "/sessions", ""),
    ("GET", "/policy", ""),
    ("PUT", "/policy", "{}"),
    ("GET", "/doctor", ""),
    ("GET", "/images", ""),
    ("GET", "/operations", ""),
    ("GET", "/workspaces", ""),
    ("DELETE", "/workspaces/it-nobodys", ""),
];

fn ask(client: &Client, method: &str, path: &str, body: &str) -> Response {
    client.send(method, path, Some("application/json"), body.as_bytes())
}

/// All of an answer that a client can compare.
fn bytes(answer: &Response) -> String {
    // When it was, and the name of the request, are no answer.
    let headers = answer.headers.iter().filter(|(name, _)| name != "date" && name != "x-request-id");
    let headers: Vec<String> = headers.map(|(name, value)| format!("{name}: {value}")).collect();
    format!("{}\n{}\n\n{}", answer.status, headers.join("\n"), answer.text())
}

/// Try them all.
pub fn probe(ground: &Ground, report: &mut Report) {
    let (own, other) = (ground.session("root"), ground.session("root"));
    other.write("/workspace/x", b"theirs").expect(204);
    let stolen = [("its token", own.client.clone()), ("none", own.client.anonymous()), ("almost", almost(&other))];
    for (method, kind, rest, body) in ROUTES {
        let absent = format!("/{kind}/{}{rest}", "n".repeat(other.id.len()));
        let theirs = format!("/{kind}/{}{rest}", other.id);
        let mut wrong = None;
        let mut statuses = Vec::new();
        for (who, client) in &stolen {
            let (there, not) = (ask(client, method, &theirs, body), ask(client, method, &absent, body));
            statuses.push(there.status.to_string());
            let refused = (400..500).contains(&there.status);
            if bytes(&there) != bytes(&not) || !refused || there.text().contains("theirs") {
                wrong.get_or_insert(format!(
                    "{who}: {} {}, absent {} {}",
                    there.status,
                    there.text(),
                    not.status,
                    not.text()
                ));
            }
        }
        let entitled = if kind == "sessions" { &other.client } else { &ground.daemon.client };
        let works = method == "DELETE"
            || rest == "/no-such-route"
            || bytes(&ask(entitled, method, &theirs, body)) != bytes(&ask(&own.client, method, &theirs, body));
        let got = wrong.clone().unwrap_or_else(|| format!("{}, the same", statuses.join(", ")));
        let title = format!(
            "{method} /{kind}/ID{}{}",
            rest.split('?').next().unwrap_or(rest),
            if body == "{" { " (broken)" } else { "" }
        );
        row(
            report,
            &title,
            "as if it were not there",
            &got,
            wrong.is_none(),
            Control::of(works, "who may gets another answer"),
        );
    }
    let alive = other.file("read", "/workspace/x").text() == "theirs";
    row(
        report,
        "the other session afterwards",
        "as it was",
        if alive { "as it was" } else { "CHANGED" },
        alive,
        Control::Works("it was asked before".to_owned()),
    );
    for (method, path, body) in SERVICE {
        let answer = ask(&own.client, method, path, body);
        let works = ask(&ground.daemon.client, method, path, body).status != answer.status;
        let got = format!("{} {}", answer.status, answer.text());
        row(
            report,
            &format!("{method} {path}"),
            "401",
            &got,
            answer.status == 401,
            Control::of(works, "the service's token is let in"),
        );
    }
}

/// A client whose token is the session's but for the last bit.
fn almost(session: &Session) -> Client {
    let mut token = session.client.token.clone();
    if let Some(last) = token.last_mut() {
        *last ^= 1;
    }
    session.client.with_token(token)
}
