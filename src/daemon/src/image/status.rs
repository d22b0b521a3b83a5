//! How far a runtime's image is.

use std::io::Read;
use std::time::UNIX_EPOCH;

use tokio::sync::broadcast;
use wire::api::{BuildProgress, PullProgress};

use super::board::StepReport;
use super::error::{StoreError, chain};
use super::{Images, build};
use crate::catalog::{Runtime, Source};

/// Most bytes of a build's log that are given out.
const MAX_LOG: u64 = 8 * 1024 * 1024;

/// How far a runtime's image is.
#[derive(Debug, Clone, PartialEq)]
pub struct Status {
    /// `ready`, `building`, `failed` or `absent`.
    pub state: String,
    /// What identifies it, if that is known.
    pub tag: Option<String>,
    /// Where its build is.
    pub progress: Option<BuildProgress>,
    /// How far the pull of it, or of its base, is.
    pub pull: Option<PullProgress>,
    /// Why the last attempt failed.
    pub error: Option<String>,
}

impl Images {
    /// How far the runtime's image is. Only looks into memory.
    #[must_use]
    pub fn status(&self, runtime: &Runtime) -> Status {
        let ready = self.ready(runtime);
        let fetched_as = |name: &str| {
            let origins = self.0.origins(name).unwrap_or_default();
            origins.first().map(super::Origin::key).unwrap_or_default()
        };
        let (key, base, known) = match &runtime.source {
            Source::Build(definition) => {
                let tag = self.0.tag(definition);
                (build::build_key(&tag), fetched_as(&definition.base), Some(tag))
            }
            Source::Image { reference, .. } => (fetched_as(reference), fetched_as(reference), None),
        };
        let error = self.0.failures.get(&key).map(|error| chain(error.as_ref())).filter(|_| ready.is_none());
        let under_way = self.0.flights.keys();
        let state = match (&ready, &error) {
            (Some(_), _) => "ready",
            (None, Some(_)) => "failed",
            (None, None) if under_way.contains(&key) => "building",
            (None, None) => "absent",
        };
        let progress = self.0.board.get(&key).filter(|_| state == "building");
        Status {
            state: state.to_owned(),
            tag: ready.map(|image| image.tag.clone()).or(known),
            progress: progress.map(|at| told(&at)),
            pull: if under_way.contains(&base) { self.0.pull_of(&base) } else { None },
            error,
        }
    }

    /// Whether another process makes images at the moment, so that there may be builds which this one has not begun.
    #[must_use]
    pub fn others_work(&self) -> bool {
        matches!(self.0.turns.try_take(), Ok(None))
    }

    /// Whether this process makes images at the moment, and so no other.
    #[must_use]
    pub fn works(&self) -> bool {
        self.0.turns.is_ours()
    }

    /// Every step of every build from now on.
    #[must_use]
    pub fn listen(&self) -> broadcast::Receiver<StepReport> {
        self.0.board.listen()
    }

    /// The output of the last build of a runtime; absent if it was never built. Blocks on the disk.
    ///
    /// # Errors
    /// [`StoreError`] when it cannot be read.
    pub fn log(&self, runtime: &Runtime) -> Result<Option<String>, StoreError> {
        let Source::Build(definition) = &runtime.source else { return Ok(None) };
        let path = build::log_path(&self.0.tag(definition));
        let Some(file) = self.0.store.read(&path)? else { return Ok(None) };
        let mut bytes = Vec::new();
        file.take(MAX_LOG).read_to_end(&mut bytes).map_err(|e| StoreError::new("read", path, e))?;
        Ok(Some(String::from_utf8_lossy(&bytes).into_owned()))
    }
}

fn told(at: &StepReport) -> BuildProgress {
    BuildProgress {
        step: at.step.clone(),
        number: at.number as u64,
        steps: at.steps as u64,
        since: at.since.duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64()),
    }
}
