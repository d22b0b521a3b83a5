//! Out of a session. Names come from the sandbox: each is one component or is left out.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use indicatif::ProgressBar;
use wire::api::FileEntry;

use super::{MAX_DEPTH, Tally, base_name, is_component};
use crate::error::Failure;
use crate::output;
use crate::remote::Remote;

/// A file, to standard output.
pub async fn to_stream(remote: &mut Remote<'_>, path: &str) -> Result<Tally, Failure> {
    let path = remote.absolute(path).await?;
    let mut bytes = 0;
    remote
        .read(&path, &mut |piece| {
            bytes += piece.len() as u64;
            output::print(piece)
        })
        .await?;
    Ok(Tally { files: 1, bytes, ..Tally::default() })
}

/// A file or a directory, to a local path.
pub async fn download(
    remote: &mut Remote<'_>,
    path: &str,
    local: &str,
    progress: &ProgressBar,
) -> Result<Tally, Failure> {
    let path = remote.absolute(path).await?;
    let entry = remote.stat(&path).await?;
    let local = target(&path, local)?;
    let mut tally = Tally::default();
    if entry.is_dir {
        tree(remote, &path, local, progress, &mut tally).await?;
    } else {
        tally.enter()?;
        file(remote, &path, &local, &entry, progress, &mut tally).await?;
    }
    Ok(tally)
}

/// An existing directory takes the source under its own name.
fn target(path: &str, local: &str) -> Result<PathBuf, Failure> {
    let place = PathBuf::from(local);
    if !place.is_dir() {
        if local.ends_with('/') && !path.ends_with('/') && !place.exists() {
            return Err(Failure::local("find directory", local, io::ErrorKind::NotFound.into()));
        }
        return Ok(place);
    }
    let name = base_name(path);
    if is_component(name) { Ok(place.join(name)) } else { Ok(place) }
}

struct Directory {
    remote: String,
    local: PathBuf,
    depth: usize,
}

async fn tree(
    remote: &mut Remote<'_>,
    path: &str,
    local: PathBuf,
    progress: &ProgressBar,
    tally: &mut Tally,
) -> Result<(), Failure> {
    // Resolved, so that a directory reached through a link shows: its real path is another one.
    let top = remote.realpath(path).await?;
    let mut waiting = vec![Directory { remote: top, local, depth: 0 }];
    while let Some(directory) = waiting.pop() {
        tally.enter()?;
        let entries = match remote.list(&directory.remote).await {
            Err(failure @ Failure::Refused { .. }) if directory.depth > 0 => {
                tally.skip(&directory.remote, &failure.text());
                continue;
            }
            entries => entries?,
        };
        make(&directory.local)?;
        tally.directories += 1;
        for entry in entries {
            if !is_component(&entry.name) {
                tally.skip(&format!("{}/{}", directory.remote, entry.name), "its name is not one");
                continue;
            }
            let inside = format!("{}/{}", directory.remote.trim_end_matches('/'), entry.name);
            let local = directory.local.join(&entry.name);
            if !entry.is_dir {
                tally.enter()?;
                leaf(remote, &inside, &local, &entry, progress, tally).await?;
            } else if directory.depth + 1 > MAX_DEPTH {
                tally.skip(&inside, "it is too deep");
            } else if remote.realpath(&inside).await? != inside {
                tally.skip(&inside, "it is a link to a directory");
            } else {
                waiting.push(Directory { remote: inside, local, depth: directory.depth + 1 });
            }
        }
    }
    Ok(())
}

fn make(local: &Path) -> Result<(), Failure> {
    match fs::create_dir(local) {
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists && local.is_dir() => Ok(()),
        made => made.map_err(|e| Failure::local("make directory", local.display().to_string(), e)),
    }
}

/// A file of a tree: what the sandbox does not give is left out, and the rest goes on.
async fn leaf(
    remote: &mut Remote<'_>,
    path: &str,
    local: &Path,
    entry: &FileEntry,
    progress: &ProgressBar,
    tally: &mut Tally,
) -> Result<(), Failure> {
    match file(remote, path, local, entry, progress, tally).await {
        Err(failure @ (Failure::Refused { .. } | Failure::Copy { .. })) => {
            tally.skip(path, &failure.text());
            Ok(())
        }
        done => done,
    }
}

async fn file(
    remote: &mut Remote<'_>,
    path: &str,
    local: &Path,
    entry: &FileEntry,
    progress: &ProgressBar,
    tally: &mut Tally,
) -> Result<(), Failure> {
    progress.inc_length(entry.size.unwrap_or(0));
    let shown = local.display().to_string();
    let mut draft = Draft::begin(local).map_err(|e| Failure::local("write", &shown, e))?;
    let mut bytes = 0;
    remote
        .read(path, &mut |piece| {
            bytes += piece.len() as u64;
            progress.inc(piece.len() as u64);
            draft.file.write_all(piece).map_err(|e| Failure::local("write", &shown, e))
        })
        .await?;
    draft.commit().map_err(|e| Failure::local("write", &shown, e))?;
    tally.files += 1;
    tally.bytes += bytes;
    Ok(())
}

/// A file beside its place until it is whole; gone if it never is. What is not a plain file, such as
/// `/dev/null` or a named pipe, is written itself.
struct Draft {
    file: File,
    beside: Option<(PathBuf, PathBuf)>,
}

impl Draft {
    fn begin(place: &Path) -> io::Result<Self> {
        if place.metadata().is_ok_and(|m| !m.is_file()) {
            return Ok(Self { file: File::options().write(true).open(place)?, beside: None });
        }
        // Through a link of the user's own: what it leads to is replaced, not the link.
        let place = if place.is_symlink() {
            place.canonicalize().unwrap_or_else(|_| place.to_owned())
        } else {
            place.to_owned()
        };
        let beside = place.with_file_name(format!(".sandboxctl-{}", uuid::Uuid::new_v4().simple()));
        let file = File::options().write(true).create_new(true).open(&beside)?;
        if let Ok(old) = place.metadata() {
            file.set_permissions(old.permissions())?;
        }
        Ok(Self { file, beside: Some((beside, place)) })
    }

    fn commit(mut self) -> io::Result<()> {
        match self.beside.take() {
            Some((beside, place)) => fs::rename(&beside, &place).inspect_err(|_| {
                let _ = fs::remove_file(&beside);
            }),
            None => Ok(()),
        }
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        if let Some((beside, _)) = &self.beside {
            let _ = fs::remove_file(beside);
        }
    }
}

#[cfg(test)]
mod tests {
    use wire::id::SessionId;

    use super::*;
    use crate::testing::{Server, reply};

    fn entry(name: &str, size: Option<u64>) -> String {
        let size = size.map_or_else(|| "null".to_owned(), |s| s.to_string());
        let dir = size == "null";
        format!(r#"{{"name": "{name}", "path": "/w/{name}", "is_dir": {dir}, "size": {size}, "modified_at": null}}"#)
    }

    /// A tree with a hostile name, a link to a directory and a file that cannot be read.
    async fn server() -> Server {
        Server::tcp(|request| {
            let path = request.json()["path"].as_str().unwrap().to_owned();
            match (request.path().rsplit('/').next().unwrap(), path.as_str()) {
                ("stat", _) => reply(200, &entry("w", None)),
                ("realpath", "/w/loop") => reply(200, r#"{"path": "/w"}"#),
                ("realpath", path) => reply(200, &format!(r#"{{"path": "{path}"}}"#)),
                ("list", "/w") => {
                    let rows = [
                        entry("../evil", Some(1)),
                        entry("a", Some(3)),
                        entry("loop", None),
                        entry("shut", Some(1)),
                        entry("sub", None),
                    ];
                    reply(200, &format!("[{}]", rows.join(",")))
                }
                ("list", _) => reply(200, &format!("[{}]", entry("b", Some(3)))),
                ("read", "/w/shut") => reply(400, r#"{"detail": {"error": "PermissionError", "message": "no"}}"#),
                _ => reply(200, "abc"),
            }
        })
        .await
    }

    #[tokio::test]
    async fn a_tree_comes_whole_and_stays_where_it_belongs() {
        let server = server().await;
        let mut client = server.client();
        let mut remote = Remote::new(&mut client, SessionId::parse("s").unwrap());
        let dir = tempfile::tempdir().unwrap();
        let local = dir.path().join("inner/out");
        fs::create_dir(dir.path().join("inner")).unwrap();
        let tally = download(&mut remote, "/w", local.to_str().unwrap(), &ProgressBar::hidden()).await.unwrap();
        assert_eq!((tally.files, tally.directories, tally.bytes), (2, 2, 6));
        assert_eq!(tally.skipped.len(), 3, "{:?}", tally.skipped);
        assert_eq!(fs::read(local.join("a")).unwrap(), b"abc");
        assert_eq!(fs::read(local.join("sub/b")).unwrap(), b"abc");
        let names = |path: &Path| fs::read_dir(path).unwrap().count();
        assert_eq!((names(&local), names(&dir.path().join("inner"))), (2, 1), "nothing else, nothing temporary");
    }

    #[tokio::test]
    async fn an_existing_directory_takes_it_under_its_name() {
        let server = server().await;
        let mut client = server.client();
        let mut remote = Remote::new(&mut client, SessionId::parse("s").unwrap());
        let dir = tempfile::tempdir().unwrap();
        download(&mut remote, "/w", dir.path().to_str().unwrap(), &ProgressBar::hidden()).await.unwrap();
        assert!(dir.path().join("w/a").is_file());
    }

    #[test]
    fn a_draft_replaces_whole_or_not_at_all() {
        let dir = tempfile::tempdir().unwrap();
        let place = dir.path().join("f");
        fs::write(&place, "old").unwrap();
        Draft::begin(&place).unwrap().file.write_all(b"half").unwrap();
        assert_eq!(fs::read(&place).unwrap(), b"old");
        let mut draft = Draft::begin(&place).unwrap();
        draft.file.write_all(b"new").unwrap();
        draft.commit().unwrap();
        assert_eq!(fs::read(&place).unwrap(), b"new");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
        Draft::begin(Path::new("/dev/null")).unwrap().commit().unwrap();
        assert!(Path::new("/dev/null").exists() && !Path::new("/dev/null").is_file());
    }
}
