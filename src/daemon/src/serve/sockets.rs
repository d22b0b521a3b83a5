//! The sockets of the API: those that systemd passed (sd_listen_fds(3)), else those that the settings name.
//!
//! With sockets of systemd's the settings `host`, `port` and `socket` say nothing: where the API is reached is then the
//! socket unit's affair, and what it does not name is not listened on.

use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use listenfd::ListenFd;
use tokio::net::{TcpListener, UnixListener};

use super::listen::Listener;
use super::{ServeError, io_error};
use crate::config::Settings;

/// Connections that may wait to be accepted, at each socket; the kernel has a ceiling of its own (`net.core.somaxconn`, 4096
/// unless it is told otherwise). One that finds no room tries again after a second.
const BACKLOG: i32 = 4096;

/// What is listened on.
pub struct Sockets {
    /// Each.
    pub listeners: Vec<Listener>,
    /// The first TCP address, if there is one.
    pub address: Option<SocketAddr>,
    /// The first unix socket, if there is one.
    pub path: Option<PathBuf>,
}

/// Take what systemd passed, or bind what the settings name.
///
/// # Errors
/// [`ServeError::Io`]: an address is taken, or what was passed is no listening stream socket.
pub async fn open(settings: &Settings) -> Result<Sockets, ServeError> {
    let mut passed = ListenFd::from_env();
    if passed.len() > 0 {
        return inherited(&mut passed);
    }
    let address = SocketAddr::new(settings.host, settings.port);
    let place = PathBuf::from(address.to_string());
    let tcp = TcpListener::bind(address).await.map_err(|source| io_error("listen on", &place, source))?;
    // Once more: the runtime's own number is a quarter of it.
    rustix::net::listen(&tcp, BACKLOG).map_err(|errno| io_error("listen on", &place, errno.into()))?;
    let address = tcp.local_addr().map_err(|source| io_error("listen on", &place, source))?;
    let unix = bind_unix(&settings.socket)?;
    Ok(Sockets {
        listeners: vec![Listener::Tcp(tcp), Listener::Unix(unix)],
        address: Some(address),
        path: Some(settings.socket.clone()),
    })
}

fn inherited(passed: &mut ListenFd) -> Result<Sockets, ServeError> {
    let fail = |source| io_error("listen on", Path::new("a socket that systemd passed"), source);
    let mut sockets = Sockets { listeners: Vec::new(), address: None, path: None };
    for index in 0..passed.len() {
        // One of the two takes it; the other leaves it where it is.
        if let Ok(Some(unix)) = passed.take_unix_listener(index) {
            unix.set_nonblocking(true).map_err(fail)?;
            let bound = unix.local_addr().ok().and_then(|address| address.as_pathname().map(Path::to_owned));
            sockets.path = sockets.path.or(bound);
            sockets.listeners.push(Listener::Unix(UnixListener::from_std(unix).map_err(fail)?));
            continue;
        }
        let tcp = passed.take_tcp_listener(index).map_err(fail)?.ok_or_else(|| fail(io::ErrorKind::NotFound.into()))?;
        tcp.set_nonblocking(true).map_err(fail)?;
        let address = tcp.local_addr().map_err(fail)?;
        sockets.address.get_or_insert(address);
        sockets.listeners.push(Listener::Tcp(TcpListener::from_std(tcp).map_err(fail)?));
    }
    Ok(sockets)
}

/// Who may connect is decided by the directory; the token, or who the peer is, decides what they may do.
fn bind_unix(path: &Path) -> Result<UnixListener, ServeError> {
    let fail = |source| io_error("listen on", path, source);
    // What is left of a predecessor: the state directory's lock says that it is none that lives.
    match std::fs::remove_file(path) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(fail(error)),
    }
    let listener = UnixListener::bind(path).map_err(fail)?;
    rustix::net::listen(&listener, BACKLOG).map_err(|errno| fail(errno.into()))?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o660)).map_err(fail)?;
    Ok(listener)
}
