//! A service of a few lines, for the tests of this program: it records requests and answers from a closure.

use std::sync::{Arc, Mutex};

use hyper::header::HeaderValue;
use tempfile::TempDir;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, UnixListener};

use crate::address::Address;
use crate::client::Client;

/// One request as it came.
#[derive(Debug, Clone)]
pub struct Seen {
    /// Request line and headers, with the line ends.
    pub head: String,
    /// Body.
    pub body: Vec<u8>,
    /// Number of the connection that it came over.
    pub connection: usize,
}

impl Seen {
    /// Its method.
    pub fn method(&self) -> &str {
        self.head.split(' ').next().unwrap()
    }

    /// Its path without the query.
    pub fn path(&self) -> &str {
        self.head.split(' ').nth(1).unwrap().split('?').next().unwrap()
    }

    /// Its body as JSON.
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap()
    }
}

/// An answer's bytes.
pub fn reply(status: u16, body: &str) -> String {
    format!("HTTP/1.1 {status} X\r\ncontent-length: {}\r\n\r\n{body}", body.len())
}

/// The server; it ends with the test's runtime.
pub struct Server {
    address: Address,
    seen: Arc<Mutex<Vec<Seen>>>,
    _dir: Option<TempDir>,
}

impl Server {
    /// One on a port of its own.
    pub async fn tcp(answer: impl Fn(&Seen) -> String + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let authority = listener.local_addr().unwrap().to_string();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let (log, answer) = (seen.clone(), Arc::new(answer));
        tokio::spawn(async move {
            for connection in 0.. {
                let Ok((stream, _)) = listener.accept().await else {
                    break;
                };
                tokio::spawn(serve(stream, connection, log.clone(), answer.clone()));
            }
        });
        Self { address: Address::Tcp { authority, prefix: String::new() }, seen, _dir: None }
    }

    /// One on a socket of its own.
    pub async fn unix(answer: impl Fn(&Seen) -> String + Send + Sync + 'static) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let listener = UnixListener::bind(&path).unwrap();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let (log, answer) = (seen.clone(), Arc::new(answer));
        tokio::spawn(async move {
            for connection in 0.. {
                let Ok((stream, _)) = listener.accept().await else {
                    break;
                };
                tokio::spawn(serve(stream, connection, log.clone(), answer.clone()));
            }
        });
        Self { address: Address::Unix(path), seen, _dir: Some(dir) }
    }

    /// A client of it with a token.
    pub fn client(&self) -> Client {
        Client::new(self.address.clone(), Some(HeaderValue::from_static("t0ken")))
    }

    /// Its address over TCP.
    pub fn url(&self) -> String {
        self.address.to_string()
    }

    /// What it was asked so far.
    pub fn seen(&self) -> Vec<Seen> {
        self.seen.lock().unwrap().clone()
    }
}

async fn serve<S, F>(mut stream: S, connection: usize, log: Arc<Mutex<Vec<Seen>>>, answer: Arc<F>)
where
    S: AsyncRead + AsyncWrite + Unpin,
    F: Fn(&Seen) -> String,
{
    let mut bytes = Vec::new();
    loop {
        let Some(end) = find(&bytes, b"\r\n\r\n") else {
            match stream.read_buf(&mut bytes).await {
                Ok(read) if read > 0 => continue,
                _ => return,
            }
        };
        let head = String::from_utf8(bytes[..end + 4].to_vec()).unwrap();
        let length = head.lines().find_map(|l| l.strip_prefix("content-length: ")).map_or(0, |n| n.parse().unwrap());
        while bytes.len() < end + 4 + length {
            if stream.read_buf(&mut bytes).await.unwrap_or(0) == 0 {
                return;
            }
        }
        let rest = bytes.split_off(end + 4 + length);
        let seen = Seen { head, body: bytes.split_off(end + 4), connection };
        bytes = rest;
        let answer = answer(&seen);
        log.lock().unwrap().push(seen);
        if stream.write_all(answer.as_bytes()).await.is_err() || answer.contains("connection: close") {
            return;
        }
    }
}

fn find(haystack: &[u8], needle: &[u8]) -> Option<usize> {
    haystack.windows(needle.len()).position(|window| window == needle)
}
