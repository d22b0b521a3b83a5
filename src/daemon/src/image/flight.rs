//! One job for each thing that is wanted, however many wait for it.
//!
//! A job runs in a task of its own: whoever stops waiting stops nobody else and not the job. A
//! failure is told to all who wait and then forgotten, so that the next who asks tries again.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::watch;

/// Jobs under way, by key; each ends with a `T`.
#[derive(Debug)]
pub(super) struct Flights<T>(Arc<Mutex<HashMap<String, watch::Receiver<Option<T>>>>>);

/// A job that somebody waits for.
enum Entered<T, S> {
    /// It was begun for him.
    Own(watch::Receiver<Option<T>>),
    /// It was under way, and what would have made his is given back.
    Other(watch::Receiver<Option<T>>, S),
}

/// Takes a job off the list when it ends, also by a panic.
struct Landing<T> {
    jobs: Arc<Mutex<HashMap<String, watch::Receiver<Option<T>>>>>,
    key: String,
}

impl<T> Drop for Landing<T> {
    fn drop(&mut self) {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.key);
    }
}

impl<T: Clone + Send + Sync + 'static> Flights<T> {
    pub(super) fn new() -> Self {
        Self(Arc::new(Mutex::new(HashMap::new())))
    }

    /// Wait for the job `key`; `start` makes it unless it is under way. `None`: it broke off without a result.
    pub(super) async fn join<F>(&self, key: &str, start: impl FnOnce() -> F) -> Option<T>
    where
        F: Future<Output = T> + Send + 'static,
    {
        let (Entered::Own(waiting) | Entered::Other(waiting, _)) = self.enter(key, start);
        result(waiting).await
    }

    /// Do the job `key`, never somebody else's: one of this key that is under way is waited for first.
    pub(super) async fn follow<F>(&self, key: &str, start: impl FnOnce() -> F) -> Option<T>
    where
        F: Future<Output = T> + Send + 'static,
    {
        let mut start = start;
        loop {
            match self.enter(key, start) {
                Entered::Own(waiting) => return result(waiting).await,
                Entered::Other(mut waiting, unused) => {
                    // Until its sender is dropped: by then the key is free.
                    while waiting.changed().await.is_ok() {}
                    start = unused;
                }
            }
        }
    }

    /// Keys of the jobs under way.
    pub(super) fn keys(&self) -> Vec<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).keys().cloned().collect()
    }

    fn enter<S, F>(&self, key: &str, start: S) -> Entered<T, S>
    where
        S: FnOnce() -> F,
        F: Future<Output = T> + Send + 'static,
    {
        let mut jobs = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(job) = jobs.get(key) {
            return Entered::Other(job.clone(), start);
        }
        let (result, waiting) = watch::channel(None);
        jobs.insert(key.to_owned(), waiting.clone());
        let job = start();
        let landing = Landing { jobs: Arc::clone(&self.0), key: key.to_owned() };
        tokio::spawn(async move {
            // Dropped last: the result is there before the key is free.
            let _landing = landing;
            let value = job.await;
            result.send_replace(Some(value));
        });
        Entered::Own(waiting)
    }
}

async fn result<T: Clone>(mut waiting: watch::Receiver<Option<T>>) -> Option<T> {
    let done = waiting.wait_for(Option::is_some).await.ok()?;
    done.clone()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;
    use tokio::sync::Notify;

    #[tokio::test]
    async fn many_wait_for_one_job_and_leaving_does_not_stop_it() {
        let flights = Arc::new(Flights::new());
        let (count, go) = (Arc::new(AtomicUsize::new(0)), Arc::new(Notify::new()));
        let wait = |flights: Arc<Flights<usize>>| {
            let (count, go) = (Arc::clone(&count), Arc::clone(&go));
            async move {
                flights
                    .join("a", || async move {
                        go.notified().await;
                        count.fetch_add(1, Ordering::SeqCst) + 1
                    })
                    .await
            }
        };
        // The one who started it leaves before it is done.
        let first = tokio::spawn(wait(Arc::clone(&flights)));
        tokio::time::sleep(Duration::from_millis(20)).await;
        first.abort();
        let rest: Vec<_> = (0..8).map(|_| tokio::spawn(wait(Arc::clone(&flights)))).collect();
        tokio::time::sleep(Duration::from_millis(20)).await;
        assert_eq!(flights.keys(), ["a"]);
        go.notify_one();
        for waiter in rest {
            assert_eq!(waiter.await.unwrap(), Some(1));
        }
        assert_eq!(count.load(Ordering::SeqCst), 1);
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        assert!(flights.keys().is_empty());
        go.notify_one();
        assert_eq!(wait(Arc::clone(&flights)).await, Some(2), "a finished job is not remembered");
    }

    #[test]
    fn who_wants_his_own_job_gets_it_after_the_others() {
        for threads in [false, true] {
            let mut runtime = if threads {
                tokio::runtime::Builder::new_multi_thread()
            } else {
                tokio::runtime::Builder::new_current_thread()
            };
            runtime.enable_all().build().unwrap().block_on(async {
                let flights: Arc<Flights<usize>> = Arc::new(Flights::new());
                let (count, go) = (Arc::new(AtomicUsize::new(0)), Arc::new(Notify::new()));
                let first = flights.enter("a", || {
                    let go = Arc::clone(&go);
                    async move {
                        go.notified().await;
                        100
                    }
                });
                let own: Vec<_> = (0..8)
                    .map(|_| {
                        let (flights, count) = (Arc::clone(&flights), Arc::clone(&count));
                        tokio::spawn(async move {
                            let job = || async move { count.fetch_add(1, Ordering::SeqCst) };
                            flights.follow("a", job).await.unwrap()
                        })
                    })
                    .collect();
                tokio::task::yield_now().await;
                assert_eq!(count.load(Ordering::SeqCst), 0, "the first is under way");
                go.notify_one();
                let mut results = Vec::new();
                for one in own {
                    results.push(one.await.unwrap());
                }
                results.sort_unstable();
                assert_eq!(results, (0..8).collect::<Vec<_>>());
                assert!(matches!(first, Entered::Own(_)));
            });
        }
    }

    #[tokio::test]
    async fn a_job_that_panics_is_none_and_can_be_tried_again() {
        let flights: Flights<u32> = Flights::new();
        let broken = flights.join("a", || async { panic!("on purpose") }).await;
        assert_eq!(broken, None);
        assert_eq!(flights.join("a", || async { 7 }).await, Some(7));
    }
}
