//! `doctor`: what the service's host has and lacks. A service that cannot be asked is a finding itself.

use wire::api::{DoctorReport, Finding, Level};

use crate::client::{Call, Client};
use crate::error::Failure;
use crate::output::{count, harmless, print, print_json};

/// Ask, print, and tell the worst finding by the exit status: 0 fine, 1 warnings, 2 errors.
pub async fn doctor(client: &mut Client, json: bool) -> Result<u8, Failure> {
    let report = match client.ask(Call::get("ask the doctor", "/doctor")).await {
        Ok(answer) => answer.parse().unwrap_or_else(|failure| absent(&failure)),
        Err(failure) => absent(&failure),
    };
    if json {
        print_json(&report)?
    } else {
        print(text(&report))?
    }
    Ok(status(&report))
}

/// The report on a service that does not answer.
fn absent(failure: &Failure) -> DoctorReport {
    let finding = Finding {
        subject: "service".to_owned(),
        level: Level::Error,
        message: failure.text(),
        mend: failure.mend().map(str::to_owned),
    };
    DoctorReport { findings: vec![finding] }
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

    #[test]
    fn the_worst_finding_is_the_status() {
        let report = |findings| DoctorReport { findings };
        assert_eq!(status(&report(vec![])), 0);
        assert_eq!(status(&report(vec![finding(Level::Ok, None)])), 0);
        assert_eq!(status(&report(vec![finding(Level::Warning, None), finding(Level::Ok, None)])), 1);
        assert_eq!(status(&report(vec![finding(Level::Ok, None), finding(Level::Error, None)])), 2);
    }

    #[test]
    fn a_mend_stands_under_its_finding() {
        let shown = text(&DoctorReport { findings: vec![finding(Level::Warning, Some("do this"))] });
        assert_eq!(shown, "warning  cgroups  m\n                  -> do this\n0 fine, 1 warning, 0 errors\n");
    }

    #[tokio::test]
    async fn an_absent_service_is_an_error_with_a_mend() {
        let mut client = Client::new(Address::Unix("/nonexistent/sandboxd.sock".into()), None);
        let failure = client.ask(Call::get("ask", "/doctor")).await.unwrap_err();
        let report = absent(&failure);
        assert_eq!(status(&report), 2);
        assert!(report.findings[0].message.contains("unix:/nonexistent/sandboxd.sock"));
        assert!(report.findings[0].mend.is_some());
    }
}
