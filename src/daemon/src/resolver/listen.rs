//! The sockets that questions arrive at.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::answer::Answers;
use super::guest::{Guest, Guests};

/// Longest question, in bytes: one name, and options.
const QUESTION_MAX: usize = 1232;
/// Connections at once, of everybody.
const CONNECTIONS: usize = 128;
/// Questions over one connection, and how long each may take to arrive.
const QUESTIONS: usize = 100;
const PATIENCE: Duration = Duration::from_secs(10);
/// How long to rest when the kernel has nothing to give.
const REST: Duration = Duration::from_millis(50);
const BACKLOG: i32 = 64;

/// A socket for datagrams. The address need not be there yet: it comes with the first sandbox that has a network.
///
/// # Errors
/// What bind(2) says.
pub fn udp(at: SocketAddr) -> io::Result<UdpSocket> {
    UdpSocket::from_std(bound(at, SocketType::DGRAM)?.into())
}

/// One for connections.
///
/// # Errors
/// What bind(2) and listen(2) say.
pub fn tcp(at: SocketAddr) -> io::Result<TcpListener> {
    let socket = bound(at, SocketType::STREAM)?;
    rustix::net::listen(&socket, BACKLOG)?;
    TcpListener::from_std(socket.into())
}

fn bound(at: SocketAddr, kind: SocketType) -> io::Result<rustix::fd::OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::INET, kind, flags, None)?;
    sockopt::set_ip_freebind(&socket, true)?;
    if kind == SocketType::STREAM {
        sockopt::set_socket_reuseaddr(&socket, true)?;
    }
    rustix::net::bind(&socket, &at)?;
    Ok(socket)
}

/// Answer datagrams, for ever.
pub async fn serve_udp(socket: UdpSocket, guests: Arc<Guests>, answers: Arc<Answers>) {
    let socket = Arc::new(socket);
    let mut buffer = [0; QUESTION_MAX];
    loop {
        let (length, from) = match socket.recv_from(&mut buffer).await {
            Ok(received) => received,
            Err(_) => {
                tokio::time::sleep(REST).await;
                continue;
            }
        };
        let Some(guest) = known(&guests, from) else { continue };
        let (socket, answers, question) = (socket.clone(), answers.clone(), buffer[..length].to_vec());
        // As many as `answer` lets run; what is one too many ends at once.
        tokio::spawn(async move {
            if let Some(answer) = answers.answer(&guest, &question, true).await {
                // Who does not listen any more is not told.
                let _ = socket.send_to(&answer, from).await;
            }
        });
    }
}

/// Answer connections, for ever.
pub async fn serve_tcp(listener: TcpListener, guests: Arc<Guests>, answers: Arc<Answers>) {
    let room = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        let Ok(permit) = room.clone().acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, from)) => {
                let Some(guest) = known(&guests, from) else { continue };
                let answers = answers.clone();
                tokio::spawn(async move {
                    // Whatever is wrong with a connection is its sandbox's affair.
                    let _ = connection(stream, &guest, &answers).await;
                    drop(permit);
                });
            }
            Err(_) => tokio::time::sleep(REST).await,
        }
    }
}

async fn connection(mut stream: TcpStream, guest: &Guest, answers: &Answers) -> io::Result<()> {
    for _ in 0..QUESTIONS {
        let question = timeout(PATIENCE, question(&mut stream)).await??;
        let Some(answer) = answers.answer(guest, &question, false).await else { return Ok(()) };
        let length = u16::try_from(answer.len()).map_err(io::Error::other)?;
        timeout(PATIENCE, stream.write_all(&[&length.to_be_bytes()[..], &answer].concat())).await??;
    }
    Ok(())
}

async fn question(stream: &mut TcpStream) -> io::Result<Vec<u8>> {
    let length = usize::from(stream.read_u16().await?);
    if length > QUESTION_MAX {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut question = vec![0; length];
    stream.read_exact(&mut question).await?;
    Ok(question)
}

fn known(guests: &Guests, from: SocketAddr) -> Option<Arc<Guest>> {
    match from {
        SocketAddr::V4(from) => guests.find(*from.ip()),
        SocketAddr::V6(_) => None,
    }
}
