//! `images`: what is there, and fetching, removing, importing and exporting it.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::path::Path;

use http_body_util::BodyExt;
use hyper::Response;
use hyper::body::Incoming;
use wire::api::{BuildCaches, GcRequest, ImageInfo, PullEvent, PullProgress, PullRequest, Removed};

use crate::args::{ExportForm, ImagesCommand};
use crate::body::{FileBody, Stretch};
use crate::client::{Call, Client};
use crate::error::Failure;
use crate::layout::{self, Unpacking};
use crate::output::{Table, age, count, harmless, print, print_json, size};
use crate::progress::{self, Cleared, Told, Waiting};

/// Longest line of a pull's answer, in bytes.
const MAX_LINE: usize = 4 << 20;

/// Do it.
pub async fn images(client: &mut Client, command: Option<ImagesCommand>, json: bool) -> Result<(), Failure> {
    match command.unwrap_or(ImagesCommand::Ls) {
        ImagesCommand::Ls => list(client, json).await,
        ImagesCommand::Pull { image } => pull(client, image, json).await,
        ImagesCommand::Rm { images } => remove(client, &images, json).await,
        ImagesCommand::Caches => caches(client, json).await,
        ImagesCommand::Gc { unused, caches, dry_run } => {
            collect(client, GcRequest { unused, dry_run, caches }, json).await
        }
        ImagesCommand::Import { file, name, tag } => {
            import(client, &file, &[("name", name.as_deref()), ("tag", tag.as_deref())], json).await
        }
        ImagesCommand::Export { image, file, output, format } => {
            let to = file.or(output).ok_or_else(|| Failure::Usage("say where to".to_owned()))?;
            export(client, &image, &to, format, json).await
        }
    }
}

async fn list(client: &mut Client, json: bool) -> Result<(), Failure> {
    let answer = client.ask(Call::get("list the images", "/images")).await?;
    if json {
        return answer.print_json();
    }
    let text = table(&answer.parse::<Vec<ImageInfo>>()?);
    // Of the image store's disk, but no image: one line, and none of a service that does not say.
    let caches = client.ask(Call::get("look at the package caches of builds", "/images/caches")).await;
    let caches = caches.and_then(|answer| answer.parse::<BuildCaches>()).map(|caches| total(&caches));
    print(text + &caches.unwrap_or_default())
}

fn table(images: &[ImageInfo]) -> String {
    if images.is_empty() {
        return "no images yet: a runtime's is made when it is first opened\n".to_owned();
    }
    let mut table = Table::new(&["IMAGE", "STATE", ">SIZE", ">OWN", ">LAYERS", ">AGE", "RUNTIMES"]);
    let none = || "-".to_owned();
    for image in images {
        let runtimes = if image.runtimes.is_empty() { none() } else { image.runtimes.join(", ") };
        table.row([
            image.reference.clone(),
            image.state.clone(),
            image.size.map_or_else(none, size),
            image.own_size.map_or_else(none, size),
            image.layers.len().to_string(),
            image.created_at.map_or_else(none, age),
            runtimes,
        ]);
    }
    let mut text = table.render();
    for image in images {
        if let Some(error) = &image.error {
            text.push_str(&format!("{}: {}\n", harmless(&image.reference), harmless(error)));
        }
    }
    text
}

async fn caches(client: &mut Client, json: bool) -> Result<(), Failure> {
    let answer = client.ask(Call::get("look at the package caches of builds", "/images/caches")).await?;
    if json { answer.print_json() } else { print(caches_text(&answer.parse()?)) }
}

/// A line about all of them; none if they are empty.
fn total(caches: &BuildCaches) -> String {
    let filled = caches.caches.iter().filter(|cache| cache.bytes > 0);
    let each: Vec<String> = filled.map(|cache| format!("{} {}", harmless(&cache.manager), size(cache.bytes))).collect();
    if each.is_empty() { String::new() } else { format!("package caches of builds: {}\n", each.join(", ")) }
}

fn caches_text(caches: &BuildCaches) -> String {
    let mut table = Table::new(&["CACHE", ">SIZE", ">USED"]);
    for cache in &caches.caches {
        let more = if cache.complete { "" } else { "more than " };
        let used = cache.used_at.map_or_else(|| "-".to_owned(), age);
        table.row([cache.manager.clone(), format!("{more}{}", size(cache.bytes)), used]);
    }
    let ceiling = caches.ceiling.map_or_else(|| "no ceiling".to_owned(), |bytes| format!("of {}", size(bytes)));
    format!("{}{}, {ceiling} (build_cache)\n", table.render(), size(caches.bytes))
}

async fn pull(client: &mut Client, image: String, json: bool) -> Result<(), Failure> {
    let (what, words) = (format!("pull {image}"), format!("pulling {}", harmless(&image)));
    let call = Call::post(&what, "/images/pull").within(None);
    let response = client.open_json(&call, &PullRequest { reference: image }).await?;
    if !response.status().is_success() {
        return client.collect(&call, response).await?.ok().map(drop);
    }
    let mut shown = Waiting::new(json);
    let foreign =
        |reason: &str| Failure::Foreign { what: what.clone(), address: client.address(), reason: reason.to_owned() };
    let mut lines = Lines { body: response, rest: Vec::new() };
    loop {
        let line = lines.next().await.map_err(|source| client.broken(&what, source))?;
        let Some(line) = line else { return Err(foreign("it ended without saying how")) };
        match serde_json::from_slice(&line).map_err(|e| foreign(&e.to_string()))? {
            PullEvent::Progress { progress } => shown.show(Told::pull(words.clone(), progress)),
            PullEvent::Done { image, progress } => {
                drop(shown);
                return if json { print_json(&image) } else { print(pulled(&image, progress)) };
            }
            PullEvent::Failed { error } => {
                return Err(Failure::Copy { what: what.clone(), reason: harmless(&error) });
            }
        }
    }
}

fn pulled(image: &ImageInfo, progress: PullProgress) -> String {
    let resumed = if progress.resumed > 0 { format!(", resumed {} times", progress.resumed) } else { String::new() };
    format!(
        "{}: {} fetched{resumed}, {} of it {}\n",
        harmless(&image.reference),
        size(progress.bytes_received),
        count(image.layers.len() as u64, "layer"),
        size(image.size.unwrap_or(0))
    )
}

/// The lines of an answer as they come.
struct Lines {
    body: Response<Incoming>,
    rest: Vec<u8>,
}

impl Lines {
    async fn next(&mut self) -> Result<Option<Vec<u8>>, Box<dyn std::error::Error + Send + Sync>> {
        loop {
            if let Some(end) = self.rest.iter().position(|byte| *byte == b'\n') {
                let rest = self.rest.split_off(end + 1);
                return Ok(Some(std::mem::replace(&mut self.rest, rest)));
            }
            if self.rest.len() > MAX_LINE {
                return Err("a line has no end".into());
            }
            let Some(frame) = self.body.frame().await else { return Ok(None) };
            if let Some(bytes) = frame?.data_ref() {
                self.rest.extend_from_slice(bytes);
            }
        }
    }
}

async fn remove(client: &mut Client, images: &[String], json: bool) -> Result<(), Failure> {
    let mut all = Removed::default();
    for image in images {
        let call = Call::delete("remove the image", path_of(image));
        let removed: Removed = client.ask(call.within(None)).await?.parse()?;
        all.images.extend(removed.images);
        all.layers.extend(removed.layers);
        all.files += removed.files;
        all.bytes += removed.bytes;
    }
    if json { print_json(&all) } else { print(removed_text(&all, "removed")) }
}

async fn collect(client: &mut Client, request: GcRequest, json: bool) -> Result<(), Failure> {
    let call = Call::post("remove what nobody needs", "/images/gc").within(None);
    let removed: Removed = client.ask_json(call, &request).await?.parse()?;
    let verb = if request.dry_run { "would be removed" } else { "removed" };
    if json { print_json(&removed) } else { print(removed_text(&removed, verb)) }
}

fn removed_text(removed: &Removed, verb: &str) -> String {
    let mut text: String = removed.images.iter().map(|image| format!("{}\n", harmless(image))).collect();
    let (images, layers) = (count(removed.images.len() as u64, "image"), count(removed.layers.len() as u64, "layer"));
    let caches = removed.caches.iter().map(|cache| format!("the package cache of {}, ", harmless(cache)));
    let caches: String = caches.collect();
    text.push_str(&format!("{images}, {layers}, {caches}{} {verb}\n", size(removed.bytes)));
    text
}

async fn import(client: &mut Client, file: &Path, query: &[(&str, Option<&str>)], json: bool) -> Result<(), Failure> {
    let shown = file.display().to_string();
    let bar = Cleared(progress::bytes(json));
    let tag = query.iter().find_map(|(name, value)| value.filter(|_| *name == "tag"));
    let stretches = source(file, tag).map_err(|e| Failure::local("read", &shown, e))?;
    let body = FileBody::of(stretches, bar.0.clone());
    bar.0.set_length(body.left());
    let what = format!("import {shown}");
    let pairs = query.iter().filter_map(|(name, value)| Some(format!("{name}={}", crate::client::encode((*value)?))));
    let call = Call::post(&what, format!("/images/import?{}", pairs.collect::<Vec<_>>().join("&"))).within(None);
    let answer = client.ask_file(call, body).await?;
    drop(bar);
    if json {
        return answer.print_json();
    }
    let image: ImageInfo = answer.parse()?;
    let layers = count(image.layers.len() as u64, "layer");
    print(format!("{}: {layers}, {}\n", harmless(&image.reference), size(image.size.unwrap_or(0))))
}

/// What is sent: an archive as it is, a directory as an archive.
fn source(file: &Path, tag: Option<&str>) -> io::Result<Vec<Stretch>> {
    if file == Path::new("-") {
        return Ok(vec![Stretch::Whole(io::stdin().as_fd().try_clone_to_owned()?.into())]);
    }
    let opened = File::open(file)?;
    let metadata = opened.metadata()?;
    if metadata.is_dir() {
        return layout::pack(file, tag);
    }
    // What a pipe or a device will give it does not say.
    Ok(vec![if metadata.is_file() { Stretch::File(opened, metadata.len()) } else { Stretch::Whole(opened) }])
}

async fn export(client: &mut Client, image: &str, to: &Path, format: ExportForm, json: bool) -> Result<(), Failure> {
    let what = format!("export {image}");
    let query = match format {
        ExportForm::Both => "",
        ExportForm::Oci | ExportForm::OciDir => "?format=oci",
        ExportForm::Docker => "?format=docker",
    };
    let shown = to.display().to_string();
    let standard = shown == "-";
    if standard && format == ExportForm::OciDir {
        return Err(Failure::Usage("a directory cannot be standard output; --format oci can".to_owned()));
    }
    let call = Call::get(&what, format!("{}/archive{query}", path_of(image))).within(None);
    let response = client.open(&call).await?;
    if !response.status().is_success() {
        return client.collect(&call, response).await?.ok().map(drop);
    }
    let bar = Cleared(progress::bytes_without_end(json));
    if standard {
        return write_all(client, &what, response, &mut io::stdout().lock(), &bar, "standard output").await;
    }
    if format == ExportForm::OciDir {
        let mut unpacking = Unpacking::new(to).map_err(|e| Failure::local("make", &shown, e))?;
        write_all(client, &what, response, &mut unpacking, &bar, &shown).await?;
        return unpacking.finish().map_err(|e| Failure::local("write", &shown, e));
    }
    let made = OpenOptions::new().write(true).create_new(true).open(to);
    let mut made = made.map_err(|e| Failure::local("make", &shown, e))?;
    let written = write_all(client, &what, response, &mut made, &bar, &shown).await;
    if written.is_err() {
        // Half an archive is of no use to anybody.
        let _ = std::fs::remove_file(to);
    }
    written
}

async fn write_all(
    client: &Client,
    what: &str,
    mut response: Response<Incoming>,
    to: &mut impl Write,
    bar: &Cleared,
    shown: &str,
) -> Result<(), Failure> {
    while let Some(frame) = response.frame().await {
        let frame = frame.map_err(|source| client.broken(what, source))?;
        if let Some(bytes) = frame.data_ref() {
            to.write_all(bytes).map_err(|e| Failure::local("write", shown, e))?;
            bar.0.inc(bytes.len() as u64);
        }
    }
    to.flush().map_err(|e| Failure::local("write", shown, e))
}

/// The route of an image: its name as one component.
fn path_of(image: &str) -> String {
    format!("/images/{}", crate::client::encode(image).replace('/', "%2F"))
}

#[cfg(test)]
mod tests {
    use wire::api::BuildCache;

    use super::*;
    use crate::testing::{Server, reply};

    fn info(reference: &str) -> ImageInfo {
        ImageInfo {
            reference: reference.into(),
            digest: None,
            origin: None,
            runtimes: vec![],
            state: "ready".into(),
            size: Some(2048),
            own_size: Some(1024),
            layers: vec!["a".into(), "b".into()],
            created_at: None,
            error: None,
        }
    }

    #[test]
    fn a_table_says_what_is_shared() {
        let text = table(&[info("debian:12")]);
        assert_eq!(
            text,
            "IMAGE      STATE     SIZE      OWN  LAYERS  AGE  RUNTIMES\ndebian:12  ready  2.0 KiB  1.0 KiB       2    -  -\n"
        );
        assert!(table(&[]).contains("no images"));
        let failed =
            ImageInfo { state: "failed".into(), error: Some("pip: no such package\u{7}".into()), ..info("demo:1") };
        assert!(table(&[failed]).ends_with("demo:1: pip: no such package\\u{7}\n"));
    }

    #[test]
    fn caches_are_told_with_their_ceiling() {
        let cache = |manager: &str, bytes| BuildCache { manager: manager.into(), bytes, complete: true, used_at: None };
        let mut caches =
            BuildCaches { ceiling: Some(1 << 30), bytes: 3072, caches: vec![cache("pip", 3072), cache("npm", 0)] };
        assert_eq!(total(&caches), "package caches of builds: pip 3.0 KiB\n");
        assert!(caches_text(&caches).ends_with("3.0 KiB, of 1.0 GiB (build_cache)\n"), "{}", caches_text(&caches));
        caches.caches[0].complete = false;
        caches.ceiling = None;
        assert!(caches_text(&caches).contains("more than 3.0 KiB") && caches_text(&caches).contains("no ceiling"));
        caches.caches.clear();
        assert_eq!(total(&caches), "");
        let removed = Removed { caches: vec!["pip".into()], bytes: 3072, ..Removed::default() };
        assert_eq!(
            removed_text(&removed, "removed"),
            "0 images, 0 layers, the package cache of pip, 3.0 KiB removed\n"
        );
    }

    #[tokio::test]
    async fn a_pull_that_fails_fails() {
        let line = r#"{"type": "failed", "error": "no \u001b[31mway"}"#;
        let server = Server::tcp(move |_| reply(200, &format!("{line}\n"))).await;
        let failure = pull(&mut server.client(), "a".into(), false).await.unwrap_err();
        assert!(failure.status() == 65 && !failure.text().contains('\u{1b}'), "{}", failure.text());
        let server = Server::tcp(|_| reply(200, "")).await;
        assert_eq!(pull(&mut server.client(), "a".into(), false).await.unwrap_err().status(), 76);
    }

    #[tokio::test]
    async fn a_name_is_one_component() {
        let server = Server::tcp(|_| reply(409, r#"{"detail": "in use"}"#)).await;
        let failure = remove(&mut server.client(), &["r.lan:1/a b:2".into()], false).await.unwrap_err();
        assert_eq!(failure.status(), 65);
        assert!(
            server.seen()[0].head.starts_with("DELETE /images/r.lan%3A1%2Fa%20b%3A2 HTTP"),
            "{}",
            server.seen()[0].head
        );
    }

    #[tokio::test]
    async fn half_an_archive_is_not_left() {
        // The second chunk is none.
        let broken = "HTTP/1.1 200 X\r\ntransfer-encoding: chunked\r\n\r\n4\r\nhalf\r\nzz\r\n";
        let server = Server::tcp(move |_| broken.to_owned()).await;
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("image.tar");
        assert_eq!(export(&mut server.client(), "a", &file, ExportForm::Both, true).await.unwrap_err().status(), 69);
        assert!(!file.exists());
        std::fs::write(&file, "mine").unwrap();
        assert_eq!(export(&mut server.client(), "a", &file, ExportForm::Both, true).await.unwrap_err().status(), 74);
        assert_eq!(std::fs::read(&file).unwrap(), b"mine");
    }
}
