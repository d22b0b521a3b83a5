//! `logs`: what was done, oldest first, and with `-f` what is done from now on.
//!
//! Two sources. The operations log, whose ids rise for ever: it takes the service token. The events of one session, whose
//! own token is enough: what that token may not ask is asked there. Both are asked again and again; what was shown is
//! known by its number, so nothing is shown twice, whatever restarts meanwhile.

use std::time::Duration;

use hyper::StatusCode;
use wire::api::{Operation, OperationsPage, SessionEvents};
use wire::id::SessionId;

use super::operations::line;
use crate::args::Logs;
use crate::client::{Call, Client};
use crate::error::Failure;
use crate::output::{harmless, print, print_json};

/// Operations that are asked for at once.
const PAGE: u64 = 200;
/// Most pages between two looks.
const PAGES: u64 = 50;
/// Seconds until an answer is given up while following: the service may be restarting.
const FOLLOW_WITHIN: u64 = 20;

/// Who is asked.
#[derive(Debug)]
enum Source {
    /// The operations log: the highest id that was shown.
    Log { last: u64 },
    /// The events of the session: the highest number that was shown.
    Events { session: SessionId, last: u64 },
}

/// Show what was done.
pub async fn logs(client: &mut Client, logs: Logs, json: bool) -> Result<(), Failure> {
    let mut source = Source::Log { last: 0 };
    let first = match first(client, &logs, &mut source).await {
        Err(Failure::Refused { status: 401 | 403, .. }) if logs.session.is_some() => {
            let Some(session) = logs.session.clone() else { return Ok(()) };
            source = Source::Events { session, last: 0 };
            first(client, &logs, &mut source).await
        }
        first => first,
    };
    let first = first?;
    if let (Source::Log { last: 0 }, Some(session), false) = (&source, &logs.session, logs.failed) {
        // Nothing was ever done in it: so that a name that is mistyped is told apart from one of which there is nothing yet.
        let what = format!("look at session {session}");
        client.ask(Call::get(&what, format!("/sessions/{session}"))).await?.ok()?;
    }
    show(&first, &logs, json)?;
    if logs.follow { follow(client, &logs, source, json).await } else { Ok(()) }
}

async fn first(client: &mut Client, logs: &Logs, source: &mut Source) -> Result<Vec<Operation>, Failure> {
    let mut found = match source {
        Source::Log { last } => {
            let mut found = page(client, logs, 0, logs.lines.max(1)).await?.operations;
            *last = found.first().map_or(0, |newest| newest.id);
            found.reverse();
            found
        }
        Source::Events { session, last } => events(client, session, last).await?.0,
    };
    found.retain(|done| !logs.failed || !done.ok);
    let surplus = found.len().saturating_sub(usize::try_from(logs.lines).unwrap_or(usize::MAX));
    Ok(found.split_off(surplus))
}

async fn follow(client: &mut Client, logs: &Logs, mut source: Source, json: bool) -> Result<(), Failure> {
    let mut away = false;
    loop {
        tokio::time::sleep(Duration::from_secs_f64(logs.interval)).await;
        let looked = match &mut source {
            Source::Log { last } => since(client, logs, last).await,
            Source::Events { session, last } => events(client, session, last).await,
        };
        let (mut found, missed) = match looked {
            Ok(looked) => looked,
            Err(failure) if may_come_back(&failure) => {
                if !std::mem::replace(&mut away, true) {
                    eprintln!("sandboxctl: {}; waiting for it", failure.text());
                }
                continue;
            }
            Err(Failure::Refused { status: 404, .. }) => {
                eprintln!("sandboxctl: the session is closed");
                return Ok(());
            }
            Err(failure) => return Err(failure),
        };
        if std::mem::replace(&mut away, false) {
            eprintln!("sandboxctl: the service is there again");
        }
        if missed > 0 {
            eprintln!("sandboxctl: {missed} older ones are not shown: too many between two looks");
        }
        found.retain(|done| !logs.failed || !done.ok);
        show(&found, logs, json)?;
    }
}

/// Whether a failure may be that of a restart.
fn may_come_back(failure: &Failure) -> bool {
    match failure {
        Failure::Connect { .. } | Failure::Broken { .. } | Failure::Late { .. } => true,
        Failure::Refused { status, .. } => matches!(status, 429 | 500..),
        Failure::Usage(_)
        | Failure::Foreign { .. }
        | Failure::Local { .. }
        | Failure::Copy { .. }
        | Failure::Catalog(_)
        | Failure::Differs(_)
        | Failure::Output(_) => false,
    }
}

/// What the log has of a higher id than `last`, oldest first, and how many of those are left out.
async fn since(client: &mut Client, logs: &Logs, last: &mut u64) -> Result<(Vec<Operation>, u64), Failure> {
    let mut found: Vec<Operation> = Vec::new();
    let mut missed = 0;
    for number in 0..=PAGES {
        let page = page(client, logs, number * PAGE, PAGE).await?;
        // Another log than before: its numbers begin anew.
        if number == 0 && page.operations.first().is_some_and(|newest| newest.id < *last) {
            *last = 0;
        }
        let (full, oldest) = (page.operations.len() as u64 == PAGE, page.operations.last().map_or(0, |done| done.id));
        let known = found.last().map_or(u64::MAX, |done| done.id);
        // What came since the page before has moved this one.
        found.extend(page.operations.into_iter().filter(|done| done.id > *last && done.id < known));
        if !full || oldest <= *last {
            break;
        }
        if number == PAGES {
            missed = oldest - *last - 1;
        }
    }
    *last = found.first().map_or(*last, |newest| newest.id);
    found.reverse();
    Ok((found, missed))
}

async fn page(client: &mut Client, logs: &Logs, skip: u64, limit: u64) -> Result<OperationsPage, Failure> {
    let mut path = format!("/operations?skip={skip}&limit={limit}");
    if let Some(session) = &logs.session {
        path.push_str(&format!("&session={session}"));
    }
    if logs.failed {
        path.push_str("&failed=true");
    }
    let call = Call::get("read the operations", path).within(Some(FOLLOW_WITHIN));
    client.ask(call).await?.parse()
}

/// The session's events of a higher number than `last`, in order, and how many of those are left out.
async fn events(client: &mut Client, session: &SessionId, last: &mut u64) -> Result<(Vec<Operation>, u64), Failure> {
    let what = format!("read the events of session {session}");
    let call = Call::get(&what, format!("/sessions/{session}/events?after={last}")).within(Some(FOLLOW_WITHIN));
    let answer = client.ask(call).await?;
    // A closed session's token opens nothing any more.
    if *last > 0 && answer.status == StatusCode::UNAUTHORIZED {
        return Err(Failure::Refused {
            what: what.clone(),
            address: client.address(),
            status: StatusCode::NOT_FOUND.as_u16(),
            detail: wire::api::Detail::Message("No such session".to_owned()),
            request: None,
        });
    }
    let list: SessionEvents = answer.parse()?;
    let missed = match list.events.first() {
        Some(first) if *last > 0 => first.seq.saturating_sub(*last + 1),
        Some(_) | None => 0,
    };
    *last = list.latest_seq;
    let operation = |event: wire::api::SessionEvent| Operation {
        id: event.seq,
        at: event.at,
        session: session.clone(),
        tenant: None,
        agent: None,
        run: None,
        request: None,
        op: event.op,
        target: event.target,
        ok: event.ok,
        detail: event.detail,
        duration_ms: event.duration_ms,
    };
    Ok((list.events.into_iter().map(operation).collect(), missed))
}

fn show(found: &[Operation], logs: &Logs, json: bool) -> Result<(), Failure> {
    for done in found {
        if json {
            print_json(done)?;
        } else {
            print(format!("{}\n", harmless(&line(done, logs.session.is_none()))))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;
    use crate::testing::{Server, reply};

    fn logs(session: Option<&str>) -> Logs {
        let session = session.map(|id| SessionId::parse(id).unwrap());
        Logs { session, follow: true, lines: 50, interval: 0.5, failed: false }
    }

    fn operation(id: u64) -> serde_json::Value {
        serde_json::json!({"id": id, "at": 0.0, "session": "s", "tenant": null, "agent": null, "run": null, "op": "run",
            "target": "x", "ok": true, "detail": "", "duration_ms": 1.0})
    }

    /// A log of `ids`, newest first, to which each request adds one.
    async fn log(first: u64, grows: bool) -> Server {
        let newest = AtomicU64::new(first);
        Server::tcp(move |request| {
            let number = |name: &str| {
                let query = request.head.split(' ').nth(1).unwrap().split('?').nth(1).unwrap();
                query.split('&').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('=')?.parse::<u64>().ok())
            };
            let newest =
                if grows { newest.fetch_add(1, Ordering::Relaxed) + 1 } else { newest.load(Ordering::Relaxed) };
            let (skip, limit) = (number("skip").unwrap(), number("limit").unwrap());
            let rows: Vec<_> = (1..=newest).rev().skip(skip as usize).take(limit as usize).map(operation).collect();
            let page =
                serde_json::json!({"operations": rows, "total": newest, "skip": skip, "limit": limit, "ops": []});
            reply(200, &page.to_string())
        })
        .await
    }

    fn ids(found: &[Operation]) -> Vec<u64> {
        found.iter().map(|done| done.id).collect()
    }

    #[tokio::test]
    async fn nothing_is_shown_twice_while_the_log_moves_under_the_pages() {
        let server = log(PAGE * 2 + 10, true).await;
        let (mut client, mut last) = (server.client(), 5);
        let (found, missed) = since(&mut client, &logs(None), &mut last).await.unwrap();
        // What came after the first page was read is for the next look.
        assert_eq!(ids(&found), (6..=PAGE * 2 + 11).collect::<Vec<_>>());
        assert_eq!((last, missed), (PAGE * 2 + 11, 0));
        let (next, _) = since(&mut client, &logs(None), &mut last).await.unwrap();
        assert_eq!(next.first().unwrap().id, PAGE * 2 + 12);
    }

    #[tokio::test]
    async fn what_is_too_much_is_counted_and_another_log_begins_anew() {
        let server = log(PAGE * (PAGES + 1) + 100, false).await;
        let (found, missed) = since(&mut server.client(), &logs(None), &mut 20).await.unwrap();
        assert_eq!((found.len() as u64, missed), (PAGE * (PAGES + 1), 80));
        let mut last = 1_000_000;
        since(&mut server.client(), &logs(None), &mut last).await.unwrap();
        assert_eq!(last, PAGE * (PAGES + 1) + 100);
    }

    #[tokio::test]
    async fn the_last_lines_come_first_and_none_at_all_still_begins_at_the_end() {
        let server = log(9, false).await;
        for (lines, shown) in [(3, vec![7, 8, 9]), (0, vec![])] {
            let mut source = Source::Log { last: 0 };
            let asked = Logs { lines, ..logs(None) };
            assert_eq!(ids(&first(&mut server.client(), &asked, &mut source).await.unwrap()), shown);
            assert!(matches!(source, Source::Log { last: 9 }));
        }
    }

    #[tokio::test]
    async fn a_session_s_own_token_is_enough_for_its_events() {
        let server = Server::tcp(|request| match request.path() {
            "/operations" => reply(401, r#"{"detail": "no"}"#),
            _ => reply(
                200,
                r#"{"events": [{"seq": 4, "at": 0.0, "op": "run", "target": "x", "ok": true, "detail": "", "duration_ms": 1.0}], "latest_seq": 4}"#,
            ),
        })
        .await;
        let asked = Logs { follow: false, ..logs(Some("s")) };
        super::logs(&mut server.client(), asked, true).await.unwrap();
        assert_eq!(server.seen()[1].path(), "/sessions/s/events");
    }

    #[tokio::test]
    async fn events_that_are_no_longer_kept_are_counted() {
        let server = Server::tcp(|_| {
            reply(200, r#"{"events": [{"seq": 9, "at": 0.0, "op": "run", "target": "x", "ok": true, "detail": "", "duration_ms": 1.0}], "latest_seq": 9}"#)
        })
        .await;
        let mut last = 5;
        let (found, missed) = events(&mut server.client(), &SessionId::parse("s").unwrap(), &mut last).await.unwrap();
        assert_eq!((found.len(), missed, last), (1, 3, 9));
    }
}
