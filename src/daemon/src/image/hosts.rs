//! Which hosts a pull may be led to.
//!
//! A registry is a stranger that may answer "look over there", by a redirect or by naming a service of tokens. Where it
//! points has to be in the internet, or a host that the operator has named himself: in `registry`,
//! `registry_mirrors`, `insecure_registries`, `registry_hosts`, in the credentials or in the catalogue. Names are held
//! to that by what they resolve to, at each connection; so a name that resolves to the loopback interface, to this
//! network or to a cloud's metadata leads nowhere. Behind a proxy it is the proxy that resolves names.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use reqwest::Url;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use wire::launch::NO_INTERNET;

/// Where a proxy is named.
const PROXIES: [&str; 6] = ["HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"];

/// A way that is not gone.
#[derive(Debug, thiserror::Error)]
pub enum LedAway {
    /// Not where strangers may lead.
    #[error("{host} is not in the internet, and no setting names it; if it is meant, add it to registry_hosts")]
    Inside {
        /// `HOST[:PORT]`.
        host: String,
    },
    /// Without encryption.
    #[error("{host} is to be asked without TLS, and is not one of insecure_registries")]
    Plain {
        /// `HOST[:PORT]`.
        host: String,
    },
    /// Not HTTP at all.
    #[error("the address is not one of HTTP")]
    Scheme,
}

/// The hosts that the operator has named.
#[derive(Debug, Clone, Default)]
pub(super) struct Hosts {
    /// `host:port`, in lower case.
    named: Arc<BTreeSet<String>>,
    /// Those of `named`, and proxies, without their ports.
    names: Arc<BTreeSet<String>>,
    /// `host:port` that are asked without TLS.
    plain: Arc<BTreeSet<String>>,
}

impl Hosts {
    /// `named` and `plain` are `HOST[:PORT]`; those of `plain` are named as well.
    pub(super) fn new<'a>(named: impl Iterator<Item = &'a str>, plain: &[String]) -> Self {
        let plain: BTreeSet<String> = plain.iter().map(|host| with_port(host, 80)).collect();
        let named: BTreeSet<String> = named.map(|host| with_port(host, 443)).chain(plain.iter().cloned()).collect();
        let mut names: BTreeSet<String> = named.iter().map(|host| without_port(host).to_owned()).collect();
        let proxies = PROXIES.iter().filter_map(|variable| std::env::var(variable).ok());
        names.extend(proxies.filter_map(|text| Url::parse(&text).ok()?.host_str().map(str::to_lowercase)));
        Self { named: Arc::new(named), names: Arc::new(names), plain: Arc::new(plain) }
    }

    /// Whether the operator has named this host with this port.
    pub(super) fn is_named(&self, url: &Url) -> bool {
        self.named.contains(&authority(url))
    }

    /// Whether this may be asked. Of a name only that it is not one of the operator's at another port: the rest is
    /// found out when it is resolved.
    pub(super) fn check(&self, url: &Url) -> Result<(), LedAway> {
        let host = authority(url);
        match url.scheme() {
            "https" => {}
            "http" if self.plain.contains(&host) => {}
            "http" => return Err(LedAway::Plain { host }),
            _ => return Err(LedAway::Scheme),
        }
        let literal = url.host_str().map(|text| text.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>());
        let inside = match literal {
            Some(Ok(address)) => !is_internet(address),
            Some(Err(_)) => self.names.contains(without_port(&host)),
            None => true,
        };
        if inside && !self.named.contains(&host) { Err(LedAway::Inside { host }) } else { Ok(()) }
    }
}

impl Resolve for Hosts {
    fn resolve(&self, name: Name) -> Resolving {
        let hosts = self.clone();
        Box::pin(async move {
            let host = name.as_str().to_lowercase();
            let mut found: Vec<SocketAddr> = tokio::net::lookup_host((host.as_str(), 0)).await?.collect();
            if !hosts.names.contains(&host) {
                found.retain(|address| is_internet(address.ip()));
                if found.is_empty() {
                    return Err(LedAway::Inside { host }.into());
                }
            }
            Ok(Box::new(found.into_iter()) as Addrs)
        })
    }
}

/// `host:port` of an address, in lower case.
pub(super) fn authority(url: &Url) -> String {
    let port = url.port_or_known_default().unwrap_or(0);
    format!("{}:{port}", url.host_str().unwrap_or_default().to_lowercase())
}

fn with_port(host: &str, default: u16) -> String {
    let host = host.to_lowercase();
    let has_port = host.rsplit_once(':').is_some_and(|(name, port)| !name.is_empty() && port.parse::<u16>().is_ok());
    let bare_v6 = host.parse::<Ipv6Addr>().is_ok();
    match (bare_v6, has_port) {
        (true, _) => format!("[{host}]:{default}"),
        (false, true) => host,
        (false, false) => format!("{host}:{default}"),
    }
}

fn without_port(host: &str) -> &str {
    host.rsplit_once(':').map_or(host, |(name, _)| name)
}

/// Whether an address is of the internet, and not of this host, its networks or its cloud.
fn is_internet(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => is_internet_v4(address),
        IpAddr::V6(address) => is_internet_v6(address),
    }
}

fn is_internet_v4(address: Ipv4Addr) -> bool {
    let within = |(network, prefix): &(Ipv4Addr, u8)| {
        let mask = u32::MAX.checked_shl(32 - u32::from(*prefix)).unwrap_or(0);
        address.to_bits() & mask == network.to_bits() & mask
    };
    !NO_INTERNET.iter().any(within)
}

/// 2000::/3 without documentation (RFC 3849, RFC 9637), and what carries an IPv4 address only with one of the internet.
fn is_internet_v6(address: Ipv6Addr) -> bool {
    let [a, b, c, .., g, h] = address.segments();
    let carried = |high: u16, low: u16| Ipv4Addr::from_bits(u32::from(high) << 16 | u32::from(low));
    match (a, b) {
        (0x64, 0xff9b) => c == 0 && is_internet_v4(carried(g, h)),
        (0x2002, _) => is_internet_v4(carried(b, c)),
        (0x2001, 0..=0x1ff | 0xdb8) | (0x3fff, 0..=0xfff) => false,
        _ => a & 0xe000 == 0x2000,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str) -> Result<(), LedAway> {
        let hosts = Hosts::new(
            ["registry.lan:5000", "Blobs.lan", "10.0.0.9:443"].into_iter(),
            &["127.0.0.1:5000".to_owned(), "plain.lan".to_owned()],
        );
        hosts.check(&Url::parse(text).unwrap())
    }

    #[test]
    fn what_is_named_and_what_is_in_the_internet() {
        for good in [
            "https://registry.lan:5000/x",
            "https://blobs.lan/x",
            "https://BLOBS.lan:443/x",
            "https://10.0.0.9/x",
            "http://127.0.0.1:5000/x",
            "http://plain.lan/x",
            "https://cdn.example.org/x",
            "https://9.9.9.9/x",
            "https://[2620:fe::fe]/x",
        ] {
            assert!(check(good).is_ok(), "{good}: {:?}", check(good));
        }
        for bad in [
            "https://127.0.0.1:5001/x",
            "https://127.0.0.1/x",
            "http://127.0.0.1:8080/x",
            "https://registry.lan:22/x",
            "https://10.0.0.9:8443/x",
            "https://169.254.169.254/latest/meta-data",
            "https://2130706433/x",
            "https://0x7f.1/x",
            "https://0.0.0.0/x",
            "https://[::1]/x",
            "https://[::ffff:127.0.0.1]/x",
            "https://[fd00:ec2::254]/x",
            "https://[fe80::1]/x",
            "https://[64:ff9b::7f00:1]/x",
            "https://[2002:7f00:1::]/x",
            "http://cdn.example.org/x",
            "ftp://cdn.example.org/x",
            "file:///etc/passwd",
        ] {
            assert!(check(bad).is_err(), "{bad}");
        }
    }

    #[tokio::test]
    async fn a_name_is_what_it_resolves_to() {
        let resolve = |hosts: Hosts| async move { hosts.resolve("localhost".parse().unwrap()).await.is_ok() };
        assert!(!resolve(Hosts::default()).await);
        assert!(resolve(Hosts::new(["localhost:5000"].into_iter(), &[])).await);
    }
}
