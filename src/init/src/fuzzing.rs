//! What the fuzz target of `fuzz/` calls: bytes in, and a panic for what must never be. In no program.
//!
//! `cargo test` replays the corpus through the same function.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a target reports by panicking")]

use std::fs::File;
use std::io::Write;
use std::os::fd::OwnedFd;

use rustix::fs::{MemfdFlags, SealFlags};
use wire::init::{Command, CommandAt, ToInit};

use crate::exec::{Request, Terms};
use crate::frames::decode;

/// A message of the service: which descriptors come with it, and its bytes; for a long command, what is after a line
/// `--` is in the memfd. What is taken is a message again when it is written.
pub fn orders(data: &[u8]) {
    let Some((descriptors, bytes)) = data.split_first() else { return };
    let end = bytes.windows(4).position(|four| four == b"\n--\n");
    let (frame, long) = end.map_or((bytes, [].as_slice()), |end| (&bytes[..end], &bytes[end + 4..]));
    if let Some(command) = decode::<Command>(long) {
        assert_eq!(decode::<Command>(&postcard::to_allocvec(&command).unwrap()), Some(command));
    }
    let Some(message) = decode::<ToInit>(frame) else { return };
    assert_eq!(decode::<ToInit>(&postcard::to_allocvec(&message).unwrap()).as_ref(), Some(&message));
    let ToInit::Run { command, .. } = message else { return };
    let terms = Terms { build: descriptors & 0x80 != 0, files: (1024, 1024) };
    let memfd = matches!(command, CommandAt::Memfd { .. }).then(|| sealed(long));
    let mut fds = pipes();
    fds.extend(memfd);
    fds.truncate(fds.len().saturating_sub(usize::from(descriptors % 4)));
    // A command that is refused is one of the answers.
    let _ = Request::check(command, fds, &terms);
}

/// Read and write end, twice.
fn pipes() -> Vec<OwnedFd> {
    (0..2).flat_map(|_| std::io::pipe().map(|(read, write)| [read.into(), write.into()]).unwrap()).collect()
}

fn sealed(bytes: &[u8]) -> OwnedFd {
    let fd = rustix::fs::memfd_create("command", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    let mut file = File::from(fd);
    file.write_all(bytes).unwrap();
    rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE | SealFlags::SEAL)
        .unwrap();
    file.into()
}

#[cfg(test)]
mod tests {
    #[test]
    fn orders() {
        let corpus = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/orders");
        let inputs: Vec<_> = std::fs::read_dir(corpus).unwrap().map(|entry| entry.unwrap().path()).collect();
        assert!(!inputs.is_empty());
        for input in inputs {
            super::orders(&std::fs::read(input).unwrap());
        }
    }
}
