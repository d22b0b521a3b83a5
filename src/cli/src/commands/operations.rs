//! `operations` and `events`: what was done, as the service answers it.

use wire::api::{Operation, OperationsPage, SessionEvents};

use crate::args::{Events, Operations};
use crate::client::{Call, Client, encode};
use crate::error::Failure;
use crate::output::{Table, count, print, span, when};

/// Search the operations log.
pub async fn operations(client: &mut Client, asked: Operations, json: bool) -> Result<(), Failure> {
    let answer = client.ask(Call::get("search the operations", format!("/operations?{}", query(&asked)))).await?;
    if json { answer.print_json() } else { print(page(&answer.parse()?)) }
}

fn query(asked: &Operations) -> String {
    let mut query = format!("skip={}&limit={}", asked.skip, asked.limit);
    let mut add = |name: &str, value: Option<&str>| {
        if let Some(value) = value {
            query.push_str(&format!("&{name}={}", encode(value)));
        }
    };
    add("session", asked.session.as_ref().map(|session| session.as_str()));
    add("tenant", asked.tenant.as_ref().map(|tenant| tenant.as_str()));
    add("op", asked.op.as_deref());
    add("request", asked.request.as_ref().map(|request| request.as_str()));
    add("q", asked.query.as_deref());
    add("failed", if asked.failed { Some("true") } else { asked.succeeded.then_some("false") });
    query
}

fn page(page: &OperationsPage) -> String {
    let mut table = Table::new(&[
        "AT (UTC)",
        "SESSION",
        "TENANT",
        "AGENT",
        "RUN",
        "REQUEST",
        "OPERATION",
        "OUTCOME",
        ">TOOK",
        "TARGET",
    ]);
    let none = || "-".to_owned();
    for done in &page.operations {
        table.row([
            when(done.at),
            done.session.to_string(),
            done.tenant.as_ref().map_or_else(none, ToString::to_string),
            done.agent.clone().unwrap_or_else(none),
            done.run.clone().unwrap_or_else(none),
            done.request.clone().unwrap_or_else(none),
            done.op.clone(),
            outcome(done.ok, &done.detail),
            span(done.duration_ms / 1000.0),
            done.target.clone(),
        ]);
    }
    let rows = if page.operations.is_empty() { String::new() } else { table.render() };
    format!("{rows}{} of {}\n", page.operations.len(), count(page.total, "operation"))
}

/// `ok`, or that it failed, with the service's words.
#[must_use]
pub fn outcome(ok: bool, detail: &str) -> String {
    match (ok, detail) {
        (true, "") => "ok".to_owned(),
        (true, detail) => format!("ok: {detail}"),
        (false, detail) => format!("FAILED: {detail}"),
    }
}

/// One operation as a line of a log.
#[must_use]
pub fn line(done: &Operation, of_all: bool) -> String {
    let session = if of_all { format!("  {}", done.session) } else { String::new() };
    let (at, took) = (when(done.at), span(done.duration_ms / 1000.0));
    format!("{at}{session}  {:<8}  {}  ({took}, {})", done.op, done.target, outcome(done.ok, &done.detail))
}

/// List the events of a session.
pub async fn events(client: &mut Client, asked: Events, json: bool) -> Result<(), Failure> {
    let Events { session, after } = asked;
    let what = format!("read the events of session {session}");
    let answer = client.ask(Call::get(&what, format!("/sessions/{session}/events?after={after}"))).await?;
    if json { answer.print_json() } else { print(events_table(&answer.parse()?)) }
}

fn events_table(list: &SessionEvents) -> String {
    if list.events.is_empty() {
        return "no event\n".to_owned();
    }
    let mut table = Table::new(&[">NUMBER", "AT (UTC)", "OPERATION", "OUTCOME", ">TOOK", "TARGET"]);
    for event in &list.events {
        let (at, outcome) = (when(event.at), outcome(event.ok, &event.detail));
        let took = span(event.duration_ms / 1000.0);
        table.row([event.seq.to_string(), at, event.op.clone(), outcome, took, event.target.clone()]);
    }
    table.render()
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::args::{Args, Command};

    fn asked(line: &str) -> String {
        match Args::try_parse_from(line.split_whitespace()).unwrap().command {
            Command::Operations(asked) => query(&asked),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn every_filter_is_sent() {
        assert_eq!(asked("sandboxctl operations"), "skip=0&limit=50");
        assert_eq!(
            asked(
                "sandboxctl operations --session s --tenant t --op run --failed --request r-1 -q a&b --skip 3 --limit 500"
            ),
            "skip=3&limit=500&session=s&tenant=t&op=run&request=r-1&q=a%26b&failed=true"
        );
        assert_eq!(asked("sandboxctl operations --succeeded"), "skip=0&limit=50&failed=false");
    }

    #[test]
    fn an_outcome_is_a_word_and_its_reason() {
        assert_eq!(outcome(true, ""), "ok");
        assert_eq!(outcome(true, "exit 0"), "ok: exit 0");
        assert_eq!(outcome(false, "timed out"), "FAILED: timed out");
    }
}
