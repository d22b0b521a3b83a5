//! Package caches of builds: how large they are, and that they stay below their ceiling.
//!
//! They are looked at when a build has ended, well or not, while nobody else builds; and when an operator asks.

use wire::api::{BuildCache, BuildCaches, GcRequest, Removed};
use wire::launch::Cache;

use super::machine::MachineError;
use super::manage::{ManageError, Still};
use super::{Images, Inner};

impl Inner {
    /// Empty what is above the ceiling. Whoever builds has the turn.
    pub(super) async fn bound_caches(&self) {
        let Some(most) = self.settings.build_cache else { return };
        match self.machine.caches(Some(most), false).await {
            Ok(caches) => told(&caches),
            Err(error) => {
                let error = &error as &dyn std::error::Error;
                tracing::warn!(error, "package caches of builds are not held to build_cache, ignoring");
            }
        }
    }
}

impl Images {
    /// How large the package caches of builds are, and their ceiling.
    ///
    /// # Errors
    /// [`ManageError::Caches`].
    pub async fn caches(&self) -> Result<BuildCaches, ManageError> {
        let caches = self.looked(None, false).await?;
        let bytes = caches.iter().map(|cache| cache.bytes).sum();
        let caches = caches.into_iter().map(listed).collect();
        Ok(BuildCaches { ceiling: self.0.settings.build_cache, bytes, caches })
    }

    /// Empty what is above the ceiling, or every cache, and add to `removed` what that was. Only while
    /// [`Self::hold_still`].
    ///
    /// # Errors
    /// [`ManageError::Caches`].
    pub async fn empty_caches(
        &self,
        request: GcRequest,
        removed: &mut Removed,
        _still: &Still,
    ) -> Result<(), ManageError> {
        let most = if request.caches { Some(0) } else { self.0.settings.build_cache };
        let Some(most) = most else { return Ok(()) };
        let caches = self.looked(Some(most), request.dry_run).await?;
        if !request.dry_run {
            told(&caches);
        }
        for cache in caches.into_iter().filter(|cache| cache.emptied) {
            removed.caches.push(cache.manager);
            removed.bytes += cache.bytes;
        }
        Ok(())
    }

    async fn looked(&self, most: Option<u64>, dry_run: bool) -> Result<Vec<Cache>, ManageError> {
        self.0.machine.caches(most, dry_run).await.map_err(|source: MachineError| ManageError::Caches { source })
    }
}

fn told(caches: &[Cache]) {
    for cache in caches.iter().filter(|cache| cache.emptied) {
        tracing::info!(cache = cache.manager, bytes = cache.bytes, "package cache of builds emptied");
    }
}

fn listed(cache: Cache) -> BuildCache {
    let Cache { manager, bytes, complete, used, .. } = cache;
    let used_at = (used > 0).then_some(used as f64);
    BuildCache { manager, bytes, complete, used_at }
}
