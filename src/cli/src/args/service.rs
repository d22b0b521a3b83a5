//! The arguments of what concerns the service, and this program.

use std::path::PathBuf;

use super::{context_name, variable};

/// `policy`.
#[derive(Debug, clap::Args)]
pub struct PolicyOf {
    /// What to do; without it, get
    #[command(subcommand)]
    pub command: Option<PolicyCommand>,
}

/// What `policy` does.
#[derive(Debug, clap::Subcommand)]
pub enum PolicyCommand {
    /// Show everything that is in force
    Get,
    /// Change ceilings and lifetimes, for sandboxes that start from then on
    #[command(after_help = "mem_limit=2g, max_sessions=40, evict_idle_after=null (off). Of one runtime: \
runtimes.ALIAS.mem_limit=4g. What is not named stays. It holds until the service's settings are read again.")]
    Set {
        /// What to set
        #[arg(value_name = "NAME=VALUE", value_parser = variable, required_unless_present = "file")]
        values: Vec<(String, String)>,
        /// A file with the JSON of it, or - for standard input
        #[arg(long, value_name = "FILE", conflicts_with = "values")]
        file: Option<PathBuf>,
    },
}

/// `images`.
#[derive(Debug, clap::Args)]
pub struct ImagesOf {
    /// What to do; without it, ls
    #[command(subcommand)]
    pub command: Option<ImagesCommand>,
}

/// What `images` does.
#[derive(Debug, clap::Subcommand)]
pub enum ImagesCommand {
    /// List the local images
    Ls,
    /// How large the package caches of builds are, and their ceiling
    Caches,
    /// Fetch an image, also if it is here: a tag may mean another one now
    #[command(after_help = "Who interrupts it does not end it: the service goes on.")]
    Pull {
        /// debian:12, ghcr.io/owner/image@sha256:…
        image: String,
    },
    /// Remove images that nobody uses
    Rm {
        /// As they are listed, or digests
        #[arg(required = true, value_name = "IMAGE")]
        images: Vec<String>,
    },
    /// Remove what nobody needs: layers of no image, images that others took the place of, package caches above their ceiling
    Gc {
        /// Also every image that no session and no runtime uses
        #[arg(long)]
        unused: bool,
        /// Also every package cache of builds, not only what is above their ceiling (build_cache)
        #[arg(long)]
        caches: bool,
        /// Only say what would be removed
        #[arg(long)]
        dry_run: bool,
    },
    /// Import an image: a directory with an OCI layout, or an archive of one, or what docker save and podman save write
    Import {
        /// The directory, or the archive, not compressed as a whole; - is standard input
        file: PathBuf,
        /// The name that it gets; without it the one that the archive says
        #[arg(long)]
        name: Option<String>,
        /// Which image is meant where there are several, as it is called in there
        #[arg(long)]
        tag: Option<String>,
    },
    /// Export an image as an archive that is an OCI layout and a docker archive at once, or as one of both, or as a directory
    Export {
        /// As it is listed, or its digest
        image: String,
        /// Where to, a new file or directory; - is standard output
        #[arg(required_unless_present = "output")]
        file: Option<PathBuf>,
        /// The same
        #[arg(long, short, conflicts_with = "file", value_name = "FILE")]
        output: Option<PathBuf>,
        /// both (docker load and all that read OCI archives), oci, docker, or oci-dir, a directory
        #[arg(long, default_value = "both")]
        format: ExportForm,
    },
}

/// What `images export` makes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum ExportForm {
    /// An archive that is an OCI layout and docker's at once
    Both,
    /// An archive that is an OCI layout
    Oci,
    /// An archive for docker load
    Docker,
    /// A directory with an OCI layout
    OciDir,
}

/// `prepare`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "The service makes a runtime's image when a session on it is first opened. This opens one on each runtime, \
and closes it again with its files: what it says is ready has been started. It takes the service token."
)]
pub struct Prepare {
    /// The runtimes; without any, all that are allowed
    #[arg(value_name = "RUNTIME")]
    pub runtimes: Vec<String>,
}

/// `openapi`.
#[derive(Debug, clap::Args)]
pub struct OpenApi {
    /// The page for people instead, as HTML
    #[arg(long, conflicts_with = "json")]
    pub html: bool,
}

/// `token`.
#[derive(Debug, clap::Args)]
pub struct Token {
    /// What to do
    #[command(subcommand)]
    pub command: TokenCommand,
}

/// What `token` does.
#[derive(Debug, clap::Subcommand)]
pub enum TokenCommand {
    /// Print a new one, of 244 random bits; or write it to a file that only its owner can read
    New {
        /// The file; one that is there is not replaced
        #[arg(long, value_name = "PATH")]
        file: Option<PathBuf>,
    },
}

/// `context`.
#[derive(Debug, clap::Args)]
#[command(after_help = "A context is a name for an address, with the file that holds its token. They are kept in \
$XDG_CONFIG_HOME/sandboxctl/config.toml (~/.config without it). A context's token is sent to its address and to no other.")]
pub struct ContextOf {
    /// What to do
    #[command(subcommand)]
    pub command: ContextCommand,
}

/// What `context` does.
#[derive(Debug, clap::Subcommand)]
pub enum ContextCommand {
    /// List them; the one in use is marked
    Ls,
    /// Use one when nothing else says where the service is
    Use {
        /// Its name
        #[arg(value_parser = context_name)]
        name: String,
    },
    /// Add one, or replace it: with --url or --socket, and --token-file if it takes a token
    Add {
        /// Its name
        #[arg(value_parser = context_name)]
        name: String,
    },
    /// Remove one; its token's file stays
    Rm {
        /// Its name
        #[arg(value_parser = context_name)]
        name: String,
    },
    /// Show where a command given the same options would ask, and whether it would send a token
    Show {
        /// Of this context
        #[arg(value_parser = context_name)]
        name: Option<String>,
    },
}
