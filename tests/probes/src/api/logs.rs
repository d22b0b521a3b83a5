//! What clients, images and registries call things reaches the log as one line that says nothing of its own.

use std::fs;

use serde_json::json;

use super::{ask, row};
use crate::ground::Ground;
use crate::registry::Body;
use crate::report::{Control, Report};

/// Images that are served when it is their turn.
pub const LAZY: [&str; 2] = ["speaks", "named"];
/// What a line of the log must not begin with.
const FORGED: &str = "FORGED";

/// Everything that the instance has logged.
fn log(ground: &Ground) -> String {
    let home = ground.outside.parent().expect("a parent");
    let files = fs::read_dir(home).into_iter().flatten().flatten().map(|entry| entry.path());
    let logs = files.filter(|path| path.file_name().is_some_and(|name| name.to_string_lossy().contains(".log")));
    logs.map(|path| String::from_utf8_lossy(&fs::read(path).unwrap_or_default()).into_owned()).collect()
}

/// Try it.
pub fn probe(ground: &Ground, report: &mut Report) {
    let evil =
        format!("x\n{FORGED} ERROR all is lost\r\u{1b}[2J\u{1b}[31m<script>alert(1)</script>\u{202e}\u{7}\u{9b}31m");
    let before = log(ground).len();
    // A registry that says no, at length.
    let words = json!({"errors": [{"code": "DENIED", "message": evil, "detail": evil}]}).to_string();
    ground.registry.refuse("speaks/manifests/1", Body::of(words.into_bytes()));
    let (speaks, _) = ground.try_session("speaks");
    ground.registry.refuse("speaks/manifests/1", Body::of(evil.clone().into_bytes()));
    let _ = ground.try_session("speaks");
    // A layer that cannot be, by name.
    let entry = crate::archive::Entry::file(&format!("../{evil}"));
    let layer = crate::registry::Layer::plain(Body::of(crate::archive::archive(&[entry])));
    ground.registry.image("named", "0", &[ground.base.clone(), layer]);
    let (named, _) = ground.try_session("named");
    // Names in requests.
    let session = ground.session("root");
    for path in [format!("/workspace/{evil}"), evil.clone()] {
        let _ = session.file("read", &path);
        let _ = session.write(&path, b"x");
    }
    let client = &ground.daemon.client;
    for body in [
        json!({"runtime": evil}),
        json!({"runtime": "root", "session_id": evil}),
        json!({"runtime": "root", "tenant": evil}),
    ] {
        client.post("/sessions", body);
    }
    session
        .client
        .post(&session.path("/run"), json!({"argv": [evil], "run_id": it::session::run_id(), "env": {"X": evil}}));
    let encoded: String = evil.bytes().map(|byte| format!("%{byte:02x}")).collect();
    let _ = ask(client, "GET", &format!("/sessions/{encoded}"), b"");
    let log = log(ground);
    let new = log.get(before..).unwrap_or_default();
    let forged = new.lines().find(|line| line.starts_with(FORGED));
    let control_character =
        new.lines().find(|line| line.chars().any(|c| c != '\t' && (c.is_control() || c == '\u{202e}')));
    let works = speaks.status == 502 && named.status == 502 && new.contains(FORGED);
    let control = Control::of(works, "what they say is in the log");
    row(
        report,
        "lines in names",
        "one line each",
        forged.unwrap_or("one line each"),
        forged.is_none(),
        control.clone(),
    );
    let got = control_character
        .map_or_else(|| "escaped".to_owned(), |line| format!("{:?}", line.chars().take(150).collect::<String>()));
    row(report, "control characters in names", "escaped", &got, control_character.is_none(), control);
    let answer = client.get(&format!("/sessions/{}/events", session.id));
    let kind = answer.header("content-type").unwrap_or_default().to_owned();
    let held = kind.starts_with("application/json") && answer.text().bytes().all(|byte| byte >= 0x20);
    row(
        report,
        "markup and controls in answers",
        "JSON, escaped",
        &kind,
        held,
        Control::of(answer.text().contains("script"), "the name is in the answer"),
    );
}
