//! Whether the programs that run are those that are installed, and of one version.

use std::path::Path;

use wire::api::{Finding, Level};

use super::{Known, fine, mended};
use crate::config::Settings;

const START: &str = "systemctl start sandboxd-launch.socket, or start sandboxd-launch";

/// What is found.
pub fn findings(settings: &Settings, known: &Known) -> [Finding; 2] {
    let own = known.serves.then(|| std::fs::read_link("/proc/self/exe").unwrap_or_default());
    let launcher = known.launcher.as_ref().map(|about| about.version.as_str()).map_err(String::as_str);
    [
        answers(&settings.launch_socket, launcher, known.serves),
        versions(env!("CARGO_PKG_VERSION"), launcher.ok(), own.as_deref()),
    ]
}

fn answers(socket: &Path, launcher: Result<&str, &str>, asked: bool) -> Finding {
    match launcher {
        Err(why) if !asked && socket.exists() => {
            fine("launcher", &format!("there is a socket at {}; {why}", socket.display()))
        }
        Ok(_) => fine("launcher", &format!("answers at {}", socket.display())),
        Err(_) if !asked => {
            let message = format!("there is no socket at {}", socket.display());
            mended("launcher", Level::Error, &message, START)
        }
        Err(why) => {
            let message = format!("does not answer at {}: {why}", socket.display());
            mended("launcher", Level::Error, &message, START)
        }
    }
}

/// `own`: the program of the service that runs, as the kernel names it.
fn versions(service: &str, launcher: Option<&str>, own: Option<&Path>) -> Finding {
    const RESTART: &str = "systemctl restart sandboxd sandboxd-launch: sessions, and what runs in them, go on";
    if own.is_some_and(|own| own.as_os_str().as_encoded_bytes().ends_with(b" (deleted)")) {
        let message = format!("the service that runs ({service}) is no longer the one that is installed");
        return mended("versions", Level::Warning, &message, RESTART);
    }
    match launcher {
        Some(launcher) if launcher != service => {
            let message = format!("the service is {service}, the launcher {launcher}");
            mended("versions", Level::Warning, &message, RESTART)
        }
        Some(launcher) => fine("versions", &format!("service {service}, launcher {launcher}")),
        None => fine("versions", &format!("service {service}; the launcher does not say")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_one_or_the_other_program_is_old() {
        let installed = Some(Path::new("/usr/sbin/sandboxd"));
        assert_eq!(versions("1.2.0", Some("1.2.0"), installed).level, Level::Ok);
        assert_eq!(versions("1.2.0", None, None).level, Level::Ok);
        assert_eq!(versions("1.2.0", Some("1.1.0"), installed).level, Level::Warning);
        assert_eq!(
            versions("1.2.0", Some("1.2.0"), Some(Path::new("/usr/sbin/sandboxd (deleted)"))).level,
            Level::Warning
        );
    }

    #[test]
    fn a_launcher_answers_or_the_reason_is_told() {
        assert_eq!(answers(Path::new("/s"), Ok("1"), true).level, Level::Ok);
        let finding = answers(Path::new("/s"), Err("permission denied"), true);
        assert!(finding.level == Level::Error && finding.message.ends_with("/s: permission denied"), "{finding:?}");
        assert_eq!(answers(Path::new("/dev/null"), Err("not asked"), false).level, Level::Ok);
        assert_eq!(answers(Path::new("/nonexistent"), Err("not asked"), false).level, Level::Error);
    }
}
