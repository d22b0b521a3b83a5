//! `catalog`: what the service offers, and catalogue files where there is none.

use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use ::catalog::{Catalogue, Form, InForce, NetworkMode, Runtime, Size, briefing, differs, export, files, renew};
use wire::api::{RuntimeBriefing, RuntimeInfo, RuntimeList};

use crate::args::{CatalogCommand, Export, Written};
use crate::client::{Call, Client, encode};
use crate::error::Failure;
use crate::output::{Table, harmless, print, print_json, size};

/// Largest copy that is compared, in bytes.
const MAX_COPY: u64 = 16 << 20;
/// What the service's settings are unless somebody changes them.
const WORK_DIR: &str = "/workspace";
const MEMORY: &str = "1g";

/// Do what no service is asked for; none: one is.
#[must_use]
pub fn alone(command: &CatalogCommand, json: bool) -> Option<Result<(), Failure>> {
    match command {
        CatalogCommand::Check { files } => Some(check(files, json)),
        CatalogCommand::Export(asked) => Some(exported(asked)),
        CatalogCommand::Briefing { alias, files } if !files.is_empty() => Some(tell(alias, files)),
        CatalogCommand::Briefing { .. }
        | CatalogCommand::Ls
        | CatalogCommand::Show { .. }
        | CatalogCommand::Log { .. } => None,
    }
}

/// Do what the service is asked for.
pub async fn catalog(client: &mut Client, command: CatalogCommand, json: bool) -> Result<(), Failure> {
    match command {
        CatalogCommand::Ls => {
            let answer = client.ask(Call::get("list the runtimes", "/runtimes")).await?;
            if json { answer.print_json() } else { print(table(&answer.parse::<RuntimeList>()?)) }
        }
        CatalogCommand::Show { alias } => {
            let answer = client.ask(Call::get("show the runtime", path(&alias, ""))).await?;
            if json { answer.print_json() } else { print(shown(&answer.parse()?)) }
        }
        CatalogCommand::Log { alias } => {
            let answer = client.ask(Call::get("read the build's log", path(&alias, "/log"))).await?.ok()?;
            print(lines(&String::from_utf8_lossy(&answer.body)))
        }
        CatalogCommand::Briefing { alias, .. } => {
            let answer = client.ask(Call::get("read the briefing", path(&alias, "/briefing"))).await?;
            if json {
                return answer.print_json();
            }
            let told: RuntimeBriefing = answer.parse()?;
            told.briefing.map_or(Ok(()), |text| print(format!("{}\n", harmless(&text))))
        }
        CatalogCommand::Check { .. } | CatalogCommand::Export(_) => Ok(()),
    }
}

fn path(alias: &str, rest: &str) -> String {
    format!("/runtimes/{}{rest}", encode(alias))
}

/// Each line of a log as a terminal may have it.
fn lines(log: &str) -> String {
    log.lines().map(|line| format!("{}\n", harmless(line))).collect()
}

fn table(list: &RuntimeList) -> String {
    let mut table = Table::new(&["RUNTIME", "STATE", "NETWORK", "READS DOCUMENTS", "IMAGE", "DESCRIPTION"]);
    for runtime in &list.runtimes {
        let mark = if runtime.default { " (default)" } else { "" };
        table.row([
            format!("{}{mark}", runtime.alias),
            state(runtime),
            runtime.network_mode.clone(),
            reads(runtime).to_owned(),
            runtime.image.clone(),
            runtime.description.clone(),
        ]);
    }
    let mut text = table.render();
    for runtime in &list.runtimes {
        if let Some(error) = &runtime.error {
            text.push_str(&format!("{}: {}\n", harmless(&runtime.alias), harmless(error)));
        }
    }
    text
}

fn state(runtime: &RuntimeInfo) -> String {
    match (&runtime.pull, &runtime.progress) {
        (Some(pull), _) if pull.bytes > 0 => {
            format!("{} ({} of {})", runtime.state, size(pull.bytes_received), size(pull.bytes))
        }
        (_, Some(at)) => format!("{} ({} of {})", runtime.state, at.number, at.steps),
        (_, None) => runtime.state.clone(),
    }
}

fn reads(runtime: &RuntimeInfo) -> &'static str {
    match runtime.reads_documents {
        Some(true) => "yes",
        Some(false) => "no",
        None => "not known",
    }
}

fn shown(runtime: &RuntimeInfo) -> String {
    let none = || "-".to_owned();
    let mut table = Table::new(&["WHAT", "IS"]);
    let mut row = |name: &str, value: String| table.row([name.to_owned(), value]);
    row("alias", runtime.alias.clone());
    row("description", runtime.description.clone());
    row("default", if runtime.default { "yes" } else { "no" }.to_owned());
    row(if runtime.builds { "built on" } else { "image" }, runtime.image.clone());
    row("packages", if runtime.packages.is_empty() { none() } else { runtime.packages.join(", ") });
    row("network", runtime.network_mode.clone());
    row("reads documents", reads(runtime).to_owned());
    row("state", state(runtime));
    row("step", runtime.progress.as_ref().map_or_else(none, |at| at.step.clone()));
    row("tag", runtime.tag.clone().unwrap_or_else(none));
    row("error", runtime.error.clone().unwrap_or_else(none));
    table.render()
}

fn read(paths: &[PathBuf]) -> Result<Catalogue, Failure> {
    if let Some(missing) = paths.iter().find(|path| !path.exists()) {
        return Err(Failure::local("read", missing.display().to_string(), ErrorKind::NotFound.into()));
    }
    Ok(Catalogue::read(&files(paths)?)?)
}

fn check(paths: &[PathBuf], json: bool) -> Result<(), Failure> {
    let catalogue = read(paths)?;
    let aliases: Vec<&str> = catalogue.runtimes().iter().map(|runtime| runtime.alias.as_str()).collect();
    if json {
        return print_json(&aliases);
    }
    let first = aliases.first().map_or_else(String::new, |alias| format!("; {alias} is the default"));
    print(format!("{} runtimes: {}{first}\n", aliases.len(), aliases.join(", ")))
}

fn tell(alias: &str, paths: &[PathBuf]) -> Result<(), Failure> {
    let catalogue = read(paths)?;
    let Some(runtime) = catalogue.get(alias) else { return Ok(()) };
    let memory = Size::parse(MEMORY).ok();
    briefing(runtime, in_force(runtime, memory.as_ref())).map_or(Ok(()), |text| print(format!("{text}\n")))
}

/// What a service with settings as they come would have.
fn in_force<'a>(runtime: &'a Runtime, memory: Option<&'a Size>) -> InForce<'a> {
    InForce {
        network: runtime.network.unwrap_or(NetworkMode::None),
        memory: runtime.limits.mem_limit.as_ref().or(memory),
        work_dir: WORK_DIR,
    }
}

fn exported(asked: &Export) -> Result<(), Failure> {
    let catalogue = read(&asked.files)?;
    let form = match asked.form {
        Written::Json => Form::Json,
        Written::Env => Form::Env,
        Written::Compose => Form::Compose,
    };
    for copy in &asked.write {
        write(&catalogue, form, copy)?;
    }
    let mut drifted = Vec::new();
    for copy in &asked.check {
        drifted.extend(differs(&catalogue, form, &text(copy)?).map(|how| format!("{} {how}", copy.display())));
    }
    if !drifted.is_empty() {
        return Err(Failure::Differs(drifted.join("; ")));
    }
    if asked.check.is_empty() && asked.write.is_empty() { print(export(&catalogue, form)) } else { Ok(()) }
}

/// Renew a copy: whole or not at all, with the mode that it has.
fn write(catalogue: &Catalogue, form: Form, copy: &Path) -> Result<(), Failure> {
    let name = copy.display().to_string();
    let fail = |operation| move |source| Failure::local(operation, copy.display().to_string(), source);
    let old = match text(copy) {
        Ok(old) => old,
        Err(Failure::Local { source, .. }) if source.kind() == ErrorKind::NotFound => String::new(),
        Err(other) => return Err(other),
    };
    let renewed =
        renew(catalogue, form, &old).map_err(|error| Failure::Copy { what: name, reason: error.to_string() })?;
    if renewed == old {
        return Ok(());
    }
    let beside = copy.with_extension(format!("new-{}", std::process::id()));
    let written = std::fs::File::create_new(&beside).and_then(|mut file| {
        if let Ok(old) = copy.metadata() {
            file.set_permissions(old.permissions())?;
        }
        file.write_all(renewed.as_bytes())?;
        file.sync_all()?;
        std::fs::rename(&beside, copy)
    });
    if written.is_err() {
        let _ = std::fs::remove_file(&beside);
    }
    written.map_err(fail("write"))
}

fn text(path: &Path) -> Result<String, Failure> {
    use std::io::Read;
    let mut text = String::new();
    let read = std::fs::File::open(path).and_then(|file| file.take(MAX_COPY).read_to_string(&mut text));
    read.map_err(|source| Failure::local("read", path.display().to_string(), source))?;
    Ok(text)
}
