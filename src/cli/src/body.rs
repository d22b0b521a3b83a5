//! What is on its way from this machine to the service: a local file, several as one stream, or standard input.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Read};
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use indicatif::ProgressBar;

/// Piece in which a file is sent, in bytes.
const PIECE: usize = 128 * 1024;

/// How a file is opened when it is its turn.
pub type Opening = Box<dyn FnOnce() -> io::Result<File> + Send>;

/// A stretch of what is sent.
pub enum Stretch {
    /// These bytes.
    Bytes(Bytes),
    /// So many of a file that is opened when it is its turn.
    Opened(Opening, u64),
    /// So many of a file.
    File(File, u64),
    /// All that comes of a file until it ends.
    Whole(File),
}

/// Bytes of this machine as they are read.
pub struct FileBody {
    stretches: VecDeque<Stretch>,
    /// Of what is left, as far as that is known.
    left: u64,
    is_exact: bool,
    progress: ProgressBar,
}

impl FileBody {
    /// The next `len` bytes of `file`.
    pub fn new(file: File, len: u64, progress: ProgressBar) -> Self {
        Self::of([Stretch::File(file, len)], progress)
    }

    /// These, one after another.
    pub fn of(stretches: impl IntoIterator<Item = Stretch>, progress: ProgressBar) -> Self {
        let stretches: VecDeque<Stretch> = stretches.into_iter().collect();
        let known = |stretch: &Stretch| match stretch {
            Stretch::Bytes(bytes) => Some(bytes.len() as u64),
            Stretch::Opened(_, len) | Stretch::File(_, len) => Some(*len),
            Stretch::Whole(_) => None,
        };
        let is_exact = stretches.iter().all(|stretch| known(stretch).is_some());
        let left = stretches.iter().filter_map(known).sum();
        Self { stretches, left, is_exact, progress }
    }

    /// Bytes that are left, as far as that is known.
    pub fn left(&self) -> u64 {
        self.left
    }

    /// The next piece. Blocks on the local disk or pipe, which nothing else in this program waits for.
    fn piece(&mut self) -> io::Result<Option<Bytes>> {
        loop {
            let Some(stretch) = self.stretches.pop_front() else { return Ok(None) };
            match stretch {
                Stretch::Bytes(bytes) if bytes.is_empty() => {}
                Stretch::Bytes(bytes) => return Ok(Some(bytes)),
                Stretch::Opened(open, len) => self.stretches.push_front(Stretch::File(open()?, len)),
                Stretch::File(_, 0) => {}
                Stretch::File(mut file, len) => {
                    let bytes = read(&mut file, usize::try_from(len).unwrap_or(PIECE).min(PIECE))?;
                    if bytes.is_empty() {
                        let reason = "the local file became shorter meanwhile";
                        return Err(io::Error::new(io::ErrorKind::UnexpectedEof, reason));
                    }
                    self.stretches.push_front(Stretch::File(file, len - bytes.len() as u64));
                    return Ok(Some(bytes));
                }
                Stretch::Whole(mut file) => {
                    let bytes = read(&mut file, PIECE)?;
                    if !bytes.is_empty() {
                        self.stretches.push_front(Stretch::Whole(file));
                        return Ok(Some(bytes));
                    }
                }
            }
        }
    }
}

fn read(file: &mut File, most: usize) -> io::Result<Bytes> {
    let mut piece = vec![0; most];
    let read = loop {
        match file.read(&mut piece) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            done => break done?,
        }
    };
    piece.truncate(read);
    Ok(piece.into())
}

impl Body for FileBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        let piece = self.piece();
        Poll::Ready(piece.transpose().map(|piece| {
            piece.map(|piece| {
                self.left = self.left.saturating_sub(piece.len() as u64);
                self.progress.inc(piece.len() as u64);
                Frame::data(piece)
            })
        }))
    }

    fn size_hint(&self) -> SizeHint {
        if self.is_exact { SizeHint::with_exact(self.left) } else { SizeHint::new() }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Seek, Write};

    use super::*;
    use crate::client::Call;
    use crate::testing::{Server, reply};

    fn file(bytes: &[u8]) -> File {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(bytes).unwrap();
        file.rewind().unwrap();
        file
    }

    #[tokio::test]
    async fn a_file_is_sent_with_its_length() {
        let server = Server::unix(|_| reply(204, "")).await;
        let body = FileBody::new(file(&vec![7; PIECE + 3]), PIECE as u64 + 3, ProgressBar::hidden());
        server.client().ask_file(Call::post("write", "/w"), body).await.unwrap().ok().unwrap();
        assert_eq!(server.seen()[0].body, vec![7; PIECE + 3]);
    }

    #[tokio::test]
    async fn stretches_are_one_body() {
        let server = Server::unix(|_| reply(204, "")).await;
        let opened: Opening = Box::new(|| Ok(file(b"cdX")));
        let stretches =
            [Stretch::Bytes(Bytes::from_static(b"ab")), Stretch::Opened(opened, 2), Stretch::File(file(b"e"), 1)];
        let body = FileBody::of(stretches, ProgressBar::hidden());
        assert_eq!(body.left(), 5);
        server.client().ask_file(Call::post("write", "/w"), body).await.unwrap().ok().unwrap();
        assert_eq!(server.seen()[0].body, b"abcde");
    }

    #[test]
    fn one_that_does_not_say_how_long_it_is_ends_with_its_file() {
        let mut body = FileBody::of([Stretch::Whole(file(&vec![7; PIECE + 1]))], ProgressBar::hidden());
        assert_eq!(body.size_hint().exact(), None);
        let lengths = std::iter::from_fn(|| body.piece().unwrap().map(|piece| piece.len()));
        assert_eq!(lengths.sum::<usize>(), PIECE + 1);
        let mut short = FileBody::new(file(b"a"), 2, ProgressBar::hidden());
        assert!(short.piece().is_ok() && short.piece().is_err());
    }
}
