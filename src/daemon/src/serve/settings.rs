//! The settings as this process finds them: the file, the environment, and the token that systemd keeps for it.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use super::ServeError;
use crate::config::{self, ConfigError, DEFAULT_FILE, Raw, Settings};

/// Largest configuration file, in bytes.
const FILE_MAX: u64 = 1 << 20;
/// Largest token, in bytes, with the end of its line.
const TOKEN_MAX: u64 = 4096;
/// In the place of a token, for who needs none. Nothing is served by it.
const NO_TOKEN: &str = "this-process-serves-nobody-and-so-has-no-token";
/// Settings that are secrets, and the credentials that they may come from.
const CREDENTIALS: [(&str, &str); 2] = [("token", "token"), ("metrics_token", "metrics-token")];
/// Others may read it.
const WORLD_READABLE: u32 = 0o004;

/// Read them. The file `/etc/sandboxd/sandboxd.toml` need not be there, one that is named must.
///
/// # Errors
/// [`ServeError::File`], [`ServeError::Config`].
pub fn read(file: Option<&Path>) -> Result<Settings, ServeError> {
    let mut raw = gather(file)?;
    if let Some(directory) = std::env::var_os("CREDENTIALS_DIRECTORY") {
        credentials(&mut raw, &PathBuf::from(directory))?;
    }
    Ok(config::load(&raw)?)
}

/// The same for somebody who serves nobody and needs no token.
///
/// # Errors
/// Those of [`read`].
pub fn without_token(file: Option<&Path>) -> Result<Settings, ServeError> {
    let mut raw = gather(file)?;
    raw.supply("token", NO_TOKEN.to_owned());
    Ok(config::load(&raw)?)
}

/// What holds where nothing is set, likewise.
///
/// # Errors
/// None: the defaults go together.
pub fn defaults() -> Result<Settings, ServeError> {
    let mut raw = Raw::gather(Path::new(DEFAULT_FILE), "", [])?;
    raw.supply("token", NO_TOKEN.to_owned());
    Ok(config::load(&raw)?)
}

fn gather(file: Option<&Path>) -> Result<Raw, ServeError> {
    let path = file.unwrap_or_else(|| Path::new(DEFAULT_FILE));
    let (text, mode) = match contents(path, FILE_MAX) {
        Ok(found) => found,
        Err(error) if file.is_none() && error.kind() == io::ErrorKind::NotFound => (String::new(), 0),
        Err(source) => return Err(ServeError::File { path: path.to_owned(), source }),
    };
    let raw = Raw::gather(path, &text, std::env::vars())?;
    for (name, _) in CREDENTIALS {
        if raw.is_from_file(name) && mode & WORLD_READABLE != 0 {
            return Err(raw.error(name, "is in a file that every user can read; chmod o-r it").into());
        }
    }
    Ok(raw)
}

/// What systemd keeps for the service (systemd.exec(5), LoadCredential=): tokens, unless a setting names another.
fn credentials(raw: &mut Raw, directory: &Path) -> Result<(), ServeError> {
    for (setting, credential) in CREDENTIALS {
        let path = directory.join(credential);
        match contents(&path, TOKEN_MAX) {
            Ok((token, _)) => raw.supply(setting, token.trim_end().to_owned()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(source) => {
                let problem = format!("cannot be read: {source}");
                return Err(ConfigError { place: path.display().to_string(), problem }.into());
            }
        }
    }
    Ok(())
}

fn contents(path: &Path, most: u64) -> io::Result<(String, u32)> {
    let file = File::open(path)?;
    let mode = file.metadata()?.permissions().mode();
    let mut text = String::new();
    file.take(most).read_to_string(&mut text)?;
    Ok((text, mode))
}
