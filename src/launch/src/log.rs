//! The launcher's own log: a line on standard error, or, where that is the journal of systemd, an entry of the journal's own
//! with the session and the request as fields.
//!
//! What a request fails at goes back to the service, which logs it. Logged here is what nobody is told of, and what is no failure
//! of a host: a request that the configuration does not allow, and a child that died or took too long.

use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;

use wire::id::{RequestId, SessionId};
use wire::journal::{self, Entry, Priority};
use wire::launch::Request;

/// Name of this program in its log.
const PROGRAM: &str = "sandboxd-launch";

/// Say something about the launcher itself.
pub fn say(priority: Priority, message: &str) {
    write(priority, message, &[]);
}

/// Say something about a request, of its session and on behalf of whom.
pub fn about(request: &Request, priority: Priority, message: &str) {
    let (session, id) = subject(request);
    let fields = [(journal::SESSION, session.map(SessionId::as_str)), (journal::REQUEST, id.map(RequestId::as_str))];
    let fields: Vec<(&str, &str)> = fields.into_iter().filter_map(|(name, value)| Some((name, value?))).collect();
    write(priority, message, &fields);
}

/// The session and the request's id, as far as a request has them.
fn subject(request: &Request) -> (Option<&SessionId>, Option<&RequestId>) {
    match request {
        Request::Start { plan } => (Some(&plan.id), plan.request.as_ref()),
        Request::Stop { id }
        | Request::Freeze { id }
        | Request::Thaw { id }
        | Request::Forget { id }
        | Request::RemoveWorkspace { id }
        | Request::Permit { id, .. } => (Some(id), None),
        Request::Commit { build, .. } => (Some(build), None),
        Request::List {}
        | Request::About {}
        | Request::Usage { .. }
        | Request::Caches { .. }
        | Request::Unpack { .. }
        | Request::Pack { .. }
        | Request::RemoveLayer { .. }
        | Request::Bootstrap { .. }
        | Request::Network {}
        | Request::Refusals {}
        | Request::Runtime { .. } => (None, None),
    }
}

fn write(priority: Priority, message: &str, fields: &[(&str, &str)]) {
    let message = one_line(message);
    if to_journal(priority, &message, fields).is_none() {
        let said: String = fields.iter().map(|(name, value)| format!(" {name}={value}")).collect();
        eprintln!("{PROGRAM}: {message}{said}");
    }
}

/// Send it to the journal; none where standard error is not the journal's, or it does not take it.
fn to_journal(priority: Priority, message: &str, fields: &[(&str, &str)]) -> Option<()> {
    let stream = std::env::var(journal::STREAM_VARIABLE).ok()?;
    let stderr = rustix::fs::fstat(std::io::stderr()).ok()?;
    if !journal::is_stream(&stream, stderr.st_dev, stderr.st_ino) {
        return None;
    }
    let mut entry = Entry::new(PROGRAM, priority, message);
    for (name, value) in fields {
        entry.field(name, value);
    }
    let path = std::env::var_os(journal::SOCKET_VARIABLE).map_or_else(|| PathBuf::from(journal::SOCKET), PathBuf::from);
    // One for each entry: there are few, and no child has it.
    let socket = UnixDatagram::unbound().ok()?;
    socket.set_nonblocking(true).ok()?;
    socket.send_to(entry.bytes(), path).ok().map(|_| ())
}

/// A message quotes what it was sent: a line break in it begins no line of ours.
fn one_line(message: &str) -> String {
    message.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_about_its_session() {
        let id = SessionId::parse("s-1").unwrap();
        assert_eq!(subject(&Request::Stop { id: id.clone() }), (Some(&id), None));
        assert_eq!(subject(&Request::List {}), (None, None));
    }

    #[test]
    fn a_message_is_one_line() {
        assert_eq!(one_line("a\nb\r\u{1b}[2Jc\u{85}"), "a b  [2Jc ");
    }
}
