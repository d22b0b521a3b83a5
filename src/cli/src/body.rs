//! A local file on its way to the service.

use std::fs::File;
use std::io::{self, Read};
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use indicatif::ProgressBar;

/// Piece in which a file is sent, in bytes.
const PIECE: usize = 128 * 1024;

/// The bytes of a local file as they are read, exactly so many.
#[derive(Debug)]
pub struct FileBody {
    file: File,
    left: u64,
    progress: ProgressBar,
}

impl FileBody {
    /// The next `len` bytes of `file`.
    pub fn new(file: File, len: u64, progress: ProgressBar) -> Self {
        Self { file, left: len, progress }
    }
}

impl Body for FileBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        if self.left == 0 {
            return Poll::Ready(None);
        }
        let mut piece = vec![0; usize::try_from(self.left).unwrap_or(PIECE).min(PIECE)];
        // Blocks on the local disk, which nothing else in this program waits for.
        let read = match self.file.read(&mut piece) {
            Ok(0) => Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the local file became shorter meanwhile")),
            Ok(read) => Ok(read),
            Err(error) => Err(error),
        };
        Poll::Ready(Some(read.map(|read| {
            piece.truncate(read);
            self.left -= read as u64;
            self.progress.inc(read as u64);
            Frame::data(piece.into())
        })))
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Seek, Write};

    use super::*;
    use crate::client::Call;
    use crate::testing::{Server, reply};

    #[tokio::test]
    async fn a_file_is_sent_with_its_length() {
        let server = Server::unix(|_| reply(204, "")).await;
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&vec![7; PIECE + 3]).unwrap();
        file.rewind().unwrap();
        let body = FileBody::new(file, PIECE as u64 + 3, ProgressBar::hidden());
        server.client().ask_file(Call::post("write", "/w"), body).await.unwrap().ok().unwrap();
        assert_eq!(server.seen()[0].body, vec![7; PIECE + 3]);
    }
}
