//! Running one command: HTTP's request in, streams and status out. No privilege, no disk, no driver.

use std::collections::BTreeMap;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep_until, timeout, timeout_at};
use wire::api::{MAX_RUN_OUTPUT, RunRequest, RunResponse, RunUsage, STOPPED_OUTPUT};
use wire::id::RunId;
use wire::init::{Command, Privilege, Step};

use super::error::SessionError;
use super::handle::{Live, Session};
use super::registry::Registry;
use super::running::drain;
use super::story;
use super::usage::Meter;
use crate::fail;
use crate::image::ca_env;
use crate::runtime::init::Running;
use crate::runtime::pipes::{Pipe, Read};
use crate::runtime::{Init, InitError, Outcome};

/// Between `SIGTERM` and `SIGKILL`.
pub(super) const TERM_GRACE: Duration = Duration::from_secs(2);
/// How long after `SIGKILL` the kernel may take to be done.
pub(super) const KILL_GRACE: Duration = Duration::from_secs(3);
/// How long a command that has ended is waited for when background processes hold its streams.
const DRAIN_GRACE: Duration = Duration::from_millis(50);
/// Most that is read after a command's end, in bytes: more than two pipes hold (a user's pipe has at most 1 MiB; pipe(7)).
const DRAIN_MAX: u64 = 4 << 20;
/// Longest deadline, seconds; longer ones are as good as this.
const DEADLINE_MAX: f64 = 1e9;

impl Registry {
    /// Run one command in a session. Whoever drops the future stops the command.
    ///
    /// # Errors
    /// [`SessionError`]; a command that fails, or cannot be executed, is an answer.
    pub async fn run(&self, session: &Arc<Session>, request: RunRequest, asked: Asked) -> Result<Ran, SessionError> {
        let told = story::Command::begin(session, request.run_id);
        let result = self.try_run(session, request, asked).await;
        told.end(&result);
        result
    }

    async fn try_run(
        &self,
        session: &Arc<Session>,
        request: RunRequest,
        Asked { at, note, sink }: Asked,
    ) -> Result<Ran, SessionError> {
        let deps = &self.deps;
        let full = || SessionError::CommandsFull(deps.settings.max_running_commands);
        let _permit = deps.commands.try_acquire().map_err(|_| full())?;
        let _activity = session.activity();
        let deadline = at + self.within(&request);
        // What wakes it goes on; the next command finds it awake.
        let Ok(live) = timeout_at(deadline, session.wake()).await else { return Ok(Ran::not_begun()) };
        let live = live?;
        let run = request.run_id;
        let io = |source| SessionError::Io { operation: "make the pipes", id: session.id.clone(), source };
        let (mut out, mut err) = (Stream::new().map_err(io)?, Stream::new().map_err(io)?);
        let command = self.command(&live, request);
        if sink.as_ref().is_some_and(Sink::is_closed) {
            return Err(SessionError::Abandoned(run));
        }
        let started = live.init.start((run, note), command, &mut out.pipe, &mut err.pipe).await;
        let running = started.map_err(|error| start_error(session, &live, error))?;
        fail::point("run.started");
        let guard = StopOnDrop { init: Some(live.init.clone()), run };
        let unrecorded = Unrecorded { init: live.init.clone(), run };
        if let Some(sink) = &sink {
            sink.send(Piece::Begun).await.map_err(|_| SessionError::Abandoned(run))?;
        }
        let collect = Collect { live: &live, run, running, out, err, sink, total: 0 };
        let answer = collect.until(deadline).await;
        let response = answer.map_err(|failed| match failed {
            Failed::SandboxEnded => live.end(&session.id),
            Failed::NobodyReads => SessionError::Abandoned(run),
        })?;
        guard.finished();
        fail::point("run.exited");
        Ok(Ran { response, unrecorded: Some(unrecorded) })
    }

    /// How long a command may take, from when it is asked for.
    #[must_use]
    pub fn within(&self, request: &RunRequest) -> Duration {
        #[allow(clippy::cast_precision_loss)] // at most a hundred years
        let longest = self.policy().execute_timeout as f64;
        Duration::from_secs_f64(request.timeout_seconds.unwrap_or(longest).min(longest).min(DEADLINE_MAX))
    }

    /// Stop a run, if it is running.
    pub async fn stop(&self, session: &Session, run: RunId) {
        if let Some(live) = session.live() {
            live.init.stop(run, TERM_GRACE).await;
        }
    }

    fn command(&self, live: &Live, request: RunRequest) -> Command {
        let image = &live.image;
        let mut env: BTreeMap<String, String> = image.env.iter().cloned().collect();
        if self.deps.settings.extra_ca_certs.is_some() {
            env.extend(ca_env().map(|(name, value)| (name.to_owned(), value.to_owned())));
        }
        env.entry("HOME".into()).or_insert_with(|| image.home.clone());
        env.extend(request.env);
        Command {
            argv: request.argv,
            env: env.into_iter().collect(),
            cwd: self.deps.settings.work_dir.clone(),
            uid: image.uid,
            gid: image.gid,
            privilege: Privilege::None,
        }
    }
}

fn start_error(session: &Session, live: &Live, error: InitError) -> SessionError {
    match error {
        InitError::Gone => live.end(&session.id),
        InitError::Duplicate(run) => SessionError::RunExists(run),
        InitError::TooLong(_) => SessionError::TooLong(error),
        InitError::Unready(_) | InitError::Io(_) => SessionError::Init(error),
    }
}

/// How a command is asked for.
#[derive(Debug)]
pub struct Asked {
    /// When: its deadline is counted from then on.
    pub at: Instant,
    /// Comes back after a restart of the service, unless [`Ran::unrecorded`] was dropped before.
    pub note: Vec<u8>,
    /// Where its output goes as it comes; absent: into the answer.
    pub sink: Option<Sink>,
}

/// A command that has ended.
#[derive(Debug)]
pub struct Ran {
    /// How.
    pub response: RunResponse,
    /// To be dropped once that is recorded; absent: it was not begun.
    pub unrecorded: Option<Unrecorded>,
}

impl Ran {
    /// Its deadline came before its sandbox was awake.
    fn not_begun() -> Self {
        Self { response: stopped(Stop::Deadline, Vec::new(), Vec::new()), unrecorded: None }
    }
}

/// An end that is not recorded yet: until this is dropped, it is told again after a restart.
#[derive(Debug)]
pub struct Unrecorded {
    init: Init,
    run: RunId,
}

impl Drop for Unrecorded {
    fn drop(&mut self) {
        self.init.forget(self.run);
    }
}

/// What is told of a command as it comes: that it has begun, then its output in pieces.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Piece {
    /// The first: it has begun.
    Begun,
    /// Of its standard output.
    Out(Vec<u8>),
    /// Of its standard error.
    Err(Vec<u8>),
}

/// Where pieces of output go. When nobody takes them any more, the command is stopped.
pub type Sink = tokio::sync::mpsc::Sender<Piece>;

/// Stops the run when the request that waits for it goes away.
struct StopOnDrop {
    init: Option<Init>,
    run: RunId,
}

impl StopOnDrop {
    fn finished(mut self) {
        self.init = None;
    }
}

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        if let Some(init) = self.init.take() {
            let run = self.run;
            tokio::spawn(async move { init.stop(run, TERM_GRACE).await });
        }
    }
}

/// There is no answer.
enum Failed {
    /// The sandbox ended under the command.
    SandboxEnded,
    /// Whoever took its output has gone away.
    NobodyReads,
}

struct Stream {
    pipe: Pipe,
    bytes: Vec<u8>,
}

impl Stream {
    fn new() -> io::Result<Self> {
        Ok(Self { pipe: Pipe::new()?, bytes: Vec::new() })
    }

    /// Read all that is there; how many bytes that were. A pipe that fails is at its end.
    fn read(&mut self, keep: usize) -> u64 {
        let mut total = 0;
        loop {
            let room = keep.saturating_sub(self.bytes.len());
            match self.pipe.read_now(&mut self.bytes, room) {
                Ok(Read::Bytes(count)) => total += count as u64,
                Ok(Read::Empty | Read::End) | Err(_) => return total,
            }
            // One reading may not starve the other stream, the deadline or other requests.
            if total >= 1 << 20 {
                return total;
            }
        }
    }

    fn text(bytes: Vec<u8>) -> String {
        String::from_utf8(bytes).unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
    }
}

/// Why a command was stopped.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stop {
    Deadline,
    Output,
}

struct Collect<'a> {
    live: &'a Live,
    run: RunId,
    running: Running,
    out: Stream,
    err: Stream,
    sink: Option<Sink>,
    /// Bytes that were read until now, kept or not.
    total: u64,
}

impl Collect<'_> {
    async fn until(mut self, deadline: Instant) -> Result<RunResponse, Failed> {
        match self.outcome(deadline).await? {
            Ok(outcome) => {
                self.drain(deadline).await;
                if self.total > MAX_RUN_OUTPUT {
                    // The last of it was still in the pipes when it ended: over the limit as any other.
                    self.pass_on(deadline).await?;
                    self.stop().await;
                    return Ok(self.stopped(Stop::Output));
                }
                let end = End::of(outcome, &self.live.meter);
                self.err.bytes.extend_from_slice(end.note.as_bytes());
                self.pass_on(deadline).await?;
                Ok(self.finished(end))
            }
            Err(stop) => {
                self.stop().await;
                Ok(self.stopped(stop))
            }
        }
    }

    /// Give what was read to the sink, if there is one; a sink that takes nothing until the deadline has had its chance.
    async fn pass_on(&mut self, deadline: Instant) -> Result<(), Failed> {
        let Some(sink) = &self.sink else { return Ok(()) };
        let out = std::mem::take(&mut self.out.bytes);
        let err = std::mem::take(&mut self.err.bytes);
        for (bytes, piece) in [(out, Piece::Out as fn(Vec<u8>) -> Piece), (err, Piece::Err)] {
            if bytes.is_empty() {
                continue;
            }
            match timeout_at(deadline, sink.send(piece(bytes))).await {
                Ok(Ok(())) | Err(_) => {}
                Ok(Err(_)) => return Err(Failed::NobodyReads),
            }
        }
        Ok(())
    }

    /// Read until the main process ends, or a limit is passed.
    async fn outcome(&mut self, deadline: Instant) -> Result<Result<Outcome, Stop>, Failed> {
        let keep = usize::try_from(MAX_RUN_OUTPUT).unwrap_or(usize::MAX);
        let mut sleep = pin!(sleep_until(deadline));
        loop {
            tokio::select! {
                biased;
                outcome = &mut self.running.exited => return outcome.map(Ok).map_err(|_| Failed::SandboxEnded),
                () = self.out.pipe.readable() => self.total += self.out.read(keep),
                () = self.err.pipe.readable() => self.total += self.err.read(keep),
                () = &mut sleep => return Ok(Err(Stop::Deadline)),
                () = closed(self.sink.as_ref()) => return Err(Failed::NobodyReads),
            }
            self.pass_on(deadline).await?;
            if self.total > MAX_RUN_OUTPUT {
                return Ok(Err(Stop::Output));
            }
        }
    }

    /// After the end: all that the command wrote is in the pipes. What background
    /// processes write is waited for a moment only, unless they close the streams.
    async fn drain(&mut self, deadline: Instant) {
        let keep = usize::try_from(MAX_RUN_OUTPUT).unwrap_or(usize::MAX);
        let until = deadline.min(Instant::now() + DRAIN_GRACE);
        let mut sleep = pin!(sleep_until(until));
        // Whatever the command itself wrote fits into its two pipes: more than that is somebody else's, who may never stop.
        let mut left = DRAIN_MAX;
        loop {
            loop {
                let read = self.out.read(keep) + self.err.read(keep);
                self.total += read;
                left = left.saturating_sub(read);
                if left == 0 {
                    return;
                }
                if read == 0 {
                    break;
                }
            }
            if self.out.pipe.ended() && self.err.pipe.ended() {
                return;
            }
            tokio::select! {
                () = self.out.pipe.readable() => {}
                () = self.err.pipe.readable() => {}
                () = &mut sleep => return,
            }
        }
    }

    /// End every process of the run, reading on so that none of them waits for us.
    async fn stop(&mut self) {
        let init = self.live.init.clone();
        init.stop(self.run, TERM_GRACE).await;
        let all = timeout(TERM_GRACE + KILL_GRACE, async {
            loop {
                tokio::select! {
                    biased;
                    // An error says that the sandbox has ended, and with it the run.
                    _ = &mut self.running.emptied => return,
                    () = self.out.pipe.readable() => { self.out.read(STOPPED_OUTPUT); }
                    () = self.err.pipe.readable() => { self.err.read(STOPPED_OUTPUT); }
                }
            }
        });
        if all.await.is_err() {
            tracing::error!(run = %self.run, "processes outlive their SIGKILL");
        }
        self.out.read(STOPPED_OUTPUT);
        self.err.read(STOPPED_OUTPUT);
    }

    fn finished(mut self, end: End) -> RunResponse {
        let (stdout, stderr) = (std::mem::take(&mut self.out.bytes), std::mem::take(&mut self.err.bytes));
        self.leave();
        RunResponse {
            stdout: Stream::text(stdout),
            stderr: Stream::text(stderr),
            exit_code: Some(end.exit_code),
            timed_out: false,
            output_limited: false,
            output_limit: None,
            limit: end.limit,
            usage: end.usage,
        }
    }

    fn stopped(mut self, stop: Stop) -> RunResponse {
        // What a sink has had already is not told twice.
        if self.sink.is_some() {
            self.out.bytes.clear();
            self.err.bytes.clear();
        }
        stopped(stop, std::mem::take(&mut self.out.bytes), std::mem::take(&mut self.err.bytes))
    }

    /// Go on reading, into nothing, for background processes that hold the streams.
    fn leave(self) {
        let Self { out, err, running, .. } = self;
        for stream in [out, err] {
            if !stream.pipe.ended() {
                tokio::spawn(drain(stream.pipe));
            }
        }
        drop(running);
    }
}

/// What is answered for a command that was stopped: the beginning of what it wrote.
fn stopped(stop: Stop, mut out: Vec<u8>, mut err: Vec<u8>) -> RunResponse {
    out.truncate(STOPPED_OUTPUT);
    err.truncate(STOPPED_OUTPUT);
    RunResponse {
        stdout: Stream::text(out),
        stderr: Stream::text(err),
        exit_code: None,
        timed_out: stop == Stop::Deadline,
        output_limited: stop == Stop::Output,
        output_limit: (stop == Stop::Output).then_some(MAX_RUN_OUTPUT),
        limit: None,
        usage: None,
    }
}

/// Wait until nobody takes pieces any more.
async fn closed(sink: Option<&Sink>) {
    match sink {
        Some(sink) => sink.closed().await,
        None => std::future::pending().await,
    }
}

/// How a command ended, as it is answered.
struct End {
    exit_code: i32,
    /// A last line of standard error in the service's words, or nothing.
    note: String,
    limit: Option<String>,
    usage: Option<RunUsage>,
}

impl End {
    fn of(outcome: Outcome, meter: &Meter) -> Self {
        match outcome {
            Outcome::Exited(status, usage, met) => {
                let limit = meter.limit_met(status, met);
                let verb = if met.memory { "killed" } else { "a fork failed" };
                let note = limit.as_ref().map_or_else(String::new, |limit| format!("sandboxd: {verb}: {limit}\n"));
                let max_rss_bytes = usage.max_rss_kib.saturating_mul(1024);
                let usage = RunUsage { user_us: usage.user_us, system_us: usage.system_us, max_rss_bytes };
                Self { exit_code: status.exit_code(), note, limit, usage: Some(usage) }
            }
            Outcome::Refused(step, errno) => {
                let limit = (step == Step::Fork && errno == libc::EAGAIN).then(|| meter.process_limit());
                let (exit_code, note) = refusal(step, errno, limit.as_deref());
                Self { exit_code, note, limit, usage: None }
            }
        }
    }
}

/// What a shell would answer for a command that cannot be executed.
fn refusal(step: Step, errno: i32, limit: Option<&str>) -> (i32, String) {
    let reason = io::Error::from_raw_os_error(errno);
    let code = if step == Step::Exec && errno == libc::ENOENT { 127 } else { 126 };
    let text = match step {
        Step::Exec if errno == libc::ENOENT => "sandboxd: command not found\n".to_owned(),
        Step::Exec => format!("sandboxd: cannot execute: {reason}\n"),
        Step::Chdir => format!("sandboxd: cannot enter the work directory: {reason}\n"),
        Step::Fork => format!("sandboxd: cannot fork: {}\n", limit.map_or_else(|| reason.to_string(), str::to_owned)),
        Step::Request | Step::Cgroup | Step::Drop => {
            format!("sandboxd: cannot start the command ({step:?}): {reason}\n")
        }
    };
    (code, text)
}
