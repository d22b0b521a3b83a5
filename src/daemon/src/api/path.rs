//! Paths of requests as they come: escapes that are no text are made some, before the router reads them.
//!
//! It would answer such a path itself, in plain words and whoever asks. So the name that nothing has (U+FFFD in the place of
//! what cannot be read) goes on to the handler, which looks at the token first.

use std::borrow::Cow;

use axum::extract::Request;
use axum::http::Uri;
use axum::http::uri::PathAndQuery;

/// The same request with a path that is text.
pub async fn readable(mut request: Request) -> Request {
    if let Some(uri) = rewritten(request.uri()) {
        *request.uri_mut() = uri;
    }
    request
}

/// `None`: it can be read as it is.
fn rewritten(uri: &Uri) -> Option<Uri> {
    let Cow::Owned(path) = text(uri.path()) else { return None };
    let all = uri.query().map_or_else(|| path.clone(), |query| format!("{path}?{query}"));
    let mut parts = uri.clone().into_parts();
    parts.path_and_query = Some(PathAndQuery::try_from(all).ok()?);
    Uri::from_parts(parts).ok()
}

/// The path with every run of escapes that is no UTF-8 replaced by one that is. Between escapes there is nothing but ASCII.
fn text(path: &str) -> Cow<'_, str> {
    let mut rest = path;
    let mut written = String::new();
    let mut changed = false;
    while let Some(start) = rest.find('%') {
        let (before, escapes) = rest.split_at(start);
        let bytes: Vec<u8> = escapes.as_bytes().chunks_exact(3).map_while(unescape).collect();
        // A percent sign that begins no escape stands for itself.
        let (run, after) = escapes.split_at((bytes.len() * 3).max(1));
        written.push_str(before);
        match String::from_utf8_lossy(&bytes) {
            Cow::Borrowed(_) => written.push_str(run),
            Cow::Owned(text) => {
                changed = true;
                written.extend(text.bytes().map(|byte| format!("%{byte:02X}")));
            }
        }
        rest = after;
    }
    written.push_str(rest);
    if changed { Cow::Owned(written) } else { Cow::Borrowed(path) }
}

fn unescape(escape: &[u8]) -> Option<u8> {
    let (b'%', digits) = escape.split_first()? else { return None };
    // `from_str_radix` would take a sign.
    let digits = str::from_utf8(digits).ok().filter(|digits| digits.bytes().all(|digit| digit.is_ascii_hexdigit()))?;
    u8::from_str_radix(digits, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_can_be_read_stays_and_what_cannot_is_a_name_of_nothing() {
        for path in ["/sessions/a", "/a%20b/%C3%A9%2F", "/%", "/%4", "/%zz%41", "/%+1", "/100%"] {
            assert!(matches!(text(path), Cow::Borrowed(same) if same == path), "{path}");
        }
        for (path, readable) in [
            ("/sessions/%ff/run", "/sessions/%EF%BF%BD/run"),
            ("/a%C3/b", "/a%EF%BF%BD/b"),
            ("/%41%fe%2f", "/%41%EF%BF%BD%2F"),
            ("/%ff%zz", "/%EF%BF%BD%zz"),
        ] {
            assert_eq!(text(path), readable, "{path}");
        }
        let uri: Uri = "http://host/sessions/%ff?purge=%ff".parse().unwrap();
        assert_eq!(rewritten(&uri).unwrap(), "http://host/sessions/%EF%BF%BD?purge=%ff");
        assert_eq!(rewritten(&"/sessions/a?b=%ff".parse().unwrap()), None);
    }
}
