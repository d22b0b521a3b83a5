//! Layer blobs into the image store.
//!
//! What reads the archive is a child that has no privilege outside of itself: in a user namespace whose ids are the
//! fixed range that owns content on disk, its root directory is the layer's own, it has no network, no other
//! descriptor, and it cannot gain anything. What it has made gets its name only when the digest is right.

use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{Mode, OFlags};
use rustix::mount::{MountPropagationFlags, UnmountFlags};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Resource, Rlimit, Signal, setrlimit};
use rustix::thread::{CapabilitySet, CapabilitySets, UnshareFlags};
use wire::id::LayerId;
use wire::launch::{Answer, Compression};

use crate::config::Config;
use crate::error::{Failure, Result, Step};
use crate::frame::Recorder;
use crate::layer::{self, Caps};
use crate::mount::{self, LOCKED};
use crate::store::Store;
use crate::{idmap, subprocess, sys};

/// Address space of the child, in bytes: a zstd window of 128 MiB and everything else.
const MAX_MEMORY: u64 = 1 << 30;
/// Most descriptors that it has open: one for each directory on the way down when a layer is packed.
pub(crate) const MAX_FILES: u64 = 1024;
/// CPU seconds that the child has beyond its deadline, which the launch child keeps. The kernel counts them by its
/// tick, so as many as the deadline's could be over first, and the death would have no reason that anybody is told.
const CPU_AFTER_DEADLINE: u64 = 2;
/// Descriptors of the child.
const BLOB: i32 = 3;
const REPORT: i32 = 4;
const FRAME: i32 = 5;

/// Unpack `blob` as the layer `layer`. Done also if it exists.
///
/// # Errors
/// The blob is not what it should be, or too much of it, or a step failed; nothing is left.
pub fn unpack(
    config: &Config,
    store: &Store,
    layer: &LayerId,
    compression: Compression,
    blob: OwnedFd,
) -> Result<Answer> {
    if store.has_layer(layer) {
        return Ok(Answer::Unpacked { bytes: 0, entries: 0 });
    }
    let (name, dir) = store.stage(layer, config.first_id(0))?;
    let outcome = store.stage_frame(&name).and_then(|frame| {
        let answer = extract(config, layer, compression, (&blob, &frame), &dir)?;
        store.publish_frame(&name, layer)?;
        let published = store.publish(&store.layers, &name, layer)?;
        Ok((answer, published))
    });
    match outcome {
        Ok((answer, true)) => Ok(answer),
        Ok((_, false)) => {
            store.discard_staging(&name)?;
            Ok(Answer::Unpacked { bytes: 0, entries: 0 })
        }
        Err(failure) => {
            // The failure is what has to be known; what is left of the layer is swept at the next start.
            let _ = store.discard_staging(&name);
            Err(failure)
        }
    }
}

fn extract(
    config: &Config,
    layer: &LayerId,
    compression: Compression,
    (blob, frame): (&OwnedFd, &OwnedFd),
    dir: &OwnedFd,
) -> Result<Answer> {
    let what = format!("unpack layer {layer}");
    let caps = Caps { bytes: config.max_layer_bytes, entries: config.max_layer_entries };
    let place =
        Place { dir, attributes: LOCKED | libc::MOUNT_ATTR_NOEXEC, given: (blob, Some(frame)), writes: caps.bytes };
    confined(config, &what, &place, |blob, frame| {
        let recorder = frame.map(Recorder::new).transpose().step(|| "write down the frame of the archive")?;
        layer::extract(layer, compression, blob, caps, recorder)
    })
}

/// Where work on a layer is done.
pub(crate) struct Place<'a> {
    /// What is to be the root directory.
    pub dir: &'a OwnedFd,
    /// How it is mounted there.
    pub attributes: u64,
    /// The descriptors that the work has: the archive, and perhaps its frame ([`crate::frame`]).
    pub given: (&'a OwnedFd, Option<&'a OwnedFd>),
    /// Most bytes of a file that it writes.
    pub writes: u64,
}

/// Do `work` in a child without privilege that sees nothing but that place.
///
/// # Errors
/// The child cannot be made or confined, or what `work` fails with.
pub(crate) fn confined(
    config: &Config,
    what: &str,
    place: &Place<'_>,
    work: impl FnOnce(OwnedFd, Option<OwnedFd>) -> Result<Answer>,
) -> Result<Answer> {
    let tree = mount::clone_of(place.dir, place.attributes, None).step(|| format!("{what}: clone its mount"))?;
    let (ready, tell_ready) = pipe_with(PipeFlags::CLOEXEC).step(|| "make a pipe")?;
    let (go, tell_go) = pipe_with(PipeFlags::CLOEXEC).step(|| "make a pipe")?;
    let body = move |reporter: &OwnedFd| {
        enter_directory(config, &tree)?;
        sys::unshare(UnshareFlags::NEWUSER).step(|| "make a user namespace")?;
        rustix::io::write(&tell_ready, &[1]).step(|| "wait for the id mapping")?;
        if rustix::io::read(&go, &mut [0; 1]).step(|| "wait for the id mapping")? != 1 {
            return Err(Failure::new("wait for the id mapping: the launcher is gone"));
        }
        give_up_privilege(config, place.writes)?;
        keep_descriptors(place.given, reporter)?;
        let blob = sys::inherited_fd(BLOB).step(|| "take the blob")?;
        let frame = place.given.1.map(|_| sys::inherited_fd(FRAME)).transpose().step(|| "take the frame")?;
        let answer = work(blob, frame);
        let reporter = sys::inherited_fd(REPORT).step(|| "take the pipe for the report")?;
        subprocess::send(reporter, &answer.unwrap_or_else(Answer::from));
        sys::exit(0)
    };
    subprocess::run(what, None, body, |child| {
        let step = || format!("{what}: map its ids");
        if rustix::io::read(&ready, &mut [0; 1]).step(step)? == 1 {
            let path = format!("/proc/{}", child.pid.as_raw_nonzero());
            let proc_dir = rustix::fs::open(&path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
                .step(step)?;
            let ids = idmap::content(0, config.first_id(0));
            idmap::write_map(proc_dir.as_fd(), "uid_map", &ids)?;
            idmap::write_map(proc_dir.as_fd(), "gid_map", &ids)?;
            rustix::io::write(&tell_go, &[1]).step(step)?;
        }
        Ok(())
    })
}

/// Make the layer's directory this process's root, in namespaces that hold nothing else.
fn enter_directory(config: &Config, tree: &OwnedFd) -> Result<()> {
    let step = || "enter the layer's directory";
    sys::unshare(UnshareFlags::NEWNS | UnshareFlags::NEWNET | UnshareFlags::NEWIPC).step(|| "make namespaces")?;
    rustix::mount::mount_change("/", MountPropagationFlags::REC | MountPropagationFlags::PRIVATE).step(step)?;
    let place = mount::open_own(&config.runtime_dir.to_string_lossy())?;
    mount::attach(tree, place).step(step)?;
    rustix::process::fchdir(tree).step(step)?;
    rustix::process::pivot_root(".", ".").step(step)?;
    rustix::mount::unmount(".", UnmountFlags::DETACH).step(step)?;
    rustix::process::chdir("/").step(step)
}

fn give_up_privilege(config: &Config, writes: u64) -> Result<()> {
    let step = || "give up privilege";
    let (user, group) = (rustix::process::Uid::ROOT, rustix::process::Gid::ROOT);
    rustix::thread::set_thread_groups(&[]).step(step)?;
    rustix::thread::set_thread_res_gid(group, group, group).step(step)?;
    rustix::thread::set_thread_res_uid(user, user, user).step(step)?;
    let keep = CapabilitySet::CHOWN
        | CapabilitySet::DAC_OVERRIDE
        | CapabilitySet::FOWNER
        | CapabilitySet::FSETID
        | CapabilitySet::SETFCAP;
    let sets = CapabilitySets { effective: keep, permitted: keep, inheritable: CapabilitySet::empty() };
    rustix::thread::set_capabilities(None, sets).step(step)?;
    rustix::thread::set_no_new_privs(true).step(step)?;
    // A change of user takes this away (prctl(2)); it ends with the launch child, also when that is killed.
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL)).step(step)?;
    // Only in case that nobody ends it at its deadline, which says so: never before it.
    let seconds = u64::from(config.unpack_timeout_seconds) + CPU_AFTER_DEADLINE;
    for (resource, most) in [
        (Resource::As, MAX_MEMORY),
        (Resource::Core, 0),
        (Resource::Cpu, seconds),
        (Resource::Fsize, writes),
        (Resource::Nofile, MAX_FILES),
    ] {
        setrlimit(resource, Rlimit { current: Some(most), maximum: Some(most) }).step(|| "set resource limits")?;
    }
    Ok(())
}

/// The blob as 3, the pipe for the report as 4, the frame as 5 if there is one, and no other.
fn keep_descriptors((blob, frame): (&OwnedFd, Option<&OwnedFd>), reporter: &OwnedFd) -> Result<()> {
    let step = || "place descriptors";
    sys::place_fd(blob.as_fd(), BLOB).step(step)?;
    sys::place_fd(reporter.as_fd(), REPORT).step(step)?;
    if let Some(frame) = frame {
        sys::place_fd(frame.as_fd(), FRAME).step(step)?;
    }
    sys::close_from(if frame.is_some() { 6 } else { 5 });
    Ok(())
}
