//! Why an image is not there.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use wire::id::LayerId;

use super::import::ImportError;
use super::machine::MachineError;
use super::manifest::ManifestError;
use super::registry::RegistryError;
use super::room::NoRoom;
use super::user::UserError;

/// An image cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    /// The text names no image.
    #[error("{name:?} is not the name of an image: {reason}")]
    Name {
        /// As it was written.
        name: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The store on disk failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The registry failed.
    #[error("pull {reference}")]
    Pull {
        /// What was asked for.
        reference: String,
        /// Why.
        #[source]
        source: PullError,
    },
    /// A recipe failed.
    #[error("bootstrap {recipe}")]
    Bootstrap {
        /// Which.
        recipe: String,
        /// Why.
        #[source]
        source: MachineError,
    },
    /// A layer could not be unpacked.
    #[error("unpack layer {layer} of {image}")]
    Unpack {
        /// Which.
        layer: LayerId,
        /// Of what.
        image: String,
        /// Why.
        #[source]
        source: MachineError,
    },
    /// A layer could not be packed.
    #[error("pack layer {layer} of {image}")]
    Pack {
        /// Which.
        layer: LayerId,
        /// Of what.
        image: String,
        /// Why.
        #[source]
        source: MachineError,
    },
    /// An archive is no image, or none that is acceptable.
    #[error("import {name}")]
    Import {
        /// Under which name.
        name: String,
        /// Why not.
        #[source]
        source: ImportError,
    },
    /// The user that an image names cannot be found in it.
    #[error("find the user of {image}")]
    User {
        /// Which.
        image: String,
        /// Why.
        #[source]
        source: UserError,
    },
    /// The base of a build cannot be had.
    #[error("prepare the base {base} of {alias}")]
    Base {
        /// Its name.
        base: String,
        /// The runtime that is built on it.
        alias: String,
        /// Why.
        #[source]
        source: Arc<ImageError>,
    },
    /// A step of a build ended with a failure; the end of its output is part of the message.
    #[error("build {alias}: {step} {end}: {tail}")]
    Step {
        /// The runtime.
        alias: String,
        /// Which step: "setup command 2 of 3 (apt-get …)".
        step: String,
        /// How it ended.
        end: String,
        /// The last of its output.
        tail: String,
    },
    /// A step of a build could not be run.
    #[error("build {alias}: run {step}")]
    Machine {
        /// The runtime.
        alias: String,
        /// Which step.
        step: String,
        /// Why.
        #[source]
        source: MachineError,
    },
    /// A build takes too long altogether.
    #[error("build {alias}: not done after {seconds} s, at {step}")]
    Deadline {
        /// The runtime.
        alias: String,
        /// Seconds it was given.
        seconds: u64,
        /// Where it was.
        step: String,
    },
    /// More layers than a sandbox can have.
    #[error("{image} has {count} layers; a sandbox has at most {max}", max = wire::launch::MAX_LAYERS)]
    Layers {
        /// Which.
        image: String,
        /// So many.
        count: usize,
    },
    /// The disk is nearly full.
    #[error("there is no room for it")]
    Room(#[from] NoRoom),
    /// The job that made it broke off.
    #[error("the job that prepares {key} broke off")]
    Job {
        /// Which.
        key: String,
    },
}

/// A registry did not give what was asked for.
#[derive(Debug, thiserror::Error)]
pub enum PullError {
    /// The registry or the way to it.
    #[error("fetch {what}")]
    Registry {
        /// The manifest or blob.
        what: String,
        /// Why.
        #[source]
        source: Box<RegistryError>,
    },
    /// The connection broke off, again and again.
    #[error("blob {digest} broke off after {at} of {size} bytes")]
    Broken {
        /// Which.
        digest: String,
        /// How much of it came.
        at: u64,
        /// How much there is.
        size: u64,
        /// Why; absent: it just ended.
        #[source]
        source: Option<Box<RegistryError>>,
    },
    /// The registry's description of the image is not acceptable.
    #[error(transparent)]
    Manifest(#[from] ManifestError),
    /// A blob is not what was announced.
    #[error("blob {digest} {problem}")]
    Blob {
        /// As announced.
        digest: String,
        /// How it differs.
        problem: String,
    },
    /// The credentials file.
    #[error("credentials: {reason}")]
    Credentials {
        /// What is wrong with it.
        reason: String,
    },
    /// A layer could not be unpacked.
    #[error("unpack layer {layer}")]
    Unpack {
        /// Which.
        layer: LayerId,
        /// Why.
        #[source]
        source: MachineError,
    },
    /// The file of the operator's own authorities.
    #[error("extra_ca_certs: read {}: {reason}", path.display())]
    Certificates {
        /// Which.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The client for registries cannot be made.
    #[error("make the registry client")]
    Client(#[source] Box<RegistryError>),
    /// It took too long.
    #[error("not done after {seconds} s")]
    Deadline {
        /// Seconds it was given.
        seconds: u64,
    },
    /// The disk is nearly full.
    #[error("there is no room for it")]
    Room(#[from] NoRoom),
    /// The disk.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl ImageError {
    /// Whether it is for want of room on the disk.
    #[must_use]
    pub fn is_full(&self) -> bool {
        let mut next: Option<&(dyn std::error::Error + 'static)> = Some(self);
        while let Some(error) = next {
            if error.is::<NoRoom>() || error.downcast_ref::<io::Error>().is_some_and(is_full) {
                return true;
            }
            next = error.source();
        }
        false
    }
}

/// An operation on the store's files failed.
#[derive(Debug, thiserror::Error)]
#[error("{operation} {path} in the image store")]
pub struct StoreError {
    /// What was attempted.
    operation: &'static str,
    /// On what, relative to the store.
    path: String,
    /// Why.
    #[source]
    source: io::Error,
}

impl StoreError {
    pub(super) fn new(operation: &'static str, path: impl Into<String>, source: impl Into<io::Error>) -> Self {
        Self { operation, path: path.into(), source: source.into() }
    }

    /// Whether it is for want of room on the disk.
    pub(super) fn is_full(&self) -> bool {
        is_full(&self.source)
    }
}

fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// An error with its causes, in one text.
pub(super) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}
