//! What a client of the API tries, with and without a token.

mod connections;
mod logs;
mod paths;
mod requests;
mod swap;
mod tokens;

pub use logs::LAZY;

use it::{Client, Response};

use crate::ground::Ground;
use crate::report::{Control, Report, Row};

/// Try them all.
pub fn probe(ground: &Ground, report: &mut Report) {
    report.class("api: every field that names something");
    paths::probe(ground, report);
    report.class("api: a directory and a link, swapped meanwhile");
    swap::probe(ground, report);
    report.class("api: another session's token");
    tokens::probe(ground, report);
    report.class("api: requests that mean two things, or too much");
    requests::probe(ground, report);
    report.class("api: names that reach the log");
    logs::probe(ground, report);
    report.class("api: connections");
    connections::probe(ground, report);
}

fn row(report: &mut Report, probe: &str, expected: &str, got: &str, held: bool, control: Control) {
    let (probe, expected, got) = (probe.to_owned(), expected.to_owned(), got.to_owned());
    report.add(&Row { probe, expected, got, held, control });
}

/// An answer, or status 0 where the connection was closed without one.
fn ask(client: &Client, method: &str, path: &str, body: &[u8]) -> Response {
    let head = client.head(method, path, Some("application/json"), body.len());
    let answer = client.connect().exchange(&head, body);
    answer.unwrap_or_else(|error| Response { status: 0, headers: Vec::new(), body: error.to_string().into_bytes() })
}

/// The most memory that the service has ever had, in MiB.
fn peak(ground: &Ground) -> u64 {
    let kib = |pid| it::host::status(pid, "VmHWM").and_then(|text| text.split(' ').next()?.parse::<u64>().ok());
    it::host::children(ground.daemon.pid).into_iter().filter_map(kib).max().unwrap_or(0) >> 10
}

/// Whether the service answers, and promptly: once of a few times, where the machine is somebody else's meanwhile.
fn answers(ground: &Ground) -> bool {
    let promptly = || {
        let begun = std::time::Instant::now();
        ground.daemon.client.get("/healthz").status == 200 && begun.elapsed().as_secs() < 2
    };
    (0..3).any(|_| promptly())
}
