//! Asking the resolvers of the host, or those that the operator named.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use hickory_proto::op::{Edns, Message, MessageType, Query};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};
use tokio::time::timeout;

/// Where the host says whom it asks.
const RESOLV_CONF: &str = "/etc/resolv.conf";
/// How many of them are asked, and how often.
const UPSTREAMS: usize = 3;
const ROUNDS: usize = 2;
/// How long each may take.
const PATIENCE: Duration = Duration::from_secs(2);
/// Longest answer over UDP that is asked for, RFC 9715.
const UDP_MAX: u16 = 1232;

/// The answer of the first that has one.
///
/// # Errors
/// Of the last that was asked.
pub async fn ask(upstreams: &[SocketAddr], question: &Query) -> io::Result<Message> {
    let found;
    let upstreams = match upstreams {
        [] => {
            found = of_the_host(&std::fs::read_to_string(RESOLV_CONF)?);
            &found[..]
        }
        named => named,
    };
    let mut error = io::Error::new(io::ErrorKind::NotFound, "the host has no resolver; set dns_upstreams");
    for upstream in std::iter::repeat_n(upstreams, ROUNDS).flatten().take(UPSTREAMS * ROUNDS) {
        match exchange(*upstream, question).await {
            Ok(answer) => return Ok(answer),
            Err(failed) => error = failed,
        }
    }
    Err(error)
}

fn of_the_host(text: &str) -> Vec<SocketAddr> {
    let named = text.lines().filter_map(|line| line.trim().strip_prefix("nameserver")?.trim().parse::<IpAddr>().ok());
    named.take(UPSTREAMS).map(|address| SocketAddr::new(address, 53)).collect()
}

async fn exchange(upstream: SocketAddr, question: &Query) -> io::Result<Message> {
    let late = || io::Error::new(io::ErrorKind::TimedOut, format!("{upstream} did not answer"));
    // Its number is random.
    let mut query = Message::query();
    query.metadata.recursion_desired = true;
    query.add_query(question.clone());
    let mut edns = Edns::new();
    edns.set_max_payload(UDP_MAX);
    query.set_edns(edns);
    let bytes = query.to_vec().map_err(io::Error::other)?;
    let answer = timeout(PATIENCE, over_udp(upstream, &query, &bytes)).await.map_err(|_| late())??;
    if !answer.metadata.truncation {
        return Ok(answer);
    }
    timeout(PATIENCE, over_tcp(upstream, &query, &bytes)).await.map_err(|_| late())?
}

/// A socket for each question: its port is as hard to guess as the kernel makes it.
async fn over_udp(upstream: SocketAddr, query: &Message, bytes: &[u8]) -> io::Result<Message> {
    let any: IpAddr = if upstream.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind((any, 0)).await?;
    socket.connect(upstream).await?;
    socket.send(bytes).await?;
    let mut buffer = vec![0; 4096];
    loop {
        let length = socket.recv(&mut buffer).await?;
        if let Some(answer) = answer_to(query, &buffer[..length]) {
            return Ok(answer);
        }
    }
}

async fn over_tcp(upstream: SocketAddr, query: &Message, bytes: &[u8]) -> io::Result<Message> {
    let mut stream = TcpStream::connect(upstream).await?;
    let length = u16::try_from(bytes.len()).map_err(io::Error::other)?;
    stream.write_all(&[&length.to_be_bytes()[..], bytes].concat()).await?;
    let mut answer = vec![0; usize::from(stream.read_u16().await?)];
    stream.read_exact(&mut answer).await?;
    answer_to(query, &answer)
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, format!("{upstream} answered something else")))
}

/// What was received, if it is an answer to what was asked.
pub(super) fn answer_to(query: &Message, bytes: &[u8]) -> Option<Message> {
    let answer = Message::from_vec(bytes).ok()?;
    let fits = answer.metadata.message_type == MessageType::Response
        && answer.metadata.id == query.metadata.id
        && answer.queries == query.queries;
    fits.then_some(answer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_host_s_resolvers_are_found() {
        let text = "# nameserver 1.1.1.1\nsearch x\nnameserver 10.0.0.1\n nameserver\t::1\nnameserver nonsense\n";
        assert_eq!(of_the_host(text), ["10.0.0.1:53".parse().unwrap(), "[::1]:53".parse().unwrap()]);
        assert!(of_the_host("").is_empty());
    }
}
