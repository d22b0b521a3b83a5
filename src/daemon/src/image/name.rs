//! Names of images, and where each is looked for.
//!
//! A short name (`debian-bookworm`, `python:3.12-slim`) is looked for among the images that are here, then
//! among the recipes, then at the configured registry. A name that begins with a host
//! (`registry.example.org/team/image:tag`, `localhost:5000/image`) is that registry's alone.

use oci_spec::distribution::Reference;

use super::error::ImageError;
use super::reference;

/// Where an image can come from, and under which key it is recorded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Origin {
    /// A recipe of this host.
    Recipe(String),
    /// A registry.
    Registry(Box<Reference>),
}

impl Origin {
    /// The key of its record.
    pub(super) fn key(&self) -> String {
        match self {
            Self::Recipe(name) => format!("recipe/{name}"),
            Self::Registry(reference) => format!("registry/{reference}"),
        }
    }
}

/// The origins of `name`, best first; never empty.
pub(super) fn origins(name: &str, recipes: &[String], registry: &str) -> Result<Vec<Origin>, ImageError> {
    let invalid = |reason: String| ImageError::Name { name: name.chars().take(80).collect(), reason };
    let mut origins = Vec::new();
    if recipes.iter().any(|recipe| recipe == name) {
        origins.push(Origin::Recipe(name.to_owned()));
    }
    let named = name.split_once('/').is_some_and(|(host, _)| reference::is_registry(host));
    let full = if named { name.to_owned() } else { format!("{registry}/{name}") };
    match reference::parse(&full) {
        Ok(reference) if reference.digest().is_some_and(|digest| !digest.starts_with("sha256:")) => {
            return Err(invalid("its digest is none of sha256, the only ones that images are checked by".to_owned()));
        }
        Ok(reference) => origins.push(Origin::Registry(Box::new(reference))),
        Err(_) if !origins.is_empty() => {}
        Err(problem) => return Err(invalid(problem.to_owned())),
    }
    Ok(origins)
}

/// Whether a file in the recipes directory is a recipe: what the launcher takes as one.
pub(super) fn is_recipe(name: &str) -> bool {
    let head = name.bytes().next().is_some_and(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
    head && name.len() <= 64
        && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'.' | b'-'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(name: &str, registry: &str) -> Vec<String> {
        let recipes = ["debian-bookworm".to_owned()];
        origins(name, &recipes, registry).unwrap().iter().map(Origin::key).collect()
    }

    #[test]
    fn where_names_are_looked_for() {
        assert_eq!(
            keys("debian-bookworm", "docker.io"),
            ["recipe/debian-bookworm", "registry/docker.io/library/debian-bookworm:latest"]
        );
        assert_eq!(keys("python:3.12-slim", "docker.io"), ["registry/docker.io/library/python:3.12-slim"]);
        assert_eq!(keys("python:3.12-slim", "127.0.0.1:5000"), ["registry/127.0.0.1:5000/python:3.12-slim"]);
        assert_eq!(keys("team/image", "docker.io"), ["registry/docker.io/team/image:latest"]);
        assert_eq!(keys("localhost/x:1", "docker.io"), ["registry/localhost/x:1"]);
        assert_eq!(keys("ghcr.io/a/b", "127.0.0.1:5000"), ["registry/ghcr.io/a/b:latest"]);
        let digest = "a".repeat(64);
        assert_eq!(
            keys(&format!("x@sha256:{digest}"), "docker.io"),
            [format!("registry/docker.io/library/x@sha256:{digest}")]
        );
    }

    #[test]
    fn what_is_no_name() {
        for bad in ["", "UPPER", "a//b", "../x", "x:", "x@sha256:00", "x@md5:00000000000000000000000000000000"] {
            assert!(origins(bad, &[], "docker.io").is_err(), "{bad}");
        }
        // A digest that nothing here is checked by is said before anything is fetched.
        let other = format!("x@sha512:{}", "a".repeat(128));
        assert!(origins(&other, &[], "docker.io").unwrap_err().to_string().contains("none of sha256"));
    }
}
