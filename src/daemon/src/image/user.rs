//! Who an image runs as: its `User`, resolved in its own `/etc/passwd` and `/etc/group`.
//!
//! Both files come from strangers: they are read bounded, as regular files only, and whatever they say decides
//! nothing but the ids inside the sandbox.

use std::io;
use std::os::fd::OwnedFd;

use serde::{Deserialize, Serialize};
use wire::launch::IDS_PER_SANDBOX;

use super::store::{self, Found};

const MAX_FILE: u64 = 1024 * 1024;
const MAX_HOME: usize = 256;

/// A user inside a sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct User {
    /// Its id.
    pub(super) uid: u32,
    /// Its group.
    pub(super) gid: u32,
    /// Its home directory.
    pub(super) home: String,
}

/// A `User` cannot be resolved.
#[derive(Debug, thiserror::Error)]
pub enum UserError {
    /// Nothing of that name.
    #[error("{what} {name:?} is not in the image's {file}")]
    Unknown {
        /// `user` or `group`.
        what: &'static str,
        /// As the image names it.
        name: String,
        /// Where it was looked for.
        file: &'static str,
    },
    /// An id that no sandbox has.
    #[error("id {id} is out of range; allowed: 0 to {max}", max = IDS_PER_SANDBOX - 1)]
    Range {
        /// Which.
        id: String,
    },
    /// The file cannot be read.
    #[error("read {file} of the image")]
    Read {
        /// Which.
        file: &'static str,
        /// Why.
        #[source]
        source: io::Error,
    },
}

/// Resolve `spec` (OCI image configuration, `User`: `user`, `uid`, `user:group`, `uid:gid`; empty: root)
/// in the image made of `layers`, topmost first.
pub(super) fn resolve(spec: &str, layers: &[OwnedFd]) -> Result<User, UserError> {
    let (user, group) = match spec.split_once(':') {
        Some((user, group)) => (user, Some(group)),
        None => (spec, None),
    };
    let user = if user.is_empty() { "0" } else { user };
    let passwd = read(layers, "/etc/passwd")?;
    let entry = find_account(&passwd, user);
    let uid = match (&entry, number(user)) {
        (Some(account), _) => account.id,
        (None, Some(id)) => id?,
        (None, None) => return Err(UserError::Unknown { what: "user", name: cut(user), file: "/etc/passwd" }),
    };
    let gid = match group.filter(|group| !group.is_empty()) {
        Some(group) => resolve_group(group, layers)?,
        None => entry.as_ref().map_or(0, |account| account.gid),
    };
    let home = entry.map_or_else(|| "/".to_owned(), |account| account.home);
    Ok(User { uid, gid, home })
}

fn resolve_group(group: &str, layers: &[OwnedFd]) -> Result<u32, UserError> {
    if let Some(id) = number(group) {
        return id;
    }
    let text = read(layers, "/etc/group")?;
    let named = text.lines().filter_map(|line| {
        let mut fields = line.split(':');
        (fields.next() == Some(group)).then(|| fields.nth(1).and_then(|id| number(id)?.ok())).flatten()
    });
    named.into_iter().next().ok_or_else(|| UserError::Unknown { what: "group", name: cut(group), file: "/etc/group" })
}

struct Account {
    id: u32,
    gid: u32,
    home: String,
}

/// The account of this name or, for a number, of this id (passwd(5)); lines that make no sense are skipped.
fn find_account(passwd: &str, user: &str) -> Option<Account> {
    let by_id = number(user).and_then(Result::ok);
    passwd.lines().find_map(|line| {
        let fields: Vec<&str> = line.splitn(7, ':').collect();
        let [name, _, id, gid, _, home, ..] = fields.as_slice() else { return None };
        let (id, gid) = (number(id)?.ok()?, number(gid)?.ok()?);
        let matches = by_id.map_or(*name == user, |wanted| wanted == id);
        matches.then(|| Account { id, gid, home: sane_home(home) })
    })
}

/// `None`: not a number. An error: a number that no sandbox has.
fn number(text: &str) -> Option<Result<u32, UserError>> {
    if text.is_empty() || !text.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let id = text.parse().ok().filter(|id| *id < IDS_PER_SANDBOX);
    Some(id.ok_or_else(|| UserError::Range { id: cut(text) }))
}

/// A home directory that can be put into an environment; else the root.
fn sane_home(home: &str) -> String {
    let plain = home.starts_with('/') && home.len() <= MAX_HOME && !home.contains(char::is_control);
    if plain { home.to_owned() } else { "/".to_owned() }
}

/// A file of the image; empty if there is none or it is not a regular file.
fn read(layers: &[OwnedFd], file: &'static str) -> Result<String, UserError> {
    let fail = |source| UserError::Read { file, source };
    match store::find(layers, file.trim_start_matches('/')).map_err(fail)? {
        Found::File(mut opened) => {
            let bytes = store::read_bounded(&mut opened, MAX_FILE).map_err(fail)?;
            Ok(String::from_utf8_lossy(&bytes).into_owned())
        }
        Found::Other | Found::Absent => Ok(String::new()),
    }
}

fn cut(text: &str) -> String {
    text.chars().take(64).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;
    use std::path::Path;

    fn layer(root: &Path, name: &str, passwd: Option<&str>) -> OwnedFd {
        let directory = root.join(name);
        std::fs::create_dir_all(directory.join("etc")).unwrap();
        if let Some(text) = passwd {
            std::fs::write(directory.join("etc/passwd"), text).unwrap();
        }
        std::fs::File::open(directory).unwrap().into()
    }

    const PASSWD: &str = "root:x:0:0:root:/root:/bin/sh\nbroken\nx:x:y:z:::\nnode:x:1000:1001::/home/node:/bin/sh\nbig:x:70000:0::/:/bin/sh\nodd:x:5:5::relative:\n";

    #[test]
    fn every_form_of_user() {
        let root = tempfile::tempdir().unwrap();
        let layers = [layer(root.path(), "a", Some(PASSWD))];
        std::fs::write(root.path().join("a/etc/group"), "root:x:0:\nstaff:x:50:\n").unwrap();
        let cases = [
            ("", 0, 0, "/root"),
            ("0", 0, 0, "/root"),
            ("node", 1000, 1001, "/home/node"),
            ("1000", 1000, 1001, "/home/node"),
            ("1000:7", 1000, 7, "/home/node"),
            ("node:staff", 1000, 50, "/home/node"),
            ("1234", 1234, 0, "/"),
            ("odd", 5, 5, "/"),
        ];
        for (spec, uid, gid, home) in cases {
            assert_eq!(resolve(spec, &layers).unwrap(), User { uid, gid, home: home.to_owned() }, "{spec:?}");
        }
        for bad in ["nobody", "big", "70000", "99999999999999", "node:none", "../x", "node:70000"] {
            assert!(resolve(bad, &layers).is_err(), "{bad}");
        }
    }

    #[test]
    fn upper_layers_and_whiteouts_win_and_links_are_not_followed() {
        let root = tempfile::tempdir().unwrap();
        let lower = layer(root.path(), "lower", Some(PASSWD));
        let upper = layer(root.path(), "upper", Some("node:x:7:8::/n:\n"));
        assert_eq!(resolve("node", &[upper, lower.try_clone().unwrap()]).unwrap().uid, 7);
        let empty = layer(root.path(), "empty", None);
        assert_eq!(resolve("node", &[empty, lower.try_clone().unwrap()]).unwrap().uid, 1000);

        let link = layer(root.path(), "link", None);
        symlink("/etc/passwd", root.path().join("link/etc/passwd")).unwrap();
        assert!(resolve("root", &[link, lower.try_clone().unwrap()]).is_err());

        let escape = layer(root.path(), "escape", None);
        std::fs::remove_dir(root.path().join("escape/etc")).unwrap();
        symlink("/etc", root.path().join("escape/etc")).unwrap();
        assert!(resolve("root", &[escape]).is_err());
    }

    #[test]
    fn a_huge_file_is_refused() {
        let root = tempfile::tempdir().unwrap();
        let layers = [layer(root.path(), "a", Some(&"x".repeat(1024 * 1024 + 1)))];
        assert!(matches!(resolve("node", &layers), Err(UserError::Read { .. })));
    }
}
