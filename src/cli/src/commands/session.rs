//! `open`, `close`, `sessions`.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use hyper::StatusCode;
use serde::Serialize;
use wire::api::{CreateSessionRequest, Detail, SessionCreated, SessionInfo, SessionList, SessionState, Tier};

use super::opening;
use crate::args::{Close, Get, OneSession, Open, Sessions};
use crate::client::{Answer, Call, Client};
use crate::error::{Failure, detail};
use crate::output::{Table, age, count, harmless, print, print_json, size, span};

/// Longest opening, in seconds: it may include building the runtime's image.
const OPEN_WITHIN: u64 = 1800;
/// Pause before asking again for a session that another client is opening.
const AGAIN: Duration = Duration::from_millis(200);

/// Open a session or attach to one.
pub async fn open(client: &mut Client, open: Open, json: bool) -> Result<(), Failure> {
    let request = open.request().map_err(Failure::Usage)?;
    let runtime = request.runtime.clone();
    let begun = Instant::now();
    let watcher = client.another();
    let answer = tokio::select! {
        answer = ask(client, &request) => answer?,
        never = opening::notice(watcher, runtime, json) => match never {},
    };
    if json {
        return answer.print_json();
    }
    let created: SessionCreated = answer.parse()?;
    let SessionInfo { session_id, runtime, .. } = created.session;
    if std::io::stderr().is_terminal() {
        eprintln!("open on runtime {} in {}", harmless(&runtime), span(begun.elapsed().as_secs_f64()));
    }
    print(format!("{session_id}\n"))
}

/// Ask until nobody else is opening that session.
pub async fn ask(client: &mut Client, request: &CreateSessionRequest) -> Result<Answer, Failure> {
    let until = Instant::now() + Duration::from_secs(OPEN_WITHIN);
    let what = if request.attach { "attach to the session" } else { "open a session" };
    loop {
        let call = Call::post(what, "/sessions").within(Some(OPEN_WITHIN));
        let answer = client.ask_json(call, request).await?;
        let may_wait = (request.reuse || request.attach) && is_opening(&answer);
        if !may_wait || Instant::now() > until {
            return answer.ok();
        }
        tokio::time::sleep(AGAIN).await;
    }
}

/// Whether another request is opening or closing that name: every other conflict stays one.
fn is_opening(answer: &Answer) -> bool {
    answer.status == StatusCode::CONFLICT
        && matches!(detail(&answer.body), Detail::Message(text) if text.contains("opening") || text.contains("opened") || text.contains("closing"))
}

/// What `close --json` prints: the API answers 204.
#[derive(Debug, Serialize)]
struct Closed<'a> {
    session_id: &'a str,
    purged: bool,
}

/// Close a session.
pub async fn close(client: &mut Client, close: &Close, json: bool) -> Result<(), Failure> {
    let (id, purged) = (close.session.as_str(), close.purge);
    let what = format!("close session {id}");
    client.ask(Call::delete(&what, format!("/sessions/{id}?purge={purged}"))).await?.ok()?;
    if json {
        return print_json(&Closed { session_id: id, purged });
    }
    let files = if purged { "its files are deleted" } else { "its files stay" };
    print(format!("closed {id}; {files}\n"))
}

/// End a session's sandbox and keep the session.
pub async fn hibernate(client: &mut Client, asked: &OneSession, json: bool) -> Result<(), Failure> {
    turn(client, asked, "hibernate", json).await
}

/// Have a session's sandbox there.
pub async fn wake(client: &mut Client, asked: &OneSession, json: bool) -> Result<(), Failure> {
    turn(client, asked, "wake", json).await
}

async fn turn(client: &mut Client, asked: &OneSession, to: &str, json: bool) -> Result<(), Failure> {
    let id = &asked.session;
    let what = format!("{to} session {id}");
    let answer = client.ask(Call::post(&what, format!("/sessions/{id}/{to}"))).await?;
    if json { answer.print_json() } else { print(rows(&[answer.parse()?], false)) }
}

/// List the open sessions.
pub async fn list(client: &mut Client, sessions: &Sessions, json: bool) -> Result<(), Failure> {
    let answer = client.ask(Call::get("list the sessions", format!("/sessions?usage={}", sessions.usage))).await?;
    if json { answer.print_json() } else { print(table(&answer.parse()?, sessions.usage)) }
}

/// Show one session.
pub async fn get(client: &mut Client, get: &Get, json: bool) -> Result<(), Failure> {
    let what = format!("look at session {}", get.session);
    let answer = client.ask(Call::get(&what, format!("/sessions/{}?usage={}", get.session, get.usage))).await?;
    if json { answer.print_json() } else { print(rows(&[answer.parse()?], get.usage)) }
}

/// The sessions under headings, and how many there may be.
pub fn table(list: &SessionList, usage: bool) -> String {
    let limits = [(list.limit, "awake"), (list.open_limit, "open"), (list.tenant_limit, "of one tenant")];
    let limits: Vec<String> = limits.iter().filter_map(|(n, of)| n.map(|n| format!("at most {n} {of}"))).collect();
    let mut text = if list.sessions.is_empty() { String::new() } else { rows(&list.sessions, usage) };
    text.push_str(&count(list.sessions.len() as u64, "open session"));
    for limit in limits {
        text.push_str(", ");
        text.push_str(&limit);
    }
    text.push('\n');
    text
}

fn rows(sessions: &[SessionInfo], usage: bool) -> String {
    let mut headings = vec!["SESSION", "RUNTIME", "TENANT", "STATE", ">IDLE", ">AGE"];
    if usage {
        headings.extend([">MEMORY", ">LIMIT", ">CPU", ">PROCESSES"]);
    }
    let mut table = Table::new(&headings);
    for session in sessions {
        table.row(row(session, usage));
    }
    table.render()
}

fn row(session: &SessionInfo, usage: bool) -> Vec<String> {
    let none = || "-".to_owned();
    let state = match (session.tier, session.state, session.alive) {
        (_, SessionState::Running, false) => "ended",
        (Some(Tier::Frozen), ..) => "frozen",
        (Some(Tier::Stopped), ..) => "asleep",
        (Some(Tier::Files), ..) => "files only",
        (Some(Tier::Running) | None, SessionState::Running, true) => "running",
        (Some(Tier::Running) | None, SessionState::Hibernated, _) => "asleep",
    };
    let mut cells = vec![
        session.session_id.to_string(),
        session.runtime.clone(),
        session.tenant.as_ref().map_or_else(none, ToString::to_string),
        state.to_owned(),
        span(session.idle_seconds),
        age(session.created_at),
    ];
    if usage {
        let used = session.usage.clone().unwrap_or_default();
        cells.extend([
            used.memory_bytes.map_or_else(none, size),
            used.memory_limit_bytes.map_or_else(none, size),
            used.cpu_percent.map_or_else(none, |percent| format!("{percent:.1} %")),
            used.pids.map_or_else(none, |pids| pids.to_string()),
        ]);
    }
    cells
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;
    use crate::testing::{Server, reply};

    const CREATED: &str = r#"{"session": {"session_id": "a", "runtime": "r", "tenant": null, "alive": true, "state": "running",
        "created_at": 1.0, "last_activity": 1.0, "idle_seconds": 0.0, "usage": null}, "token": "t"}"#;

    #[tokio::test]
    async fn a_session_that_is_being_opened_is_asked_for_again() {
        let asked = AtomicU32::new(0);
        let server = Server::tcp(move |_| match asked.fetch_add(1, Ordering::Relaxed) {
            0 => reply(409, r#"{"detail": "Session is opening: a"}"#),
            _ => reply(201, CREATED),
        })
        .await;
        let request = CreateSessionRequest { reuse: true, ..CreateSessionRequest::default() };
        let created: SessionCreated = ask(&mut server.client(), &request).await.unwrap().parse().unwrap();
        assert_eq!(created.token, "t");
        assert_eq!(server.seen().len(), 2);
    }

    #[tokio::test]
    async fn another_conflict_is_final() {
        let server = Server::tcp(|_| reply(409, r#"{"detail": "Session a is open on runtime x, not y"}"#)).await;
        let request = CreateSessionRequest { reuse: true, ..CreateSessionRequest::default() };
        assert_eq!(ask(&mut server.client(), &request).await.unwrap_err().status(), 65);
        assert_eq!(server.seen().len(), 1);
    }

    #[test]
    fn the_table_says_what_a_person_asks() {
        let created: SessionCreated = serde_json::from_str(CREATED).unwrap();
        let list =
            SessionList { sessions: vec![created.session], limit: Some(20), open_limit: None, tenant_limit: None };
        let text = table(&list, true);
        assert!(text.starts_with("SESSION  RUNTIME  TENANT  STATE    "), "{text}");
        assert!(text.ends_with("1 open session, at most 20 awake\n"), "{text}");
    }
}
