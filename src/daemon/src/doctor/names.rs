//! The resolvers that names are asked of.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::path::Path;
use std::time::{Duration, Instant};

use wire::api::{Finding, Level};

use super::{file, fine, mended};

/// Resolvers that are asked.
const MOST: usize = 3;
/// How long one may take to answer.
const PATIENCE: Duration = Duration::from_secs(1);
/// A question for the name servers of the root (RFC 1035): its number, one question, recursion wanted.
const QUESTION: [u8; 17] = [0x5b, 0x0d, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0, 1];
const MEND: &str = "set dns_upstreams, or name a resolver in /etc/resolv.conf that this host can reach";

/// Ask those of the setting, else those of the host. `needed`: a runtime has a network.
pub fn look(named: &[SocketAddr], needed: bool) -> Finding {
    let of_host = of_the_host(&file(Path::new("/etc/resolv.conf")));
    let resolvers = if named.is_empty() { &of_host } else { named };
    let asked: Vec<_> = resolvers.iter().take(MOST).map(|resolver| (*resolver, ask(*resolver))).collect();
    judge(&asked, needed)
}

fn of_the_host(text: &str) -> Vec<SocketAddr> {
    let named = text.lines().filter_map(|line| line.trim().strip_prefix("nameserver")?.trim().parse::<IpAddr>().ok());
    named.map(|address| SocketAddr::new(address, 53)).collect()
}

/// How long it took to answer.
fn ask(resolver: SocketAddr) -> Option<Duration> {
    let begun = Instant::now();
    let any = if resolver.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let socket = UdpSocket::bind(any).ok()?;
    socket.set_read_timeout(Some(PATIENCE)).ok()?;
    socket.connect(resolver).ok()?;
    socket.send(&QUESTION).ok()?;
    let mut answer = [0; 512];
    let length = socket.recv(&mut answer).ok()?;
    // The same number, and the bit that makes it an answer.
    (length >= 12 && answer[..2] == QUESTION[..2] && answer[2] & 0x80 != 0).then(|| begun.elapsed())
}

fn judge(asked: &[(SocketAddr, Option<Duration>)], needed: bool) -> Finding {
    if asked.is_empty() {
        return match needed {
            true => mended("DNS", Level::Error, "there is no resolver, and a runtime needs names", MEND),
            false => fine("DNS", "there is no resolver, and no runtime needs names"),
        };
    }
    let words: Vec<String> = asked
        .iter()
        .map(|(resolver, took)| match took {
            Some(took) => format!("{resolver} answers in {} ms", took.as_millis()),
            None => format!("{resolver} does not answer"),
        })
        .collect();
    let message = words.join(", ");
    match (asked.iter().filter(|(_, took)| took.is_some()).count(), needed) {
        (answers, _) if answers == asked.len() => fine("DNS", &message),
        (0, true) => mended("DNS", Level::Error, &message, MEND),
        (0, false) => fine("DNS", &format!("{message}; no runtime needs names")),
        (_, true) => mended("DNS", Level::Warning, &message, MEND),
        (_, false) => fine("DNS", &message),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resolvers_answer_or_are_missed_where_names_are_needed() {
        let resolver = SocketAddr::from(([192, 0, 2, 1], 53));
        let (yes, no) = ((resolver, Some(Duration::from_millis(3))), (resolver, None));
        for (asked, needed, level) in [
            (&[yes, yes][..], true, Level::Ok),
            (&[yes, no], true, Level::Warning),
            (&[no], true, Level::Error),
            (&[], true, Level::Error),
            (&[yes, no], false, Level::Ok),
            (&[no], false, Level::Ok),
            (&[], false, Level::Ok),
        ] {
            assert_eq!(judge(asked, needed).level, level, "{asked:?} {needed}");
        }
    }

    #[test]
    fn an_answer_is_one_to_the_question() {
        let server = UdpSocket::bind("127.0.0.1:0").unwrap();
        let address = server.local_addr().unwrap();
        let serve = std::thread::spawn(move || {
            let mut answers = [QUESTION.to_vec(), vec![0; 12], vec![1], QUESTION.to_vec()];
            answers[0][2] |= 0x80;
            for answer in answers {
                let mut question = [0; 512];
                let (length, from) = server.recv_from(&mut question).unwrap();
                assert_eq!(question[..length], QUESTION);
                server.send_to(&answer, from).unwrap();
            }
        });
        assert!(ask(address).is_some());
        for what in ["of another question", "cut", "a question itself"] {
            assert!(ask(address).is_none(), "{what}");
        }
        serve.join().unwrap();
        assert!(ask(address).is_none(), "nobody is there");
    }

    #[test]
    fn the_host_names_them_in_its_file() {
        let text = "# nameserver 1.1.1.1\nnameserver 192.0.2.1\n nameserver  2001:db8::1 \nsearch x\nnameserver x\n";
        assert_eq!(of_the_host(text), [([192, 0, 2, 1], 53).into(), "[2001:db8::1]:53".parse().unwrap()]);
    }
}
