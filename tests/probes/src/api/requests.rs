//! Requests that two programs may read differently, and requests that are more than they should be.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use it::http::Endpoint;

use super::{answers, peak, row};
use crate::ground::Ground;
use crate::report::{Control, Report};

/// How long an answer is waited for.
const PATIENCE: Duration = Duration::from_secs(3);
/// A request that should not be seen as one.
const SMUGGLED: &str = "GET /healthz?smuggled HTTP/1.1\r\nHost: x\r\n\r\n";
/// How much of a body that is too long the service may take before it closes the connection, so that the answer is read: what
/// it throws away, and the largest file or command before.
const TAKEN: u64 = (64 + 8) << 20;
/// The same of somebody without a token.
const TAKEN_OF_STRANGER: u64 = 1 << 20;

/// Try them all.
pub fn probe(ground: &Ground, report: &mut Report) {
    ambiguous(ground, report);
    deep(ground, report);
    large(ground, report);
}

fn connect(ground: &Ground) -> TcpStream {
    let Endpoint::Tcp(address) = ground.daemon.client.endpoint else { panic!("the client is over TCP") };
    let stream = TcpStream::connect(address).expect("connect");
    stream.set_read_timeout(Some(PATIENCE)).expect("a time-out");
    stream.set_write_timeout(Some(PATIENCE)).expect("a time-out");
    stream
}

/// Everything that comes back until the connection is closed or silent.
fn exchange(ground: &Ground, bytes: &[u8]) -> String {
    let mut stream = connect(ground);
    let _ = stream.write_all(bytes);
    let mut said = Vec::new();
    let mut piece = [0; 4096];
    while let Ok(count) = stream.read(&mut piece) {
        if count == 0 {
            break;
        }
        said.extend_from_slice(&piece[..count]);
    }
    String::from_utf8_lossy(&said).into_owned()
}

fn statuses(said: &str) -> Vec<&str> {
    said.match_indices("HTTP/1.1 ").filter_map(|(at, _)| said.get(at + 9..at + 12)).collect()
}

fn ambiguous(ground: &Ground, report: &mut Report) {
    let post = |headers: &str, body: &str| {
        format!("POST /sessions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n{headers}\r\n{body}")
    };
    let length = SMUGGLED.len();
    let last = "Connection: close\r\n";
    let cases = [
        ("two Content-Lengths", post(&format!("Content-Length: 0\r\nContent-Length: {length}\r\n"), SMUGGLED)),
        ("Content-Lengths in one", post(&format!("Content-Length: 0, {length}\r\n"), SMUGGLED)),
        (
            "Content-Length and chunked",
            post("Content-Length: 4\r\nTransfer-Encoding: chunked\r\n", &format!("0\r\n\r\n{SMUGGLED}")),
        ),
        (
            "chunked and Content-Length",
            post(
                &format!("Transfer-Encoding: chunked\r\nContent-Length: {}\r\n", length + 5),
                &format!("0\r\n\r\n{SMUGGLED}"),
            ),
        ),
        ("an unknown Transfer-Encoding", post("Transfer-Encoding: xchunked\r\n", &format!("0\r\n\r\n{SMUGGLED}"))),
        ("chunked, then identity", post("Transfer-Encoding: chunked, identity\r\n", &format!("0\r\n\r\n{SMUGGLED}"))),
        (
            "two Transfer-Encodings",
            post(
                "Transfer-Encoding: identity\r\nTransfer-Encoding: chunked\r\nContent-Length: 4\r\n",
                &format!("0\r\n\r\n{SMUGGLED}"),
            ),
        ),
        ("a folded header", post(&format!("X: y\r\n Content-Length: 0\r\nContent-Length: {length}\r\n"), SMUGGLED)),
        ("a space before the colon", post(&format!("Content-Length : 0\r\nContent-Length: {length}\r\n"), SMUGGLED)),
        ("a sign before the length", post(&format!("Content-Length: +{length}\r\n"), SMUGGLED)),
        ("a length below nothing", post("Content-Length: -1\r\n", SMUGGLED)),
        ("a length beyond all", post("Content-Length: 99999999999999999999999\r\n", SMUGGLED)),
        ("a chunk beyond all", post("Transfer-Encoding: chunked\r\n", &format!("10000000000000000\r\n{SMUGGLED}"))),
        ("a chunk of nonsense", post("Transfer-Encoding: chunked\r\n", &format!("-1\r\n{SMUGGLED}"))),
        ("a NUL in a header", post("X: a\0b\r\nContent-Length: 0\r\n", "")),
        ("a bare CR in a header", post(&format!("X: a\rContent-Length: 0\r\nContent-Length: {length}\r\n"), SMUGGLED)),
        ("bare LF in a head", format!("POST /sessions HTTP/1.1\nHost: x\nContent-Length: {length}\n\n{SMUGGLED}")),
    ];
    let pair = exchange(
        ground,
        format!(
            "{}{}",
            "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n",
            SMUGGLED.replace("Host: x\r\n", &format!("Host: x\r\n{last}"))
        )
        .as_bytes(),
    );
    let works = statuses(&pair) == ["200", "200"];
    for (what, request) in cases {
        let said = exchange(ground, request.as_bytes());
        let seen = statuses(&said);
        let held = seen.len() <= 1 && !seen.contains(&"200") && seen.iter().all(|status| status.starts_with('4'));
        let got = if seen.is_empty() { "closed".to_owned() } else { seen.join(", ") };
        row(report, what, "one answer, no 200", &got, held, Control::of(works, "two honest requests have two answers"));
    }
}

fn deep(ground: &Ground, report: &mut Report) {
    let client = &ground.daemon.client;
    let session = ground.session("root");
    let works = client.post("/sessions", serde_json::json!({"session_id": [[["x"]]]})).status == 422;
    for (what, body) in [
        ("lists 100,000 deep", "[".repeat(100_000)),
        ("objects 100,000 deep", r#"{"a":"#.repeat(100_000)),
        ("a field 100,000 deep", format!("{{\"key\": {}", "[".repeat(100_000))),
        ("a number of 100,000 digits", format!("{{\"session_id\": 7, \"timeout_seconds\": {}}}", "9".repeat(100_000))),
        (
            "100,000 fields",
            format!(
                "{{\"session_id\": 7, {}}}",
                (0..100_000).map(|n| format!("\"{n}\":0")).collect::<Vec<_>>().join(",")
            ),
        ),
    ] {
        let mut seen = Vec::new();
        for path in [
            "/sessions".to_owned(),
            session.path("/run"),
            session.path("/files/read"),
            format!("/workspaces/{}/tree", session.id),
            "/workspaces/trees".to_owned(),
        ] {
            seen.push(client.send("POST", &path, Some("application/json"), body.as_bytes()).status);
        }
        seen.push(client.send("PUT", "/policy", Some("application/json"), body.as_bytes()).status);
        // A tree is asked for with any object: what is not known in it is left alone.
        let held = seen.iter().all(|status| [200, 413, 422].contains(status)) && seen[0] != 200 && answers(ground);
        row(report, what, "no 5xx, no crash", &format!("{seen:?}"), held, Control::of(works, "three levels are 422"));
    }
}

/// Send up to `most` bytes in chunks, and tell how many were taken and what was answered.
fn pour(ground: &Ground, path: &str, token: &[u8], most: u64) -> (u64, String) {
    let mut stream = connect(ground);
    let mut head = format!("POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n").into_bytes();
    if !token.is_empty() {
        head.extend_from_slice(b"X-Sandbox-Token: ");
        head.extend_from_slice(token);
        head.extend_from_slice(b"\r\n");
    }
    head.extend_from_slice(b"Transfer-Encoding: chunked\r\n\r\n");
    let chunk = [b"100000\r\n".as_slice(), &vec![b' '; 1 << 20], b"\r\n"].concat();
    let mut taken = 0;
    if stream.write_all(&head).is_ok() {
        while taken < most && stream.write_all(&chunk).is_ok() {
            taken += 1 << 20;
        }
    }
    let mut answer = [0; 512];
    let count = stream.read(&mut answer).unwrap_or(0);
    let text = String::from_utf8_lossy(&answer[..count]).into_owned();
    (taken, statuses(&text).first().copied().unwrap_or("closed").to_owned())
}

/// How much the kernel may hold of a connection, at both of its ends: the largest buffers of `tcp_wmem` and `tcp_rmem` (tcp(7)).
fn buffered() -> u64 {
    let largest = |name: &str| {
        let text =
            std::fs::read_to_string(format!("/proc/sys/net/ipv4/{name}")).expect("read a setting of the kernel's");
        text.split_whitespace().last().and_then(|most| most.parse::<u64>().ok()).expect("a number")
    };
    largest("tcp_wmem") + largest("tcp_rmem")
}

fn large(ground: &Ground, report: &mut Report) {
    let session = ground.session("root");
    let token = session.client.token.clone();
    let small = session.write("/workspace/small", b"x").status == 204;
    let routes = [
        ("2 GB into a file", session.path("/files/write?path=/workspace/large"), token.clone()),
        ("2 GB into a file, stranger", session.path("/files/write?path=/workspace/large"), Vec::new()),
        ("2 GB of a command", session.path("/run"), token.clone()),
        ("2 GB of a session", "/sessions".to_owned(), ground.daemon.client.token.clone()),
        ("2 GB to no path", "/no/such/path".to_owned(), token),
    ];
    for (what, path, token) in routes {
        let most = if token.is_empty() { TAKEN_OF_STRANGER } else { TAKEN } + buffered() + (2 << 20);
        let (before, begun) = (peak(ground), Instant::now());
        let (taken, status) = pour(ground, &path, &token, 2 << 30);
        let grown = peak(ground).saturating_sub(before);
        let got = format!(
            "{status} after {} MiB, {grown} MiB of memory, {:.1} s",
            taken >> 20,
            begun.elapsed().as_secs_f64()
        );
        let held = taken < most && grown < 64 && status != "200" && status != "204" && answers(ground);
        let expected = format!("refused before {} MiB", most >> 20);
        row(report, what, &expected, &got, held, Control::of(small, "a byte is taken"));
    }
    let head = |count: usize, size: usize| {
        let lines: String = (0..count).map(|n| format!("X-{n}: {}\r\n", "h".repeat(size))).collect();
        format!("GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{lines}\r\n")
    };
    let works = statuses(&exchange(ground, head(3, 3).as_bytes())) == ["200"];
    for (what, count, size) in
        [("10,000 headers", 10_000, 8), ("a header of 4 MiB", 1, 4 << 20), ("headers of 40 MiB", 10_000, 4096)]
    {
        let before = peak(ground);
        let said = exchange(ground, head(count, size).as_bytes());
        let (seen, grown) = (statuses(&said), peak(ground).saturating_sub(before));
        let got = format!("{}, {grown} MiB of memory", seen.first().copied().unwrap_or("closed"));
        row(
            report,
            what,
            "refused",
            &got,
            !seen.contains(&"200") && grown < 16 && answers(ground),
            Control::of(works, "three headers are 200"),
        );
    }
    pipeline(ground, report);
}

/// Requests without end, and nobody who reads the answers.
fn pipeline(ground: &Ground, report: &mut Report) {
    let before = peak(ground);
    let mut stream = connect(ground);
    let piece = "GET /openapi.json HTTP/1.1\r\nHost: x\r\n\r\n".repeat(100);
    let mut sent = 0;
    while sent < 100_000 && stream.write_all(piece.as_bytes()).is_ok() {
        sent += 100;
    }
    let grown = peak(ground).saturating_sub(before);
    let got = format!("{sent} sent, {grown} MiB of memory");
    row(
        report,
        "answers that nobody reads",
        "< 16 MiB of memory",
        &got,
        grown < 16 && answers(ground),
        Control::of(sent > 100, "some are sent"),
    );
}
