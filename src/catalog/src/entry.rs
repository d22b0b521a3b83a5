//! Catalogue files: JSON lists of entries, each `image` or `base_image` and what belongs to it.

use std::collections::BTreeMap;
use std::fs::DirEntry;
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};

use serde::{Deserialize, de};

use super::{
    CatalogError, Definition, Egress, FieldError, MAX_RUNTIMES, NetworkMode, PackageManager, Runtime, RuntimeLimits,
    Size, Source, check,
};

/// Largest catalogue file, in bytes.
const MAX_FILE: u64 = 1024 * 1024;
/// The least memory with which a sandbox works at all, in bytes (as `docker run --memory`).
const MIN_MEMORY: u64 = 6 * 1024 * 1024;

/// Every entry of the catalogue files, in order.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Catalogue {
    runtimes: Vec<Runtime>,
}

impl Catalogue {
    /// Read catalogue files, in the order given.
    ///
    /// # Errors
    /// [`CatalogError`] for the first that cannot be read or used, and for an alias that occurs twice.
    pub fn read<P: AsRef<Path>>(files: &[P]) -> Result<Self, CatalogError> {
        let mut catalogue = Self::default();
        for file in files {
            let origin = file.as_ref().display().to_string();
            let text =
                read_bounded(file.as_ref()).map_err(|source| CatalogError::Read { file: origin.clone(), source })?;
            catalogue.add(&origin, &text)?;
        }
        Ok(catalogue)
    }

    /// The entries of one catalogue text; `origin` names it in errors.
    ///
    /// # Errors
    /// [`CatalogError`] as for [`Catalogue::read`].
    pub fn parse(origin: &str, text: &str) -> Result<Self, CatalogError> {
        let mut catalogue = Self::default();
        catalogue.add(origin, text)?;
        Ok(catalogue)
    }

    /// The runtimes, first is the default one.
    #[must_use]
    pub fn runtimes(&self) -> &[Runtime] {
        &self.runtimes
    }

    /// The entry of this alias.
    #[must_use]
    pub fn get(&self, alias: &str) -> Option<&Runtime> {
        self.runtimes.iter().find(|runtime| runtime.alias == alias)
    }

    fn add(&mut self, origin: &str, text: &str) -> Result<(), CatalogError> {
        let form = |problem: String| CatalogError::Form { origin: origin.to_owned(), problem };
        let list: Vec<serde_json::Value> =
            serde_json::from_str(text).map_err(|e| form(format!("is not a JSON list of entries: {e}")))?;
        if list.is_empty() {
            return Err(form("has no entry; allowed: 1 or more".to_owned()));
        }
        if self.runtimes.len() + list.len() > MAX_RUNTIMES {
            return Err(form(format!("makes more than {MAX_RUNTIMES} runtimes")));
        }
        for (index, value) in list.into_iter().enumerate() {
            let name = entry_name(&value, index);
            let entry: FileEntry = from_value(value).map_err(|problem| CatalogError::Entry {
                origin: origin.to_owned(),
                entry: name.clone(),
                problem,
            })?;
            let runtime = entry.into_runtime().map_err(|refused| refused.at(origin, &name))?;
            if self.get(&runtime.alias).is_some() {
                let problem = "this alias occurs twice; allowed: once".to_owned();
                return Err(CatalogError::Entry { origin: origin.to_owned(), entry: name, problem });
            }
            self.runtimes.push(runtime);
        }
        Ok(())
    }
}

/// The catalogue files at these paths: those that are named, and the `*.json` of directories, sorted. A path that does
/// not exist counts as a directory without any, unless its name is a file's.
///
/// # Errors
/// [`CatalogError::Read`] for a directory that cannot be read: what is in it must not be taken for nothing.
pub fn files<P: AsRef<Path>>(paths: &[P]) -> Result<Vec<PathBuf>, CatalogError> {
    let is_json = |path: &Path| path.extension().is_some_and(|extension| extension == "json");
    let mut files = Vec::new();
    for path in paths.iter().map(AsRef::as_ref) {
        let entries = std::fs::read_dir(path).and_then(|entries| entries.collect::<Result<Vec<_>, _>>());
        match entries {
            Ok(entries) => {
                let mut found: Vec<PathBuf> = entries.iter().map(DirEntry::path).filter(|path| is_json(path)).collect();
                found.sort();
                files.append(&mut found);
            }
            Err(error) if error.kind() == ErrorKind::NotADirectory => files.push(path.to_owned()),
            Err(error) if error.kind() == ErrorKind::NotFound => {
                files.extend(is_json(path).then(|| path.to_owned()));
            }
            Err(source) => return Err(CatalogError::Read { file: path.display().to_string(), source }),
        }
    }
    Ok(files)
}

/// Why an entry was refused, before it is known where it stands.
pub(super) enum Refused {
    Whole(String),
    Field(FieldError),
}

impl From<FieldError> for Refused {
    fn from(field: FieldError) -> Self {
        Self::Field(field)
    }
}

impl Refused {
    pub(super) fn at(self, origin: &str, entry: &str) -> CatalogError {
        let (origin, entry) = (origin.to_owned(), entry.to_owned());
        match self {
            Self::Whole(problem) => CatalogError::Entry { origin, entry, problem },
            Self::Field(field) => CatalogError::Field { origin, entry, field },
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FileEntry {
    alias: String,
    #[serde(default)]
    description: String,
    #[serde(default)]
    image: Option<String>,
    #[serde(default)]
    base_image: Option<String>,
    #[serde(default)]
    setup_commands: Vec<String>,
    #[serde(default)]
    packages: Vec<String>,
    #[serde(default)]
    package_manager: PackageManager,
    #[serde(default)]
    env_vars: BTreeMap<String, String>,
    #[serde(default)]
    briefing: Vec<String>,
    #[serde(default)]
    mem_limit: Option<String>,
    #[serde(default)]
    needs_network: Option<bool>,
    #[serde(default)]
    egress_default: Option<String>,
    #[serde(default)]
    egress_allow: Vec<String>,
    #[serde(default)]
    egress_deny: Vec<String>,
    #[serde(default)]
    oci_runtime: Option<String>,
}

impl FileEntry {
    fn into_runtime(self) -> Result<Runtime, Refused> {
        check::catalogue_alias(&self.alias)?;
        check::description(&self.description)?;
        check::briefing(&self.briefing)?;
        let recipe = Recipe {
            image: self.image,
            base_image: self.base_image,
            setup_commands: self.setup_commands,
            packages: self.packages,
            package_manager: self.package_manager,
            env_vars: self.env_vars,
        };
        Ok(Runtime {
            alias: self.alias,
            description: self.description,
            source: recipe.into_source()?,
            limits: RuntimeLimits {
                mem_limit: memory("mem_limit", self.mem_limit.as_deref())?,
                ..RuntimeLimits::default()
            },
            egress: Egress::read(self.egress_default.as_deref(), &self.egress_allow, &self.egress_deny)?,
            network: self.needs_network.map(|needs| if needs { NetworkMode::Bridge } else { NetworkMode::None }),
            oci_runtime: self.oci_runtime.as_deref().map(check::oci_runtime).transpose()?,
            briefing: self.briefing,
            shipped: true,
        })
    }
}

/// The fields that say what an image is, in both places where they may stand.
pub(super) struct Recipe {
    pub(super) image: Option<String>,
    pub(super) base_image: Option<String>,
    pub(super) setup_commands: Vec<String>,
    pub(super) packages: Vec<String>,
    pub(super) package_manager: PackageManager,
    pub(super) env_vars: BTreeMap<String, String>,
}

impl Recipe {
    pub(super) fn into_source(self) -> Result<Source, Refused> {
        match (self.image, self.base_image) {
            (Some(_), Some(_)) => Err(Refused::Whole("has both image and base_image; allowed: one of them".to_owned())),
            (None, None) => Err(Refused::Whole("has neither image nor base_image; allowed: one of them".to_owned())),
            (Some(reference), None) => {
                check::reference("image", &reference)?;
                check::env_vars(&self.env_vars)?;
                if !self.packages.is_empty() || !self.setup_commands.is_empty() {
                    let problem = "has an image, which is used as it is, and packages or setup_commands; allowed: these with base_image";
                    return Err(Refused::Whole(problem.to_owned()));
                }
                Ok(Source::Image { reference, env_vars: self.env_vars })
            }
            (None, Some(base)) => {
                let definition = Definition {
                    base,
                    setup_commands: self.setup_commands,
                    packages: self.packages,
                    package_manager: self.package_manager,
                    env_vars: self.env_vars,
                };
                check::definition(&definition)?;
                Ok(Source::Build(definition))
            }
        }
    }
}

/// A memory limit, if there is one.
pub(super) fn memory(field: &'static str, text: Option<&str>) -> Result<Option<Size>, FieldError> {
    let Some(text) = text else { return Ok(None) };
    let size = Size::parse(text)
        .map_err(|_| FieldError::new(field, format!("{} is not a size", check::quoted(text)), super::size::ALLOWED))?;
    if size.bytes() < MIN_MEMORY {
        return Err(FieldError::new(field, format!("{} is too small", check::quoted(text)), "6m or more"));
    }
    Ok(Some(size))
}

/// Deserialise one entry; the error names the field.
pub(super) fn from_value<T: de::DeserializeOwned>(value: serde_json::Value) -> Result<T, String> {
    serde_path_to_error::deserialize(value).map_err(|error| {
        let path = error.path().to_string();
        let inner = error.into_inner().to_string();
        if path == "." { inner } else { format!("field {path}: {inner}") }
    })
}

fn entry_name(value: &serde_json::Value, index: usize) -> String {
    match value.get("alias").and_then(serde_json::Value::as_str) {
        Some(alias) => check::quoted(alias),
        None => format!("{}", index + 1),
    }
}

fn read_bounded(path: &Path) -> std::io::Result<String> {
    let mut text = String::new();
    std::fs::File::open(path)?.take(MAX_FILE + 1).read_to_string(&mut text)?;
    if text.len() as u64 > MAX_FILE {
        return Err(std::io::Error::new(ErrorKind::FileTooLarge, "more than 1 MiB"));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(text: &str) -> String {
        Catalogue::parse("c.json", text).unwrap_err().to_string()
    }

    #[test]
    fn both_shapes_in_order() {
        let text = r#"[
            {"alias": "work", "description": "d", "base_image": "python:3.12-slim", "setup_commands": ["apt-get update"],
             "packages": ["pandas", "pillow"], "env_vars": {"A": "1"}, "briefing": ["No compiler."], "mem_limit": "2g", "needs_network": true},
            {"alias": "bare", "image": "debian-bookworm"}]"#;
        let catalogue = Catalogue::parse("c.json", text).unwrap();
        let [work, bare] = catalogue.runtimes() else { panic!("two runtimes") };
        assert_eq!(work.policy_image(), "python:3.12-slim + 2 package(s)");
        assert_eq!(work.limits.mem_limit.as_ref().unwrap().bytes(), 2 << 30);
        assert_eq!(work.network, Some(NetworkMode::Bridge));
        assert_eq!((bare.policy_image().as_str(), bare.builds(), bare.network), ("debian-bookworm", false, None));
    }

    #[test]
    fn errors_name_file_entry_field_and_what_is_allowed_on_one_line() {
        let cases = [
            ("{}", "c.json: is not a JSON list of entries"),
            ("[]", "c.json: has no entry; allowed: 1 or more"),
            (r#"[{"image": "x"}]"#, "c.json: entry 1: missing field `alias`"),
            (
                r#"[{"alias": "a", "image": "x", "pakages": []}]"#,
                "c.json: entry \"a\": field pakages: unknown field `pakages`, expected one of",
            ),
            (r#"[{"alias": "a", "image": "x", "mem_limit": 7}]"#, "c.json: entry \"a\": field mem_limit: invalid type"),
            (
                r#"[{"alias": "a", "image": "x", "mem_limit": "2x"}]"#,
                "c.json: entry \"a\": field mem_limit: \"2x\" is not a size; allowed: bytes",
            ),
            (
                r#"[{"alias": "a", "image": "x", "mem_limit": "1m"}]"#,
                "c.json: entry \"a\": field mem_limit: \"1m\" is too small; allowed: 6m or more",
            ),
            (
                r#"[{"alias": "A", "image": "x"}]"#,
                "c.json: entry \"A\": field alias: \"A\" is not an alias; allowed: [a-z][a-z0-9-]*",
            ),
            (r#"[{"alias": "a"}]"#, "c.json: entry \"a\": has neither image nor base_image; allowed: one of them"),
            (
                r#"[{"alias": "a", "image": "x", "base_image": "y"}]"#,
                "c.json: entry \"a\": has both image and base_image",
            ),
            (
                r#"[{"alias": "a", "image": "x", "packages": ["p"]}]"#,
                "c.json: entry \"a\": has an image, which is used as it is",
            ),
            (
                r#"[{"alias": "a", "base_image": "x", "packages": ["-r"]}]"#,
                "c.json: entry \"a\": field packages: \"-r\" is not a pip package; allowed: a name",
            ),
            (
                r#"[{"alias": "a", "base_image": "x", "setup_commands": ["a\nb"]}]"#,
                "c.json: entry \"a\": field setup_commands: \"a\\nb\" is not a command",
            ),
            (
                r#"[{"alias": "a", "image": "x", "env_vars": {"1": "x"}}]"#,
                "c.json: entry \"a\": field env_vars: \"1\" is not a name; allowed: [A-Z",
            ),
            (
                r#"[{"alias": "a", "image": "x"}, {"alias": "a", "image": "y"}]"#,
                "c.json: entry \"a\": this alias occurs twice",
            ),
        ];
        for (text, expected) in cases {
            let message = error(text);
            assert!(message.starts_with(expected), "{text}\n  {message}\n  {expected}");
            assert!(!message.contains('\n'), "{message}");
        }
    }

    #[test]
    fn a_file_that_is_missing_or_too_large_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let missing = directory.path().join("none.json");
        let message = Catalogue::read(&[&missing]).unwrap_err().to_string();
        assert!(message.contains("none.json"), "{message}");
        let large = directory.path().join("large.json");
        std::fs::write(&large, " ".repeat(1024 * 1024 + 1)).unwrap();
        assert!(Catalogue::read(&[&large]).is_err());
    }

    #[test]
    fn what_is_not_there_is_nothing_and_what_cannot_be_read_is_an_error() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        for name in ["b.json", "a.json", "c.txt", "plain"] {
            std::fs::write(path(name), "[]").unwrap();
        }
        let found = files(&[directory.path(), &path("none"), &path("none.json"), &path("plain")]).unwrap();
        assert_eq!(found, [path("a.json"), path("b.json"), path("none.json"), path("plain")]);
        // Of what root cannot read either.
        std::os::unix::fs::symlink("loop", path("loop")).unwrap();
        for refused in [path("loop"), path("loop").join("catalog.d"), PathBuf::from("x".repeat(300))] {
            let error = files(&[&refused]).unwrap_err().to_string();
            assert_eq!(error, format!("read catalogue {}", refused.display()));
        }
    }

    #[test]
    fn the_shipped_catalogues_are_valid() {
        let directory = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../catalog"));
        let files: Vec<_> = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
        // The schema is about catalogues and is none.
        let is_catalogue =
            |path: &Path| path.extension().is_some_and(|e| e == "json") && !path.ends_with("schema.json");
        let json: Vec<_> = files.iter().filter(|path| is_catalogue(path)).collect();
        assert!(json.len() >= 5, "{json:?}");
        for file in json {
            Catalogue::read(&[file]).unwrap();
        }
    }
}
