//! What each field of a runtime may hold. Whatever ends up in a shell, a command line, a path or a
//! header later is held to a grammar here, once, where the operator can still read the error.

use std::collections::BTreeMap;

use wire::launch::OciRuntime;

use super::{Definition, FieldError, PackageManager};

const MAX_COMMANDS: usize = 32;
const MAX_COMMAND_BYTES: usize = 8 * 1024;
const MAX_PACKAGES: usize = 256;
const MAX_PACKAGE_BYTES: usize = 200;
const MAX_VARIABLES: usize = 64;
const MAX_VARIABLE_BYTES: usize = 4 * 1024;
const MAX_SENTENCES: usize = 64;
const MAX_SENTENCE_BYTES: usize = 2 * 1024;
const MAX_DESCRIPTION_BYTES: usize = 1024;
const MAX_REFERENCE_BYTES: usize = 512;
const MAX_ALIAS_BYTES: usize = 64;

/// An alias of a catalogue entry: `[a-z][a-z0-9-]*`.
pub(super) fn catalogue_alias(alias: &str) -> Result<(), FieldError> {
    let head = alias.bytes().next().is_some_and(|b| b.is_ascii_lowercase());
    let tail = alias.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-');
    if head && tail && alias.len() <= MAX_ALIAS_BYTES {
        return Ok(());
    }
    Err(FieldError::new(
        "alias",
        format!("{} is not an alias", quoted(alias)),
        "[a-z][a-z0-9-]*, at most 64 characters",
    ))
}

/// An alias of the setting `runtimes`, where names that are in use already may also have capitals, dots and underscores.
pub(super) fn setting_alias(alias: &str) -> Result<(), FieldError> {
    if wire::id::SessionId::parse(alias).is_ok() {
        return Ok(());
    }
    Err(FieldError::new(
        "alias",
        format!("{} is not an alias", quoted(alias)),
        "[A-Za-z0-9][A-Za-z0-9._-]*, at most 64 characters",
    ))
}

/// A name of an image: a short name, a reference to a registry, with tag or digest.
pub(super) fn reference(field: &'static str, text: &str) -> Result<(), FieldError> {
    let head = text.bytes().next().is_some_and(|b| b.is_ascii_alphanumeric());
    let tail = text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-' | b'/' | b':' | b'@'));
    if head && tail && text.len() <= MAX_REFERENCE_BYTES {
        return Ok(());
    }
    let allowed = "an image such as python:3.12-slim, registry.example.org/team/image:tag or a recipe's name";
    Err(FieldError::new(field, format!("{} is not the name of an image", quoted(text)), allowed))
}

pub(super) fn description(text: &str) -> Result<(), FieldError> {
    if text.len() <= MAX_DESCRIPTION_BYTES && !text.contains(char::is_control) {
        return Ok(());
    }
    Err(FieldError::new(
        "description",
        "is too long or has control characters".into(),
        "one line of at most 1024 bytes",
    ))
}

pub(super) fn briefing(sentences: &[String]) -> Result<(), FieldError> {
    let good = |s: &String| !s.trim().is_empty() && s.len() <= MAX_SENTENCE_BYTES && !s.contains('\0');
    if sentences.len() <= MAX_SENTENCES && sentences.iter().all(good) {
        return Ok(());
    }
    Err(FieldError::new(
        "briefing",
        "has an empty or too long sentence".into(),
        "at most 64 sentences of 1 to 2048 bytes",
    ))
}

/// An OCI runtime: one of those that the launcher knows, never a path.
pub(super) fn oci_runtime(name: &str) -> Result<OciRuntime, FieldError> {
    OciRuntime::parse(name).ok_or_else(|| {
        FieldError::new(
            "oci_runtime",
            format!("{} is not the name of a runtime", quoted(name)),
            "builtin, crun, runc, runsc",
        )
    })
}

/// Variables: POSIX names, values of one line.
///
/// # Errors
/// [`FieldError`] for the first that is not.
pub fn env_vars(vars: &BTreeMap<String, String>) -> Result<(), FieldError> {
    if vars.len() > MAX_VARIABLES {
        return Err(FieldError::new("env_vars", format!("has {} variables", vars.len()), "at most 64"));
    }
    for (name, value) in vars {
        if !is_variable(name) {
            return Err(FieldError::new(
                "env_vars",
                format!("{} is not a name", quoted(name)),
                "[A-Za-z_][A-Za-z0-9_]*",
            ));
        }
        if value.len() > MAX_VARIABLE_BYTES || value.contains(['\0', '\n', '\r']) {
            let problem = format!("the value of {name} is not one line of text");
            return Err(FieldError::new("env_vars", problem, "at most 4096 bytes, no line break"));
        }
    }
    Ok(())
}

/// Whether `name` is a name of an environment variable (POSIX.1-2017, 8.1).
fn is_variable(name: &str) -> bool {
    let head = name.bytes().next().is_some_and(|b| b.is_ascii_alphabetic() || b == b'_');
    head && name.len() <= 256 && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
}

/// What a build does: its commands and its packages.
pub(super) fn definition(definition: &Definition) -> Result<(), FieldError> {
    reference("base_image", &definition.base)?;
    if definition.setup_commands.len() > MAX_COMMANDS {
        let problem = format!("has {} commands", definition.setup_commands.len());
        return Err(FieldError::new("setup_commands", problem, "at most 32, each one layer"));
    }
    for command in &definition.setup_commands {
        if command.trim().is_empty() || command.len() > MAX_COMMAND_BYTES || command.contains(['\0', '\n', '\r']) {
            let problem = format!("{} is not a command of one line", quoted(command));
            return Err(FieldError::new("setup_commands", problem, "1 to 8192 bytes, no line break (use &&)"));
        }
    }
    if definition.packages.len() > MAX_PACKAGES {
        let problem = format!("has {} packages", definition.packages.len());
        return Err(FieldError::new("packages", problem, "at most 256"));
    }
    definition.packages.iter().try_for_each(|package| self::package(definition.package_manager, package))?;
    env_vars(&definition.env_vars)
}

/// One package as its manager names it. Never an option, a path or a URL: those
/// would fetch from, or write to, places that the operator did not name.
fn package(manager: PackageManager, name: &str) -> Result<(), FieldError> {
    let (extra, allowed): (&[u8], _) = match manager {
        PackageManager::Pip => {
            (b"[]<>=!~,", "a name with optional [extras] and versions, such as pandas or uvicorn[standard]>=0.30,<1")
        }
        PackageManager::Npm => (b"@/^~<>=", "a name with optional @scope/ and @version, such as tsx or @types/node@20"),
        PackageManager::Apt => (b"=/:~", "a name with optional =version, such as git or nodejs=20.1-1"),
        PackageManager::Cargo => (b"@", "a name with optional @version, such as ripgrep@14.1.0"),
    };
    let scoped = manager == PackageManager::Npm && name.starts_with('@');
    let head = scoped || name.bytes().next().is_some_and(|b| b.is_ascii_alphanumeric());
    let tail =
        name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-' | b'+') || extra.contains(&b));
    let path =
        name.contains("..") || name.contains("//") || (manager == PackageManager::Npm && !is_of_a_registry(name));
    // apt takes that for a package to be removed.
    let removal = manager == PackageManager::Apt && name.ends_with('-');
    if head && tail && !path && !removal && name.len() <= MAX_PACKAGE_BYTES {
        return Ok(());
    }
    Err(FieldError::new("packages", format!("{} is not a {manager} package", quoted(name)), allowed))
}

/// Whether npm takes a name for one of its registry's, and not for a file, a directory or somebody's repository: those it
/// knows by a slash, a dot or an archive's ending, also behind the `@` where a version stands.
fn is_of_a_registry(name: &str) -> bool {
    let rest = match name.strip_prefix('@') {
        Some(scoped) => match scoped.split_once('/') {
            Some((scope, rest)) if !scope.is_empty() && !scope.contains('@') => rest,
            Some(_) | None => return false,
        },
        None => name,
    };
    let (package, version) = rest.split_once('@').unwrap_or((rest, ""));
    let is_archive = [".tgz", ".tar", ".tar.gz"].iter().any(|end| name.to_ascii_lowercase().ends_with(end));
    !package.is_empty() && !rest.contains('/') && !version.starts_with('.') && !is_archive
}

/// A value for an error message: short, on one line.
pub(super) fn quoted(text: &str) -> String {
    let short: String = text.chars().take(80).collect();
    if short.len() < text.len() { format!("{short:?}…") } else { format!("{short:?}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packages_are_names_never_options_paths_or_shell() {
        use PackageManager::{Apt, Cargo, Npm, Pip};
        let good = [
            (Pip, "pandas"),
            (Pip, "uvicorn[standard]>=0.30,<1"),
            (Pip, "python-docx==1.1.2"),
            (Npm, "@types/node@^20"),
            (Npm, "tsx"),
            (Npm, "tsx@~4.19"),
            (Npm, "@llamaindex/liteparse@>=2"),
            (Apt, "g++"),
            (Apt, "libc6:arm64"),
            (Apt, "git=1:2.39.2-1"),
            (Cargo, "ripgrep@14.1.0"),
        ];
        for (manager, name) in good {
            assert!(package(manager, name).is_ok(), "{name}");
        }
        let bad = [
            "",
            "-r",
            "--index-url=x",
            "../x",
            "/etc",
            "a b",
            "a;b",
            "$(id)",
            "a`b`",
            "a\nb",
            "x@https://h/y",
            "a&b",
            "a|b",
            "é",
        ];
        for name in bad {
            for manager in [Pip, Npm, Apt, Cargo] {
                assert!(package(manager, name).is_err(), "{manager} {name:?}");
            }
        }
        assert!(package(Apt, "bash-").is_err() && package(Apt, "libc6:arm64-").is_err());
        assert!(package(Pip, "some/directory").is_err());
        for elsewhere in [
            "user/repository",
            "@types/node@user/repository",
            "@types/node@~/directory",
            "@types/node/more",
            "node@.hidden",
            "node@package.tgz",
            "package.TAR.gz",
            "@scope",
            "@/package",
            "@a@b/package",
            "@scope/@1",
        ] {
            assert!(package(Npm, elsewhere).is_err(), "{elsewhere}");
        }
    }

    #[test]
    fn references_and_aliases() {
        for good in ["debian-bookworm", "python:3.12-slim", "localhost:5000/a/b@sha256:00"] {
            assert!(reference("image", good).is_ok(), "{good}");
        }
        for bad in ["", "-x", "/etc", "a b", "a,b", "a;b", &"a".repeat(513)] {
            assert!(reference("image", bad).is_err(), "{bad}");
        }
        assert!(catalogue_alias("a-1").is_ok() && catalogue_alias("A").is_err() && catalogue_alias("1a").is_err());
        assert!(setting_alias("py3.12_X").is_ok() && setting_alias("a b").is_err());
    }
}
