//! The journal of systemd in place of standard error, where standard error is the journal.
//!
//! An entry that the journal does not take now (it is being started again, it does not keep up) is a line on standard error
//! after all, which waits there.

use std::io;
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;

use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;
use wire::journal::{Entry, Priority, SOCKET, SOCKET_VARIABLE, STREAM_VARIABLE, is_stream};

use super::line::Line;

/// Where entries go.
#[derive(Debug)]
pub struct Journal {
    socket: UnixDatagram,
    path: PathBuf,
}

impl Journal {
    /// The journal, if it is what standard error is read by.
    pub fn behind_stderr() -> Option<Self> {
        let stream = std::env::var(STREAM_VARIABLE).ok()?;
        let stderr = rustix::fs::fstat(io::stderr()).ok()?;
        if !is_stream(&stream, stderr.st_dev, stderr.st_ino) {
            return None;
        }
        let path = std::env::var_os(SOCKET_VARIABLE).map_or_else(|| PathBuf::from(SOCKET), PathBuf::from);
        let socket = UnixDatagram::unbound().ok()?;
        socket.set_nonblocking(true).ok()?;
        Some(Self { socket, path })
    }

    fn send(&self, priority: Priority, line: &Line) {
        let text = line.text();
        let mut entry = Entry::new("sandboxd", priority, &text);
        for (name, value) in line.about() {
            entry.field(name, value);
        }
        if self.socket.send_to(entry.bytes(), &self.path).is_err() {
            // The journal reads the digit as the priority.
            eprintln!("<{}>{text}", priority.digit());
        }
    }
}

impl<S: Subscriber> Layer<S> for Journal {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        self.send(priority(*event.metadata().level()), &Line::of(event));
    }
}

fn priority(level: Level) -> Priority {
    match level {
        Level::ERROR => Priority::Error,
        Level::WARN => Priority::Warning,
        Level::INFO => Priority::Info,
        // Levels are values of a type of tracing's, not an enum that could be listed.
        _ => Priority::Debug,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_has_the_event_s_fields() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("socket");
        let standing_in = UnixDatagram::bind(&path).unwrap();
        let journal = Journal { socket: UnixDatagram::unbound().unwrap(), path };
        let subscriber = tracing_subscriber::layer::SubscriberExt::with(tracing_subscriber::registry(), journal);
        tracing::subscriber::with_default(subscriber, || {
            tracing::warn!(session = %"s-1", run = %"0\nSANDBOXD_TENANT=x", said = "a\nb", "a limit was hit");
        });
        let mut buffer = [0; 4096];
        let length = standing_in.recv(&mut buffer).unwrap();
        let fields = Entry::read(&buffer[..length]).unwrap();
        let field = |name: &str| fields.iter().find(|(found, _)| found == name).map(|(_, value)| value.as_str());
        assert_eq!(field("MESSAGE"), Some(r"a limit was hit session=s-1 run=0\nSANDBOXD_TENANT=x said=a\nb"));
        assert_eq!((field("PRIORITY"), field("SANDBOXD_SESSION")), (Some("4"), Some("s-1")));
        assert_eq!((field("SANDBOXD_RUN"), field("SANDBOXD_TENANT")), (Some(r"0\nSANDBOXD_TENANT=x"), None));
    }
}
