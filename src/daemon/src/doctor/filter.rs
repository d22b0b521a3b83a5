//! nftables: what networks of sandboxes are filtered with.

use std::path::Path;

use wire::api::{Finding, Level};

use super::{file, fine, first_of, mended};

const PROGRAMS: [&str; 3] = ["/usr/sbin/nft", "/sbin/nft", "/usr/bin/nft"];

/// Look; `needed`: a runtime has a network.
pub fn look(needed: bool) -> Finding {
    let is_loaded = file(Path::new("/proc/modules")).lines().any(|line| line.starts_with("nf_tables "))
        || Path::new("/sys/module/nf_tables").exists();
    judge(first_of(&PROGRAMS).is_some(), is_loaded, needed)
}

fn judge(program: bool, is_loaded: bool, needed: bool) -> Finding {
    match (program, is_loaded, needed) {
        (true, true, _) => fine("nftables", "the program is installed, and the kernel has it"),
        (true, false, _) => {
            fine("nftables", "the program is installed; the kernel loads its part when it is first used")
        }
        (false, _, false) => fine("nftables", "the program is not installed, and no runtime needs a network"),
        (false, _, true) => mended(
            "nftables",
            Level::Error,
            "the program is not installed, and a runtime needs a network",
            "apt install nftables, or dnf install nftables",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_missed_only_where_a_runtime_needs_it() {
        for (program, is_loaded, needed, level) in [
            (true, true, true, Level::Ok),
            (true, false, true, Level::Ok),
            (false, true, false, Level::Ok),
            (false, true, true, Level::Error),
        ] {
            assert_eq!(judge(program, is_loaded, needed).level, level);
        }
    }
}
