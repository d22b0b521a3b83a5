//! Why images are not there: the last failure of each, for whoever asks later. Names that clients have pulled in vain are
//! among them, so there is an end of it.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::SharedError;
use crate::catalog::MAX_RUNTIMES;

/// Most failures that are remembered, the latest: of every runtime, its base, and as many others.
const MAX: usize = 4 * MAX_RUNTIMES;

/// The failures, by key, oldest first.
#[derive(Debug, Default)]
pub(super) struct Failures(Mutex<VecDeque<(String, SharedError)>>);

impl Failures {
    /// Why the last job of this key failed, until the next one begins.
    pub(super) fn get(&self, key: &str) -> Option<SharedError> {
        self.all().iter().find(|(known, _)| known == key).map(|(_, error)| error.clone())
    }

    /// The last job of this key has failed.
    pub(super) fn put(&self, key: String, error: &SharedError) {
        let mut all = self.all();
        all.retain(|(known, _)| *known != key);
        all.push_back((key, error.clone()));
        let excess = all.len().saturating_sub(MAX);
        all.drain(..excess);
    }

    /// The next one of this key begins.
    pub(super) fn forget(&self, key: &str) {
        self.all().retain(|(known, _)| known != key);
    }

    fn all(&self) -> MutexGuard<'_, VecDeque<(String, SharedError)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::ImageError;
    use super::*;

    #[test]
    fn the_latest_of_each_and_no_more_than_so_many() {
        let failures = Failures::default();
        let error = |key: &str| Arc::new(ImageError::Job { key: key.to_owned() });
        for number in 0..2 * MAX {
            let key = number.to_string();
            failures.put(key.clone(), &error(&key));
            failures.put("runtime".to_owned(), &error(&key));
        }
        assert_eq!(failures.all().len(), MAX);
        let last = (2 * MAX - 1).to_string();
        assert!(failures.get("runtime").unwrap().to_string().contains(&last));
        assert!(failures.get("0").is_none() && failures.get(&last).is_some());
        failures.forget("runtime");
        assert!(failures.get("runtime").is_none());
    }
}
