//! `sandboxd prepare`: every image of the configuration made ready before the service needs it, also beside a service
//! that runs on another configuration.
//!
//! It is a second process on the same image store: the two take turns (`image::turns`), it has a range of ids of its
//! own, and it removes nothing that the other may start on.

use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::thread::{set_thread_gid, set_thread_groups, set_thread_uid};
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;
use wire::api::PullProgress;

use super::machine::end_builds;
use super::{
    ServeError, clone_fd, directory, images, io_error, machine, prewarm, read_runtimes, settings, wait_for_end,
};
use crate::catalog::Runtime;
use crate::config::Settings;
use crate::image::{Images, StepReport, StepState, Tenure};
use crate::runtime::{Launcher, Slots};

/// Some image is not ready.
const MISSING: u8 = 1;
/// The configuration or the catalogue cannot be used.
const UNUSABLE: u8 = 2;
/// How often a pull is looked at.
const LOOK: Duration = Duration::from_secs(5);

/// Read the configuration, make every image ready, and say which are not. The exit status: 0 all are ready, 1 some are not,
/// which the last line names, 2 the configuration cannot be used.
pub fn run(file: Option<&Path>) -> ExitCode {
    let configured = settings::without_token(file).and_then(|settings| {
        let runtimes = read_runtimes(&settings)?;
        Ok((settings, runtimes))
    });
    let (settings, runtimes) = match configured {
        Ok(configured) => configured,
        Err(error) => return refuse(&error, UNUSABLE),
    };
    match prepare(&settings, &runtimes) {
        Ok(missing) if missing.is_empty() => {
            println!("prepare: {} of {} ready", runtimes.len(), runtimes.len());
            ExitCode::SUCCESS
        }
        Ok(missing) => {
            let ready = runtimes.len() - missing.len();
            println!("prepare: {ready} of {} ready; missing: {}", runtimes.len(), missing.join(", "));
            ExitCode::from(MISSING)
        }
        Err(error) => refuse(&error, MISSING),
    }
}

fn refuse(error: &ServeError, status: u8) -> ExitCode {
    eprintln!("sandboxd: prepare: {}", crate::chain(error));
    ExitCode::from(status)
}

/// The aliases whose images are not ready.
fn prepare(settings: &Settings, runtimes: &[Arc<Runtime>]) -> Result<Vec<String>, ServeError> {
    become_owner(&settings.state_dir)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|source| io_error("start threads for", Path::new("prepare"), source))?;
    runtime.block_on(async {
        let sockets = directory(&settings.runtime_dir.join("sessions"), 0o700)?;
        let launcher = Launcher::new(&settings.launch_socket);
        let own = clone_fd(&sockets)?;
        let machine = machine(settings, launcher.clone(), Slots::beside(settings.slots), sockets)?;
        let images = images(settings, Arc::new(machine), Tenure::Guest)?;
        let mut end = std::pin::pin!(wait_for_end());
        let mut missing = Vec::new();
        for (index, runtime) in runtimes.iter().enumerate() {
            let ready = tokio::select! {
                ready = one(&images, runtime) => ready,
                () = &mut end => {
                    // Nobody else builds as long as it is our turn: what runs is ours, and would go on without us.
                    if images.works() {
                        end_builds(&launcher, &own).await;
                    }
                    missing.extend(runtimes[index..].iter().map(|runtime| runtime.alias.clone()));
                    break;
                }
            };
            if !ready {
                missing.push(runtime.alias.clone());
            }
        }
        Ok(missing)
    })
}

/// The launcher takes requests from the service's user alone, whom its state belongs to.
fn become_owner(state: &Path) -> Result<(), ServeError> {
    if !rustix::process::geteuid().is_root() {
        return Ok(());
    }
    let owner = state.metadata().map_err(|source| io_error("look at", state, source))?;
    let (uid, gid) = (rustix::fs::Uid::from_raw(owner.uid()), rustix::fs::Gid::from_raw(owner.gid()));
    // There is one thread yet.
    let became = set_thread_groups(&[]).and_then(|()| set_thread_gid(gid)).and_then(|()| set_thread_uid(uid));
    became.map_err(|e| io_error("become the owner of", state, e.into()))
}

/// Whether its image is ready in the end.
async fn one(images: &Images, runtime: &Runtime) -> bool {
    let begun = Instant::now();
    let mut news = images.listen();
    let mut look = tokio::time::interval(LOOK);
    let mut seen = None;
    let made = {
        let mut making = std::pin::pin!(prewarm::ready(images, runtime));
        loop {
            tokio::select! {
                made = &mut making => break made,
                report = next(&mut news) => tell(&report),
                _ = look.tick() => tell_pull(runtime, images.status(runtime).pull, &mut seen),
            }
        }
    };
    while let Ok(report) = news.try_recv() {
        tell(&report);
    }
    match made {
        Ok(image) => {
            let tag: String = image.tag.chars().take(12).collect();
            say(&format!("{}: ready in {:.1} s, image {tag}", runtime.alias, begun.elapsed().as_secs_f64()));
            true
        }
        Err(error) => {
            say(&format!("{}: NOT READY: {}", runtime.alias, crate::chain(error.as_ref())));
            false
        }
    }
}

async fn next(news: &mut Receiver<StepReport>) -> StepReport {
    loop {
        match news.recv().await {
            Ok(report) => return report,
            Err(RecvError::Lagged(_)) => {}
            Err(RecvError::Closed) => std::future::pending().await,
        }
    }
}

fn tell(report: &StepReport) {
    let (alias, step) = (&report.alias, &report.step);
    let at = if report.number == 0 { step.clone() } else { format!("{} of {}: {step}", report.number, report.steps) };
    match &report.state {
        StepState::Running => say(&format!("{alias}: {at}")),
        StepState::Unchanged => say(&format!("{alias}: {at}: unchanged")),
        StepState::Done(time) => say(&format!("{alias}: {at}: done in {:.1} s", time.as_secs_f64())),
        StepState::Failed(end) => say(&format!("{alias}: {at}: {end}")),
    }
}

/// How far a pull is, unless that is known.
fn tell_pull(runtime: &Runtime, now: Option<PullProgress>, seen: &mut Option<PullProgress>) {
    let Some(pull) = now.filter(|pull| pull.layers > 0 && *seen != Some(*pull)) else { return };
    *seen = Some(pull);
    let PullProgress { layers, layers_ready, bytes, bytes_received, resumed: _ } = pull;
    let (mib, of) = (bytes_received.div_ceil(1 << 20), bytes.div_ceil(1 << 20));
    say(&format!("{}: pulled {mib} of {of} MiB, {layers_ready} of {layers} layers ready", runtime.alias));
}

fn say(line: &str) {
    let mut out = io::stdout().lock();
    // Whoever started us may have stopped listening; the images are made all the same.
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}
