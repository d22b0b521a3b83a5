//! Who stands for the journal of systemd: a socket of a test's own, and its native protocol.

use std::collections::BTreeMap;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use wire::journal::Entry;

/// An entry's fields.
pub type Fields = BTreeMap<String, String>;

/// What was told.
#[derive(Debug)]
pub struct Journal {
    told: Receiver<Vec<u8>>,
    /// In order.
    pub entries: Vec<Fields>,
}

impl Journal {
    /// Listen at `path`. The kernel keeps ten entries for whoever does not read: a thread takes them as they come, until the
    /// process ends.
    #[must_use]
    pub fn listen(path: &Path) -> Self {
        let socket = UnixDatagram::bind(path).unwrap_or_else(|e| panic!("bind {}: {e}", path.display()));
        let (tell, told) = channel();
        std::thread::spawn(move || {
            let mut buffer = vec![0; 1 << 20];
            while let Ok(length) = socket.recv(&mut buffer) {
                if tell.send(buffer[..length].to_vec()).is_err() {
                    return;
                }
            }
        });
        Self { told, entries: Vec::new() }
    }

    /// What was told of a session, as `journalctl SANDBOXD_SESSION=ID -o cat` shows it; read until `last` is told, or for ten
    /// seconds.
    pub fn story(&mut self, session: &str, last: &str) -> Vec<String> {
        self.until("SANDBOXD_SESSION", session, last)
    }

    /// The messages whose field is this, once one begins with `message`, or after ten seconds.
    pub fn until(&mut self, field: &str, value: &str, message: &str) -> Vec<String> {
        let end = Instant::now() + Duration::from_secs(60);
        loop {
            let of = self.of(field, value);
            if of.iter().any(|line| line.starts_with(message)) || Instant::now() > end {
                return of;
            }
            if let Ok(bytes) = self.told.recv_timeout(Duration::from_millis(100)) {
                self.entries.push(fields(&bytes));
            }
        }
    }

    /// The messages whose field is this, of those that were read.
    #[must_use]
    pub fn of(&self, field: &str, value: &str) -> Vec<String> {
        let about = |entry: &&Fields| entry.get(field).is_some_and(|found| found == value);
        self.entries.iter().filter(about).map(|entry| entry["MESSAGE"].clone()).collect()
    }
}

fn fields(bytes: &[u8]) -> Fields {
    let list = Entry::read(bytes).expect("an entry of the native protocol");
    let count = list.len();
    let fields: Fields = list.into_iter().collect();
    assert_eq!(fields.len(), count, "a field twice: {fields:?}");
    fields
}
