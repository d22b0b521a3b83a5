//! A session of an instance, and what a command in it answered.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::daemon::Daemon;
use crate::http::{Client, Connection, Response};

/// An open session; purged when it goes out of scope.
#[derive(Debug)]
pub struct Session {
    /// Its name.
    pub id: String,
    /// A client with its token.
    pub client: Client,
    service: Client,
}

/// What a command answered, and how long that took.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// The body of the answer.
    pub body: Value,
    /// From the request to the answer.
    pub took: Duration,
}

impl Outcome {
    /// Standard output.
    #[must_use]
    #[track_caller]
    pub fn stdout(&self) -> &str {
        self.body["stdout"].as_str().unwrap_or_else(|| panic!("no stdout: {}", self.body))
    }

    /// Standard error.
    #[must_use]
    #[track_caller]
    pub fn stderr(&self) -> &str {
        self.body["stderr"].as_str().unwrap_or_else(|| panic!("no stderr: {}", self.body))
    }

    /// Exit code; `None` for a command that was stopped.
    #[must_use]
    pub fn code(&self) -> Option<i64> {
        self.body["exit_code"].as_i64()
    }

    /// Panic unless the command succeeded, wrote exactly this to standard output, and nothing to standard error.
    #[track_caller]
    pub fn expect(&self, stdout: &str) -> &Self {
        assert_eq!((self.code(), self.stdout(), self.stderr()), (Some(0), stdout, ""), "{}", self.body);
        self.expect_finished()
    }

    /// Panic unless it ended by itself with this exit code.
    #[track_caller]
    pub fn expect_code(&self, code: i64) -> &Self {
        assert_eq!(self.code(), Some(code), "{}", self.body);
        self.expect_finished()
    }

    #[track_caller]
    fn expect_finished(&self) -> &Self {
        assert_eq!(self.body["timed_out"], false, "{}", self.body);
        assert_eq!(self.body["output_limited"], false, "{}", self.body);
        self
    }
}

/// A run id that no other run of this process has.
#[must_use]
pub fn run_id() -> String {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    format!("{:016x}{:016x}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

/// A session id that no other test has.
#[must_use]
pub fn fresh_id(what: &str) -> String {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    format!("it-{what}-{}", NEXT.fetch_add(1, Ordering::Relaxed))
}

impl Session {
    /// Open one with this body of `POST /sessions`.
    #[must_use]
    #[track_caller]
    pub fn open(daemon: &Daemon, body: Value) -> Self {
        let answer = daemon.client.post("/sessions", body).expect(200);
        Self::from_answer(daemon, &answer.json())
    }

    /// The session that an answer to `POST /sessions` speaks of.
    #[must_use]
    #[track_caller]
    pub fn from_answer(daemon: &Daemon, answer: &Value) -> Self {
        let text = |value: &Value| value.as_str().unwrap_or_else(|| panic!("{answer}")).to_owned();
        Self {
            id: text(&answer["session"]["session_id"]),
            client: daemon.client.with_token(text(&answer["token"])),
            service: daemon.client.clone(),
        }
    }

    /// A path below `/sessions/ID`.
    #[must_use]
    pub fn path(&self, rest: &str) -> String {
        format!("/sessions/{}{rest}", self.id)
    }

    /// Run a command to its end.
    #[track_caller]
    pub fn run<S: AsRef<str>>(&self, argv: impl IntoIterator<Item = S>) -> Outcome {
        self.run_with(argv, json!({}))
    }

    /// Run a shell's command line to its end.
    #[track_caller]
    pub fn sh(&self, line: &str) -> Outcome {
        self.run(["sh", "-c", line])
    }

    /// Run a command with more fields of a `RunRequest`.
    #[track_caller]
    pub fn run_with<S: AsRef<str>>(&self, argv: impl IntoIterator<Item = S>, more: Value) -> Outcome {
        let begun = Instant::now();
        let answer = self.try_run(argv, more).expect(200);
        Outcome { body: answer.json(), took: begun.elapsed() }
    }

    /// Run a shell's command line that does not end by itself up to its deadline, and once more with a later one while what it
    /// was to have done by then is not `done`: on a machine that is slow it has more time. The first deadline is `seconds`.
    ///
    /// # Panics
    /// It is not done with the latest either, or its deadline did not end it.
    #[track_caller]
    pub fn until_deadline<S: AsRef<str>>(
        &self,
        argv: &[S],
        seconds: f64,
        mut done: impl FnMut(&Outcome) -> bool,
    ) -> Outcome {
        let mut last = None;
        for seconds in [1.0, 4.0, 16.0, 64.0].map(|factor| factor * seconds) {
            let outcome = self.run_with(argv, json!({"timeout_seconds": seconds}));
            let ended = (outcome.code(), outcome.body["timed_out"].as_bool());
            assert_eq!(ended, (None, Some(true)), "{}", outcome.body);
            if done(&outcome) {
                return outcome;
            }
            last = Some(outcome);
        }
        panic!("not done by any deadline: {last:?}");
    }

    /// The same, whatever the answer's status.
    #[track_caller]
    pub fn try_run<S: AsRef<str>>(&self, argv: impl IntoIterator<Item = S>, more: Value) -> Response {
        let argv: Vec<String> = argv.into_iter().map(|argument| argument.as_ref().to_owned()).collect();
        let mut body = json!({"argv": argv, "run_id": run_id()});
        if let (Some(body), Value::Object(more)) = (body.as_object_mut(), more) {
            body.extend(more);
        }
        self.client.post(&self.path("/run"), body)
    }

    /// A file operation that names a path.
    #[track_caller]
    pub fn file(&self, operation: &str, path: &str) -> Response {
        self.client.post(&self.path(&format!("/files/{operation}")), json!({"path": path}))
    }

    /// Write a file through the API.
    #[track_caller]
    pub fn write(&self, path: &str, bytes: &[u8]) -> Response {
        self.client.post_bytes(&self.path(&format!("/files/write?path={}", escape(path))), bytes)
    }

    /// Close it and keep its workspace.
    #[track_caller]
    pub fn close(&self) {
        self.client.delete(&self.path("")).expect(204);
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // A test may have closed it, or ended the whole service.
        if let Ok(mut connection) = Connection::open(&self.service.endpoint) {
            let head = self.service.head("DELETE", &self.path("?purge=true"), None, 0);
            let _ = connection.exchange(&head, b"");
        }
    }
}

/// A text as a part of a query.
#[must_use]
pub fn escape(text: &str) -> String {
    let plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"-._~/".contains(byte);
    text.bytes().map(|byte| if plain(&byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") }).collect()
}
