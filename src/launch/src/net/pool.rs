//! Addresses of sandboxes: a range of the operator's, and in it one for each slot, so that nothing has to be stored.

use std::fmt;
use std::net::Ipv4Addr;
use std::str::FromStr;

use serde::Deserialize;

/// A range of IPv4 addresses, `ADDRESS/BITS`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct Range {
    first: u32,
    prefix: u8,
}

/// It is no range.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no range of IPv4 addresses such as 198.19.0.0/20, its lower bits 0")]
pub struct NoRange(String);

impl Range {
    /// The range of this first address whose first `prefix` bits are the same in all of it; none if other bits are set.
    #[must_use]
    pub fn new(first: Ipv4Addr, prefix: u8) -> Option<Self> {
        let first = u32::from(first);
        let rest = u32::MAX.checked_shr(u32::from(prefix)).unwrap_or(0);
        (prefix <= 32 && first & rest == 0).then_some(Self { first, prefix })
    }

    /// How many addresses it has.
    #[must_use]
    pub fn len(self) -> u64 {
        1 << (32 - u32::from(self.prefix))
    }

    fn last(self) -> u32 {
        self.first | u32::MAX.checked_shr(u32::from(self.prefix)).unwrap_or(0)
    }

    /// Whether all of `other` is in it.
    #[must_use]
    pub fn contains(self, other: Self) -> bool {
        self.first <= other.first && other.last() <= self.last()
    }

    /// What sandboxes see of the host: the second address.
    #[must_use]
    pub fn gateway(self) -> Ipv4Addr {
        Ipv4Addr::from(self.first + 1)
    }

    /// The address of the sandbox in slot `slot`.
    #[must_use]
    pub fn address(self, slot: u32) -> Ipv4Addr {
        Ipv4Addr::from(self.first + 1 + slot)
    }
}

impl FromStr for Range {
    type Err = NoRange;

    fn from_str(text: &str) -> Result<Self, NoRange> {
        let parsed = || {
            let (address, prefix) = text.split_once('/')?;
            Self::new(address.parse().ok()?, prefix.parse().ok()?)
        };
        parsed().ok_or_else(|| NoRange(text.chars().take(64).collect()))
    }
}

impl TryFrom<String> for Range {
    type Error = NoRange;

    fn try_from(text: String) -> Result<Self, NoRange> {
        text.parse()
    }
}

impl fmt::Display for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", Ipv4Addr::from(self.first), self.prefix)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(text: &str) -> Range {
        text.parse().unwrap()
    }

    #[test]
    fn ranges_are_read_and_compared() {
        assert_eq!(range("198.19.0.0/20").to_string(), "198.19.0.0/20");
        assert_eq!(
            (range("198.19.0.0/20").len(), range("0.0.0.0/0").len(), range("1.2.3.4/32").len()),
            (4096, 1 << 32, 1)
        );
        assert!(range("10.0.0.0/8").contains(range("10.255.255.255/32")));
        assert!(!range("10.0.0.0/8").contains(range("8.0.0.0/6")));
        assert!(range("0.0.0.0/0").contains(range("255.255.255.255/32")));
        for bad in ["", "10.0.0.0", "10.0.0.1/8", "10.0.0.0/33", "10.0.0.0/-1", "::/0", "10.0.0.0/8/8"] {
            assert!(bad.parse::<Range>().is_err(), "{bad}");
        }
    }

    #[test]
    fn every_slot_has_an_address_in_the_pool() {
        let pool = range("198.19.0.0/20");
        assert_eq!(
            (pool.gateway(), pool.address(1), pool.address(4094)),
            ([198, 19, 0, 1].into(), [198, 19, 0, 2].into(), [198, 19, 15, 255].into())
        );
    }
}
