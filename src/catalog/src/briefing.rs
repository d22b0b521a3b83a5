//! What a model is told about the runtime that it works on: a paragraph composed from the entry that built it, so that a
//! package that is added to the entry is told in the same edit.
//!
//! Nothing is said of a runtime that no catalogue ships: whoever wrote it into a setting knows what is in its image, we
//! do not.

use super::{Definition, NetworkMode, PackageManager, Runtime, Size, Source};

/// Packages that are the document parser, by who installs them.
const PARSERS: [(PackageManager, &str); 3] = [
    (PackageManager::Pip, "liteparse"),
    (PackageManager::Npm, "@llamaindex/liteparse"),
    (PackageManager::Cargo, "liteparse"),
];

/// What of a runtime is the service's word where the entry has none.
#[derive(Debug, Clone, Copy)]
pub struct InForce<'a> {
    /// Its network.
    pub network: NetworkMode,
    /// Its memory; absent: no ceiling.
    pub memory: Option<&'a Size>,
    /// Where commands start.
    pub work_dir: &'a str,
}

/// The paragraph; none for a runtime that no catalogue ships.
#[must_use]
pub fn briefing(runtime: &Runtime, in_force: InForce<'_>) -> Option<String> {
    if !runtime.shipped {
        return None;
    }
    let mut sentences = vec![format!(
        "Commands run in a sandbox, on the runtime `{}`, and start in {}, where files stay from one command to the next.",
        runtime.alias, in_force.work_dir
    )];
    sentences.extend(installed(&runtime.source));
    sentences.extend(runtime.briefing.iter().map(|sentence| sentence.trim().to_owned()));
    sentences.push(network(runtime, in_force.network).to_owned());
    sentences.extend(in_force.memory.map(|size| format!("All commands together have {} of memory.", amount(size))));
    Some(sentences.join(" "))
}

/// Whether the runtime reads documents itself: whether the parser is among its packages. None where that is not known,
/// which is so of every image that was not built from an entry.
#[must_use]
pub fn reads_documents(runtime: &Runtime) -> Option<bool> {
    match &runtime.source {
        Source::Image { .. } => None,
        Source::Build(definition) => Some(definition.packages.iter().any(|package| is_parser(definition, package))),
    }
}

fn is_parser(definition: &Definition, package: &str) -> bool {
    let scoped = usize::from(package.starts_with('@'));
    let rest = package.get(scoped..).unwrap_or_default();
    let end = rest.find(['[', '<', '>', '=', '!', '~', '@', ',']).map_or(package.len(), |at| at + scoped);
    let name = package.get(..end).unwrap_or_default().to_ascii_lowercase();
    PARSERS.iter().any(|(manager, parser)| *manager == definition.package_manager && *parser == name)
}

fn installed(source: &Source) -> Option<String> {
    let definition = match source {
        Source::Image { .. } => return None,
        Source::Build(definition) if definition.packages.is_empty() => return None,
        Source::Build(definition) => definition,
    };
    let what = match definition.package_manager {
        PackageManager::Pip => "Python packages",
        PackageManager::Npm => "npm packages, globally",
        PackageManager::Apt => "Packages of the distribution",
        PackageManager::Cargo => "Programs from crates.io",
    };
    Some(format!("{what}: {}.", definition.packages.join(", ")))
}

fn network(runtime: &Runtime, mode: NetworkMode) -> &'static str {
    let limited = runtime.egress.rest == Some(wire::launch::Rest::Deny);
    match mode {
        NetworkMode::None => "There is no network: nothing can be fetched, and what is installed is what there is.",
        NetworkMode::Bridge if limited => "There is a network, which reaches the few places that this runtime is for.",
        NetworkMode::Bridge => "There is a network: pages and packages can be fetched.",
    }
}

/// A size for people.
fn amount(size: &Size) -> String {
    let bytes = size.bytes();
    [(1_u64 << 30, "GiB"), (1 << 20, "MiB")]
        .iter()
        .find(|(unit, _)| bytes.is_multiple_of(*unit))
        .map_or_else(|| format!("{bytes} bytes"), |(unit, name)| format!("{} {name}", bytes / unit))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Catalogue, parse_runtimes};

    const ENTRIES: &str = r#"[{"alias": "bench", "base_image": "b", "packages": ["pandas", "LiteParse[x]>=2"], "briefing": ["No compiler. "],
        "mem_limit": "2g", "needs_network": true}, {"alias": "bare", "image": "x"}, {"alias": "plain", "base_image": "b"},
        {"alias": "few", "base_image": "b", "egress_default": "deny", "needs_network": true}]"#;

    fn tell(runtime: &Runtime) -> Option<String> {
        let network = runtime.network.unwrap_or(NetworkMode::None);
        briefing(runtime, InForce { network, memory: runtime.limits.mem_limit.as_ref(), work_dir: "/workspace" })
    }

    #[test]
    fn it_is_composed_from_the_entry() {
        let catalogue = Catalogue::parse("c.json", ENTRIES).unwrap();
        assert_eq!(
            tell(catalogue.get("bench").unwrap()).unwrap(),
            "Commands run in a sandbox, on the runtime `bench`, and start in /workspace, where files stay from one command to the next. \
             Python packages: pandas, LiteParse[x]>=2. No compiler. There is a network: pages and packages can be fetched. \
             All commands together have 2 GiB of memory."
        );
        let bare = tell(catalogue.get("bare").unwrap()).unwrap();
        assert!(bare.ends_with("There is no network: nothing can be fetched, and what is installed is what there is."));
        assert!(!bare.contains("ackages:") && tell(catalogue.get("few").unwrap()).unwrap().contains("the few places"));
    }

    #[test]
    fn nothing_is_told_of_what_is_not_shipped() {
        let catalogue = Catalogue::parse("c.json", ENTRIES).unwrap();
        let text = r#"{"own": {"runtime": {"base_image": "b", "packages": ["pandas"]}}, "bench": "another:1", "mine": "@bench"}"#;
        let runtimes = parse_runtimes(text, &catalogue).unwrap();
        assert_eq!((tell(&runtimes[0]), tell(&runtimes[1])), (None, None), "also under a name that is");
        assert!(tell(&runtimes[2]).unwrap().contains("runtime `mine`"));
    }

    #[test]
    fn whether_documents_are_read_is_never_guessed() {
        let catalogue = Catalogue::parse("c.json", ENTRIES).unwrap();
        let reads = |alias: &str| reads_documents(catalogue.get(alias).unwrap());
        assert_eq!((reads("bench"), reads("bare"), reads("plain")), (Some(true), None, Some(false)));
        let manager = |manager: &str, package: &str| {
            let text = format!(
                r#"[{{"alias": "a", "base_image": "b", "package_manager": "{manager}", "packages": ["{package}"]}}]"#
            );
            reads_documents(Catalogue::parse("c.json", &text).unwrap().get("a").unwrap())
        };
        assert_eq!(manager("npm", "@llamaindex/liteparse@^2"), Some(true));
        assert_eq!((manager("npm", "liteparse"), manager("apt", "liteparse")), (Some(false), Some(false)));
        assert_eq!((manager("pip", "liteparse-extra"), manager("cargo", "liteparse@2.0.1")), (Some(false), Some(true)));
    }
}
