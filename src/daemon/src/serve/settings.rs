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
/// Others may read it.
const WORLD_READABLE: u32 = 0o004;

/// Read them. The file `/etc/sandboxd/sandboxd.toml` need not be there, one that is named must.
///
/// # Errors
/// [`ServeError::File`], [`ServeError::Config`].
pub fn read(file: Option<&Path>) -> Result<Settings, ServeError> {
    let path = file.unwrap_or_else(|| Path::new(DEFAULT_FILE));
    let (text, mode) = match contents(path, FILE_MAX) {
        Ok(found) => found,
        Err(error) if file.is_none() && error.kind() == io::ErrorKind::NotFound => (String::new(), 0),
        Err(source) => return Err(ServeError::File { path: path.to_owned(), source }),
    };
    let mut raw = Raw::gather(path, &text, std::env::vars())?;
    if raw.is_from_file("token") && mode & WORLD_READABLE != 0 {
        return Err(raw.error("token", "is in a file that every user can read; chmod o-r it").into());
    }
    if let Some(directory) = std::env::var_os("CREDENTIALS_DIRECTORY") {
        credentials(&mut raw, &PathBuf::from(directory))?;
    }
    Ok(config::load(&raw)?)
}

/// What systemd keeps for the service (systemd.exec(5), LoadCredential=): the token, unless a setting names another.
fn credentials(raw: &mut Raw, directory: &Path) -> Result<(), ServeError> {
    let path = directory.join("token");
    match contents(&path, TOKEN_MAX) {
        Ok((token, _)) => raw.supply("token", token.trim_end().to_owned()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(source) => {
            let problem = format!("cannot be read: {source}");
            return Err(ConfigError { place: path.display().to_string(), problem }.into());
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
