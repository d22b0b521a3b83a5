//! `ls`: a directory of a session, or one file.

use wire::api::FileEntry;

use crate::args::Ls;
use crate::client::Client;
use crate::error::Failure;
use crate::output::{Table, print, print_json, size};
use crate::remote::Remote;

/// List a directory, or show one file.
pub async fn list(client: &mut Client, ls: Ls, json: bool) -> Result<(), Failure> {
    let mut remote = Remote::new(client, ls.session);
    let path = remote.absolute(&ls.path).await?;
    let entries = match remote.list(&path).await {
        Err(failure) if failure.is_path_error("NotADirectoryError") => {
            vec![remote.stat(&path).await?]
        }
        entries => entries?,
    };
    if json { print_json(&entries) } else { print(table(&entries)) }
}

/// Entries under headings; nothing where there are none.
pub fn table(entries: &[FileEntry]) -> String {
    if entries.is_empty() {
        return String::new();
    }
    let mut table = Table::new(&[">SIZE", "MODIFIED", "NAME"]);
    for entry in entries {
        let modified = entry.modified_at.as_deref().map_or_else(|| "-".to_owned(), when);
        let name = if entry.is_dir { format!("{}/", entry.name) } else { entry.name.clone() };
        table.row([entry.size.map_or_else(|| "-".to_owned(), size), modified, name]);
    }
    table.render()
}

/// An ISO 8601 time to the second, with a space: `2026-01-31 12:00:00`.
pub fn when(iso: &str) -> String {
    iso.chars().take(19).map(|c| if c == 'T' { ' ' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listing_is_aligned_and_names_do_no_harm() {
        let entry = |name: &str, size: Option<u64>| FileEntry {
            name: name.into(),
            path: format!("/workspace/{name}"),
            is_dir: size.is_none(),
            size,
            modified_at: Some("2026-01-31T12:00:00.123456+00:00".into()),
        };
        let text = table(&[entry("data", None), entry("a\u{1b}[31m", Some(2048))]);
        assert_eq!(
            text,
            "   SIZE  MODIFIED             NAME\n      -  2026-01-31 12:00:00  data/\n2.0 KiB  2026-01-31 12:00:00  a\\u{1b}[31m\n"
        );
        assert_eq!(table(&[]), "");
    }
}
