//! A session's files: by the file routes, and by commands where the service answers that the
//! sandbox has to resolve a path (409).

use std::fs::File;
use std::io::{Cursor, Read, Seek};

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::StatusCode;
use indicatif::ProgressBar;
use serde::de::DeserializeOwned;
use wire::api::{FileEntry, FilePathRequest, RealpathResponse, ServicePolicy};
use wire::id::SessionId;

use crate::body::FileBody;
use crate::client::{Answer, Call, Client, encode};
use crate::error::Failure;
use crate::shell::Shell;

/// Where commands start unless the service says otherwise.
const WORK_DIR: &str = "/workspace";
/// Largest file that a service takes in one request unless it says otherwise, in bytes.
const MAX_NATIVE: u64 = 8 << 20;
/// Up to this a file is sent without asking for that ceiling, in bytes.
const SURELY_NATIVE: u64 = 64 << 10;

/// Takes a file's bytes as they come.
pub type Sink<'s> = dyn FnMut(&[u8]) -> Result<(), Failure> + 's;

/// The files of one session.
#[derive(Debug)]
pub struct Remote<'c> {
    client: &'c mut Client,
    session: SessionId,
    policy: Option<(String, u64)>,
}

impl<'c> Remote<'c> {
    /// Those of `session`.
    pub fn new(client: &'c mut Client, session: SessionId) -> Self {
        Self { client, session, policy: None }
    }

    /// `SESSION:PATH`, for messages.
    #[must_use]
    pub fn name(&self, path: &str) -> String {
        format!("{}:{path}", self.session)
    }

    /// `path` as an absolute one: a relative one starts at the work directory.
    pub async fn absolute(&mut self, path: &str) -> Result<String, Failure> {
        if path.starts_with('/') {
            return Ok(path.to_owned());
        }
        let (mut whole, _) = self.policy().await?;
        // `.` as text: the service would hand `/workspace/.` to the sandbox.
        for part in path.split('/').filter(|part| !matches!(*part, "" | ".")) {
            whole.push('/');
            whole.push_str(part);
        }
        if path.ends_with('/') {
            whole.push('/');
        }
        Ok(whole)
    }

    /// What is at a path, a link followed.
    pub async fn stat(&mut self, path: &str) -> Result<FileEntry, Failure> {
        match self.native(&format!("look at {}", self.name(path)), "stat", path).await? {
            Some(entry) => Ok(entry),
            None => self.shell().stat(path).await,
        }
    }

    /// The entries of a directory, sorted by name.
    pub async fn list(&mut self, path: &str) -> Result<Vec<FileEntry>, Failure> {
        match self.native(&format!("list {}", self.name(path)), "list", path).await? {
            Some(entries) => Ok(entries),
            None => self.shell().list(path).await,
        }
    }

    /// A directory's path with every link resolved.
    pub async fn realpath(&mut self, path: &str) -> Result<String, Failure> {
        match self.native::<RealpathResponse>(&format!("resolve {}", self.name(path)), "realpath", path).await? {
            Some(answer) => Ok(answer.path),
            None => self.shell().realpath(path).await,
        }
    }

    /// Make a directory and its parents.
    pub async fn mkdir(&mut self, path: &str) -> Result<(), Failure> {
        match self.done(&format!("make directory {}", self.name(path)), "mkdir", path).await? {
            true => Ok(()),
            false => self.shell().mkdir(path).await,
        }
    }

    /// Remove a file, a link itself, or a directory with all that is in it.
    pub async fn remove(&mut self, path: &str) -> Result<(), Failure> {
        match self.done(&format!("remove {}", self.name(path)), "remove", path).await? {
            true => Ok(()),
            false => self.shell().remove(path).await,
        }
    }

    /// Whether the service did it; not: the sandbox has to.
    async fn done(&mut self, what: &str, op: &str, path: &str) -> Result<bool, Failure> {
        let call = Call::post(what, self.route(op));
        let answer = self.client.ask_json(call, &FilePathRequest { path: path.to_owned() }).await?;
        answered(answer).map(|answer| answer.is_some())
    }

    /// A file's bytes, into `sink`.
    pub async fn read(&mut self, path: &str, sink: &mut Sink<'_>) -> Result<(), Failure> {
        let what = format!("read {}", self.name(path));
        let call = Call::post(&what, self.route("read"));
        let mut response = self.client.open_json(&call, &FilePathRequest { path: path.to_owned() }).await?;
        if !response.status().is_success() {
            let answer = self.client.collect(&call, response).await?;
            return match answered(answer)? {
                Some(_) => Ok(()),
                None => self.shell().read(path, sink).await,
            };
        }
        while let Some(frame) = response.frame().await {
            let frame = frame.map_err(|source| self.client.broken(&what, source))?;
            if let Some(bytes) = frame.data_ref() {
                sink(bytes)?;
            }
        }
        Ok(())
    }

    /// Write a local file of `len` bytes to a path.
    pub async fn write_file(
        &mut self,
        path: &str,
        mut file: File,
        len: u64,
        progress: &ProgressBar,
    ) -> Result<(), Failure> {
        // One that is over the ceiling would be refused while it is under way.
        if len > SURELY_NATIVE && len > self.policy().await?.1 {
            return self.shell().write(path, &mut file, progress).await;
        }
        let again = file.try_clone().map_err(|e| Failure::local("open again", "the local file", e))?;
        let what = format!("write {}", self.name(path));
        let call = self.write_call(&what, path);
        let answer = self.client.ask_file(call, FileBody::new(file, len, progress.clone())).await?;
        if answered(answer)?.is_some() {
            return Ok(());
        }
        let mut file = again;
        file.rewind().map_err(|e| Failure::local("read again", "the local file", e))?;
        progress.set_position(progress.position().saturating_sub(len));
        self.shell().write(path, &mut file, progress).await
    }

    /// Write what a stream holds, whose length nobody knows, to a path.
    pub async fn write_stream(
        &mut self,
        path: &str,
        mut stream: impl Read,
        progress: &ProgressBar,
    ) -> Result<(), Failure> {
        let (_, max) = self.policy().await?;
        let mut head = Vec::new();
        let mut beginning = (&mut stream).take(max + 1);
        beginning.read_to_end(&mut head).map_err(|e| Failure::local("read", "standard input", e))?;
        let whole = head.len() as u64 <= max;
        if whole {
            let what = format!("write {}", self.name(path));
            let call = self.write_call(&what, path);
            let answer = self.client.ask_bytes(call, Bytes::from(head.clone())).await?;
            if answered(answer)?.is_some() {
                progress.inc(head.len() as u64);
                return Ok(());
            }
        }
        let mut rest = Cursor::new(head).chain(stream);
        self.shell().write(path, &mut rest, progress).await
    }

    fn write_call<'a>(&self, what: &'a str, path: &str) -> Call<'a> {
        Call::post(what, format!("{}?path={}", self.route("write"), encode(path))).within(None)
    }

    fn route(&self, op: &str) -> String {
        format!("/sessions/{}/files/{op}", self.session)
    }

    fn shell(&mut self) -> Shell<'_> {
        Shell::new(self.client, &self.session)
    }

    /// The service's answer about a path; `None`: the sandbox has to resolve it.
    async fn native<T: DeserializeOwned>(&mut self, what: &str, op: &str, path: &str) -> Result<Option<T>, Failure> {
        let call = Call::post(what, self.route(op));
        let answer = self.client.ask_json(call, &FilePathRequest { path: path.to_owned() }).await?;
        answered(answer)?.map(Answer::parse).transpose()
    }

    /// The work directory and the largest file in one request. A session's token may not ask: then the defaults.
    async fn policy(&mut self) -> Result<(String, u64), Failure> {
        if let Some(known) = &self.policy {
            return Ok(known.clone());
        }
        let answer = self.client.ask(Call::get("read the policy", "/policy")).await?;
        let known = if matches!(answer.status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) {
            (WORK_DIR.to_owned(), MAX_NATIVE)
        } else {
            let policy: ServicePolicy = answer.parse()?;
            (policy.work_dir, policy.max_read_bytes)
        };
        self.policy = Some(known.clone());
        Ok(known)
    }
}

/// `None` where the service hands the operation back.
fn answered(answer: Answer) -> Result<Option<Answer>, Failure> {
    if answer.status == StatusCode::CONFLICT { Ok(None) } else { answer.ok().map(Some) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Server, reply};

    fn session() -> SessionId {
        SessionId::parse("s1").unwrap()
    }

    #[tokio::test]
    async fn relative_paths_start_at_the_work_directory() {
        let server = Server::tcp(|_| reply(401, r#"{"detail": "no"}"#)).await;
        let mut client = server.client();
        let mut remote = Remote::new(&mut client, session());
        for (path, whole) in [
            ("/etc/passwd", "/etc/passwd"),
            (".", "/workspace"),
            ("", "/workspace"),
            ("./a//b", "/workspace/a/b"),
            ("a/", "/workspace/a/"),
            ("../etc", "/workspace/../etc"),
        ] {
            assert_eq!(remote.absolute(path).await.unwrap(), whole);
        }
        assert_eq!(server.seen().len(), 1, "the policy is asked for once");
    }

    #[tokio::test]
    async fn native_answers_are_taken_and_path_errors_kept() {
        let server = Server::tcp(|request| match request.path() {
            "/sessions/s1/files/read" => reply(200, "bytes"),
            "/sessions/s1/files/write" => reply(204, ""),
            _ => reply(404, r#"{"detail": {"error": "FileNotFoundError", "message": "nothing"}}"#),
        })
        .await;
        let mut client = server.client();
        let mut remote = Remote::new(&mut client, session());
        let mut got = Vec::new();
        remote
            .read("/workspace/a", &mut |bytes| {
                got.extend_from_slice(bytes);
                Ok(())
            })
            .await
            .unwrap();
        assert_eq!(got, b"bytes");
        assert!(remote.stat("/workspace/b").await.unwrap_err().is_missing_path());
        let file = tempfile::tempfile().unwrap();
        remote.write_file("/workspace/a b", file, 0, &ProgressBar::hidden()).await.unwrap();
        assert!(server.seen()[2].head.starts_with("POST /sessions/s1/files/write?path=/workspace/a%20b "));
    }

    #[tokio::test]
    async fn what_the_sandbox_has_to_resolve_goes_through_a_command() {
        let server = Server::tcp(|request| match request.path() {
            "/sessions/s1/run" => {
                let script = request.json()["argv"][2].as_str().unwrap().to_owned();
                let stdout = if script.contains("base64") { "aGkh" } else { "f3\\n" };
                reply(200, &format!(
                    r#"{{"stdout": "{stdout}", "stderr": "", "exit_code": 0, "timed_out": false, "output_limited": false, "output_limit": null}}"#
                ))
            }
            _ => reply(409, r#"{"detail": "a link"}"#),
        })
        .await;
        let mut client = server.client();
        let mut remote = Remote::new(&mut client, session());
        let mut got = Vec::new();
        remote
            .read("/workspace/-link", &mut |bytes| {
                got.extend_from_slice(bytes);
                Ok(())
            })
            .await
            .unwrap();
        assert_eq!(got, b"hi!");
        let runs: Vec<_> = server.seen().iter().filter(|r| r.path().ends_with("/run")).map(|r| r.json()).collect();
        assert!(
            runs.iter().all(|run| run["argv"][4] == "/workspace/-link" && run["run_id"].as_str().unwrap().len() == 32)
        );
    }
}
