//! Accepting connections: TCP and unix, HTTP/1.1, bounded in number and in patience. Whoever comes when all places are
//! taken gets that of the connection that has waited longest for its client.

use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use axum::http::{HeaderName, HeaderValue};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::JoinSet;
use tower::ServiceExt;
use wire::api::{PEER_HEADER, TOKEN_HEADER};

use crate::metrics;

use super::origin;
use super::waiting::{Answered, Asked, Seat, Waiting};

/// Connections at once, on each listener.
const CONNECTIONS: usize = 4096;
/// How long a client may take for a request's head; also how long it may be silent between two.
const HEAD_WITHIN: Duration = Duration::from_secs(120);
/// How long to rest when descriptors have run out, or when no connection can be asked to leave.
const REST: Duration = Duration::from_millis(100);
/// How long to be silent about it when the places are taken.
const WARN_EVERY: Duration = Duration::from_secs(60);

/// Where connections come from.
#[derive(Debug)]
pub enum Listener {
    /// TCP.
    Tcp(TcpListener),
    /// A unix socket.
    Unix(UnixListener),
}

/// One connection of either, the second with the user at its other end.
enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream, Option<u32>),
}

/// Who is let in without a token: whoever the permissions of the unix socket let connect. Their requests carry the
/// service's token from here on, and the answers say who they were taken for.
#[derive(Clone)]
pub struct Peers(Option<HeaderValue>);

impl Peers {
    /// Everybody needs a token.
    pub const NONE: Self = Self(None);

    /// Those at the unix socket do not; `token` is the service's.
    #[must_use]
    pub fn trusted(token: &str) -> Self {
        // A token is made of printable characters: the settings see to that.
        Self(HeaderValue::from_str(token).ok())
    }
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
            Self::Unix(listener) => {
                let (stream, _address) = listener.accept().await?;
                let user = stream.peer_cred().map(|peer| peer.uid()).ok();
                Ok(Stream::Unix(stream, user))
            }
        }
    }
}

/// Room for connections.
struct Places {
    room: Arc<Semaphore>,
    waiting: Arc<Waiting>,
    /// When it was last said that there is none.
    warned: Option<Instant>,
}

impl Places {
    /// A place for a connection that has come, if need be that of one that waits for its client. `None`: the service ends.
    async fn take(&mut self, stopped: &mut watch::Receiver<bool>) -> Option<OwnedSemaphorePermit> {
        loop {
            if let Ok(permit) = self.room.clone().try_acquire_owned() {
                return Some(permit);
            }
            if self.warned.is_none_or(|at| at.elapsed() > WARN_EVERY) {
                self.warned = Some(Instant::now());
                tracing::warn!(
                    connections = CONNECTIONS,
                    "all connections are taken; those that say nothing make room"
                );
            }
            if self.waiting.dismiss() {
                metrics::CONNECTIONS.one(metrics::Connection::Dismissed);
            }
            tokio::select! {
                permit = self.room.clone().acquire_owned() => return permit.ok(),
                () = tokio::time::sleep(REST) => {}
                () = ended(stopped) => return None,
            }
        }
    }
}

/// Serve connections until `stopped`, then finish what is under way.
pub async fn listen(listener: Listener, router: Router, peers: Peers, mut stopped: watch::Receiver<bool>) {
    let mut places = Places { room: Arc::new(Semaphore::new(CONNECTIONS)), waiting: Arc::default(), warned: None };
    let mut connections = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            Some(_) = connections.join_next() => continue,
            () = ended(&mut stopped) => break,
        };
        match accepted {
            Ok(stream) => {
                let Some(permit) = places.take(&mut stopped).await else { break };
                metrics::CONNECTIONS.one(metrics::Connection::Accepted);
                let place = (places.waiting.seat(), permit);
                match stream {
                    Stream::Tcp(stream) => {
                        connections.spawn(connection(stream, router.clone(), None, stopped.clone(), place))
                    }
                    Stream::Unix(stream, user) => {
                        let known = user.and_then(|user| Known::new(user, &peers));
                        connections.spawn(connection(stream, router.clone(), known, stopped.clone(), place))
                    }
                };
            }
            Err(error) => {
                metrics::CONNECTIONS.one(metrics::Connection::Failed);
                tracing::warn!(%error, "connection not accepted");
                tokio::time::sleep(REST).await;
            }
        }
    }
    while connections.join_next().await.is_some() {}
}

/// Somebody who needs no token.
#[derive(Clone)]
struct Known {
    token: HeaderValue,
    name: HeaderValue,
}

impl Known {
    fn new(user: u32, peers: &Peers) -> Option<Self> {
        Some(Self { token: peers.0.clone()?, name: HeaderValue::from_str(&format!("uid={user}")).ok()? })
    }
}

async fn connection<S: AsyncRead + AsyncWrite + Send + Unpin + 'static>(
    stream: S,
    router: Router,
    known: Option<Known>,
    mut stopped: watch::Receiver<bool>,
    (seat, _permit): (Arc<Seat>, OwnedSemaphorePermit),
) {
    let _open = metrics::OPEN_CONNECTIONS.one();
    let at = seat.clone();
    let service = service_fn(move |request: hyper::Request<Incoming>| {
        let (router, seat, known) = (router.clone(), at.clone(), known.clone());
        async move {
            seat.work();
            let mut request = request.map(|body| Body::new(Asked::new(body, seat.clone())));
            // Who shows a token is who the token says, and a page of another site is not whoever looks at it.
            let known =
                known.filter(|_| !request.headers().contains_key(TOKEN_HEADER) && origin::is_own(request.headers()));
            if let Some(known) = &known {
                request.headers_mut().insert(HeaderName::from_static(TOKEN_HEADER), known.token.clone());
            }
            let mut response = router.oneshot(request).await.unwrap_or_else(|never| match never {});
            if let Some(known) = known {
                response.headers_mut().insert(HeaderName::from_static(PEER_HEADER), known.name);
            }
            Ok::<_, Infallible>(response.map(|body| Body::new(Answered::new(body, seat))))
        }
    });
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(HEAD_WITHIN).pipeline_flush(true);
    let mut serving = std::pin::pin!(http.serve_connection(TokioIo::new(stream), service));
    tokio::select! {
        // A client that breaks off, or does not speak HTTP, is its own affair.
        _ = serving.as_mut() => {}
        () = seat.dismissed() => {}
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
