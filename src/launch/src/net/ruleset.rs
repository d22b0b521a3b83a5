//! The packet filter's table: one, with wildcards on our interfaces' names, written whole and at once by the program `nft`.
//!
//! What is written is known by a number, the hash of its text, that stands in the table itself: a table of another
//! version, or of another configuration, is replaced around the sessions that are in it. What a sandbox may reach
//! is a chain of its own, named by the hash of its rules: sandboxes of one runtime share it.

use std::io::Write;
use std::process::{Command, Stdio};

use rustix::io::Errno;
use sha2::{Digest, Sha256};
use wire::launch::{Egress, EgressRule, NO_INTERNET, Protocol, Rest};

use super::Settings;
use super::nft::{Nft, Set};
use super::pool::Range;
use crate::error::{Failure, Result, Step};

/// Most of what `nft` says that ends up in an answer, in bytes.
const MAX_WORDS: usize = 600;

/// Where a rule that allows stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// Before the ranges that are no internet are refused: the operator said that it may be reached.
    Before,
    /// After it: of `0.0.0.0/0`, say, the internet is allowed.
    After,
}

fn no_internet() -> impl Iterator<Item = Range> {
    NO_INTERNET.iter().filter_map(|(first, prefix)| Range::new(*first, *prefix))
}

/// Where `rule` may stand among those that allow; none if it is no internet at all.
#[must_use]
pub fn place(rule: &EgressRule, settings: &Settings) -> Option<Place> {
    let range = Range::new(rule.address, rule.prefix)?;
    if settings.may_reach.iter().any(|reach| reach.contains(range)) {
        return Some(Place::Before);
    }
    let mut reserved = no_internet();
    (!reserved.any(|reserved| reserved.contains(range))).then_some(Place::After)
}

/// Write the table if it is not there as it should be; whether it was not.
///
/// # Errors
/// There is no `nft`, the kernel has not what it needs, or says no.
pub fn ensure(nft: &mut Nft, settings: &Settings) -> Result<bool> {
    let text = text(settings);
    let number = number(&text);
    let table = settings.table();
    let written = Set { table: &table, name: "written" };
    if nft.has_number(written, number).step(|| format!("look for the packet filter's table {table}"))? {
        return Ok(false);
    }
    run(&text.replace("WRITTEN", &number.to_string()))?;
    Ok(true)
}

/// The chain that decides for sandboxes with this `egress`, written if it is not there yet.
///
/// # Errors
/// As for [`ensure`].
pub fn ensure_policy(nft: &mut Nft, settings: &Settings, egress: &Egress) -> Result<String> {
    let table = settings.table();
    let (name, text) = policy(settings, egress);
    if !nft.has_chain(&table, &name).step(|| format!("look for chain {name} of the packet filter"))? {
        run(&text)?;
    }
    Ok(name)
}

/// Remove the table, with everything in it.
///
/// # Errors
/// As for [`ensure`].
pub fn remove(settings: &Settings) -> Result<()> {
    let table = settings.table();
    // Adding it first makes it no error if there is none.
    run(&format!("add table inet {table}\ndelete table inet {table}\n"))
}

fn text(settings: &Settings) -> String {
    let log = match settings.log {
        true => "add rule inet TABLE refuse limit rate 20/second burst 100 packets log prefix \"sandboxd refused: \"",
        false => "",
    };
    include_str!("ruleset.nft")
        .replace("LOG\n", &format!("{log}\n"))
        .replace("TABLE", &settings.table())
        .replace("NAME", &settings.name)
        .replace("NO_INTERNET", &no_internet().map(|range| range.to_string()).collect::<Vec<_>>().join(", "))
        .replace("GATEWAY", &settings.pool.gateway().to_string())
        .replace("RESOLVER", &settings.resolver_port.to_string())
        .replace("POOL", &settings.pool.to_string())
}

/// Name and text of the chain for `egress`.
fn policy(settings: &Settings, egress: &Egress) -> (String, String) {
    let table = settings.table();
    let allowed = |wanted: Place| {
        let rules = egress.allow.iter().filter(move |rule| place(rule, settings) == Some(wanted));
        rules.map(|rule| format!("{} accept", matching(rule)))
    };
    let mut rules: Vec<String> = egress.deny.iter().map(|rule| format!("{} goto refuse", matching(rule))).collect();
    rules.extend(allowed(Place::Before));
    rules.push("ip daddr @no_internet goto refuse".to_owned());
    rules.extend(allowed(Place::After));
    rules.push("iifname . ip daddr @permitted accept".to_owned());
    rules.push(
        "meta l4proto { tcp, udp } iifname . ip daddr . meta l4proto . th dport @permitted_ports accept".to_owned(),
    );
    rules.push(match egress.rest {
        Rest::Allow => "accept".to_owned(),
        Rest::Deny => "goto refuse".to_owned(),
    });
    let digest = Sha256::digest(rules.join("\n"));
    let name = digest.iter().take(8).fold("policy_".to_owned(), |name, byte| format!("{name}{byte:02x}"));
    let mut text = format!("add chain inet {table} {name}\nflush chain inet {table} {name}\n");
    for rule in &rules {
        text.push_str(&format!("add rule inet {table} {name} {rule}\n"));
    }
    (name, text)
}

/// A rule as nft has it: what the addresses are, then the ports.
fn matching(rule: &EgressRule) -> String {
    let range = format!("ip daddr {}/{}", rule.address, rule.prefix);
    let protocols = match rule.protocol {
        Some(Protocol::Tcp) => "meta l4proto tcp",
        Some(Protocol::Udp) => "meta l4proto udp",
        None => "meta l4proto { tcp, udp }",
    };
    match (rule.ports, rule.protocol) {
        (Some((first, last)), _) => format!("{range} {protocols} th dport {first}-{last}"),
        (None, Some(_)) => format!("{range} {protocols}"),
        (None, None) => range,
    }
}

fn number(text: &str) -> u32 {
    let digest = Sha256::digest(text);
    digest.iter().take(4).fold(0, |number, byte| number << 8 | u32::from(*byte))
}

/// Have `nft` do all that `text` says, or nothing.
fn run(text: &str) -> Result<()> {
    let step = || "run nft";
    let mut command = Command::new("nft");
    command.args(["-f", "-"]).env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = match command.spawn() {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let missing = "run nft: it is not installed; sandboxes with a network need the package nftables";
            return Err(Failure::reported(missing.to_owned(), Some(Errno::NOENT.raw_os_error()), ""));
        }
        spawned => spawned.step(step)?,
    };
    if let Some(mut input) = child.stdin.take() {
        input.write_all(text.as_bytes()).step(|| "tell nft its rules")?;
    }
    let output = child.wait_with_output().step(step)?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr).split_whitespace().collect::<Vec<_>>().join(" ");
    let said: String = said.chars().take(MAX_WORDS).collect();
    Err(Failure::reported("write the packet filter's rules with nft".to_owned(), None, &said))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_is_named_by_what_it_says() {
        let deny = Egress { rest: Rest::Deny, ..Egress::default() };
        let rule = EgressRule {
            address: [10, 0, 5, 0].into(),
            prefix: 24,
            ports: Some((443, 443)),
            protocol: Some(Protocol::Tcp),
        };
        let all = EgressRule { address: [0, 0, 0, 0].into(), prefix: 0, ..rule };
        let allow = Egress { allow: vec![rule, all], ..deny.clone() };
        let mut settings: Settings = toml::from_str("pool = \"198.19.0.0/20\"").unwrap();
        assert_eq!((place(&rule, &settings), place(&all, &settings)), (None, Some(Place::After)));
        settings.may_reach = vec!["10.0.0.0/8".parse().unwrap()];
        assert_eq!((place(&rule, &settings), place(&all, &settings)), (Some(Place::Before), Some(Place::After)));
        let names = [&Egress::default(), &deny, &allow].map(|egress| policy(&settings, egress).0);
        assert!(names[0] != names[1] && names[1] != names[2] && names[0] != names[2], "{names:?}");
        let (name, text) = policy(&settings, &allow);
        let rule = |text: &str| format!("add rule inet sandboxd_sbx {name} {text}\n");
        let at = |wanted: &str| text.find(&rule(wanted)).unwrap_or_else(|| panic!("{wanted}:\n{text}"));
        let before = at("ip daddr 10.0.5.0/24 meta l4proto tcp th dport 443-443 accept");
        let reserved = at("ip daddr @no_internet goto refuse");
        assert!(before < reserved && reserved < at("ip daddr 0.0.0.0/0 meta l4proto tcp th dport 443-443 accept"));
        assert!(text.ends_with(&rule("goto refuse")), "{text}");
    }

    #[test]
    fn no_word_of_the_template_is_left() {
        let settings: Settings = toml::from_str("pool = \"198.19.0.0/20\"").unwrap();
        let text = text(&settings);
        for word in ["TABLE", "NAME", "GATEWAY", "RESOLVER", "POOL", "LOG", "NO_INTERNET"] {
            assert!(!text.contains(word), "{word}");
        }
        assert!(text.contains("dnat ip to 198.19.0.1:8053"), "{text}");
    }

    #[test]
    fn every_range_that_is_no_internet_is_one() {
        assert_eq!(no_internet().count(), NO_INTERNET.len());
    }
}
