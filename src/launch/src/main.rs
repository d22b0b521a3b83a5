//! `sandboxd-launch`: the half of sandboxd that holds privilege.
//!
//! Root, one thread, no state of its own. It takes requests ([`wire::launch`]) from the service's uid only, checks
//! every field against its configuration, and carries each out in a child. What it does not do: parse HTTP, image
//! manifests or anything that a sandbox says.
//!
//! | module | what it is |
//! |---|---|
//! | `serve`, `connection`, `work` | accept, one child for each request, what the child does |
//! | `config`, `plan` | what is allowed, and the check of every request |
//! | `store`, `remove` | the state directory, and deleting beneath it |
//! | `container`, `executor`, `rootfs`, `mount`, `idmap`, `cgroup`, `spec` | a sandbox |
//! | `oci`, `gvisor` | crun, runc and runsc in libcontainer's place |
//! | `quota`, `measure` | what a session may use of the disk, and what it uses |
//! | `net` | its network, and the packet filter |
//! | `subprocess` | work in a child that reports back |
//! | `unpack`, `layer`, `blob` | layer blobs, in a process without privilege |
//! | `pack`, `archive`, `frame` | layers as archives, likewise: the one that it came as, or another |
//! | `bootstrap` | recipes of local bases |
//! | `log` | what nobody else is told |
//! | `fail` | where chaos tests kill the launcher |
//! | `fuzzing` | what the fuzz targets call; in no program |
//! | `sys` | all unsafe |

mod archive;
mod blob;
mod bootstrap;
mod caches;
mod cgroup;
mod config;
mod connection;
mod container;
mod cpuset;
mod error;
mod executor;
mod fail;
mod frame;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
mod gvisor;
mod idmap;
mod layer;
mod log;
mod measure;
mod mount;
mod net;
mod oci;
mod pack;
mod plan;
mod quota;
mod remove;
mod rootfs;
mod serve;
mod spec;
mod store;
mod subprocess;
mod sys;
mod unpack;
mod work;

use std::error::Error;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use rustix::fs::{Gid, Mode, Uid};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use config::Config;
use wire::journal::Priority;
use work::Host;

/// Connections that wait to be accepted.
const BACKLOG: i32 = 256;
/// First descriptor that systemd passes, sd_listen_fds(3).
const FIRST_INHERITED: i32 = 3;

type Outcome<T> = Result<T, Box<dyn Error>>;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            log::say(Priority::Error, &one_line(error.as_ref()));
            ExitCode::FAILURE
        }
    }
}

fn run() -> Outcome<()> {
    if fail::arm()? {
        return Ok(());
    }
    let Some(path) = arguments()? else {
        println!("sandboxd-launch {}\nusage: sandboxd-launch --config FILE", env!("CARGO_PKG_VERSION"));
        return Ok(());
    };
    let config = Config::load(&path)?;
    rustix::process::umask(Mode::from_raw_mode(0o022));
    let inherited = inherited_listener()?;
    let reserved = sys::reserve_low_fds()?;
    let store = store::Store::open(&config)?;
    let cgroups = cgroup::CgroupRoot::open(&config)?;
    store.sweep_staged(None)?;
    store.sweep_frames()?;
    store.discard_bootstraps(None)?;
    cgroups.sweep()?;
    if let Err(failure) = net::sweep(config.network.as_ref(), &cgroups) {
        // Sessions without a network need none of it; one with a network is told the same.
        log::say(Priority::Error, &format!("sandboxes have no network: {}", one_line(&failure)));
    }
    let signals = sys::signal_fd(&[libc::SIGTERM, libc::SIGINT])?;
    let listener = match inherited {
        Some(listener) => listener,
        None => bind(&config)?,
    };
    report_limits(&config, &cgroups);
    let quotas = quota::Quotas::look(&config, &store);
    quotas.report();
    let host = serve::Server::new(Host { config, store, cgroups, quotas }, listener, signals).run()?;
    net::end(host.config.network.as_ref(), &host.cgroups)?;
    drop(reserved);
    Ok(())
}

/// The configuration file that the command line names; none if it asks for help.
fn arguments() -> Outcome<Option<PathBuf>> {
    let mut arguments = std::env::args_os().skip(1);
    match (arguments.next(), arguments.next(), arguments.next()) {
        (Some(flag), Some(path), None) if flag == "--config" => Ok(Some(path.into())),
        (Some(flag), None, None) if flag == "--help" || flag == "--version" => Ok(None),
        _ => Err("usage: sandboxd-launch --config FILE".into()),
    }
}

/// The socket that systemd passed (`LISTEN_FDS`), if it was meant for this process.
fn inherited_listener() -> Outcome<Option<OwnedFd>> {
    let own = std::process::id().to_string();
    let meant = std::env::var("LISTEN_PID").is_ok_and(|pid| pid == own);
    let count = std::env::var("LISTEN_FDS").ok();
    // libcontainer would pass as many descriptors on.
    sys::forget_environment(&["LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES"]);
    match count.as_deref() {
        Some("1") if meant => Ok(Some(sys::move_up(&sys::inherited_fd(FIRST_INHERITED)?)?)),
        Some(count) if meant => Err(format!("LISTEN_FDS={count}: one socket was expected").into()),
        _ => Ok(None),
    }
}

/// Listen at the configured path, which only the service may connect to.
fn bind(config: &Config) -> Outcome<OwnedFd> {
    let path: &Path = &config.socket;
    let say = |what: &str, error: rustix::io::Errno| format!("{what} {}: {error}", path.display());
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    let address = SocketAddrUnix::new(path).map_err(|error| say("bind", error))?;
    if rustix::net::connect(&socket, &address).is_ok() {
        return Err(format!("bind {}: another launcher listens there", path.display()).into());
    }
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    // Made beside its place and moved there when it is the service's and listens: whoever finds it can connect.
    let fresh = path.with_extension("new");
    match rustix::fs::unlink(&fresh) {
        Ok(()) | Err(rustix::io::Errno::NOENT) => {}
        Err(error) => return Err(say("replace", error).into()),
    }
    let address = SocketAddrUnix::new(&fresh).map_err(|error| say("bind", error))?;
    rustix::net::bind(&socket, &address).map_err(|error| say("bind", error))?;
    rustix::fs::chown(&fresh, Some(Uid::from_raw(config.service_uid)), Some(Gid::from_raw(config.service_gid)))
        .and_then(|()| rustix::fs::chmod(&fresh, Mode::from_raw_mode(0o600)))
        .map_err(|error| say("give to the service", error))?;
    rustix::net::listen(&socket, BACKLOG).map_err(|error| say("listen at", error))?;
    rustix::fs::rename(&fresh, path).map_err(|error| say("replace", error))?;
    Ok(socket)
}

/// Say once, at start, which limits this host does not enforce.
fn report_limits(config: &Config, cgroups: &cgroup::CgroupRoot) {
    let missing: Vec<&str> =
        ["cpu", "memory", "pids"].into_iter().filter(|name| !cgroups.controllers().contains(name)).collect();
    if !missing.is_empty() {
        let then = match config.limits {
            config::LimitsPolicy::Enforce => "plans that limit them are not started",
            config::LimitsPolicy::BestEffort => "limits = \"best-effort\": they are NOT ENFORCED",
        };
        log::say(Priority::Warning, &format!("no cgroup controller for {} here; {then}", missing.join(", ")));
    }
    if !cgroups.controllers().contains(&"cpuset") {
        log::say(
            Priority::Warning,
            "no cgroup controller for cpuset here; sandboxes see every CPU, whatever they may use",
        );
    }
}

fn one_line(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        let words = error.to_string();
        if !text.contains(&words) {
            text.push_str(": ");
            text.push_str(&words);
        }
        source = error.source();
    }
    text
}
