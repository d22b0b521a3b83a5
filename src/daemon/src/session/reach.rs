//! A file operation that only the sandbox can resolve: a link, a path outside of the work directory. Its init forks
//! a child that does it inside, as the user and with the rights of a command; see `wire::file`.
//!
//! It takes a place among the commands, wakes the session as a command does, and is stopped as one: after
//! [`WITHIN`], when whoever asked goes away, and when it answers more than it may. What it answers is hostile.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::MemfdFlags;
use tokio::time::{Instant, sleep_until};
use uuid::Uuid;
use wire::file::{Fault, FileOp, FileRequest, MAX_ENTRY, MAX_REALPATH};
use wire::id::RunId;
use wire::init::Status;

use super::error::SessionError;
use super::handle::Session;
use super::registry::Registry;
use crate::files::{FileError, MAX_ENTRIES, Op};
use crate::runtime::init::Running;
use crate::runtime::pipes::{Pipe, Read};
use crate::runtime::{Init, Outcome};

/// How long the sandbox may take, once it is awake. Clients wait for a file operation for about 30 s.
const WITHIN: Duration = Duration::from_secs(20);

/// What became of an operation.
#[derive(Debug)]
pub enum Reached {
    /// It was done: what it answered.
    Done(Vec<u8>),
    /// It was not, for this reason.
    Fault(Fault),
    /// It was not begun, or not finished, or its answer is none.
    Undone,
}

/// The bytes that are to be written to a file, in memory.
#[derive(Debug)]
pub struct Payload {
    file: File,
    left: u64,
}

impl Payload {
    /// None yet, and room for `max` bytes.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn new(max: u64) -> io::Result<Self> {
        let memfd = rustix::fs::memfd_create("payload", MemfdFlags::CLOEXEC)?;
        Ok(Self { file: File::from(memfd), left: max })
    }

    /// Append `bytes` of what is to be written to `path`. `max` is the ceiling, for the error.
    ///
    /// # Errors
    /// [`FileError::TooLarge`] before any of `bytes` is taken; [`FileError::Io`].
    pub fn append(&mut self, path: &str, max: u64, bytes: &[u8]) -> Result<(), FileError> {
        let left = self.left.checked_sub(bytes.len() as u64);
        self.left = left.ok_or_else(|| FileError::TooLarge { path: path.to_owned(), limit: max })?;
        let io = |source| FileError::Io { op: Op::Write, path: path.to_owned(), source };
        self.file.write_all(bytes).map_err(io)
    }
}

impl Registry {
    /// Have the sandbox of `session` do `op` to `path`; `body` is what a write writes. The session is
    /// at work meanwhile: that is up to the caller. Whoever drops the future stops the operation.
    ///
    /// # Errors
    /// [`SessionError`] when there is no sandbox to do it.
    pub async fn reach(
        &self,
        session: &Arc<Session>,
        op: FileOp,
        path: &str,
        body: Option<Payload>,
    ) -> Result<Reached, SessionError> {
        let full = || SessionError::CommandsFull(self.deps.settings.max_running_commands);
        let _permit = self.deps.commands.try_acquire().map_err(|_| full())?;
        let live = session.wake().await?;
        let policy = self.policy();
        let max = if op == FileOp::List { MAX_ENTRIES as u64 } else { policy.max_read_bytes };
        let (uid, gid, work_dir) = (live.image.uid, live.image.gid, self.deps.settings.work_dir.clone());
        let request = FileRequest { op, path: path.to_owned(), work_dir, uid, gid, max };
        let io = |source| SessionError::Io { operation: "make the pipe", id: session.id.clone(), source };
        let mut answer = Pipe::new().map_err(io)?;
        let run = RunId::from_u128(Uuid::new_v4().as_u128());
        let deadline = Instant::now() + WITHIN.min(Duration::from_secs(policy.execute_timeout));
        let body = body.as_ref().map(|body| body.file.as_fd());
        let running = live.init.file(run, request, &mut answer, body).await.map_err(SessionError::Init)?;
        let guard = Stop { init: Some(live.init.clone()), run };
        let reached = collect(running, answer, longest(op, max), deadline).await;
        if let Some(reached) = reached {
            guard.ended();
            return Ok(reached);
        }
        Ok(Reached::Undone)
    }
}

/// Most that an operation answers, in bytes.
fn longest(op: FileOp, max: u64) -> usize {
    match op {
        FileOp::Read => usize::try_from(max).unwrap_or(usize::MAX),
        FileOp::List => MAX_ENTRIES * MAX_ENTRY,
        FileOp::Stat => MAX_ENTRY,
        FileOp::Realpath => MAX_REALPATH,
        FileOp::Write | FileOp::Mkdir | FileOp::Remove => 0,
    }
}

/// What the operation comes to; `None` if it has to be stopped.
async fn collect(mut running: Running, mut answer: Pipe, longest: usize, deadline: Instant) -> Option<Reached> {
    let mut bytes = Vec::new();
    let mut total = 0;
    let mut sleep = pin!(sleep_until(deadline));
    let outcome = loop {
        tokio::select! {
            biased;
            outcome = &mut running.exited => break outcome.ok(),
            () = answer.readable() => match answer.read_now(&mut bytes, longest.saturating_sub(total)) {
                Ok(Read::Bytes(count)) => total += count,
                Ok(Read::Empty | Read::End) | Err(_) => {}
            },
            () = &mut sleep => return None,
        }
        if total > longest {
            return None;
        }
    };
    match outcome {
        Some(Outcome::Exited(Status::Code(0), ..)) => {}
        Some(Outcome::Exited(Status::Code(code), ..)) => {
            return Some(Fault::from_exit_status(code).map_or(Reached::Undone, Reached::Fault));
        }
        Some(Outcome::Exited(Status::Signal(_), ..) | Outcome::Refused(..)) | None => return Some(Reached::Undone),
    }
    // What the child wrote before its end is in the pipe.
    while let Ok(Read::Bytes(count)) = answer.read_now(&mut bytes, longest.saturating_sub(total)) {
        total += count;
        if total > longest {
            return Some(Reached::Undone);
        }
    }
    Some(Reached::Done(bytes))
}

/// Stops the operation when nobody waits for it any more.
struct Stop {
    init: Option<Init>,
    run: RunId,
}

impl Stop {
    fn ended(mut self) {
        self.init = None;
    }
}

impl Drop for Stop {
    fn drop(&mut self) {
        if let Some(init) = self.init.take() {
            let run = self.run;
            tokio::spawn(async move { init.stop(run, Duration::ZERO).await });
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;
    use wire::init::{Met, Usage};

    use super::*;

    /// An operation whose process has written `bytes` and ended with `status`.
    async fn ended(bytes: &[u8], status: Status, longest: usize) -> Option<Reached> {
        let mut answer = Pipe::new().unwrap();
        let write = rustix::io::dup(answer.ends().unwrap()[1]).unwrap();
        answer.handed_over();
        rustix::io::write(&write, bytes).unwrap();
        let (exit, exited) = oneshot::channel();
        let (_empty, emptied) = oneshot::channel();
        exit.send(Outcome::Exited(status, Usage::default(), Met::default())).unwrap();
        collect(Running { exited, emptied }, answer, longest, Instant::now() + WITHIN).await
    }

    #[tokio::test]
    async fn an_answer_is_as_long_as_it_may_be_or_none() {
        let done = |reached| matches!(reached, Some(Reached::Done(bytes)) if bytes == b"12345");
        assert!(done(ended(b"12345", Status::Code(0), 5).await));
        assert!(matches!(ended(b"12345", Status::Code(0), 4).await, Some(Reached::Undone)));
        assert!(matches!(ended(b"", Status::Code(2), 4).await, Some(Reached::Fault(Fault::Errno(2)))));
        assert!(matches!(ended(b"", Status::Code(255), 4).await, Some(Reached::Undone)));
        assert!(matches!(ended(b"", Status::Signal(9), 4).await, Some(Reached::Undone)));
    }

    #[tokio::test]
    async fn one_that_does_not_end_is_stopped() {
        let (_exit, exited) = oneshot::channel();
        let (_empty, emptied) = oneshot::channel();
        let answer = Pipe::new().unwrap();
        let soon = Instant::now() + Duration::from_millis(20);
        assert!(collect(Running { exited, emptied }, answer, 4, soon).await.is_none());
    }

    #[test]
    fn a_payload_has_a_ceiling() {
        let mut payload = Payload::new(3).unwrap();
        let mut append = |bytes: &[u8]| payload.append("/a", 3, bytes);
        assert!(append(b"ab").is_ok() && append(b"cd").is_err() && append(b"c").is_ok());
    }
}
