//! `context`: names for services, kept in this user's configuration.

use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::args::{ContextCommand, Global};
use crate::config::{self, Config, Context};
use crate::error::Failure;
use crate::output::{Table, print, print_json};
use crate::target::{Env, Target};

/// One context, as `--json` lists it.
#[derive(Debug, Serialize)]
struct Listed<'c> {
    name: &'c str,
    address: String,
    token_file: Option<&'c Path>,
    current: bool,
}

/// Where a command would ask, as `--json` shows it.
#[derive(Debug, Serialize)]
struct Shown {
    address: String,
    by: String,
    sends_token: bool,
    withheld: Option<String>,
}

/// Do what is asked of contexts.
pub fn context(global: &Global, command: ContextCommand, env: Env<'_>) -> Result<(), Failure> {
    let home = || Failure::Usage("there is no home: set HOME or XDG_CONFIG_HOME".to_owned());
    let path = config::path(env).ok_or_else(home)?;
    match command {
        ContextCommand::Ls => list(&Config::load(&path)?, global.json),
        ContextCommand::Use { name } => {
            let mut config = Config::load(&path)?;
            config.context(&name)?;
            config.current = Some(name);
            config.save(&path)
        }
        ContextCommand::Add { name } => add(&path, global, name),
        ContextCommand::Rm { name } => {
            let mut config = Config::load(&path)?;
            config.context(&name)?;
            config.contexts.remove(&name);
            config.current = config.current.filter(|current| *current != name);
            config.save(&path)
        }
        ContextCommand::Show { name: Some(name) } => {
            show(Target::choose(&Global { context: Some(name), ..global.clone() }, env)?, global.json)
        }
        ContextCommand::Show { name: None } => show(Target::choose(global, env)?, global.json),
    }
}

fn list(config: &Config, json: bool) -> Result<(), Failure> {
    let listed = |(name, context): (&'_ String, &'_ Context)| {
        let address = context.address().map_or_else(|problem| problem, |address| address.to_string());
        (name.clone(), address, context.token_file.clone(), config.current.as_ref() == Some(name))
    };
    let rows: Vec<(String, String, Option<PathBuf>, bool)> = config.contexts.iter().map(listed).collect();
    if json {
        let rows: Vec<Listed<'_>> = rows
            .iter()
            .map(|(name, address, token_file, current)| Listed {
                name,
                address: address.clone(),
                token_file: token_file.as_deref(),
                current: *current,
            })
            .collect();
        return print_json(&rows);
    }
    if rows.is_empty() {
        return print("no context: add one with `sandboxctl context add NAME --url … --token-file …`\n");
    }
    let mut table = Table::new(&["", "CONTEXT", "ADDRESS", "TOKEN"]);
    for (name, address, token_file, current) in rows {
        let mark = if current { "*" } else { "" }.to_owned();
        table.row([mark, name, address, token_file.map_or_else(|| "-".to_owned(), |path| path.display().to_string())]);
    }
    print(table.render())
}

fn add(path: &Path, global: &Global, name: String) -> Result<(), Failure> {
    let absolute = |path: &PathBuf| {
        std::path::absolute(path).map_err(|e| Failure::local("resolve", path.display().to_string(), e))
    };
    let socket = global.socket.as_ref().map(absolute).transpose()?;
    let token_file = global.token_file.as_ref().map(absolute).transpose()?;
    let context = Context { url: global.url.clone(), socket, token_file };
    let address = context.address().map_err(|_| Failure::Usage("say where it is: --url or --socket".to_owned()))?;
    if context.token_file.is_some() && !address.is_here() {
        eprintln!(
            "sandboxctl: the token will go to {address} as it is, for everybody on the way to read: a tunnel would hide it"
        );
    }
    let mut config = Config::load(path)?;
    config.contexts.insert(name, context);
    config.save(path)
}

fn show(target: Target, json: bool) -> Result<(), Failure> {
    let Target { address, token, by, withheld } = target;
    let shown = Shown { address: address.to_string(), by, sends_token: token.is_some(), withheld };
    if json {
        return print_json(&shown);
    }
    let token = if shown.sends_token { "sent" } else { "none" };
    let withheld = shown.withheld.map_or_else(String::new, |why| format!("{why}\n"));
    print(format!("address  {}\nby       {}\ntoken    {token}\n{withheld}", shown.address, shown.by))
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use super::*;

    fn global(url: Option<&str>, socket: Option<&str>) -> Global {
        Global { url: url.map(str::to_owned), socket: socket.map(PathBuf::from), ..Global::default() }
    }

    #[test]
    fn contexts_are_added_used_and_removed() {
        let dir = tempfile::tempdir().unwrap();
        let env = |name: &str| (name == "XDG_CONFIG_HOME").then(|| OsString::from(dir.path()));
        let path = config::path(&env).unwrap();
        let name = || "lab".to_owned();
        let refused = |global: &Global, command| matches!(context(global, command, &env), Err(Failure::Usage(_)));
        assert!(refused(&global(None, None), ContextCommand::Add { name: name() }));
        assert!(refused(&global(Some("https://h"), None), ContextCommand::Add { name: name() }));
        assert!(refused(&global(None, None), ContextCommand::Use { name: name() }));
        context(&global(None, Some("relative.sock")), ContextCommand::Add { name: name() }, &env).unwrap();
        context(&global(None, None), ContextCommand::Use { name: name() }, &env).unwrap();
        let config = Config::load(&path).unwrap();
        assert_eq!(config.current.as_deref(), Some("lab"));
        assert!(config.contexts["lab"].socket.as_ref().unwrap().is_absolute());
        context(&global(None, None), ContextCommand::Rm { name: name() }, &env).unwrap();
        assert_eq!(Config::load(&path).unwrap(), Config::default());
    }
}
