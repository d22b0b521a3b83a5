//! `doctor`: what the service's host has and lacks. A service that cannot be asked is a finding itself, and what can be
//! seen without it is looked at by `sandboxd doctor`, where that program is installed.

use std::borrow::Cow;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use tokio::io::AsyncReadExt;
use wire::api::{DoctorReport, Finding, Level};

use crate::client::{Call, Client};
use crate::error::Failure;
use crate::output::{count, harmless, print, print_json};

/// This program's version, which is the service's if both are of one package.
const OWN: &str = env!("CARGO_PKG_VERSION");
/// Where the package puts the service's program.
const INSTALLED: &str = "/usr/sbin/sandboxd";
/// How long that may look at this machine.
const LOOK_WITHIN: Duration = Duration::from_secs(20);
/// Most that it may say, in bytes.
const REPORT_MAX: u64 = 1 << 20;

/// Ask, print, and tell the worst finding by the exit status: 0 fine, 1 warnings, 2 errors.
pub async fn doctor(client: &mut Client, json: bool) -> Result<u8, Failure> {
    let asked = match client.ask(Call::get("ask the doctor", "/doctor")).await {
        Ok(answer) => answer.parse::<DoctorReport>(),
        Err(failure) => Err(failure),
    };
    let mut report = match asked {
        Ok(mut report) => {
            report.findings.push(own_version(&report.version));
            report
        }
        Err(failure) => absent(&failure, client.is_here()).await,
    };
    report.findings.sort_by_key(|finding| std::cmp::Reverse(finding.level));
    if json {
        print_json(&report)?
    } else {
        print(text(&report))?
    }
    Ok(status(&report))
}

/// Whether this program and the service are of one version.
fn own_version(service: &str) -> Finding {
    let (level, message, mend) = match service {
        OWN => (Level::Ok, format!("{OWN}, as the service"), None),
        "" => (Level::Warning, format!("{OWN}; the service is older and does not say"), Some("upgrade the service")),
        other => (Level::Warning, format!("{OWN}, and the service {other}"), Some("upgrade the older of the two")),
    };
    Finding { subject: "sandboxctl".to_owned(), level, message, mend: mend.map(str::to_owned) }
}

/// The report on a service that does not answer, or answers something else.
async fn absent(failure: &Failure, is_here: bool) -> DoctorReport {
    let service = Finding {
        subject: "service".to_owned(),
        level: Level::Error,
        message: failure.text(),
        mend: failure.mend().map(Cow::into_owned).or_else(|| Some("see whether the address is sandboxd's".to_owned())),
    };
    let mut report = DoctorReport { findings: vec![service], version: OWN.to_owned() };
    // Somebody is there, or it is about another machine.
    let gone = matches!(failure, Failure::Connect { .. } | Failure::Broken { .. } | Failure::Late { .. });
    if gone && is_here {
        match look().await {
            Ok(local) => report.findings.extend(local.findings),
            Err(why) => report.findings.push(Finding {
                subject: "host".to_owned(),
                level: Level::Warning,
                message: format!("not looked at: {why}"),
                mend: Some("install the package sandboxd on this machine".to_owned()),
            }),
        }
    }
    report
}

/// Have this machine looked at by the service's program, which need not serve for that.
async fn look() -> Result<DoctorReport, String> {
    let beside = std::env::current_exe().ok().and_then(|own| Some(own.parent()?.join("sandboxd")));
    let program = beside.into_iter().chain([PathBuf::from(INSTALLED)]).find(|path| path.is_file());
    let program = program.ok_or_else(|| format!("there is no {INSTALLED}"))?;
    let shown = program.display();
    let mut command = tokio::process::Command::new(&program);
    command.arg("doctor").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).kill_on_drop(true);
    let mut child = command.spawn().map_err(|error| format!("start {shown}: {error}"))?;
    let mut said = Vec::new();
    let out = child.stdout.take().ok_or_else(|| format!("{shown} has no output"))?;
    let read = tokio::time::timeout(LOOK_WITHIN, out.take(REPORT_MAX).read_to_end(&mut said)).await;
    read.map_err(|_| format!("{shown} takes too long"))?.map_err(|error| format!("read from {shown}: {error}"))?;
    serde_json::from_slice(&said).map_err(|_| format!("{shown} is of another version and does not look"))
}

fn status(report: &DoctorReport) -> u8 {
    match report.findings.iter().map(|finding| finding.level).max() {
        None | Some(Level::Ok) => 0,
        Some(Level::Warning) => 1,
        Some(Level::Error) => 2,
    }
}

fn text(report: &DoctorReport) -> String {
    let wide = report.findings.iter().map(|finding| finding.subject.chars().count()).max().unwrap_or(0);
    let mut text = String::new();
    for finding in &report.findings {
        let level = match finding.level {
            Level::Ok => "ok     ",
            Level::Warning => "warning",
            Level::Error => "ERROR  ",
        };
        text.push_str(&format!("{level}  {:<wide$}  {}\n", harmless(&finding.subject), harmless(&finding.message)));
        if let Some(mend) = &finding.mend {
            text.push_str(&format!("{:9}{:wide$}  -> {}\n", "", "", harmless(mend)));
        }
    }
    let of = |level| report.findings.iter().filter(|finding| finding.level == level).count() as u64;
    let (warnings, errors) = (count(of(Level::Warning), "warning"), count(of(Level::Error), "error"));
    text.push_str(&format!("{} fine, {warnings}, {errors}\n", of(Level::Ok)));
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::address::Address;

    fn finding(level: Level, mend: Option<&str>) -> Finding {
        Finding { subject: "cgroups".into(), level, message: "m".into(), mend: mend.map(str::to_owned) }
    }

    fn report(findings: Vec<Finding>) -> DoctorReport {
        DoctorReport { findings, version: String::new() }
    }

    #[test]
    fn the_worst_finding_is_the_status() {
        assert_eq!(status(&report(vec![])), 0);
        assert_eq!(status(&report(vec![finding(Level::Ok, None)])), 0);
        assert_eq!(status(&report(vec![finding(Level::Warning, None), finding(Level::Ok, None)])), 1);
        assert_eq!(status(&report(vec![finding(Level::Ok, None), finding(Level::Error, None)])), 2);
    }

    #[test]
    fn a_mend_stands_under_its_finding() {
        let shown = text(&report(vec![finding(Level::Warning, Some("do this"))]));
        assert_eq!(shown, "warning  cgroups  m\n                  -> do this\n0 fine, 1 warning, 0 errors\n");
    }

    #[test]
    fn another_version_is_a_warning() {
        for (service, level) in [(OWN, Level::Ok), ("", Level::Warning), ("0.0.0", Level::Warning)] {
            let finding = own_version(service);
            assert!(finding.level == level && finding.mend.is_some() == (level != Level::Ok), "{finding:?}");
        }
    }

    #[tokio::test]
    async fn an_absent_service_is_an_error_with_a_mend_and_one_elsewhere_says_nothing_of_this_machine() {
        let mut client = Client::new(Address::Unix("/nonexistent/sandboxd.sock".into()), None);
        assert!(client.is_here());
        let failure = client.ask(Call::get("ask", "/doctor")).await.unwrap_err();
        let report = absent(&failure, false).await;
        assert_eq!((status(&report), report.findings.len()), (2, 1));
        assert!(report.findings[0].message.contains("unix:/nonexistent/sandboxd.sock"));
        assert!(report.findings[0].mend.is_some());
        assert!(absent(&failure, true).await.findings.len() > 1);
    }
}
