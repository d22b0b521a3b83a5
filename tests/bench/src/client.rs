//! A client that costs as little as one can: a keep-alive connection, one write for a request.

use std::sync::Barrier;
use std::time::Instant;

use it::http::{Client, Connection};
use it::session::{escape, run_id};
use serde_json::{Value, json};

use crate::measure::{Row, Times};

/// Clients at once, commands of each, and sessions that they share.
const CLIENTS: usize = 16;
const EACH: usize = 20;
const SESSIONS: usize = 8;

/// The service, over one connection.
#[derive(Debug)]
pub struct Service {
    client: Client,
    connection: Connection,
}

/// An open session.
#[derive(Debug, Clone)]
pub struct Work {
    id: String,
    token: Vec<u8>,
}

impl Service {
    /// Connect.
    #[must_use]
    pub fn new(client: &Client) -> Self {
        Self { client: client.clone(), connection: client.connect() }
    }

    fn exchange(&mut self, token: &[u8], method: &str, path: &str, body: &[u8]) -> Vec<u8> {
        let head = self.client.with_token(token).head(method, path, Some("application/json"), body.len());
        let answer = self.connection.exchange(&head, body).expect("an answer");
        assert!(answer.status < 300, "{method} {path}: {} {}", answer.status, answer.text());
        answer.body
    }

    /// An empty round trip.
    pub fn health(&mut self) {
        let token = self.client.token.clone();
        self.exchange(&token, "GET", "/healthz", b"");
    }

    /// Open a session.
    pub fn open(&mut self) -> Work {
        let token = self.client.token.clone();
        let body = self.exchange(&token, "POST", "/sessions", br#"{"runtime": "python"}"#);
        let answer: Value = serde_json::from_slice(&body).expect("JSON");
        let text = |value: &Value| value.as_str().expect("a text").to_owned();
        Work { id: text(&answer["session"]["session_id"]), token: text(&answer["token"]).into_bytes() }
    }

    /// Close it, with its files.
    pub fn purge(&mut self, work: &Work) {
        self.exchange(&work.token, "DELETE", &format!("/sessions/{}?purge=true", work.id), b"");
    }

    /// Run a command, and check what it writes.
    pub fn run(&mut self, work: &Work, argv: &[&str], expected: &str) {
        let seen = self.output(work, argv);
        assert_eq!(seen, expected, "{argv:?}");
    }

    /// Run a command; what it writes.
    pub fn output(&mut self, work: &Work, argv: &[&str]) -> String {
        let body = json!({"argv": argv, "run_id": run_id()}).to_string();
        let bytes = self.exchange(&work.token, "POST", &format!("/sessions/{}/run", work.id), body.as_bytes());
        let answer: Value = serde_json::from_slice(&bytes).expect("JSON");
        assert_eq!(answer["exit_code"], 0, "{answer}");
        answer["stdout"].as_str().expect("a text").to_owned()
    }

    /// A file operation that names a path.
    pub fn file(&mut self, work: &Work, operation: &str, path: &str) -> Vec<u8> {
        let body = json!({"path": path}).to_string();
        self.exchange(&work.token, "POST", &format!("/sessions/{}/files/{operation}", work.id), body.as_bytes())
    }

    /// Write a file.
    pub fn write(&mut self, work: &Work, path: &str, content: &[u8]) {
        self.exchange(
            &work.token,
            "POST",
            &format!("/sessions/{}/files/write?path={}", work.id, escape(path)),
            content,
        );
    }
}

/// Many clients at once, each running `true` again and again.
#[allow(clippy::cast_precision_loss)] // a few hundred commands
pub fn together(client: &Client) -> Row {
    let mut service = Service::new(client);
    let works: Vec<Work> = (0..SESSIONS).map(|_| service.open()).collect();
    let gate = Barrier::new(CLIENTS + 1);
    let mut all = Times::default();
    let mut wall = 0.0;
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..CLIENTS)
            .map(|i| {
                let (gate, work) = (&gate, &works[i % SESSIONS]);
                scope.spawn(move || {
                    let mut service = Service::new(client);
                    service.run(work, &["true"], "");
                    gate.wait();
                    let mut times = Times::default();
                    (0..EACH).for_each(|_| times.take(|| service.run(work, &["true"], "")));
                    times
                })
            })
            .collect();
        gate.wait();
        let begun = Instant::now();
        for thread in threads {
            all.extend(thread.join().expect("a client"));
        }
        wall = begun.elapsed().as_secs_f64();
    });
    works.iter().for_each(|work| service.purge(work));
    let rate = all.count() as f64 / wall;
    Row::new(&format!("{CLIENTS} clients × `/run` of `true`, {SESSIONS} sessions ({rate:.0} commands/s)"), all)
}
