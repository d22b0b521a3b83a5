//! Whether a request may be taken for its connection's user: not if a page of another site had a browser send it.
//!
//! Who forwards the unix socket to a port of his own machine (`ssh -L 8080:/run/sandboxd/sandboxd.sock`) looks at the dashboard
//! without a token. Every other page in that browser can send requests there as well, and a host name that its owner
//! lets point at 127.0.0.1 can read the answers. Neither is this user: such requests need a token.

use axum::http::header::{HOST, HeaderName, ORIGIN};
use axum::http::{HeaderMap, HeaderValue};

/// What a browser says of who had it send a request.
const FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// Whether the headers are those of a program, or of a page of this service in a browser.
pub fn is_own(headers: &HeaderMap) -> bool {
    let site = headers.get(FETCH_SITE).map(HeaderValue::as_bytes);
    let host = headers.get(HOST).and_then(|host| host.to_str().ok());
    let from = headers.get(ORIGIN).map(|origin| origin.to_str().unwrap_or_default());
    let same_site = site.is_none_or(|site| site == b"same-origin" || site == b"none");
    let same_origin = from.is_none_or(|from| host.is_some_and(|host| authority(from) == Some(host)));
    same_site && same_origin && host.is_none_or(is_of_this_machine)
}

fn authority(origin: &str) -> Option<&str> {
    origin.split_once("://").map(|(_, authority)| authority)
}

/// Whether nobody else can have given a host this name: a loopback address, `localhost` and what is below it, or whatever a
/// program calls a unix socket, which has neither a dot nor a port. A browser that comes through a forwarded port names that
/// port: a name without a dot is then one of its network, where a neighbour may have chosen it.
fn is_of_this_machine(host: &str) -> bool {
    let (name, port) = match host.strip_prefix('[') {
        Some(rest) => rest.split_once(']').unwrap_or((rest, "")),
        None => host.split_at(host.rfind(':').unwrap_or(host.len())),
    };
    match name.parse::<std::net::IpAddr>() {
        Ok(address) => address.is_loopback(),
        Err(_) => {
            let name = name.to_ascii_lowercase();
            name == "localhost" || name.ends_with(".localhost") || (port.is_empty() && !name.contains('.'))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own(list: &[(&'static str, &'static str)]) -> bool {
        let headers = list.iter().map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)));
        is_own(&headers.collect())
    }

    #[test]
    fn programs_and_the_page_itself_are_the_user() {
        for headers in [
            &[][..],
            &[("host", "sandboxd")],
            &[("host", "localhost:8080")],
            &[("host", "127.0.0.1:8080"), ("origin", "http://127.0.0.1:8080"), ("sec-fetch-site", "same-origin")],
            &[("host", "[::1]:8080"), ("sec-fetch-site", "none")],
            &[("host", "box.localhost:9")],
            &[("host", "LocalHost:8080")],
        ] {
            assert!(own(headers), "{headers:?}");
        }
    }

    #[test]
    fn pages_of_others_are_not() {
        for headers in [
            &[("host", "localhost:8080"), ("origin", "http://evil.example")][..],
            &[("host", "localhost:8080"), ("origin", "http://localhost:3000")],
            &[("host", "localhost:8080"), ("origin", "null")],
            &[("host", "localhost:8080"), ("sec-fetch-site", "cross-site")],
            &[("host", "localhost:8080"), ("sec-fetch-site", "same-site")],
            &[("host", "evil.example:8080")],
            &[("host", "evil.example:8080"), ("origin", "http://evil.example:8080")],
            &[("host", "192.0.2.7:8080")],
            // A neighbour's name, that his network lets point here.
            &[("host", "printer:8080")],
            &[("host", "sandboxd:8080")],
            &[("host", "localhost.:8080")],
            &[("host", "notlocalhost:8080")],
            &[("host", "[::ffff:192.0.2.7]:8080")],
            &[("host", "[fe80::1]:8080")],
            &[("host", "0.0.0.0:8080")],
            &[("origin", "http://localhost:8080")],
        ] {
            assert!(!own(headers), "{headers:?}");
        }
    }
}
