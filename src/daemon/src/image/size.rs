//! How large layers are: the bytes of their files.

use std::io;
use std::os::fd::OwnedFd;

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags};
use wire::id::LayerId;

use super::error::StoreError;
use super::store::Store;

/// Past so many entries the rest is not counted.
const MAX_ENTRIES: u64 = 2_000_000;
/// Deeper directories are not counted.
const MAX_DEPTH: usize = 128;

/// Bytes of the regular files of a layer. Directories that only the layer's owner may read are left out.
pub(super) fn of(store: &Store, layer: &LayerId) -> Result<u64, StoreError> {
    tree(store.layer(layer)?).map_err(|e| StoreError::new("measure", format!("layers/{layer}"), e))
}

fn tree(root: OwnedFd) -> io::Result<u64> {
    let (mut total, mut entries) = (0_u64, 0_u64);
    let mut open = vec![Dir::new(root)?];
    while let Some(directory) = open.last_mut() {
        let Some(entry) = directory.next() else {
            open.pop();
            continue;
        };
        let entry = entry?;
        entries += 1;
        if entries > MAX_ENTRIES {
            break;
        }
        if matches!(entry.file_name().to_bytes(), b"." | b"..") {
            continue;
        }
        let fd = directory.fd()?;
        let stat = rustix::fs::statat(fd, entry.file_name(), AtFlags::SYMLINK_NOFOLLOW)?;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => total = total.saturating_add(u64::try_from(stat.st_size).unwrap_or(0)),
            FileType::Directory => {
                let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let child = rustix::fs::openat(fd, entry.file_name(), flags, Mode::empty());
                if let Ok(child) = child
                    && open.len() < MAX_DEPTH
                {
                    open.push(Dir::new(child)?);
                }
            }
            _ => {}
        }
    }
    Ok(total)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_count_links_do_not() {
        let root = tempfile::tempdir().unwrap();
        let layer = "a".repeat(64);
        let directory = root.path().join("layers").join(&layer);
        std::fs::create_dir_all(directory.join("b/c")).unwrap();
        std::fs::write(directory.join("b/c/file"), [0; 1000]).unwrap();
        std::fs::write(directory.join("file"), [0; 24]).unwrap();
        std::os::unix::fs::symlink("/", directory.join("b/link")).unwrap();
        let store = Store::open(std::fs::File::open(root.path()).unwrap().into()).unwrap();
        assert_eq!(of(&store, &LayerId::parse(&layer).unwrap()).unwrap(), 1024);
    }
}
