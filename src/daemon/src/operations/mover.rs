//! The thread that moves the journal into SQLite, and that alone speaks to the writing connection.

use std::io::ErrorKind;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use super::journal::{Journal, Lines, Urgency};
use super::lock;
use crate::metrics;
use crate::store::{Operations, StoreError};

/// How long records are gathered before they are moved, unless somebody asks for them. Each moving makes and removes
/// a file, so it is not done more often than it must.
pub const GATHER: Duration = Duration::from_secs(1);
/// How long after a failure the next attempt is.
const RETRY: Duration = Duration::from_secs(2);
/// How often a failure that goes on is said.
const COMPLAIN_EVERY: Duration = Duration::from_secs(60);
/// Records of one transaction.
const BATCH: usize = 500;
/// Requests that may wait for the thread; more are refused rather than piled up.
const QUEUE: usize = 1024;

type Job = Box<dyn FnOnce(&mut Thread) + Send>;

enum Message {
    /// There is something to move.
    Soon,
    /// There is enough of it.
    Now,
    Job(Job),
}

/// The handle; the thread moves what is left and ends when it is dropped.
#[derive(Debug)]
pub struct Mover {
    inbox: SyncSender<Message>,
}

struct Thread {
    operations: Operations,
    journal: Arc<Mutex<Journal>>,
    gather: Duration,
    said: Option<Instant>,
}

impl Mover {
    /// Start it; what is recorded waits for `gather` unless somebody asks for it.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn start(operations: Operations, journal: Arc<Mutex<Journal>>, gather: Duration) -> std::io::Result<Self> {
        let (inbox, messages) = sync_channel(QUEUE);
        let thread = Thread { operations, journal, gather, said: None };
        // What an earlier process left is moved at once. Looked at here: once the thread runs, there may be new records.
        let left = thread.is_waiting();
        std::thread::Builder::new().name("operations".into()).spawn(move || thread.run(&messages, left))?;
        Ok(Self { inbox })
    }

    /// Say that there is something to move.
    pub fn wake(&self, urgency: Urgency) {
        let message = match urgency {
            Urgency::None => return,
            Urgency::Soon => Message::Soon,
            Urgency::Now => Message::Now,
        };
        // A full queue is a thread that is awake, and looks for itself.
        let _ = self.inbox.try_send(message);
    }

    /// Do something with the database on the thread.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn call<T: Send + 'static>(
        &self,
        operation: &'static str,
        work: impl FnOnce(&mut Operations, &Mutex<Journal>) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        self.ask(operation, move |thread| work(&mut thread.operations, &thread.journal)).await
    }

    /// The same, after everything has been moved that was recorded before.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn call_moved<T: Send + 'static>(
        &self,
        operation: &'static str,
        work: impl FnOnce(&mut Operations, &Mutex<Journal>) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        self.ask(operation, move |thread| {
            thread.work()?;
            work(&mut thread.operations, &thread.journal)
        })
        .await
    }

    async fn ask<T: Send + 'static>(
        &self,
        operation: &'static str,
        work: impl FnOnce(&mut Thread) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let (reply, answer) = oneshot::channel();
        let job = Box::new(move |thread: &mut Thread| {
            // Who went away does not need it.
            if !reply.is_closed() {
                let _ = reply.send(work(thread));
            }
        });
        self.inbox.try_send(Message::Job(job)).map_err(|_| StoreError::Busy { operation })?;
        answer.await.map_err(|_| StoreError::Busy { operation })?
    }
}

impl Thread {
    fn run(mut self, messages: &Receiver<Message>, left: bool) {
        let mut due = left.then(Instant::now);
        loop {
            let message = match due {
                Some(due) => messages.recv_timeout(due.saturating_duration_since(Instant::now())),
                None => messages.recv().map_err(|_| RecvTimeoutError::Disconnected),
            };
            let now = match message {
                Ok(Message::Soon) => false,
                Ok(Message::Now) => due.is_none_or(|due| due <= Instant::now() + self.gather),
                Ok(Message::Job(job)) => {
                    job(&mut self);
                    due.is_some_and(|due| due <= Instant::now())
                }
                Err(RecvTimeoutError::Timeout) => true,
                Err(RecvTimeoutError::Disconnected) => {
                    // What cannot be moved is still in the journal.
                    self.attempt();
                    return;
                }
            };
            due = match now {
                true if !self.attempt() => Some(Instant::now() + RETRY),
                true => None,
                false => due,
            };
            due = due.or_else(|| self.is_waiting().then(|| Instant::now() + self.gather));
        }
    }

    fn is_waiting(&self) -> bool {
        lock(&self.journal).is_waiting()
    }

    /// Move everything; whether that went well. A failure is logged now and then while it goes on.
    fn attempt(&mut self) -> bool {
        match self.work() {
            Ok(()) => {
                self.said = None;
                true
            }
            Err(error) => {
                if self.said.is_none_or(|said| said.elapsed() >= COMPLAIN_EVERY) {
                    self.said = Some(Instant::now());
                    let error = &error as &dyn std::error::Error;
                    tracing::error!(error, "operations stay in their journal; trying on");
                }
                false
            }
        }
    }

    /// Move everything that has been written.
    fn work(&mut self) -> Result<(), StoreError> {
        // Twice: what an earlier failure left, and what has come since.
        for _ in 0..2 {
            let file = lock(&self.journal).hand_over().map_err(unreadable)?;
            let Some(file) = file else { return Ok(()) };
            let begun = Instant::now();
            self.take(Lines::new(file))?;
            lock(&self.journal).moved().map_err(unreadable)?;
            metrics::OPERATIONS_MOVE.observe(begun.elapsed());
        }
        Ok(())
    }

    fn take(&mut self, mut lines: Lines) -> Result<(), StoreError> {
        let mut batch = Vec::with_capacity(BATCH);
        while let Some(row) = lines.next().map_err(unreadable)? {
            batch.push(row);
            if batch.len() == BATCH {
                self.operations.insert(&batch)?;
                batch.clear();
            }
        }
        self.operations.insert(&batch)
    }
}

fn unreadable(source: std::io::Error) -> StoreError {
    let operation = "move the journal of operations";
    match source.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => StoreError::Full { operation },
        _ => StoreError::Journal { operation, source },
    }
}
