//! `ps` and `top`: the open sessions with what they use.

use std::time::Duration;

use console::Term;
use wire::api::SessionList;

use super::session;
use crate::args::Top;
use crate::client::{Answer, Call, Client};
use crate::error::Failure;
use crate::output::{print, print_json, size, when};

/// To the upper left corner.
const HOME: &str = "\x1b[H";
/// Deletes what is left of the line, and from here to the end of the screen.
const END_OF_LINE: &str = "\x1b[K";
const END_OF_SCREEN: &str = "\x1b[J";
const CLEAR: &str = "\x1b[2J";
/// How long CPU time is measured for one look, which has none before it.
const MEASURE: Duration = Duration::from_secs(1);

/// List the open sessions with what they use.
pub async fn ps(client: &mut Client, json: bool) -> Result<(), Failure> {
    let answer = look(client).await?;
    if json { answer.print_json() } else { print(session::table(&answer.parse()?, true)) }
}

async fn look(client: &mut Client) -> Result<Answer, Failure> {
    client.ask(Call::get("list the sessions", "/sessions?usage=true")).await
}

/// Show them again and again, those that use most of the CPU first.
pub async fn top(client: &mut Client, top: Top, json: bool) -> Result<(), Failure> {
    // CPU time is counted from the look before.
    look(client).await?.ok()?;
    let terminal = Term::stdout();
    let screen = terminal.is_term() && !top.once && !json;
    if screen {
        print(CLEAR)?;
    }
    let pause = if top.once { MEASURE } else { Duration::from_secs_f64(top.interval) };
    loop {
        tokio::time::sleep(if screen || top.once { pause.min(MEASURE) } else { pause }).await;
        let looked = match look(client).await {
            Ok(answer) => answer.parse::<SessionList>(),
            Err(failure) => Err(failure),
        };
        match looked {
            Ok(list) if json => print_json(&list)?,
            Ok(list) if screen => print(framed(&lines(list), terminal.size()))?,
            Ok(list) => print(lines(list))?,
            // A service that restarts is worth waiting for, where somebody watches.
            Err(failure) if screen => print(framed(&format!("{}\n", failure.text()), terminal.size()))?,
            Err(failure) => return Err(failure),
        }
        if top.once {
            return Ok(());
        }
        if screen {
            tokio::time::sleep(pause.saturating_sub(MEASURE)).await;
        }
    }
}

/// The sessions, most CPU first, then most memory, under a line of sums.
fn lines(mut list: SessionList) -> String {
    let cpu =
        |session: &wire::api::SessionInfo| session.usage.as_ref().and_then(|usage| usage.cpu_percent).unwrap_or(0.0);
    let memory =
        |session: &wire::api::SessionInfo| session.usage.as_ref().and_then(|usage| usage.memory_bytes).unwrap_or(0);
    list.sessions.sort_by(|a, b| cpu(b).total_cmp(&cpu(a)).then(memory(b).cmp(&memory(a))));
    let total = list.sessions.iter().map(memory).fold(0, u64::saturating_add);
    let busy: f64 = list.sessions.iter().map(cpu).sum();
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0.0, |d| d.as_secs_f64());
    format!("{} UTC   memory {}   CPU {busy:.1} %\n\n{}", when(now), size(total), session::table(&list, true))
}

/// As much of it as fits, over what is there.
fn framed(text: &str, (rows, columns): (u16, u16)) -> String {
    let mut screen = HOME.to_owned();
    let lines: Vec<&str> = text.lines().take(usize::from(rows.max(2)) - 1).collect();
    for line in lines {
        screen.extend(line.chars().take(columns.into()));
        screen.push_str(END_OF_LINE);
        screen.push('\n');
    }
    screen + END_OF_SCREEN
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_screen_holds_what_fits() {
        let text = "one long line\ntwo\nthree\nfour\n";
        assert_eq!(framed(text, (4, 8)), "\x1b[Hone long\x1b[K\ntwo\x1b[K\nthree\x1b[K\n\x1b[J");
        assert!(framed("", (0, 0)).starts_with(HOME));
    }

    #[test]
    fn the_busiest_is_first_and_sums_are_shown() {
        let session = |id: &str, cpu: Option<f64>| {
            serde_json::json!({"session_id": id, "runtime": "r", "tenant": null, "alive": true, "state": "running", "created_at": 1.0,
                "last_activity": 1.0, "idle_seconds": 0.0, "usage": {"memory_bytes": 1 << 20, "memory_limit_bytes": null,
                "cpu_percent": cpu, "pids": 1}})
        };
        let list = serde_json::json!({"sessions": [session("idle", None), session("busy", Some(150.0))],
            "limit": null, "open_limit": null, "tenant_limit": null});
        let text = lines(serde_json::from_value(list).unwrap());
        assert!(text.lines().next().unwrap().ends_with("memory 2.0 MiB   CPU 150.0 %"), "{text}");
        assert!(text.find("busy").unwrap() < text.find("idle").unwrap(), "{text}");
    }
}
