//! A layer blob as a stream: decompressed, counted, digested.

use std::fs::File;
use std::io::{self, BufReader, Read};

use flate2::bufread::MultiGzDecoder;
use sha2::{Digest, Sha256};
use wire::launch::Compression;
use zstd::stream::read::Decoder;

use crate::frame::Recorder;

/// Up to here a blob may be as compressible as it likes, in bytes.
const FREE_BYTES: u64 = 64 << 20;
/// Beyond it, most uncompressed bytes for each compressed one. A tar of real files stays below 20.
const MAX_RATIO: u64 = 200;
/// Largest window of a zstd stream, as a power of two (RFC 8878 asks decoders for 8 MiB).
const ZSTD_WINDOW_LOG: u32 = 27;
const BUFFER: usize = 128 * 1024;
/// What everything in a tar is filled up to, in bytes.
pub const BLOCK: u64 = 512;

/// Counts what is read through it.
struct Counted<R> {
    inner: R,
    bytes: std::rc::Rc<std::cell::Cell<u64>>,
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let length = self.inner.read(buffer)?;
        self.bytes.set(self.bytes.get() + length as u64);
        Ok(length)
    }
}

/// The uncompressed bytes of a blob. A last block that is not full is filled up with zeroes, which the digest does not
/// cover: archives of umoci end with the last byte of their last file, and others read them.
pub struct Blob {
    stream: Box<dyn Read>,
    compressed: std::rc::Rc<std::cell::Cell<u64>>,
    bytes: u64,
    filled: u64,
    most: u64,
    hash: Sha256,
    recorder: Option<Recorder>,
}

impl Blob {
    /// Read `file` from its start, at most `most` uncompressed bytes.
    ///
    /// # Errors
    /// It does not begin as a stream of that compression.
    pub fn open(file: File, compression: Compression, most: u64) -> io::Result<Self> {
        let compressed = std::rc::Rc::new(std::cell::Cell::new(0));
        let counted = BufReader::with_capacity(BUFFER, Counted { inner: file, bytes: compressed.clone() });
        let stream: Box<dyn Read> = match compression {
            Compression::None => Box::new(counted),
            Compression::Gzip => Box::new(MultiGzDecoder::new(counted)),
            Compression::Zstd => {
                let mut decoder = Decoder::with_buffer(counted)?;
                decoder.window_log_max(ZSTD_WINDOW_LOG)?;
                Box::new(decoder)
            }
        };
        Ok(Self { stream, compressed, bytes: 0, filled: 0, most, hash: Sha256::new(), recorder: None })
    }

    /// Let this one know of all that is read.
    #[must_use]
    pub fn recorded(self, recorder: Option<Recorder>) -> Self {
        Self { recorder, ..self }
    }

    /// SHA-256 of everything that was read, in hex.
    #[must_use]
    pub fn digest(&self) -> String {
        self.hash.clone().finalize().iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

impl Blob {
    /// Bytes with which the last block was filled up.
    #[must_use]
    pub fn filled(&self) -> u64 {
        self.filled
    }

    /// What the last block lacks, as far as `buffer` has room.
    fn fill(&mut self, buffer: &mut [u8]) -> usize {
        let lacks = (self.bytes + self.filled).next_multiple_of(BLOCK) - self.bytes - self.filled;
        let length = buffer.len().min(usize::try_from(lacks).unwrap_or(0));
        buffer[..length].fill(0);
        self.filled += length as u64;
        length
    }
}

impl Read for Blob {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let length = self.stream.read(buffer)?;
        if length == 0 {
            return Ok(self.fill(buffer));
        }
        self.hash.update(&buffer[..length]);
        if let Some(recorder) = &self.recorder {
            recorder.bytes(&buffer[..length]);
        }
        self.bytes += length as u64;
        if self.bytes > self.most {
            return Err(io::Error::other(format!("more than {} bytes uncompressed", self.most)));
        }
        if self.bytes > FREE_BYTES && self.bytes / MAX_RATIO > self.compressed.get() {
            return Err(io::Error::other(format!("compressed more than {MAX_RATIO} times")));
        }
        Ok(length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Seek, Write};

    fn file(bytes: &[u8]) -> File {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(bytes).unwrap();
        file.rewind().unwrap();
        file
    }

    #[test]
    fn every_compression_gives_the_same_bytes_and_digest() {
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        gzip.write_all(b"abc").unwrap();
        let blobs = [
            (Compression::None, b"abc".to_vec()),
            (Compression::Gzip, gzip.finish().unwrap()),
            (Compression::Zstd, zstd::encode_all(b"abc".as_slice(), 1).unwrap()),
        ];
        for (compression, bytes) in blobs {
            let mut blob = Blob::open(file(&bytes), compression, 3).unwrap();
            let mut text = Vec::new();
            blob.read_to_end(&mut text).unwrap();
            assert_eq!((&text[..3], text.len(), text[3..].iter().max()), (&b"abc"[..], 512, Some(&0)));
            assert_eq!(blob.digest(), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
        }
    }

    #[test]
    fn too_much_and_too_dense_are_errors() {
        let mut blob = Blob::open(file(b"abcd"), Compression::None, 3).unwrap();
        assert!(io::copy(&mut blob, &mut io::sink()).is_err());
        let bomb = zstd::encode_all(io::repeat(0).take(100 << 20), 1).unwrap();
        let mut blob = Blob::open(file(&bomb), Compression::Zstd, u64::MAX).unwrap();
        let error = io::copy(&mut blob, &mut io::sink()).unwrap_err();
        assert!(error.to_string().contains("200 times"), "{error}");
    }
}
