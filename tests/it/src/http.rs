//! A small blocking HTTP/1.1 client over TCP and unix sockets, on std alone: what it sends is what it is told to
//! send, so it can also send nonsense and hang up in the middle.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::Value;

/// Header that carries a token.
pub const TOKEN: &str = "X-Sandbox-Token";
/// How long an answer may take: a first open may have to build its image.
const PATIENCE: Duration = Duration::from_secs(900);

/// Where a service listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Endpoint {
    /// TCP.
    Tcp(SocketAddr),
    /// A unix socket.
    Unix(PathBuf),
}

/// A client that opens a connection for each request.
#[derive(Debug, Clone)]
pub struct Client {
    /// Where the service is.
    pub endpoint: Endpoint,
    /// The token that goes with each request; empty: none.
    pub token: Vec<u8>,
}

/// What came back.
#[derive(Debug, Clone)]
pub struct Response {
    /// Status code.
    pub status: u16,
    /// Names in lower case.
    pub headers: Vec<(String, String)>,
    /// The body, dechunked.
    pub body: Vec<u8>,
}

impl Response {
    /// The body as text.
    #[must_use]
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// The body as JSON.
    #[must_use]
    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|e| panic!("{e} in {} {:?}", self.status, self.text()))
    }

    /// The value of a header, by its name in lower case.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// The member `detail` of an error's body.
    #[must_use]
    #[track_caller]
    pub fn detail(&self) -> Value {
        self.json()["detail"].clone()
    }

    /// Panic unless the status is this one.
    #[track_caller]
    pub fn expect(self, status: u16) -> Self {
        assert_eq!(self.status, status, "answered {} {}", self.status, self.text());
        self
    }

    /// Panic unless it is a path error of this status and name.
    #[track_caller]
    pub fn expect_path_error(self, status: u16, name: &str) {
        let answer = self.expect(status);
        let detail = answer.detail();
        assert_eq!(detail["error"], name, "{detail}");
        assert!(detail["message"].as_str().is_some_and(|text| !text.is_empty()), "{detail}");
    }

    /// Panic unless it is a 422 that names this field.
    #[track_caller]
    pub fn expect_invalid(self, field: &str) {
        let answer = self.expect(422);
        let detail = answer.detail();
        let list = detail.as_array().unwrap_or_else(|| panic!("not a list: {detail}"));
        assert!(!list.is_empty(), "an empty list");
        for item in list {
            assert!(item["loc"].is_array() && item["msg"].is_string() && item["type"].is_string(), "{item}");
        }
        let names = |item: &Value| item["loc"].as_array().is_some_and(|loc| loc.iter().any(|part| part == field));
        assert!(list.iter().any(names), "no complaint names {field:?}: {detail}");
    }
}

impl Client {
    /// A client with a token.
    #[must_use]
    pub fn new(endpoint: Endpoint, token: impl Into<Vec<u8>>) -> Self {
        Self { endpoint, token: token.into() }
    }

    /// The same client with another token.
    #[must_use]
    pub fn with_token(&self, token: impl Into<Vec<u8>>) -> Self {
        Self { endpoint: self.endpoint.clone(), token: token.into() }
    }

    /// The same client with none.
    #[must_use]
    pub fn anonymous(&self) -> Self {
        self.with_token(Vec::new())
    }

    /// A connection of its own.
    #[must_use]
    pub fn connect(&self) -> Connection {
        Connection::open(&self.endpoint).unwrap_or_else(|e| panic!("connect to {:?}: {e}", self.endpoint))
    }

    /// `GET`.
    #[must_use]
    #[track_caller]
    pub fn get(&self, path: &str) -> Response {
        self.send("GET", path, None, b"")
    }

    /// `DELETE`.
    #[track_caller]
    pub fn delete(&self, path: &str) -> Response {
        self.send("DELETE", path, None, b"")
    }

    /// `POST` of JSON.
    #[track_caller]
    #[allow(clippy::needless_pass_by_value)] // called with `json!({…})`
    pub fn post(&self, path: &str, body: Value) -> Response {
        self.send("POST", path, Some("application/json"), body.to_string().as_bytes())
    }

    /// `POST` of whatever bytes.
    #[track_caller]
    pub fn post_bytes(&self, path: &str, body: &[u8]) -> Response {
        self.send("POST", path, Some("application/octet-stream"), body)
    }

    /// Any request, over a new connection.
    #[track_caller]
    pub fn send(&self, method: &str, path: &str, content_type: Option<&str>, body: &[u8]) -> Response {
        let head = self.head(method, path, content_type, body.len());
        let mut connection = self.connect();
        let answer = connection.exchange(&head, body);
        answer.unwrap_or_else(|e| panic!("{method} {path}: {e}"))
    }

    /// The head of a request as it goes over the wire, with its blank line.
    #[must_use]
    pub fn head(&self, method: &str, path: &str, content_type: Option<&str>, length: usize) -> Vec<u8> {
        let mut head =
            format!("{method} {path} HTTP/1.1\r\nHost: sandboxd\r\nContent-Length: {length}\r\n").into_bytes();
        if let Some(kind) = content_type {
            head.extend_from_slice(format!("Content-Type: {kind}\r\n").as_bytes());
        }
        if !self.token.is_empty() {
            head.extend_from_slice(format!("{TOKEN}: ").as_bytes());
            head.extend_from_slice(&self.token);
            head.extend_from_slice(b"\r\n");
        }
        head.extend_from_slice(b"\r\n");
        head
    }
}

#[derive(Debug)]
enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

/// One keep-alive connection.
#[derive(Debug)]
pub struct Connection {
    stream: Stream,
    read: Vec<u8>,
}

impl Connection {
    /// Connect.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn open(endpoint: &Endpoint) -> io::Result<Self> {
        let stream = match endpoint {
            Endpoint::Tcp(address) => {
                let stream = TcpStream::connect(address)?;
                stream.set_nodelay(true)?;
                stream.set_read_timeout(Some(PATIENCE))?;
                Stream::Tcp(stream)
            }
            Endpoint::Unix(path) => {
                let stream = UnixStream::connect(path)?;
                stream.set_read_timeout(Some(PATIENCE))?;
                Stream::Unix(stream)
            }
        };
        Ok(Self { stream, read: Vec::new() })
    }

    /// Send a request and read its answer.
    ///
    /// # Errors
    /// What the kernel says, or that the answer is not HTTP.
    pub fn exchange(&mut self, head: &[u8], body: &[u8]) -> io::Result<Response> {
        if body.len() < 64 * 1024 {
            // One write, one packet: otherwise a benchmark measures the network stack's patience.
            self.write(&[head, body].concat())?;
        } else {
            self.write(head)?;
            // A service that refuses a body may answer and close before it has read all of it.
            let _ = self.write(body);
        }
        self.answer()
    }

    /// Send bytes as they are.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        match &mut self.stream {
            Stream::Tcp(stream) => stream.write_all(bytes),
            Stream::Unix(stream) => stream.write_all(bytes),
        }
    }

    /// Say that nothing more will be sent.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn end(&self) -> io::Result<()> {
        match &self.stream {
            Stream::Tcp(stream) => stream.shutdown(Shutdown::Write),
            Stream::Unix(stream) => stream.shutdown(Shutdown::Write),
        }
    }

    /// Read one answer.
    ///
    /// # Errors
    /// What the kernel says, or that what came is not HTTP.
    pub fn answer(&mut self) -> io::Result<Response> {
        let first = self.line()?;
        let status = first.split(' ').nth(1).and_then(|code| code.parse().ok());
        let status = status.ok_or_else(|| io::Error::other(format!("not HTTP: {first:?}")))?;
        let mut headers = Vec::new();
        loop {
            let line = self.line()?;
            let Some((name, value)) = line.split_once(':') else { break };
            headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
        }
        let find = |name: &str| headers.iter().find(|(key, _)| key == name).map(|(_, value)| value.clone());
        let body = if status == 204 || status == 304 || status < 200 {
            Vec::new()
        } else if find("transfer-encoding").is_some_and(|value| value.eq_ignore_ascii_case("chunked")) {
            self.chunks()?
        } else if let Some(length) = find("content-length").and_then(|value| value.parse().ok()) {
            self.take(length)?
        } else {
            self.rest()?
        };
        Ok(Response { status, headers, body })
    }

    fn chunks(&mut self) -> io::Result<Vec<u8>> {
        let mut body = Vec::new();
        loop {
            let line = self.line()?;
            let size = usize::from_str_radix(line.split(';').next().unwrap_or_default().trim(), 16);
            let size = size.map_err(|e| io::Error::other(format!("{e} in chunk size {line:?}")))?;
            body.extend(self.take(size)?);
            self.line()?;
            if size == 0 {
                return Ok(body);
            }
        }
    }

    fn rest(&mut self) -> io::Result<Vec<u8>> {
        while self.fill()? > 0 {}
        Ok(std::mem::take(&mut self.read))
    }

    fn take(&mut self, length: usize) -> io::Result<Vec<u8>> {
        while self.read.len() < length {
            if self.fill()? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        let tail = self.read.split_off(length);
        Ok(std::mem::replace(&mut self.read, tail))
    }

    fn line(&mut self) -> io::Result<String> {
        loop {
            if let Some(end) = self.read.windows(2).position(|pair| pair == b"\r\n") {
                let line = self.take(end + 2)?;
                return Ok(String::from_utf8_lossy(&line[..end]).into_owned());
            }
            if self.fill()? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }

    fn fill(&mut self) -> io::Result<usize> {
        let mut piece = [0; 64 * 1024];
        let count = match &mut self.stream {
            Stream::Tcp(stream) => stream.read(&mut piece)?,
            Stream::Unix(stream) => stream.read(&mut piece)?,
        };
        self.read.extend_from_slice(&piece[..count]);
        Ok(count)
    }
}
