//! A child process that gets one document and gives one answer: both ends of it.

use std::io::{self, Read, Write};
use std::path::Path;
use std::process::{ExitCode, Stdio};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, Command};

use super::confine;

/// Exit status of a child that says why it refuses, on its standard output.
const REFUSED: u8 = 1;
/// Exit status of a child that could not confine itself and read nothing.
const UNCONFINED: u8 = 3;
/// Longest reason that is believed, in bytes.
const REASON_MAX: usize = 300;

/// What is to be done.
pub(super) struct Order<'a> {
    pub program: &'a Path,
    pub args: Vec<String>,
    pub input: Vec<u8>,
    /// Longest answer, in bytes.
    pub most: usize,
    /// After which it is killed.
    pub deadline: Duration,
}

/// What came of it.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// The answer.
    Done(Vec<u8>),
    /// The child says why there is none.
    Refused(String),
    /// The child ended otherwise, or had to be.
    Died,
    /// The answer is longer than it may be.
    TooLong,
}

/// Run a child, and wait for its end. Dropped before that, it is killed.
///
/// # Errors
/// It could not be started, or not confine itself.
pub(super) async fn run(order: Order<'_>) -> io::Result<Answer> {
    let mut child = Command::new(order.program)
        .args(&order.args)
        .env_clear()
        .current_dir("/")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()?;
    let answer = match tokio::time::timeout(order.deadline, converse(&mut child, order.input, order.most)).await {
        Ok(answer) => answer?,
        Err(_) => Answer::Died,
    };
    // It has ended, or has nothing more to say; either way it is reaped here.
    child.kill().await?;
    Ok(answer)
}

async fn converse(child: &mut Child, input: Vec<u8>, most: usize) -> io::Result<Answer> {
    let (Some(mut stdin), Some(stdout)) = (child.stdin.take(), child.stdout.take()) else {
        return Err(io::Error::other("the child has no pipes"));
    };
    let feed = async move {
        // A child that has seen enough reads no further.
        let _ = stdin.write_all(&input).await;
    };
    let drain = async {
        let mut answer = Vec::new();
        stdout.take(most as u64 + 1).read_to_end(&mut answer).await.map(|_| answer)
    };
    let ((), answer) = tokio::join!(feed, drain);
    let mut answer = answer?;
    if answer.len() > most {
        return Ok(Answer::TooLong);
    }
    match child.wait().await?.code().map(u8::try_from) {
        Some(Ok(0)) => Ok(Answer::Done(answer)),
        Some(Ok(REFUSED)) => {
            answer.truncate(REASON_MAX);
            let reason: String = String::from_utf8_lossy(&answer).chars().filter(|c| !c.is_control()).collect();
            Ok(Answer::Refused(if reason.is_empty() { "without a reason".to_owned() } else { reason }))
        }
        Some(Ok(UNCONFINED)) => Err(io::Error::other("it could not confine itself")),
        _ => Ok(Answer::Died),
    }
}

/// The child's end: confined before a byte of the document is read.
pub(super) fn answer(work: impl FnOnce(&[u8]) -> Result<Vec<u8>, String>) -> ExitCode {
    // Nobody reads what a panicking parser says.
    std::panic::set_hook(Box::new(|_| {}));
    if confine::confine().is_err() {
        return UNCONFINED.into();
    }
    let mut document = Vec::new();
    if io::stdin().read_to_end(&mut document).is_err() {
        return ExitCode::FAILURE;
    }
    let (status, bytes) = match std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| work(&document))) {
        Ok(Ok(bytes)) => (ExitCode::SUCCESS, bytes),
        Ok(Err(reason)) => (REFUSED.into(), reason.into_bytes()),
        Err(_) => (REFUSED.into(), b"it is broken".to_vec()),
    };
    let mut stdout = io::stdout();
    match stdout.write_all(&bytes).and_then(|()| stdout.flush()) {
        Ok(()) => status,
        Err(_) => ExitCode::FAILURE,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    async fn shell(script: &str, input: &[u8], deadline: Duration) -> Answer {
        let args = vec!["-c".to_owned(), script.to_owned()];
        let order = Order { program: Path::new("/bin/sh"), args, input: input.to_vec(), most: 100_000, deadline };
        run(order).await.unwrap()
    }

    const LONG: Duration = Duration::from_secs(20);

    #[tokio::test]
    async fn an_answer_is_what_the_child_writes() {
        let input = vec![b'x'; 100_000];
        assert_eq!(shell("exec cat", &input, LONG).await, Answer::Done(input));
        assert_eq!(shell("printf 'no\\n'; exit 1", b"", LONG).await, Answer::Refused("no".into()));
        assert_eq!(shell("exit 1", &[0; 1 << 20], LONG).await, Answer::Refused("without a reason".into()));
        assert_eq!(shell("exit 2", b"", LONG).await, Answer::Died);
        assert_eq!(shell("kill -9 $$", b"", LONG).await, Answer::Died);
        assert_eq!(shell("exec cat", &[0; 100_001], LONG).await, Answer::TooLong);
    }

    #[tokio::test]
    async fn a_child_that_does_not_end_is_ended() {
        let start = Instant::now();
        for script in ["exec sleep 60", "exec yes", "exec cat; exec sleep 60", "exec >&-; exec sleep 60"] {
            let answer = shell(script, b"x", Duration::from_millis(300)).await;
            assert!(matches!(answer, Answer::Died | Answer::TooLong | Answer::Done(_)), "{script}: {answer:?}");
        }
        assert!(start.elapsed() < Duration::from_secs(50));
    }

    #[tokio::test]
    async fn a_child_inherits_no_environment() {
        // The shell makes PWD.
        assert_eq!(shell("env; pwd", b"", LONG).await, Answer::Done(b"PWD=/\n/\n".to_vec()));
    }
}
