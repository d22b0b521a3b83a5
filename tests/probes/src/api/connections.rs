//! Connections that do nothing, or little, and slowly.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use it::http::Endpoint;
use rustix::process::{Resource, getrlimit};

use super::row;
use crate::ground::Ground;
use crate::report::{Control, Report};

/// Connections at once, as far as descriptors allow: of those that say nothing, and of those that have a request begun. Both
/// are more than the service has places for.
const MANY: usize = 10_000;
const ENOUGH: usize = 5_000;
/// Connections that the service keeps at once: a crowd has to be more.
const PLACES: usize = 4096;
/// Threads that make them.
const MAKERS: usize = 16;
/// How long they may take to be made: a slow machine makes fewer, and says so. Those that make a crowd have longer.
const AT_MOST: Duration = Duration::from_secs(20);
const CROWD: usize = PLACES + 400;
const CROWD_AT_MOST: Duration = Duration::from_secs(90);
/// An answer in spite of them has to come within this.
const PROMPTLY: Duration = Duration::from_secs(2);

/// Try them all.
pub fn probe(ground: &Ground, report: &mut Report) {
    let room = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let count = usize::try_from(room).unwrap_or(MANY).saturating_sub(200).min(MANY);
    let client = &ground.daemon.client;
    let withheld = |client: &it::Client| {
        String::from_utf8_lossy(&client.head("POST", "/sessions", Some("application/json"), 100)).into_owned()
    };
    for (what, most, first) in [
        ("idle connections", MANY, String::new()),
        ("half a head", MANY, "GET /healthz HTTP/1.1\r\nX: ".to_owned()),
        ("a stranger's head, no body", ENOUGH, withheld(&client.anonymous())),
        ("a head with a token, no body", ENOUGH, withheld(client)),
    ] {
        let count = count.min(most);
        let (held, got, made) = crowd(ground, count, first.as_bytes());
        let control = Control::of(made > PLACES, format!("{made} were made"));
        row(report, &format!("{count} × {what}"), "answered within 2 s", &got, held, control);
    }
}

/// Hold so many connections, each of which has said `first`, and ask meanwhile.
fn crowd(ground: &Ground, count: usize, first: &[u8]) -> (bool, String, usize) {
    let Endpoint::Tcp(address) = ground.daemon.client.endpoint else { panic!("the client is over TCP") };
    // Several at once: where the queue is full, the kernel tries again after a second.
    let held: Vec<TcpStream> = std::thread::scope(|scope| {
        let makers: Vec<_> = (0..MAKERS).map(|_| scope.spawn(|| make(&address, count / MAKERS, first))).collect();
        makers.into_iter().flat_map(|maker| maker.join().unwrap_or_default()).collect()
    });
    let begun = Instant::now();
    let answered = ask(&address);
    let took = begun.elapsed();
    let got = format!("{answered} in {:.2} s beside {}", took.as_secs_f64(), held.len());
    let made = held.len();
    drop(held);
    // Until the service has seen that they are gone.
    let _ = it::daemon::wait_for(Duration::from_secs(20), || (ask(&address) == "200").then_some(()));
    (answered == "200" && took < PROMPTLY, got, made)
}

/// Make so many connections that have said `first`, or fewer where time is up.
fn make(address: &std::net::SocketAddr, count: usize, first: &[u8]) -> Vec<TcpStream> {
    let mut held = Vec::with_capacity(count);
    let begun = Instant::now();
    let time = |made| if made < CROWD / MAKERS { CROWD_AT_MOST } else { AT_MOST };
    while held.len() < count && begun.elapsed() < time(held.len()) {
        if let Ok(mut stream) = TcpStream::connect_timeout(address, PROMPTLY) {
            let _ = stream.write_all(first);
            held.push(stream);
        }
    }
    held
}

fn ask(address: &std::net::SocketAddr) -> String {
    let answer = || -> std::io::Result<String> {
        let mut stream = TcpStream::connect_timeout(address, PROMPTLY)?;
        stream.set_read_timeout(Some(PROMPTLY))?;
        stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer.get(9..12).unwrap_or("nothing").to_owned())
    };
    answer().unwrap_or_else(|error| error.to_string())
}
