//! The catalogue as other programs take it: the allowlist of the setting `runtimes`, in each place where that is kept.
//!
//! | form | what | `'` and `$` |
//! |---|---|---|
//! | `json` | the JSON object itself | as they are |
//! | `env` | `SANDBOXD_RUNTIMES='…'`, a line of a file of variables, as a shell reads it | `'` as `\u0027` |
//! | `compose` | `SANDBOXD_RUNTIMES: '…'`, a line of a compose file's `environment` | `'` as `\u0027`, `$` doubled |
//!
//! A copy that is kept elsewhere drifts: [`differs`] says where, [`renew`] mends it. Sentences of the briefing are not in
//! the allowlist: whoever reads it there knows a runtime, not what is to be told of it.

use serde_json::{Map, Value, json};

use super::{Catalogue, Definition, Runtime, Source};

/// The variable.
const NAME: &str = "SANDBOXD_RUNTIMES";

/// Where a copy is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// A file of its own.
    Json,
    /// A file of variables.
    Env,
    /// A file of docker compose.
    Compose,
}

/// A copy cannot be renewed: it has no line for the value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("has no line `{NAME}: …`; put one below `environment:` of the service that is to have it")]
pub struct NoPlace;

impl Form {
    /// Each of them.
    pub const ALL: [Self; 3] = [Self::Json, Self::Env, Self::Compose];

    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Json => "json",
            Self::Env => "env",
            Self::Compose => "compose",
        }
    }

    /// What its line begins with.
    fn prefix(self) -> Option<&'static str> {
        match self {
            Self::Json => None,
            Self::Env => Some("SANDBOXD_RUNTIMES="),
            Self::Compose => Some("SANDBOXD_RUNTIMES:"),
        }
    }
}

/// The catalogue in this form, ending with a line break.
#[must_use]
pub fn export(catalogue: &Catalogue, form: Form) -> String {
    let value = allowlist(catalogue);
    match form {
        Form::Json => format!("{value:#}\n"),
        Form::Env => format!("{NAME}={}\n", scalar(&value, form)),
        Form::Compose => format!("{NAME}: {}\n", scalar(&value, form)),
    }
}

/// How a copy in `text` differs from the catalogue, in a few words; none: it does not.
#[must_use]
pub fn differs(catalogue: &Catalogue, form: Form, text: &str) -> Option<String> {
    let value = allowlist(catalogue);
    let Some(prefix) = form.prefix() else {
        return match serde_json::from_str::<Value>(text) {
            Ok(copy) if same(&copy, &value) => None,
            Ok(copy) => Some(first_difference(&value, &copy)),
            Err(error) => Some(format!("is not JSON: {error}")),
        };
    };
    let right = scalar(&value, form);
    let copies: Vec<&str> = text.lines().filter_map(|line| line.trim().strip_prefix(prefix)).map(str::trim).collect();
    match copies.iter().find(|copy| **copy != right) {
        None if copies.is_empty() => Some(format!("has no line that begins with {prefix}")),
        None => None,
        Some(copy) => Some(match read(copy, form) {
            Some(copy) => first_difference(&value, &copy),
            None => format!("{NAME} is not written as it is exported"),
        }),
    }
}

/// The text of a copy with the value that is right.
///
/// # Errors
/// [`NoPlace`] for a compose file that has no line for it.
pub fn renew(catalogue: &Catalogue, form: Form, text: &str) -> Result<String, NoPlace> {
    let Some(prefix) = form.prefix() else { return Ok(export(catalogue, form)) };
    let right = export(catalogue, form);
    let mut found = false;
    let mut renewed = String::with_capacity(text.len() + right.len());
    for line in text.split_inclusive('\n') {
        let content = line.trim_start();
        if content.starts_with(prefix) {
            found = true;
            renewed.push_str(&line[..line.len() - content.len()]);
            renewed.push_str(&right);
        } else {
            renewed.push_str(line);
        }
    }
    match (found, form) {
        (true, _) => Ok(renewed),
        (false, Form::Compose) => Err(NoPlace),
        (false, Form::Env | Form::Json) => {
            let end = if renewed.is_empty() || renewed.ends_with('\n') { "" } else { "\n" };
            Ok(format!("{renewed}{end}{right}"))
        }
    }
}

/// The allowlist as [`super::parse_runtimes`] takes it, in order.
fn allowlist(catalogue: &Catalogue) -> Value {
    let entries = catalogue.runtimes().iter().map(|runtime| (runtime.alias.clone(), entry(runtime)));
    Value::Object(entries.collect())
}

fn entry(runtime: &Runtime) -> Value {
    let mut fields = Map::new();
    match &runtime.source {
        Source::Image { reference, env_vars } if env_vars.is_empty() => put(&mut fields, "image", json!(reference)),
        Source::Image { reference, env_vars } => {
            put(&mut fields, "runtime", json!({"image": reference, "env_vars": env_vars}));
        }
        Source::Build(definition) => put(&mut fields, "runtime", build(&runtime.alias, definition)),
    }
    if !runtime.description.is_empty() {
        put(&mut fields, "description", json!(runtime.description));
    }
    let mut optional = |name: &str, value: Option<String>| value.map(|text| put(&mut fields, name, json!(text)));
    optional("mem_limit", runtime.limits.mem_limit.as_ref().map(ToString::to_string));
    optional("network_mode", runtime.network.map(|mode| mode.as_str().to_owned()));
    optional("oci_runtime", runtime.oci_runtime.map(|oci| oci.name().to_owned()));
    let egress = &runtime.egress;
    optional("egress_default", egress.rest_text().map(str::to_owned));
    for (name, rules) in [("egress_allow", egress.allow_texts()), ("egress_deny", egress.deny_texts())] {
        if !rules.is_empty() {
            put(&mut fields, name, json!(rules));
        }
    }
    Value::Object(fields)
}

fn build(alias: &str, definition: &Definition) -> Value {
    let mut fields = Map::new();
    put(&mut fields, "name", json!(alias));
    put(&mut fields, "base_image", json!(definition.base));
    put(&mut fields, "setup_commands", json!(definition.setup_commands));
    put(&mut fields, "packages", json!(definition.packages));
    put(&mut fields, "package_manager", json!(definition.package_manager));
    put(&mut fields, "env_vars", json!(definition.env_vars));
    Value::Object(fields)
}

fn put(fields: &mut Map<String, Value>, name: &str, value: Value) {
    fields.insert(name.to_owned(), value);
}

/// The value between apostrophes, which it has none of, so that nothing in it is read as anything but itself.
fn scalar(value: &Value, form: Form) -> String {
    let text = value.to_string().replace('\'', "\\u0027");
    match form {
        Form::Json | Form::Env => format!("'{text}'"),
        Form::Compose => format!("'{}'", text.replace('$', "$$")),
    }
}

fn read(copy: &str, form: Form) -> Option<Value> {
    let text = copy.strip_prefix('\'')?.strip_suffix('\'')?;
    match form {
        Form::Json | Form::Env => serde_json::from_str(text).ok(),
        Form::Compose => serde_json::from_str(&text.replace("$$", "$")).ok(),
    }
}

/// Order counts as well: the first entry is the default.
fn same(one: &Value, other: &Value) -> bool {
    let aliases = |list: &Value| list.as_object().map(|entries| entries.keys().cloned().collect::<Vec<_>>());
    one == other && aliases(one) == aliases(other)
}

/// What to look at first.
fn first_difference(right: &Value, copy: &Value) -> String {
    let empty = Map::new();
    let (right, copy) = (right.as_object().unwrap_or(&empty), copy.as_object().unwrap_or(&empty));
    if let Some(alias) = right.keys().find(|alias| !copy.contains_key(*alias)) {
        return format!("lacks the entry {alias:?}");
    }
    if let Some(alias) = copy.keys().find(|alias| !right.contains_key(*alias)) {
        return format!("has the entry {alias:?}, which the catalogue has not");
    }
    let changed = right.iter().find(|(alias, value)| copy.get(*alias).is_none_or(|copy| copy != *value));
    match changed {
        Some((alias, value)) => {
            let field = first_field(value, copy.get(alias).unwrap_or(&Value::Null));
            format!("differs in the entry {alias:?}{field}")
        }
        None => "is written in another way, or its entries are in another order, of which the first is the default"
            .to_owned(),
    }
}

fn first_field(right: &Value, copy: &Value) -> String {
    let empty = Map::new();
    let (right, copy) = (right.as_object().unwrap_or(&empty), copy.as_object().unwrap_or(&empty));
    let names = right.keys().chain(copy.keys());
    let name = names.into_iter().find(|name| right.get(*name) != copy.get(*name));
    name.map(|name| format!(", field {name}")).unwrap_or_default()
}

#[cfg(test)]
#[path = "export_tests.rs"]
mod tests;
