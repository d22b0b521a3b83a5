//! The images as they are listed: what the runtimes need, and what is here besides.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use wire::api::ImageInfo;
use wire::id::LayerId;

use crate::catalog::{Runtime, Source};

use super::error::chain;
use super::record::Record;
use super::{Images, Inner, build};

/// How large each layer is, and how many images have it.
type Layers = HashMap<LayerId, (u64, u32)>;

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
        let (under_way, layers) = (self.0.flights.keys(), self.0.records.layers());
        wanted.into_iter().map(|(key, aliases)| self.0.info(&key, aliases, &under_way, &layers)).collect()
    }
}

impl Inner {
    /// The key under which a runtime's image is, or will be, recorded.
    pub(super) fn key(&self, runtime: &Runtime) -> String {
        match &runtime.source {
            Source::Build(definition) => build::build_key(&self.tag(definition)),
            Source::Image { reference, .. } => {
                let origins = self.origins(reference).unwrap_or_default();
                let recorded = origins.iter().map(super::Origin::key).find(|key| self.records.get(key).is_some());
                recorded.or_else(|| origins.first().map(super::Origin::key)).unwrap_or_else(|| reference.clone())
            }
        }
    }

    fn info(&self, key: &str, mut runtimes: Vec<String>, under_way: &[String], all: &Layers) -> ImageInfo {
        runtimes.sort();
        let record = self.records.get(key).map(|entry| entry.record);
        let failure = self.failures.get(key).map(|error| chain(error.as_ref()));
        let state = match (&record, &failure) {
            (Some(_), _) => "ready",
            (None, Some(_)) => "failed",
            (None, None) if under_way.iter().any(|other| other == key) => "building",
            (None, None) => "absent",
        };
        let layers = |record: &Arc<Record>| record.layers.iter().map(ToString::to_string).collect();
        ImageInfo {
            reference: reference_of(key).to_owned(),
            digest: record.as_ref().map(|record| record.digest.clone()),
            origin: record.as_ref().map(|record| record.kind.name().to_owned()),
            runtimes,
            state: state.to_owned(),
            size: record.as_ref().map(|record| record.size),
            own_size: record.as_ref().map(|record| own_size(record, all)),
            layers: record.as_ref().map(layers).unwrap_or_default(),
            created_at: record.as_ref().map(|record| record.created as f64),
            error: failure.filter(|_| state == "failed"),
        }
    }
}

/// What an image is called, of its key.
pub(super) fn reference_of(key: &str) -> &str {
    key.split_once('/').map_or(key, |(_, reference)| reference)
}

/// Bytes of the layers that no other image has.
fn own_size(record: &Record, all: &Layers) -> u64 {
    let own = record.layers.iter().filter_map(|layer| all.get(layer)).filter(|(_, images)| *images <= 1);
    own.map(|(size, _)| size).sum()
}
