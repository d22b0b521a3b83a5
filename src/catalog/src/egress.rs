//! Where sandboxes with a network may connect to, as the operator writes it.
//!
//! ```text
//! 203.0.114.0/24   10.0.5.7:5432/tcp   0.0.0.0/0:8000-8999   pypi.org   *.pythonhosted.org:443/tcp
//! ```
//! A range or an address, or a name, or every name below one; then ports, then a protocol. Names are for `egress_allow`
//! where the rest is denied: what is denied by name would still be reached by address.

use std::fmt;
use std::net::Ipv4Addr;

use wire::launch::{EgressRule, MAX_EGRESS_RULES, Protocol, Rest};

use super::{FieldError, check};

/// What a rule may look like.
pub const ALLOWED: &str =
    "ADDRESS, ADDRESS/BITS or NAME, then :PORT or :PORT-PORT, then /tcp or /udp, such as 10.0.5.0/24:443/tcp";
/// What a rule that denies may look like.
pub const DENIED: &str = "ADDRESS or ADDRESS/BITS, then :PORT or :PORT-PORT, then /tcp or /udp; a name that is denied would be reached by its address";
/// Longest name, RFC 1035.
const MAX_NAME: usize = 253;

/// What somebody says about where sandboxes may connect to: the service, or one runtime.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Egress {
    /// What no rule names; absent: as the service says, or allowed.
    pub rest: Option<Rest>,
    /// Allowed.
    pub allow: Vec<Target>,
    /// Refused, before everything else.
    pub deny: Vec<EgressRule>,
}

/// What may be allowed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// Addresses.
    Range(EgressRule),
    /// Whatever a name is resolved to, as long as the answer holds.
    Name(NameRule),
}

/// A name, or every name below it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NameRule {
    /// In lower case, without a dot at its end.
    pub name: String,
    /// Whether the names below it are meant, and not itself (`*.name`).
    pub below: bool,
    /// The one port; absent: all of them, and protocols that have none.
    pub port: Option<u16>,
    /// With a port, the protocol; absent: both.
    pub protocol: Option<Protocol>,
}

impl Egress {
    /// From its three fields as they are written.
    ///
    /// # Errors
    /// [`FieldError`] for the first that cannot be used.
    pub fn read(rest: Option<&str>, allow: &[String], deny: &[String]) -> Result<Self, FieldError> {
        for (field, rules) in [("egress_allow", allow), ("egress_deny", deny)] {
            if rules.len() > MAX_EGRESS_RULES {
                return Err(FieldError::new(field, format!("has {} rules", rules.len()), "at most 64"));
            }
        }
        let wrong =
            |field, text: &str, allowed| FieldError::new(field, format!("{} is no rule", check::quoted(text)), allowed);
        let allow = allow.iter().map(|text| target(text).ok_or_else(|| wrong("egress_allow", text, ALLOWED)));
        let deny = deny.iter().map(|text| range(text).ok_or_else(|| wrong("egress_deny", text, DENIED)));
        Ok(Self {
            rest: rest.map(rest_named).transpose()?,
            allow: allow.collect::<Result<_, _>>()?,
            deny: deny.collect::<Result<_, _>>()?,
        })
    }

    /// What holds for a runtime that says this, in a service that says `service`: both their lists.
    #[must_use]
    pub fn within(&self, service: &Self) -> Self {
        Self {
            rest: Some(self.rest.or(service.rest).unwrap_or_default()),
            allow: service.allow.iter().chain(&self.allow).cloned().collect(),
            deny: service.deny.iter().chain(&self.deny).copied().collect(),
        }
    }

    /// What it asks of the launcher.
    #[must_use]
    pub fn ranges(&self) -> wire::launch::Egress {
        let range = |target: &Target| match target {
            Target::Range(rule) => Some(*rule),
            Target::Name(_) => None,
        };
        let allow = self.allow.iter().filter_map(range).collect();
        wire::launch::Egress { rest: self.rest.unwrap_or_default(), allow, deny: self.deny.clone() }
    }

    /// What is to happen with what no rule names, as it is written.
    #[must_use]
    pub fn rest_text(&self) -> Option<&'static str> {
        self.rest.map(|rest| match rest {
            Rest::Allow => "allow",
            Rest::Deny => "deny",
        })
    }

    /// What is allowed, as it is written.
    #[must_use]
    pub fn allow_texts(&self) -> Vec<String> {
        self.allow.iter().map(ToString::to_string).collect()
    }

    /// What is refused, as it is written.
    #[must_use]
    pub fn deny_texts(&self) -> Vec<String> {
        self.deny.iter().map(range_text).collect()
    }

    /// The names that are allowed.
    #[must_use]
    pub fn names(&self) -> Vec<&NameRule> {
        let mut names = Vec::new();
        for target in &self.allow {
            match target {
                Target::Name(rule) => names.push(rule),
                Target::Range(_) => {}
            }
        }
        names
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Range(rule) => f.write_str(&range_text(rule)),
            Self::Name(rule) => {
                let below = if rule.below { "*." } else { "" };
                let port = rule.port.map(|port| format!(":{port}")).unwrap_or_default();
                write!(f, "{below}{}{port}{}", rule.name, protocol_text(rule.protocol))
            }
        }
    }
}

fn range_text(rule: &EgressRule) -> String {
    let ports = match rule.ports {
        Some((first, last)) if first == last => format!(":{first}"),
        Some((first, last)) => format!(":{first}-{last}"),
        None => String::new(),
    };
    format!("{}/{}{ports}{}", rule.address, rule.prefix, protocol_text(rule.protocol))
}

fn protocol_text(protocol: Option<Protocol>) -> &'static str {
    match protocol {
        Some(Protocol::Tcp) => "/tcp",
        Some(Protocol::Udp) => "/udp",
        None => "",
    }
}

fn rest_named(text: &str) -> Result<Rest, FieldError> {
    match text {
        "allow" => Ok(Rest::Allow),
        "deny" => Ok(Rest::Deny),
        _ => Err(FieldError::new("egress_default", format!("{} is neither", check::quoted(text)), "allow or deny")),
    }
}

fn range(text: &str) -> Option<EgressRule> {
    match target(text)? {
        Target::Range(rule) => Some(rule),
        Target::Name(_) => None,
    }
}

fn target(text: &str) -> Option<Target> {
    let (rest, protocol) = match text.rsplit_once('/') {
        Some((rest, "tcp")) => (rest, Some(Protocol::Tcp)),
        Some((rest, "udp")) => (rest, Some(Protocol::Udp)),
        Some(_) | None => (text, None),
    };
    let (what, ports) = match rest.split_once(':') {
        Some((what, text)) => (what, Some(ports(text)?)),
        None => (rest, None),
    };
    if let Some((address, prefix)) = addresses(what) {
        return Some(Target::Range(EgressRule { address, prefix, ports, protocol }));
    }
    let (name, below) = what.strip_prefix("*.").map_or((what, false), |name| (name, true));
    let name = name.trim_end_matches('.').to_ascii_lowercase();
    let port = match ports {
        Some((first, last)) if first == last => Some(first),
        Some(_) => return None,
        None if protocol.is_some() => return None,
        None => None,
    };
    is_name(&name).then_some(Target::Name(NameRule { name, below, port, protocol }))
}

fn ports(text: &str) -> Option<(u16, u16)> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let (first, last) = (first.parse().ok()?, last.parse().ok()?);
    (1..=last).contains(&first).then_some((first, last))
}

fn addresses(text: &str) -> Option<(Ipv4Addr, u8)> {
    let (address, prefix) = text.split_once('/').unwrap_or((text, "32"));
    let (address, prefix): (Ipv4Addr, u8) = (address.parse().ok()?, prefix.parse().ok()?);
    let rest = u32::MAX.checked_shr(u32::from(prefix)).unwrap_or(0);
    (prefix <= 32 && u32::from(address) & rest == 0).then_some((address, prefix))
}

/// Two labels or more, the last one not a number: an address that is mistyped is no name.
fn is_name(name: &str) -> bool {
    let label = |label: &str| {
        (1..=63).contains(&label.len()) && label.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_'))
    };
    let last = name.rsplit('.').next().unwrap_or_default();
    name.len() <= MAX_NAME
        && name.contains('.')
        && name.split('.').all(label)
        && last.bytes().any(|b| b.is_ascii_alphabetic())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(allow: &[&str], deny: &[&str]) -> Result<Egress, String> {
        let own = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
        Egress::read(Some("deny"), &own(allow), &own(deny)).map_err(|error| error.to_string())
    }

    #[test]
    fn rules_are_ranges_or_names_with_ports() {
        let egress = read(
            &["1.2.3.4", "10.0.0.0/8:443/tcp", "0.0.0.0/0:8000-8999", "PyPI.org.", "*.pythonhosted.org:443/tcp"],
            &["8.8.8.8/32:53"],
        )
        .unwrap();
        let ranges = egress.ranges();
        assert_eq!((ranges.rest, ranges.allow.len(), ranges.deny[0].ports), (Rest::Deny, 3, Some((53, 53))));
        assert_eq!((ranges.allow[1].ports, ranges.allow[1].protocol), (Some((443, 443)), Some(Protocol::Tcp)));
        let [name, below] = egress.names()[..] else { panic!("two names") };
        assert_eq!((name.name.as_str(), name.below, name.port), ("pypi.org", false, None));
        assert_eq!((below.name.as_str(), below.below, below.port), ("pythonhosted.org", true, Some(443)));
    }

    #[test]
    fn what_is_no_rule_is_told_with_what_would_be() {
        for bad in [
            "",
            "pypi",
            "1.2.3",
            "1.2.3.256",
            "10.0.0.1/8",
            "a.b:80-90",
            "a.b/tcp",
            "::1",
            "2001:db8::/32",
            "a b.c",
            "1.2.3.4:0",
            "1.2.3.4:9-8",
            "1.2.3.4/icmp",
            "*.*.a.b",
            "http://a.b",
        ] {
            let message = read(&[bad], &[]).unwrap_err();
            assert!(
                message.starts_with("field egress_allow: ") && message.contains("allowed: ADDRESS"),
                "{bad}: {message}"
            );
        }
        assert!(read(&[], &["pypi.org"]).unwrap_err().contains("reached by its address"));
        assert!(Egress::read(Some("maybe"), &[], &[]).is_err());
    }

    #[test]
    fn a_runtime_adds_to_the_service() {
        let service = read(&["1.1.1.1"], &["2.2.2.2"]).unwrap();
        let runtime = Egress { rest: None, ..read(&["3.3.3.3"], &[]).unwrap() };
        let both = runtime.within(&service);
        assert_eq!((both.rest, both.allow.len(), both.deny.len()), (Some(Rest::Deny), 2, 1));
        assert_eq!(Egress::default().within(&Egress::default()).rest, Some(Rest::Allow));
    }
}
