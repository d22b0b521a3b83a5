//! What a build does, as data: commands, the sandbox user, packages; each step one layer.
//!
//! The scripts are fixed text; whatever the operator wrote reaches them as an argument of its own. A layer's name is
//! the digest of its parent and of what the step does, so that equal beginnings of builds share layers.

use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use wire::id::{InvalidId, LayerId};

use crate::catalog::{Definition, PackageManager};

use super::VENV;
use super::record::hex;
use super::settings::Account;

/// Raised when a script changes what it makes.
const VERSION: &str = "sandboxd-build-v2";

/// Before every step: what package managers fetch goes to the caches that the launcher mounts, not into the layer. One
/// place for each who writes there: pip leaves a cache alone that is somebody else's.
const CACHES: &str = r#"
cache=/var/cache/sandboxd-build
release=$(. /etc/os-release 2>/dev/null && echo "${ID:-linux}-${VERSION_CODENAME:-${VERSION_ID:-0}}" | tr -c 'a-z0-9.\n-' _) || release=linux
apt=$cache/apt/$release
if mkdir -p "$apt/archives/partial" "$apt/lists/partial" 2>/dev/null; then
    { printf 'Dir::Cache "%s";\nAPT::Keep-Downloaded-Packages "true";\nBinary::apt::APT::Keep-Downloaded-Packages "true";\n' "$apt"
      [ -z "${SSL_CERT_FILE:-}" ] || printf 'Acquire::https::CaInfo "%s";\n' "$SSL_CERT_FILE"
    } > "$apt/apt.conf" && export APT_CONFIG="$apt/apt.conf"
fi
if mkdir -p "$cache/pip/root" "$cache/pip/uv" "$cache/npm/root" 2>/dev/null; then
    export PIP_CACHE_DIR="$cache/pip/root" UV_CACHE_DIR="$cache/pip/uv" UV_LINK_MODE=copy npm_config_cache="$cache/npm/root"
    unset PIP_NO_CACHE_DIR UV_NO_CACHE
fi
[ -z "${SSL_CERT_FILE:-}" ] || export CARGO_HTTP_CAINFO="$SSL_CERT_FILE"
"#;

/// `$1` is the operator's command. What it leaves in /tmp nobody would ever see: sessions have one of their own.
const COMMAND: &str = r#"
/bin/sh -c "$1" || exit $?
rm -rf /tmp/* /tmp/.[!.]* /tmp/..?*
"#;

/// `$1` name, `$2` uid, `$3` gid, `$4` the virtualenv.
const USER: &str = r#"
set -eu
name=$1 uid=$2 gid=$3 venv=$4 home=/home/$1
die() { echo "$*" >&2; exit 1; }
[ -e /etc/passwd ] || : > /etc/passwd
[ -e /etc/group ] || : > /etc/group
if ! grep -q "^$name:[^:]*:$uid:$gid:" /etc/passwd; then
    if grep -q -e "^$name:" -e "^[^:]*:[^:]*:$uid:" /etc/passwd; then
        die "the base has another account called $name or with the id $uid"
    fi
    shell=/bin/sh
    if [ -x /bin/bash ]; then shell=/bin/bash; fi
    echo "$name:x:$uid:$gid:sandbox user:$home:$shell" >> /etc/passwd
    if ! grep -q "^[^:]*:[^:]*:$gid:" /etc/group; then echo "$name:x:$gid:" >> /etc/group; fi
    if [ -e /etc/shadow ]; then echo "$name:!:19000:0:99999:7:::" >> /etc/shadow; fi
fi
mkdir -p "$home"
if [ -d /etc/skel ]; then cp -R /etc/skel/. "$home"; fi
chown -R "$uid:$gid" "$home"
chmod 755 "$home"
if command -v python3 >/dev/null; then
    if python3 -m venv --system-site-packages "$venv"; then
        chown -R "$uid:$gid" "$venv"
    else
        rm -rf "$venv"
        echo "no virtualenv: Python's venv module is missing (Debian: apt-get install python3-venv)"
    fi
fi
"#;

/// `$1` uid, `$2` gid, `$3` home, `$4` the virtualenv, then the packages. Installed as the sandbox user, who owns the virtualenv.
const PIP: &str = r#"
set -eu
uid=$1 gid=$2 home=$3 venv=$4
shift 4
if ! "$venv/bin/python" -c 'import pip' 2>/dev/null; then
    echo "packages need Python and its venv module in the base or from setup_commands (Debian: apt-get install python3 python3-venv)" >&2
    exit 1
fi
own=$cache/pip/$uid
if mkdir -p "$own" 2>/dev/null && chown "$uid:$gid" "$own"; then export PIP_CACHE_DIR="$own"; else export PIP_NO_CACHE_DIR=1; fi
export PATH="$venv/bin:$PATH" VIRTUAL_ENV="$venv" HOME="$home"
exec "$venv/bin/python" -c '
import os, sys
uid, gid = int(sys.argv[1]), int(sys.argv[2])
os.setgroups([])
os.setgid(gid)
os.setuid(uid)
os.umask(0o022)
os.execv(sys.executable, [sys.executable, "-m", "pip", "install", "--no-input", "--disable-pip-version-check", "--progress-bar", "off", "--", *sys.argv[3:]])
' "$uid" "$gid" "$@"
"#;

/// The packages are the arguments.
const APT_INSTALL: &str = r#"
set -eu
# The indexes are kept as well: what has not changed is not fetched again.
if [ -n "${APT_CONFIG:-}" ]; then
    printf 'Dir::State::Lists "%s";\n' "$apt/lists" | cat "$APT_CONFIG" - > "$apt/install.conf"
    export APT_CONFIG="$apt/install.conf"
fi
apt-get update
# Names are names: what is no package is not a pattern for others either.
apt-get install -y --no-install-recommends -o APT::Cmd::Pattern-Only=true -- "$@"
rm -rf /var/lib/apt/lists/*
"#;

/// The packages are the arguments.
const NPM: &str = r#"
set -eu
command -v npm >/dev/null || { echo "packages need npm in the base or from setup_commands" >&2; exit 1; }
npm install --global --no-fund --no-audit --no-update-notifier -- "$@"
rm -rf /tmp/* /tmp/.[!.]* /tmp/..?*
"#;

/// The packages are the arguments.
const CARGO: &str = r#"
set -eu
command -v cargo >/dev/null || { echo "packages need cargo in the base or from setup_commands" >&2; exit 1; }
# Sources and what is compiled of them are kept; toolchain and settings are the base's.
own=$cache/cargo
if [ -d "$own" ] && mkdir -p "$own/home/registry" "$own/target" 2>/dev/null; then
    home=${CARGO_HOME:-$HOME/.cargo}
    mkdir -p "$home"
    rm -rf "$home/registry"
    ln -s "$own/home/registry" "$home/registry"
    trap 'rm -f "$home/registry"' EXIT
    export CARGO_TARGET_DIR="$own/target"
fi
cargo install --locked --root /usr/local -- "$@"
"#;

/// One step.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Step {
    /// What it is called in logs and errors.
    pub(super) title: String,
    /// Program and arguments.
    pub(super) argv: Vec<String>,
    /// What it does, for the name of its layer.
    identity: Value,
}

impl Step {
    /// The name of the layer that this step makes on `parent`.
    pub(super) fn layer(&self, parent: &LayerId) -> Result<LayerId, InvalidId> {
        let text = self.identity.to_string();
        let digest = Sha256::new().chain_update(VERSION).chain_update(parent.as_str()).chain_update(text).finalize();
        LayerId::parse(&hex(&digest))
    }
}

/// The steps of a build, in order.
pub(super) fn steps(definition: &Definition, account: &Account) -> Vec<Step> {
    let count = definition.setup_commands.len();
    let commands = definition.setup_commands.iter().enumerate().map(|(index, command)| Step {
        title: format!("setup command {} of {count} ({})", index + 1, shortened(command)),
        argv: shell(&format!("{CACHES}{COMMAND}"), std::slice::from_ref(command)),
        identity: json!({"setup_command": command}),
    });
    let mut steps: Vec<Step> = commands.collect();
    let packages = (!definition.packages.is_empty()).then(|| packages(definition, account));
    match definition.package_manager {
        // pip installs into the user's virtualenv; the others may bring the Python that makes it.
        PackageManager::Pip => {
            steps.push(user(account));
            steps.extend(packages);
        }
        PackageManager::Npm | PackageManager::Apt | PackageManager::Cargo => {
            steps.extend(packages);
            steps.push(user(account));
        }
    }
    steps
}

/// The digest of a whole definition: the tag of its image.
pub(super) fn tag(definition: &Definition, account: &Account) -> String {
    let text = json!({"definition": definition, "uid": account.uid, "gid": account.gid}).to_string();
    hex(&Sha256::new().chain_update(VERSION).chain_update(text).finalize())
}

fn user(account: &Account) -> Step {
    let (uid, gid) = (account.uid.to_string(), account.gid.to_string());
    let arguments = [account.name.clone(), uid, gid, VENV.to_owned()];
    Step {
        title: format!("sandbox user {}", account.name),
        argv: shell(USER, &arguments),
        identity: json!({"user": account.name, "uid": account.uid, "gid": account.gid}),
    }
}

fn packages(definition: &Definition, account: &Account) -> Step {
    let (manager, packages) = (definition.package_manager, &definition.packages);
    let argv = match manager {
        PackageManager::Pip => {
            let mut arguments = vec![account.uid.to_string(), account.gid.to_string(), account.home(), VENV.to_owned()];
            arguments.extend(packages.iter().cloned());
            shell(&format!("{CACHES}{PIP}"), &arguments)
        }
        PackageManager::Apt => shell(&format!("{CACHES}{APT_INSTALL}"), packages),
        PackageManager::Npm => shell(&format!("{CACHES}{NPM}"), packages),
        PackageManager::Cargo => shell(&format!("{CACHES}{CARGO}"), packages),
    };
    Step {
        title: format!("{manager} packages ({})", shortened(&packages.join(" "))),
        argv,
        identity: json!({"packages": packages, "manager": manager, "uid": account.uid}),
    }
}

fn shell(script: &str, arguments: &[String]) -> Vec<String> {
    let fixed = ["/bin/sh", "-c", script, "sh"].map(str::to_owned);
    fixed.into_iter().chain(arguments.iter().cloned()).collect()
}

fn shortened(text: &str) -> String {
    let short: String = text.chars().take(80).collect();
    if short.len() < text.len() { format!("{short}…") } else { short }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    fn definition(commands: &[&str], packages: &[&str]) -> Definition {
        Definition {
            base: "debian-bookworm".to_owned(),
            setup_commands: commands.iter().map(|&c| c.to_owned()).collect(),
            packages: packages.iter().map(|&p| p.to_owned()).collect(),
            package_manager: PackageManager::Pip,
            env_vars: BTreeMap::new(),
        }
    }

    fn layers(definition: &Definition) -> Vec<LayerId> {
        let mut parent = LayerId::parse(&"0".repeat(64)).unwrap();
        let steps = steps(definition, &Account::default());
        steps
            .iter()
            .map(|step| {
                parent = step.layer(&parent).unwrap();
                parent.clone()
            })
            .collect()
    }

    #[test]
    fn equal_beginnings_share_layers_and_any_change_makes_new_ones() {
        let one = layers(&definition(&["a", "b"], &["x"]));
        let more = layers(&definition(&["a", "b"], &["x", "y"]));
        assert_eq!((one.len(), &one[..3]), (4, &more[..3]));
        assert_ne!(one[3], more[3]);
        let other = layers(&definition(&["a", "c"], &["x"]));
        assert_eq!(one[0], other[0]);
        assert!(one[1..].iter().zip(&other[1..]).all(|(a, b)| a != b));
    }

    #[test]
    fn the_tag_is_of_the_whole_definition() {
        let account = Account::default();
        let mut changed = definition(&["a"], &["x"]);
        let tags: Vec<String> = [
            tag(&changed, &account),
            tag(&definition(&["a"], &["y"]), &account),
            tag(&changed, &Account { uid: 7, ..account.clone() }),
            {
                changed.env_vars.insert("A".into(), "1".into());
                tag(&changed, &account)
            },
        ]
        .into();
        for (index, tag) in tags.iter().enumerate() {
            assert!(!tags[..index].contains(tag), "{index}");
        }
    }

    #[test]
    fn every_script_is_one_that_a_shell_reads() {
        for manager in [PackageManager::Pip, PackageManager::Npm, PackageManager::Apt, PackageManager::Cargo] {
            let definition = Definition { package_manager: manager, ..definition(&["true"], &["x"]) };
            for step in steps(&definition, &Account::default()) {
                let read =
                    std::process::Command::new(&step.argv[0]).args(["-n", "-c", &step.argv[2]]).output().unwrap();
                let said = String::from_utf8_lossy(&read.stderr).into_owned();
                assert!(read.status.success() && said.is_empty(), "{manager}, {}: {said}", step.title);
            }
        }
    }

    #[test]
    fn what_the_operator_wrote_is_an_argument_never_part_of_a_script() {
        let hostile = "$(touch /tmp/x); `id`";
        for step in steps(&definition(&[hostile], &[hostile]), &Account::default()) {
            assert!(!step.argv[2].contains("touch"), "{}", step.argv[2]);
        }
    }
}
