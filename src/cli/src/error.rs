//! What can go wrong: what was attempted and on what, what to do about it, and the exit status.

use std::borrow::Cow;
use std::error::Error;
use std::io;

use wire::api::{Detail, ErrorBody, PathError};
use wire::id::RequestId;

use crate::output::harmless;

/// Why a command was not done.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// What is written on the command line makes no sense.
    #[error("{0}")]
    Usage(String),
    /// Nothing answers at the address.
    #[error("connect to {address}")]
    Connect {
        /// Where.
        address: String,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The connection broke, or what came over it is not HTTP.
    #[error("{what} at {address}: the connection broke")]
    Broken {
        /// What was attempted.
        what: String,
        /// Where.
        address: String,
        /// Why.
        #[source]
        source: Box<dyn Error + Send + Sync>,
    },
    /// No answer came in time.
    #[error("{what} at {address}: no answer within {seconds} s")]
    Late {
        /// What was attempted.
        what: String,
        /// Where.
        address: String,
        /// How long it was waited for.
        seconds: u64,
    },
    /// The service said no.
    #[error("{what} at {address}: {}", describe(*status, detail))]
    Refused {
        /// What was attempted.
        what: String,
        /// Where.
        address: String,
        /// HTTP status.
        status: u16,
        /// The service's words.
        detail: Detail,
        /// What the request is called in its log.
        request: Option<RequestId>,
    },
    /// The answer is not one of this contract.
    #[error("{what} at {address}: not an answer of sandboxd: {reason}")]
    Foreign {
        /// What was attempted.
        what: String,
        /// Where.
        address: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A file of this machine.
    #[error("{operation} {path}")]
    Local {
        /// What was attempted.
        operation: &'static str,
        /// On what.
        path: String,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// Something in the sandbox changed while it was copied, or is what cannot be copied.
    #[error("{what}: {reason}")]
    Copy {
        /// What was attempted.
        what: String,
        /// Why not.
        reason: String,
    },
    /// A catalogue cannot be used.
    #[error(transparent)]
    Catalog(#[from] catalog::CatalogError),
    /// A copy of a catalogue is not what the catalogue says.
    #[error("{0}; renew it with --write in place of --check")]
    Differs(String),
    /// Whoever reads our output went away.
    #[error("write to standard output")]
    Output(#[source] io::Error),
}

impl Failure {
    /// A failure of a local file.
    pub fn local(operation: &'static str, path: impl Into<String>, source: io::Error) -> Self {
        Self::Local { operation, path: path.into(), source }
    }

    /// The exit status, after sysexits(3).
    #[must_use]
    pub fn status(&self) -> u8 {
        match self {
            Self::Usage(_) => 2,
            Self::Connect { .. } | Self::Broken { .. } | Self::Late { .. } => 69,
            Self::Refused { status, .. } => match status {
                401 | 403 => 77,
                404 | 410 => 66,
                429 | 503 => 75,
                500.. => 69,
                _ => 65,
            },
            Self::Foreign { .. } => 76,
            Self::Local { .. } => 74,
            Self::Copy { .. } => 65,
            Self::Catalog(catalog::CatalogError::Read { .. }) => 74,
            Self::Catalog(_) => 65,
            Self::Differs(_) => 1,
            Self::Output(source) if source.kind() == io::ErrorKind::BrokenPipe => 141,
            Self::Output(_) => 74,
        }
    }

    /// What to do about it, where that is known.
    #[must_use]
    pub fn mend(&self) -> Option<Cow<'static, str>> {
        let words = match self {
            Self::Connect { source, .. } if source.kind() == io::ErrorKind::PermissionDenied => {
                Some("join the group that owns the socket, or use --url with the service's TCP address")
            }
            Self::Connect { .. } => Some(
                "start the service (systemctl start sandboxd, or sandboxd dev), or name its address with --url or --socket",
            ),
            Self::Refused { status: 401 | 403, .. } => {
                Some("put the service's token into SANDBOXD_TOKEN, or name a file that holds it with --token-file")
            }
            Self::Refused { status: 429, .. } => Some("close a session, or try again later"),
            Self::Refused { status: 410, .. } => Some("open a new session: this one's files are gone with its sandbox"),
            Self::Refused { status: 500.., request: Some(request), .. } => {
                return Some(
                    format!("the reason is in the service's log: journalctl SANDBOXD_REQUEST={request}").into(),
                );
            }
            Self::Refused { status: 500.., .. } => Some("the reason is in the service's log: journalctl -u sandboxd"),
            Self::Foreign { .. } => Some("check that the address is sandboxd's"),
            Self::Late { .. } | Self::Broken { .. } => Some("see whether the service is well: sandboxctl doctor"),
            Self::Usage(_)
            | Self::Refused { .. }
            | Self::Local { .. }
            | Self::Copy { .. }
            | Self::Catalog(_)
            | Self::Differs(_)
            | Self::Output(_) => None,
        };
        words.map(Cow::Borrowed)
    }

    /// Whether the service said that nothing is at the path, or a file is on the way to it.
    #[must_use]
    pub fn is_missing_path(&self) -> bool {
        self.is_path_error("FileNotFoundError")
    }

    /// Whether the service's answer is this path error.
    #[must_use]
    pub fn is_path_error(&self, name: &str) -> bool {
        matches!(self, Self::Refused { detail: Detail::Path(PathError { error, .. }), .. } if error == name)
    }

    /// The message with every cause, in one line that a terminal takes no orders from.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = self.to_string();
        let mut cause = self.source();
        while let Some(error) = cause {
            text.push_str(": ");
            text.push_str(&error.to_string());
            cause = error.source();
        }
        harmless(&text)
    }

    /// Tell it on standard error.
    pub fn report(&self) {
        if matches!(self, Self::Output(source) if source.kind() == io::ErrorKind::BrokenPipe) {
            return;
        }
        eprintln!("sandboxctl: {}", self.text());
        if let Some(mend) = self.mend() {
            eprintln!("  -> {mend}");
        }
    }
}

/// The detail of an answer that is not 2xx; what is not the contract's is quoted, cut.
#[must_use]
pub fn detail(body: &[u8]) -> Detail {
    serde_json::from_slice::<ErrorBody>(body).map_or_else(
        |_| Detail::Message(String::from_utf8_lossy(body).trim().chars().take(300).collect()),
        |body| body.detail,
    )
}

fn describe(status: u16, detail: &Detail) -> String {
    let words = match detail {
        Detail::Message(text) => text.clone(),
        Detail::Path(error) => error.message.clone(),
        Detail::Invalid(list) => {
            let parts: Vec<String> = list.iter().map(|i| format!("{}: {}", i.loc.join("."), i.msg)).collect();
            parts.join("; ")
        }
    };
    if words.is_empty() { format!("status {status}") } else { format!("{words} ({status})") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(status: u16, body: &str) -> Failure {
        let request = RequestId::parse("q-1").ok();
        Failure::Refused { what: "run".into(), address: "x".into(), status, detail: detail(body.as_bytes()), request }
    }

    #[test]
    fn the_three_shapes_of_detail_are_read() {
        let text = refused(404, r#"{"detail": "No such session: a"}"#).text();
        assert_eq!(text, "run at x: No such session: a (404)");
        let path = refused(404, r#"{"detail": {"error": "FileNotFoundError", "message": "nothing: '/a'"}}"#);
        assert!(path.is_missing_path() && path.text().contains("nothing: '/a'"));
        let list = r#"{"detail": [{"loc": ["body", "argv"], "msg": "Field required", "type": "missing"}]}"#;
        assert!(refused(422, list).text().contains("body.argv: Field required"));
        assert!(refused(502, "<html>").text().contains("<html> (502)"));
    }

    #[test]
    fn statuses_follow_sysexits() {
        for (status, exit) in [(401, 77), (404, 66), (409, 65), (410, 66), (422, 65), (429, 75), (500, 69), (502, 69)] {
            assert_eq!(refused(status, "").status(), exit, "{status}");
        }
        assert_eq!(Failure::Usage(String::new()).status(), 2);
    }

    #[test]
    fn whoever_is_failed_by_the_service_is_told_where_the_reason_is() {
        assert!(refused(502, "").mend().unwrap().ends_with("journalctl SANDBOXD_REQUEST=q-1"));
        assert!(refused(404, "").mend().is_none());
    }

    #[test]
    fn no_message_carries_an_escape() {
        assert!(!refused(404, "{\"detail\": \"a\\u001b[2Jb\"}").text().contains('\u{1b}'));
    }
}
