"""What `tests/vm/run` is made of: `disks` (built once, kept), `tiers` (how a machine is started), `boot` (its life)."""
