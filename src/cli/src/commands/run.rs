//! `run` and `stop`: a command in a session, with its output as it comes and its exit status.

use uuid::Uuid;
use wire::api::{RunExit, RunRequest, RunResponse};
use wire::id::RunId;

use crate::args::{Run, Stop};
use crate::client::{Call, Client};
use crate::error::Failure;
use crate::execute::{self, End, Signals};
use crate::output::print;

/// Run a command and wait for its end. A signal to this program stops it in the sandbox.
pub async fn run(client: &mut Client, run: Run, json: bool) -> Result<u8, Failure> {
    let Run { session, env, timeout, run_id, argv } = run;
    let run_id = run_id.unwrap_or_else(|| RunId::from_u128(Uuid::new_v4().as_u128()));
    let request = RunRequest { argv, env: env.into_iter().collect(), timeout_seconds: timeout, run_id };
    let mut signals = Signals::catch()?;
    if json {
        return whole(client, &session, &request, &mut signals).await;
    }
    match execute::execute(client, &session, &request, &mut signals).await? {
        End::Signalled(status) => Ok(status),
        End::Ended(exit) => {
            if let Some(reason) = execute::stopped(&exit, timeout) {
                eprintln!("sandboxctl: {reason}");
            }
            Ok(execute::status(&exit))
        }
    }
}

/// The answer as one document, at the end.
async fn whole(
    client: &mut Client,
    session: &wire::id::SessionId,
    request: &RunRequest,
    signals: &mut Signals,
) -> Result<u8, Failure> {
    let what = format!("run {:?} in session {session}", request.argv[0]);
    let other = client.another();
    let call = Call::post(&what, format!("/sessions/{session}/run")).within(None);
    let answer = tokio::select! {
        answer = client.ask_json(call, request) => answer?,
        status = signals.next() => {
            execute::stop(other, session.clone(), request.run_id).await?;
            return Ok(status);
        }
    };
    let ran: RunResponse = answer.clone().parse()?;
    answer.print_json()?;
    let RunResponse { exit_code, timed_out, output_limited, output_limit, limit, usage, .. } = ran;
    Ok(execute::status(&RunExit { exit_code, timed_out, output_limited, output_limit, limit, usage }))
}

/// Stop a run. One that is over is none to stop, and no failure.
pub async fn stop(client: &mut Client, stop: Stop, json: bool) -> Result<(), Failure> {
    execute::stop(client.another(), stop.session, stop.run).await?;
    if json { print("null\n") } else { Ok(()) }
}
