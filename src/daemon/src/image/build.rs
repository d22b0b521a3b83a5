//! Building an image: its base, then each step on top of it, each one layer.
//!
//! A layer that is here already is not made again. The image is recorded when all of its layers are there: until then
//! nobody can see it, and a build that fails or is interrupted leaves only whole layers, which the next one uses.

use std::io::Write;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use wire::id::LayerId;
use wire::launch::MAX_LAYERS;

use crate::catalog::Definition;
use crate::fail;

use super::board::{StepReport, StepState};
use super::error::{ImageError, StoreError};
use super::log::StepLog;
use super::machine::{BuildStep, StepEnd};
use super::record::{Entry, Kind, Record};
use super::steps::{self, Step};
use super::store::{self, Found};
use super::user::User;
use super::{Inner, VENV, ca_env, set};

/// Search path of an image that names none.
pub(super) const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Package managers ask nobody and draw no bars.
const QUIET: [(&str, &str); 7] = [
    ("DEBIAN_FRONTEND", "noninteractive"),
    ("PIP_DISABLE_PIP_VERSION_CHECK", "1"),
    ("PIP_PROGRESS_BAR", "off"),
    ("PIP_ROOT_USER_ACTION", "ignore"),
    ("npm_config_fund", "false"),
    ("npm_config_audit", "false"),
    ("npm_config_update_notifier", "false"),
];

/// One build under way.
struct Build<'a> {
    inner: &'a Arc<Inner>,
    alias: &'a str,
    tag: &'a str,
    key: &'a str,
    started: Instant,
}

/// One step of it, as it is told.
struct At {
    title: String,
    number: usize,
    steps: usize,
    since: SystemTime,
}

/// Build the image of `definition`, or find that it is there.
pub(super) async fn build(
    inner: Arc<Inner>,
    alias: String,
    definition: Definition,
    tag: String,
) -> Result<Entry, ImageError> {
    let key = build_key(&tag);
    if let Some(entry) = inner.find_again(&key)? {
        return Ok(entry);
    }
    let steps = steps::steps(&definition, &inner.settings.account);
    let mut build = Build { inner: &inner, alias: &alias, tag: &tag, key: &key, started: Instant::now() };
    let base = build.base(&definition.base, steps.len()).await?;
    // One at a time: package caches are shared, and their managers lock them.
    let _turn = inner.builds.acquire().await;
    build.started = Instant::now();
    let layers = build.layers(&base.record, &steps).await;
    inner.bound_caches().await;
    let layers = layers?;
    let mut record = Record::new(key.clone(), Kind::Built, tag.clone());
    record.env = build.env(&base.record, &definition, &layers)?;
    record.user =
        User { uid: inner.settings.account.uid, gid: inner.settings.account.gid, home: inner.settings.account.home() };
    record.layers = layers;
    record.alias = Some(alias.clone());
    let entry = inner.put(record, Vec::new()).await?;
    fail::point("build.recorded");
    Ok(entry)
}

/// The key of the record of a built image.
pub(super) fn build_key(tag: &str) -> String {
    format!("build/{tag}")
}

impl Build<'_> {
    /// The image that it stands on.
    async fn base(&self, name: &str, steps: usize) -> Result<Entry, ImageError> {
        let at = At { title: format!("base {name}"), number: 0, steps, since: SystemTime::now() };
        if let Some(entry) = self.inner.find(name)? {
            self.tell(&at, StepState::Unchanged);
            return Ok(entry);
        }
        self.tell(&at, StepState::Running);
        let begun = Instant::now();
        let fetched = self.inner.named(name).await;
        self.tell(&at, fetched.as_ref().map_or_else(|error| StepState::Failed(error.to_string()), |_| done(begun)));
        fetched.map_err(|source| ImageError::Base { base: name.to_owned(), alias: self.alias.to_owned(), source })
    }

    /// Make every layer that is missing; the whole stack, topmost first.
    async fn layers(&self, base: &Record, steps: &[Step]) -> Result<Vec<LayerId>, ImageError> {
        let count = base.layers.len() + steps.len();
        if count > MAX_LAYERS {
            return Err(ImageError::Layers { image: self.alias.to_owned(), count });
        }
        drop(self.inner.store.truncate(&log_path(self.tag))?);
        let mut layers = base.layers.clone();
        let env = self.step_env(base);
        for (index, step) in steps.iter().enumerate() {
            let parent = layers.first().ok_or_else(|| ImageError::Layers { image: self.alias.to_owned(), count: 0 })?;
            let layer = step.layer(parent).map_err(|e| StoreError::new("name", "layers", std::io::Error::other(e)))?;
            let (title, steps) = (step.title.clone(), steps.len());
            let at = At { title, number: index + 1, steps, since: SystemTime::now() };
            if self.inner.store.has_layer(&layer) {
                self.note(&format!("== {}: unchanged\n", step.title))?;
                self.tell(&at, StepState::Unchanged);
            } else {
                self.tell(&at, StepState::Running);
                let begun = Instant::now();
                let ran = self.run(step, &layers, layer.clone(), env.clone()).await;
                self.tell(&at, ran.as_ref().map_or_else(failed, |()| done(begun)));
                ran?;
            }
            layers.insert(0, layer);
        }
        Ok(layers)
    }

    fn tell(&self, at: &At, state: StepState) {
        let (alias, step) = (self.alias.to_owned(), at.title.clone());
        let (number, steps, since) = (at.number, at.steps, at.since);
        self.inner.board.put(self.key, StepReport { alias, step, number, steps, since, state });
    }

    async fn run(
        &self,
        step: &Step,
        parents: &[LayerId],
        layer: LayerId,
        env: Vec<(String, String)>,
    ) -> Result<(), ImageError> {
        let deadline = self.remaining(step)?;
        let log = StepLog::new(Some(self.note(&format!("== {}\n", step.title))?));
        let started = Instant::now();
        let request = BuildStep {
            parents: parents.to_vec(),
            layer,
            argv: step.argv.clone(),
            env,
            uid: 0,
            gid: 0,
            deadline,
            log: log.clone(),
        };
        let result = self.inner.machine.run_step(request).await;
        log.finish();
        let end = match result {
            Ok(StepEnd::Exited(0, _)) => {
                self.note(&format!("== done in {:.1} s\n", started.elapsed().as_secs_f64()))?;
                return Ok(());
            }
            Ok(StepEnd::Exited(code, None)) => format!("exited with status {code}"),
            Ok(StepEnd::Exited(code, Some(limit))) => format!("exited with status {code} ({limit})"),
            Ok(StepEnd::TimedOut) => format!("was ended after {} s (build_timeout)", deadline.as_secs()),
            Ok(StepEnd::Stopped(reason)) => format!("was ended: {reason}"),
            Err(source) => {
                let (alias, step) = (self.alias.to_owned(), step.title.clone());
                return Err(ImageError::Machine { alias, step, source });
            }
        };
        self.note(&format!("== {end}\n"))?;
        Err(ImageError::Step { alias: self.alias.to_owned(), step: step.title.clone(), end, tail: log.tail() })
    }

    /// What is left of the build's time.
    fn remaining(&self, step: &Step) -> Result<Duration, ImageError> {
        let settings = &self.inner.settings;
        let left = settings.build_timeout.saturating_sub(self.started.elapsed());
        if left.is_zero() {
            let seconds = settings.build_timeout.as_secs();
            return Err(ImageError::Deadline { alias: self.alias.to_owned(), seconds, step: step.title.clone() });
        }
        Ok(left)
    }

    /// Append a line to the build's log; the log, for appending more.
    fn note(&self, text: &str) -> Result<std::fs::File, StoreError> {
        let path = log_path(self.tag);
        let mut file = self.inner.store.append(&path)?;
        file.write_all(text.as_bytes()).map_err(|e| StoreError::new("write", path, e))?;
        Ok(file)
    }

    /// Environment of a step, which runs as root: the base's, what makes package managers quiet, the operator's.
    fn step_env(&self, base: &Record) -> Vec<(String, String)> {
        let settings = &self.inner.settings;
        let mut env = vec![("PATH".to_owned(), DEFAULT_PATH.to_owned())];
        base.env.iter().for_each(|(name, value)| set(&mut env, name, value));
        set(&mut env, "HOME", "/root");
        QUIET.iter().for_each(|(name, value)| set(&mut env, name, value));
        if settings.extra_ca_certs.is_some() {
            ca_env().iter().for_each(|(name, value)| set(&mut env, name, value));
        }
        settings.build_env.iter().for_each(|(name, value)| set(&mut env, name, value));
        env
    }

    /// Environment of the image: the base's, the virtualenv first on the path, the definition's.
    fn env(
        &self,
        base: &Record,
        definition: &Definition,
        layers: &[LayerId],
    ) -> Result<Vec<(String, String)>, StoreError> {
        let mut env = vec![("PATH".to_owned(), DEFAULT_PATH.to_owned())];
        base.env.iter().for_each(|(name, value)| set(&mut env, name, value));
        if self.has_venv(layers)? {
            let path = env.iter().find(|(name, _)| name == "PATH").map_or(DEFAULT_PATH, |(_, path)| path);
            let path = format!("{VENV}/bin:{path}");
            set(&mut env, "PATH", &path);
            set(&mut env, "VIRTUAL_ENV", VENV);
            // An image that says it would make uv pass the virtualenv by.
            if env.iter().any(|(name, _)| name == "UV_SYSTEM_PYTHON") {
                set(&mut env, "UV_SYSTEM_PYTHON", "0");
            }
        }
        definition.env_vars.iter().for_each(|(name, value)| set(&mut env, name, value));
        Ok(env)
    }

    fn has_venv(&self, layers: &[LayerId]) -> Result<bool, StoreError> {
        let path = format!("{}/pyvenv.cfg", VENV.trim_start_matches('/'));
        let open: Vec<_> = layers.iter().map(|layer| self.inner.store.layer(layer)).collect::<Result<_, _>>()?;
        let found = store::find(&open, &path).map_err(|e| StoreError::new("look in", &path, e))?;
        Ok(matches!(found, Found::File(_)))
    }
}

fn done(begun: Instant) -> StepState {
    StepState::Done(begun.elapsed())
}

/// How it ended; its output is in the log.
fn failed(error: &ImageError) -> StepState {
    StepState::Failed(match error {
        ImageError::Step { end, .. } => end.clone(),
        other => other.to_string(),
    })
}

/// Where the log of the build of this key is; none if it is not one.
pub(super) fn log_of(key: &str) -> Option<String> {
    key.strip_prefix("build/").map(log_path)
}

/// Where the log of a build is.
pub(super) fn log_path(tag: &str) -> String {
    format!("logs/{tag}.log")
}
