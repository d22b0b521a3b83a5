//! A service of tokens before a registry: who shows the password or the identity token gets a token that Debian's
//! docker-registry believes, signed by a key of the test's own.

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use crate::registry::{Directory, USER, tool};

/// The token that gives others.
pub const IDENTITY: &str = "the-identity/of+tester";
/// `tester:s3cret`.
const BASIC: &str = "authorization: basic dgvzdgvyonmzy3jlda==";

/// The service; it ends with the process, its files with this.
#[derive(Debug)]
pub struct TokenService {
    files: Arc<Directory>,
    /// `127.0.0.1:PORT`.
    pub address: String,
    asked: Arc<Mutex<Vec<String>>>,
}

impl TokenService {
    /// A new one.
    #[must_use]
    pub fn start() -> Self {
        let files = Arc::new(Directory::new());
        let path = |name: &str| files.join(name).display().to_string();
        let (key, certificate) = (path("key.pem"), path("cert.pem"));
        let new = ["openssl", "req", "-x509", "-new", "-newkey", "rsa:2048", "-nodes", "-batch", "-days", "2"];
        tool(&[&new[..], &["-subj", "/CN=tokens", "-keyout", &key, "-out", &certificate]].concat());
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let service = Self { files, address, asked: Arc::default() };
        // The thread goes on to the end of the process: the files are not its own, or they would stay.
        let (files, asked) = (Arc::downgrade(&service.files), Arc::clone(&service.asked));
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let Some(files) = files.upgrade() else { return };
                drop(answer(stream, &files, &asked));
            }
        });
        service
    }

    /// What the registry believes tokens by.
    #[must_use]
    pub fn certificate(&self) -> PathBuf {
        self.files.join("cert.pem")
    }

    /// The ways in which tokens were given, one after another: `password` or `identity`.
    #[must_use]
    pub fn given(&self) -> Vec<String> {
        self.asked.lock().unwrap().clone()
    }
}

fn answer(mut stream: TcpStream, files: &Directory, asked: &Mutex<Vec<String>>) -> std::io::Result<()> {
    let (head, body) = request(&mut stream)?;
    let target = head.split(' ').nth(1).unwrap_or_default();
    let lower = head.to_lowercase();
    let given = if head.starts_with("POST ") {
        let shows = |name: &str, value: &str| parameters(&body, name).iter().any(|found| found == value);
        (shows("grant_type", "refresh_token") && shows("refresh_token", IDENTITY))
            .then_some(("identity", body.as_str()))
    } else {
        let query = target.split_once('?').map_or("", |(_, query)| query);
        lower.contains(BASIC).then_some(("password", query))
    };
    let Some((way, question)) = given else {
        return stream.write_all(b"HTTP/1.1 401 X\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
    };
    asked.lock().unwrap().push(way.to_owned());
    let token = token(files, &parameters(question, "scope"));
    let text = json!({"token": token, "access_token": token, "expires_in": 300}).to_string();
    let length = text.len();
    write!(
        stream,
        "HTTP/1.1 200 X\r\ncontent-type: application/json\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{text}"
    )
}

fn request(stream: &mut TcpStream) -> std::io::Result<(String, String)> {
    let (mut head, mut byte) = (Vec::new(), [0]);
    while !head.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte)?;
        head.push(byte[0]);
    }
    let head = String::from_utf8_lossy(&head).into_owned();
    let length = head.lines().find_map(|line| line.to_lowercase().strip_prefix("content-length: ")?.parse().ok());
    let mut body = vec![0; length.unwrap_or(0)];
    stream.read_exact(&mut body)?;
    Ok((head, String::from_utf8_lossy(&body).into_owned()))
}

/// The values of a parameter in a query or a form.
fn parameters(text: &str, name: &str) -> Vec<String> {
    let pairs = text.split('&').filter_map(|pair| pair.split_once('='));
    pairs.filter(|(key, _)| *key == name).map(|(_, value)| decoded(value)).collect()
}

fn decoded(text: &str) -> String {
    let (mut bytes, mut rest) = (Vec::new(), text.as_bytes());
    while let [first, tail @ ..] = rest {
        let code = tail.get(..2).filter(|_| *first == b'%').and_then(|digits| std::str::from_utf8(digits).ok());
        match code.and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            Some(byte) => (bytes.push(byte), rest = &tail[2..]).1,
            None => (bytes.push(if *first == b'+' { b' ' } else { *first }), rest = tail).1,
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// A token for these scopes (`repository:NAME:pull,push`), as the distribution's token specification has it.
fn token(files: &Directory, scopes: &[String]) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let access: Vec<Value> = scopes
        .iter()
        .flat_map(|scope| scope.split(' '))
        .filter_map(|scope| {
            let (kind, rest) = scope.split_once(':')?;
            let (name, actions) = rest.rsplit_once(':')?;
            Some(json!({"type": kind, "name": name, "actions": actions.split(',').collect::<Vec<_>>()}))
        })
        .collect();
    let path = |name: &str| files.join(name).display().to_string();
    let pem = fs::read_to_string(path("cert.pem")).unwrap();
    let certificate: String = pem.lines().filter(|line| !line.starts_with('-')).collect();
    let header = json!({"typ": "JWT", "alg": "RS256", "x5c": [certificate]});
    let claims = json!({"iss": "it", "sub": USER.0, "aud": "it", "exp": now + 300, "nbf": now - 10, "iat": now, "jti": "1", "access": access});
    let text =
        format!("{}.{}", base64(files, header.to_string().as_bytes()), base64(files, claims.to_string().as_bytes()));
    fs::write(path("text"), &text).unwrap();
    tool(&["openssl", "dgst", "-sha256", "-sign", &path("key.pem"), "-out", &path("signature"), &path("text")]);
    format!("{text}.{}", base64(files, &fs::read(path("signature")).unwrap()))
}

/// Of the kind for addresses, without filling.
fn base64(files: &Directory, bytes: &[u8]) -> String {
    let path = files.join("bytes").display().to_string();
    fs::write(&path, bytes).unwrap();
    let text = tool(&["openssl", "base64", "-A", "-in", &path]);
    text.trim().trim_end_matches('=').replace('+', "-").replace('/', "_")
}
