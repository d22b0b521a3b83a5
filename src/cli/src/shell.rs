//! File operations through commands in the sandbox: for links that lead out of the workspace,
//! special files, foreign owners, and what is too large for one request.
//!
//! Scripts are constant; paths are their arguments, so nothing is quoted. Each begins paths with
//! `/`, so none is taken for an option. Bytes travel as base64, because a command's output is text.

use std::io::Read;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use indicatif::ProgressBar;
use uuid::Uuid;
use wire::api::{Detail, FileEntry, PathError, RunRequest, RunResponse};
use wire::id::{RunId, SessionId};

use crate::client::{Call, Client};
use crate::error::Failure;
use crate::remote::Sink;

/// Blocks of 64 KiB that one command reads: its output is 4 MiB, under the service's 10.
const READ_BLOCKS: u64 = 48;
const BLOCK: u64 = 64 << 10;
/// Bytes in one argument of a writing command: 96 KiB in base64, under the kernel's 128.
const ARGUMENT: usize = 72 << 10;
/// Arguments of one writing command: 768 KiB together, under the kernel's 2 MiB.
const ARGUMENTS: usize = 8;

// Exit codes: 100 and the errno, which no tool in the scripts uses.
const STAT: &str = "if test -d \"$1\"; then echo d; \
elif test -f \"$1\"; then test -r \"$1\" || exit 113; printf f; wc -c < \"$1\"; \
elif test -e \"$1\"; then exit 122; else exit 102; fi";
const LIST: &str = "test -d \"$1\" || { test -e \"$1\" && exit 120; exit 102; }; \
test -r \"$1\" && test -x \"$1\" || exit 113; \
exec find -H \"$1\" -mindepth 1 -maxdepth 1 -exec sh -c 'for f do if test -d \"$f\"; then printf d; \
elif test -f \"$f\" && test -r \"$f\"; then printf %d $(wc -c < \"$f\"); else printf -; fi; \
printf \"/%s\\0\" \"${f##*/}\"; done' sh {} +";
const REALPATH: &str = "readlink -f \"$1\" || exit 102";
const MKDIR: &str = "if test -e \"$1\" && ! test -d \"$1\"; then exit 117; fi; mkdir -p \"$1\"";
const REMOVE: &str = "test -e \"$1\" || test -L \"$1\" || exit 102; rm -rf \"$1\" || exit 113";
const READ: &str = "dd if=\"$1\" bs=65536 skip=\"$2\" count=\"$3\" 2>/dev/null | base64";
// Prints where the bytes go: beside the file that a link leads to.
const BEGIN: &str = "p=${1%/*}; mkdir -p \"${p:-/}\" || exit 1; test -d \"$1\" && exit 121; \
if test -e \"$1\"; then test -f \"$1\" || exit 122; test -w \"$1\" || exit 113; fi; \
d=$(readlink -f \"$1\") || exit 102; : > \"${d%/*}/$2\" || exit 113; printf %s \"$d\"";
const APPEND: &str = "t=$1; shift; for p do printf %s \"$p\" | base64 -d || exit 1; done >> \"$t\"";
// An existing file's mode and owner stay: its copy is filled, then takes its place.
const COMMIT: &str = "if test -f \"$1\"; then cp -p \"$1\" \"$2.new\" && cat \"$2\" > \"$2.new\" && mv -f \"$2.new\" \"$1\"; \
else mv -f \"$2\" \"$1\"; fi; s=$?; rm -f \"$2\" \"$2.new\"; exit $s";
const DISCARD: &str = "rm -f \"$1\" \"$1.new\"";

/// The shell of one session.
#[derive(Debug)]
pub struct Shell<'c> {
    client: &'c mut Client,
    session: &'c SessionId,
}

impl<'c> Shell<'c> {
    /// That of `session`.
    pub fn new(client: &'c mut Client, session: &'c SessionId) -> Self {
        Self { client, session }
    }

    /// What is at a path, a link followed.
    pub async fn stat(&mut self, path: &str) -> Result<FileEntry, Failure> {
        let text = self.script("look at", STAT, path, Vec::new()).await?;
        let name = path.trim_end_matches('/').rsplit('/').next().unwrap_or_default().to_owned();
        let size = match text.trim().strip_prefix('f') {
            Some(size) => Some(size.trim().parse().map_err(|_| self.odd("look at", path, &text))?),
            None => None,
        };
        Ok(FileEntry { name, path: path.to_owned(), is_dir: size.is_none(), size, modified_at: None })
    }

    /// The entries of a directory, sorted by name.
    pub async fn list(&mut self, path: &str) -> Result<Vec<FileEntry>, Failure> {
        let text = self.script("list", LIST, path, Vec::new()).await?;
        let base = path.trim_end_matches('/');
        let mut entries = Vec::new();
        for row in text.split('\0').filter(|row| !row.is_empty()) {
            let (kind, name) = row.split_once('/').ok_or_else(|| self.odd("list", path, row))?;
            let size = if kind == "d" { None } else { Some(kind.parse().unwrap_or(0)) };
            let (path, name) = (format!("{base}/{name}"), name.to_owned());
            entries.push(FileEntry { name, path, is_dir: kind == "d", size, modified_at: None });
        }
        entries.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(entries)
    }

    /// A path with every link resolved.
    pub async fn realpath(&mut self, path: &str) -> Result<String, Failure> {
        let text = self.script("resolve", REALPATH, path, Vec::new()).await?;
        Ok(text.strip_suffix('\n').unwrap_or(&text).to_owned())
    }

    /// Make a directory and its parents.
    pub async fn mkdir(&mut self, path: &str) -> Result<(), Failure> {
        self.script("make directory", MKDIR, path, Vec::new()).await.map(drop)
    }

    /// Remove a file, a link itself, or a directory with all that is in it.
    pub async fn remove(&mut self, path: &str) -> Result<(), Failure> {
        self.script("remove", REMOVE, path, Vec::new()).await.map(drop)
    }

    /// A file's bytes, piece by piece: as many as it had at the beginning.
    pub async fn read(&mut self, path: &str, sink: &mut Sink<'_>) -> Result<(), Failure> {
        let entry = self.stat(path).await?;
        let Some(size) = entry.size else {
            return Err(self.path_error("read", path, "IsADirectoryError", "Is a directory"));
        };
        let (mut done, mut block) = (0, 0);
        while done < size {
            let place = vec![block.to_string(), READ_BLOCKS.to_string()];
            let text = self.script("read", READ, path, place).await?;
            let packed: Vec<u8> = text.bytes().filter(|b| !b.is_ascii_whitespace()).collect();
            let mut bytes = STANDARD.decode(packed).map_err(|_| self.odd("read", path, "no base64"))?;
            bytes.truncate(usize::try_from(size - done).unwrap_or(usize::MAX));
            if bytes.len() as u64 != (size - done).min(BLOCK * READ_BLOCKS) {
                return Err(Failure::Copy {
                    what: format!("read {}:{path}", self.session),
                    reason: "it changed meanwhile".into(),
                });
            }
            sink(&bytes)?;
            done += bytes.len() as u64;
            block += READ_BLOCKS;
        }
        Ok(())
    }

    /// Write to a path what `source` holds. Readers see the old content or the new.
    pub async fn write(&mut self, path: &str, source: &mut dyn Read, progress: &ProgressBar) -> Result<(), Failure> {
        let name = format!(".sandboxctl-{}", Uuid::new_v4().simple());
        let target = self.script("write", BEGIN, path, vec![name.clone()]).await?;
        let directory = target.rsplit_once('/').map_or("", |(directory, _)| directory);
        let temporary = format!("{directory}/{name}");
        let mut done = self.fill(&temporary, source, progress).await;
        if done.is_ok() {
            done = self.script("write", COMMIT, &target, vec![temporary.clone()]).await.map(drop);
        }
        if done.is_err() {
            // What failed is worth telling, not that the rest of it could not be swept.
            let _ = self.script("discard", DISCARD, &temporary, Vec::new()).await;
        }
        done
    }

    async fn fill(&mut self, temporary: &str, source: &mut dyn Read, progress: &ProgressBar) -> Result<(), Failure> {
        loop {
            let mut piece = Vec::new();
            (&mut *source)
                .take((ARGUMENT * ARGUMENTS) as u64)
                .read_to_end(&mut piece)
                .map_err(|e| Failure::local("read", "the local file", e))?;
            if piece.is_empty() {
                return Ok(());
            }
            let packed = piece.chunks(ARGUMENT).map(|part| STANDARD.encode(part)).collect();
            self.script("write", APPEND, temporary, packed).await?;
            progress.inc(piece.len() as u64);
        }
    }

    /// Run a script on a path; its standard output.
    async fn script(&mut self, what: &str, script: &str, path: &str, more: Vec<String>) -> Result<String, Failure> {
        let mut argv: Vec<String> = ["sh", "-c", script, "sh", path].map(str::to_owned).into();
        argv.extend(more);
        let name = format!("{what} {}:{path}", self.session);
        let call = Call::post(&name, format!("/sessions/{}/run", self.session)).within(None);
        let run_id = RunId::from_u128(Uuid::new_v4().as_u128());
        let request = RunRequest { argv, env: std::collections::BTreeMap::new(), timeout_seconds: None, run_id };
        let ran: RunResponse = self.client.ask_json(call, &request).await?.parse()?;
        let (error, message) = match ran.exit_code {
            Some(0) => return Ok(ran.stdout),
            Some(102) => ("FileNotFoundError", "No such file or directory"),
            Some(113) => ("PermissionError", "Permission denied"),
            Some(117) => ("FileExistsError", "File exists"),
            Some(120) => ("NotADirectoryError", "Not a directory"),
            Some(121) => ("IsADirectoryError", "Is a directory"),
            Some(122) => ("OSError", "Neither a plain file nor a directory"),
            Some(_) | None => {
                return Err(Failure::Copy { what: name, reason: why(&ran) });
            }
        };
        Err(self.path_error(what, path, error, message))
    }

    fn path_error(&self, what: &str, path: &str, error: &str, message: &str) -> Failure {
        let detail = Detail::Path(PathError { error: error.to_owned(), message: format!("{message}: '{path}'") });
        let status = if error == "FileNotFoundError" { 404 } else { 400 };
        Failure::Refused {
            what: format!("{what} {}:{path}", self.session),
            address: self.client.address(),
            status,
            detail,
            request: None,
        }
    }

    fn odd(&self, what: &str, path: &str, answer: &str) -> Failure {
        let answer: String = answer.chars().take(80).collect();
        Failure::Copy {
            what: format!("{what} {}:{path}", self.session),
            reason: format!("the sandbox answered {answer:?}"),
        }
    }
}

/// Why a script failed, in the sandbox's own words.
fn why(ran: &RunResponse) -> String {
    let words: String = ran.stderr.trim().chars().take(300).collect();
    match (ran.timed_out, ran.output_limited, ran.exit_code) {
        (true, ..) => "the command in the sandbox passed its deadline".to_owned(),
        (_, true, _) => "the answer is over the limit of a command's output".to_owned(),
        (.., code) if words.is_empty() => format!("the command in the sandbox ended with {code:?}"),
        _ => words,
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::process::Command;

    use super::*;
    use crate::testing::{Seen, Server, reply};

    /// Runs what it is asked to run, on this machine.
    fn execute(request: &Seen) -> String {
        let argv: Vec<String> = serde_json::from_value(request.json()["argv"].clone()).unwrap();
        let ran = Command::new(&argv[0]).args(&argv[1..]).output().unwrap();
        let answer = RunResponse {
            stdout: String::from_utf8_lossy(&ran.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&ran.stderr).into_owned(),
            exit_code: ran.status.code(),
            timed_out: false,
            output_limited: false,
            output_limit: None,
            limit: None,
            usage: None,
        };
        reply(200, &serde_json::to_string(&answer).unwrap())
    }

    fn text(dir: &std::path::Path, name: &str) -> String {
        dir.join(name).to_str().unwrap().to_owned()
    }

    #[tokio::test]
    async fn bytes_go_both_ways_whatever_they_are() {
        let server = Server::unix(execute).await;
        let (mut client, session) = (server.client(), SessionId::parse("s").unwrap());
        let mut shell = Shell::new(&mut client, &session);
        let dir = tempfile::tempdir().unwrap();
        let sizes = [0, 1, ARGUMENT * ARGUMENTS + 1, (BLOCK * READ_BLOCKS) as usize + 5];
        for len in sizes {
            let bytes: Vec<u8> = (0..len).map(|i| (i * 7 % 251) as u8).collect();
            let path = text(dir.path(), "new dir/it's \"$HOME\" --x");
            shell.write(&path, &mut bytes.as_slice(), &ProgressBar::hidden()).await.unwrap();
            assert_eq!(std::fs::read(&path).unwrap(), bytes);
            let mut got = Vec::new();
            shell
                .read(&path, &mut |piece| {
                    got.extend_from_slice(piece);
                    Ok(())
                })
                .await
                .unwrap();
            assert!(got == bytes, "{len} bytes");
        }
        let left: Vec<_> = std::fs::read_dir(dir.path().join("new dir")).unwrap().collect();
        assert_eq!(left.len(), 1, "nothing temporary is left");
    }

    #[tokio::test]
    async fn a_write_goes_through_a_link_and_keeps_the_mode() {
        let server = Server::unix(execute).await;
        let (mut client, session) = (server.client(), SessionId::parse("s").unwrap());
        let mut shell = Shell::new(&mut client, &session);
        let dir = tempfile::tempdir().unwrap();
        let target = dir.path().join("target");
        std::fs::write(&target, "old").unwrap();
        std::fs::set_permissions(&target, std::fs::Permissions::from_mode(0o640)).unwrap();
        symlink("target", dir.path().join("link")).unwrap();
        shell.write(&text(dir.path(), "link"), &mut &b"new"[..], &ProgressBar::hidden()).await.unwrap();
        assert_eq!(std::fs::read(&target).unwrap(), b"new");
        assert_eq!(std::fs::metadata(&target).unwrap().permissions().mode() & 0o777, 0o640);
        assert!(dir.path().join("link").is_symlink());
    }

    #[tokio::test]
    async fn listings_follow_links_and_stop_at_nothing_odd() {
        let server = Server::unix(execute).await;
        let (mut client, session) = (server.client(), SessionId::parse("s").unwrap());
        let mut shell = Shell::new(&mut client, &session);
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("b")).unwrap();
        std::fs::write(dir.path().join("a\nx"), "four").unwrap();
        symlink("b", dir.path().join("c")).unwrap();
        symlink("loop", dir.path().join("loop")).unwrap();
        let entries = shell.list(dir.path().to_str().unwrap()).await.unwrap();
        let seen: Vec<_> = entries.iter().map(|e| (e.name.as_str(), e.is_dir, e.size)).collect();
        assert_eq!(seen, [("a\nx", false, Some(4)), ("b", true, None), ("c", true, None), ("loop", false, Some(0))]);
        assert_eq!(shell.stat(&text(dir.path(), "c")).await.unwrap().name, "c");
        assert_eq!(shell.realpath(&text(dir.path(), "c")).await.unwrap(), text(dir.path(), "b"));
    }

    #[tokio::test]
    async fn what_is_removed_is_the_link_and_not_where_it_leads() {
        let server = Server::unix(execute).await;
        let (mut client, session) = (server.client(), SessionId::parse("s").unwrap());
        let mut shell = Shell::new(&mut client, &session);
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("kept/below")).unwrap();
        symlink("kept", dir.path().join("link")).unwrap();
        symlink("nowhere", dir.path().join("dangling")).unwrap();
        for name in ["link", "dangling"] {
            shell.remove(&text(dir.path(), name)).await.unwrap();
            assert!(shell.remove(&text(dir.path(), name)).await.unwrap_err().is_missing_path());
        }
        assert!(dir.path().join("kept/below").is_dir());
        shell.remove(&text(dir.path(), "kept")).await.unwrap();
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[tokio::test]
    async fn refusals_have_the_names_of_path_errors() {
        let server = Server::unix(execute).await;
        let (mut client, session) = (server.client(), SessionId::parse("s").unwrap());
        let mut shell = Shell::new(&mut client, &session);
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("file"), "").unwrap();
        let (file, none) = (text(dir.path(), "file"), text(dir.path(), "none"));
        assert!(shell.stat(&none).await.unwrap_err().is_missing_path());
        assert!(shell.list(&file).await.unwrap_err().is_path_error("NotADirectoryError"));
        assert!(shell.mkdir(&file).await.unwrap_err().is_path_error("FileExistsError"));
        assert!(shell.stat("/dev/null").await.unwrap_err().is_path_error("OSError"));
        let onto = shell.write(dir.path().to_str().unwrap(), &mut &b""[..], &ProgressBar::hidden()).await;
        assert!(onto.unwrap_err().is_path_error("IsADirectoryError"));
    }
}
