//! `cat`, `write`, `stat`, `realpath`, `mkdir`, `rm`: files of a session, one after another.

use std::io;

use wire::api::RealpathResponse;

use crate::args::{OnePath, Paths};
use crate::client::Client;
use crate::error::Failure;
use crate::output::{harmless, print, print_json};
use crate::progress;
use crate::remote::Remote;

/// Print files, one after another.
pub async fn cat(client: &mut Client, cat: Paths, json: bool) -> Result<(), Failure> {
    if json {
        return Err(Failure::Usage("standard output cannot take both files and --json".to_owned()));
    }
    let mut remote = Remote::new(client, cat.session);
    for path in cat.paths {
        let path = remote.absolute(&path).await?;
        remote.read(&path, &mut |piece| print(piece)).await?;
    }
    Ok(())
}

/// Write standard input to a file.
pub async fn write(client: &mut Client, write: OnePath, json: bool) -> Result<(), Failure> {
    let mut remote = Remote::new(client, write.session);
    let path = remote.absolute(&write.path).await?;
    let bar = progress::bytes_without_end(json);
    let written = remote.write_stream(&path, io::stdin().lock(), &bar).await;
    bar.finish_and_clear();
    written?;
    if json { print_json(&remote.stat(&path).await?) } else { Ok(()) }
}

/// Show what is at a path.
pub async fn stat(client: &mut Client, stat: OnePath, json: bool) -> Result<(), Failure> {
    let mut remote = Remote::new(client, stat.session);
    let path = remote.absolute(&stat.path).await?;
    let entry = remote.stat(&path).await?;
    if json { print_json(&entry) } else { print(super::list::table(&[entry])) }
}

/// Print a path with every link resolved.
pub async fn realpath(client: &mut Client, asked: OnePath, json: bool) -> Result<(), Failure> {
    let mut remote = Remote::new(client, asked.session);
    let path = remote.absolute(&asked.path).await?;
    let path = remote.realpath(&path).await?;
    if json { print_json(&RealpathResponse { path }) } else { print(format!("{}\n", harmless(&path))) }
}

/// Make directories.
pub async fn mkdir(client: &mut Client, mkdir: Paths, json: bool) -> Result<(), Failure> {
    let mut remote = Remote::new(client, mkdir.session);
    for path in &mkdir.paths {
        let path = remote.absolute(path).await?;
        remote.mkdir(&path).await?;
    }
    if json { print_json(&mkdir.paths) } else { Ok(()) }
}

/// Remove files, links and trees.
pub async fn remove(client: &mut Client, rm: Paths, json: bool) -> Result<(), Failure> {
    let mut remote = Remote::new(client, rm.session);
    for path in &rm.paths {
        let path = remote.absolute(path).await?;
        remote.remove(&path).await?;
    }
    if json { print_json(&rm.paths) } else { Ok(()) }
}
