//! A host and an internet: two network namespaces of a test's own, so that nothing of this machine's network is touched.
//!
//! ```text
//! host                          internet
//!   uplink 9.9.9.1  ───────────  eth0: every address there is
//! ```
//! The internet answers on every address: HTTP on ports 80, 443 and 8443, an echo over UDP on port 7000, and names, as
//! [`World::name`] has them, at [`RESOLVER`] on port 53. Each namespace is the child's of a test process, and ends with it.

use std::collections::HashMap;
use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustix::thread::LinkNameSpaceType;

use crate::daemon::{open, wait_for};

/// Who answers for names in the internet, of the host's choice.
pub const RESOLVER: &str = "9.9.9.9";
/// The host's address there.
pub const HOST: &str = "9.9.9.1";
const PATIENCE: Duration = Duration::from_secs(2);

/// A network namespace, as long as this lives.
#[derive(Debug)]
pub struct Namespace {
    keeper: Child,
    /// A file that names it.
    pub path: PathBuf,
}

/// Both of them.
#[derive(Debug)]
pub struct World {
    /// Where a service is to run.
    pub host: Namespace,
    /// Everything else.
    pub internet: Namespace,
    names: Names,
}

type Names = Arc<Mutex<HashMap<String, Name>>>;

/// What a name is answered with: one list after the other, the last for ever.
#[derive(Debug, Default)]
struct Name {
    answers: Vec<Vec<Ipv4Addr>>,
    asked: AtomicUsize,
}

impl Namespace {
    /// A new one, in which nothing is up.
    #[must_use]
    pub fn new() -> Self {
        let own = fs::read_link("/proc/self/ns/net").unwrap();
        // It ends when its standard input does: with this process at the latest.
        let mut command = Command::new("unshare");
        let keeper = command.args(["--net", "cat"]).stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        let path = PathBuf::from(format!("/proc/{}/ns/net", keeper.id()));
        let made = wait_for(PATIENCE, || fs::read_link(&path).ok().filter(|link| *link != own));
        assert!(made.is_some(), "no network namespace");
        Self { keeper, path }
    }

    /// Do this in it, in a thread of its own.
    pub fn within<T: Send>(&self, body: impl FnOnce() -> T + Send) -> T {
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                self.enter();
                body()
            });
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// What a shell's command line prints in it.
    #[track_caller]
    pub fn sh(&self, line: &str) -> String {
        let mut command = Command::new("nsenter");
        let output = command.arg(format!("--net={}", self.path.display())).args(["sh", "-ec", line]).output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        assert!(output.status.success(), "{line}: {}", text(&output.stderr));
        text(&output.stdout)
    }

    /// Whether a connection from it is accepted.
    #[must_use]
    pub fn connects(&self, to: &str) -> bool {
        let to: SocketAddr = to.parse().unwrap();
        self.within(|| TcpStream::connect_timeout(&to, Duration::from_millis(500)).is_ok())
    }

    /// Accept connections in it on this port of every address, for as long as it lives.
    pub fn listen(&self, port: u16) {
        let listener = self.within(|| TcpListener::bind(("0.0.0.0", port)).unwrap());
        std::thread::spawn(move || listener.incoming().flatten().for_each(greet));
    }

    fn enter(&self) {
        let namespace = open(&self.path);
        rustix::thread::move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
    }
}

impl Default for Namespace {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        drop(self.keeper.stdin.take());
        let _ = self.keeper.wait();
    }
}

impl Default for World {
    fn default() -> Self {
        Self::new()
    }
}

impl World {
    /// A host that reaches the internet.
    #[must_use]
    pub fn new() -> Self {
        let (host, internet) = (Namespace::new(), Namespace::new());
        host.sh(&format!(
            "ip link set lo up; ip link add uplink type veth peer name eth0 netns {}
             ip address add {HOST} peer {RESOLVER} dev uplink; ip link set uplink up; ip route add default via {RESOLVER}",
            internet.path.display()
        ));
        internet.sh(&format!(
            "ip link set lo up; ip address add {RESOLVER} peer {HOST} dev eth0; ip link set eth0 up
             ip route add local default dev lo table local; ip route add throw 198.18.0.0/15 table local
             ip route add default via {HOST}"
        ));
        for port in [80, 443, 8443] {
            internet.listen(port);
        }
        let names = Names::default();
        let (echo, resolver) = internet.within(|| (udp(7000), udp(53)));
        std::thread::spawn(move || serve(&echo, |packet| Some(packet.to_vec())));
        let known = names.clone();
        std::thread::spawn(move || serve(&resolver, |packet| answer(&known, packet)));
        Self { host, internet, names }
    }

    /// Have a name answered with these addresses; with several lists, one after the other, the last for ever.
    pub fn name(&self, name: &str, answers: &[&[&str]]) {
        let list = |list: &&[&str]| list.iter().map(|address| address.parse().unwrap()).collect();
        let name_of = Name { answers: answers.iter().map(list).collect(), asked: AtomicUsize::new(0) };
        self.names.lock().unwrap().insert(name.to_owned(), name_of);
    }
}

fn greet(mut stream: TcpStream) {
    let _ = stream.set_read_timeout(Some(PATIENCE));
    let _ = stream.read(&mut [0; 1024]);
    let at = stream.local_addr().map(|at| at.ip().to_string()).unwrap_or_default();
    let _ = write!(stream, "HTTP/1.0 200 OK\r\nContent-Length: {}\r\n\r\n{at}", at.len());
}

fn udp(port: u16) -> UdpSocket {
    UdpSocket::bind((if port == 53 { RESOLVER } else { "0.0.0.0" }, port)).unwrap()
}

fn serve(socket: &UdpSocket, answer: impl Fn(&[u8]) -> Option<Vec<u8>>) {
    let mut buffer = [0; 2048];
    while let Ok((length, from)) = socket.recv_from(&mut buffer) {
        if let Some(answer) = answer(&buffer[..length]) {
            let _ = socket.send_to(&answer, from);
        }
    }
}

/// The answer to a question of one name, RFC 1035: its addresses, or that there is none.
fn answer(names: &Names, packet: &[u8]) -> Option<Vec<u8>> {
    let mut at = 12;
    let mut labels = Vec::new();
    loop {
        let length = usize::from(*packet.get(at)?);
        at += 1;
        if length == 0 {
            break;
        }
        labels.push(String::from_utf8_lossy(packet.get(at..at + length)?).to_ascii_lowercase());
        at += length;
    }
    let question = packet.get(12..at + 4)?;
    let names = names.lock().unwrap();
    let found = names.get(&labels.join(".")).map(|name| {
        let turn = name.asked.fetch_add(1, Ordering::Relaxed).min(name.answers.len() - 1);
        name.answers[turn].clone()
    });
    let code = if found.is_some() { 0 } else { 3 };
    let addresses = found.filter(|_| question.ends_with(&[0, 1, 0, 1])).unwrap_or_default();
    let count = u16::try_from(addresses.len()).ok()?.to_be_bytes();
    let mut reply = [&packet[..2], &[0x81, 0x80 | code, 0, 1], &count, &[0; 4], question].concat();
    for address in addresses {
        reply.extend_from_slice(&[0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 1, 0, 4]);
        reply.extend_from_slice(&address.octets());
    }
    Some(reply)
}
