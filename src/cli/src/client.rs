//! One HTTP exchange after another with the service, over one connection where it lasts.

use std::io;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Either, Full, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper::header::{ACCEPT, CONTENT_TYPE, HOST, HeaderValue, LOCATION};
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use wire::api::{REQUEST_ID_HEADER, TOKEN_HEADER};
use wire::id::RequestId;

use crate::address::Address;
use crate::body::FileBody;
use crate::caller::Caller;
use crate::error::{Failure, detail};
use crate::output;

/// How long a connection may take to be made.
const CONNECT_WITHIN: Duration = Duration::from_secs(10);
/// How long a request that runs nothing may take to be answered, in seconds.
pub const ANSWER_WITHIN: u64 = 60;
/// Largest JSON answer, in bytes: a command's 10 MiB of output with every byte escaped.
const ANSWER_MAX: usize = 72 << 20;

type Outgoing = Either<Full<Bytes>, FileBody>;

/// A request, and what it is called in messages.
#[derive(Debug)]
pub struct Call<'a> {
    /// What is attempted: `open a session`.
    pub what: &'a str,
    /// Method.
    pub method: Method,
    /// Path and query, already encoded.
    pub path: String,
    /// Seconds until the answer begins; `None` waits for as long as it takes.
    pub within: Option<u64>,
    /// What the answer is to be, if not JSON.
    pub accept: Option<&'static str>,
}

impl<'a> Call<'a> {
    /// A `GET`.
    pub fn get(what: &'a str, path: impl Into<String>) -> Self {
        Self { what, method: Method::GET, path: path.into(), within: Some(ANSWER_WITHIN), accept: None }
    }

    /// A `POST`.
    pub fn post(what: &'a str, path: impl Into<String>) -> Self {
        Self { method: Method::POST, ..Self::get(what, path) }
    }

    /// A `PUT`.
    pub fn put(what: &'a str, path: impl Into<String>) -> Self {
        Self { method: Method::PUT, ..Self::get(what, path) }
    }

    /// A `DELETE`.
    pub fn delete(what: &'a str, path: impl Into<String>) -> Self {
        Self { method: Method::DELETE, ..Self::get(what, path) }
    }

    /// The same, to be answered within so many seconds, or whenever.
    #[must_use]
    pub fn within(mut self, seconds: Option<u64>) -> Self {
        self.within = seconds;
        self
    }

    /// The same, to be answered as this media type.
    #[must_use]
    pub fn accept(mut self, kind: &'static str) -> Self {
        self.accept = Some(kind);
        self
    }
}

/// The service, as far as this program talks to it.
#[derive(Debug)]
pub struct Client {
    address: Address,
    token: Option<HeaderValue>,
    caller: Caller,
    connection: Option<SendRequest<Outgoing>>,
}

impl Client {
    /// A client that connects when it first asks.
    pub fn new(address: Address, token: Option<HeaderValue>) -> Self {
        Self { address, token, caller: Caller::new(), connection: None }
    }

    /// The same, which says for whom it asks.
    #[must_use]
    pub fn on_behalf_of(self, caller: Caller) -> Self {
        Self { caller, ..self }
    }

    /// Another one of the same service, with a connection of its own.
    #[must_use]
    pub fn another(&self) -> Self {
        Self::new(self.address.clone(), self.token.clone()).on_behalf_of(self.caller.clone())
    }

    /// Where the service is, for messages.
    #[must_use]
    pub fn address(&self) -> String {
        self.address.to_string()
    }

    /// Whether the service is on this machine.
    #[must_use]
    pub fn is_here(&self) -> bool {
        self.address.is_here()
    }

    /// Ask without a body and read the answer whole.
    pub async fn ask(&mut self, call: Call<'_>) -> Result<Answer, Failure> {
        self.exchange(call, None, Full::default()).await
    }

    /// Ask with a JSON body and read the answer whole.
    pub async fn ask_json(&mut self, call: Call<'_>, body: &impl Serialize) -> Result<Answer, Failure> {
        let body = self.encode(&call, body)?;
        self.exchange(call, Some("application/json"), Full::new(body)).await
    }

    /// Ask without a body; the answer's own body is the caller's to read.
    pub async fn open(&mut self, call: &Call<'_>) -> Result<Response<Incoming>, Failure> {
        self.send(call, None, Either::Left(Full::default())).await
    }

    /// Ask with a JSON body; the answer's own body is the caller's to read.
    pub async fn open_json(&mut self, call: &Call<'_>, body: &impl Serialize) -> Result<Response<Incoming>, Failure> {
        let body = self.encode(call, body)?;
        self.send(call, Some("application/json"), Either::Left(Full::new(body))).await
    }

    /// Send bytes.
    pub async fn ask_bytes(&mut self, call: Call<'_>, body: Bytes) -> Result<Answer, Failure> {
        self.exchange(call, Some("application/octet-stream"), Full::new(body)).await
    }

    /// Send a file.
    pub async fn ask_file(&mut self, call: Call<'_>, body: FileBody) -> Result<Answer, Failure> {
        let response = self.send(&call, Some("application/octet-stream"), Either::Right(body)).await?;
        self.collect(&call, response).await
    }

    /// Read an answer whole.
    pub async fn collect(&self, call: &Call<'_>, response: Response<Incoming>) -> Result<Answer, Failure> {
        let (status, request) = (response.status(), request_of(&response));
        let body = Limited::new(response.into_body(), ANSWER_MAX).collect().await;
        let body = body.map_err(|source| self.broken(call.what, source))?.to_bytes();
        Ok(Answer { what: call.what.to_owned(), address: self.address(), request, status, body })
    }

    /// The connection broke during `what`.
    pub fn broken(&self, what: &str, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Failure {
        Failure::Broken { what: what.to_owned(), address: self.address(), source: source.into() }
    }

    async fn exchange(
        &mut self,
        call: Call<'_>,
        kind: Option<&'static str>,
        body: Full<Bytes>,
    ) -> Result<Answer, Failure> {
        let response = self.send(&call, kind, Either::Left(body)).await?;
        self.collect(&call, response).await
    }

    fn encode(&self, call: &Call<'_>, body: &impl Serialize) -> Result<Bytes, Failure> {
        serde_json::to_vec(body).map(Bytes::from).map_err(|source| self.broken(call.what, source))
    }

    async fn send(
        &mut self,
        call: &Call<'_>,
        kind: Option<&'static str>,
        body: Outgoing,
    ) -> Result<Response<Incoming>, Failure> {
        let request = self.request(call, kind, body)?;
        let mut connection = self.connect().await?;
        let answer = connection.send_request(request);
        let response = match call.within {
            None => answer.await,
            Some(seconds) => tokio::time::timeout(Duration::from_secs(seconds), answer)
                .await
                .map_err(|_| Failure::Late { what: call.what.to_owned(), address: self.address(), seconds })?,
        };
        let response = response.map_err(|source| self.broken(call.what, source))?;
        if response.status().is_redirection() {
            return Err(self.redirected(call.what, &response));
        }
        self.connection = Some(connection);
        Ok(response)
    }

    /// The service redirects nobody, and the token is for its address alone: whoever says so is somebody else.
    fn redirected(&self, what: &str, response: &Response<Incoming>) -> Failure {
        let place =
            response.headers().get(LOCATION).map(|place| String::from_utf8_lossy(place.as_bytes()).into_owned());
        let reason = format!("it points to {}, where nobody was asked", place.as_deref().unwrap_or("another address"));
        Failure::Foreign { what: what.to_owned(), address: self.address(), reason }
    }

    fn request(
        &self,
        call: &Call<'_>,
        kind: Option<&'static str>,
        body: Outgoing,
    ) -> Result<Request<Outgoing>, Failure> {
        let (host, prefix) = match &self.address {
            Address::Tcp { authority, prefix } => (authority.as_str(), prefix.as_str()),
            Address::Unix(_) => ("sandboxd", ""),
        };
        let mut request =
            Request::builder().method(call.method.clone()).uri(format!("{prefix}{}", call.path)).header(HOST, host);
        if let Some(token) = &self.token {
            request = request.header(TOKEN_HEADER, token);
        }
        for (name, value) in &self.caller {
            request = request.header(name, value);
        }
        if let Some(kind) = kind {
            request = request.header(CONTENT_TYPE, kind);
        }
        if let Some(kind) = call.accept {
            request = request.header(ACCEPT, kind);
        }
        request.body(body).map_err(|source| self.broken(call.what, source))
    }

    /// The connection of the last exchange if it is still good, else a new one.
    async fn connect(&mut self) -> Result<SendRequest<Outgoing>, Failure> {
        if let Some(mut connection) = self.connection.take()
            && connection.ready().await.is_ok()
        {
            return Ok(connection);
        }
        let made = tokio::time::timeout(CONNECT_WITHIN, self.dial()).await;
        made.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
            .map_err(|source| Failure::Connect { address: self.address(), source })
    }

    async fn dial(&self) -> io::Result<SendRequest<Outgoing>> {
        match &self.address {
            Address::Tcp { authority, .. } => {
                let stream = TcpStream::connect(authority).await?;
                stream.set_nodelay(true)?;
                shake(stream).await
            }
            Address::Unix(path) => shake(UnixStream::connect(path).await?).await,
        }
    }
}

async fn shake<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(stream: S) -> io::Result<SendRequest<Outgoing>> {
    let (sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(io::Error::other)?;
    // What breaks it is told to the request that it breaks.
    tokio::spawn(connection);
    Ok(sender)
}

/// The name of the request in the service's log.
#[must_use]
pub fn request_of<B>(response: &Response<B>) -> Option<RequestId> {
    RequestId::parse(response.headers().get(REQUEST_ID_HEADER)?.to_str().ok()?).ok()
}

/// A whole answer.
#[derive(Debug, Clone)]
pub struct Answer {
    what: String,
    address: String,
    request: Option<RequestId>,
    /// HTTP status.
    pub status: StatusCode,
    /// Body.
    pub body: Bytes,
}

impl Answer {
    /// The same if its status is 2xx.
    ///
    /// # Errors
    /// [`Failure::Refused`] with what the service says.
    pub fn ok(self) -> Result<Self, Failure> {
        if self.status.is_success() {
            return Ok(self);
        }
        let Self { what, address, request, status, body } = self;
        Err(Failure::Refused { what, address, status: status.as_u16(), detail: detail(&body), request })
    }

    /// What it holds, if its status is 2xx.
    ///
    /// # Errors
    /// [`Failure::Refused`]; [`Failure::Foreign`]: it holds something else.
    pub fn parse<T: DeserializeOwned>(self) -> Result<T, Failure> {
        let Self { what, address, body, .. } = self.ok()?;
        serde_json::from_slice(&body).map_err(|e| Failure::Foreign { what, address, reason: e.to_string() })
    }

    /// Print its JSON as one line, nothing added and nothing left out.
    ///
    /// # Errors
    /// Those of [`Self::parse`]; [`Failure::Output`].
    pub fn print_json(self) -> Result<(), Failure> {
        output::print_json(&self.parse::<serde_json::Value>()?)
    }
}

/// `text` as a component of a query: everything but letters, digits, `-._~` and `/` encoded.
#[must_use]
pub fn encode(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b'/' => {
                encoded.push(char::from(byte))
            }
            other => encoded.push_str(&format!("%{other:02X}")),
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Server, reply};

    #[test]
    fn a_path_survives_a_query() {
        assert_eq!(encode("/workspace/a b&c=d+é%.txt"), "/workspace/a%20b%26c%3Dd%2B%C3%A9%25.txt");
    }

    #[tokio::test]
    async fn one_connection_carries_the_token_over_tcp_and_unix() {
        for server in [Server::tcp(|_| reply(200, "[1]")).await, Server::unix(|_| reply(200, "[1]")).await] {
            let mut client = server.client();
            for _ in 0..3 {
                let answer = client.ask(Call::get("list images", "/images")).await.unwrap();
                assert_eq!(answer.parse::<Vec<u8>>().unwrap(), [1]);
            }
            let seen = server.seen();
            assert_eq!(seen.len(), 3);
            assert!(seen.iter().all(|r| r.head.starts_with("GET /images HTTP/1.1\r\n")));
            assert!(seen.iter().all(|r| r.head.contains("x-sandbox-token: t0ken\r\n")));
            assert!(seen.iter().all(|r| r.connection == 0));
        }
    }

    #[tokio::test]
    async fn a_connection_that_the_service_closed_is_made_again() {
        let server = Server::tcp(|_| reply(200, "1").replace("\r\n\r\n", "\r\nconnection: close\r\n\r\n")).await;
        let mut client = server.client();
        for _ in 0..2 {
            client.ask(Call::get("look", "/")).await.unwrap();
        }
        assert_eq!(server.seen()[1].connection, 1);
    }

    #[tokio::test]
    async fn refusals_keep_status_and_words() {
        let server = Server::tcp(|_| reply(404, r#"{"detail": "No such session: a"}"#)).await;
        let failure = server.client().ask(Call::get("look at a", "/sessions/a")).await.unwrap().ok().unwrap_err();
        assert_eq!(failure.status(), 66);
        assert!(failure.text().contains("look at a at http://127.0.0.1:"), "{}", failure.text());
    }

    #[tokio::test]
    async fn what_is_not_the_service_is_told_apart() {
        let server = Server::tcp(|_| reply(200, "<html>")).await;
        let failure = server.client().ask(Call::get("list", "/images")).await.unwrap().parse::<Vec<u8>>().unwrap_err();
        assert_eq!(failure.status(), 76);
        let noise = Server::tcp(|_| "SSH-2.0-x\r\n".into()).await;
        assert_eq!(noise.client().ask(Call::get("list", "/images")).await.unwrap_err().status(), 69);
        let mut nobody = Client::new(Address::Unix("/nonexistent/x.sock".into()), None);
        let failure = nobody.ask(Call::get("list", "/images")).await.unwrap_err();
        assert!(matches!(failure, Failure::Connect { .. }) && failure.mend().is_some());
    }

    #[tokio::test]
    async fn a_redirect_is_followed_by_nobody() {
        let thief = Server::tcp(|_| reply(200, "[]")).await;
        let place = thief.url();
        for status in [301, 302, 307, 308] {
            let sent = place.clone();
            let server = Server::tcp(move |_| {
                format!("HTTP/1.1 {status} X\r\nlocation: {sent}/images\r\ncontent-length: 0\r\n\r\n")
            })
            .await;
            let failure = server.client().ask(Call::get("list", "/images")).await.unwrap_err();
            assert_eq!(failure.status(), 76);
            assert!(failure.text().contains(&place), "{}", failure.text());
        }
        assert!(thief.seen().is_empty());
    }

    #[tokio::test]
    async fn a_silent_service_is_given_up() {
        let server = Server::tcp(|_| String::new()).await;
        let failure = server.client().ask(Call::get("list", "/images").within(Some(1))).await.unwrap_err();
        assert!(matches!(failure, Failure::Late { seconds: 1, .. }));
    }
}
