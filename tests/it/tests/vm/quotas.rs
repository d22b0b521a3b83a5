//! A session's share of the disk, by the file systems that hold it to that themselves.

use it::disk::{Disk, Kind};

use crate::guest::is_guest;

#[test]
fn the_kernel_enforces_it_on_ext4() {
    enforced("256M", Kind::Ext4);
}

#[test]
fn the_kernel_enforces_it_on_xfs() {
    enforced("512M", Kind::Xfs);
}

fn enforced(size: &str, kind: Kind) {
    if !is_guest() {
        return;
    }
    let disk = Disk::new(size, kind).unwrap_or_else(|why| panic!("{why}"));
    it::quota::is_enforced_on(&disk);
    assert!(disk.projects().is_some(), "nobody tells whether it was given back: repquota is missing");
}
