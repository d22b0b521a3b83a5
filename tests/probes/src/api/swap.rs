//! A directory of the workspace and a link out of it exchange names, 100,000 times, while the API works in it.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use it::Session;
use serde_json::json;

use super::row;
use crate::ground::{Ground, inside, run};
use crate::report::{Control, Report};

const TIMES: &str = "100000";
const SECRET: &str = "untouched";

/// A request, and the text of its answer.
type Act = fn(&Ground, &Session) -> String;

/// What was asked for meanwhile.
#[derive(Default)]
struct Counts {
    asked: usize,
    inside: usize,
    wrong: Option<String>,
}

/// Try it.
pub fn probe(ground: &Ground, report: &mut Report) {
    let session = ground.session("root");
    session.write("/workspace/d/marker", b"inside").expect(204);
    let outside = ground.outside.display().to_string();
    let _ = inside(&session, &["link", &outside, "/workspace/l"]);
    let swapping = Arc::new(AtomicBool::new(true));
    let workspace = ground.daemon.state.join("workspaces").join(&session.id).join("workspace");
    let naive = {
        let (swapping, file) = (swapping.clone(), workspace.join("d/marker"));
        std::thread::spawn(move || read_by_name(&file, &swapping))
    };
    let (counts, swapped) = std::thread::scope(|scope| {
        let swapper = scope.spawn(|| {
            let said = run(&session, &["swap", "/workspace/d", "/workspace/l", TIMES]).stdout().trim().to_owned();
            swapping.store(false, Ordering::Relaxed);
            said
        });
        let operations: [(&str, Act); 7] = [
            ("files/read", |_, s| s.file("read", "/workspace/d/marker").text()),
            ("files/write", |_, s| s.write("/workspace/d/planted", b"inside").text()),
            ("files/list", |_, s| s.file("list", "/workspace/d").text()),
            ("files/mkdir and remove", |_, s| {
                let _ = s.file("mkdir", "/workspace/d/made/deep");
                s.file("remove", "/workspace/d/made").text()
            }),
            ("workspaces/read", |g, s| stored(g, s, "read", "d/marker")),
            ("workspaces/ls", |g, s| stored(g, s, "ls", "d")),
            ("workspaces/tree", |g, s| stored(g, s, "tree", ".")),
        ];
        let workers = operations.map(|(name, act)| {
            let (session, swapping) = (&session, &swapping);
            scope.spawn(move || (name, work(ground, session, act, swapping)))
        });
        let counts = workers.map(|worker| worker.join().expect("a worker ends"));
        (counts, swapper.join().expect("the swapping ends"))
    });
    let naive = naive.join().unwrap_or_default();
    for (name, counts) in counts {
        let wrong = counts.wrong.or_else(|| ground.damage().map(|damage| format!("OUTSIDE: {damage}")));
        let got = wrong.clone().unwrap_or_else(|| format!("{} times, {} of them inside", counts.asked, counts.inside));
        let works = naive > 0 && swapped == format!("swap\tDONE: {TIMES}") && counts.asked > 20;
        let control = Control::of(works, format!("{TIMES} swaps; by name {naive} times outside"));
        row(report, name, "never outside", &got, wrong.is_none(), control);
    }
}

fn stored(ground: &Ground, session: &Session, operation: &str, path: &str) -> String {
    ground.daemon.client.post(&format!("/workspaces/{}/{operation}", session.id), json!({"path": path})).text()
}

fn work(ground: &Ground, session: &Session, act: Act, swapping: &AtomicBool) -> Counts {
    let mut counts = Counts::default();
    while swapping.load(Ordering::Relaxed) {
        let text = act(ground, session);
        counts.asked += 1;
        counts.inside += usize::from(
            text.contains("inside") || text.is_empty() || text.contains("/d/") || text.contains("d/marker"),
        );
        if text.contains(SECRET) {
            counts.wrong.get_or_insert(text.chars().take(100).collect());
        }
        if counts.asked % 50 == 0 && counts.wrong.is_none() {
            counts.wrong = ground.damage();
        }
    }
    counts
}

/// How often somebody who opens the file by its name reads the one outside.
fn read_by_name(file: &Path, swapping: &AtomicBool) -> usize {
    let mut outside = 0;
    while swapping.load(Ordering::Relaxed) {
        outside += usize::from(fs::read_to_string(file).is_ok_and(|text| text == SECRET));
        std::thread::sleep(std::time::Duration::from_micros(200));
    }
    outside
}
