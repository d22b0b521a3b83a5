//! What an operator asks of the store: pulls, removals, and that what nobody uses is removed.
//!
//! ```text
//! take: out of the map, if nobody holds it ─► somebody found who needs it ─► back into the map
//!                                          └► its record is deleted ─► layers that no other record has
//! ```
//! From `take` on nobody gets the image; who has got it before holds it, and then it cannot be taken. A crash after
//! any step leaves whole images and, at worst, layers of none: the next collection finds them.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::OwnedRwLockWriteGuard;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout_at};
use wire::api::{ImageInfo, PullEvent, PullProgress, Removed};
use wire::id::LayerId;

use super::error::{ImageError, StoreError};
use super::list::reference_of;
use super::machine::MachineError;
use super::name::Origin;
use super::owner::Alone;
use super::progress::Progress;
use super::record::{Entry, Kind, Record, Records, Written};
use super::room::NoRoom;
use super::turns::Turn;
use super::{Images, Inner, Pull, SharedError, base, build, part, size};
use crate::catalog::{Runtime, Source};
use crate::fail;

/// How often a pull is looked at.
const LOOK: Duration = Duration::from_millis(200);
/// Most pulls that were asked for by hand and are not over: who hangs up does not end his.
pub(super) const PULLS: usize = 64;
/// How often a pull that stands still is reported.
const HEARTBEAT: Duration = Duration::from_secs(10);

/// What an operator asked for is not done.
#[derive(Debug, thiserror::Error)]
pub enum ManageError {
    /// There is no such image here.
    #[error("No such image: {0}")]
    Unknown(String),
    /// Somebody needs it.
    #[error("{name} is in use by {}", users.join(", "))]
    InUse {
        /// The image.
        name: String,
        /// Who: "session a", "runtime b".
        users: Vec<String>,
    },
    /// What is being made may be what would be removed.
    #[error("Images are being made: {}; try again when they are there", keys.join(", "))]
    UnderWay {
        /// Which.
        keys: Vec<String>,
    },
    /// So many have been asked for that more would only wait.
    #[error("{PULLS} pulls are under way or wait for their turn; try again when some are over")]
    Crowded,
    /// Another service may need what would be removed.
    #[error("The image store is shared with {with}: nothing is removed while that runs")]
    Shared {
        /// Who.
        with: String,
    },
    /// What nobody needs is not known.
    #[error(
        "Nothing is removed: {file} of the image store cannot be read ({reason}), and the layers that it names may be those of \
         sessions; start the version that wrote it, or remove the file"
    )]
    Unreadable {
        /// Which record.
        file: String,
        /// Why.
        reason: String,
    },
    /// The name, or what was sent, is no image.
    #[error("{}", super::error::chain(_0))]
    Image(#[from] ImageError),
    /// An archive was not imported.
    #[error("{}", super::error::chain(_0.as_ref()))]
    Import(SharedError),
    /// The disk is nearly full.
    #[error(transparent)]
    Room(#[from] NoRoom),
    /// The store on disk failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The launcher does not say how large caches are, or did not empty one.
    #[error("look at the package caches of builds")]
    Caches {
        /// Why.
        #[source]
        source: MachineError,
    },
    /// The launcher failed.
    #[error("remove layer {layer}")]
    Layer {
        /// Which.
        layer: LayerId,
        /// Why.
        #[source]
        source: MachineError,
    },
}

impl ManageError {
    /// Whether it is for want of room on the disk.
    #[must_use]
    pub fn is_full(&self) -> bool {
        match self {
            Self::Room(_) => true,
            Self::Image(error) => error.is_full(),
            Self::Import(error) => error.is_full(),
            Self::Store(error) => error.is_full(),
            Self::Unknown(_)
            | Self::InUse { .. }
            | Self::UnderWay { .. }
            | Self::Crowded
            | Self::Shared { .. }
            | Self::Unreadable { .. }
            | Self::Caches { .. }
            | Self::Layer { .. } => false,
        }
    }
}

/// An image of the store that was asked for by name.
#[derive(Debug, Clone)]
pub struct Named {
    key: String,
    /// What identifies its content.
    pub tag: String,
}

impl Named {
    /// As it is listed.
    #[must_use]
    pub fn reference(&self) -> &str {
        reference_of(&self.key)
    }
}

/// Images that nobody gets; they are there again when this is dropped.
pub struct Taken {
    images: Images,
    entries: Vec<Entry>,
}

impl Drop for Taken {
    fn drop(&mut self) {
        for entry in self.entries.drain(..) {
            self.images.0.records.give_back(entry);
        }
    }
}

impl Taken {
    /// Put those back whose tags are needed after all.
    pub fn spare(&mut self, needed: impl Fn(&str) -> bool) {
        let (back, keep) = self.entries.drain(..).partition(|entry: &Entry| needed(&entry.record.digest));
        self.entries = keep;
        for entry in Vec::into_iter(back) {
            self.images.0.records.give_back(entry);
        }
    }
}

/// Nothing is made while this is held.
pub struct Still(#[expect(dead_code, reason = "held, not used")] (OwnedRwLockWriteGuard<()>, Turn));

/// A pull that somebody watches. The pull goes on without them.
pub struct Pulling {
    images: Images,
    runtimes: Vec<Arc<Runtime>>,
    key: String,
    progress: Arc<Progress>,
    job: Option<JoinHandle<Result<Entry, SharedError>>>,
    told: Option<(PullProgress, Instant)>,
}

impl Pulling {
    /// What there is to say next; `None` when everything is said.
    pub async fn next(&mut self) -> Option<PullEvent> {
        loop {
            let job = self.job.as_mut()?;
            if let Ok(ended) = timeout_at(Instant::now() + LOOK, job).await {
                self.job = None;
                return Some(self.end(ended.ok()));
            }
            let progress = self.progress.read();
            let known = self.told.is_some_and(|(told, at)| told == progress && at.elapsed() < HEARTBEAT);
            if !known {
                self.told = Some((progress, Instant::now()));
                return Some(PullEvent::Progress { progress });
            }
        }
    }

    fn end(&self, ended: Option<Result<Entry, SharedError>>) -> PullEvent {
        let info = || self.images.info(&self.key, &self.runtimes);
        match ended {
            Some(Ok(_)) => match info() {
                Some(image) => PullEvent::Done { image: Box::new(image), progress: self.progress.read() },
                None => PullEvent::Failed { error: "it was removed again".to_owned() },
            },
            Some(Err(error)) => PullEvent::Failed { error: super::error::chain(error.as_ref()) },
            None => PullEvent::Failed { error: "the pull broke off".to_owned() },
        }
    }
}

impl Images {
    /// Fetch the image of this name, also if it is here: a tag may mean another one now, and then the one that was here
    /// stays under its digest. Its registry may be anywhere if one of these runtimes needs it: then the operator has named it.
    ///
    /// # Errors
    /// [`ManageError::Image`]: it is no name; [`ManageError::Crowded`].
    pub fn pull(&self, name: &str, runtimes: &[Arc<Runtime>]) -> Result<Pulling, ManageError> {
        let invalid = || ImageError::Name { name: name.to_owned(), reason: "it comes from nowhere".to_owned() };
        let origin = self.0.origins(name)?.into_iter().next().ok_or_else(invalid)?;
        let place = Arc::clone(&self.0.by_hand).try_acquire_owned().map_err(|_| ManageError::Crowded)?;
        let key = origin.key();
        let progress = self.0.progress_of(&key);
        let trusted = runtimes.iter().any(|runtime| self.0.needs(runtime, &key));
        let (inner, watched, job_key) = (Arc::clone(&self.0), Arc::clone(&progress), key.clone());
        let job = tokio::spawn(async move {
            let _place = place;
            let fetch = || refresh(Arc::clone(&inner), origin, watched, trusted);
            inner.job(&job_key, fetch).await
        });
        let (images, runtimes) = (self.clone(), runtimes.to_vec());
        Ok(Pulling { images, runtimes, key, progress, job: Some(job), told: None })
    }

    /// The image that is here under this name, digest or tag.
    ///
    /// # Errors
    /// [`ManageError::Unknown`]; [`ManageError::Image`] for what can be no name.
    pub fn named(&self, name: &str) -> Result<Named, ManageError> {
        let hex = name.strip_prefix("sha256:").unwrap_or(name);
        let named = |entry: Entry| Named { key: entry.record.key.clone(), tag: entry.record.digest.clone() };
        if LayerId::parse(hex).is_ok() {
            let records = self.0.records.all();
            let found = records.iter().find(|record| record.digest == hex);
            let found = found.and_then(|record| self.0.records.get(&record.key));
            return found.map(named).ok_or_else(|| ManageError::Unknown(name.to_owned()));
        }
        self.0.find(name)?.map(named).ok_or_else(|| ManageError::Unknown(name.to_owned()))
    }

    pub(super) fn entry(&self, image: &Named) -> Option<Entry> {
        self.0.records.get(&image.key)
    }

    pub(super) fn inner(&self) -> &Arc<Inner> {
        &self.0
    }

    /// As it is listed.
    #[must_use]
    pub fn info(&self, key: &str, runtimes: &[Arc<Runtime>]) -> Option<ImageInfo> {
        self.overview(runtimes).into_iter().find(|image| image.reference == reference_of(key))
    }

    /// Which of these runtimes use the image.
    #[must_use]
    pub fn runtimes_of<'a>(&self, image: &Named, runtimes: &'a [Arc<Runtime>]) -> Vec<&'a str> {
        let uses = |runtime: &&'a Arc<Runtime>| self.0.key(runtime) == image.key;
        runtimes.iter().filter(uses).map(|runtime| runtime.alias.as_str()).collect()
    }

    /// Let nobody get the image any more.
    ///
    /// # Errors
    /// [`ManageError::InUse`]: somebody has got it; [`ManageError::Unknown`].
    pub fn take(&self, image: &Named) -> Result<Taken, ManageError> {
        let name = || image.reference().to_owned();
        match self.0.records.take(&image.key) {
            Some(Some(entry)) => Ok(Taken { images: self.clone(), entries: vec![entry] }),
            Some(None) => {
                let keys = self.0.flights.keys();
                let making = keys.iter().map(|key| format!("{}, which is being made", reference_of(key)));
                let mut users: Vec<String> = making.collect();
                if users.is_empty() {
                    users.push("a session that is opening".to_owned());
                }
                Err(ManageError::InUse { name: name(), users })
            }
            None => Err(ManageError::Unknown(name())),
        }
    }

    /// Remove what was taken, and those of its layers that no other image has. While something is made the layers are
    /// left for the next collection.
    ///
    /// # Errors
    /// [`ManageError`]; what is left then is found by the next collection.
    pub async fn remove(&self, mut taken: Taken) -> Result<Removed, ManageError> {
        let mut removed = Removed::default();
        let layers: HashSet<LayerId> = taken.entries.iter().flat_map(|entry| entry.record.layers.clone()).collect();
        // Before the first step: what is needed has to be known.
        self.0.kept(&HashSet::new())?;
        self.forget(&mut taken, &mut removed)?;
        if let Ok(_still) = self.hold_still() {
            let own = self.orphans(&HashSet::new()).await?.into_iter().filter(|(layer, _)| layers.contains(layer));
            self.remove_layers(own.collect(), &mut removed).await?;
        }
        Ok(removed)
    }

    /// Let no other service work with the store until it is dropped.
    ///
    /// # Errors
    /// [`ManageError::Shared`]: one does; [`ManageError::UnderWay`].
    pub fn alone(&self) -> Result<Alone, ManageError> {
        let turn = self.0.turns.try_take()?;
        let _turn = turn.ok_or_else(|| ManageError::UnderWay { keys: vec!["another process's".to_owned()] })?;
        self.0.owner.alone()?.ok_or_else(|| ManageError::Shared { with: self.0.owner.last() })
    }

    /// Let nothing be made until it is dropped.
    ///
    /// # Errors
    /// [`ManageError::UnderWay`].
    pub fn hold_still(&self) -> Result<Still, ManageError> {
        let busy = |keys| ManageError::UnderWay { keys };
        let house = Arc::clone(&self.0.house).try_write_owned().map_err(|_| busy(self.0.flights.keys()))?;
        let turn = self.0.turns.try_take()?.ok_or_else(|| busy(vec!["another process's".to_owned()]))?;
        Ok(Still((house, turn)))
    }

    /// Images that may go: those that another took the place of, and builds that no runtime is of any more; with `all` those
    /// of no runtime.
    #[must_use]
    pub fn unused(&self, runtimes: &[Arc<Runtime>], all: bool, needed: impl Fn(&str) -> bool) -> Vec<Named> {
        let wanted: HashSet<String> = runtimes.iter().map(|runtime| self.0.key(runtime)).collect();
        let superseded = |record: &Record| record.kind == Kind::Built || record.key.starts_with("untagged/");
        let records =
            self.0.records.all().into_iter().filter(|record| {
                !wanted.contains(&record.key) && !needed(&record.digest) && (all || superseded(record))
            });
        records.map(|record| Named { key: record.key.clone(), tag: record.digest.clone() }).collect()
    }

    /// Images that were built for one of these runtimes before its definition changed, if the one that it has now is here.
    #[must_use]
    pub fn superseded(&self, runtimes: &[Arc<Runtime>]) -> Vec<Named> {
        let wanted: HashSet<String> = runtimes.iter().map(|runtime| self.0.key(runtime)).collect();
        let ready = runtimes.iter().filter(|runtime| self.ready(runtime).is_some());
        let replaced: HashSet<&str> = ready.map(|runtime| runtime.alias.as_str()).collect();
        let mut records = self.0.records.all();
        records.retain(|record| {
            let built_for = record.alias.as_deref().filter(|_| record.kind == Kind::Built);
            built_for.is_some_and(|alias| replaced.contains(alias)) && !wanted.contains(&record.key)
        });
        records.iter().map(|record| Named { key: record.key.clone(), tag: record.digest.clone() }).collect()
    }

    /// Remove the logs of builds that neither made an image that is here nor are one of these runtimes'.
    ///
    /// # Errors
    /// [`ManageError::Store`], [`ManageError::Unreadable`].
    pub fn forget_logs(&self, runtimes: &[Arc<Runtime>]) -> Result<(), ManageError> {
        let wanted = runtimes.iter().map(|runtime| self.0.key(runtime));
        // Also those that a `prepare` has made since, for the service that is started next.
        let recorded = self.0.kept(&HashSet::new())?.into_iter().map(|record| record.key);
        let kept: HashSet<String> = wanted.chain(recorded).filter_map(|key| build::log_of(&key)).collect();
        let names = self.0.store.names("logs", usize::MAX)?;
        let stale = names.iter().map(|name| format!("logs/{name}")).filter(|path| !kept.contains(path));
        Ok(stale.into_iter().try_for_each(|path| self.0.store.remove(&path))?)
    }

    /// What [`Self::collect`] would remove if it were given these.
    ///
    /// # Errors
    /// [`ManageError::Store`].
    pub async fn would_collect(&self, images: &[Named]) -> Result<Removed, ManageError> {
        let doomed = images.iter().map(|image| image.key.clone()).collect();
        let layers = self.orphans(&doomed).await?;
        let parts = part::all(&self.0.store)?;
        let bytes = layers.iter().map(|(_, size)| size).chain(parts.iter().map(|part| &part.bytes)).sum();
        Ok(Removed {
            images: images.iter().map(|image| image.reference().to_owned()).collect(),
            files: (self.stale_blobs(&doomed)?.len() + parts.len()) as u64,
            bytes,
            layers: layers.into_iter().map(|(layer, _)| layer.to_string()).collect(),
            caches: Vec::new(),
        })
    }

    /// Remove these images as far as nobody has got them, every layer that no image has, documents of none, and what pulls
    /// left that did not end well. Only while [`Self::hold_still`].
    ///
    /// # Errors
    /// [`ManageError`]; what is left then is found by the next collection.
    pub async fn collect(&self, mut taken: Taken, _still: &Still) -> Result<Removed, ManageError> {
        let mut removed = Removed::default();
        self.0.kept(&HashSet::new())?;
        self.forget(&mut taken, &mut removed)?;
        let layers = self.orphans(&HashSet::new()).await?;
        self.remove_layers(layers, &mut removed).await?;
        for path in self.stale_blobs(&HashSet::new())? {
            self.0.store.remove(&path)?;
            removed.files += 1;
        }
        for part in part::all(&self.0.store)? {
            if part::remove(&self.0.store, &part)? {
                (removed.files, removed.bytes) = (removed.files + 1, removed.bytes + part.bytes);
            }
        }
        Ok(removed)
    }

    /// Take those of these images that nobody has got.
    #[must_use]
    pub fn take_free(&self, images: &[Named]) -> Taken {
        let entries = images.iter().filter_map(|image| self.0.records.take(&image.key).flatten()).collect();
        Taken { images: self.clone(), entries }
    }

    fn forget(&self, taken: &mut Taken, removed: &mut Removed) -> Result<(), ManageError> {
        while let Some(entry) = taken.entries.last() {
            self.0.records.forget(&self.0.store, &entry.record.key)?;
            if entry.record.kind == Kind::Built {
                self.0.store.remove(&build::log_path(&entry.record.digest))?;
            }
            fail::point("image.forgotten");
            removed.images.push(reference_of(&entry.record.key).to_owned());
            taken.entries.pop();
        }
        Ok(())
    }

    /// Layers on disk that no record but those of `doomed` has, and how large they are.
    async fn orphans(&self, doomed: &HashSet<String>) -> Result<Vec<(LayerId, u64)>, ManageError> {
        let (inner, doomed) = (Arc::clone(&self.0), doomed.clone());
        let task = tokio::task::spawn_blocking(move || {
            let kept: HashSet<LayerId> = inner.kept(&doomed)?.into_iter().flat_map(|record| record.layers).collect();
            // The launcher's directory, and its staging ones in it; without a layer there is none.
            let names = inner.store.names("layers", usize::MAX).unwrap_or_default();
            let layers = names.iter().filter_map(|name| LayerId::parse(name).ok());
            let layers = layers.filter(|layer| !kept.contains(layer));
            layers
                .map(|layer| Ok((layer.clone(), size::of(&inner.store, &layer)?)))
                .collect::<Result<Vec<_>, ManageError>>()
        });
        task.await.map_err(|e| StoreError::new("list", "layers", std::io::Error::other(e)))?
    }

    async fn remove_layers(&self, layers: Vec<(LayerId, u64)>, removed: &mut Removed) -> Result<(), ManageError> {
        for (layer, bytes) in layers {
            let done = self.0.machine.remove_layer(&layer).await;
            done.map_err(|source| ManageError::Layer { layer: layer.clone(), source })?;
            fail::point("image.layer_removed");
            removed.layers.push(layer.to_string());
            removed.bytes += bytes;
        }
        Ok(())
    }

    /// Documents of no record but those of `doomed`.
    fn stale_blobs(&self, doomed: &HashSet<String>) -> Result<Vec<String>, ManageError> {
        let kept = self.0.kept(doomed)?;
        let kept: HashSet<&str> =
            kept.iter().flat_map(|r| [r.digest.as_str(), r.config.as_deref().unwrap_or("")]).collect();
        let names = self.0.store.names("blobs/sha256", usize::MAX)?;
        let stale = names.iter().filter(|name| !kept.contains(name.as_str()));
        Ok(stale.map(|name| format!("blobs/sha256/{name}")).collect())
    }
}

impl Inner {
    /// The records but those of `doomed`: those that are known, and what else is on disk.
    fn kept(&self, doomed: &HashSet<String>) -> Result<Vec<Record>, ManageError> {
        let Written { mut records, unreadable } = Records::written(&self.store)?;
        if let Some((file, reason)) = unreadable {
            return Err(ManageError::Unreadable { file, reason });
        }
        records.extend(self.records.all().iter().map(|record| Record::clone(record)));
        records.retain(|record| !doomed.contains(&record.key));
        Ok(records)
    }

    /// Whether a runtime is of the image of this key, or built on it.
    pub(super) fn needs(&self, runtime: &Runtime, key: &str) -> bool {
        let name = match &runtime.source {
            Source::Image { reference, .. } => reference,
            Source::Build(definition) => &definition.base,
        };
        self.origins(name).is_ok_and(|origins| origins.iter().any(|origin| origin.key() == key))
    }

    /// How far the pull of this key is; the same for all who ask while one of them has it.
    pub(super) fn progress_of(&self, key: &str) -> Arc<Progress> {
        let mut all = self.progress.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        all.retain(|_, progress| progress.strong_count() > 0);
        if let Some(known) = all.get(key).and_then(std::sync::Weak::upgrade) {
            return known;
        }
        let fresh = Arc::new(Progress::default());
        all.insert(key.to_owned(), Arc::downgrade(&fresh));
        fresh
    }

    /// How far the pull of this key is, if there is one.
    pub(super) fn pull_of(&self, key: &str) -> Option<PullProgress> {
        let all = self.progress.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        Some(all.get(key)?.upgrade()?.read())
    }
}

/// Fetch, whether or not it is here.
async fn refresh(
    inner: Arc<Inner>,
    origin: Origin,
    progress: Arc<Progress>,
    trusted: bool,
) -> Result<Entry, ImageError> {
    let key = origin.key();
    let _turn = inner.fetches.acquire().await;
    match origin {
        Origin::Recipe(recipe) => base::bootstrap(&inner, key, recipe).await,
        Origin::Registry(reference) => base::pull(&inner, key, &Pull { reference, progress, trusted }).await,
    }
}
