//! Connections that wait for their clients: for a request's head, or for more of its body. When there is no room for
//! another connection, the one that has waited longest makes room, so that whoever opens connections and says nothing
//! shuts nobody out.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};

use hyper::body::{Body, Frame, SizeHint};
use tokio::sync::Notify;

/// Who waits, the longest first.
#[derive(Debug, Default)]
pub struct Waiting(Mutex<Line>);

#[derive(Debug, Default)]
struct Line {
    next: u64,
    waiting: BTreeMap<u64, Arc<Notify>>,
}

/// One connection's place.
#[derive(Debug)]
pub struct Seat {
    all: Arc<Waiting>,
    leave: Arc<Notify>,
    place: Mutex<Option<u64>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Waiting {
    /// A place for a connection that has just begun: it waits.
    pub fn seat(self: &Arc<Self>) -> Arc<Seat> {
        let seat = Seat { all: self.clone(), leave: Arc::default(), place: Mutex::new(None) };
        seat.wait();
        Arc::new(seat)
    }

    /// Tell the one that has waited longest to leave. Whether there is one.
    pub fn dismiss(&self) -> bool {
        let first = lock(&self.0).waiting.pop_first();
        first.is_some_and(|(_, leave)| {
            leave.notify_one();
            true
        })
    }
}

impl Seat {
    /// It waits from now on, unless it does already.
    pub fn wait(&self) {
        let mut place = lock(&self.place);
        if place.is_none() {
            let mut line = lock(&self.all.0);
            line.next += 1;
            let number = line.next;
            line.waiting.insert(number, self.leave.clone());
            *place = Some(number);
        }
    }

    /// Its client has said what it waited for.
    pub fn work(&self) {
        if let Some(number) = lock(&self.place).take() {
            lock(&self.all.0).waiting.remove(&number);
        }
    }

    /// Until it is told to leave.
    pub async fn dismissed(&self) {
        self.leave.notified().await;
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.work();
    }
}

/// A request's body: whoever reads it and gets nothing waits for the client.
#[derive(Debug)]
pub struct Asked<B> {
    body: B,
    seat: Arc<Seat>,
}

impl<B> Asked<B> {
    /// The body of a request on the connection of `seat`.
    pub fn new(body: B, seat: Arc<Seat>) -> Self {
        Self { body, seat }
    }
}

impl<B: Body + Unpin> Body for Asked<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        let this = self.get_mut();
        let polled = Pin::new(&mut this.body).poll_frame(cx);
        if polled.is_pending() {
            this.seat.wait()
        } else {
            this.seat.work()
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// An answer's body: when it is at its end, or given up, the connection waits for the next request.
#[derive(Debug)]
pub struct Answered<B> {
    body: B,
    seat: Arc<Seat>,
}

impl<B> Answered<B> {
    /// The body of an answer on the connection of `seat`.
    pub fn new(body: B, seat: Arc<Seat>) -> Self {
        seat.work();
        Self { body, seat }
    }
}

impl<B> Drop for Answered<B> {
    fn drop(&mut self) {
        self.seat.wait();
    }
}

impl<B: Body + Unpin> Body for Answered<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        let this = self.get_mut();
        let frame = ready!(Pin::new(&mut this.body).poll_frame(cx));
        if frame.is_none() || this.body.is_end_stream() {
            // What is left is to send it: that is the client's to take.
            this.seat.wait();
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_one_that_waits_longest_leaves() {
        let all = Arc::new(Waiting::default());
        let (one, two, three) = (all.seat(), all.seat(), all.seat());
        one.work();
        assert!(all.dismiss());
        two.dismissed().await;
        one.wait();
        assert!(all.dismiss());
        three.dismissed().await;
        drop(three);
        assert!(all.dismiss());
        one.dismissed().await;
        assert!(!all.dismiss(), "nobody is left to ask");
    }

    #[test]
    fn who_works_or_is_gone_is_not_asked() {
        let all = Arc::new(Waiting::default());
        let (working, gone) = (all.seat(), all.seat());
        working.work();
        drop(gone);
        assert!(!all.dismiss());
    }
}
