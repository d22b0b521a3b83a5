//! Settings as they are written: texts with the name of where they stand.

use std::collections::BTreeMap;
use std::path::Path;

/// Prefix of the variables.
pub const PREFIX: &str = "SANDBOXD_";

/// A setting cannot be used. The message is one line that names the variable.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{place}: {problem}")]
pub struct ConfigError {
    /// The variable, or the file.
    pub place: String,
    /// What is wrong and what is allowed.
    pub problem: String,
}

/// The settings that somebody wrote, by their lower-case names.
#[derive(Debug, Default)]
pub struct Raw {
    values: BTreeMap<String, String>,
    /// Names that were asked for, to find those that nobody knows.
    known: std::cell::RefCell<std::collections::BTreeSet<&'static str>>,
    from_file: BTreeMap<String, String>,
}

impl Raw {
    /// Gather them from a TOML text and an environment; the environment wins.
    ///
    /// # Errors
    /// [`ConfigError`] if the text is not a TOML table of plain values.
    pub fn gather(
        file: &Path,
        text: &str,
        environment: impl IntoIterator<Item = (String, String)>,
    ) -> Result<Self, ConfigError> {
        let place = file.display().to_string();
        let table: toml::Table = text.parse().map_err(|e: toml::de::Error| ConfigError {
            place: place.clone(),
            problem: e.to_string().split_whitespace().collect::<Vec<_>>().join(" "),
        })?;
        let mut raw = Self::default();
        for (name, value) in table {
            let text = plain(&value).map_err(|problem| ConfigError { place: format!("{place}: {name}"), problem })?;
            raw.from_file.insert(name.clone(), place.clone());
            raw.values.insert(name, text);
        }
        for (variable, value) in environment {
            if let Some(name) = variable.strip_prefix(PREFIX) {
                let name = name.to_ascii_lowercase();
                raw.from_file.remove(&name);
                raw.values.insert(name, value);
            }
        }
        Ok(raw)
    }

    /// Every setting that was asked for.
    #[cfg(test)]
    pub fn names(&self) -> Vec<&'static str> {
        self.known.borrow().iter().copied().collect()
    }

    /// What a setting is if nobody has written it.
    pub fn supply(&mut self, name: &str, value: String) {
        self.values.entry(name.to_owned()).or_insert(value);
    }

    /// Whether it was written in the file.
    pub fn is_from_file(&self, name: &str) -> bool {
        self.from_file.contains_key(name)
    }

    /// The error that `name` holds something it may not.
    pub fn error(&self, name: &str, problem: impl Into<String>) -> ConfigError {
        let variable = format!("{PREFIX}{}", name.to_ascii_uppercase());
        let place = match self.from_file.get(name) {
            Some(file) => format!("{variable} ({name} in {file})"),
            None => variable,
        };
        ConfigError { place, problem: problem.into() }
    }

    /// The text of a setting that must not be empty; absent: `None`.
    ///
    /// # Errors
    /// [`ConfigError`] if it is empty.
    pub fn text(&self, name: &'static str) -> Result<Option<&str>, ConfigError> {
        match self.nullable(name) {
            Some("") => Err(self.error(name, "is empty; leave it out for the default")),
            other => Ok(other),
        }
    }

    /// The text of a setting that is off when empty.
    pub fn nullable(&self, name: &'static str) -> Option<&str> {
        self.known.borrow_mut().insert(name);
        self.values.get(name).map(|value| value.trim())
    }

    /// A setting read by `parse`, or `default`; `allowed` says what there may be.
    ///
    /// # Errors
    /// [`ConfigError`].
    pub fn parsed<T>(
        &self,
        name: &'static str,
        default: T,
        allowed: &str,
        parse: impl FnOnce(&str) -> Option<T>,
    ) -> Result<T, ConfigError> {
        match self.text(name)? {
            None => Ok(default),
            Some(text) => parse(text).ok_or_else(|| self.not_allowed(name, text, allowed)),
        }
    }

    /// The same for one that is off (`None`) when empty.
    ///
    /// # Errors
    /// [`ConfigError`].
    pub fn parsed_or_off<T>(
        &self,
        name: &'static str,
        default: Option<T>,
        allowed: &str,
        parse: impl FnOnce(&str) -> Option<T>,
    ) -> Result<Option<T>, ConfigError> {
        match self.nullable(name) {
            None => Ok(default),
            Some("") => Ok(None),
            Some(text) => parse(text).map(Some).ok_or_else(|| self.not_allowed(name, text, allowed)),
        }
    }

    /// A setting of the file that nobody asked for. (A variable may be another program's.)
    pub fn unknown(&self) -> Option<ConfigError> {
        let known = self.known.borrow();
        let name = self.from_file.keys().find(|name| !known.contains(name.as_str()))?;
        Some(self.error(name, "is not a setting"))
    }

    fn not_allowed(&self, name: &str, text: &str, allowed: &str) -> ConfigError {
        let shown: String = text.chars().take(80).collect();
        // A secret that is wrong is not repeated in a log.
        let shown = if name.ends_with("token") { "its value".to_owned() } else { format!("{shown:?}") };
        self.error(name, format!("{shown} is not allowed; allowed: {allowed}"))
    }
}

/// A TOML value as the environment would have it.
fn plain(value: &toml::Value) -> Result<String, String> {
    match value {
        toml::Value::String(text) => Ok(text.clone()),
        toml::Value::Integer(number) => Ok(number.to_string()),
        toml::Value::Float(number) => Ok(number.to_string()),
        toml::Value::Boolean(flag) => Ok(flag.to_string()),
        toml::Value::Array(items) => {
            let items: Result<Vec<_>, _> = items.iter().map(plain).collect();
            items.map(|items| items.join(","))
        }
        toml::Value::Table(_) => serde_json::to_string(value).map_err(|e| e.to_string()),
        toml::Value::Datetime(_) => Err("is a date; no setting is".into()),
    }
}

/// `1`, `true`, `yes`, `on` and their opposites, in any case.
pub fn boolean(text: &str) -> Option<bool> {
    match text.to_ascii_lowercase().as_str() {
        "1" | "true" | "yes" | "on" => Some(true),
        "0" | "false" | "no" | "off" => Some(false),
        _ => None,
    }
}
