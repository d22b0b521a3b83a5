//! One blob of a registry, over as many connections as that takes.
//!
//! It is counted as it comes, hashed and written by a thread beside, and given out only when both are what was announced.
//! What breaks off is asked for from where it broke off, a bounded number of times; what came in an earlier pull is not
//! asked for again ([`Part`]).

use std::time::Duration;

use reqwest::header::CONTENT_RANGE;
use reqwest::{Response, StatusCode};

use super::error::{PullError, StoreError};
use super::manifest::Blob;
use super::part::Part;
use super::progress::Progress;
use super::registry::{Registry, RegistryError, http};
use super::room::Watch;
use super::store::Store;
use super::writer::{Piece, Writer, Writers};

/// Most failures one after another of which none brings a byte.
pub(super) const MAX_FAILURES: u32 = 4;
/// Most failures of one blob.
const MAX_BREAKS: u32 = 50;
/// Before the first repetition; doubled before each further one.
const PAUSE: Duration = Duration::from_millis(100);

/// Who fetches.
#[derive(Clone, Copy)]
pub(super) struct Fetcher<'a> {
    /// From where.
    pub(super) registry: &'a Registry<'a>,
    /// Who writes it down.
    pub(super) writers: &'a Writers,
    /// Who watches.
    pub(super) progress: &'a Progress,
}

/// Fetch what `part` has not got of `blob`; the blob. When it ends, well or not, nobody writes into the part any more.
pub(super) async fn download(fetcher: Fetcher<'_>, blob: &Blob, mut part: Part) -> Result<Part, PullError> {
    let mut room = Watch::default();
    loop {
        let kept = part.kept();
        let error = match fetch(fetcher, blob, &part, &mut room).await {
            Ok(()) => return Ok(part),
            Err(error) => error,
        };
        if !error.is_of_content() {
            return Err(error);
        }
        if kept == 0 {
            part.discard()?;
            return Err(error);
        }
        // What an earlier pull left may be what is wrong with it.
        tracing::warn!(%error, kept, "fetched again from the beginning");
        part.empty()?;
    }
}

async fn fetch(fetcher: Fetcher<'_>, blob: &Blob, part: &Part, room: &mut Watch) -> Result<(), PullError> {
    let Fetcher { registry, writers, progress } = fetcher;
    let at = part.kept();
    let writer = writers.start(part.file()?, at);
    let mut download = Download { registry, blob, store: part.store(), progress, writer, at, room };
    if at > 0 {
        progress.resumed();
        progress.received(at);
    }
    let brought = download.rest().await;
    // Also after a failure: whoever opens the part next, or empties it, must not have it written under his hands.
    let written = download.writer.finish().await.map_err(|e| StoreError::new("write", &blob.hex, e));
    brought?;
    let (_, actual) = written?;
    if actual != blob.hex {
        progress.lost(blob.size);
        return Err(wrong(blob, format!("has the digest sha256:{actual}")));
    }
    Ok(())
}

/// Wait a moment after so many failures.
pub(super) async fn pause(failures: u32) {
    tokio::time::sleep(PAUSE * 2_u32.saturating_pow(failures.saturating_sub(1).min(MAX_FAILURES))).await;
}

struct Download<'a> {
    registry: &'a Registry<'a>,
    blob: &'a Blob,
    store: &'a Store,
    progress: &'a Progress,
    writer: Writer,
    /// Bytes that have come.
    at: u64,
    room: &'a mut Watch,
}

impl Download<'_> {
    /// Everything that is missing, over as many connections as that takes.
    async fn rest(&mut self) -> Result<(), PullError> {
        let (kept, mut failures, mut breaks) = (self.at, 0, 0);
        while kept == 0 || self.at < self.blob.size {
            let before = self.at;
            let Err(error) = self.stretch().await else { break };
            failures = if self.at > before { 1 } else { failures + 1 };
            breaks += 1;
            if !error.is_passing() || failures > MAX_FAILURES || breaks > MAX_BREAKS {
                self.progress.lost(self.at);
                return Err(error);
            }
            tracing::debug!(%error, at = self.at, "going on from there");
            self.progress.resumed();
            pause(failures).await;
        }
        Ok(())
    }

    /// What one connection brings of what is missing. Done when nothing is.
    async fn stretch(&mut self) -> Result<(), PullError> {
        let (digest, size) = (self.digest(), self.blob.size);
        let fail = |source| PullError::Registry { what: digest.clone(), source: Box::new(source) };
        let answer = self.registry.blob(&digest, self.at).await;
        let mut response = match answer {
            Err(error) if self.at > 0 && error.is_beyond() => {
                self.begin_again().await;
                return Err(fail(error));
            }
            answer => answer.map_err(fail)?,
        };
        if first_byte(&response) != Some(self.at) {
            if response.status() == StatusCode::PARTIAL_CONTENT {
                return Err(wrong(self.blob, "comes from another place than was asked for".to_owned()));
            }
            self.begin_again().await;
        }
        let url = response.url().clone();
        let (at, broken) =
            (&mut self.at, |source| move |at| PullError::Broken { digest: digest.clone(), at, size, source });
        loop {
            let chunk = match response.chunk().await {
                Ok(Some(chunk)) => chunk,
                Ok(None) if *at == size => return Ok(()),
                Ok(None) => return Err(broken(None)(*at)),
                Err(error) => return Err(broken(Some(Box::new(http(&url, error))))(*at)),
            };
            let length = chunk.len() as u64;
            if *at + length > size {
                return Err(wrong(self.blob, format!("is longer than the {size} bytes announced")));
            }
            self.room.before(self.store, length)?;
            if !self.writer.write(Piece::Bytes(chunk)).await {
                // The disk failed: why is known at the end.
                *at = size;
                return Ok(());
            }
            *at += length;
            self.progress.received(length);
        }
    }

    /// What came is forgotten: it comes whole.
    async fn begin_again(&mut self) {
        self.writer.write(Piece::Restart).await;
        self.progress.lost(self.at);
        self.at = 0;
    }

    fn digest(&self) -> String {
        format!("sha256:{}", self.blob.hex)
    }
}

fn wrong(blob: &Blob, problem: String) -> PullError {
    PullError::Blob { digest: format!("sha256:{}", blob.hex), problem }
}

/// Where in the blob an answer begins (RFC 9110, 14.4).
fn first_byte(response: &Response) -> Option<u64> {
    if response.status() != StatusCode::PARTIAL_CONTENT {
        return Some(0);
    }
    let range = response.headers().get(CONTENT_RANGE)?.to_str().ok()?;
    range.trim().strip_prefix("bytes ")?.split('-').next()?.trim().parse().ok()
}

impl PullError {
    /// Whether the same may succeed in a moment.
    pub(super) fn is_passing(&self) -> bool {
        match self {
            Self::Registry { source, .. } => source.is_passing(),
            Self::Broken { source, .. } => source.as_deref().is_none_or(RegistryError::is_passing),
            Self::Manifest(_)
            | Self::Blob { .. }
            | Self::Unpack { .. }
            | Self::Credentials { .. }
            | Self::Certificates { .. }
            | Self::Client(_)
            | Self::Deadline { .. }
            | Self::Room(_)
            | Self::Store(_) => false,
        }
    }

    /// Whether what came is not what was announced.
    fn is_of_content(&self) -> bool {
        match self {
            Self::Blob { .. } => true,
            Self::Registry { .. }
            | Self::Broken { .. }
            | Self::Manifest(_)
            | Self::Unpack { .. }
            | Self::Credentials { .. }
            | Self::Certificates { .. }
            | Self::Client(_)
            | Self::Deadline { .. }
            | Self::Room(_)
            | Self::Store(_) => false,
        }
    }
}
