//! The configuration file that packages install, against what the program knows.

use std::collections::BTreeSet;
use std::path::Path;

use super::{Raw, Settings, UnixAuth, load};

const INSTALLED: &str = include_str!("../../../../packaging/sandboxd.toml");
const TOKEN: &str = "0123456789abcdef0123456789abcdef";
/// Settings that have no default, and must not be empty.
const WITHOUT: [&str; 2] = ["token", "runtimes"];

/// A line that is a setting, without the # before it: its name and itself.
fn setting(line: &str) -> Option<(&str, &str)> {
    let line = line.strip_prefix('#').unwrap_or(line);
    let (name, _) = line.split_once(" = ")?;
    name.bytes().all(|b| b.is_ascii_lowercase() || b == b'_').then_some((name, line))
}

fn read(text: &str) -> (Settings, Vec<&'static str>) {
    let environment = [("SANDBOXD_TOKEN".to_owned(), TOKEN.to_owned())];
    let raw = Raw::gather(Path::new("sandboxd.toml"), text, environment).unwrap();
    (load(&raw).unwrap(), raw.names())
}

#[test]
fn it_has_every_setting_and_no_other() {
    let (_, known) = read("");
    let shown: BTreeSet<&str> = INSTALLED.lines().filter_map(setting).map(|(name, _)| name).collect();
    assert_eq!(shown, known.into_iter().collect());
}

#[test]
fn what_it_shows_is_the_default() {
    let shown: Vec<&str> = INSTALLED
        .lines()
        .filter_map(setting)
        .filter_map(|(name, line)| (!WITHOUT.contains(&name)).then_some(line))
        .collect();
    let (shown, _) = read(&shown.join("\n"));
    let (default, _) = read("");
    // The one that packages set: there the group of the unix socket is theirs.
    assert_eq!((shown.unix_auth, default.unix_auth), (UnixAuth::Peer, UnixAuth::Token));
    assert_eq!(format!("{:#?}", Settings { unix_auth: UnixAuth::Token, ..shown }), format!("{default:#?}"));
}

#[test]
fn it_is_valid_as_it_is() {
    let (settings, _) = read(INSTALLED);
    assert_eq!(settings.unix_auth, UnixAuth::Peer);
}
