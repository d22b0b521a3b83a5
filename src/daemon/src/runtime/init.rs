//! The client of one sandbox's init: starts commands, hears how they end, stops them.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustix::fs::{MemfdFlags, SealFlags};
use tokio::sync::{oneshot, watch};
use wire::file::FileRequest;
use wire::id::RunId;
use wire::init::{
    Command, CommandAt, FromInit, MAX_COMMAND, MAX_ENDED, MAX_FRAME, MAX_NOTE, MAX_RUNS, Met, OLDEST_VERSION, Status,
    Step, ToInit, Usage, VERSION,
};

use super::pipes::Pipe;
use super::seqpacket::Seqpacket;

/// How long an init may take to say that it is ready.
const READY_WITHIN: Duration = Duration::from_secs(10);
/// Longest frame that an init has reason to send, in bytes.
const REPLY: usize = MAX_NOTE + 256;
/// What a frame needs beside its command, in bytes.
const OVERHEAD: usize = MAX_NOTE + 64;
/// How long an init may take to list its runs.
const LIST_WITHIN: Duration = Duration::from_secs(5);
/// The first version that knows [`ToInit::File`].
const FILES_SINCE: u32 = 3;

/// Why a command was not started, or its end not learnt.
#[derive(Debug, thiserror::Error)]
pub enum InitError {
    /// The sandbox is gone: its init closed the connection.
    #[error("the sandbox has ended")]
    Gone,
    /// A command of that name runs already.
    #[error("run {0} is running already")]
    Duplicate(RunId),
    /// Arguments and environment together are over the ceiling.
    #[error("arguments and environment are {0} bytes; at most {MAX_COMMAND} are possible")]
    TooLong(usize),
    /// It says it is something else, or nothing in time.
    #[error("its init {0}")]
    Unready(&'static str),
    /// The kernel refused.
    #[error("talk to its init")]
    Io(#[from] io::Error),
}

/// How the main process of a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// It ran: how it ended, what it used, which limits of its sandbox it met.
    Exited(Status, Usage, Met),
    /// It could not be started: at which step, and errno(3).
    Refused(Step, i32),
}

/// A command that was handed to the init.
#[derive(Debug)]
pub struct Running {
    /// How its main process ended; an error when the sandbox ended first.
    pub exited: oneshot::Receiver<Outcome>,
    /// Resolves when none of its processes is left; an error when the sandbox ended first.
    pub emptied: oneshot::Receiver<()>,
}

/// A run that an init had before it was connected to.
#[derive(Debug)]
pub struct Found {
    /// Which.
    pub run: RunId,
    /// What was sent with it; written by the service, kept by the init, so hostile.
    pub note: Vec<u8>,
    /// Since it was started, or from then until its end.
    pub age: Duration,
    /// How it ended, if it has.
    pub exited: Option<Status>,
    /// Limits that it met, if it has ended.
    pub met: Met,
    /// Whether its end was recorded.
    pub forgotten: bool,
    /// Its streams, while processes of it are left.
    pub streams: Option<[Pipe; 2]>,
    /// To hear how it goes on, while processes of it are left.
    pub running: Option<Running>,
}

#[derive(Debug)]
struct Waiter {
    /// What was said of it right before its end.
    met: Met,
    exited: Option<oneshot::Sender<Outcome>>,
    emptied: oneshot::Sender<()>,
}

/// The connection to an init. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Init(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    socket: Seqpacket,
    /// Of the protocol that it speaks.
    version: u32,
    runs: Mutex<HashMap<RunId, Waiter>>,
    /// Who waits for a list.
    list: Mutex<Option<List>>,
    gone: watch::Sender<bool>,
}

/// A list that is arriving.
#[derive(Debug)]
struct List {
    left: Option<usize>,
    /// Said of the run that is listed next, if it met limits.
    met: Option<(RunId, Met)>,
    found: Vec<Found>,
    done: oneshot::Sender<Vec<Found>>,
}

impl Init {
    /// Connect to the init that listens as `name` in `dir`, and wait until it is ready.
    ///
    /// # Errors
    /// [`InitError`].
    pub async fn connect(dir: BorrowedFd<'_>, name: &str) -> Result<Self, InitError> {
        let socket = Seqpacket::connect(dir, name)?;
        let mut buffer = [0; REPLY];
        let hello = tokio::time::timeout(READY_WITHIN, socket.recv(&mut buffer))
            .await
            .map_err(|_| InitError::Unready("did not answer in time"))??
            .ok_or(InitError::Gone)?;
        let version = match postcard::from_bytes(&buffer[..hello.len]) {
            Ok(FromInit::Ready { version }) if (OLDEST_VERSION..=VERSION).contains(&version) => version,
            Ok(_) | Err(_) => {
                return Err(InitError::Unready("speaks another protocol; are all programs of one version?"));
            }
        };
        let gone = watch::Sender::new(false);
        let inner = Arc::new(Inner { socket, version, runs: Mutex::default(), list: Mutex::default(), gone });
        tokio::spawn(listen(inner.clone()));
        Ok(Self(inner))
    }

    /// The runs that it had before: what was started by a predecessor of this process.
    ///
    /// # Errors
    /// [`InitError`].
    pub async fn list(&self) -> Result<Vec<Found>, InitError> {
        let (done, list) = oneshot::channel();
        *self.0.list.lock().unwrap_or_else(PoisonError::into_inner) =
            Some(List { left: None, met: None, found: Vec::new(), done });
        let frame = postcard::to_allocvec(&ToInit::List).map_err(|_| InitError::Unready("cannot be asked"))?;
        self.0.socket.send(&frame, &[]).await?;
        match tokio::time::timeout(LIST_WITHIN, list).await {
            Ok(found) => found.map_err(|_| InitError::Gone),
            Err(_) => {
                self.0.list.lock().unwrap_or_else(PoisonError::into_inner).take();
                Err(InitError::Unready("did not list its runs in time"))
            }
        }
    }

    /// Tell it that a run's end is recorded. If that does not get through, a restart records it again.
    pub fn forget(&self, run: RunId) {
        if let Ok(frame) = postcard::to_allocvec(&ToInit::Forget { run }) {
            let _ = self.0.socket.try_send(&frame);
        }
    }

    /// Start a command whose streams go to `out` and `err`. The `note`, of at most [`MAX_NOTE`] bytes, is told
    /// again after a restart of the service, if the run's end was not recorded before.
    ///
    /// # Errors
    /// [`InitError`]; then nothing was started.
    pub async fn start(
        &self,
        (run, note): (RunId, Vec<u8>),
        command: Command,
        out: &mut Pipe,
        err: &mut Pipe,
    ) -> Result<Running, InitError> {
        let (frame, memfd) = encode(run, note, command)?;
        let (exited, exit) = oneshot::channel();
        let (emptied, empty) = oneshot::channel();
        self.expect(run, Waiter { met: Met::default(), exited: Some(exited), emptied })?;
        let sent = self.send_run(&frame, memfd.as_ref(), out, err).await;
        out.handed_over();
        err.handed_over();
        sent.map_err(|error| self.unsent(run, error))?;
        Ok(Running { exited: exit, emptied: empty })
    }

    /// A run that the init has not heard of.
    fn unsent(&self, run: RunId, error: io::Error) -> InitError {
        self.runs().remove(&run);
        if error.kind() == io::ErrorKind::BrokenPipe { InitError::Gone } else { error.into() }
    }

    /// Start a file operation, inside, whose answer goes to `answer`; `body` is what is to be written.
    ///
    /// # Errors
    /// [`InitError`]; then nothing was started. [`InitError::Unready`] also for an init that is too old for it.
    pub async fn file(
        &self,
        run: RunId,
        request: FileRequest,
        answer: &mut Pipe,
        body: Option<BorrowedFd<'_>>,
    ) -> Result<Running, InitError> {
        if self.0.version < FILES_SINCE {
            return Err(InitError::Unready("is older than file operations"));
        }
        let frame = postcard::to_allocvec(&ToInit::File { run, request });
        let frame = frame.map_err(|_| InitError::Io(io::ErrorKind::InvalidInput.into()))?;
        let (exited, exit) = oneshot::channel();
        let (emptied, empty) = oneshot::channel();
        self.expect(run, Waiter { exited: Some(exited), emptied, met: Met::default() })?;
        let sent = match answer.ends() {
            Some([_, write]) => {
                let fds: Vec<BorrowedFd<'_>> = [write].into_iter().chain(body).collect();
                self.0.socket.send(&frame, &fds).await
            }
            None => Err(io::ErrorKind::InvalidInput.into()),
        };
        answer.handed_over();
        sent.map_err(|error| self.unsent(run, error))?;
        Ok(Running { exited: exit, emptied: empty })
    }

    /// End every process of a run: `SIGTERM`, and after `grace` `SIGKILL`. Its end is
    /// heard as any other; nothing happens if it is over.
    pub async fn stop(&self, run: RunId, grace: Duration) {
        let grace_ms = u32::try_from(grace.as_millis()).unwrap_or(u32::MAX);
        let Ok(frame) = postcard::to_allocvec(&ToInit::Stop { run, grace_ms }) else { return };
        // An init that is gone has no processes left to stop.
        let _ = self.0.socket.send(&frame, &[]).await;
    }

    /// Whether the sandbox has ended.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        *self.0.gone.borrow()
    }

    /// Wait until the sandbox has ended.
    pub async fn gone(&self) {
        // The sender lives as long as we do.
        let _ = self.0.gone.subscribe().wait_for(|gone| *gone).await;
    }

    fn runs(&self) -> std::sync::MutexGuard<'_, HashMap<RunId, Waiter>> {
        self.0.runs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn expect(&self, run: RunId, waiter: Waiter) -> Result<(), InitError> {
        let mut runs = self.runs();
        // Checked under the lock that the listener takes to drop all waiters at the end.
        if self.is_gone() {
            return Err(InitError::Gone);
        }
        if runs.contains_key(&run) {
            return Err(InitError::Duplicate(run));
        }
        runs.insert(run, waiter);
        Ok(())
    }

    async fn send_run(&self, frame: &[u8], memfd: Option<&OwnedFd>, out: &Pipe, err: &Pipe) -> io::Result<()> {
        let (Some([out_r, out_w]), Some([err_r, err_w])) = (out.ends(), err.ends()) else {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "a pipe that was handed over already"));
        };
        let mut fds = vec![out_r, out_w, err_r, err_w];
        fds.extend(memfd.map(AsFd::as_fd));
        self.0.socket.send(frame, &fds).await
    }
}

/// The frame that starts `command`, which travels in a sealed memfd when it is long.
fn encode(run: RunId, note: Vec<u8>, command: Command) -> Result<(Vec<u8>, Option<OwnedFd>), InitError> {
    let invalid = |_| InitError::Io(io::ErrorKind::InvalidInput.into());
    let command = CommandAt::Inline(command);
    let frame = postcard::to_allocvec(&ToInit::Run { run, note, command }).map_err(invalid)?;
    if frame.len() <= MAX_FRAME - OVERHEAD {
        return Ok((frame, None));
    }
    let ToInit::Run { command: CommandAt::Inline(command), note, .. } =
        postcard::from_bytes(&frame).map_err(invalid)?
    else {
        return Err(InitError::Io(io::ErrorKind::InvalidInput.into()));
    };
    let bytes = postcard::to_allocvec(&command).map_err(invalid)?;
    let len = u32::try_from(bytes.len()).ok().filter(|_| bytes.len() <= MAX_COMMAND);
    let len = len.ok_or(InitError::TooLong(bytes.len()))?;
    let memfd = memfd(&bytes)?;
    let frame =
        postcard::to_allocvec(&ToInit::Run { run, note, command: CommandAt::Memfd { len } }).map_err(invalid)?;
    Ok((frame, Some(memfd)))
}

fn memfd(bytes: &[u8]) -> io::Result<OwnedFd> {
    let memfd = rustix::fs::memfd_create("command", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    let mut file = std::fs::File::from(memfd);
    io::Write::write_all(&mut file, bytes)?;
    rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE | SealFlags::SEAL)?;
    Ok(file.into())
}

/// Hear an init until its end, which ends every wait.
async fn listen(inner: Arc<Inner>) {
    let mut buffer = [0; REPLY];
    while let Ok(Some(message)) = inner.socket.recv(&mut buffer).await {
        let Ok(frame) = postcard::from_bytes::<FromInit>(&buffer[..message.len]) else { break };
        match frame {
            FromInit::Runs { .. } | FromInit::Listed { .. } => inner.listed(frame, message.fds),
            FromInit::Limited { .. } => {
                hear(&inner.runs, frame.clone());
                inner.listed(frame, message.fds);
            }
            FromInit::Ready { .. } | FromInit::Refused { .. } | FromInit::Exited { .. } | FromInit::Emptied { .. } => {
                hear(&inner.runs, frame);
            }
        }
    }
    inner.list.lock().unwrap_or_else(PoisonError::into_inner).take();
    let mut runs = inner.runs.lock().unwrap_or_else(PoisonError::into_inner);
    inner.gone.send_replace(true);
    runs.clear();
}

/// Apply what an init says to the runs that it is asked about; anything else changes nothing.
fn hear(runs: &Mutex<HashMap<RunId, Waiter>>, frame: FromInit) {
    let mut runs = runs.lock().unwrap_or_else(PoisonError::into_inner);
    match frame {
        FromInit::Exited { run, status, usage } => {
            let Some(waiter) = runs.get_mut(&run) else { return };
            let met = waiter.met;
            waiter.exited.take().map(|exited| exited.send(Outcome::Exited(status, usage, met)));
        }
        FromInit::Limited { run, limits } => {
            if let Some(waiter) = runs.get_mut(&run) {
                waiter.met = limits;
            }
        }
        FromInit::Emptied { run } => {
            runs.remove(&run).map(|waiter| waiter.emptied.send(()));
        }
        FromInit::Refused { run, step, errno } => {
            if let Some(Waiter { exited: Some(exited), emptied, .. }) = runs.remove(&run) {
                let _ = exited.send(Outcome::Refused(step, errno));
                let _ = emptied.send(());
            }
        }
        // Lists are somebody else's, and it was ready before.
        FromInit::Ready { .. } | FromInit::Runs { .. } | FromInit::Listed { .. } => {}
    }
}

impl Inner {
    /// A part of a list has arrived; when it is complete, whoever waits gets it. A list that nobody asked for,
    /// or that is longer than it said, is none. It says so once, and before it begins: so what is kept is bounded.
    fn listed(&self, frame: FromInit, fds: Vec<OwnedFd>) {
        let mut waiting = self.list.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(list) = waiting.as_mut() else { return };
        match frame {
            FromInit::Runs { count } if list.left.is_none() => {
                list.left = Some((count as usize).min(MAX_RUNS + MAX_ENDED));
            }
            FromInit::Listed { run, note, age_ms, exited, forgotten, streams: _ } if list.left.is_some() => {
                let age = Duration::from_millis(age_ms);
                let streams = adopt(fds);
                let running = streams.is_some().then(|| self.follow(run));
                let met = list.met.take().filter(|(of, _)| *of == run).map_or_else(Met::default, |(_, met)| met);
                list.found.push(Found { run, note, age, exited, met, forgotten, streams, running });
                list.left = list.left.map(|left| left.saturating_sub(1));
            }
            FromInit::Limited { run, limits } => list.met = Some((run, limits)),
            FromInit::Runs { .. }
            | FromInit::Listed { .. }
            | FromInit::Ready { .. }
            | FromInit::Refused { .. }
            | FromInit::Exited { .. }
            | FromInit::Emptied { .. } => {}
        }
        if list.left == Some(0)
            && let Some(List { found, done, .. }) = waiting.take()
        {
            // Whoever asked may have stopped waiting.
            let _ = done.send(found);
        }
    }

    /// Wait for the end of a run that was started before.
    fn follow(&self, run: RunId) -> Running {
        let (exited, exit) = oneshot::channel();
        let (emptied, empty) = oneshot::channel();
        let mut runs = self.runs.lock().unwrap_or_else(PoisonError::into_inner);
        runs.insert(run, Waiter { met: Met::default(), exited: Some(exited), emptied });
        Running { exited: exit, emptied: empty }
    }
}

/// The two streams of a run that was started before.
fn adopt(fds: Vec<OwnedFd>) -> Option<[Pipe; 2]> {
    let [out, err] = <[OwnedFd; 2]>::try_from(fds).ok()?;
    Some([Pipe::adopted(out).ok()?, Pipe::adopted(err).ok()?])
}

#[cfg(test)]
mod tests {
    use wire::init::Privilege;

    use super::*;

    fn command(argument: usize) -> Command {
        Command {
            argv: vec!["echo".into(), "x".repeat(argument)],
            env: vec![],
            cwd: "/".into(),
            uid: 1,
            gid: 1,
            privilege: Privilege::None,
        }
    }

    #[test]
    fn a_long_command_travels_in_a_memfd_and_a_longer_one_not_at_all() {
        let run = RunId::from_u128(1);
        assert!(encode(run, vec![], command(10)).unwrap().1.is_none());
        let (frame, memfd) = encode(run, vec![7; 9], command(100_000)).unwrap();
        assert!(frame.len() < 64 && memfd.is_some());
        assert!(matches!(encode(run, vec![], command(MAX_COMMAND)), Err(InitError::TooLong(_))));
    }

    #[test]
    fn an_init_that_lies_changes_only_what_was_asked() {
        let runs = Mutex::new(HashMap::new());
        let (exited, mut exit) = oneshot::channel();
        let (emptied, _empty) = oneshot::channel();
        let (run, other) = (RunId::from_u128(1), RunId::from_u128(2));
        runs.lock().unwrap().insert(run, Waiter { met: Met::default(), exited: Some(exited), emptied });
        hear(&runs, FromInit::Emptied { run: other });
        hear(&runs, FromInit::Ready { version: 9 });
        assert!(exit.try_recv().is_err());
        let frame = FromInit::Exited { run, status: Status::Code(3), usage: Usage::default() };
        let met = Met { memory: true, pids: false };
        hear(&runs, FromInit::Limited { run: other, limits: met });
        hear(&runs, FromInit::Limited { run, limits: met });
        hear(&runs, frame.clone());
        hear(&runs, frame);
        assert_eq!(exit.try_recv().unwrap(), Outcome::Exited(Status::Code(3), Usage::default(), met));
    }

    #[tokio::test]
    async fn a_list_is_what_was_announced_once() {
        use rustix::net::{SendFlags, accept, send};
        let dir = tempfile::tempdir().unwrap();
        let dir: OwnedFd = std::fs::File::open(dir.path()).unwrap().into();
        let listener = super::super::listener(dir.as_fd(), "init.sock").unwrap();
        let say = |peer: &OwnedFd, frame: &FromInit| {
            let frame = postcard::to_allocvec(frame).unwrap();
            send(peer, &frame, SendFlags::NOSIGNAL).unwrap();
        };
        let speak = async {
            tokio::task::yield_now().await;
            let peer = accept(&listener).unwrap();
            say(&peer, &FromInit::Ready { version: VERSION });
            peer
        };
        let (init, peer) = tokio::join!(Init::connect(dir.as_fd(), "init.sock"), speak);
        let listed = |number| FromInit::Listed {
            run: RunId::from_u128(number),
            note: vec![],
            age_ms: 0,
            exited: None,
            forgotten: false,
            streams: false,
        };
        for number in 0..3 {
            say(&peer, &listed(number));
        }
        say(&peer, &FromInit::Runs { count: 1 });
        say(&peer, &FromInit::Runs { count: 1000 });
        say(&peer, &listed(9));
        let found = init.unwrap().list().await.unwrap();
        assert_eq!(found.iter().map(|found| found.run).collect::<Vec<_>>(), [RunId::from_u128(9)]);
    }
}
