//! `du`: what sessions use of the disk, whether or not they are open, most first.

use wire::api::{MAX_PAGE, WorkspaceInfo, WorkspaceState, WorkspacesPage};

use crate::client::{Call, Client};
use crate::error::Failure;
use crate::output::{Table, age, count, print, print_json, size};

/// Seconds until a page is answered: without project quotas the service looks at every file.
pub const PAGE_WITHIN: u64 = 180;

/// Show who uses what.
pub async fn du(client: &mut Client, json: bool) -> Result<(), Failure> {
    let mut all = page(client, 0).await?;
    while (all.workspaces.len() as u64) < all.total {
        let next = page(client, all.workspaces.len() as u64).await?;
        if next.workspaces.is_empty() {
            break;
        }
        all.workspaces.extend(next.workspaces);
        all.disk_bytes = all.disk_bytes.saturating_add(next.disk_bytes);
        all.disk_inodes = all.disk_inodes.saturating_add(next.disk_inodes);
        all.limit = all.limit.max(all.workspaces.len() as u64);
    }
    all.workspaces.sort_by_key(|row| std::cmp::Reverse((row.disk_bytes, row.disk_inodes)));
    if json { print_json(&all) } else { print(table(&all)) }
}

async fn page(client: &mut Client, skip: u64) -> Result<WorkspacesPage, Failure> {
    let call = Call::get("list the workspaces", format!("/workspaces?skip={skip}&limit={MAX_PAGE}"));
    client.ask(call.within(Some(PAGE_WITHIN))).await?.parse()
}

fn table(all: &WorkspacesPage) -> String {
    if all.workspaces.is_empty() {
        return "no workspace is kept\n".to_owned();
    }
    let mut table = Table::new(&[">BYTES", ">FILES", ">OF QUOTA", "STATE", ">OPENED", "TENANT", "SESSION"]);
    let unknown = || "?".to_owned();
    for row in &all.workspaces {
        table.row([
            row.disk_bytes.map_or_else(unknown, size),
            row.disk_inodes.map_or_else(unknown, |inodes| inodes.to_string()),
            share(row),
            state(row.state).to_owned(),
            age(row.last_opened),
            row.tenant.as_ref().map_or_else(|| "-".to_owned(), ToString::to_string),
            row.session_id.to_string(),
        ]);
    }
    let sessions = count(all.workspaces.len() as u64, "session");
    let files = count(all.disk_inodes, "file");
    format!("{}{} and {files} in {sessions}\n", table.render(), size(all.disk_bytes))
}

/// How much of its quota is used, of bytes or of files, whichever is more.
fn share(row: &WorkspaceInfo) -> String {
    #[allow(clippy::cast_precision_loss)] // shown in percent
    let part = |used: Option<u64>, quota: Option<u64>| Some(used? as f64 * 100.0 / quota?.max(1) as f64);
    let parts = [part(row.disk_bytes, row.disk_quota_bytes), part(row.disk_inodes, row.disk_quota_inodes)];
    let most = parts.into_iter().flatten().max_by(f64::total_cmp);
    most.map_or_else(|| "-".to_owned(), |part| format!("{part:.0} %"))
}

/// A workspace's state in a word.
pub fn state(state: WorkspaceState) -> &'static str {
    match state {
        WorkspaceState::Open => "open",
        WorkspaceState::Asleep => "asleep",
        WorkspaceState::Closed => "closed",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_known_is_said_and_the_scarcer_share_is_shown() {
        let row = |id: &str, bytes: Option<u64>, inodes: Option<u64>| {
            serde_json::json!({
                "session_id": id, "runtime": "base", "tenant": null, "key": null, "access": "", "state": "asleep", "files": 1,
                "bytes": 1, "truncated": false, "error": null, "created_at": 0.0, "last_opened": 0.0, "disk_bytes": bytes,
                "disk_inodes": inodes, "disk_quota_bytes": 1 << 30, "disk_quota_inodes": 1000
            })
        };
        let page: WorkspacesPage = serde_json::from_value(serde_json::json!({
            "workspaces": [row("a", Some(512 << 20), Some(900)), row("b", None, None)],
            "total": 2, "skip": 0, "limit": 100, "disk_bytes": 512 << 20, "disk_inodes": 900
        }))
        .unwrap();
        let text = table(&page);
        assert!(text.contains("512.0 MiB    900      90 %  asleep"), "{text}");
        assert!(text.contains("        ?      ?         -  asleep"), "{text}");
        assert!(text.ends_with("512.0 MiB and 900 files in 2 sessions\n"), "{text}");
    }
}
