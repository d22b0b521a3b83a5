//! `completions` and `manual`: what the installed package knows of this program, made from the definition of its arguments.

use std::fmt::Write;

use clap::{Arg, Command, CommandFactory};
use clap_complete::Shell;

use crate::args::Args;
use crate::error::Failure;
use crate::output::print;

/// The manual page but for its commands and options, which stand where these lines are.
const PAGE: &str = include_str!("manual.1");
const COMMANDS_HERE: &str = ".\\\" COMMANDS\n";
/// Longest line of its source, in bytes.
const WIDTH: usize = 80;
const OPTIONS_HERE: &str = ".\\\" OPTIONS\n";

/// Print what `shell` sources to complete command lines.
pub fn completions(shell: Shell) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Args::command(), "sandboxctl", &mut script);
    print(script)
}

/// Print the manual page, for man(1).
pub fn manual() -> Result<(), Failure> {
    print(page())
}

fn page() -> String {
    let mut root = Args::command();
    root.build();
    let mut commands = String::new();
    for command in root.get_subcommands_mut().filter(|command| !command.is_hide_set() && command.get_name() != "help") {
        section(&mut commands, command);
    }
    let options: String = root.get_arguments().filter(|argument| !argument.is_hide_set()).map(entry).collect();
    PAGE.replace(COMMANDS_HERE, &commands).replace(OPTIONS_HERE, &options)
}

/// One command, with those below it.
fn section(page: &mut String, command: &mut Command) {
    let usage = command.render_usage().to_string();
    let usage = usage.trim_start_matches("Usage:").trim();
    let about = command.get_about().map(ToString::to_string).unwrap_or_default();
    // Writing to a String does not fail.
    let name =
        command.get_bin_name().unwrap_or_else(|| command.get_name()).trim_start_matches("sandboxctl ").to_owned();
    let _ = writeln!(page, ".SS \"{}\"\n{}", roff(&name), text(&format!("{about}.")));
    let _ = writeln!(page, ".PP\n.nf\n{}\n.fi", text(usage));
    for argument in command.get_arguments().filter(|argument| !argument.is_global_set() && argument.get_id() != "help")
    {
        page.push_str(&entry(argument));
    }
    if let Some(more) = command.get_after_help() {
        let _ = writeln!(page, ".PP\n{}", text(&more.to_string()));
    }
    for below in command.get_subcommands_mut().filter(|below| below.get_name() != "help") {
        section(page, below);
    }
}

/// One option or argument.
fn entry(argument: &Arg) -> String {
    let names = argument.get_value_names().unwrap_or_default();
    let values = names.iter().map(|name| format!("\\fI{}\\fR", roff(name))).collect::<Vec<_>>().join(" ");
    let values = if argument.get_action().takes_values() { values } else { String::new() };
    let short = argument.get_short().map(|short| format!("\\fB\\-{short}\\fR"));
    let long = argument.get_long().map(|long| format!("\\fB\\-\\-{}\\fR", roff(long)));
    let flags = [short, long].into_iter().flatten().collect::<Vec<_>>().join(", ");
    let head = [flags, values].into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(" ");
    let help = argument.get_help().map(ToString::to_string).unwrap_or_default();
    format!(".TP\n{head}\n{}\n", text(&format!("{}.", help.trim_end_matches('.'))))
}

/// Text as roff(7) takes it: in lines of at most [`WIDTH`], of which none begins like a request.
fn text(plain: &str) -> String {
    let mut lines = vec![String::new()];
    for word in plain.split_whitespace().map(roff) {
        let word = if word.starts_with(['.', '\'']) { format!("\\&{word}") } else { word };
        match lines.last_mut() {
            Some(line) if line.is_empty() => line.push_str(&word),
            Some(line) if line.len() + word.len() < WIDTH => {
                line.push(' ');
                line.push_str(&word);
            }
            _ => lines.push(word),
        }
    }
    lines.join("\n")
}

fn roff(plain: &str) -> String {
    plain.replace('\\', "\\e").replace('-', "\\-").replace('"', "\\(dq").replace('…', "...")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_has_every_command_and_no_place_left_empty() {
        let page = page();
        for command in Args::command().get_subcommands().filter(|command| !command.is_hide_set()) {
            assert!(page.contains(&format!(".SS \"{}\"", roff(command.get_name()))), "{}", command.get_name());
        }
        assert!(page.contains("\\-\\-token\\-file") && !page.contains(COMMANDS_HERE) && !page.contains(OPTIONS_HERE));
        assert!(page.is_ascii(), "{:?}", page.lines().find(|line| !line.is_ascii()));
    }

    #[test]
    fn no_text_is_taken_for_a_request() {
        assert_eq!(text(".so /etc/passwd\n'x \\fB-a\n"), "\\&.so /etc/passwd \\&'x \\efB\\-a");
        assert!(text(&"word ".repeat(99)).lines().all(|line| line.len() <= WIDTH));
    }
}
