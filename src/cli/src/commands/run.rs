//! `run`: a command in a session, with its output and exit status.

use std::io::Write;

use uuid::Uuid;
use wire::api::{RunRequest, RunResponse};
use wire::id::RunId;

use crate::args::Run;
use crate::client::{Answer, Call, Client};
use crate::error::Failure;
use crate::output::{print, size, span};

/// Exit status of a command that was stopped at its deadline, as timeout(1) has it.
const TIMED_OUT: u8 = 124;
/// Exit status of a command that was stopped at its output limit.
const OUTPUT_LIMITED: u8 = 125;
/// Exit status of a command that was stopped otherwise: 128 and SIGTERM.
const STOPPED: u8 = 143;
/// Exit status of this program at Ctrl-C: 128 and SIGINT.
const INTERRUPTED: u8 = 130;

/// Run a command and wait for its end. Ctrl-C stops it in the sandbox.
pub async fn run(client: &mut Client, run: Run, json: bool) -> Result<u8, Failure> {
    let session = run.session;
    let what = format!("run {:?} in session {session}", run.argv[0]);
    let run_id = RunId::from_u128(Uuid::new_v4().as_u128());
    let env = run.env.into_iter().collect();
    let timeout = run.timeout;
    let request = RunRequest { argv: run.argv, env, timeout_seconds: timeout, run_id };
    let mut other = client.another();
    let call = Call::post(&what, format!("/sessions/{session}/run")).within(None);
    let answer = tokio::select! {
        answer = client.ask_json(call, &request) => answer?,
        Ok(()) = tokio::signal::ctrl_c() => {
            let call = Call::post("stop the command", format!("/sessions/{session}/runs/{run_id}/stop"));
            other.ask(call).await?.ok()?;
            return Ok(INTERRUPTED);
        }
    };
    finish(answer, timeout, json)
}

fn finish(answer: Answer, timeout: Option<f64>, json: bool) -> Result<u8, Failure> {
    let ran: RunResponse = answer.clone().parse()?;
    if json {
        answer.print_json()?;
        return Ok(status(&ran));
    }
    print(&ran.stdout)?;
    let _ = std::io::stderr().write_all(ran.stderr.as_bytes());
    if let Some(reason) = stopped(&ran, timeout) {
        eprintln!("sandboxctl: {reason}");
    }
    Ok(status(&ran))
}

fn status(ran: &RunResponse) -> u8 {
    match ran.exit_code {
        // A wait status has eight bits.
        Some(code) => u8::try_from(code & 0xff).unwrap_or(u8::MAX),
        None if ran.timed_out => TIMED_OUT,
        None if ran.output_limited => OUTPUT_LIMITED,
        None => STOPPED,
    }
}

fn stopped(ran: &RunResponse, timeout: Option<f64>) -> Option<String> {
    if ran.timed_out {
        let deadline = timeout.map_or_else(|| "the service's".to_owned(), |s| format!("{} or the service's", span(s)));
        return Some(format!("the command passed its deadline ({deadline}) and was stopped with all that it started"));
    }
    if ran.output_limited {
        let limit = ran.output_limit.map_or_else(|| "the limit".to_owned(), size);
        return Some(format!(
            "the command wrote more than {limit} and was stopped; above is the beginning of its output"
        ));
    }
    ran.exit_code.is_none().then(|| "the command was stopped".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ran(exit_code: Option<i32>, timed_out: bool, output_limited: bool) -> RunResponse {
        let output_limit = output_limited.then_some(10 << 20);
        RunResponse {
            stdout: String::new(),
            stderr: String::new(),
            exit_code,
            timed_out,
            output_limited,
            output_limit,
            limit: None,
        }
    }

    #[test]
    fn the_exit_status_is_the_commands() {
        for (ran, exit) in [
            (ran(Some(0), false, false), 0),
            (ran(Some(7), false, false), 7),
            (ran(Some(137), false, false), 137),
            (ran(Some(-1), false, false), 255),
            (ran(None, true, false), 124),
            (ran(None, false, true), 125),
            (ran(None, false, false), 143),
        ] {
            assert_eq!(status(&ran), exit, "{ran:?}");
        }
    }

    #[test]
    fn a_stopped_command_is_said_to_be() {
        assert!(stopped(&ran(Some(1), false, false), None).is_none());
        assert!(stopped(&ran(None, true, false), Some(1.5)).unwrap().contains("1.5 s"));
        assert!(stopped(&ran(None, false, true), None).unwrap().contains("10.0 MiB"));
    }
}
