//! Writing and hashing what comes from outside, by threads beside those that serve.

use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::sync::Arc;

use bytes::Bytes;
use sha2::{Digest, Sha256};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

use super::record::hex;

/// Pieces that may wait for the disk.
const PIECES: usize = 16;

/// What a [`Writer`] is told.
pub(super) enum Piece {
    /// The next bytes.
    Bytes(Bytes),
    /// Forget what came before.
    Restart,
}

/// Writes and hashes, off the threads that serve. Ends when it is dropped.
pub(super) struct Writer {
    pieces: mpsc::Sender<Piece>,
    /// With the file before who has worked: where nobody waits for it, both are dropped, in this order.
    done: JoinHandle<(io::Result<(File, String)>, Working)>,
}

/// Those who write for one pull. One that is dropped first writes what waits for it.
#[derive(Debug, Default)]
pub(super) struct Writers(Arc<watch::Sender<usize>>);

/// One of them, until it has let go of its file.
#[derive(Debug)]
struct Working(Arc<watch::Sender<usize>>);

impl Drop for Working {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count -= 1);
    }
}

impl Writers {
    /// One more, into this file, behind the `kept` bytes that it has; it is at its beginning.
    pub(super) fn start(&self, file: File, kept: u64) -> Writer {
        let (pieces, received) = mpsc::channel(PIECES);
        self.0.send_modify(|count| *count += 1);
        let working = Working(Arc::clone(&self.0));
        Writer { pieces, done: tokio::task::spawn_blocking(move || (write(file, kept, received), working)) }
    }

    /// Wait until none works.
    pub(super) async fn idle(&self) {
        // The sender is ours: there is an end of it.
        let _ = self.0.subscribe().wait_for(|count| *count == 0).await;
    }
}

impl Writer {
    /// Whether the piece is taken. If not, the disk failed: `finish` says why.
    pub(super) async fn write(&self, piece: Piece) -> bool {
        self.pieces.send(piece).await.is_ok()
    }

    /// The file, at its start, and its digest.
    pub(super) async fn finish(self) -> io::Result<(File, String)> {
        drop(self.pieces);
        self.done.await.map_err(io::Error::other)?.0
    }
}

fn write(mut file: File, kept: u64, mut pieces: mpsc::Receiver<Piece>) -> io::Result<(File, String)> {
    let mut hasher = Sha256::new();
    read_into(&mut hasher, Read::by_ref(&mut file).take(kept))?;
    while let Some(piece) = pieces.blocking_recv() {
        match piece {
            Piece::Bytes(bytes) => {
                hasher.update(&bytes);
                file.write_all(&bytes)?;
            }
            Piece::Restart => {
                hasher = Sha256::new();
                file.rewind()?;
                file.set_len(0)?;
            }
        }
    }
    file.rewind()?;
    Ok((file, hex(&hasher.finalize())))
}

fn read_into(hasher: &mut Sha256, mut from: impl Read) -> io::Result<()> {
    let mut buffer = vec![0; 256 * 1024];
    loop {
        let count = from.read(&mut buffer)?;
        let Some(piece) = buffer.get(..count).filter(|piece| !piece.is_empty()) else { return Ok(()) };
        hasher.update(piece);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::OwnedFd;
    use std::time::Duration;

    #[tokio::test]
    async fn one_that_was_dropped_is_waited_for() {
        let writers = Writers::default();
        writers.idle().await;
        // Nobody reads from it yet, so what is more than it holds is not written.
        let (mut read, write) = io::pipe().unwrap();
        let writer = writers.start(OwnedFd::from(write).into(), 0);
        let piece = Bytes::from(vec![7; 1 << 20]);
        assert!(writer.write(Piece::Bytes(piece.clone())).await && writer.write(Piece::Bytes(piece)).await);
        drop(writer);
        assert!(tokio::time::timeout(Duration::from_millis(50), writers.idle()).await.is_err(), "it is at work");
        let read = tokio::task::spawn_blocking(move || read_all(&mut read));
        writers.idle().await;
        assert_eq!(read.await.unwrap(), 2 << 20, "and it has written all that it was given");
    }

    fn read_all(from: &mut impl Read) -> usize {
        let mut all = Vec::new();
        from.read_to_end(&mut all).unwrap()
    }
}
