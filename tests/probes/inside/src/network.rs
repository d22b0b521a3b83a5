//! Reaching addresses: `tcp:ADDRESS:PORT`, `udp:ADDRESS:PORT`, `unix:PATH`, `abstract:NAME`.

use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::Duration;

use crate::name;

const WITHIN: Duration = Duration::from_secs(2);

/// An attempt for each target.
pub fn connect(targets: &[&str]) -> Vec<(String, impl FnOnce() -> String + use<>)> {
    let attempt = |target: &&str| {
        let target = (*target).to_owned();
        (target.clone(), move || name::io(reach(&target)))
    };
    targets.iter().map(attempt).collect()
}

/// Listen on the loopback device and on an abstract socket, both named by `port`, for so many seconds.
pub fn listen(port: &str, seconds: &str) -> String {
    let listen = || -> std::io::Result<(TcpListener, UnixListener)> {
        let address = std::os::unix::net::SocketAddr::from_abstract_name(format!("probe-{port}"))?;
        Ok((TcpListener::bind(format!("0.0.0.0:{port}"))?, UnixListener::bind_addr(&address)?))
    };
    let held = listen();
    std::thread::sleep(Duration::from_secs(seconds.parse().unwrap_or(1)));
    name::io(held)
}

fn reach(target: &str) -> std::io::Result<()> {
    let invalid = || std::io::Error::from_raw_os_error(libc::EINVAL);
    let (kind, rest) = target.split_once(':').ok_or_else(invalid)?;
    let address = || rest.parse::<SocketAddr>().map_err(|_| invalid());
    match kind {
        "tcp" => TcpStream::connect_timeout(&address()?, WITHIN).map(drop),
        "udp" => {
            let target = address()?;
            let socket = UdpSocket::bind(if target.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" })?;
            socket.connect(target)?;
            socket.send(b"probe").map(drop)
        }
        "unix" => UnixStream::connect(rest).map(drop),
        "abstract" => {
            let address = std::os::unix::net::SocketAddr::from_abstract_name(rest)?;
            UnixStream::connect_addr(&address).map(drop)
        }
        _ => Err(invalid()),
    }
}
