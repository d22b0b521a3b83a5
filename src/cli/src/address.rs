//! Where the service is, and with which token it is asked.

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use hyper::Uri;
use hyper::header::HeaderValue;

use crate::args::Global;
use crate::error::Failure;

/// The socket that an installed service listens on.
pub const DEFAULT_SOCKET: &str = "/run/sandboxd/sandboxd.sock";
/// Longest token file, in bytes.
const TOKEN_FILE_MAX: u64 = 4096;

/// Where the service is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Address {
    /// `host:port`, and the prefix of every path, without its last slash.
    Tcp {
        /// `host:port`.
        authority: String,
        /// Usually empty.
        prefix: String,
    },
    /// A unix socket.
    Unix(PathBuf),
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp { authority, prefix } => write!(f, "http://{authority}{prefix}"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

impl Address {
    /// What the flags say, else the environment, else the installed service's socket.
    ///
    /// # Errors
    /// [`Failure::Usage`]: a URL that is not `http://HOST:PORT`.
    pub fn choose(global: &Global, env: impl Fn(&str) -> Option<String>) -> Result<Self, Failure> {
        if let Some(url) = &global.url {
            return Self::parse(url);
        }
        if let Some(socket) = &global.socket {
            return Ok(Self::Unix(socket.clone()));
        }
        if let Some(url) = env("SANDBOXD_URL").filter(|url| !url.is_empty()) {
            return Self::parse(&url);
        }
        let socket = env("SANDBOXD_SOCKET").filter(|path| !path.is_empty());
        Ok(Self::Unix(socket.map_or_else(|| DEFAULT_SOCKET.into(), PathBuf::from)))
    }

    fn parse(url: &str) -> Result<Self, Failure> {
        let wrong = |reason: &str| Failure::Usage(format!("{url:?} is not an address of the service: {reason}"));
        let uri: Uri = url.parse().map_err(|_| wrong("write http://HOST:PORT"))?;
        match uri.scheme_str() {
            Some("http") => {}
            Some("https") => {
                return Err(wrong("TLS is not spoken here; use the unix socket or a tunnel"));
            }
            _ => return Err(wrong("write http://HOST:PORT")),
        }
        let authority = uri.authority().ok_or_else(|| wrong("the host is missing"))?;
        if authority.as_str().contains('@') || uri.query().is_some() {
            return Err(wrong("nothing but a host, a port and a path"));
        }
        let host = authority.host();
        let port = authority.port_u16().unwrap_or(80);
        Ok(Self::Tcp { authority: format!("{host}:{port}"), prefix: uri.path().trim_end_matches('/').to_owned() })
    }
}

/// The token of `--token-file`, else of `SANDBOXD_TOKEN`; none where there is neither.
///
/// # Errors
/// [`Failure::Local`]: the file cannot be read; [`Failure::Usage`]: what it holds is no token.
pub fn token(global: &Global, env: impl Fn(&str) -> Option<String>) -> Result<Option<HeaderValue>, Failure> {
    let (text, from) = match &global.token_file {
        Some(path) => {
            (read_token(path).map_err(|e| Failure::local("read", path.display().to_string(), e))?, "the file")
        }
        None => match env("SANDBOXD_TOKEN").filter(|token| !token.is_empty()) {
            Some(token) => (token.into_bytes(), "SANDBOXD_TOKEN"),
            None => return Ok(None),
        },
    };
    let mut value = HeaderValue::from_bytes(text.trim_ascii())
        .ok()
        .filter(|value| !value.is_empty())
        .ok_or_else(|| Failure::Usage(format!("{from} holds no token: it is empty, or not one line of text")))?;
    value.set_sensitive(true);
    Ok(Some(value))
}

fn read_token(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(TOKEN_FILE_MAX).read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn global(url: Option<&str>, socket: Option<&str>) -> Global {
        Global { url: url.map(str::to_owned), socket: socket.map(PathBuf::from), token_file: None, json: false }
    }

    fn choose(url: Option<&str>, socket: Option<&str>, env: &[(&str, &str)]) -> String {
        let look = |name: &str| env.iter().find(|(n, _)| *n == name).map(|(_, v)| (*v).to_owned());
        Address::choose(&global(url, socket), look).unwrap().to_string()
    }

    #[test]
    fn flags_win_over_the_environment_over_the_default() {
        let env = [("SANDBOXD_URL", "http://env:1"), ("SANDBOXD_SOCKET", "/env")];
        assert_eq!(choose(Some("http://flag:2/"), None, &env), "http://flag:2");
        assert_eq!(choose(None, Some("/flag"), &env), "unix:/flag");
        assert_eq!(choose(None, None, &env), "http://env:1");
        assert_eq!(choose(None, None, &env[1..]), "unix:/env");
        assert_eq!(choose(None, None, &[("SANDBOXD_URL", "")]), format!("unix:{DEFAULT_SOCKET}"));
        assert_eq!(choose(Some("http://[::1]:8080/sandbox/"), None, &[]), "http://[::1]:8080/sandbox");
    }

    #[test]
    fn other_urls_are_refused() {
        for url in ["", "127.0.0.1:8080", "https://h:1", "ftp://h", "http://u:p@h:1", "http://h:1/?a", "/run/x.sock"] {
            let failure = Address::choose(&global(Some(url), None), |_| None).unwrap_err();
            assert!(matches!(failure, Failure::Usage(_)), "{url}");
        }
    }

    #[test]
    fn a_token_is_one_line_and_never_shown() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("token");
        std::fs::write(&file, "s3cret\n").unwrap();
        let with = Global { token_file: Some(file.clone()), ..global(None, None) };
        let value = token(&with, |_| Some("other".into())).unwrap().unwrap();
        assert_eq!(value.as_bytes(), b"s3cret");
        assert!(!format!("{value:?}").contains("s3cret"));
        std::fs::write(&file, "\n").unwrap();
        assert!(matches!(token(&with, |_| None), Err(Failure::Usage(_))));
        let missing = Global { token_file: Some(dir.path().join("no")), ..global(None, None) };
        assert!(matches!(token(&missing, |_| None), Err(Failure::Local { .. })));
        let env = token(&global(None, None), |name| (name == "SANDBOXD_TOKEN").then(|| "e\nv".into()));
        assert!(matches!(env, Err(Failure::Usage(message)) if !message.contains("e\nv")));
        assert!(token(&global(None, None), |_| None).unwrap().is_none());
    }
}
