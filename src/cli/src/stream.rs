//! The events of a streamed run, as they come: pieces of output, and one end.
//!
//! ```text
//! event: stdout            event: exit
//! data: aGVsbG8K           data: {"exit_code": 0, …}
//! ```
//! Lines that begin with `:` keep the connection alive and mean nothing.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use wire::api::{Detail, RunExit};

use crate::error::detail;

/// Longest event, in bytes: the service's pieces are far shorter.
const EVENT_MAX: usize = 4 << 20;

/// One event.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// A piece of standard output.
    Out(Vec<u8>),
    /// A piece of standard error.
    Err(Vec<u8>),
    /// It has ended.
    Exit(RunExit),
    /// It cannot be carried to its end.
    Failed(Detail),
}

/// Reads events from the bytes of an answer.
#[derive(Debug, Default)]
pub struct Events {
    waiting: Vec<u8>,
}

impl Events {
    /// The events that these bytes complete, in order.
    ///
    /// # Errors
    /// What is wrong with them, in words.
    pub fn feed(&mut self, bytes: &[u8]) -> Result<Vec<Event>, String> {
        // What was there before has no end in it, but for the first half of one.
        let mut from = self.waiting.len().saturating_sub(1);
        self.waiting.extend_from_slice(bytes);
        let (mut events, mut begin) = (Vec::new(), 0);
        while let Some(at) = find_end(&self.waiting, from) {
            events.extend(read(&self.waiting[begin..at])?);
            begin = at + 2;
            from = begin;
        }
        self.waiting.drain(..begin);
        if self.waiting.len() > EVENT_MAX {
            return Err(format!("an event of more than {EVENT_MAX} bytes"));
        }
        Ok(events)
    }
}

/// Where the next blank line begins.
fn find_end(bytes: &[u8], from: usize) -> Option<usize> {
    bytes.get(from..)?.windows(2).position(|pair| pair == b"\n\n").map(|at| from + at)
}

fn read(block: &[u8]) -> Result<Option<Event>, String> {
    let text = std::str::from_utf8(block).map_err(|_| "an event that is no text".to_owned())?;
    let (mut name, mut data) = ("", "");
    for line in text.lines().filter(|line| !line.starts_with(':')) {
        match line.split_once(": ") {
            Some(("event", value)) => name = value,
            Some(("data", value)) => data = value,
            _ => return Err("an event with an unknown field".to_owned()),
        }
    }
    let bytes = || STANDARD.decode(data).map_err(|_| format!("a piece of {name} that is no base64"));
    match name {
        "" => Ok(None),
        "stdout" => Ok(Some(Event::Out(bytes()?))),
        "stderr" => Ok(Some(Event::Err(bytes()?))),
        "exit" => serde_json::from_str(data)
            .map(|exit| Some(Event::Exit(exit)))
            .map_err(|e| format!("an exit that is none: {e}")),
        "error" => Ok(Some(Event::Failed(detail(data.as_bytes())))),
        _ => Err("an unknown event".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "event: stdout\ndata: aGk=\n\n: heartbeat\n\nevent: stderr\ndata: b28=\n\nevent: exit\ndata: {\"exit_code\": 3, \"timed_out\": false, \"output_limited\": false, \"output_limit\": null}\n\n";

    #[test]
    fn events_are_the_same_however_they_are_cut() {
        let whole = Events::default().feed(TEXT.as_bytes()).unwrap();
        assert_eq!(whole[..2], [Event::Out(b"hi".to_vec()), Event::Err(b"oo".to_vec())]);
        assert!(matches!(&whole[2], Event::Exit(exit) if exit.exit_code == Some(3)), "{whole:?}");
        for size in 1..20 {
            let mut events = Events::default();
            let cut: Vec<Event> = TEXT.as_bytes().chunks(size).flat_map(|piece| events.feed(piece).unwrap()).collect();
            assert_eq!(cut, whole, "in pieces of {size}");
        }
    }

    #[test]
    fn an_error_has_the_services_words() {
        let failed = Events::default().feed(b"event: error\ndata: {\"detail\": \"gone\"}\n\n").unwrap();
        assert_eq!(failed, [Event::Failed(Detail::Message("gone".into()))]);
    }

    #[test]
    fn what_is_no_event_is_refused() {
        for text in ["event: stdout\ndata: !\n\n", "event: x\ndata: y\n\n", "id: 7\n\n", "event: exit\ndata: {}\n\n"] {
            assert!(Events::default().feed(text.as_bytes()).is_err(), "{text}");
        }
        assert!(Events::default().feed(b"event: stdout\ndata: \xff\n\n").is_err());
        let mut events = Events::default();
        assert!(events.feed(&vec![b'x'; EVENT_MAX + 1]).is_err());
    }
}
