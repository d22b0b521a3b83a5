//! What this room needs done by others: everything with privilege, and everything inside a sandbox.

use std::error::Error;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::time::Duration;

use wire::id::LayerId;
use wire::launch::{Cache, Compression};

use super::log::StepLog;

/// The answer of a [`Machine`], later.
pub type MachineFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, MachineError>> + Send + 'a>>;

/// The launcher and the init, as this room sees them. Dropping a future
/// abandons the answer; the machine then ends and removes what it had begun.
pub trait Machine: Send + Sync + 'static {
    /// Unpack `blob`, read from its start, into the layer store as `layer`; also succeeds if the layer exists.
    /// The tar must have the digest `layer` once decompressed.
    fn unpack<'a>(&'a self, blob: OwnedFd, layer: &'a LayerId, compression: Compression)
    -> MachineFuture<'a, Unpacked>;

    /// Write a layer of the store as a tar to `output`, a regular file.
    fn pack<'a>(&'a self, layer: &'a LayerId, output: OwnedFd) -> MachineFuture<'a, ()>;

    /// Run the recipe of this name and write its tar to `output`.
    fn bootstrap<'a>(&'a self, recipe: &'a str, output: OwnedFd) -> MachineFuture<'a, ()>;

    /// Run one command in a build sandbox. If it ends with status 0 its write layer is in the layer
    /// store as `step.layer` when this returns; else nothing of it is left.
    fn run_step(&self, step: BuildStep) -> MachineFuture<'_, StepEnd>;

    /// How large the package caches of builds are; with `most`, those that are too large together are emptied first, or
    /// with `dry_run` only marked.
    fn caches(&self, most: Option<u64>, dry_run: bool) -> MachineFuture<'_, Vec<Cache>>;

    /// Delete a layer from the store.
    fn remove_layer<'a>(&'a self, layer: &'a LayerId) -> MachineFuture<'a, ()>;
}

/// One command of a build.
#[derive(Debug)]
pub struct BuildStep {
    /// Lower layers, topmost first.
    pub parents: Vec<LayerId>,
    /// Name of the layer that it makes.
    pub layer: LayerId,
    /// Program and arguments.
    pub argv: Vec<String>,
    /// The whole environment.
    pub env: Vec<(String, String)>,
    /// User inside; 0 in every step so far.
    pub uid: u32,
    /// Group inside.
    pub gid: u32,
    /// When it is ended, counted from its start.
    pub deadline: Duration,
    /// Where its standard output and standard error go, in the order in which they come.
    pub log: StepLog,
}

/// How a step ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StepEnd {
    /// It exited with this status (128 + N for signal N), perhaps because of a limit, which is named.
    Exited(i32, Option<String>),
    /// Its deadline passed.
    TimedOut,
    /// It was ended for this reason.
    Stopped(String),
}

/// What an unpacked layer holds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Unpacked {
    /// Bytes of regular files; 0 if the layer existed.
    pub bytes: u64,
}

/// The machine could not do it.
#[derive(Debug, thiserror::Error)]
#[error("{operation}")]
pub struct MachineError {
    operation: String,
    #[source]
    source: Option<Box<dyn Error + Send + Sync>>,
}

impl MachineError {
    /// `operation` failed because of `source`.
    pub fn new(operation: impl Into<String>, source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self { operation: operation.into(), source: Some(source.into()) }
    }
}
