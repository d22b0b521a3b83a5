//! The names that sandboxes ask for: a forwarder that knows who asks and what they may reach.
//!
//! ```text
//! sandbox ─ any address, port 53 ─► packet filter ─► GATEWAY:PORT, here ─► the host's resolvers
//! ```
//! Who asks is known by the address that the question comes from, which the packet filter lets nobody borrow. Where only
//! some names are allowed, only those are asked for, and what they are resolved to is permitted in the packet filter
//! before the answer is sent: what may be connected to is decided there, for each connection. An answer that points
//! into a range that is no internet loses those addresses, whoever asks (DNS rebinding).
//!
//! Questions are parsed here and asked anew, answers likewise: no byte passes through. Bounded are questions under way, per
//! sandbox and altogether, connections, their length and their patience.

mod answer;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
mod guest;
mod listen;
mod upstream;

use std::future::Future;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;

use wire::id::SessionId;
use wire::launch::Permit;

pub use guest::{Guest, Lease, NameRule, Terms};

/// Has addresses permitted in the packet filter.
pub type Permitter = Box<dyn Fn(SessionId, Vec<Permit>) -> Permitting + Send + Sync>;
/// Until it is done, or said why not.
pub type Permitting = Pin<Box<dyn Future<Output = Result<(), Box<dyn std::error::Error + Send + Sync>>> + Send>>;

/// How it is set up.
pub struct Settings {
    /// The host's address that sandboxes see.
    pub gateway: Ipv4Addr,
    /// Where it listens there.
    pub port: u16,
    /// Whom it asks; none: whom the host asks.
    pub upstreams: Vec<SocketAddr>,
    /// Whether each refusal is logged.
    pub log: bool,
    /// How addresses are permitted.
    pub permitter: Permitter,
}

/// A resolver that runs until it is dropped.
#[derive(Debug)]
pub struct Resolver {
    guests: Arc<guest::Guests>,
    gateway: Ipv4Addr,
    tasks: Vec<tokio::task::JoinHandle<()>>,
}

impl Resolver {
    /// Listen, over UDP and TCP, and answer.
    ///
    /// # Errors
    /// What bind(2) says.
    pub fn start(settings: Settings) -> io::Result<Self> {
        let at = SocketAddr::from((settings.gateway, settings.port));
        let gateway = settings.gateway;
        let (udp, tcp) = (listen::udp(at)?, listen::tcp(at)?);
        let guests = Arc::new(guest::Guests::default());
        let answers = Arc::new(answer::Answers::new(settings));
        let tasks = vec![
            tokio::spawn(listen::serve_udp(udp, guests.clone(), answers.clone())),
            tokio::spawn(listen::serve_tcp(tcp, guests.clone(), answers)),
        ];
        Ok(Self { guests, gateway, tasks })
    }

    /// Answer the sandbox in slot `slot` from now on, until what is returned is dropped.
    #[must_use]
    pub fn admit(&self, id: &SessionId, slot: u32, terms: Terms) -> Lease {
        let address = Ipv4Addr::from(u32::from(self.gateway) + slot);
        self.guests.admit(address, Guest::new(id.clone(), slot, terms))
    }

    /// Everybody who is answered.
    #[must_use]
    pub fn guests(&self) -> Vec<Arc<Guest>> {
        self.guests.all()
    }
}

impl Drop for Resolver {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
    }
}
