//! `GET /doctor`, and `sandboxd doctor` in its place where no service answers.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Mutex;
use wire::api::{DoctorReport, Finding, Level};

use super::settings;
use crate::api::Doctor;
use crate::catalog::NetworkMode;
use crate::config::Settings;
use crate::doctor::{self, Host, Known};
use crate::runtime::Launcher;
use crate::session::Registry;

/// How long the launcher may take to say who it is.
const LAUNCHER_WITHIN: Duration = Duration::from_secs(3);

/// The service's doctor.
pub fn doctor(host: Host, settings: Settings) -> Doctor {
    let settings = Arc::new(settings);
    let busy = Arc::new(Mutex::new(()));
    Box::new(move |registry| {
        let (host, settings, busy) = (host.clone(), settings.clone(), busy.clone());
        Box::pin(async move {
            let _alone = busy.lock().await;
            look(host, settings, registry).await
        })
    })
}

async fn look(host: Host, settings: Arc<Settings>, registry: Arc<Registry>) -> DoctorReport {
    let networks = &registry.deps.networks;
    let launcher = Launcher::about(&settings.launch_socket, LAUNCHER_WITHIN).await;
    let known = Known {
        networks: registry.runtimes().iter().any(|runtime| networks.gives(runtime)),
        enforcement: Some(registry.deps.quotas.enforcement().await),
        launcher: launcher.map_err(|error| crate::chain(&error)),
        serves: true,
    };
    // It reads files, and waits for systemd and for resolvers.
    let looked = tokio::task::spawn_blocking(move || doctor::report(&host, &settings, &known)).await;
    let mut report = looked.unwrap_or_else(|_| unable("the doctor itself failed"));
    report.findings.push(networks.finding(registry.runtimes()).await);
    report.findings.sort_by_key(|finding| std::cmp::Reverse(finding.level));
    report
}

/// Look without a service, as far as that goes.
pub fn alone(file: Option<&Path>) -> DoctorReport {
    let (settings, odd) = match settings::without_token(file) {
        Ok(settings) => (settings, None),
        Err(error) => match settings::defaults() {
            Ok(settings) => (settings, Some(crate::chain(&error))),
            Err(error) => return unable(&crate::chain(&error)),
        },
    };
    let networks = super::read_runtimes(&settings).is_ok_and(|runtimes| {
        runtimes.iter().any(|runtime| runtime.network.unwrap_or(settings.network_mode) == NetworkMode::Bridge)
    });
    let launcher = Err("it answers the service's user alone".to_owned());
    let known = Known { networks, enforcement: None, launcher, serves: false };
    let mut report = doctor::report(&Host::look(), &settings, &known);
    if let Some(problem) = odd {
        let message = format!("{problem}; the defaults are looked at instead");
        let mend = "mend the file; only root and the group sandboxd may read it";
        report.findings.insert(0, finding("settings", message, mend));
    }
    report
}

fn unable(why: &str) -> DoctorReport {
    let finding = finding("doctor", why.to_owned(), "see the service's log: journalctl -u sandboxd");
    DoctorReport { findings: vec![finding], version: env!("CARGO_PKG_VERSION").to_owned() }
}

fn finding(subject: &str, message: String, mend: &str) -> Finding {
    Finding { subject: subject.to_owned(), level: Level::Error, message, mend: Some(mend.to_owned()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_service_what_can_be_seen_is_and_a_bad_file_is_said() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("sandboxd.toml");
        std::fs::write(&file, format!("state_dir = '{}'\n", dir.path().display())).unwrap();
        let report = alone(Some(&file));
        let find =
            |report: &DoctorReport, subject: &str| report.findings.iter().find(|f| f.subject == subject).cloned();
        assert!(find(&report, "settings").is_none(), "a token is not needed to look: {report:?}");
        assert_eq!(find(&report, "kernel").unwrap().level, Level::Ok);
        std::fs::write(&file, "idle_timeout = 'soon'\n").unwrap();
        let report = alone(Some(&file));
        let told = find(&report, "settings").unwrap_or_else(|| panic!("{report:?}"));
        assert!(told.level == Level::Error && told.message.contains("idle_timeout"), "{told:?}");
    }
}
