//! What a handler left unread of a request is taken off the connection before the answer goes out.
//!
//! An answer that is ready early (no such path, no token, over the limit) otherwise meets a client that
//! is still sending: the connection would be closed under it, and the answer or the next request on
//! that connection be lost. So the rest is read and dropped, up to a bound; past it, the answer says
//! that the connection closes.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
use axum::extract::Request;
use axum::http::header::{CONNECTION, EXPECT};
use axum::http::{HeaderValue, StatusCode};
use axum::response::Response;
use hyper::body::{Frame, SizeHint};

/// Most that is dropped, in bytes: a file over the ceiling that a client sends before it knows.
const DROP_MAX: usize = 64 << 20;
/// The same for a client without a token.
const DROP_MAX_STRANGER: usize = 1 << 20;
/// How long the rest may take to come.
const DROP_WITHIN: Duration = Duration::from_secs(10);

/// A body that the handler reads, and that is still there afterwards.
#[derive(Debug, Clone)]
pub struct Rest(Option<Arc<Mutex<Body>>>);

/// The same request, and what will be left of its body.
pub fn lend(request: Request) -> (Request, Rest) {
    // A client that waits for a word before it sends is told to, or not to, by reading alone.
    if request.body().is_end_stream() || request.headers().contains_key(EXPECT) {
        return (request, Rest(None));
    }
    let (parts, body) = request.into_parts();
    let body = Arc::new(Mutex::new(body));
    (Request::from_parts(parts, Body::new(Lent(body.clone()))), Rest(Some(body)))
}

impl Rest {
    /// Drop what is left; where that is too much, let the answer say that the connection closes.
    pub async fn settle(self, response: &mut Response) {
        let Some(body) = self.0 else { return };
        let max = if response.status() == StatusCode::UNAUTHORIZED { DROP_MAX_STRANGER } else { DROP_MAX };
        if !tokio::time::timeout(DROP_WITHIN, drop_rest(&body, max)).await.unwrap_or(false) {
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
    }
}

/// Whether the body came to its end within `left` bytes.
async fn drop_rest(body: &Mutex<Body>, mut left: usize) -> bool {
    loop {
        match poll_fn(|context| Pin::new(&mut *lock(body)).poll_frame(context)).await {
            None => return true,
            Some(Err(_)) => return false,
            Some(Ok(frame)) => match left.checked_sub(frame.data_ref().map_or(0, Bytes::len)) {
                Some(rest) => left = rest,
                None => return false,
            },
        }
    }
}

/// The handler's hold on it.
struct Lent(Arc<Mutex<Body>>);

/// Never waits: the handler is done with the body when [`Rest::settle`] begins.
fn lock(body: &Mutex<Body>) -> MutexGuard<'_, Body> {
    body.lock().unwrap_or_else(PoisonError::into_inner)
}

impl HttpBody for Lent {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut *lock(&self.0)).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        lock(&self.0).is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        lock(&self.0).size_hint()
    }
}

#[cfg(test)]
mod tests {
    use axum::response::IntoResponse;
    use http_body_util::BodyExt;

    use super::*;

    fn request(len: usize) -> Request {
        Request::new(Body::from(vec![0; len]))
    }

    #[tokio::test]
    async fn what_the_handler_left_is_dropped() {
        let (request, rest) = lend(request(1000));
        let mut response = StatusCode::CONFLICT.into_response();
        drop(request);
        rest.clone().settle(&mut response).await;
        assert!(response.headers().get(CONNECTION).is_none());
        let body = rest.0.unwrap();
        assert!(poll_fn(|context| Pin::new(&mut *lock(&body)).poll_frame(context)).await.is_none());
    }

    #[tokio::test]
    async fn too_much_closes_the_connection() {
        for (status, len) in [(StatusCode::UNAUTHORIZED, DROP_MAX_STRANGER + 1), (StatusCode::CONFLICT, DROP_MAX + 1)] {
            let (request, rest) = lend(request(len));
            drop(request);
            let mut response = status.into_response();
            rest.settle(&mut response).await;
            assert_eq!(response.headers()[CONNECTION], "close", "{status}");
        }
    }

    #[tokio::test]
    async fn a_handler_reads_its_body_as_ever() {
        let (request, rest) = lend(request(3));
        assert_eq!(request.into_body().collect().await.unwrap().to_bytes().len(), 3);
        let mut response = StatusCode::OK.into_response();
        rest.settle(&mut response).await;
        assert!(response.headers().is_empty());
        assert!(lend(Request::new(Body::empty())).1.0.is_none(), "nothing to lend");
    }
}
