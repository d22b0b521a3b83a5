//! The setting `runtimes` (`SANDBOXD_RUNTIMES`): the allowlist in one value.
//!
//! ```text
//! compact   python=python:3.12-slim,data=@workbench;mem_limit=4g;cpus=2
//! JSON      {"python": "python:3.12-slim", "data": {"runtime": "workbench", "mem_limit": "4g"}}
//! ```
//!
//! `@name` (compact) and `"runtime": "name"` or `"@name"` (JSON) take an entry of the catalogue; the other fields override
//! what the entry says. A value that starts with `{` or `[` is JSON, so that a list is
//! told that it is the wrong shape, not that it is no `alias=image`.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::Value;

use super::entry::{Recipe, Refused, from_value, memory};
use super::{
    CatalogError, Catalogue, Egress, FieldError, MAX_RUNTIMES, NetworkMode, PackageManager, Runtime, RuntimeLimits,
    Source, check,
};

const ORIGIN: &str = "SANDBOXD_RUNTIMES";
const MAX_SETTING: usize = 1024 * 1024;
const FIELDS: &str = "description, mem_limit, memswap_limit, cpus, cpu_shares, pids_limit, io_weight, open_files, tmpfs_size, \
    network_mode, oci_runtime";
const EXAMPLE: &str = "alias=image[;field=value…],… such as python=python:3.12-slim,data=@workbench;mem_limit=4g";

/// The runtimes that the setting names, in order; `catalogue` is where `@name` is looked up.
///
/// # Errors
/// [`CatalogError`], one line that starts with the variable's name.
pub fn parse_runtimes(text: &str, catalogue: &Catalogue) -> Result<Vec<Runtime>, CatalogError> {
    if text.len() > MAX_SETTING {
        return Err(form("is longer than 1 MiB".to_owned()));
    }
    let runtimes = match text.trim_start().bytes().next() {
        Some(b'{' | b'[') => from_json(text, catalogue)?,
        Some(_) | None => from_pairs(text, catalogue)?,
    };
    if runtimes.is_empty() {
        return Err(form(format!("names no runtime; allowed: {EXAMPLE}; unset it for the shipped catalogue")));
    }
    if runtimes.len() > MAX_RUNTIMES {
        return Err(form(format!("names {} runtimes; allowed: at most {MAX_RUNTIMES}", runtimes.len())));
    }
    for (index, runtime) in runtimes.iter().enumerate() {
        if runtimes.iter().take(index).any(|earlier| earlier.alias == runtime.alias) {
            return Err(whole(&runtime.alias, "this alias occurs twice; allowed: once"));
        }
    }
    Ok(runtimes)
}

/// The fields of one entry, before they are checked.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Fields {
    #[serde(default)]
    image: Option<String>,
    #[serde(default)]
    runtime: Option<Value>,
    #[serde(default)]
    description: Option<String>,
    #[serde(default)]
    mem_limit: Option<String>,
    #[serde(default)]
    memswap_limit: Option<String>,
    #[serde(default)]
    cpus: Option<f64>,
    #[serde(default)]
    cpu_shares: Option<u64>,
    #[serde(default)]
    pids_limit: Option<u64>,
    #[serde(default)]
    io_weight: Option<u64>,
    #[serde(default)]
    open_files: Option<u64>,
    #[serde(default)]
    tmpfs_size: Option<String>,
    #[serde(default)]
    network_mode: Option<String>,
    #[serde(default)]
    oci_runtime: Option<String>,
    #[serde(default)]
    egress_default: Option<String>,
    #[serde(default)]
    egress_allow: Option<Vec<String>>,
    #[serde(default)]
    egress_deny: Option<Vec<String>>,
}

/// An image that is built, written in the setting itself.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Inline {
    #[serde(default)]
    name: Option<String>,
    #[serde(default)]
    description: String,
    #[serde(default)]
    base_image: Option<String>,
    #[serde(default)]
    image: Option<String>,
    #[serde(default)]
    setup_commands: Vec<String>,
    #[serde(default)]
    packages: Vec<String>,
    #[serde(default)]
    package_manager: PackageManager,
    #[serde(default)]
    env_vars: BTreeMap<String, String>,
}

fn from_pairs(text: &str, catalogue: &Catalogue) -> Result<Vec<Runtime>, CatalogError> {
    let entries = text.split(',').map(str::trim).filter(|entry| !entry.is_empty());
    entries.map(|entry| from_pair(entry, catalogue)).collect()
}

fn from_pair(entry: &str, catalogue: &Catalogue) -> Result<Runtime, CatalogError> {
    let mut parts = entry.split(';').map(str::trim);
    let head = parts.next().unwrap_or_default();
    let (alias, source) =
        head.split_once('=').ok_or_else(|| whole(entry, &format!("is not alias=image; allowed: {EXAMPLE}")))?;
    let (alias, source) = (alias.trim(), source.trim());
    let mut fields = source_fields(source);
    for part in parts.filter(|part| !part.is_empty()) {
        let (name, value) = part.split_once('=').ok_or_else(|| {
            whole(alias, &format!("{} is not field=value; allowed fields: {FIELDS}", check::quoted(part)))
        })?;
        set(&mut fields, name.trim(), value.trim()).map_err(|refused| refused.at(ORIGIN, &check::quoted(alias)))?;
    }
    runtime(alias, fields, catalogue)
}

fn source_fields(source: &str) -> Fields {
    match source.strip_prefix('@') {
        Some(name) => Fields { runtime: Some(Value::String(name.to_owned())), ..Fields::default() },
        None => Fields { image: Some(source.to_owned()), ..Fields::default() },
    }
}

fn set(fields: &mut Fields, name: &str, value: &str) -> Result<(), Refused> {
    let text = Some(value.to_owned());
    match name {
        "description" => fields.description = text,
        "mem_limit" => fields.mem_limit = text,
        "memswap_limit" => fields.memswap_limit = text,
        "tmpfs_size" => fields.tmpfs_size = text,
        "network_mode" => fields.network_mode = text,
        "oci_runtime" => fields.oci_runtime = text,
        "cpus" => fields.cpus = Some(number("cpus", value, "a number more than 0, such as 1.5")?),
        "cpu_shares" => fields.cpu_shares = Some(number("cpu_shares", value, "a whole number from 2 to 262144")?),
        "pids_limit" => fields.pids_limit = Some(number("pids_limit", value, "a whole number, 1 or more")?),
        "io_weight" => fields.io_weight = Some(number("io_weight", value, "a whole number from 1 to 10000")?),
        "open_files" => fields.open_files = Some(number("open_files", value, "a whole number from 64 to 1048576")?),
        _ => return Err(Refused::Whole(format!("field {name}: unknown field; allowed: {FIELDS}"))),
    }
    Ok(())
}

fn number<T: std::str::FromStr>(field: &'static str, value: &str, allowed: &'static str) -> Result<T, FieldError> {
    value
        .parse()
        .map_err(|_| FieldError::new(field, format!("{} is not a number of its kind", check::quoted(value)), allowed))
}

fn from_json(text: &str, catalogue: &Catalogue) -> Result<Vec<Runtime>, CatalogError> {
    let Pairs(pairs) = serde_json::from_str(text).map_err(|e| form(format!("is not a JSON object of aliases: {e}")))?;
    pairs.into_iter().map(|(alias, value)| from_json_entry(&alias, value, catalogue)).collect()
}

fn from_json_entry(alias: &str, value: Value, catalogue: &Catalogue) -> Result<Runtime, CatalogError> {
    let fields = match value {
        Value::String(source) => source_fields(&source),
        Value::Object(_) => from_value(value).map_err(|problem| whole(alias, &problem))?,
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) => {
            return Err(whole(alias, "is neither an image's name nor an object; allowed: one of them"));
        }
    };
    runtime(alias, fields, catalogue)
}

fn runtime(alias: &str, fields: Fields, catalogue: &Catalogue) -> Result<Runtime, CatalogError> {
    check::setting_alias(alias)
        .map_err(Refused::from)
        .and_then(|()| build(alias, fields, catalogue))
        .map_err(|r| r.at(ORIGIN, &check::quoted(alias)))
}

fn build(alias: &str, mut fields: Fields, catalogue: &Catalogue) -> Result<Runtime, Refused> {
    let mut runtime = source(fields.image.take(), fields.runtime.take(), catalogue)?;
    alias.clone_into(&mut runtime.alias);
    override_egress(&mut runtime.egress, &fields)?;
    if let Some(description) = fields.description {
        check::description(&description)?;
        runtime.description = description;
    }
    if let Some(name) = fields.network_mode {
        let problem =
            || FieldError::new("network_mode", format!("{} is not a network", check::quoted(&name)), "none or bridge");
        runtime.network = Some(NetworkMode::parse(&name).ok_or_else(problem)?);
    }
    if let Some(name) = fields.oci_runtime {
        runtime.oci_runtime = Some(check::oci_runtime(&name)?);
    }
    let limits = &mut runtime.limits;
    limits.mem_limit = memory("mem_limit", fields.mem_limit.as_deref())?.or_else(|| limits.mem_limit.take());
    limits.memswap_limit = memory("memswap_limit", fields.memswap_limit.as_deref())?;
    limits.cpus = within(
        "cpus",
        fields.cpus,
        |n| n.is_finite() && *n > 0.0 && *n <= 4096.0,
        "a number more than 0, at most 4096",
    )?;
    limits.cpu_shares =
        within("cpu_shares", fields.cpu_shares, |n| (2..=262_144).contains(n), "a whole number from 2 to 262144")?;
    limits.pids_limit =
        within("pids_limit", fields.pids_limit, |n| (1..=4_194_304).contains(n), "a whole number, 1 to 4194304")?;
    limits.io_weight =
        within("io_weight", fields.io_weight, |n| (1..=10_000).contains(n), "a whole number from 1 to 10000")?;
    limits.open_files =
        within("open_files", fields.open_files, |n| (64..=1_048_576).contains(n), "a whole number from 64 to 1048576")?;
    limits.tmpfs_size = memory("tmpfs_size", fields.tmpfs_size.as_deref())?;
    Ok(runtime)
}

/// Each of the three that is written, in JSON alone, stands in place of the entry's.
fn override_egress(egress: &mut Egress, fields: &Fields) -> Result<(), FieldError> {
    let rules = |list: &Option<Vec<String>>| list.clone().unwrap_or_default();
    let own =
        Egress::read(fields.egress_default.as_deref(), &rules(&fields.egress_allow), &rules(&fields.egress_deny))?;
    egress.rest = own.rest.or(egress.rest);
    if fields.egress_allow.is_some() {
        egress.allow = own.allow;
    }
    if fields.egress_deny.is_some() {
        egress.deny = own.deny;
    }
    Ok(())
}

fn within<T: fmt::Display>(
    field: &'static str,
    value: Option<T>,
    good: impl Fn(&T) -> bool,
    allowed: &'static str,
) -> Result<Option<T>, FieldError> {
    match value {
        Some(n) if !good(&n) => Err(FieldError::new(field, format!("{n} is out of range"), allowed)),
        Some(_) | None => Ok(value),
    }
}

/// The runtime that an entry starts from: an image, an entry of the catalogue, or one written here.
fn source(image: Option<String>, named: Option<Value>, catalogue: &Catalogue) -> Result<Runtime, Refused> {
    match (image, named) {
        (Some(_), Some(_)) => Err(Refused::Whole("has both image and runtime; allowed: one of them".to_owned())),
        (None, None) => Err(Refused::Whole("has neither image nor runtime; allowed: one of them".to_owned())),
        (Some(reference), None) => {
            check::reference("image", &reference)?;
            Ok(plain(String::new(), Source::Image { reference, env_vars: BTreeMap::new() }))
        }
        (None, Some(Value::String(name))) => from_catalogue(&name, catalogue),
        (None, Some(value)) => {
            let inline: Inline = from_value(value).map_err(|problem| Refused::Whole(format!("runtime: {problem}")))?;
            from_inline(inline)
        }
    }
}

fn from_catalogue(name: &str, catalogue: &Catalogue) -> Result<Runtime, Refused> {
    catalogue.get(name).cloned().ok_or_else(|| {
        let names: Vec<_> = catalogue.runtimes().iter().map(|runtime| runtime.alias.as_str()).collect();
        let allowed = if names.is_empty() { "(the catalogue is empty)".to_owned() } else { names.join(", ") };
        Refused::Whole(format!("{} is not in the catalogue; allowed: {allowed}", check::quoted(name)))
    })
}

fn from_inline(inline: Inline) -> Result<Runtime, Refused> {
    check::description(&inline.description)?;
    if let Some(name) = &inline.name {
        check::setting_alias(name)?;
    }
    let recipe = Recipe {
        image: inline.image,
        base_image: inline.base_image,
        setup_commands: inline.setup_commands,
        packages: inline.packages,
        package_manager: inline.package_manager,
        env_vars: inline.env_vars,
    };
    Ok(plain(inline.description, recipe.into_source()?))
}

fn plain(description: String, source: Source) -> Runtime {
    Runtime {
        alias: String::new(),
        description,
        source,
        limits: RuntimeLimits::default(),
        network: None,
        egress: Egress::default(),
        oci_runtime: None,
        briefing: Vec::new(),
        shipped: false,
    }
}

fn form(problem: String) -> CatalogError {
    CatalogError::Form { origin: ORIGIN.to_owned(), problem }
}

fn whole(entry: &str, problem: &str) -> CatalogError {
    CatalogError::Entry { origin: ORIGIN.to_owned(), entry: check::quoted(entry), problem: problem.to_owned() }
}

/// A JSON object as pairs, in the order written, doubled names kept (so that they can be refused).
struct Pairs(Vec<(String, Value)>);

impl<'de> Deserialize<'de> for Pairs {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Object;
        impl<'de> Visitor<'de> for Object {
            type Value = Pairs;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object {alias: image or object}")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Pairs, A::Error> {
                let mut pairs = Vec::new();
                while let Some(pair) = map.next_entry()? {
                    pairs.push(pair);
                }
                Ok(Pairs(pairs))
            }
        }
        deserializer.deserialize_map(Object)
    }
}

#[cfg(test)]
#[path = "runtimes_tests.rs"]
mod tests;
