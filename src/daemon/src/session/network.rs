//! Networks of sessions: whom the launcher gives which rules, and what the resolver answers to whom.
//!
//! The first session that needs a network has the packet filter written and the resolver started, or is told
//! why not; and so is the one after it.

use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tokio::sync::{Mutex, Notify, OnceCell};
use wire::api::{Finding, Level, NetworkUsage};
use wire::id::SessionId;
use wire::launch::{Egress, Protocol, Rest};

use super::error::SessionError;
use crate::catalog::{self, NameRule, NetworkMode, Runtime};
use crate::config::Settings;
use crate::resolver::{self, Lease, Permitting, Resolver, Terms};
use crate::runtime::{LaunchError, Launcher};

/// What to do where another packet filter is in the way, and where there are no networks at all.
const OTHER_FIREWALL: &str =
    "have it accept what arrives on the devices of sandboxes, and the answers; see \"Network\" in docs/operating.md";
const NO_NETWORK: &str =
    "install the package nftables and set [network] in launch.toml; see \"Network\" in docs/operating.md";
/// How often the packet filter is looked at while a sandbox has a network.
const KEEP: Duration = Duration::from_secs(10);
/// How old counts may be.
const FRESH: Duration = Duration::from_secs(1);

/// A host that gives no networks.
#[derive(Debug, thiserror::Error)]
pub enum NetworkError {
    /// The launcher has not what it needs.
    #[error(transparent)]
    Launch(#[from] LaunchError),
    /// The resolver does not start.
    #[error("answer sandboxes' questions for names at {at}")]
    Resolver {
        /// Where.
        at: SocketAddr,
        /// Why.
        #[source]
        source: std::io::Error,
    },
}

/// What sandboxes with a network have in common.
pub struct Networks {
    launcher: Launcher,
    mode: NetworkMode,
    service: catalog::Egress,
    upstreams: Vec<SocketAddr>,
    log: bool,
    resolver: OnceCell<Resolver>,
    counted: Mutex<Option<Instant>>,
    /// Told that a sandbox has a network.
    admitted: Notify,
}

impl Networks {
    /// As the settings have it.
    #[must_use]
    pub fn new(launcher: Launcher, settings: &Settings) -> Self {
        Self {
            launcher,
            mode: settings.network_mode,
            service: settings.egress.clone(),
            upstreams: settings.dns_upstreams.clone(),
            log: settings.egress_log,
            resolver: OnceCell::new(),
            counted: Mutex::new(None),
            admitted: Notify::new(),
        }
    }

    /// For `doctor`: whether this host gives networks, if one of `runtimes` needs it.
    pub async fn finding(&self, runtimes: &[std::sync::Arc<Runtime>]) -> Finding {
        let finding = |level, message: String, mend: Option<&str>| Finding {
            subject: "network".to_owned(),
            level,
            message,
            mend: mend.map(str::to_owned),
        };
        if !runtimes.iter().any(|runtime| self.gives(runtime)) {
            return finding(Level::Ok, "no runtime needs one".to_owned(), None);
        }
        let ready = match self.ready().await {
            // Asked again: what gets in the way may have come since.
            Ok(_) => self.launcher.network().await.map_err(NetworkError::from),
            Err(error) => Err(error),
        };
        match ready {
            Ok(network) if network.warnings.is_empty() => {
                finding(Level::Ok, format!("sandboxes see the host as {}", network.gateway), None)
            }
            Ok(network) => finding(Level::Warning, network.warnings.join("; "), Some(OTHER_FIREWALL)),
            Err(error) => finding(Level::Error, super::error::chain(&error), Some(NO_NETWORK)),
        }
    }

    /// Whether sessions on this runtime have a network.
    #[must_use]
    pub fn gives(&self, runtime: &Runtime) -> bool {
        runtime.network.unwrap_or(self.mode) == NetworkMode::Bridge
    }

    /// Make ready what networks need, once.
    ///
    /// # Errors
    /// [`NetworkError`]; asked again, it is tried again.
    pub async fn ready(&self) -> Result<&Resolver, NetworkError> {
        self.resolver.get_or_try_init(|| self.start()).await
    }

    async fn start(&self) -> Result<Resolver, NetworkError> {
        let network = self.launcher.network().await?;
        for warning in network.warnings {
            tracing::warn!("networks of sandboxes: {warning}");
        }
        let launcher = self.launcher.clone();
        let permitter = move |id: SessionId, permits| -> Permitting {
            let launcher = launcher.clone();
            Box::pin(async move { Ok(launcher.permit(&id, permits).await?) })
        };
        let (gateway, port) = (network.gateway, network.resolver_port);
        let settings = resolver::Settings {
            gateway,
            port,
            upstreams: self.upstreams.clone(),
            log: self.log,
            permitter: Box::new(permitter),
        };
        let at = SocketAddr::from((gateway, port));
        Resolver::start(settings).map_err(|source| NetworkError::Resolver { at, source })
    }

    /// Have a sandbox in slot `slot` answered: what its plan has to say, and the lease of the resolver's. None without a
    /// network.
    ///
    /// # Errors
    /// [`SessionError::Network`].
    pub async fn admit(
        &self,
        id: &SessionId,
        slot: u32,
        runtime: &Runtime,
    ) -> Result<Option<(Egress, Lease)>, SessionError> {
        if !self.gives(runtime) {
            return Ok(None);
        }
        // The table may have been removed since, by somebody who flushed everything: the launcher looks at each start.
        let resolver = self.ready().await.map_err(SessionError::Network)?;
        let egress = runtime.egress.within(&self.service);
        let ranges = egress.ranges();
        let lease = resolver.admit(id, slot, terms(&egress));
        self.admitted.notify_one();
        Ok(Some((ranges, lease)))
    }

    /// Have the packet filter written again if somebody has flushed every rule of the host, for as long as the future is
    /// polled: until then the sandboxes that run are not held back.
    pub async fn keep(&self) {
        loop {
            if self.resolver.get().is_none_or(|resolver| resolver.guests().is_empty()) {
                self.admitted.notified().await;
            }
            tokio::time::sleep(KEEP).await;
            if self.resolver.get().is_none_or(|resolver| resolver.guests().is_empty()) {
                continue;
            }
            if let Err(error) = self.launcher.network().await {
                let error = &error as &dyn std::error::Error;
                tracing::error!(error, "whether the rules of sandboxes with a network stand is not known");
            }
        }
    }

    /// Look what the packet filter has refused, unless somebody has just done so.
    pub async fn count(&self) {
        let Some(resolver) = self.resolver.get() else { return };
        let mut counted = self.counted.lock().await;
        if counted.is_some_and(|then| then.elapsed() < FRESH) {
            return;
        }
        match self.launcher.refusals().await {
            Ok(refusals) => {
                for guest in resolver.guests() {
                    let packets = refusals.iter().find(|of| of.slot == guest.slot).map_or(0, |of| of.packets);
                    guest.packets.store(packets, Ordering::Relaxed);
                }
                *counted = Some(Instant::now());
            }
            Err(error) => {
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "what was refused to sandboxes is not counted"
                );
            }
        }
    }
}

/// What `lease`'s sandbox was refused.
#[must_use]
pub fn usage(lease: &Lease) -> NetworkUsage {
    let guest = lease.guest();
    NetworkUsage { refused_packets: guest.packets.load(Ordering::Relaxed), refused_names: guest.refused() }
}

fn terms(egress: &catalog::Egress) -> Terms {
    let reach = egress.ranges().allow;
    match egress.rest.unwrap_or_default() {
        Rest::Allow => Terms { names: None, reach },
        Rest::Deny => Terms { names: Some(egress.names().into_iter().map(name).collect()), reach },
    }
}

fn name(rule: &NameRule) -> resolver::NameRule {
    let protocols = match rule.protocol {
        Some(protocol) => vec![protocol],
        None => vec![Protocol::Tcp, Protocol::Udp],
    };
    let ports = rule.port.map(|port| protocols.into_iter().map(|protocol| (protocol, port)).collect());
    resolver::NameRule { name: rule.name.clone(), below: rule.below, ports: ports.unwrap_or_default() }
}

impl std::fmt::Debug for Networks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Networks")
    }
}
