//! Work that needs a process of its own, and its outcome back: a child that reports one [`Answer`] and ends.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions};
use wire::launch::Answer;

use crate::connection;
use crate::error::{Failure, Result, Step};
use crate::sys::{self, Child, Forked};

/// Most bytes of a report: less than a pipe holds, so that the child never waits for a reader.
const MAX_REPORT: usize = 32 * 1024;
/// What is told of a failure that is longer, in characters of its step and of its message: twelve bytes each in JSON at most.
const MAX_WORDS: usize = 1024;

/// Run `body` in a child, born in `cgroup` if there is one; it ends with its parent. `meanwhile` runs in the parent.
/// What `body` answers is returned, its failure and its panic as a failure.
///
/// # Errors
/// The child cannot be made, `meanwhile` or `body` failed, or the child ended without a word.
pub fn run(
    what: &str,
    cgroup: Option<BorrowedFd<'_>>,
    body: impl FnOnce(&OwnedFd) -> Result<Answer>,
    meanwhile: impl FnOnce(&Child) -> Result<()>,
) -> Result<Answer> {
    let (report, reporter) = pipe_with(PipeFlags::CLOEXEC).step(|| format!("make a pipe to {what}"))?;
    let parent = rustix::process::getpid();
    match sys::fork(cgroup).step(|| format!("fork a process to {what}"))? {
        Forked::Child => {
            drop(report);
            prepare(what, parent, &reporter);
            let answer = body(&reporter).unwrap_or_else(Answer::from);
            send(&reporter, &answer);
            sys::exit(0)
        }
        Forked::Parent(child) => {
            drop(reporter);
            // And with it what only the child is to hold: ends of pipes, whose closing tells that it is gone.
            drop(body);
            let outcome = meanwhile(&child);
            if outcome.is_err() {
                kill(&child);
            }
            wait(&child).step(|| format!("wait for the process to {what}"))?;
            outcome?;
            receive(what, &report)
        }
    }
}

/// End `child`.
pub fn kill(child: &Child) {
    // It has not been waited for, so its descriptor means this child; if it has ended, nothing happens.
    let _ = rustix::process::pidfd_send_signal(&child.pidfd, Signal::KILL);
}

/// Wait until `child` has ended.
///
/// # Errors
/// What waitid(2) says.
pub fn wait(child: &Child) -> Result<Option<i32>, Errno> {
    let status = rustix::process::waitid(WaitId::PidFd(child.pidfd.as_fd()), WaitIdOptions::EXITED)?;
    Ok(status.and_then(|status| status.exit_status()))
}

fn prepare(what: &str, parent: Pid, reporter: &OwnedFd) {
    let tied = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
    // In a new PID namespace the parent cannot be seen; one that ended before is not noticed there.
    let orphaned = rustix::process::getppid().is_some_and(|pid| pid != parent);
    if tied.is_err() || orphaned {
        sys::exit(1);
    }
    connection::let_go();
    sys::reset_signals();
    let (what, reporter) = (what.to_owned(), reporter.try_clone());
    std::panic::set_hook(Box::new(move |panic| {
        if let Ok(reporter) = &reporter {
            send(reporter, &Failure::new(format!("{what}: {panic}")).into());
        }
        sys::exit(1);
    }));
}

/// Write the report. If nobody reads it, the parent is gone, and this process is about to be.
pub fn send(reporter: impl AsFd, answer: &Answer) {
    let _ = rustix::io::write(reporter, &report(answer));
}

/// An answer of no more bytes than are read. What makes one long is the words of a failure, which may quote a stranger.
fn report(answer: &Answer) -> Vec<u8> {
    let encode = |answer: &Answer| serde_json::to_vec(answer).unwrap_or_default();
    let text = encode(answer);
    if let Answer::Failed { step, errno, message } = answer
        && text.len() > MAX_REPORT
    {
        let cut = |words: &str| words.chars().take(MAX_WORDS).collect();
        return encode(&Answer::Failed { step: cut(step), errno: *errno, message: cut(message) });
    }
    text
}

/// What a child that has ended reported: nothing is waited for, its own children may hold the pipe open.
fn receive(what: &str, report: &OwnedFd) -> Result<Answer> {
    let step = || format!("read the report of the process to {what}");
    rustix::fs::fcntl_setfl(report, OFlags::NONBLOCK).step(step)?;
    let mut buffer = vec![0; MAX_REPORT];
    let length = match rustix::io::read(report, &mut buffer) {
        Ok(length) => length,
        Err(Errno::AGAIN) => 0,
        Err(errno) => return Err(Failure::of(step(), errno)),
    };
    if length == 0 {
        return Err(Failure::new(format!("{what}: the process was ended")));
    }
    // The first report counts; a second one of a panicking grandchild may follow it.
    let mut reports = serde_json::Deserializer::from_slice(&buffer[..length]).into_iter();
    match reports.next().unwrap_or(Ok(Answer::Done)).step(step)? {
        Answer::Failed { step, errno, message } => Err(Failure::reported(step, errno, &message)),
        answer @ (Answer::Started { .. }
        | Answer::Done
        | Answer::Sandboxes { .. }
        | Answer::Network { .. }
        | Answer::Refusals { .. }
        | Answer::About { .. }
        | Answer::Unpacked { .. }
        | Answer::Usage { .. }
        | Answer::Caches { .. }
        | Answer::Refused { .. }) => Ok(answer),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_of_any_length_is_one_that_can_be_read() {
        for words in ["x".repeat(100_000), "\u{1}".repeat(100_000), "\u{1f980}".repeat(100_000), "short".to_owned()] {
            let failed = Answer::Failed { step: words.clone(), errno: Some(7), message: words.clone() };
            let text = report(&failed);
            assert!(text.len() <= MAX_REPORT, "{}", text.len());
            match serde_json::from_slice(&text).unwrap() {
                Answer::Failed { step, errno: Some(7), message } => {
                    assert!(words.starts_with(&step) && words.starts_with(&message) && !step.is_empty());
                }
                other => panic!("{other:?}"),
            }
        }
    }
}
