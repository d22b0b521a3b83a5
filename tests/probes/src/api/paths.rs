//! Traversal: every field that names a session, a workspace, a runtime, a run or a file, with every way to say "above".

use std::collections::BTreeSet;

use it::session::escape;
use it::{Response, Session};
use serde_json::json;

use super::{answers, ask, row};
use crate::ground::{Ground, inside};
use crate::report::{Control, Report};

/// What is in the file that nobody may read.
const SECRET: &str = "untouched";
const OPERATIONS: [&str; 6] = ["read", "stat", "list", "realpath", "mkdir", "remove"];
const STORED: [&str; 5] = ["ls", "tree", "read", "read_bytes", "files"];

/// Names that mean something else than they say, for a part of a URL.
fn parts(marker: &str) -> Vec<String> {
    let climb = format!("{}{}", "../".repeat(20), marker.trim_start_matches('/'));
    let encoded = |text: &str| text.bytes().map(|byte| format!("%{byte:02X}")).collect::<String>();
    let mut all = vec![
        "..".to_owned(),
        ".".to_owned(),
        "%2e%2e".to_owned(),
        "%252e%252e%252f".to_owned(),
        "..%2f..%2f..%2fetc%2fshadow".to_owned(),
        "%c0%ae%c0%ae%c0%af".to_owned(),
        "..%5c..%5c".to_owned(),
        "x%00".to_owned(),
        "%00".to_owned(),
        "%ff%fe".to_owned(),
        "%EF%BC%8E%EF%BC%8E%EF%BC%8F".to_owned(),
        "a".repeat(8_000),
        "%0d%0aX-Injected:%20yes".to_owned(),
    ];
    all.extend([encoded(&climb), encoded(marker), climb]);
    all
}

/// The same for a path in a body.
fn bodies(marker: &str) -> Vec<String> {
    let climb = format!("{}{}", "../".repeat(20), marker.trim_start_matches('/'));
    vec![
        marker.to_owned(),
        climb.clone(),
        format!("/workspace/{climb}"),
        format!("/workspace/./{climb}"),
        format!("/workspace//{climb}"),
        format!("/{climb}"),
        format!("/workspace/absolute{marker}"),
        "/workspace/out/marker".to_owned(),
        "/workspace/climbing/marker".to_owned(),
        "out/marker".to_owned(),
        format!("/workspace/root{marker}"),
        format!("/proc/1/root{marker}"),
        format!("/proc/self/cwd/{climb}"),
        format!("/workspace/{}{marker}", "%2e%2e/".repeat(20)),
        "/workspace/\0/x".to_owned(),
        format!("/workspace/x\0{marker}"),
        "/workspace/\u{ff0e}\u{ff0e}/\u{202e}x".to_owned(),
        format!("/workspace/{}", "a".repeat(300)),
        format!("/workspace/{}", "d/".repeat(5000)),
        "a".repeat(100_000),
        "~/x".to_owned(),
        "/workspace/-rf".to_owned(),
        String::new(),
    ]
}

#[derive(Default)]
struct Seen {
    statuses: BTreeSet<u16>,
    wrong: Option<String>,
}

impl Seen {
    fn see(&mut self, value: &str, answer: &Response) {
        self.statuses.insert(answer.status);
        let injected = answer.header("x-injected").is_some();
        if answer.text().contains(SECRET) || answer.status >= 500 || injected {
            let value: String = value.chars().take(60).collect();
            let text: String = answer.text().chars().take(100).collect();
            self.wrong.get_or_insert(format!("{value:?}: {} {text}", answer.status));
        }
    }

    fn tell(self, ground: &Ground, report: &mut Report, probe: &str, control: Control) {
        let wrong = self.wrong.or_else(|| ground.damage().map(|damage| format!("OUTSIDE: {damage}")));
        let wrong = wrong.or_else(|| (!answers(ground)).then(|| "the service does not answer".to_owned()));
        let got = wrong.clone().unwrap_or_else(|| format!("{:?}", self.statuses));
        row(report, probe, "nothing of the host's", &got, wrong.is_none(), control);
    }
}

/// Try them all.
pub fn probe(ground: &Ground, report: &mut Report) {
    let marker = ground.outside.join("marker").display().to_string();
    let session = ground.session("root");
    prepare(ground, &session);
    let control = by_name(ground, &session);
    urls(ground, report, &session, &marker, &control);
    for operation in OPERATIONS {
        let mut seen = Seen::default();
        for value in bodies(&marker) {
            seen.see(&value, &session.file(operation, &value));
        }
        prepare(ground, &session);
        seen.tell(ground, report, &format!("files/{operation}: path"), control.clone());
    }
    let mut seen = Seen::default();
    let escaped = bodies(&marker).into_iter().map(|value| escape(&value));
    for part in escaped.chain(parts(&marker)) {
        let path = session.path(&format!("/files/write?path={part}"));
        seen.see(&part, &ask(&session.client, "POST", &path, b"planted"));
    }
    seen.tell(ground, report, "files/write: path", control.clone());
    for operation in STORED {
        let mut seen = Seen::default();
        for value in bodies(&marker) {
            let path = format!("/workspaces/{}/{operation}", session.id);
            seen.see(&value, &ground.daemon.client.post(&path, json!({"path": value})));
        }
        seen.tell(ground, report, &format!("workspaces/{operation}: path"), control.clone());
    }
}

/// Links out of the workspace, and a file in it.
fn prepare(ground: &Ground, session: &Session) {
    let outside = ground.outside.display().to_string();
    let climb = format!("{}{outside}", "../".repeat(20));
    for (target, name) in
        [(outside.as_str(), "out"), (&climb, "climbing"), ("/", "absolute"), ("/proc/self/root", "root")]
    {
        let _ = inside(session, &["link", target, &format!("/workspace/{name}")]);
    }
    session.write("/workspace/inside", b"inside").expect(204);
}

/// What somebody reads who joins names and opens them.
fn by_name(ground: &Ground, session: &Session) -> Control {
    let workspace = ground.daemon.state.join("workspaces").join(&session.id).join("workspace");
    let climb = format!("{}{}", "../".repeat(20), ground.outside.join("marker").display());
    let read = |name: &str| std::fs::read_to_string(workspace.join(name)).unwrap_or_default();
    let works = read(&climb) == SECRET && read("out/marker") == SECRET && read("climbing/marker") == SECRET;
    let sound = session.file("read", "/workspace/inside").text() == "inside";
    Control::of(works && sound, "joined to the workspace by name it is read")
}

fn urls(ground: &Ground, report: &mut Report, session: &Session, marker: &str, control: &Control) {
    let client = &ground.daemon.client;
    let path = |text: &str| json!({"path": text}).to_string().into_bytes();
    let fields: [(&str, &str, String, Vec<u8>); 9] = [
        ("session id", "GET", "/sessions/{}".to_owned(), Vec::new()),
        ("session id, events", "GET", "/sessions/{}/events".to_owned(), Vec::new()),
        ("session id, delete", "DELETE", "/sessions/{}?purge=true".to_owned(), Vec::new()),
        ("session id, read", "POST", "/sessions/{}/files/read".to_owned(), path("/workspace/inside")),
        ("workspace id", "POST", "/workspaces/{}/read".to_owned(), path("marker")),
        ("run id", "POST", session.path("/runs/{}/stop"), Vec::new()),
        ("page", "GET", "/workspaces?skip={}&limit={}".to_owned(), Vec::new()),
        ("operations", "GET", "/operations?session_id={}&cursor={}".to_owned(), Vec::new()),
        ("any path", "GET", "/{}".to_owned(), Vec::new()),
    ];
    for (name, method, form, body) in fields {
        let mut seen = Seen::default();
        for part in parts(marker) {
            seen.see(&part, &ask(client, method, &form.replace("{}", &part), &body));
        }
        seen.tell(ground, report, name, control.clone());
    }
    let mut seen = Seen::default();
    for value in bodies(marker).into_iter().filter(|value| !value.is_empty()) {
        for body in [
            json!({"runtime": value}),
            json!({"runtime": "root", "session_id": value}),
            json!({"runtime": "root", "tenant": value}),
            json!({"runtime": "root", "cwd": value}),
        ] {
            seen.see(&value, &client.post("/sessions", body));
        }
        for body in [
            json!({"argv": ["/probe", "identity"], "run_id": value}),
            json!({"argv": ["/probe", "identity"], "run_id": it::session::run_id(), "cwd": value}),
        ] {
            seen.see(&value, &session.client.post(&session.path("/run"), body));
        }
    }
    seen.tell(ground, report, "runtime, ids, directories in bodies", control.clone());
}
