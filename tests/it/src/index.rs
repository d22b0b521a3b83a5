//! What stands before PyPI and the npm registry, on loopback, and counts what is fetched: `data/index`.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};

use crate::daemon::repository;
use crate::http::{Client, Endpoint};

/// It runs as long as this is there.
#[derive(Debug)]
pub struct Index {
    process: Child,
    port: u16,
}

impl Index {
    /// Start it.
    #[must_use]
    pub fn start() -> Self {
        let mut command = Command::new("python3");
        command.arg(repository().join("tests/it/data/index"));
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("start python3");
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let port = line.trim().parse().expect("a port");
        Self { process, port }
    }

    /// The setting `build_env` of a service whose builds are to ask it.
    #[must_use]
    pub fn build_env(&self) -> String {
        let here = format!("http://127.0.0.1:{}", self.port);
        json!({
            "PIP_INDEX_URL": format!("{here}/simple/"),
            // pip keeps nothing that came from where it does not trust.
            "PIP_TRUSTED_HOST": "127.0.0.1",
            "npm_config_registry": format!("{here}/npm/"),
        })
        .to_string()
    }

    /// Names of the packages' files that were fetched since this was asked last, sorted.
    #[must_use]
    pub fn fetched(&self) -> Vec<String> {
        let client = Client::new(Endpoint::Tcp(([127, 0, 0, 1], self.port).into()), "");
        let paths = client.get("/fetched").expect(200).json();
        let paths = paths.as_array().into_iter().flatten().filter_map(Value::as_str);
        let files = paths.filter(|path| [".whl", ".tar.gz", ".tgz"].iter().any(|end| path.ends_with(end)));
        let mut names: Vec<String> = files.filter_map(|path| Some(path.rsplit_once('/')?.1.to_owned())).collect();
        names.sort();
        names
    }
}

impl Drop for Index {
    fn drop(&mut self) {
        drop(self.process.stdin.take());
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
