//! A service in the guest, and sandboxes of it that can be looked at from outside.

use std::fs;
use std::path::PathBuf;

use it::Client;
use it::pair::Pair;
use serde_json::{Value, json};

/// Whether this is the guest of `make vm`. Elsewhere a test that asks does nothing, and says why.
#[must_use]
pub fn is_guest() -> bool {
    let guest = std::env::var_os("IT_LIMITS").is_some_and(|limits| limits == "enforce");
    if !guest {
        eprintln!("skipped: needs a host with every cgroup controller; `make vm` is one");
    }
    guest
}

/// A service with these settings, or nothing where it cannot be.
#[must_use]
pub fn service(settings: &[(&str, &str)]) -> Option<Pair> {
    is_guest().then(|| {
        let settings: Vec<(String, &str)> =
            settings.iter().map(|(name, value)| (format!("SANDBOXD_{}", name.to_uppercase()), *value)).collect();
        let settings: Vec<(&str, &str)> = settings.iter().map(|(name, value)| (name.as_str(), *value)).collect();
        Pair::start(&settings)
    })
}

/// A session's sandbox.
#[derive(Debug)]
pub struct Sandbox {
    /// Its name.
    pub id: String,
    /// A client with its token.
    pub client: Client,
    /// Its cgroup.
    pub cgroup: PathBuf,
}

impl Sandbox {
    /// A new session.
    #[track_caller]
    pub fn open(pair: &Pair) -> Self {
        let opened = pair.client.post("/sessions", json!({"runtime": "base"})).expect(200).json();
        let id = opened["session"]["session_id"].as_str().unwrap().to_owned();
        let client = pair.client.with_token(opened["token"].as_str().unwrap().to_owned());
        let cgroup = pair.cgroup.join(format!("sandbox-{id}"));
        Self { id, client, cgroup }
    }

    /// Run a shell's command line.
    #[track_caller]
    pub fn sh(&self, line: &str) -> Value {
        let run = json!({"argv": ["sh", "-c", line], "run_id": it::session::run_id()});
        self.client.post(&format!("/sessions/{}/run", self.id), run).expect(200).json()
    }

    /// What a command line prints that ends well.
    #[track_caller]
    pub fn says(&self, line: &str) -> String {
        let answer = self.sh(line);
        assert_eq!(answer["exit_code"], 0, "{line}: {answer}");
        answer["stdout"].as_str().unwrap().trim().to_owned()
    }

    /// A file of the cgroup that holds its limits.
    #[track_caller]
    pub fn limit(&self, file: &str) -> String {
        let path = self.cgroup.join("commands").join(file);
        fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display())).trim().to_owned()
    }

    /// A number of its own cgroup.
    #[track_caller]
    pub fn number(&self, file: &str) -> u64 {
        fs::read_to_string(self.cgroup.join(file)).unwrap().trim().parse().unwrap()
    }

    /// What `GET /sessions/{id}` says of it.
    #[track_caller]
    pub fn info(&self) -> Value {
        self.client.get(&format!("/sessions/{}?usage=true", self.id)).expect(200).json()
    }

    /// What became of its last command, in the words of its events.
    #[track_caller]
    pub fn last_event(&self) -> String {
        let events = self.client.get(&format!("/sessions/{}/events", self.id)).expect(200).json();
        let last = events["events"].as_array().and_then(|events| events.last()).unwrap_or_else(|| panic!("{events}"));
        last["detail"].as_str().unwrap().to_owned()
    }
}
