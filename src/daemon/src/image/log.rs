//! The output of a build's steps: a bounded file for people, a short tail for the error message.

use std::collections::VecDeque;
use std::fs::File;
use std::io::Write;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Most bytes of one step's output that are kept in the file.
pub const MAX_STEP_LOG: u64 = 1024 * 1024;
/// Bytes of one step's output that an error quotes.
const TAIL: usize = 2 * 1024;

/// Where the output of one step goes. Clones write to the same log.
#[derive(Debug, Clone)]
pub struct StepLog(Arc<Mutex<Inner>>);

#[derive(Debug)]
struct Inner {
    file: Option<File>,
    kept: u64,
    dropped: u64,
    tail: VecDeque<u8>,
}

impl StepLog {
    /// A log that appends to `file`; without one, only the tail is kept.
    pub(super) fn new(file: Option<File>) -> Self {
        Self(Arc::new(Mutex::new(Inner { file, kept: 0, dropped: 0, tail: VecDeque::new() })))
    }

    /// Append output. Never fails: when the disk is full, or past 1 MiB, what comes is counted and dropped.
    pub fn append(&self, chunk: &[u8]) {
        let mut inner = self.lock();
        let inner = &mut *inner;
        let room = usize::try_from(MAX_STEP_LOG.saturating_sub(inner.kept)).unwrap_or(usize::MAX);
        let (kept, dropped) = chunk.split_at(room.min(chunk.len()));
        if let Some(file) = &mut inner.file
            && file.write_all(kept).is_err()
        {
            inner.file = None;
        }
        inner.kept += kept.len() as u64;
        inner.dropped += dropped.len() as u64;
        inner.tail.extend(chunk.iter().rev().take(TAIL).rev());
        let excess = inner.tail.len().saturating_sub(TAIL);
        inner.tail.drain(..excess);
    }

    /// Say how much was dropped, if anything was.
    pub(super) fn finish(&self) {
        let mut inner = self.lock();
        let note = format!("\n[{} bytes more, not kept]\n", inner.dropped);
        if inner.dropped > 0
            && let Some(file) = &mut inner.file
            && file.write_all(note.as_bytes()).is_err()
        {
            inner.file = None;
        }
    }

    /// The end of the output, readable.
    pub(super) fn tail(&self) -> String {
        let bytes: Vec<u8> = self.lock().tail.iter().copied().collect();
        let text = String::from_utf8_lossy(&bytes);
        text.chars().filter(|c| *c == '\n' || *c == '\t' || !c.is_control()).collect::<String>().trim().to_owned()
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_is_bounded_and_its_end_is_kept() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let log = StepLog::new(Some(file.reopen().unwrap()));
        for _ in 0..80 {
            log.append(&[b'x'; 64 * 1024]);
        }
        log.append(b"\x1b[31mE: the end\n");
        log.finish();
        let kept = std::fs::read(file.path()).unwrap();
        assert!(kept.len() < 1024 * 1024 + 100, "{}", kept.len());
        assert!(String::from_utf8(kept).unwrap().ends_with("bytes more, not kept]\n"));
        assert!(log.tail().ends_with("E: the end") && log.tail().len() <= TAIL);
    }
}
