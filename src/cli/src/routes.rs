//! Which command reaches which route of the API: all of them. A black-box test compares this with what the service says
//! that it has, and a test here sends each example and looks where it arrives.

use crate::error::Failure;
use crate::output::{Table, print, print_json};

/// Method, path and an example of the command that asks for it.
pub const ROUTES: [(&str, &str, &str); 44] = [
    ("GET", "/", "service"),
    ("GET", "/healthz", "health"),
    ("GET", "/openapi.json", "openapi"),
    ("GET", "/docs", "openapi --html"),
    ("GET", "/policy", "policy get"),
    ("PUT", "/policy", "policy set max_sessions=40"),
    ("GET", "/doctor", "doctor"),
    ("GET", "/images", "images"),
    ("GET", "/images/caches", "images caches"),
    ("POST", "/images/pull", "images pull debian:12"),
    ("DELETE", "/images/{name}", "images rm NAME"),
    ("POST", "/images/gc", "images gc --unused"),
    ("POST", "/images/import", "images import /proc/self/comm --name NAME"),
    ("GET", "/images/{name}/archive", "images export NAME -"),
    ("GET", "/runtimes", "catalog ls"),
    ("GET", "/runtimes/{alias}", "catalog show python"),
    ("GET", "/runtimes/{alias}/briefing", "catalog briefing python"),
    ("GET", "/runtimes/{alias}/log", "catalog log python"),
    ("GET", "/metrics", "metrics"),
    ("GET", "/operations", "operations --failed"),
    ("POST", "/sessions", "open --runtime python"),
    ("GET", "/sessions", "sessions"),
    ("GET", "/sessions/{session_id}", "get SESSION"),
    ("DELETE", "/sessions/{session_id}", "close SESSION --purge"),
    ("POST", "/sessions/{session_id}/hibernate", "hibernate SESSION"),
    ("POST", "/sessions/{session_id}/wake", "wake SESSION"),
    ("GET", "/sessions/{session_id}/events", "events SESSION"),
    ("POST", "/sessions/{session_id}/run", "run SESSION -- true"),
    ("POST", "/sessions/{session_id}/runs/{run_id}/stop", "stop SESSION 0123456789abcdef0123456789abcdef"),
    ("POST", "/sessions/{session_id}/files/read", "cat SESSION /workspace/f"),
    ("POST", "/sessions/{session_id}/files/write", "cp /proc/self/comm SESSION:/workspace/f"),
    ("POST", "/sessions/{session_id}/files/stat", "stat SESSION /workspace/f"),
    ("POST", "/sessions/{session_id}/files/list", "ls SESSION /workspace"),
    ("POST", "/sessions/{session_id}/files/realpath", "realpath SESSION /workspace/f"),
    ("POST", "/sessions/{session_id}/files/mkdir", "mkdir SESSION /workspace/d"),
    ("POST", "/sessions/{session_id}/files/remove", "rm SESSION /workspace/f"),
    ("GET", "/workspaces", "workspaces list"),
    ("DELETE", "/workspaces/{session_id}", "workspaces rm SESSION"),
    ("POST", "/workspaces/trees", "workspaces tree SESSION SESSION"),
    ("POST", "/workspaces/{session_id}/ls", "workspaces ls SESSION"),
    ("POST", "/workspaces/{session_id}/tree", "workspaces tree SESSION"),
    ("POST", "/workspaces/{session_id}/read", "workspaces read SESSION f"),
    ("POST", "/workspaces/{session_id}/read_bytes", "workspaces cat SESSION f"),
    ("POST", "/workspaces/{session_id}/files", "workspaces browse SESSION"),
];

/// Print the table.
///
/// # Errors
/// [`Failure::Output`].
pub fn routes(json: bool) -> Result<(), Failure> {
    if json {
        return print_json(&ROUTES.as_slice());
    }
    let mut table = Table::new(&["METHOD", "PATH", "COMMAND"]);
    for (method, path, command) in ROUTES {
        table.row([method.to_owned(), path.to_owned(), command.to_owned()]);
    }
    print(table.render())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::args::Args;
    use crate::commands;
    use crate::testing::{Server, reply};

    #[tokio::test]
    async fn every_example_arrives_where_the_table_says() {
        for (method, path, command) in ROUTES {
            // Nothing is anywhere: a command that looks first writes then.
            let nothing = r#"{"detail": {"error": "FileNotFoundError", "message": "nothing"}}"#;
            let server = Server::tcp(move |_| reply(404, nothing)).await;
            let line = format!("sandboxctl {}", command.replace("SESSION", "s1").replace("NAME", "n1"));
            let args = Args::try_parse_from(line.split_whitespace()).unwrap_or_else(|error| panic!("{line}: {error}"));
            let _ = commands::ask(args.command, &mut server.client(), args.global.json).await;
            let path = path
                .replace("{alias}", "python")
                .replace("{name}", "n1")
                .replace("{session_id}", "s1")
                .replace("{run_id}", "0123456789abcdef0123456789abcdef");
            let path = path.split('?').next().unwrap();
            let seen = server.seen();
            assert!(
                seen.iter().any(|request| (request.method(), request.path()) == (method, path)),
                "{line}: {:?}",
                seen.iter().map(|request| &request.head).collect::<Vec<_>>()
            );
        }
    }
}
