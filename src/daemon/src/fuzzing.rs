//! What the fuzz targets of `fuzz/` call: bytes in, and a panic for what must never be. In no program.
//!
//! `cargo test` replays the corpora through the same functions. What needs the inside of a room is in its own `fuzzing`.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a target reports by panicking")]

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, Shutdown, accept, sendmsg, shutdown};
use wire::id::RunId;
use wire::init::{FromInit, MAX_ENDED, MAX_RUNS, VERSION};

pub use crate::document::fuzzing::documents;
pub use crate::files::fuzzing::{operations as files, text};
pub use crate::image::fuzzing::{archives, manifests};
pub use crate::resolver::fuzzing::questions;
pub use crate::serve::fuzzing::http;

use crate::catalog::{Catalogue, parse_runtimes};
use crate::config::{self, Raw};
use crate::runtime::{Init, InitError, listener};

/// Within it a connection whose other end is closed has ended.
const SOON: Duration = Duration::from_secs(5);

/// The catalogue, or the setting of the runtimes beside the catalogue that is shipped. What is accepted is within its
/// grammar, what is refused is one line.
pub fn catalogue(data: &[u8]) {
    let Some((what, bytes)) = data.split_first() else { return };
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let runtimes = match what % 2 {
        0 => Catalogue::parse("fuzz", text).map(|catalogue| catalogue.runtimes().to_vec()),
        _ => parse_runtimes(text, &Catalogue::parse("shipped", SHIPPED).unwrap()),
    };
    match runtimes {
        Ok(runtimes) => {
            assert!(!runtimes.is_empty());
            for runtime in runtimes {
                let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
                assert!((1..=64).contains(&runtime.alias.len()) && runtime.alias.chars().all(plain));
                assert!(!runtime.policy_image().contains(char::is_control));
            }
        }
        Err(error) => one_line(&error.to_string()),
    }
}

const SHIPPED: &str = r#"[{"alias": "workbench", "base_image": "python:3.12-slim", "packages": ["pandas"], "mem_limit": "2g"},
    {"alias": "plain", "image": "debian-bookworm"}]"#;

/// The configuration file: settings within their bounds, or one line.
pub fn config(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let token = ("SANDBOXD_TOKEN".to_owned(), "0123456789abcdef0123456789abcdef".to_owned());
    match Raw::gather(Path::new("/etc/sandboxd/sandboxd.toml"), text, [token]).and_then(|raw| config::load(&raw)) {
        Ok(settings) => {
            assert!(settings.work_dir.starts_with('/') && settings.work_dir.len() > 1);
            assert!(settings.state_dir.is_absolute() && settings.workspace_root.is_absolute());
            assert!((3..=4094).contains(&settings.slots) && settings.sandbox_uid > 0);
        }
        Err(error) => one_line(&error.to_string()),
    }
}

/// What an init says, whatever it is: frames of two bytes of length, one with the number of descriptors, and as many
/// bytes. Every wait of ours ends, and no list is longer than an init may have runs.
pub fn replies(data: &[u8]) {
    let dir = tempfile::tempdir().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(converse(std::fs::File::open(dir.path()).unwrap().into(), data));
}

async fn converse(dir: OwnedFd, data: &[u8]) {
    let listener = listener(dir.as_fd(), "init.sock").unwrap();
    let speak = async {
        tokio::task::yield_now().await;
        let peer = accept(&listener).unwrap();
        say(&peer, &postcard::to_allocvec(&FromInit::Ready { version: VERSION }).unwrap(), 0);
        frames(&peer, data);
        shutdown(&peer, Shutdown::Write).unwrap();
        peer
    };
    let (init, _peer) = tokio::join!(Init::connect(dir.as_fd(), "init.sock"), speak);
    let init = init.unwrap();
    init.forget(RunId::from_u128(1));
    match tokio::time::timeout(SOON, init.list()).await.expect("a list ends with its connection") {
        Ok(found) => assert!(found.len() <= MAX_RUNS + MAX_ENDED),
        Err(InitError::Gone | InitError::Io(_)) => {}
        Err(other) => panic!("{other}"),
    }
    tokio::time::timeout(SOON, init.gone()).await.expect("the end of a connection is seen");
}

fn frames(peer: &OwnedFd, data: &[u8]) {
    let mut rest = data;
    while let Some(([low, high, descriptors], tail)) = rest.split_first_chunk() {
        let length = usize::from(u16::from_le_bytes([*low, *high]) % 2400).min(tail.len());
        let (frame, tail) = tail.split_at(length);
        if !say(peer, frame, usize::from(descriptors % 4)) {
            return;
        }
        rest = tail;
    }
}

/// Whether there was room for it.
fn say(peer: &OwnedFd, frame: &[u8], descriptors: usize) -> bool {
    let (read, _write) = std::io::pipe().unwrap();
    let passed = vec![read.as_fd(); descriptors];
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if descriptors > 0 {
        assert!(control.push(SendAncillaryMessage::ScmRights(&passed)));
    }
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    sendmsg(peer, &[std::io::IoSlice::new(frame)], &mut control, flags).is_ok()
}

fn one_line(message: &str) {
    assert!(!message.contains(['\n', '\r']), "{message:?}");
}

#[cfg(test)]
mod tests {
    macro_rules! replay {
        ($($target:ident)*) => {$(
            #[test]
            fn $target() {
                let corpus = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/corpus/", stringify!($target));
                let inputs: Vec<_> = std::fs::read_dir(corpus).unwrap().map(|entry| entry.unwrap().path()).collect();
                assert!(!inputs.is_empty(), "{corpus} is empty");
                for input in inputs {
                    super::$target(&std::fs::read(input).unwrap());
                }
            }
        )*};
    }
    replay!(archives catalogue config documents files manifests questions replies text);

    #[test]
    fn http() {
        let service = crate::serve::fuzzing::Service::start();
        for input in std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/corpus/http")).unwrap() {
            service.serve(&std::fs::read(input.unwrap().path()).unwrap());
        }
    }
}
