//! The images as they are listed: what the runtimes need, and what is here besides.

use std::collections::BTreeMap;
use std::error::Error;
use std::sync::{Arc, PoisonError};

use wire::api::ImageInfo;

use crate::catalog::{Runtime, Source};

use super::record::Record;
use super::{Images, Inner, build};

impl Images {
    /// Every image that the runtimes need, whatever its state, and every other that is here; by reference.
    #[must_use]
    pub fn overview(&self, runtimes: &[Arc<Runtime>]) -> Vec<ImageInfo> {
        let mut wanted: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for runtime in runtimes {
            wanted.entry(self.0.key(runtime)).or_default().push(runtime.alias.clone());
        }
        for record in self.0.records.all() {
            wanted.entry(record.key.clone()).or_default();
        }
        let under_way = self.0.flights.keys();
        wanted.into_iter().map(|(key, aliases)| self.0.info(&key, aliases, &under_way)).collect()
    }
}

impl Inner {
    /// The key under which a runtime's image is, or will be, recorded.
    fn key(&self, runtime: &Runtime) -> String {
        match &runtime.source {
            Source::Build(definition) => build::build_key(&self.tag(definition)),
            Source::Image { reference, .. } => {
                let origins = self.origins(reference).unwrap_or_default();
                let recorded = origins.iter().map(super::Origin::key).find(|key| self.records.get(key).is_some());
                recorded.or_else(|| origins.first().map(super::Origin::key)).unwrap_or_else(|| reference.clone())
            }
        }
    }

    fn info(&self, key: &str, mut runtimes: Vec<String>, under_way: &[String]) -> ImageInfo {
        runtimes.sort();
        let record = self.records.get(key).map(|entry| entry.record);
        let failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        let failure = failures.get(key).map(|error| chain(error.as_ref()));
        let state = match (&record, &failure) {
            (Some(_), _) => "ready",
            (None, Some(_)) => "failed",
            (None, None) if under_way.iter().any(|other| other == key) => "building",
            (None, None) => "absent",
        };
        let layers = |record: &Arc<Record>| record.layers.iter().map(ToString::to_string).collect();
        ImageInfo {
            reference: key.split_once('/').map_or(key, |(_, reference)| reference).to_owned(),
            runtimes,
            state: state.to_owned(),
            size: record.as_ref().map(|record| record.size),
            layers: record.as_ref().map(layers).unwrap_or_default(),
            created_at: record.as_ref().map(|record| record.created as f64),
            error: failure.filter(|_| state == "failed"),
        }
    }
}

/// An error with its causes, in one text.
fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}
