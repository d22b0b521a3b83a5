//! What the fuzz target of names calls; see [`crate::fuzzing`].
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a target reports by panicking")]

use std::net::{Ipv4Addr, SocketAddr};

use hickory_proto::op::{Message, MessageType};
use wire::id::SessionId;
use wire::launch::MAX_PERMITS;

use super::answer::Answers;
use super::guest::Guest;
use super::{NameRule, Settings, Terms, upstream};

/// A question of a sandbox, by UDP if the first byte is even, then after a line `--` an answer of an upstream to it. What
/// is answered is an answer, short enough; and no name is asked for beyond those of the sandbox.
pub fn questions(data: &[u8]) {
    let Some((how, bytes)) = data.split_first() else { return };
    let end = bytes.windows(4).position(|four| four == b"\n--\n");
    let (question, found) = end.map_or((bytes, [].as_slice()), |end| (&bytes[..end], &bytes[end + 4..]));
    let udp = how % 2 == 0;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    if let Some(reply) = runtime.block_on(answers().answer(&guest(), question, udp)) {
        let asked = Message::from_vec(question).unwrap();
        let reply_read = Message::from_vec(&reply).unwrap();
        assert!(!udp || reply.len() <= 1232, "{} bytes by UDP", reply.len());
        assert_eq!(reply_read.metadata.id, asked.metadata.id);
        assert_eq!(reply_read.metadata.message_type, MessageType::Response);
        // Nobody is there who could have answered.
        assert!(reply_read.answers.is_empty());
    }
    let Ok(query) = Message::from_vec(question) else { return };
    if let Some(answer) = upstream::answer_to(&query, found) {
        assert_eq!((answer.metadata.id, &answer.queries), (query.metadata.id, &query.queries));
        let addresses = vec![Ipv4Addr::LOCALHOST; MAX_PERMITS];
        assert!(guest().permits("a.example", &addresses, 60).len() <= MAX_PERMITS);
    }
}

fn answers() -> Answers {
    Answers::new(Settings {
        gateway: Ipv4Addr::LOCALHOST,
        port: 0,
        // Nobody listens there: it is refused at once.
        upstreams: vec![SocketAddr::from((Ipv4Addr::LOCALHOST, 1))],
        log: false,
        permitter: Box::new(|_, permits| panic!("{permits:?} without an answer")),
    })
}

fn guest() -> Guest {
    let rule = |name: &str, below| NameRule { name: name.to_owned(), below, ports: Vec::new() };
    let names = Some(vec![rule("a.example", false), rule("b.example", true)]);
    Guest::new(SessionId::parse("s").unwrap(), 1, Terms { names, reach: Vec::new() })
}
