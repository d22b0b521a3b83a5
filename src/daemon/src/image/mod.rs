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

mod auth;
mod base;
mod build;
mod error;
mod flight;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
mod list;
mod log;
mod machine;
mod manifest;
mod name;
mod pull;
mod record;
mod registry;
mod settings;
mod size;
mod steps;
mod store;
mod user;

use std::collections::{BTreeMap, HashMap};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::Semaphore;
use wire::id::LayerId;

use crate::catalog::{Definition, Runtime, Source};

pub use error::{ImageError, StoreError};
pub use log::StepLog;
pub use machine::{BuildStep, Machine, MachineError, MachineFuture, StepEnd, Unpacked};
pub use settings::{Account, Settings, ca_env};

use flight::Flights;
use name::Origin;
use record::{Entry, Record, Records};
use store::Store;

/// Where the sandbox user's virtualenv is in a built image.
pub const VENV: &str = "/opt/venv";
/// Most bytes of a build's log that are given out.
const MAX_LOG: u64 = 8 * 1024 * 1024;
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
    flights: Flights<Result<Entry, SharedError>>,
    /// Why the last job of a key failed, until the next one begins.
    failures: Mutex<HashMap<String, SharedError>>,
    builds: Semaphore,
    fetches: Semaphore,
}

impl Images {
    /// Take the directory of the image store: make what is missing in it, sweep it, read what is recorded. Blocks.
    ///
    /// # Errors
    /// [`StoreError`] when the directory cannot be used.
    pub fn open(directory: OwnedFd, machine: Arc<dyn Machine>, mut settings: Settings) -> Result<Self, StoreError> {
        settings.recipes.retain(|name| name::is_recipe(name));
        let store = Store::open(directory)?;
        let records = Records::load(&store)?;
        Ok(Self(Arc::new(Inner {
            store,
            records,
            machine,
            settings,
            flights: Flights::new(),
            failures: Mutex::new(HashMap::new()),
            builds: Semaphore::new(1),
            fetches: Semaphore::new(FETCHES),
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

    /// The output of the last build of a runtime; absent if it was never built. Blocks on the disk.
    ///
    /// # Errors
    /// [`StoreError`] when it cannot be read.
    #[allow(dead_code, reason = "no route gives logs out yet")]
    pub fn log(&self, runtime: &Runtime) -> Result<Option<String>, StoreError> {
        use std::io::Read;
        let Source::Build(definition) = &runtime.source else { return Ok(None) };
        let path = build::log_path(&self.0.tag(definition));
        let Some(file) = self.0.store.read(&path)? else { return Ok(None) };
        let mut bytes = Vec::new();
        file.take(MAX_LOG).read_to_end(&mut bytes).map_err(|e| StoreError::new("read", path, e))?;
        Ok(Some(String::from_utf8_lossy(&bytes).into_owned()))
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
        let start = || {
            let (job, inner, key) = (start(), Arc::clone(self), key.to_owned());
            async move {
                inner.remember(key.clone(), None);
                let result = job.await.map_err(Arc::new);
                inner.remember(key, result.as_ref().err());
                result
            }
        };
        let broken = || Err(Arc::new(ImageError::Job { key: key.to_owned() }));
        self.flights.join(key, start).await.unwrap_or_else(broken)
    }

    fn remember(&self, key: String, failure: Option<&SharedError>) {
        let mut failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        match failure {
            Some(error) => failures.insert(key, Arc::clone(error)),
            None => failures.remove(&key),
        };
    }

    /// Record an image, off the threads that serve.
    async fn put(self: &Arc<Self>, record: Record) -> Result<Entry, StoreError> {
        let (inner, key) = (Arc::clone(self), record.key.clone());
        let task = tokio::task::spawn_blocking(move || {
            let size = size::of(&inner.store, &record.layers)?;
            inner.records.put(&inner.store, Record { size, ..record })
        });
        task.await.map_err(|e| StoreError::new("record", key, std::io::Error::other(e)))?
    }
}

async fn fetch(inner: Arc<Inner>, origin: Origin) -> Result<Entry, ImageError> {
    let key = origin.key();
    let _turn = inner.fetches.acquire().await;
    if let Some(entry) = inner.records.get(&key) {
        return Ok(entry);
    }
    match origin {
        Origin::Recipe(recipe) => base::bootstrap(&inner, key, recipe).await,
        Origin::Registry(reference) => base::pull(&inner, key, &reference).await,
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
