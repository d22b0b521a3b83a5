//! The loop: one wait for everything, then a bounded amount of work for what happened.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use wire::file::FileRequest;
use wire::id::RunId;
use wire::init::{CommandAt, FromInit, MAX_NOTE, Met, Step, ToInit, VERSION};

use crate::cgroup::populated;
use crate::ended::{Ended, EndedRuns};
use crate::exec::{Refusal, Request, Terms, at, outcome_of};
use crate::files::FileTask;
use crate::frames::{self, Connection, Flushed, Incoming, Lost};
use crate::reap;
use crate::runs::{Run, Runs, Streams};
use crate::setup::{Failed, Ready, failed};
use crate::sys::{self, Epoll, Errno, Interest, Reaped, SharedCells, Signals, Token};

const LISTENER: Token = 0;
const CONNECTION: Token = 1;
const SIGNALS: Token = 2;
/// Token of the run in slot 0.
const FIRST_RUN: Token = 16;

/// Most messages taken in one turn.
const MESSAGES_PER_TURN: usize = 32;
/// Between two attempts to remove a cgroup that says it is empty, or to send descriptors.
const RETRY: Duration = Duration::from_millis(10);
/// Until connections are taken again, when one could not be for want of descriptors or memory.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);
/// Between two kills of one run: a repetition costs nothing and covers a kill that failed.
const KILL_AGAIN: Duration = Duration::from_secs(1);

/// The init at work.
#[derive(Debug)]
pub struct Init {
    ready: Ready,
    epoll: Epoll,
    signals: Signals,
    connection: Option<Connection>,
    buffer: Vec<u8>,
    runs: Runs,
    /// Runs that are over and not recorded.
    ended: EndedRuns,
    /// What became of the child in each slot before it was executed.
    outcomes: SharedCells,
    /// Whether children may wait to be reaped.
    reaping: bool,
    /// When to try to send again.
    flush_at: Option<Instant>,
    /// When to watch the listener again, while it is not.
    accept_at: Option<Instant>,
}

impl Init {
    /// Makes what the loop needs.
    ///
    /// # Errors
    /// The part that failed.
    pub fn new(ready: Ready) -> Result<Self, Failed> {
        let epoll = Epoll::new().map_err(failed("make an epoll"))?;
        let signals = Signals::new().map_err(failed("make a signalfd"))?;
        epoll.add(ready.listener.as_fd(), Interest::Read, LISTENER).map_err(failed("watch the control socket"))?;
        epoll.add(signals.fd(), Interest::Read, SIGNALS).map_err(failed("watch signals"))?;
        let outcomes = SharedCells::new(wire::init::MAX_RUNS).map_err(failed("map shared memory"))?;
        let runs = Runs::new(ready.capacity);
        let buffer = frames::buffer();
        Ok(Self {
            ready,
            epoll,
            signals,
            connection: None,
            buffer,
            runs,
            ended: EndedRuns::default(),
            outcomes,
            reaping: true,
            flush_at: None,
            accept_at: None,
        })
    }

    /// Serves for ever; returns only if waiting itself fails.
    pub fn run(mut self) -> Failed {
        loop {
            let events = match self.epoll.wait(self.timeout()) {
                Ok(events) => events,
                Err(Errno(libc::EINTR)) => continue,
                Err(errno) => return failed("wait for events")(errno),
            };
            for token in events {
                match token {
                    LISTENER => self.accept(),
                    CONNECTION => self.converse(),
                    SIGNALS => {
                        self.signals.drain();
                        self.reaping = true;
                    }
                    run => self.settle((run - FIRST_RUN) as usize),
                }
            }
            self.reap();
            self.timers();
            self.flush();
        }
    }

    fn timeout(&self) -> Option<Duration> {
        if self.reaping {
            return Some(Duration::ZERO);
        }
        let next = self.runs.next_timer().into_iter().chain(self.flush_at).chain(self.accept_at).min()?;
        Some(next.saturating_duration_since(Instant::now()))
    }

    /// A new connection replaces the old, after what that one had asked for.
    fn accept(&mut self) {
        self.converse();
        let socket = match sys::accept(self.ready.listener.as_fd()) {
            Ok(socket) => socket,
            // The peer has gone again.
            Err(Errno(libc::EAGAIN | libc::EINTR | libc::ECONNABORTED)) => return,
            Err(_) => return self.defer_accept(),
        };
        self.disconnect();
        let connection = Connection::new(socket);
        if self.epoll.add(connection.fd(), Interest::Read, CONNECTION).is_ok() {
            self.connection = Some(connection);
            self.tell(&FromInit::Ready { version: VERSION }, None);
        }
    }

    /// The connection that waits keeps the listener readable: not watched for a while, so that the loop does not spin.
    fn defer_accept(&mut self) {
        let _ = self.epoll.remove(self.ready.listener.as_fd());
        self.accept_at = Some(Instant::now() + ACCEPT_AGAIN);
    }

    fn watch_listener(&mut self) {
        let watched = self.epoll.add(self.ready.listener.as_fd(), Interest::Read, LISTENER);
        self.accept_at = watched.is_err().then(|| Instant::now() + ACCEPT_AGAIN);
    }

    /// Ends the connection, whyever: commands go on, and the next one asks what there is.
    fn disconnect(&mut self) {
        self.flush_at = None;
        if let Some(connection) = self.connection.take() {
            let _ = self.epoll.remove(connection.fd());
        }
    }

    fn converse(&mut self) {
        for _ in 0..MESSAGES_PER_TURN {
            let Some(connection) = &self.connection else {
                return;
            };
            match connection.receive(&mut self.buffer) {
                Ok(Incoming::Message(message, fds)) => self.handle(message, fds),
                Ok(Incoming::Nothing) => return,
                Err(Lost::Gone | Lost::Malformed | Lost::Overflow) => return self.disconnect(),
            }
        }
    }

    fn handle(&mut self, message: ToInit, fds: Vec<OwnedFd>) {
        match message {
            ToInit::Run { run, note, command } => {
                if let Err(Refusal { step, errno }) = self.start(run, note, command, fds) {
                    self.tell(&FromInit::Refused { run, step, errno }, None);
                }
            }
            ToInit::File { run, request } => {
                if let Err(Refusal { step, errno }) = self.start_file(run, request, fds) {
                    self.tell(&FromInit::Refused { run, step, errno }, None);
                }
            }
            ToInit::Stop { run, grace_ms } => self.stop(run, Duration::from_millis(grace_ms.into())),
            ToInit::Signal { run, signal } => self.signal(run, signal.into()),
            ToInit::Forget { run } => self.forget(run),
            ToInit::List => self.list(),
        }
    }

    fn start(&mut self, run: RunId, note: Vec<u8>, command: CommandAt, fds: Vec<OwnedFd>) -> Result<(), Refusal> {
        if note.len() > MAX_NOTE {
            return Err(Refusal::request(libc::EINVAL));
        }
        let slot = self.vacancy(run)?;
        let (request, streams) = Request::check(command, fds, &self.ready.terms)?;
        let forks_failed = self.ready.commands.forks_failed();
        let pid = self.fork(run, slot, |cgroup, outcome, terms| request.spawn(cgroup, outcome, terms))?;
        self.runs.insert(slot, Run { forks_failed, ..Run::started(run, note, pid, Some(streams)) });
        Ok(())
    }

    fn start_file(&mut self, run: RunId, request: FileRequest, fds: Vec<OwnedFd>) -> Result<(), Refusal> {
        let slot = self.vacancy(run)?;
        let task = FileTask::check(run, request, fds)?;
        let pid = self.fork(run, slot, |cgroup, outcome, terms| task.spawn(cgroup, outcome, terms))?;
        self.runs.insert(slot, Run::started(run, vec![], pid, None));
        Ok(())
    }

    /// A slot for one more, whose name is free.
    fn vacancy(&self, run: RunId) -> Result<usize, Refusal> {
        if self.runs.find(run).is_some() {
            return Err(Refusal::request(libc::EEXIST));
        }
        self.runs.free_slot().ok_or_else(|| Refusal::request(libc::EAGAIN))
    }

    /// Makes the child of `run` in a cgroup of its own: its pid.
    fn fork(
        &mut self,
        run: RunId,
        slot: usize,
        spawn: impl FnOnce(BorrowedFd<'_>, &AtomicU64, &Terms) -> sys::Result<i32>,
    ) -> Result<i32, Refusal> {
        let outcome = self.outcomes.get(slot).ok_or_else(|| Refusal::request(libc::EAGAIN))?;
        let cgroup = self.ready.commands.make(run).map_err(at(Step::Cgroup))?;
        let pid = spawn(cgroup.as_fd(), outcome, &self.ready.terms).map_err(|errno| {
            let _ = self.ready.commands.remove(run);
            at(Step::Fork)(errno)
        })?;
        // The name is this one's now.
        self.ended.remove(run);
        Ok(pid)
    }

    fn stop(&mut self, run: RunId, grace: Duration) {
        let Some(slot) = self.runs.find(run) else {
            return;
        };
        let Some(found) = self.runs.get_mut(slot) else {
            return;
        };
        let kill_at = Instant::now() + grace;
        found.kill_at = Some(found.kill_at.map_or(kill_at, |earlier| earlier.min(kill_at)));
        // With no grace the timers of this turn kill. Asking may fail: the kill does not depend on it.
        if !grace.is_zero() {
            let _ = self.ready.commands.terminate(run);
        }
    }

    fn signal(&mut self, run: RunId, signal: i32) {
        let main = self.runs.find(run).and_then(|slot| self.runs.get_mut(slot)).and_then(|run| run.pid);
        if let Some(pid) = main {
            // Fails for a number that is no signal; a process that has ended is there until it is reaped.
            let _ = sys::kill(pid, signal);
        }
    }

    /// The end of `run` is recorded: it is not told again once the run is over.
    fn forget(&mut self, run: RunId) {
        match self.runs.find(run).and_then(|slot| self.runs.get_mut(slot)) {
            Some(found) => found.forgotten = true,
            None => self.ended.remove(run),
        }
    }

    fn list(&mut self) {
        let listed = |run: &Run| run.streams.clone().filter(|_| !run.refused);
        let left = self.runs.iter().filter_map(|(_, run)| Some((run, listed(run)?))).flat_map(|(run, streams)| {
            let listed = FromInit::Listed {
                run: run.id,
                note: run.note.clone(),
                age_ms: millis(run.age()),
                exited: run.exited.map(|(status, _)| status),
                forgotten: run.forgotten,
                streams: true,
            };
            let limited = limited(run.id, run.met).map(|message| (message, None));
            limited.into_iter().chain([(listed, Some(streams))])
        });
        let over = self.ended.iter().flat_map(|ended| {
            let listed = FromInit::Listed {
                run: ended.id,
                note: ended.note.clone(),
                age_ms: millis(ended.age),
                exited: Some(ended.status),
                forgotten: false,
                streams: false,
            };
            limited(ended.id, ended.met).into_iter().chain([listed]).map(|message| (message, None))
        });
        let all: Vec<(FromInit, Option<Rc<Streams>>)> = left.chain(over).collect();
        let count = all.iter().filter(|(message, _)| matches!(message, FromInit::Listed { .. })).count();
        self.tell(&FromInit::Runs { count: count as u32 }, None);
        for (message, streams) in all {
            self.tell(&message, streams);
        }
    }

    fn reap(&mut self) {
        if !self.reaping {
            return;
        }
        let mut reaped = Vec::new();
        self.reaping = reap::turn(|one| reaped.push(one));
        for one in reaped {
            self.ended(one);
        }
    }

    /// A child has been reaped: the main process of a run, or an orphan, of which nobody asks.
    fn ended(&mut self, Reaped { pid, status, usage }: Reaped) {
        let Some(slot) = self.runs.find_pid(pid) else {
            return;
        };
        let refusal = self.outcomes.get(slot).and_then(outcome_of);
        let Some(run) = self.runs.get_mut(slot) else {
            return;
        };
        run.pid = None;
        let id = run.id;
        if let Some(Refusal { step, errno }) = refusal {
            run.refused = true;
            self.settle(slot);
            self.tell(&FromInit::Refused { run: id, step, errno }, None);
        } else {
            run.exited = Some((status, run.started.elapsed()));
            if run.streams.is_some() {
                run.met = self.ready.commands.met(id, run.forks_failed);
            }
            if let Some(message) = limited(id, run.met) {
                self.tell(&message, None);
            }
            self.tell(&FromInit::Exited { run: id, status, usage }, None);
            // On its way before the cgroup is removed.
            self.flush();
            self.settle(slot);
        }
    }

    /// If nothing is left of the run in `slot`, removes its cgroup: it is over; else sees to it that this is tried again.
    fn settle(&mut self, slot: usize) {
        let Some(run) = self.runs.get_mut(slot).filter(|run| run.pid.is_none()) else {
            return;
        };
        run.settle_at = None;
        if removed(self.ready.commands.remove(run.id)) {
            return self.over(slot);
        }
        if run.events.is_none() {
            let watch =
                |events: &OwnedFd| self.epoll.add(events.as_fd(), Interest::Change, FIRST_RUN + slot as Token).is_ok();
            run.events = self.ready.commands.events(run.id).ok().filter(watch);
        }
        match run.events.as_ref().map(|events| populated(events.as_fd())) {
            // The kernel tells when that changes.
            Some(Ok(true)) => {}
            // Emptied since, or on its way there.
            Some(Ok(false)) if removed(self.ready.commands.remove(run.id)) => self.over(slot),
            Some(Ok(false) | Err(_)) | None => run.settle_at = Some(Instant::now() + RETRY),
        }
    }

    /// Nothing is left of the run in `slot`. Its end is kept until it is recorded, whoever has been told.
    fn over(&mut self, slot: usize) {
        let Some(run) = self.runs.remove(slot) else {
            return;
        };
        if let Some(events) = &run.events {
            let _ = self.epoll.remove(events.as_fd());
        }
        let Some((status, age)) = run.exited else {
            // It was refused.
            return;
        };
        self.tell(&FromInit::Emptied { run: run.id }, None);
        if !run.forgotten {
            self.ended.push(Ended { id: run.id, note: run.note, status, age, met: run.met });
        }
    }

    fn timers(&mut self) {
        let now = Instant::now();
        let due = |at: Option<Instant>| at.is_some_and(|at| at <= now);
        if due(self.accept_at) {
            self.watch_listener();
        }
        let slots: Vec<usize> =
            self.runs.iter().filter(|(_, run)| due(run.kill_at) || due(run.settle_at)).map(|(slot, _)| slot).collect();
        for slot in slots {
            let Some(run) = self.runs.get_mut(slot) else {
                continue;
            };
            if due(run.kill_at) {
                run.kill_at = Some(now + KILL_AGAIN);
                // Tried again after that time.
                let _ = self.ready.commands.kill(run.id);
            }
            if due(run.settle_at) {
                self.settle(slot);
            }
        }
    }

    /// Queues `message` for whoever is connected; sent at the end of the turn.
    fn tell(&mut self, message: &FromInit, streams: Option<Rc<Streams>>) {
        let Some(connection) = &mut self.connection else {
            return;
        };
        if connection.push(message, streams).is_err() {
            self.disconnect();
        }
    }

    fn flush(&mut self) {
        self.flush_at = None;
        let Some(connection) = &mut self.connection else {
            return;
        };
        let Ok(flushed) = connection.flush() else {
            // What the peer had said before it went is heard: of a run that it wants forgotten, nothing is told again.
            self.converse();
            return self.disconnect();
        };
        let wants_write = match flushed {
            Flushed::All => false,
            Flushed::Blocked => true,
            Flushed::Later => {
                self.flush_at = Some(Instant::now() + RETRY);
                false
            }
        };
        if wants_write == connection.watched_for_writing {
            return;
        }
        let interest = if wants_write { Interest::ReadWrite } else { Interest::Read };
        connection.watched_for_writing = wants_write;
        if self.epoll.change(connection.fd(), interest, CONNECTION).is_err() {
            self.disconnect();
        }
    }
}

/// What is told of a run that met limits, if it did.
fn limited(run: RunId, limits: Met) -> Option<FromInit> {
    limits.any().then_some(FromInit::Limited { run, limits })
}

/// Whether the cgroup is gone, by this removal or another's.
fn removed(removal: sys::Result<()>) -> bool {
    matches!(removal, Ok(()) | Err(Errno(libc::ENOENT)))
}

fn millis(age: Duration) -> u64 {
    u64::try_from(age.as_millis()).unwrap_or(u64::MAX)
}
