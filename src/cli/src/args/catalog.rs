//! What may be written after `catalog`.

use std::path::PathBuf;

use clap::{Subcommand, ValueEnum};

/// `catalog`.
#[derive(Debug, clap::Args)]
pub struct CatalogOf {
    /// What to do
    #[command(subcommand)]
    pub command: CatalogCommand,
}

/// What `catalog` does.
#[derive(Debug, Subcommand)]
pub enum CatalogCommand {
    /// List the runtimes that the service offers, and how far their images are
    Ls,
    /// Show one of them
    Show {
        /// The runtime
        alias: String,
    },
    /// Print what each step of a runtime's last build has printed
    Log {
        /// The runtime
        alias: String,
    },
    /// Print what a model is told about a runtime: nothing if no catalogue ships it
    Briefing {
        /// The runtime
        alias: String,
        /// Catalogue files or directories; without them the service is asked
        #[arg(value_name = "PATH")]
        files: Vec<PathBuf>,
    },
    /// Read catalogue files as the service would, and say what is wrong
    Check {
        /// Files, or directories of *.json
        #[arg(value_name = "PATH", required = true)]
        files: Vec<PathBuf>,
    },
    /// Print the runtimes of catalogue files as the setting SANDBOXD_RUNTIMES has them
    Export(Export),
}

/// `catalog export`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Exit status: 0 done, or no copy differs; 1 one does; 65 a catalogue that cannot be used.")]
pub struct Export {
    /// Files, or directories of *.json
    #[arg(value_name = "PATH", required = true)]
    pub files: Vec<PathBuf>,
    /// How it is written: a JSON document, a line of a file of variables, a line of a compose file
    #[arg(long, value_enum, default_value_t = Written::Json)]
    pub form: Written,
    /// Compare with this copy instead; may be repeated
    #[arg(long, value_name = "FILE", conflicts_with = "write")]
    pub check: Vec<PathBuf>,
    /// Renew this copy instead, which keeps everything else that is in it; may be repeated
    #[arg(long, value_name = "FILE")]
    pub write: Vec<PathBuf>,
}

/// The form of an export.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub enum Written {
    /// The object {alias: runtime}
    Json,
    /// SANDBOXD_RUNTIMES='…'
    Env,
    /// SANDBOXD_RUNTIMES: '…', every dollar sign doubled
    Compose,
}
