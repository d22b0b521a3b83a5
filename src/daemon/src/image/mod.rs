//! Images: what a runtime names, made ready to stand on.
//!
//! ```text
//! Runtime ─ image ────────────► origin ─ recipe ──► bootstrap ─► layer ─┐
//!                                  └──── registry ─► pull ─► layers ────┼─► record ─► ReadyImage
//!         └ base + definition ─► base, then one layer for each step ────┘
//! ```
//!
//! [`Images::ensure`] answers at once for an image that is here and else waits for the one job that prepares
//! it; [`Images::ready`] only looks. An image exists whole or not at all: its record is written last. A failure is
//! an error for those who wait and nothing more; the next who asks tries again.
//!
//! This room knows nothing of sessions and holds no privilege: layers are unpacked, and steps run, by a
//! [`Machine`].

mod archive;
mod auth;
mod base;
mod board;
mod build;
mod caches;
mod challenge;
mod contents;
mod download;
mod error;
mod export;
mod failures;
mod flight;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
mod hosts;
mod import;
mod list;
mod log;
mod machine;
mod manage;
mod manifest;
mod name;
mod owner;
mod part;
mod platform;
mod progress;
mod pull;
mod record;
mod reference;
mod registry;
mod room;
mod settings;
mod size;
mod status;
mod steps;
mod store;
mod turns;
mod user;
mod writer;

use std::collections::{BTreeMap, HashMap};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, Weak};

use oci_spec::distribution::Reference;
use tokio::sync::{RwLock, Semaphore};
use wire::id::LayerId;

use crate::catalog::{Definition, Runtime, Source};
use crate::metrics;

pub use board::{StepReport, StepState};
pub use error::{ImageError, StoreError};
pub use export::{Archive, Form};
pub use import::Spool;
pub use log::StepLog;
pub use machine::{BuildStep, Machine, MachineError, MachineFuture, StepEnd, Unpacked};
pub use manage::{ManageError, Named, Pulling};
pub use owner::Tenure;
pub use settings::{Account, Settings, ca_env};
pub use status::Status;

use board::Board;
use failures::Failures;
use flight::Flights;
use name::Origin;
use owner::Owner;
use progress::Progress;
use record::{Entry, Kind, Record, Records};
use store::Store;
use turns::Turns;

/// Where the sandbox user's virtualenv is in a built image.
pub const VENV: &str = "/opt/venv";
/// Pulls and bootstraps at once.
const FETCHES: usize = 2;

/// An image to start sandboxes on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReadyImage {
    /// What identifies its content: of a built image the digest of its definition.
    pub tag: String,
    /// Its layers, topmost first.
    pub layers: Vec<LayerId>,
    /// The environment of its commands; `HOME` is not in it.
    pub env: Vec<(String, String)>,
    /// Whom its commands run as.
    pub uid: u32,
    /// Their group.
    pub gid: u32,
    /// Their home directory.
    pub home: String,
    /// Whether it was built here.
    pub built: bool,
    /// Held by all who have got it.
    lease: Lease,
}

/// As long as a copy of it is somewhere, the image is in use.
#[derive(Debug, Clone, Default)]
struct Lease(Arc<()>);

impl PartialEq for Lease {
    /// Of no meaning to what the image is.
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Lease {}

impl ReadyImage {
    /// Whether somebody but the one who asks has got it.
    fn is_held(self: &Arc<Self>) -> bool {
        Arc::strong_count(self) > 1 || Arc::strong_count(&self.lease.0) > 1
    }
}

/// What [`Images::ensure`] fails with; shared, because many may wait for one job.
pub type SharedError = Arc<ImageError>;

/// Every image of this host.
#[derive(Clone)]
pub struct Images(Arc<Inner>);

pub(crate) struct Inner {
    store: Store,
    records: Records,
    machine: Arc<dyn Machine>,
    settings: Settings,
    turns: Arc<Turns>,
    owner: Arc<Owner>,
    board: Board,
    flights: Flights<Result<Entry, SharedError>>,
    /// Why the last job of a key failed, until the next one begins.
    failures: Failures,
    builds: Semaphore,
    fetches: Semaphore,
    /// Room for pulls that were asked for by hand.
    by_hand: Arc<Semaphore>,
    /// How far pulls are, by key.
    progress: Mutex<HashMap<String, Weak<Progress>>>,
    /// Held by every job for reading: while none holds it, every layer without a record is nobody's.
    house: Arc<RwLock<()>>,
}

/// An image to be pulled.
pub(crate) struct Pull {
    reference: Box<Reference>,
    progress: Arc<Progress>,
    /// Whether the operator has named it.
    trusted: bool,
}

impl Images {
    /// Take the directory of the image store: make what is missing in it, sweep it, read what is recorded. Blocks.
    ///
    /// # Errors
    /// [`StoreError`] when the directory cannot be used, or another service has it.
    pub fn open(directory: OwnedFd, machine: Arc<dyn Machine>, mut settings: Settings) -> Result<Self, StoreError> {
        settings.recipes.retain(|name| name::is_recipe(name));
        let owner = Owner::take(&directory, settings.tenure, &settings.service)?;
        let turns = Turns::open(&directory)?;
        // What another process is about to make must not be swept away.
        let turn = turns.try_take()?;
        let store = if turn.is_some() { Store::open(directory)? } else { Store::join(directory)? };
        let store = store.with_reserve(settings.reserve);
        let records = Records::load(&store)?;
        Ok(Self(Arc::new(Inner {
            store,
            records,
            machine,
            settings,
            turns,
            owner,
            board: Board::new(),
            flights: Flights::new(),
            failures: Failures::default(),
            builds: Semaphore::new(1),
            fetches: Semaphore::new(FETCHES),
            by_hand: Arc::new(Semaphore::new(manage::PULLS)),
            progress: Mutex::default(),
            house: Arc::default(),
        })))
    }

    /// The runtime's image if it is here. Only looks into memory.
    #[must_use]
    pub fn ready(&self, runtime: &Runtime) -> Option<Arc<ReadyImage>> {
        match &runtime.source {
            Source::Image { reference, env_vars } => Some(with_env(self.0.find(reference).ok()??.ready, env_vars)),
            Source::Build(definition) => Some(self.0.records.get(&build::build_key(&self.0.tag(definition)))?.ready),
        }
    }

    /// The image `tag` as the runtime's commands have it, also if another is the runtime's by now: a sandbox that runs stands
    /// on the one that it was started on. Only looks into memory.
    #[must_use]
    pub fn tagged(&self, runtime: &Runtime, tag: &str) -> Option<Arc<ReadyImage>> {
        let own = self.ready(runtime).filter(|image| image.tag == tag);
        own.or_else(|| {
            let record = self.0.records.all().into_iter().find(|record| record.digest == tag)?;
            let image = self.0.records.get(&record.key)?.ready;
            match &runtime.source {
                Source::Image { env_vars, .. } => Some(with_env(image, env_vars)),
                Source::Build(_) => Some(image),
            }
        })
    }

    /// The runtime's image; made first if it is not here. May be dropped at any time: the job goes on.
    ///
    /// # Errors
    /// [`ImageError`], the same for all who waited for the job.
    pub async fn ensure(&self, runtime: &Runtime) -> Result<Arc<ReadyImage>, SharedError> {
        if let Some(ready) = self.ready(runtime) {
            return Ok(ready);
        }
        match &runtime.source {
            Source::Image { reference, env_vars } => Ok(with_env(self.0.named(reference).await?.ready, env_vars)),
            Source::Build(definition) => {
                let tag = self.0.tag(definition);
                let key = build::build_key(&tag);
                let job = || build::build(Arc::clone(&self.0), runtime.alias.clone(), definition.clone(), tag);
                Ok(self.0.job(&key, job).await?.ready)
            }
        }
    }
}

impl Inner {
    fn tag(&self, definition: &Definition) -> String {
        steps::tag(definition, &self.settings.account)
    }

    fn origins(&self, name: &str) -> Result<Vec<Origin>, ImageError> {
        name::origins(name, &self.settings.recipes, &self.settings.registry)
    }

    /// The image of this name if it is here.
    fn find(&self, name: &str) -> Result<Option<Entry>, ImageError> {
        Ok(self.origins(name)?.iter().find_map(|origin| self.records.get(&origin.key())))
    }

    /// The image of this name; fetched first if it is not here.
    async fn named(self: &Arc<Self>, name: &str) -> Result<Entry, SharedError> {
        if let Some(entry) = self.find(name)? {
            return Ok(entry);
        }
        let invalid = || ImageError::Name { name: name.to_owned(), reason: "it comes from nowhere".to_owned() };
        let origin = self.origins(name)?.into_iter().next().ok_or_else(invalid)?;
        let key = origin.key();
        self.job(&key, || fetch(Arc::clone(self), origin)).await
    }

    /// The result of the job `key`, which `start` makes unless it is under way.
    async fn job<F>(self: &Arc<Self>, key: &str, start: impl FnOnce() -> F) -> Result<Entry, SharedError>
    where
        F: Future<Output = Result<Entry, ImageError>> + Send + 'static,
    {
        self.fly(key, start, false).await
    }

    /// The result of the job that `start` makes, as soon as none of the key is under way.
    async fn own_job<F>(self: &Arc<Self>, key: &str, start: impl FnOnce() -> F) -> Result<Entry, SharedError>
    where
        F: Future<Output = Result<Entry, ImageError>> + Send + 'static,
    {
        self.fly(key, start, true).await
    }

    async fn fly<F>(self: &Arc<Self>, key: &str, start: impl FnOnce() -> F, own: bool) -> Result<Entry, SharedError>
    where
        F: Future<Output = Result<Entry, ImageError>> + Send + 'static,
    {
        let start = || {
            let (job, inner, key) = (start(), Arc::clone(self), key.to_owned());
            async move {
                let _house = inner.house.read().await;
                let _running = metrics::IMAGE_JOBS.one();
                let timing = metrics::IMAGES.begin(metrics::Image::Failed);
                inner.failures.forget(&key);
                let result = inner.in_turn(job).await.map_err(Arc::new);
                inner.board.clear(&key);
                if let Ok(entry) = &result {
                    timing.end(made(entry.record.kind));
                }
                if let Err(error) = &result {
                    inner.failures.put(key, error);
                }
                result
            }
        };
        let broken = || Err(Arc::new(ImageError::Job { key: key.to_owned() }));
        let flown = if own { self.flights.follow(key, start).await } else { self.flights.join(key, start).await };
        flown.unwrap_or_else(broken)
    }

    /// Do this while no other process works in the store.
    async fn in_turn<T>(&self, job: impl Future<Output = Result<T, ImageError>>) -> Result<T, ImageError> {
        let _turn = self.turns.take().await?;
        job.await
    }

    /// The image of this key, also if another process has made it since this one looked.
    fn find_again(&self, key: &str) -> Result<Option<Entry>, StoreError> {
        self.records.look_again(&self.store, key)
    }

    /// Record an image with the documents that describe it, each by its digest; off the threads that serve.
    async fn put(self: &Arc<Self>, record: Record, documents: Vec<(String, Vec<u8>)>) -> Result<Entry, StoreError> {
        let (inner, key) = (Arc::clone(self), record.key.clone());
        let task = tokio::task::spawn_blocking(move || {
            documents.iter().try_for_each(|(hex, bytes)| inner.store.write(&format!("blobs/sha256/{hex}"), bytes))?;
            inner.records.put(&inner.store, record)
        });
        task.await.map_err(|e| StoreError::new("record", key, std::io::Error::other(e)))?
    }
}

async fn fetch(inner: Arc<Inner>, origin: Origin) -> Result<Entry, ImageError> {
    let key = origin.key();
    let _turn = inner.fetches.acquire().await;
    if let Some(entry) = inner.find_again(&key)? {
        return Ok(entry);
    }
    match origin {
        Origin::Recipe(recipe) => base::bootstrap(&inner, key, recipe).await,
        Origin::Registry(reference) => {
            let pull = Pull { reference, progress: inner.progress_of(&key), trusted: true };
            base::pull(&inner, key, &pull).await
        }
    }
}

/// How an image was made, for the figures.
fn made(kind: Kind) -> metrics::Image {
    match kind {
        Kind::Bootstrapped => metrics::Image::Bootstrap,
        Kind::Pulled => metrics::Image::Pull,
        Kind::Imported => metrics::Image::Import,
        Kind::Built => metrics::Image::Build,
    }
}

fn with_env(ready: Arc<ReadyImage>, env_vars: &BTreeMap<String, String>) -> Arc<ReadyImage> {
    if env_vars.is_empty() {
        return ready;
    }
    let mut image = ReadyImage::clone(&ready);
    env_vars.iter().for_each(|(name, value)| set(&mut image.env, name, value));
    Arc::new(image)
}

/// Set a variable, keeping its place if it is there.
fn set(env: &mut Vec<(String, String)>, name: &str, value: &str) {
    match env.iter_mut().find(|(existing, _)| existing == name) {
        Some((_, old)) => value.clone_into(old),
        None => env.push((name.to_owned(), value.to_owned())),
    }
}

#[cfg(test)]
#[path = "images_tests.rs"]
mod tests;
