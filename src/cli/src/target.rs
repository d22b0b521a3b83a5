//! Which service a command asks, and with which token: a token goes to the address that it was given for, and to no
//! other.
//!
//! | the address is of | the token is of |
//! |---|---|
//! | `--url`, `--socket` | `--token-file`; or `SANDBOXD_TOKEN` if the environment gives it for this very address |
//! | `--context`, `SANDBOXCTL_CONTEXT`, the context in use | `--token-file`, else the context's file |
//! | `SANDBOXD_URL`, `SANDBOXD_SOCKET` | `--token-file`, else `SANDBOXD_TOKEN` |
//! | nothing: the installed service's socket | the same |
//!
//! `SANDBOXD_TOKEN` is given for the address of `SANDBOXD_URL` or `SANDBOXD_SOCKET`; without these for the installed
//! service's socket.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use hyper::header::HeaderValue;

use crate::address::{Address, DEFAULT_SOCKET};
use crate::args::Global;
use crate::config::{self, Config};
use crate::error::Failure;

/// Longest token file, in bytes.
const TOKEN_FILE_MAX: u64 = 4096;

/// Reads a variable of the environment.
pub type Env<'e> = &'e dyn Fn(&str) -> Option<OsString>;

/// The service that is asked.
#[derive(Debug)]
pub struct Target {
    /// Where it is.
    pub address: Address,
    /// What is sent with every request.
    pub token: Option<HeaderValue>,
    /// Who says that it is there.
    pub by: String,
    /// Why a token that there is is not sent, for whoever is refused without.
    pub withheld: Option<String>,
}

impl Target {
    /// What options, environment and configuration say.
    ///
    /// # Errors
    /// [`Failure::Usage`]: they contradict each other, or say what cannot be; [`Failure::Local`]: a file cannot be read.
    pub fn choose(global: &Global, env: Env<'_>) -> Result<Self, Failure> {
        let named = environment(env)?;
        let context = text(env, "SANDBOXCTL_CONTEXT")?;
        let given = match (&global.url, &global.socket) {
            (Some(url), _) => Some((Address::parse(url)?, "--url")),
            (None, Some(socket)) => Some((Address::Unix(socket.clone()), "--socket")),
            (None, None) => None,
        };
        if let Some((address, by)) = given {
            return Self::of_environment(global, env, address, by, named.map(|(address, _)| address));
        }
        if let Some(name) = &global.context {
            return Self::of_context(global, &configuration(env)?, name, "--context");
        }
        match (named, context) {
            (Some((_, variable)), Some(_)) => Err(Failure::Usage(format!(
                "{variable} and SANDBOXCTL_CONTEXT both say where the service is: unset one, or use --context, --url or --socket"
            ))),
            (Some((address, variable)), None) => {
                Self::of_environment(global, env, address.clone(), variable, Some(address))
            }
            (None, Some(name)) => Self::of_context(global, &configuration(env)?, &name, "SANDBOXCTL_CONTEXT"),
            (None, None) => {
                let config = configuration(env)?;
                match &config.current {
                    Some(name) => {
                        let target = Self::of_context(global, &config, name, "the context in use")?;
                        Ok(Self { withheld: target.withheld.or(unsent(env, &installed())), ..target })
                    }
                    None => Self::of_environment(global, env, installed(), "the default", None),
                }
            }
        }
    }

    /// An address that may take `SANDBOXD_TOKEN`: if that is given for it.
    fn of_environment(
        global: &Global,
        env: Env<'_>,
        address: Address,
        by: &str,
        named: Option<Address>,
    ) -> Result<Self, Failure> {
        let owner = named.unwrap_or_else(installed);
        let (token, withheld) = match &global.token_file {
            Some(path) => (Some(token_of(path)?), None),
            None if owner == address => (token_of_environment(env)?, None),
            None => (None, unsent(env, &owner)),
        };
        Ok(Self { address, token, by: by.to_owned(), withheld })
    }

    fn of_context(global: &Global, config: &Config, name: &str, by: &str) -> Result<Self, Failure> {
        let context = config.context(name)?;
        let address = context.address().map_err(|problem| Failure::Usage(format!("context {name}: {problem}")))?;
        let token = match (&global.token_file, &context.token_file) {
            (Some(path), _) => Some(token_of(path)?),
            (None, Some(path)) => Some(token_of_private(path)?),
            (None, None) => None,
        };
        Ok(Self { address, token, by: format!("{by} ({name})"), withheld: None })
    }
}

/// The configuration; nothing where there is no home.
///
/// # Errors
/// Those of [`Config::load`].
pub fn configuration(env: Env<'_>) -> Result<Config, Failure> {
    config::path(env).map_or_else(|| Ok(Config::default()), |path| Config::load(&path))
}

fn installed() -> Address {
    Address::Unix(DEFAULT_SOCKET.into())
}

/// The address that the environment names, and by which variable.
fn environment(env: Env<'_>) -> Result<Option<(Address, &'static str)>, Failure> {
    if let Some(url) = text(env, "SANDBOXD_URL")? {
        return Ok(Some((Address::parse(&url)?, "SANDBOXD_URL")));
    }
    let socket = env("SANDBOXD_SOCKET").filter(|path| !path.is_empty());
    Ok(socket.map(|path| (Address::Unix(PathBuf::from(path)), "SANDBOXD_SOCKET")))
}

/// A variable of the environment, unless it is empty.
///
/// # Errors
/// [`Failure::Usage`]: it is not text.
pub fn text(env: Env<'_>, name: &str) -> Result<Option<String>, Failure> {
    let value = env(name).filter(|value| !value.is_empty());
    value.map(|value| value.into_string().map_err(|_| Failure::Usage(format!("{name} is not text")))).transpose()
}

fn unsent(env: Env<'_>, owner: &Address) -> Option<String> {
    env("SANDBOXD_TOKEN").filter(|token| !token.is_empty()).map(|_| {
        format!("SANDBOXD_TOKEN was not sent: it is given for {owner}. Name this address in SANDBOXD_URL or SANDBOXD_SOCKET, or the token's file with --token-file")
    })
}

fn token_of_environment(env: Env<'_>) -> Result<Option<HeaderValue>, Failure> {
    let token = env("SANDBOXD_TOKEN").filter(|token| !token.is_empty());
    token.map(|token| header(token.as_encoded_bytes(), "SANDBOXD_TOKEN")).transpose()
}

fn token_of(path: &Path) -> Result<HeaderValue, Failure> {
    let (bytes, _) = read(path)?;
    header(&bytes, &path.display().to_string())
}

/// The token of a context: of a file that only its owner, and perhaps a group, can read.
fn token_of_private(path: &Path) -> Result<HeaderValue, Failure> {
    let (bytes, mode) = read(path)?;
    let shown = path.display().to_string();
    if mode & 0o007 != 0 {
        return Err(Failure::Usage(format!(
            "every user of this machine can read the token in {shown}: chmod o= {shown}"
        )));
    }
    header(&bytes, &shown)
}

fn read(path: &Path) -> Result<(Vec<u8>, u32), Failure> {
    let mut bytes = Vec::new();
    let read = File::open(path).and_then(|file| {
        let mode = file.metadata()?.mode();
        file.take(TOKEN_FILE_MAX).read_to_end(&mut bytes)?;
        Ok(mode)
    });
    read.map(|mode| (bytes, mode))
        .map_err(|e: io::Error| Failure::local("read the token in", path.display().to_string(), e))
}

fn header(bytes: &[u8], from: &str) -> Result<HeaderValue, Failure> {
    let mut value = HeaderValue::from_bytes(bytes.trim_ascii())
        .ok()
        .filter(|value| !value.is_empty())
        .ok_or_else(|| Failure::Usage(format!("{from} holds no token: it is empty, or not one line of text")))?;
    value.set_sensitive(true);
    Ok(value)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use tempfile::TempDir;

    use super::*;

    /// A home with the contexts `lab` (with a token, in use) and `open` (without).
    fn home() -> TempDir {
        let dir = tempfile::tempdir().unwrap();
        let token = dir.path().join("lab.token");
        fs::write(&token, "of-lab\n").unwrap();
        fs::set_permissions(&token, fs::Permissions::from_mode(0o600)).unwrap();
        let text = format!(
            "current = \"lab\"\n[context.lab]\nurl = \"http://lab:1\"\ntoken_file = \"{}\"\n[context.open]\nsocket = \"/open.sock\"\n",
            token.display()
        );
        fs::create_dir_all(dir.path().join("sandboxctl")).unwrap();
        fs::write(dir.path().join("sandboxctl/config.toml"), text).unwrap();
        dir
    }

    fn choose(home: Option<&TempDir>, global: &Global, pairs: &[(&str, &str)]) -> Result<Target, Failure> {
        Target::choose(global, &|name| match (name, home) {
            ("XDG_CONFIG_HOME", Some(home)) => Some(home.path().into()),
            _ => pairs.iter().find(|(n, _)| *n == name).map(|(_, value)| OsString::from(value)),
        })
    }

    fn shown(target: Result<Target, Failure>) -> (String, Option<String>) {
        let target = target.unwrap();
        let token = target.token.map(|token| String::from_utf8(token.as_bytes().to_vec()).unwrap());
        (target.address.to_string(), token)
    }

    fn url(url: &str) -> Global {
        Global { url: Some(url.into()), ..Global::default() }
    }

    #[test]
    fn options_win_over_the_environment_over_the_context_over_the_default() {
        let home = home();
        let env = [("SANDBOXD_URL", "http://env:1"), ("SANDBOXD_SOCKET", "/env")];
        let at = |home, global: &Global, env: &[(&str, &str)]| shown(choose(home, global, env)).0;
        assert_eq!(at(Some(&home), &url("http://flag:2/"), &env), "http://flag:2");
        let socket = Global { socket: Some("/flag".into()), ..Global::default() };
        assert_eq!(at(Some(&home), &socket, &env), "unix:/flag");
        let context = Global { context: Some("open".into()), ..Global::default() };
        assert_eq!(at(Some(&home), &context, &env), "unix:/open.sock");
        assert_eq!(at(Some(&home), &Global::default(), &env), "http://env:1");
        assert_eq!(at(Some(&home), &Global::default(), &env[1..]), "unix:/env");
        assert_eq!(at(Some(&home), &Global::default(), &[("SANDBOXCTL_CONTEXT", "open")]), "unix:/open.sock");
        assert_eq!(at(Some(&home), &Global::default(), &[]), "http://lab:1");
        assert_eq!(at(None, &Global::default(), &[("SANDBOXD_URL", "")]), format!("unix:{DEFAULT_SOCKET}"));
        let both = choose(Some(&home), &Global::default(), &[env[0], ("SANDBOXCTL_CONTEXT", "open")]);
        assert!(matches!(both, Err(Failure::Usage(text)) if text.contains("SANDBOXD_URL and SANDBOXCTL_CONTEXT")));
    }

    #[test]
    fn a_token_goes_to_its_own_address_and_to_no_other() {
        let home = home();
        let token = |home, global: &Global, env: &[(&str, &str)]| shown(choose(home, global, env)).1;
        let secret = ("SANDBOXD_TOKEN", "of-env");
        let env = [("SANDBOXD_URL", "http://env:1"), secret];
        let of_env = Some("of-env".to_owned());
        // To the address of the environment, however it is spelt; and without one to the installed service.
        assert_eq!(token(Some(&home), &Global::default(), &env), of_env);
        assert_eq!(token(Some(&home), &url("http://ENV:1/"), &env), of_env);
        assert_eq!(token(None, &Global::default(), &[secret]), of_env);
        let installed = Global { socket: Some(DEFAULT_SOCKET.into()), ..Global::default() };
        assert_eq!(token(Some(&home), &installed, &[secret]), of_env);
        // Nowhere else: neither it nor a context's.
        assert_eq!(token(Some(&home), &url("http://elsewhere:1"), &env), None);
        assert_eq!(token(Some(&home), &url("http://env:2"), &env), None);
        assert_eq!(token(Some(&home), &url("http://env:1/other"), &env), None);
        assert_eq!(token(Some(&home), &url("http://lab:1"), &[]), None);
        assert_eq!(token(None, &url("http://elsewhere:1"), &[secret]), None);
        // A context's to the context alone, and nothing else to a context.
        assert_eq!(token(Some(&home), &Global::default(), &[secret]), Some("of-lab".into()));
        let open = Global { context: Some("open".into()), ..Global::default() };
        assert_eq!(token(Some(&home), &open, &env), None);
    }

    #[test]
    fn who_withholds_a_token_says_so() {
        let told = choose(None, &url("http://h:1"), &[("SANDBOXD_TOKEN", "t")]).unwrap().withheld.unwrap();
        assert!(told.contains(DEFAULT_SOCKET) && told.contains("--token-file") && !told.contains("\"t\""), "{told}");
        assert!(choose(None, &url("http://h:1"), &[]).unwrap().withheld.is_none());
    }

    #[test]
    fn a_token_is_one_line_and_never_shown() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("token");
        fs::write(&file, "s3cret\n").unwrap();
        let with = Global { token_file: Some(file.clone()), ..url("http://h:1") };
        let target = choose(None, &with, &[("SANDBOXD_TOKEN", "other")]).unwrap();
        assert_eq!(target.token.as_ref().unwrap().as_bytes(), b"s3cret");
        assert!(!format!("{target:?}").contains("s3cret"));
        fs::write(&file, "\n").unwrap();
        assert!(matches!(choose(None, &with, &[]), Err(Failure::Usage(_))));
        let missing = Global { token_file: Some(dir.path().join("no")), ..Global::default() };
        assert!(matches!(choose(None, &missing, &[]), Err(Failure::Local { .. })));
        let odd = choose(None, &Global::default(), &[("SANDBOXD_TOKEN", "e\nv")]);
        assert!(matches!(odd, Err(Failure::Usage(message)) if !message.contains("e\nv")));
        assert!(choose(None, &Global::default(), &[]).unwrap().token.is_none());
    }

    #[test]
    fn a_token_that_everybody_can_read_is_no_context_s() {
        let home = home();
        let token = home.path().join("lab.token");
        fs::set_permissions(&token, fs::Permissions::from_mode(0o644)).unwrap();
        let told = choose(Some(&home), &Global::default(), &[]).unwrap_err();
        assert!(told.to_string().contains("chmod o="), "{told}");
    }
}
