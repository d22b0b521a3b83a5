//! `workspaces`: what sessions left behind, looked at without waking anything.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use wire::api::{
    BrowseRequest, BrowseResponse, FileEntry, MAX_TREES, ReadBytesResponse, ReadRequest, ReadResponse, TreeRequest,
    TreeResponse, TreesRequest, TreesResponse, WorkspacePath, WorkspacesPage,
};
use wire::id::SessionId;

use super::du;
use crate::args::{Bounds, WorkspacesCommand};
use crate::client::{Call, Client};
use crate::error::Failure;
use crate::output::{Table, age, count, harmless, print, print_json, size};

/// Do what is asked of workspaces: exit status 1 where a part of it could not be had.
pub async fn workspaces(client: &mut Client, command: WorkspacesCommand, json: bool) -> Result<u8, Failure> {
    match command {
        WorkspacesCommand::List { skip, limit } => list(client, skip, limit, json).await.map(|()| 0),
        WorkspacesCommand::Ls(ls) => one(client, &ls.session, &ls.path, json).await.map(|()| 0),
        WorkspacesCommand::Tree { sessions, path, bounds } => match sessions.as_slice() {
            [session] => tree(client, session, path, bounds, json).await.map(|()| 0),
            _ => trees(client, sessions, path, bounds, json).await,
        },
        WorkspacesCommand::Read { session, path, offset, limit } => {
            read(client, &session, ReadRequest { path, offset, limit }, json).await.map(|()| 0)
        }
        WorkspacesCommand::Cat(file) => cat(client, &file.session, file.path, json).await.map(|()| 0),
        WorkspacesCommand::Browse { session, path, bounds, thumbnails } => {
            let thumbnails = usize::try_from(thumbnails).unwrap_or_default();
            let Bounds { depth: max_depth, .. } = bounds;
            let request = BrowseRequest { path, max_depth, max_entries: entries(bounds), thumbnails };
            browse(client, &session, &request, json).await.map(|()| 0)
        }
        WorkspacesCommand::Rm { session } => remove(client, &session, json).await.map(|()| 0),
    }
}

fn route(session: &SessionId, op: &str) -> String {
    format!("/workspaces/{session}/{op}")
}

fn entries(bounds: Bounds) -> usize {
    usize::try_from(bounds.entries).unwrap_or(usize::MAX)
}

/// What `rm --json` prints: the API answers 204.
#[derive(serde::Serialize)]
struct Removed<'a> {
    session_id: &'a str,
}

async fn remove(client: &mut Client, session: &SessionId, json: bool) -> Result<(), Failure> {
    let what = format!("delete the workspace of {session}");
    client.ask(Call::delete(&what, format!("/workspaces/{session}"))).await?.ok()?;
    if json {
        return print_json(&Removed { session_id: session.as_str() });
    }
    print(format!("the workspace of {session} is deleted\n"))
}

async fn list(client: &mut Client, skip: u64, limit: u64, json: bool) -> Result<(), Failure> {
    let call = Call::get("list the workspaces", format!("/workspaces?skip={skip}&limit={limit}"));
    let answer = client.ask(call.within(Some(du::PAGE_WITHIN))).await?;
    if json { answer.print_json() } else { print(page(&answer.parse()?)) }
}

fn page(page: &WorkspacesPage) -> String {
    let mut table = Table::new(&["SESSION", "STATE", "RUNTIME", ">FILES", ">SIZE", ">OPENED", "SEEN BY"]);
    for row in &page.workspaces {
        let more = if row.truncated { "+" } else { "" };
        let unknown = || "?".to_owned();
        table.row([
            row.session_id.to_string(),
            du::state(row.state).to_owned(),
            row.runtime.clone(),
            row.files.map_or_else(unknown, |files| format!("{files}{more}")),
            row.bytes.map_or_else(unknown, |bytes| format!("{}{more}", size(bytes))),
            age(row.last_opened),
            row.access.clone(),
        ]);
    }
    let shown = page.workspaces.len();
    let mut text = if shown == 0 { String::new() } else { table.render() };
    for row in &page.workspaces {
        if let Some(error) = &row.error {
            text.push_str(&format!("{}: {}\n", row.session_id, harmless(error)));
        }
    }
    text.push_str(&format!("{} of {}\n", shown, count(page.total, "workspace")));
    text
}

async fn one(client: &mut Client, session: &SessionId, path: &str, json: bool) -> Result<(), Failure> {
    let what = format!("list {path} of workspace {session}");
    let request = WorkspacePath { path: path.to_owned() };
    let answer = client.ask_json(Call::post(&what, route(session, "ls")), &request).await?;
    if json { answer.print_json() } else { print(super::list::table(&answer.parse::<Vec<FileEntry>>()?)) }
}

async fn tree(
    client: &mut Client,
    session: &SessionId,
    path: String,
    bounds: Bounds,
    json: bool,
) -> Result<(), Failure> {
    let what = format!("list {path} of workspace {session}");
    let request = TreeRequest { path, max_depth: bounds.depth, max_entries: entries(bounds) };
    let answer = client.ask_json(Call::post(&what, route(session, "tree")), &request).await?;
    if json { answer.print_json() } else { print(tree_text(&answer.parse()?)) }
}

async fn trees(
    client: &mut Client,
    sessions: Vec<SessionId>,
    path: String,
    bounds: Bounds,
    json: bool,
) -> Result<u8, Failure> {
    if sessions.len() > MAX_TREES {
        return Err(Failure::Usage(format!("{} workspaces; at most {MAX_TREES} at once", sessions.len())));
    }
    let request = TreesRequest { sessions, path, max_depth: bounds.depth, max_entries: entries(bounds) };
    let answer = client.ask_json(Call::post("list workspaces", "/workspaces/trees"), &request).await?;
    let trees: TreesResponse = answer.clone().parse()?;
    let status = u8::from(trees.results.iter().any(|result| result.tree.is_none()));
    if json {
        answer.print_json()?;
        return Ok(status);
    }
    for result in &trees.results {
        match &result.tree {
            Some(tree) => print(format!("{}:\n{}", result.session_id, tree_text(tree)))?,
            None => {
                eprintln!("sandboxctl: {}: {}", result.session_id, harmless(result.error.as_deref().unwrap_or("?")))
            }
        }
    }
    Ok(status)
}

fn tree_text(tree: &TreeResponse) -> String {
    // The path tells one entry from another here, not the name.
    let entry = |entry: &FileEntry| FileEntry { name: entry.path.clone(), ..entry.clone() };
    let mut text = super::list::table(&tree.entries.iter().map(entry).collect::<Vec<_>>());
    if tree.truncated {
        text.push_str("there is more: ask for more --entries or --depth\n");
    }
    text
}

async fn read(client: &mut Client, session: &SessionId, request: ReadRequest, json: bool) -> Result<(), Failure> {
    let what = format!("read {} of workspace {session}", request.path);
    let answer = client.ask_json(Call::post(&what, route(session, "read")), &request).await?;
    if json { answer.print_json() } else { print(format!("{}\n", answer.parse::<ReadResponse>()?.content)) }
}

async fn cat(client: &mut Client, session: &SessionId, path: String, json: bool) -> Result<(), Failure> {
    let what = format!("read {path} of workspace {session}");
    let call = Call::post(&what, route(session, "read_bytes"));
    let answer = client.ask_json(call, &WorkspacePath { path }).await?;
    if json {
        return answer.print_json();
    }
    let packed = answer.parse::<ReadBytesResponse>()?.content_b64;
    let bytes = STANDARD.decode(packed).map_err(|_| Failure::Foreign {
        what: what.clone(),
        address: client.address(),
        reason: "its content is no base64".to_owned(),
    })?;
    print(bytes)
}

async fn browse(client: &mut Client, session: &SessionId, request: &BrowseRequest, json: bool) -> Result<(), Failure> {
    let what = format!("browse {} of workspace {session}", request.path);
    let call = Call::post(&what, route(session, "files")).within(Some(du::PAGE_WITHIN));
    let answer = client.ask_json(call, request).await?;
    if json { answer.print_json() } else { print(browsed(&answer.parse()?)) }
}

fn browsed(answer: &BrowseResponse) -> String {
    let mut table = Table::new(&[">SIZE", "MODIFIED", "ATTACHED", "NAME"]);
    for entry in &answer.entries {
        table.row([
            entry.size.map_or_else(|| "-".to_owned(), size),
            entry.modified_at.as_deref().map_or_else(|| "-".to_owned(), super::list::when),
            if entry.attached { "yes" } else { "" }.to_owned(),
            if entry.is_dir { format!("{}/", entry.path) } else { entry.path.clone() },
        ]);
    }
    let mut text = if answer.entries.is_empty() { String::new() } else { table.render() };
    text.push_str(&format!("{}, {}\n", count(answer.files, "file"), size(answer.bytes)));
    if let Some(notice) = &answer.notice {
        text.push_str(&format!("{}\n", harmless(notice)));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_is_shown_by_paths_and_says_that_it_is_cut() {
        let entry = |path: &str, size: Option<u64>| FileEntry {
            name: "n".into(),
            path: path.into(),
            is_dir: size.is_none(),
            size,
            modified_at: None,
        };
        let tree = TreeResponse { entries: vec![entry("a", None), entry("a/b\u{7}", Some(3))], truncated: true };
        let text = tree_text(&tree);
        assert_eq!(
            text,
            "SIZE  MODIFIED  NAME\n   -  -         a/\n 3 B  -         a/b\\u{7}\nthere is more: ask for more --entries or --depth\n"
        );
    }

    #[test]
    fn a_workspace_that_cannot_be_read_is_listed_with_the_reason() {
        let row = serde_json::json!({
            "session_id": "s", "runtime": "base", "tenant": null, "key": null, "access": "one person", "state": "closed",
            "files": null, "bytes": null, "truncated": false, "error": "no entry\u{1b}", "created_at": 0.0, "last_opened": 0.0
        });
        let text = page(
            &serde_json::from_value(serde_json::json!({"workspaces": [row], "total": 7, "skip": 0, "limit": 1}))
                .unwrap(),
        );
        assert!(text.contains("closed  base         ?     ?"), "{text}");
        assert!(text.ends_with("s: no entry\\u{1b}\n1 of 7 workspaces\n"), "{text}");
    }
}
