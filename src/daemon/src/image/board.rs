//! How far jobs are: for the log, for `sandboxd prepare`, for whoever asks while a build goes on.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use tokio::sync::broadcast;

/// News that somebody who is slow may be behind; older ones are lost to him.
const NEWS: usize = 256;

/// What a job does now, or has just done.
#[derive(Debug, Clone, PartialEq)]
pub struct StepReport {
    /// The runtime.
    pub alias: String,
    /// Which step: "setup command 2 of 3 (apt-get …)".
    pub step: String,
    /// Its number: 0 is the base.
    pub number: usize,
    /// How many steps there are beside the base.
    pub steps: usize,
    /// When it began.
    pub since: SystemTime,
    /// How it stands.
    pub state: StepState,
}

/// How a step stands.
#[derive(Debug, Clone, PartialEq)]
pub enum StepState {
    /// Under way.
    Running,
    /// What it makes is here already.
    Unchanged,
    /// It took so long.
    Done(Duration),
    /// It failed, in this way.
    Failed(String),
}

/// Where every job is.
#[derive(Debug)]
pub(super) struct Board {
    now: Mutex<HashMap<String, StepReport>>,
    news: broadcast::Sender<StepReport>,
}

impl Board {
    pub(super) fn new() -> Self {
        Self { now: Mutex::new(HashMap::new()), news: broadcast::channel(NEWS).0 }
    }

    /// The job `key` is there now.
    pub(super) fn put(&self, key: &str, report: StepReport) {
        match &report.state {
            StepState::Running => {
                tracing::info!(runtime = report.alias, step = report.step, "building");
                self.now().insert(key.to_owned(), report.clone());
            }
            StepState::Unchanged | StepState::Done(_) | StepState::Failed(_) => {
                self.now().remove(key);
            }
        }
        // Nobody need listen.
        let _ = self.news.send(report);
    }

    /// The job `key` has ended.
    pub(super) fn clear(&self, key: &str) {
        self.now().remove(key);
    }

    /// The step that the job `key` is at.
    pub(super) fn get(&self, key: &str) -> Option<StepReport> {
        self.now().get(key).cloned()
    }

    /// What happens from now on.
    pub(super) fn listen(&self) -> broadcast::Receiver<StepReport> {
        self.news.subscribe()
    }

    fn now(&self) -> MutexGuard<'_, HashMap<String, StepReport>> {
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
