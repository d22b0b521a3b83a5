//! A command in a session: its output as it comes, and its end. A signal to this program stops it in the sandbox.

use std::io::{self, Write};

use http_body_util::BodyExt;
use hyper::Response;
use hyper::StatusCode;
use hyper::body::Incoming;
use hyper::header::CONTENT_TYPE;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::task::JoinHandle;
use wire::api::{RunExit, RunRequest};
use wire::id::{RunId, SessionId};

use crate::client::{Call, Client, request_of};
use crate::error::Failure;
use crate::output::{size, span};
use crate::stream::{Event, Events};

/// Media type of a stream of events.
const EVENT_STREAM: &str = "text/event-stream";
/// Exit status of a command that was stopped at its deadline, as timeout(1) has it.
const TIMED_OUT: u8 = 124;
/// Exit status of a command that was stopped at its output limit.
const OUTPUT_LIMITED: u8 = 125;
/// Exit status of a command that was stopped otherwise: 128 and SIGTERM.
const STOPPED: u8 = 143;

/// The signals that end a command early.
#[derive(Debug)]
pub struct Signals {
    interrupt: Signal,
    terminate: Signal,
    hangup: Signal,
}

impl Signals {
    /// From now on these do not end this program by themselves.
    ///
    /// # Errors
    /// [`Failure::Local`].
    pub fn catch() -> Result<Self, Failure> {
        let listen = |kind| signal(kind).map_err(|source| Failure::local("listen for", "signals", source));
        Ok(Self {
            interrupt: listen(SignalKind::interrupt())?,
            terminate: listen(SignalKind::terminate())?,
            hangup: listen(SignalKind::hangup())?,
        })
    }

    /// Wait for the next; the exit status that goes with it.
    pub async fn next(&mut self) -> u8 {
        tokio::select! {
            _ = self.interrupt.recv() => 130,
            _ = self.terminate.recv() => 143,
            _ = self.hangup.recv() => 129,
        }
    }
}

/// How a command ended.
#[derive(Debug)]
pub enum End {
    /// As the service says.
    Ended(RunExit),
    /// A signal to this program stopped it; the exit status that goes with the signal.
    Signalled(u8),
}

/// Run a command, write its output to ours, and wait for its end.
///
/// # Errors
/// [`Failure`]; [`Failure::Output`] when whoever reads our output went away, which stops the command.
pub async fn execute(
    client: &mut Client,
    session: &SessionId,
    request: &RunRequest,
    signals: &mut Signals,
) -> Result<End, Failure> {
    let what = format!("run {:?} in session {session}", request.argv[0]);
    let stopper = client.another();
    let mut work = std::pin::pin!(follow(client, session, request, &what));
    let mut stopped: Option<(u8, JoinHandle<Result<(), Failure>>)> = None;
    loop {
        tokio::select! {
            done = &mut work => {
                let Some((status, stopping)) = stopped else { return done.map(End::Ended) };
                stopping.await.map_err(|e| Failure::local("wait for", "the stop", e.into()))??;
                return Ok(End::Signalled(status));
            }
            status = signals.next() => match stopped {
                None => {
                    let stop = stop(stopper.another(), session.clone(), request.run_id);
                    stopped = Some((status, tokio::spawn(stop)));
                }
                // Asked twice: whoever asks does not want to wait. The end of our connection stops the run as well.
                Some((first, _)) => return Ok(End::Signalled(first)),
            },
        }
    }
}

/// Stop a run with all that it started.
///
/// # Errors
/// [`Failure`].
pub async fn stop(mut client: Client, session: SessionId, run: RunId) -> Result<(), Failure> {
    let what = format!("stop a command of session {session}");
    client.ask(Call::post(&what, format!("/sessions/{session}/runs/{run}/stop"))).await?.ok().map(drop)
}

async fn follow(
    client: &mut Client,
    session: &SessionId,
    request: &RunRequest,
    what: &str,
) -> Result<RunExit, Failure> {
    let call = Call::post(what, format!("/sessions/{session}/run")).within(None).accept(EVENT_STREAM);
    let mut response = client.open_json(&call, request).await?;
    if response.status() != StatusCode::OK {
        client.collect(&call, response).await?.ok()?;
        return Err(foreign(client, what, "it is no answer to a run".to_owned()));
    }
    if !is_stream(&response) {
        return Err(foreign(client, what, "it is no stream of events".to_owned()));
    }
    let (mut events, request) = (Events::default(), request_of(&response));
    while let Some(frame) = response.frame().await {
        let frame = frame.map_err(|source| client.broken(what, source))?;
        let Some(bytes) = frame.data_ref() else { continue };
        for event in events.feed(bytes).map_err(|reason| foreign(client, what, reason))? {
            match event {
                Event::Out(bytes) => write(bytes, false).await?,
                Event::Err(bytes) => write(bytes, true).await?,
                Event::Exit(exit) => return Ok(exit),
                Event::Failed(detail) => {
                    let (what, address, request) = (what.to_owned(), client.address(), request.clone());
                    let status = StatusCode::BAD_GATEWAY.as_u16();
                    return Err(Failure::Refused { what, address, status, detail, request });
                }
            }
        }
    }
    Err(client.broken(what, io::Error::from(io::ErrorKind::UnexpectedEof)))
}

fn is_stream(response: &Response<Incoming>) -> bool {
    let kind = response.headers().get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    kind.is_some_and(|kind| kind.split(';').next().is_some_and(|kind| kind.trim() == EVENT_STREAM))
}

fn foreign(client: &Client, what: &str, reason: String) -> Failure {
    Failure::Foreign { what: what.to_owned(), address: client.address(), reason }
}

/// Write a piece of a command's output, on a thread of its own: whoever reads it may take its time, and signals are heard.
async fn write(bytes: Vec<u8>, to_error: bool) -> Result<(), Failure> {
    let written = tokio::task::spawn_blocking(move || {
        if to_error {
            io::stderr().lock().write_all(&bytes)
        } else {
            let mut out = io::stdout().lock();
            out.write_all(&bytes).and_then(|()| out.flush())
        }
    });
    written.await.map_err(|e| Failure::Output(e.into()))?.map_err(Failure::Output)
}

/// The exit status of a command, as a shell's.
#[must_use]
pub fn status(ran: &RunExit) -> u8 {
    match ran.exit_code {
        // A wait status has eight bits.
        Some(code) => u8::try_from(code & 0xff).unwrap_or(u8::MAX),
        None if ran.timed_out => TIMED_OUT,
        None if ran.output_limited => OUTPUT_LIMITED,
        None => STOPPED,
    }
}

/// Why the service stopped it, if it did.
#[must_use]
pub fn stopped(ran: &RunExit, timeout: Option<f64>) -> Option<String> {
    if ran.timed_out {
        let deadline = timeout.map_or_else(|| "the service's".to_owned(), |s| format!("{} or the service's", span(s)));
        return Some(format!("the command passed its deadline ({deadline}) and was stopped with all that it started"));
    }
    if ran.output_limited {
        let limit = ran.output_limit.map_or_else(|| "the limit".to_owned(), size);
        return Some(format!("the command wrote more than {limit} and was stopped"));
    }
    ran.exit_code.is_none().then(|| "the command was stopped".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Server, reply};

    fn ran(exit_code: Option<i32>, timed_out: bool, output_limited: bool) -> RunExit {
        let output_limit = output_limited.then_some(10 << 20);
        RunExit { exit_code, timed_out, output_limited, output_limit, limit: None, usage: None }
    }

    fn request() -> RunRequest {
        RunRequest {
            argv: vec!["true".into()],
            env: Default::default(),
            timeout_seconds: None,
            run_id: RunId::from_u128(7),
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

    #[tokio::test]
    async fn a_stream_ends_with_its_exit_and_anything_else_is_a_failure() {
        let exit = "event: exit\ndata: {\"exit_code\": 5, \"timed_out\": false, \"output_limited\": false, \"output_limit\": null}\n\n";
        let stream = |body: &str| reply(200, body).replace("\r\n\r\n", "\r\ncontent-type: text/event-stream\r\n\r\n");
        for (answer, expected) in [
            (stream(exit), Ok(Some(5))),
            (stream(""), Err(69)),
            (stream("event: error\ndata: {\"detail\": \"gone\"}\n\n"), Err(69)),
            (stream("event: odd\ndata: x\n\n"), Err(76)),
            (reply(200, "{}"), Err(76)),
            (reply(204, ""), Err(76)),
            (reply(404, r#"{"detail": "no"}"#), Err(66)),
        ] {
            let sent = answer.clone();
            let server = Server::tcp(move |_| sent.clone()).await;
            let session = SessionId::parse("s").unwrap();
            let ended = follow(&mut server.client(), &session, &request(), "run").await;
            let ended = ended.map(|exit| exit.exit_code).map_err(|failure| failure.status());
            assert_eq!(ended, expected, "{answer}");
            assert!(server.seen()[0].head.contains("accept: text/event-stream"), "{}", server.seen()[0].head);
        }
    }
}
