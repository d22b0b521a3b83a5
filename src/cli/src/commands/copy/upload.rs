//! Into a session.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use indicatif::ProgressBar;

use super::{MAX_DEPTH, Tally, base_name, is_component};
use crate::error::Failure;
use crate::remote::Remote;

/// Standard input, to a file.
pub async fn from_stream(remote: &mut Remote<'_>, path: &str, progress: &ProgressBar) -> Result<Tally, Failure> {
    let path = remote.absolute(path).await?;
    let counted = ProgressBar::hidden();
    let bar = if progress.is_hidden() { &counted } else { progress };
    remote.write_stream(&path, io::stdin().lock(), bar).await?;
    Ok(Tally { files: 1, bytes: bar.position(), ..Tally::default() })
}

/// A local file or directory, to a path. The local tree is the user's own; links in it are left out.
pub async fn upload(
    remote: &mut Remote<'_>,
    local: &str,
    path: &str,
    progress: &ProgressBar,
) -> Result<Tally, Failure> {
    let source = PathBuf::from(local);
    let about = fs::metadata(&source).map_err(|e| Failure::local("open", local, e))?;
    let path = target(remote, &source, path).await?;
    let mut tally = Tally::default();
    if about.is_dir() {
        tree(remote, source, path, progress, &mut tally).await?;
    } else {
        file(remote, &source, &path, progress, &mut tally).await?;
    }
    Ok(tally)
}

/// An existing directory takes the source under its own name; so does a path that ends with a slash.
async fn target(remote: &mut Remote<'_>, source: &Path, path: &str) -> Result<String, Failure> {
    let whole = remote.absolute(path).await?;
    let plain = whole.trim_end_matches('/');
    let plain = if plain.is_empty() { "/" } else { plain };
    let directory = match remote.stat(plain).await {
        Ok(entry) => entry.is_dir,
        Err(failure) if failure.is_missing_path() => whole.ends_with('/') && !source.is_dir(),
        Err(failure) => return Err(failure),
    };
    if !directory {
        return Ok(plain.to_owned());
    }
    let canonical = source.canonicalize().unwrap_or_else(|_| source.to_owned());
    let name = source.to_str().map(base_name).filter(|name| is_component(name)).map(str::to_owned);
    // Of `.` and `..` the name is that of the directory itself.
    let name = name.or_else(|| canonical.file_name().and_then(|name| name.to_str()).map(str::to_owned));
    let Some(name) = name else {
        return Err(Failure::Usage(format!(
            "{} has no name to be copied under; name the target in full",
            source.display()
        )));
    };
    Ok(format!("{}/{name}", plain.trim_end_matches('/')))
}

async fn tree(
    remote: &mut Remote<'_>,
    top: PathBuf,
    path: String,
    progress: &ProgressBar,
    tally: &mut Tally,
) -> Result<(), Failure> {
    let mut waiting = vec![(top, path, 0)];
    while let Some((local, path, depth)) = waiting.pop() {
        tally.enter()?;
        remote.mkdir(&path).await?;
        tally.directories += 1;
        for (entry, name) in entries(&local, tally)? {
            let inside = format!("{path}/{name}");
            let shown = entry.display().to_string();
            let about = fs::symlink_metadata(&entry).map_err(|e| Failure::local("open", &shown, e))?;
            if about.is_file() {
                file(remote, &entry, &inside, progress, tally).await?;
            } else if !about.is_dir() {
                tally.skip(&shown, "neither a plain file nor a directory");
            } else if depth + 1 > MAX_DEPTH {
                tally.skip(&shown, "it is too deep");
            } else {
                waiting.push((entry, inside, depth + 1));
            }
        }
    }
    Ok(())
}

/// What is in a directory, sorted by name.
fn entries(local: &Path, tally: &mut Tally) -> Result<Vec<(PathBuf, String)>, Failure> {
    let wrong = |e| Failure::local("list", local.display().to_string(), e);
    let mut entries = Vec::new();
    for entry in fs::read_dir(local).map_err(wrong)? {
        let entry = entry.map_err(wrong)?;
        match entry.file_name().into_string() {
            Ok(name) => entries.push((entry.path(), name)),
            Err(_) => tally.skip(&entry.path().display().to_string(), "its name is not UTF-8"),
        }
    }
    entries.sort();
    Ok(entries)
}

async fn file(
    remote: &mut Remote<'_>,
    local: &Path,
    path: &str,
    progress: &ProgressBar,
    tally: &mut Tally,
) -> Result<(), Failure> {
    tally.enter()?;
    let shown = local.display().to_string();
    let wrong = |e| Failure::local("open", &shown, e);
    let file = File::open(local).map_err(wrong)?;
    let about = file.metadata().map_err(wrong)?;
    if about.is_file() {
        progress.inc_length(about.len());
        remote.write_file(path, file, about.len(), progress).await?;
        tally.bytes += about.len();
    } else {
        // A pipe or a device that the user named: as long as it gives.
        let counted = ProgressBar::hidden();
        remote.write_stream(path, file, &counted).await?;
        tally.bytes += counted.position();
    }
    tally.files += 1;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use wire::id::SessionId;

    use super::*;
    use crate::testing::{Server, reply};

    /// `/in` is a directory, everything else is missing, every change is accepted.
    async fn server() -> Server {
        Server::unix(|request| match request.path() {
            "/sessions/s/files/stat" if request.json()["path"] == "/in" => {
                reply(200, r#"{"name": "in", "path": "/in", "is_dir": true, "size": null, "modified_at": null}"#)
            }
            "/sessions/s/files/stat" => reply(404, r#"{"detail": {"error": "FileNotFoundError", "message": "no"}}"#),
            _ => reply(204, ""),
        })
        .await
    }

    fn asked(server: &Server) -> Vec<String> {
        let told = |request: &crate::testing::Seen| {
            let target = request.head.split(' ').nth(1).unwrap().trim_start_matches("/sessions/s/files/").to_owned();
            if target == "mkdir" { format!("mkdir {}", request.json()["path"].as_str().unwrap()) } else { target }
        };
        server.seen().iter().map(told).filter(|call| call != "stat").collect()
    }

    #[tokio::test]
    async fn a_tree_goes_in_without_its_links() {
        let server = server().await;
        let mut client = server.client();
        let mut remote = Remote::new(&mut client, SessionId::parse("s").unwrap());
        let dir = tempfile::tempdir().unwrap();
        let top = dir.path().join("top");
        fs::create_dir_all(top.join("sub")).unwrap();
        fs::write(top.join("a"), "abc").unwrap();
        fs::write(top.join("sub/b"), "de").unwrap();
        symlink("/etc/passwd", top.join("link")).unwrap();
        let tally = upload(&mut remote, top.to_str().unwrap(), "/in", &ProgressBar::hidden()).await.unwrap();
        assert_eq!((tally.files, tally.directories, tally.bytes, tally.skipped.len()), (2, 2, 5, 1));
        assert_eq!(
            asked(&server),
            ["mkdir /in/top", "write?path=/in/top/a", "mkdir /in/top/sub", "write?path=/in/top/sub/b"]
        );
    }

    #[tokio::test]
    async fn the_target_is_what_cp_would_take() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("f.csv");
        fs::write(&file, "x").unwrap();
        for (path, write) in [("/in", "/in/f.csv"), ("/new", "/new"), ("/new/", "/new/f.csv")] {
            let server = server().await;
            let mut client = server.client();
            let mut remote = Remote::new(&mut client, SessionId::parse("s").unwrap());
            upload(&mut remote, file.to_str().unwrap(), path, &ProgressBar::hidden()).await.unwrap();
            assert_eq!(asked(&server), [format!("write?path={write}")]);
        }
    }

    #[tokio::test]
    async fn a_missing_local_file_is_said_before_anything_is_asked() {
        let server = server().await;
        let mut client = server.client();
        let mut remote = Remote::new(&mut client, SessionId::parse("s").unwrap());
        let failure = upload(&mut remote, "/nonexistent/x", "/in", &ProgressBar::hidden()).await.unwrap_err();
        assert_eq!(failure.status(), 74);
        assert!(server.seen().is_empty());
    }
}
