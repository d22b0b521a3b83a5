//! How far a pull is, for whoever watches it.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use wire::api::PullProgress;

/// Counted while it goes on.
#[derive(Debug, Default)]
pub(super) struct Progress {
    layers: AtomicU64,
    layers_ready: AtomicU64,
    bytes: AtomicU64,
    bytes_received: AtomicU64,
    resumed: AtomicU64,
}

impl Progress {
    /// A source was found that has so many layers. What was counted of another source is forgotten.
    pub(super) fn begin(&self, layers: usize) {
        self.layers.store(layers as u64, Relaxed);
        for count in [&self.layers_ready, &self.bytes, &self.bytes_received] {
            count.store(0, Relaxed);
        }
    }

    /// A blob of so many bytes is to be fetched.
    pub(super) fn expect(&self, bytes: u64) {
        self.bytes.fetch_add(bytes, Relaxed);
    }

    /// A blob of so many bytes need not be fetched after all.
    pub(super) fn spare(&self, bytes: u64) {
        self.bytes.fetch_sub(bytes, Relaxed);
    }

    /// So many bytes have come.
    pub(super) fn received(&self, bytes: u64) {
        self.bytes_received.fetch_add(bytes, Relaxed);
    }

    /// So many bytes have come in vain: a blob is begun again.
    pub(super) fn lost(&self, bytes: u64) {
        self.bytes_received.fetch_sub(bytes, Relaxed);
    }

    /// A connection broke off, and what is missing is asked for.
    pub(super) fn resumed(&self) {
        self.resumed.fetch_add(1, Relaxed);
    }

    /// A layer is in the store.
    pub(super) fn layer_ready(&self) {
        self.layers_ready.fetch_add(1, Relaxed);
    }

    /// What there is to see now.
    pub(super) fn read(&self) -> PullProgress {
        PullProgress {
            layers: self.layers.load(Relaxed),
            layers_ready: self.layers_ready.load(Relaxed),
            bytes: self.bytes.load(Relaxed),
            bytes_received: self.bytes_received.load(Relaxed),
            resumed: self.resumed.load(Relaxed),
        }
    }
}
