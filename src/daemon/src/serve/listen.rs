//! Accepting connections: TCP and unix, HTTP/1.1, bounded in number and in patience.

use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::JoinSet;
use tower::ServiceExt;

/// Connections at once, on each listener.
const CONNECTIONS: usize = 4096;
/// How long a client may take for a request's head; also how long it may be silent between two.
const HEAD_WITHIN: Duration = Duration::from_secs(120);
/// How long to rest when descriptors have run out.
const REST: Duration = Duration::from_millis(100);

/// Where connections come from.
#[derive(Debug)]
pub enum Listener {
    /// TCP.
    Tcp(TcpListener),
    /// A unix socket.
    Unix(UnixListener),
}

/// One connection of either.
enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Listener {
    async fn accept(&self) -> io::Result<Stream> {
        match self {
            Self::Tcp(listener) => {
                let (stream, _peer) = listener.accept().await?;
                // Answers are one write each: waiting for more would only delay them.
                stream.set_nodelay(true)?;
                Ok(Stream::Tcp(stream))
            }
            Self::Unix(listener) => listener.accept().await.map(|(stream, _peer)| Stream::Unix(stream)),
        }
    }
}

/// Serve connections until `stopped`, then finish what is under way.
pub async fn listen(listener: Listener, router: Router, mut stopped: watch::Receiver<bool>) {
    let room = Arc::new(Semaphore::new(CONNECTIONS));
    let mut connections = JoinSet::new();
    loop {
        // The semaphore is never closed.
        let Ok(permit) = room.clone().acquire_owned().await else { break };
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            Some(_) = connections.join_next() => continue,
            () = ended(&mut stopped) => break,
        };
        match accepted {
            Ok(Stream::Tcp(stream)) => {
                connections.spawn(connection(stream, router.clone(), stopped.clone(), permit));
            }
            Ok(Stream::Unix(stream)) => {
                connections.spawn(connection(stream, router.clone(), stopped.clone(), permit));
            }
            Err(error) => {
                tracing::warn!(%error, "connection not accepted");
                tokio::time::sleep(REST).await;
            }
        }
    }
    while connections.join_next().await.is_some() {}
}

async fn connection<S: AsyncRead + AsyncWrite + Send + Unpin + 'static>(
    stream: S,
    router: Router,
    mut stopped: watch::Receiver<bool>,
    _permit: OwnedSemaphorePermit,
) {
    let service = service_fn(move |request: hyper::Request<Incoming>| {
        let router = router.clone();
        async move {
            Ok::<_, Infallible>(router.oneshot(request.map(Body::new)).await.unwrap_or_else(|never| match never {}))
        }
    });
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(HEAD_WITHIN).pipeline_flush(true);
    let mut serving = std::pin::pin!(http.serve_connection(TokioIo::new(stream), service));
    tokio::select! {
        // A client that breaks off, or does not speak HTTP, is its own affair.
        _ = serving.as_mut() => {}
        () = ended(&mut stopped) => {
            serving.as_mut().graceful_shutdown();
            let _ = serving.await;
        }
    }
}

/// Wait until the service is to end.
async fn ended(stopped: &mut watch::Receiver<bool>) {
    // An error says that whoever would tell us has ended.
    let _ = stopped.wait_for(|stopped| *stopped).await;
}
