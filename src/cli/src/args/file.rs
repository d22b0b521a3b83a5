//! The arguments of what is done with files.

use wire::id::SessionId;

use super::{count, session_id};

/// `ls`.
#[derive(Debug, clap::Args)]
pub struct Ls {
    /// The session
    #[arg(value_parser = session_id)]
    pub session: SessionId,
    /// Path inside; a relative one starts at the work directory
    #[arg(default_value = ".")]
    pub path: String,
}

/// `cat`, `rm`, `mkdir`: some paths of a session.
#[derive(Debug, clap::Args)]
pub struct Paths {
    /// The session
    #[arg(value_parser = session_id)]
    pub session: SessionId,
    /// Paths inside; a relative one starts at the work directory
    #[arg(required = true, value_name = "PATH")]
    pub paths: Vec<String>,
}

/// `stat`, `realpath`, `write`: one path of a session.
#[derive(Debug, clap::Args)]
pub struct OnePath {
    /// The session
    #[arg(value_parser = session_id)]
    pub session: SessionId,
    /// Path inside; a relative one starts at the work directory
    pub path: String,
}

/// `cp`.
#[derive(Debug, clap::Args)]
#[command(after_help = "One side is SESSION:PATH, the other a local path, or - for standard input or output. \
A directory is copied whole; links in it are left out, and modes are not kept. An existing directory as the target \
takes the source under its own name. A local name with a colon: write ./NAME.")]
pub struct Cp {
    /// SESSION:PATH, a local path, or -
    pub source: String,
    /// SESSION:PATH, a local path, or -
    pub target: String,
}

/// `workspaces`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "These look at what sessions left behind, or delete it, without waking anything; they take the service token."
)]
pub struct Workspaces {
    /// What to do
    #[command(subcommand)]
    pub command: WorkspacesCommand,
}

/// What `workspaces` does.
#[derive(Debug, clap::Subcommand)]
pub enum WorkspacesCommand {
    /// List the kept workspaces, last opened first
    List {
        /// Leave out so many
        #[arg(long, default_value = "0", value_name = "NUMBER", value_parser = count)]
        skip: u64,
        /// At most so many, 1 to 100
        #[arg(long, default_value = "50", value_name = "NUMBER", value_parser = clap::value_parser!(u64).range(1..=100))]
        limit: u64,
    },
    /// List one directory of a workspace
    Ls(Ls),
    /// List a directory of a workspace and those beneath it; of several workspaces at once
    Tree {
        /// The sessions, at most 100
        #[arg(required = true, value_name = "SESSION", value_parser = session_id)]
        sessions: Vec<SessionId>,
        /// Where to begin
        #[arg(long, default_value = ".")]
        path: String,
        #[command(flatten)]
        bounds: Bounds,
    },
    /// Show lines of a file: of its text, whatever its encoding; of the text in a PDF
    Read {
        /// The session
        #[arg(value_parser = session_id)]
        session: SessionId,
        /// The file
        path: String,
        /// First line, counted from 0
        #[arg(long, default_value = "0", value_name = "LINE", value_parser = count)]
        offset: u64,
        /// Most lines
        #[arg(long, default_value = "2000", value_name = "NUMBER", value_parser = clap::value_parser!(u64).range(1..))]
        limit: u64,
    },
    /// Print a file, byte by byte
    Cat(OnePath),
    /// List a tree as people are shown it, without what is not for them
    Browse {
        /// The session
        #[arg(value_parser = session_id)]
        session: SessionId,
        /// Where to begin
        #[arg(default_value = ".")]
        path: String,
        #[command(flatten)]
        bounds: Bounds,
        /// Draw thumbnails of the first so many images, 0 to 24; for --json
        #[arg(long, default_value = "0", value_name = "NUMBER", value_parser = clap::value_parser!(u64).range(0..=24))]
        thumbnails: u64,
    },
    /// Delete the workspace of a session that is closed, with everything in it
    Rm {
        /// The session
        #[arg(value_parser = session_id)]
        session: SessionId,
    },
}

/// How much of a tree is wanted.
#[derive(Debug, Clone, Copy, clap::Args)]
pub struct Bounds {
    /// Levels, 1 to 64; 1 is the directory alone
    #[arg(long, default_value = "6", value_name = "LEVELS", value_parser = clap::value_parser!(u32).range(1..=64))]
    pub depth: u32,
    /// Entries, 1 to 100000
    #[arg(long, default_value = "2000", value_name = "NUMBER", value_parser = clap::value_parser!(u64).range(1..=100_000))]
    pub entries: u64,
}
