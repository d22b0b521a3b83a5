//! Every type that crosses a process of sandboxd.
//!
//! | module | from → to | encoding |
//! |---|---|---|
//! | [`api`] | a client → `sandboxd` | JSON over HTTP |
//! | [`launch`] | `sandboxd` → `sandboxd-launch` | JSON, one `SOCK_SEQPACKET` message each way, descriptors beside it |
//! | [`init`] | `sandboxd` → `sandbox-init` | postcard, `SOCK_SEQPACKET` messages, descriptors beside them |
//! | [`file`] | an operation on a file, inside: within [`init`] | postcard, and the bytes of a pipe |
//! | [`journal`] | `sandboxd`, `sandboxd-launch` → the journal of systemd | its native protocol, one `SOCK_DGRAM` message each |
//! | [`tunnel`] | `sandbox-init` ↔ itself, where the kernel inside takes no descriptors | postcard, `SOCK_SEQPACKET` messages |
//! | [`id`] | the names that all of them use | strings of a fixed grammar |
//! | [`key`] | who shares a session, and the id that this means | JSON over HTTP |
//!
//! A type is serialisable only if it crosses a process; nothing here does anything.
//! This crate knows nobody: it depends on serde alone (and on utoipa's derive, for the
//! daemon's OpenAPI page, behind the feature `openapi`, and on sha2 for [`key::Key`]'s id, behind `key`).

pub mod api;
pub mod file;
pub mod id;
pub mod init;
pub mod journal;
pub mod key;
pub mod launch;
pub mod tunnel;
