//! The host ids of sandboxes: nobody else's, and written down so that nobody else is given them.

use std::path::Path;

use wire::api::{Finding, Level};
use wire::launch::IDS_PER_SANDBOX;

use super::{file, fine, mended};
use crate::runtime::About;

/// Whose they are in `/etc/subuid`: of no account.
const OWNER: &str = "sandboxd-ids";
/// The launcher's defaults.
const ID_BASE: u64 = 0x7000_0000;
const SLOTS: u64 = 4000;
/// Conflicts that one finding names.
const NAMED: usize = 3;

/// Where accounts and their ranges are written.
#[derive(Debug, Default)]
struct Accounts {
    passwd: String,
    group: String,
    subuid: String,
    subgid: String,
}

/// Look, with the range that the launcher names, else that of its configuration.
pub fn look(about: Option<&About>, launch_file: &str) -> Finding {
    let (base, slots) =
        about.map_or_else(|| configured(launch_file), |about| (about.id_base.into(), about.slots.into()));
    let etc = |name: &str| file(&Path::new("/etc").join(name));
    let accounts =
        Accounts { passwd: etc("passwd"), group: etc("group"), subuid: etc("subuid"), subgid: etc("subgid") };
    judge(base, slots * u64::from(IDS_PER_SANDBOX), &accounts)
}

fn configured(text: &str) -> (u64, u64) {
    let table: toml::Table = text.parse().unwrap_or_default();
    let number = |name: &str, default: u64| {
        let value = table.get(name).and_then(toml::Value::as_integer);
        value.and_then(|value| u64::try_from(value).ok()).unwrap_or(default)
    };
    (number("id_base", ID_BASE), number("slots", SLOTS).min(u64::from(u32::MAX)))
}

fn judge(first: u64, count: u64, accounts: &Accounts) -> Finding {
    let last = first + count.saturating_sub(1);
    let mut taken = Vec::new();
    for (file, text) in [("passwd", &accounts.passwd), ("group", &accounts.group)] {
        let ids = text.lines().filter_map(|line| {
            let mut fields = line.split(':');
            let (name, id) = (fields.next()?, fields.nth(1)?.parse::<u64>().ok()?);
            (first..=last).contains(&id).then(|| format!("/etc/{file}: {name} has {id}"))
        });
        taken.extend(ids);
    }
    let mut reserved = 0;
    for (file, text) in [("subuid", &accounts.subuid), ("subgid", &accounts.subgid)] {
        for (name, from, number) in text.lines().filter_map(range) {
            if name == OWNER {
                reserved += usize::from(from == first && number == count);
            } else if number > 0 && from <= last && from.saturating_add(number) > first {
                taken.push(format!("/etc/{file}: {name} has {from} to {}", from.saturating_add(number - 1)));
            }
        }
    }
    if !taken.is_empty() {
        let more = if taken.len() > NAMED { format!(" and {} more", taken.len() - NAMED) } else { String::new() };
        taken.truncate(NAMED);
        let message = format!("sandboxes' {first} to {last} are also others': {}{more}", taken.join("; "));
        return mended(
            "subordinate ids",
            Level::Error,
            &message,
            "take them from the others, or, before there are sessions, choose another id_base in launch.toml",
        );
    }
    if reserved < 2 {
        let message = format!(
            "{first} to {last} are nobody else's, but not written down for {OWNER}: useradd or podman may give them away"
        );
        return mended("subordinate ids", Level::Warning, &message, "/usr/libexec/sandboxd/reserve-ids add");
    }
    fine("subordinate ids", &format!("{first} to {last} are reserved"))
}

fn range(line: &str) -> Option<(&str, u64, u64)> {
    let mut fields = line.split(':');
    let name = fields.next()?;
    Some((name, fields.next()?.parse().ok()?, fields.next()?.trim().parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn accounts(change: impl Fn(&mut Accounts)) -> Accounts {
        let own = "sandboxd-ids:1000000:65536\nada:100000:65536\n".to_owned();
        let mut accounts = Accounts {
            passwd: "root:x:0:0::/root:/bin/sh\nnobody:x:65534:65534::/:/bin/false\n".into(),
            group: "root:x:0:\n".into(),
            subuid: own.clone(),
            subgid: own,
        };
        change(&mut accounts);
        accounts
    }

    #[test]
    fn ids_are_reserved_free_or_somebody_elses() {
        let level = |accounts: &Accounts| judge(1_000_000, 65_536, accounts).level;
        assert_eq!(level(&accounts(|_| ())), Level::Ok);
        assert_eq!(level(&accounts(|all| all.subgid.clear())), Level::Warning);
        assert_eq!(level(&accounts(|all| all.subuid = "sandboxd-ids:1000000:100\n".into())), Level::Warning);
        assert_eq!(level(&accounts(|all| all.passwd.push_str("x:x:1000001:1::/:/bin/sh\n"))), Level::Error);
        assert_eq!(level(&accounts(|all| all.group.push_str("x:x:1065535:\n"))), Level::Error);
        assert_eq!(level(&accounts(|all| all.group.push_str("x:x:1065536:\nodd line\n"))), Level::Ok);
        assert_eq!(level(&accounts(|all| all.subuid.push_str("eve:900000:100001\n"))), Level::Error);
        assert_eq!(level(&accounts(|all| all.subuid.push_str("eve:900000:100000\neve:5:0\n"))), Level::Ok);
        assert_eq!(level(&accounts(|all| all.subgid.push_str("eve:18446744073709551615:9\n"))), Level::Ok);
    }

    #[test]
    fn the_range_is_that_of_the_configuration_or_the_default() {
        assert_eq!(configured("id_base = 7_000\nslots = 3\n"), (7000, 3));
        for text in ["", "nonsense", "id_base = -1"] {
            assert_eq!(configured(text), (ID_BASE, SLOTS));
        }
    }
}
