//! Every figure that is counted, its name and what it means. `docs/metrics.md` is the same list for people.

use super::{By, Counter, Gauge, Histogram, Label, Text};

/// An enum whose values are those of a label.
macro_rules! label {
    ($(#[$meta:meta])* $name:ident: $label:literal { $($(#[$about:meta])* $variant:ident = $value:literal,)* }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum $name {
            $($(#[$about])* $variant,)*
        }

        impl $name {
            /// How many values it has.
            pub const COUNT: usize = [$($value),*].len();
        }

        impl Label for $name {
            const NAME: &'static str = $label;
            const VALUES: &'static [&'static str] = &[$($value),*];
            fn index(self) -> usize {
                self as usize
            }
        }
    };
}

label!(
    /// How a request to open a session ended.
    Open: "outcome" {
        /// With a new session.
        Opened = "opened",
        /// With one that was open.
        Attached = "attached",
        /// Not: a ceiling, a name that is taken, a runtime that is not allowed.
        Refused = "refused",
        /// Not: its sandbox did not start.
        Failed = "failed",
        /// Whoever asked went away.
        Abandoned = "abandoned",
    }
);
label!(
    /// How the waking of a session ended.
    Wake: "outcome" {
        /// It was frozen and goes on.
        Thawed = "thawed",
        /// It was asleep and has a new sandbox.
        Launched = "launched",
        /// It has none.
        Failed = "failed",
    }
);
label!(
    /// How a command ended.
    Run: "outcome" {
        /// With status 0.
        Ok = "ok",
        /// With another.
        Failed = "failed",
        /// At a limit of the sandbox.
        Limit = "limit",
        /// At its deadline.
        TimedOut = "timed_out",
        /// At the limit of output.
        OutputLimit = "output_limit",
        /// It was not begun: no room, or nothing that can be run.
        Refused = "refused",
        /// Its sandbox ended under it, or did not start.
        SandboxGone = "sandbox_gone",
        /// Whoever asked went away.
        Abandoned = "abandoned",
    }
);
label!(
    /// Why a sandbox ended.
    End: "reason" {
        /// Its session was closed.
        Closed = "closed",
        /// Its session was hibernated.
        Hibernated = "hibernated",
        /// It used too much of the disk.
        Disk = "disk",
        /// By itself.
        Itself = "itself",
    }
);
label!(
    /// A part of a launch, as the launcher calls it.
    Phase: "phase" {
        /// Making the cgroup.
        Cgroup = "cgroup",
        /// The user namespace with its ids.
        Mappings = "mappings",
        /// The limits.
        Limits = "limits",
        /// Opening what is mounted.
        Mounts = "mounts",
        /// Mounting it.
        Rootfs = "rootfs",
        /// Writing the OCI bundle.
        Bundle = "bundle",
        /// libcontainer, first half.
        Build = "libcontainer build",
        /// libcontainer, second half.
        Start = "libcontainer start",
        /// Its network.
        Network = "network",
        /// crun, runc or runsc.
        Oci = "oci runtime",
        /// What this version does not know.
        Other = "other",
    }
);
label!(
    /// How an image is made.
    Image: "job" {
        /// From the packages of a distribution.
        Bootstrap = "bootstrap",
        /// Pulled from a registry.
        Pull = "pull",
        /// Read from an archive.
        Import = "import",
        /// Built on another.
        Build = "build",
        /// One of these that failed.
        Failed = "failed",
    }
);
label!(
    /// What the launcher is asked for.
    Ask: "request" {
        /// Start a sandbox.
        Start = "start",
        /// End one.
        Stop = "stop",
        /// Hold one still.
        Freeze = "freeze",
        /// Let one go on.
        Thaw = "thaw",
        /// Which there are.
        List = "list",
        /// Of the disk.
        Usage = "usage",
        /// A layer of an image.
        Image = "image",
        /// Delete something.
        Remove = "remove",
        /// Of networks.
        Network = "network",
    }
);
label!(
    /// What became of a connection.
    Connection: "outcome" {
        /// It was accepted.
        Accepted = "accepted",
        /// It could not be: no descriptors.
        Failed = "failed",
        /// It had to leave for a newcomer.
        Dismissed = "dismissed",
    }
);
label!(
    /// Statuses, by their first digit, and those that tell of refusals.
    Answer: "status" {
        /// 2xx.
        Success = "2xx",
        /// 401.
        Unauthorized = "401",
        /// 429.
        TooMany = "429",
        /// The other 4xx.
        Client = "4xx",
        /// 507.
        Full = "507",
        /// The other 5xx.
        Server = "5xx",
        /// Anything else.
        Other = "other",
    }
);

/// Openings.
pub static OPENS: By<Open, Histogram, { Open::COUNT }> = By::histograms();
/// Wakings.
pub static WAKES: By<Wake, Histogram, { Wake::COUNT }> = By::histograms();
/// Commands.
pub static RUNS: By<Run, Histogram, { Run::COUNT }> = By::histograms();
/// Commands that run.
pub static RUNNING: Gauge = Gauge::new();
/// Ends of sandboxes.
pub static ENDS: By<End, Counter, { End::COUNT }> = By::counters();
/// Parts of launches.
pub static PHASES: By<Phase, Histogram, { Phase::COUNT }> = By::histograms();
/// Images that were made.
pub static IMAGES: By<Image, Histogram, { Image::COUNT }> = By::histograms();
/// Images that are being made.
pub static IMAGE_JOBS: Gauge = Gauge::new();
/// Requests to the launcher.
pub static LAUNCHER: By<Ask, Histogram, { Ask::COUNT }> = By::histograms();
/// Those that it did not do.
pub static LAUNCHER_FAILURES: By<Ask, Counter, { Ask::COUNT }> = By::counters();
/// Those that wait for it.
pub static LAUNCHER_QUEUE: Gauge = Gauge::new();
/// Transactions of the database of sessions.
pub static STORE: Histogram = Histogram::new();
/// How long they waited for their turn.
pub static STORE_WAIT: Histogram = Histogram::new();
/// How many wait, or are at it.
pub static STORE_QUEUE: Gauge = Gauge::new();
/// Movings of the operations' journal into its database.
pub static OPERATIONS_MOVE: Histogram = Histogram::new();
/// Records that are in the journal alone.
pub static OPERATIONS_QUEUE: Gauge = Gauge::new();
/// Records that could not be made.
pub static OPERATIONS_LOST: Counter = Counter::new();
/// Connections of clients.
pub static CONNECTIONS: By<Connection, Counter, { Connection::COUNT }> = By::counters();
/// Those that are open.
pub static OPEN_CONNECTIONS: Gauge = Gauge::new();
/// Answers.
pub static ANSWERS: By<Answer, Counter, { Answer::COUNT }> = By::counters();

/// Write all of them.
pub fn write(text: &mut Text) {
    let t = text;
    t.histograms("sandboxd_open_duration_seconds", "Requests to open a session, by their outcome.", &OPENS);
    t.histograms("sandboxd_wake_duration_seconds", "Wakings of sessions that were frozen or asleep.", &WAKES);
    t.histograms("sandboxd_run_duration_seconds", "Commands, by their outcome.", &RUNS);
    t.gauge("sandboxd_runs_running", "Commands that run now.", &RUNNING);
    t.counters("sandboxd_sandbox_ends_total", "Ends of sandboxes, by their reason.", &ENDS);
    t.histograms("sandboxd_launch_phase_seconds", "Parts of the starts of sandboxes.", &PHASES);
    t.histograms("sandboxd_image_job_seconds", "Images that were made, and jobs that failed.", &IMAGES);
    t.gauge("sandboxd_image_jobs_running", "Images that are being made now.", &IMAGE_JOBS);
    t.histograms("sandboxd_launcher_request_seconds", "Requests to the launcher, with their waiting.", &LAUNCHER);
    t.counters("sandboxd_launcher_failures_total", "Requests that the launcher did not carry out.", &LAUNCHER_FAILURES);
    t.gauge("sandboxd_launcher_queue", "Requests that wait for the launcher now.", &LAUNCHER_QUEUE);
    t.histogram("sandboxd_store_transaction_seconds", "Work on the database of sessions (SQLite).", &STORE);
    t.histogram("sandboxd_store_wait_seconds", "Waiting for the thread of that database.", &STORE_WAIT);
    t.gauge("sandboxd_store_queue", "Transactions that wait for that thread, or are at it, now.", &STORE_QUEUE);
    t.histogram(
        "sandboxd_operations_move_seconds",
        "Movings of the operations' journal into its database (SQLite).",
        &OPERATIONS_MOVE,
    );
    t.gauge("sandboxd_operations_queue", "Operations that are in their journal alone now.", &OPERATIONS_QUEUE);
    t.counter("sandboxd_operations_lost_total", "Operations that could not be recorded.", &OPERATIONS_LOST);
    t.counters("sandboxd_connections_total", "Connections of clients, by what became of them.", &CONNECTIONS);
    t.gauge("sandboxd_connections_open", "Connections of clients that are open now.", &OPEN_CONNECTIONS);
    t.counters("sandboxd_http_answers_total", "Answers to clients, by status.", &ANSWERS);
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_name_is_written_once_and_is_one() {
        let mut text = Text::default();
        write(&mut text);
        let text = text.done();
        let names: Vec<&str> =
            text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next()).collect();
        let different: BTreeSet<&str> = names.iter().copied().collect();
        assert_eq!(names.len(), different.len());
        for name in names {
            assert!(
                name.starts_with("sandboxd_") && name.bytes().all(|b| b.is_ascii_lowercase() || b == b'_'),
                "{name}"
            );
        }
    }
}
