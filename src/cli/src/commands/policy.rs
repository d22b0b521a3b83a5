//! `policy set`: ceilings and lifetimes, changed while the service runs.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use serde_json::{Map, Value};

use super::service;
use crate::args::PolicyCommand;
use crate::client::{Call, Client};
use crate::error::Failure;
use crate::output::{Table, print};

/// Longest file of changes, in bytes.
const FILE_MAX: u64 = 1 << 20;
/// Values that are text even where they look like numbers.
const TEXTS: [&str; 4] = ["default_runtime", "mem_limit", "memswap_limit", "tmpfs_size"];

/// Show the policy, or change it.
pub async fn policy(client: &mut Client, command: Option<PolicyCommand>, json: bool) -> Result<(), Failure> {
    let update = match command {
        None | Some(PolicyCommand::Get) => return service::policy(client, json).await,
        Some(PolicyCommand::Set { values, file: None }) => update(values).map_err(Failure::Usage)?,
        Some(PolicyCommand::Set { file: Some(path), .. }) => read(&path)?,
    };
    let answer = client.ask_json(Call::put("change the policy", "/policy"), &update).await?;
    if json { answer.print_json() } else { print(changed(&update, &answer.parse()?)) }
}

fn read(path: &Path) -> Result<Map<String, Value>, Failure> {
    let shown = path.display().to_string();
    let mut bytes = Vec::new();
    let read = if shown == "-" {
        io::stdin().lock().take(FILE_MAX + 1).read_to_end(&mut bytes)
    } else {
        File::open(path).and_then(|file| file.take(FILE_MAX + 1).read_to_end(&mut bytes))
    };
    read.map_err(|source| Failure::local("read the changes in", &shown, source))?;
    if bytes.len() as u64 > FILE_MAX {
        return Err(Failure::Usage(format!("{shown} is longer than {FILE_MAX} bytes")));
    }
    serde_json::from_slice(&bytes).map_err(|error| Failure::Usage(format!("{shown} holds no JSON object: {error}")))
}

/// The request's body.
fn update(values: Vec<(String, String)>) -> Result<Map<String, Value>, String> {
    let (mut update, mut runtimes) = (Map::new(), BTreeMap::new());
    for (name, text) in values {
        let (place, field) = match name.strip_prefix("runtimes.").map(|rest| rest.rsplit_once('.')) {
            None => (&mut update, name.as_str()),
            Some(Some((alias, field))) if !alias.is_empty() => {
                (runtimes.entry(alias.to_owned()).or_insert_with(Map::new), field)
            }
            Some(_) => return Err(format!("{name}: write runtimes.ALIAS.NAME")),
        };
        if place.insert(field.to_owned(), value(field, &text)?).is_some() {
            return Err(format!("{name} is given twice"));
        }
    }
    if !runtimes.is_empty() {
        let runtimes = runtimes.into_iter().map(|(alias, fields)| (alias, Value::Object(fields))).collect();
        update.insert("runtimes".to_owned(), Value::Object(runtimes));
    }
    Ok(update)
}

fn value(field: &str, text: &str) -> Result<Value, String> {
    if text == "null" {
        return Ok(Value::Null);
    }
    if TEXTS.contains(&field) {
        return Ok(Value::String(text.to_owned()));
    }
    serde_json::from_str(text).map_err(|_| format!("{field}={text}: a number, or null for off"))
}

/// What was changed, as it is now in force.
fn changed(update: &Map<String, Value>, policy: &Map<String, Value>) -> String {
    let mut table = Table::new(&["SETTING", "VALUE"]);
    let text = |value: Option<&Value>| match value {
        None | Some(Value::Null) => "-".to_owned(),
        Some(Value::String(text)) => text.clone(),
        Some(value) => value.to_string(),
    };
    for name in update.keys().filter(|name| *name != "runtimes") {
        table.row([name.clone(), text(policy.get(name))]);
    }
    let runtimes = update.get("runtimes").and_then(Value::as_object);
    let listed = policy.get("runtimes").and_then(Value::as_array);
    for (alias, fields) in runtimes.into_iter().flatten() {
        let now = listed
            .and_then(|list| list.iter().find(|runtime| runtime.get("alias").and_then(Value::as_str) == Some(alias)));
        for field in fields.as_object().into_iter().flat_map(Map::keys) {
            table.row([format!("runtimes.{alias}.{field}"), text(now.and_then(|now| now.get(field)))]);
        }
    }
    table.render()
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use wire::api::PolicyUpdate;

    use super::*;

    fn pairs(list: &[(&str, &str)]) -> Vec<(String, String)> {
        list.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn values_have_the_types_of_the_contract() {
        let body = update(pairs(&[
            ("max_sessions", "40"),
            ("evict_idle_after", "null"),
            ("mem_limit", "536870912"),
            ("cpus", "1.5"),
            ("runtimes.python3.12.mem_limit", "4g"),
            ("runtimes.python3.12.pids_limit", "64"),
        ]))
        .unwrap();
        let expected = json!({"max_sessions": 40, "evict_idle_after": null, "mem_limit": "536870912", "cpus": 1.5,
            "runtimes": {"python3.12": {"mem_limit": "4g", "pids_limit": 64}}});
        assert_eq!(Value::Object(body.clone()), expected);
        serde_json::from_value::<PolicyUpdate>(Value::Object(body)).unwrap();
    }

    #[test]
    fn what_cannot_be_meant_is_refused() {
        for list in [
            &[("max_sessions", "many")][..],
            &[("max_sessions", "1"), ("max_sessions", "2")],
            &[("runtimes.python", "1")],
            &[("runtimes..mem_limit", "1g")],
        ] {
            assert!(update(pairs(list)).is_err(), "{list:?}");
        }
    }

    #[test]
    fn what_is_now_in_force_is_shown() {
        let update = json!({"max_sessions": 40, "runtimes": {"a": {"mem_limit": "2g"}}});
        let policy = json!({"max_sessions": 40, "cpus": 2, "runtimes": [{"alias": "a", "mem_limit": "2g"}]});
        let text = changed(update.as_object().unwrap(), policy.as_object().unwrap());
        assert_eq!(text, "SETTING               VALUE\nmax_sessions          40\nruntimes.a.mem_limit  2g\n");
    }
}
