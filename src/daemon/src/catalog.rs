//! The runtimes that are offered: the crate `catalog`, which `sandboxctl` reads catalogues by as well.

pub use ::catalog::*;
