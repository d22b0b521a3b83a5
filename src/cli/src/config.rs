//! The configuration file: contexts, each a name for an address with the file that holds its token.
//!
//! ```toml
//! current = "lab"
//!
//! [context.lab]
//! url = "http://10.0.5.7:8080"
//! token_file = "/home/ada/.config/sandboxctl/lab.token"
//! ```

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::address::Address;
use crate::error::Failure;

/// Longest configuration file, in bytes.
const FILE_MAX: u64 = 256 << 10;
/// Longest name of a context, in characters.
const NAME_MAX: usize = 64;

/// What the file says.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// The context that is used when nothing else says where the service is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub current: Option<String>,
    /// By name.
    #[serde(rename = "context", skip_serializing_if = "BTreeMap::is_empty")]
    pub contexts: BTreeMap<String, Context>,
}

/// One context: `url` or `socket`, and perhaps a token.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Context {
    /// Address over TCP.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// Absolute path of a unix socket.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub socket: Option<PathBuf>,
    /// Absolute path of the file that holds the token for this address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token_file: Option<PathBuf>,
}

impl Context {
    /// Where it is.
    ///
    /// # Errors
    /// In words, what is wrong with it.
    pub fn address(&self) -> Result<Address, String> {
        if self.token_file.as_ref().is_some_and(|path| path.is_relative()) {
            return Err("token_file has to be an absolute path".to_owned());
        }
        match (&self.url, &self.socket) {
            (Some(url), None) => Address::parse(url).map_err(|failure| failure.to_string()),
            (None, Some(socket)) if socket.is_absolute() => Ok(Address::Unix(socket.clone())),
            (None, Some(_)) => Err("socket has to be an absolute path".to_owned()),
            (Some(_), Some(_)) | (None, None) => Err("it has to have either url or socket".to_owned()),
        }
    }
}

/// Check the name of a context: letters, digits, `.`, `_` and `-`, a letter or a digit first.
///
/// # Errors
/// The rule, in words.
pub fn name(text: &str) -> Result<&str, String> {
    let sound = text.len() <= NAME_MAX
        && text.starts_with(|c: char| c.is_ascii_alphanumeric())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-'));
    if sound {
        Ok(text)
    } else {
        Err(format!("letters, digits, . _ and -, at most {NAME_MAX}, a letter or a digit first"))
    }
}

/// A directory of this user's for this program, below the variable's value or, without it, below `~` and `otherwise`.
#[must_use]
pub fn directory(env: &dyn Fn(&str) -> Option<OsString>, variable: &str, otherwise: &str) -> Option<PathBuf> {
    let absolute = |path: OsString| Some(PathBuf::from(path)).filter(|path| path.is_absolute());
    let base = env(variable).and_then(absolute).or_else(|| Some(env("HOME").and_then(absolute)?.join(otherwise)))?;
    Some(base.join("sandboxctl"))
}

/// Where the file is: none without a home.
#[must_use]
pub fn path(env: &dyn Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    directory(env, "XDG_CONFIG_HOME", ".config").map(|directory| directory.join("config.toml"))
}

/// Whether there is no configuration of this user's: what it may not read is somebody else's, whose home it has in its
/// environment (after su, setpriv and the like).
fn is_none(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory | io::ErrorKind::PermissionDenied)
}

impl Config {
    /// Read the file; one that is not there, or is somebody else's, says nothing.
    ///
    /// # Errors
    /// [`Failure::Local`]; [`Failure::Usage`]: others can write it, or it says what cannot be.
    pub fn load(path: &Path) -> Result<Self, Failure> {
        let shown = path.display().to_string();
        let mut text = String::new();
        let read = File::open(path).and_then(|file| {
            let mode = file.metadata()?.mode();
            file.take(FILE_MAX + 1).read_to_string(&mut text)?;
            Ok(mode)
        });
        let mode = match read {
            Err(error) if is_none(&error) => return Ok(Self::default()),
            read => read.map_err(|source| Failure::local("read the configuration", &shown, source))?,
        };
        if mode & 0o022 != 0 {
            return Err(Failure::Usage(format!(
                "{shown} can be written by others, who could have tokens sent to them: chmod go-w {shown}"
            )));
        }
        if text.len() as u64 > FILE_MAX {
            return Err(Failure::Usage(format!("{shown} is longer than {FILE_MAX} bytes")));
        }
        let config: Self = toml::from_str(&text).map_err(|error| Failure::Usage(format!("{shown}: {error}")))?;
        config.check().map_err(|problem| Failure::Usage(format!("{shown}: {problem}")))?;
        Ok(config)
    }

    fn check(&self) -> Result<(), String> {
        for (key, context) in &self.contexts {
            name(key).map_err(|rule| format!("{key:?} is no name of a context: {rule}"))?;
            context.address().map_err(|problem| format!("context {key}: {problem}"))?;
        }
        match &self.current {
            Some(current) if !self.contexts.contains_key(current) => {
                Err(format!("the context in use, {current:?}, is not there"))
            }
            Some(_) | None => Ok(()),
        }
    }

    /// Write the file in one step, for its owner alone.
    ///
    /// # Errors
    /// [`Failure::Local`].
    pub fn save(&self, path: &Path) -> Result<(), Failure> {
        let wrong = |source| Failure::local("write the configuration", path.display().to_string(), source);
        // A file that is kept elsewhere and linked to stays there.
        let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        let directory = path.parent().unwrap_or(Path::new("/"));
        DirBuilder::new().recursive(true).mode(0o700).create(directory).map_err(wrong)?;
        let text = toml::to_string(self).map_err(|error| wrong(io::Error::other(error)))?;
        let new = directory.join(format!(".config.toml.{}", std::process::id()));
        let made = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&new);
        let written = made.and_then(|mut file| {
            file.write_all(text.as_bytes())?;
            file.sync_all()?;
            fs::rename(&new, &path)
        });
        if written.is_err() {
            let _ = fs::remove_file(&new);
        }
        written.map_err(wrong)
    }

    /// The context of that name.
    ///
    /// # Errors
    /// [`Failure::Usage`], with the names that there are.
    pub fn context(&self, name: &str) -> Result<&Context, Failure> {
        self.contexts.get(name).ok_or_else(|| {
            let known: Vec<&str> = self.contexts.keys().map(String::as_str).collect();
            let known =
                if known.is_empty() { "there is none".to_owned() } else { format!("known: {}", known.join(", ")) };
            Failure::Usage(format!("no context {name}; {known}"))
        })
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn what_is_saved_is_read_and_is_its_owner_s_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("new/config.toml");
        assert_eq!(Config::load(&path).unwrap(), Config::default());
        let lab = Context { url: Some("http://h:1".into()), token_file: Some("/t".into()), ..Context::default() };
        let config = Config { current: Some("lab".into()), contexts: [("lab".into(), lab)].into() };
        config.save(&path).unwrap();
        config.save(&path).unwrap();
        assert_eq!(Config::load(&path).unwrap(), config);
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::read_dir(dir.path().join("new")).unwrap().count(), 1, "nothing temporary is left");
        assert!(config.context("lab").is_ok());
        assert!(config.context("x").unwrap_err().to_string().contains("known: lab"));
    }

    #[test]
    fn where_there_is_none_nothing_is_said() {
        for path in ["/nonexistent/config.toml", "/dev/null/config.toml"] {
            assert_eq!(Config::load(Path::new(path)).unwrap(), Config::default());
        }
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("config.toml");
        for text in [
            "current = \"a\"",
            "[context.a]",
            "[context.a]\nurl = \"http://h:1\"\nsocket = \"/s\"",
            "[context.a]\nurl = \"https://h\"",
            "[context.a]\nsocket = \"s\"",
            "[context.a]\nsocket = \"/s\"\ntoken_file = \"t\"",
            "[context.a]\nsocket = \"/s\"\ntoken = \"t\"",
            "[context.\"a/b\"]\nsocket = \"/s\"",
            "nonsense",
        ] {
            fs::write(&path, text).unwrap();
            assert!(matches!(Config::load(&path), Err(Failure::Usage(_))), "{text}");
        }
        fs::write(&path, "").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).unwrap();
        assert!(Config::load(&path).unwrap_err().to_string().contains("chmod go-w"));
    }

    #[test]
    fn the_file_is_below_the_configuration_directory_or_home() {
        let look = |pairs: &'static [(&str, &str)]| {
            path(&|name| pairs.iter().find(|(n, _)| *n == name).map(|(_, v)| OsString::from(v)))
        };
        assert_eq!(look(&[("XDG_CONFIG_HOME", "/x"), ("HOME", "/h")]), Some("/x/sandboxctl/config.toml".into()));
        assert_eq!(look(&[("XDG_CONFIG_HOME", "x"), ("HOME", "/h")]), Some("/h/.config/sandboxctl/config.toml".into()));
        assert_eq!(look(&[]), None);
    }
}
