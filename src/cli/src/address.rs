//! Where the service is.

use std::fmt;
use std::path::PathBuf;

use hyper::Uri;

use crate::error::Failure;

/// The socket that an installed service listens on.
pub const DEFAULT_SOCKET: &str = "/run/sandboxd/sandboxd.sock";

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
    /// Whether what goes there stays on this machine.
    #[must_use]
    pub fn is_here(&self) -> bool {
        match self {
            Self::Unix(_) => true,
            Self::Tcp { authority, .. } => {
                let host = authority.rsplit_once(':').map_or(authority.as_str(), |(host, _)| host);
                let ip = host.trim_start_matches('[').trim_end_matches(']').parse::<std::net::IpAddr>();
                host == "localhost" || ip.is_ok_and(|ip| ip.is_loopback())
            }
        }
    }

    /// Read an address over TCP.
    ///
    /// # Errors
    /// [`Failure::Usage`]: a URL that is not `http://HOST:PORT`.
    pub fn parse(url: &str) -> Result<Self, Failure> {
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
        let host = authority.host().to_ascii_lowercase();
        let port = authority.port_u16().unwrap_or(80);
        Ok(Self::Tcp { authority: format!("{host}:{port}"), prefix: uri.path().trim_end_matches('/').to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_one_spelling() {
        for (url, shown) in [
            ("http://h:2/", "http://h:2"),
            ("http://H.example", "http://h.example:80"),
            ("http://[::1]:8080/sandbox/", "http://[::1]:8080/sandbox"),
        ] {
            assert_eq!(Address::parse(url).unwrap().to_string(), shown);
        }
    }

    #[test]
    fn what_leaves_the_machine_is_told_apart() {
        for (url, is_here) in [
            ("http://127.0.0.1:1", true),
            ("http://[::1]:1", true),
            ("http://localhost", true),
            ("http://10.0.0.1:1", false),
            ("http://localhost.example", false),
        ] {
            assert_eq!(Address::parse(url).unwrap().is_here(), is_here, "{url}");
        }
        assert!(Address::Unix("/s".into()).is_here());
    }

    #[test]
    fn other_urls_are_refused() {
        for url in ["", "127.0.0.1:8080", "https://h:1", "ftp://h", "http://u:p@h:1", "http://h:1/?a", "/run/x.sock"] {
            assert!(matches!(Address::parse(url), Err(Failure::Usage(_))), "{url}");
        }
    }
}
