//! What the archive of a layer is besides the content of its files, so that the same archive can be made again.
//!
//! ```text
//! archive   header  content of a/b  filling  header  header  content of c  filling  end
//! frame     ──────     (a/b, 9)     ───────────────────────    (c, 70)     ────────────   compressed
//! ```
//! It is written while the layer is unpacked and read when it is packed, by children without privilege ([`crate::unpack`]). It
//! is worth what comes of it: an archive made again counts only if it has the layer's digest, which is that of the archive.
//! A layer may have none, because it was made here, or because its archive is odd: two entries of one name, holes, more headers
//! than sense.

use std::cell::RefCell;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::rc::Rc;

use rustix::fs::{Mode, OFlags};
use sha2::{Digest, Sha256};
use wire::id::LayerId;
use zstd::stream::read::Decoder;
use zstd::stream::write::Encoder;

use crate::layer::open_dir;

/// Most bytes of a frame, compressed.
const MAX_FRAME: u64 = 64 << 20;
/// Bytes of an archive that are one record of a frame.
const RUN: usize = 64 * 1024;
/// Largest window of the decoder, as a power of two.
const WINDOW_LOG: u32 = 23;
const LEVEL: i32 = 3;
const BUFFER: usize = 256 * 1024;
/// Longest path of a file, in bytes.
const MAX_PATH: usize = 64 * 1024;

/// The kinds of records: so many bytes (u32) as they are; so many (u64) of a file, whose path has so many (u16); the end.
const BYTES: u8 = 0;
const CONTENT: u8 = 1;
const END: u8 = 2;

/// Writes a frame beside the reading of an archive. If it cannot be written there is none.
#[derive(Clone)]
pub struct Recorder(Rc<RefCell<Recording>>);

struct Recording {
    output: Option<Encoder<'static, Bounded>>,
    run: Vec<u8>,
    /// Bytes of content that are still to come.
    skip: u64,
}

impl Recorder {
    /// Into this file, an empty one.
    ///
    /// # Errors
    /// The compressor cannot be made.
    pub fn new(file: OwnedFd) -> io::Result<Self> {
        let output = Encoder::new(Bounded { file: file.into(), left: MAX_FRAME }, LEVEL)?;
        Ok(Self(Rc::new(RefCell::new(Recording { output: Some(output), run: Vec::with_capacity(RUN), skip: 0 }))))
    }

    /// The next bytes of the archive.
    pub fn bytes(&self, bytes: &[u8]) {
        let mut recording = self.0.borrow_mut();
        let content = usize::try_from(recording.skip).unwrap_or(usize::MAX).min(bytes.len());
        recording.skip -= content as u64;
        let mut rest = &bytes[content..];
        while !rest.is_empty() {
            let taken = rest.len().min(RUN - recording.run.len());
            recording.run.extend_from_slice(&rest[..taken]);
            rest = &rest[taken..];
            if recording.run.len() == RUN {
                recording.flush();
            }
        }
    }

    /// What follows is so many bytes that will be the content of the file at `path`.
    pub fn content(&self, path: &[u8], size: u64) {
        let mut recording = self.0.borrow_mut();
        let Some(length) = u16::try_from(path.len()).ok().filter(|_| size > 0) else { return };
        recording.flush();
        let head = [&[CONTENT][..], &size.to_le_bytes(), &length.to_le_bytes(), path].concat();
        recording.write(&head);
        recording.skip = size;
    }

    /// The archive has ended.
    pub fn finish(&self) {
        let mut recording = self.0.borrow_mut();
        recording.flush();
        recording.write(&[END]);
        if let Some(output) = recording.output.take() {
            // One that is not whole makes no archive of the right digest.
            let _ = output.finish();
        }
    }
}

impl Recording {
    fn flush(&mut self) {
        let run = std::mem::take(&mut self.run);
        if let Some(length) = u32::try_from(run.len()).ok().filter(|length| *length > 0) {
            self.write(&[BYTES]);
            self.write(&length.to_le_bytes());
            self.write(&run);
        }
        self.run = run;
        self.run.clear();
    }

    fn write(&mut self, bytes: &[u8]) {
        if self.output.as_mut().is_some_and(|output| output.write_all(bytes).is_err()) {
            self.output = None;
        }
    }
}

/// A file that takes so much and no more.
struct Bounded {
    file: File,
    left: u64,
}

impl Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.left = self.left.checked_sub(bytes.len() as u64).ok_or(io::ErrorKind::FileTooLarge)?;
        self.file.write_all(bytes)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// Make the archive of `layer` again in `output`, of its `frame` and the files beneath `root`; at most so many bytes.
///
/// # Errors
/// What comes of it is not the archive that it was; then what is in `output` is of no use.
pub fn rebuild(root: &OwnedFd, frame: OwnedFd, output: &mut File, layer: &LayerId, most: u64) -> io::Result<()> {
    let mut frame = Decoder::new(File::from(frame))?;
    frame.window_log_max(WINDOW_LOG)?;
    let mut archive = Archive { output, hasher: Sha256::new(), left: most, buffer: vec![0; BUFFER] };
    loop {
        match u8::from_le_bytes(number(&mut frame)?) {
            BYTES => {
                let length = u32::from_le_bytes(number(&mut frame)?);
                archive.copy(&mut frame, u64::from(length))?;
            }
            CONTENT => {
                let size = u64::from_le_bytes(number(&mut frame)?);
                let mut path = vec![0; usize::from(u16::from_le_bytes(number(&mut frame)?)).min(MAX_PATH)];
                frame.read_exact(&mut path)?;
                archive.copy(&mut open(root, &path)?, size)?;
            }
            END => break,
            _ => return Err(io::ErrorKind::InvalidData.into()),
        }
    }
    let digest: String = archive.hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    if digest == layer.as_str() { Ok(()) } else { Err(io::Error::new(io::ErrorKind::InvalidData, "another archive")) }
}

fn number<const N: usize>(from: &mut impl Read) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    from.read_exact(&mut bytes)?;
    Ok(bytes)
}

/// A regular file of the layer; nothing else is opened.
fn open(root: &OwnedFd, path: &[u8]) -> io::Result<File> {
    let (above, name) = match path.iter().rposition(|byte| *byte == b'/') {
        Some(slash) => (&path[..slash], &path[slash + 1..]),
        None => (&[][..], path),
    };
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::openat(open_dir(root, above)?, name, flags, Mode::empty())?);
    if file.metadata()?.is_file() { Ok(file) } else { Err(io::ErrorKind::InvalidData.into()) }
}

/// An archive that is made again.
struct Archive<'a> {
    output: &'a mut File,
    hasher: Sha256,
    left: u64,
    buffer: Vec<u8>,
}

impl Archive<'_> {
    /// Exactly so many bytes.
    fn copy(&mut self, from: &mut impl Read, size: u64) -> io::Result<()> {
        self.left = self.left.checked_sub(size).ok_or(io::ErrorKind::FileTooLarge)?;
        let mut left = size;
        while left > 0 {
            let most = usize::try_from(left).unwrap_or(BUFFER).min(BUFFER);
            let count = from.read(&mut self.buffer[..most])?;
            let piece =
                self.buffer.get(..count).filter(|piece| !piece.is_empty()).ok_or(io::ErrorKind::UnexpectedEof)?;
            self.hasher.update(piece);
            self.output.write_all(piece)?;
            left -= count as u64;
        }
        Ok(())
    }
}

#[cfg(test)]
#[path = "frame_tests.rs"]
mod tests;
