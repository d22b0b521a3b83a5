//! System calls and files of the kernel: golden answers for each, as root in the sandbox and as its user.

use std::collections::BTreeMap;

use crate::ground::{Answers, Ground, WHO, inside};
use crate::report::{Control, Report, Row};

/// One line for each attempt: its name, what a sandbox answers, what the kernel answers where nothing stops it.
const EXPECTED: &str = include_str!("../expected.tsv");
/// The kernel lacks the thing altogether.
const ABSENT: [&str; 6] = ["ENOSYS", "ENOENT", "EAFNOSUPPORT", "EOPNOTSUPP", "EPROTONOSUPPORT", "ENXIO"];

/// Root of this host may not do it either: it lacks a capability, as root of a container does.
const REFUSED: [&str; 2] = ["EPERM", "EACCES"];

struct Golden {
    sandbox: Vec<&'static str>,
    free: Vec<&'static str>,
}

/// Try them all.
pub fn probe(ground: &Ground, report: &mut Report) {
    let golden = read();
    for (class, what) in [("kernel: system calls", "calls"), ("kernel: its files", "writes")] {
        report.class(class);
        let free = ground.here(&["free", what]);
        let sessions = WHO.map(|who| ground.session(who));
        let answers = sessions.each_ref().map(|session| inside(session, &[what]));
        for name in free.keys() {
            report.add(&row(name, golden.get(name.as_str()), &answers, &free));
        }
    }
}

fn row(name: &str, golden: Option<&Golden>, [root, user]: &[Answers; 2], free: &Answers) -> Row {
    let told = |answers: &Answers| answers.get(name).cloned().unwrap_or_else(|| "no answer".to_owned());
    let (root, user, free) = (told(root), told(user), told(free));
    let got = if root == user { root.clone() } else { format!("root {root}, user {user}") };
    let Some(golden) = golden else {
        let control = Control::Fails(format!("{name} is not in expected.tsv; here {free}"));
        return Row { probe: name.to_owned(), expected: "?".to_owned(), got, held: true, control };
    };
    let held = [&root, &user].iter().all(|answer| golden.sandbox.contains(&answer.as_str()));
    let control = if free == root && free == user {
        Control::LeftOut(format!("this host answers {free} as well"))
    } else if golden.free.contains(&free.as_str()) {
        Control::Works(free)
    } else if REFUSED.contains(&free.as_str()) {
        Control::LeftOut(format!("refused on this host as well ({free})"))
    } else if ABSENT.contains(&free.as_str()) {
        Control::LeftOut(format!("not in this kernel ({free})"))
    } else {
        Control::Fails(free)
    };
    let expected = if golden.sandbox.len() > 2 { "refused".to_owned() } else { golden.sandbox.join(" or ") };
    Row { probe: name.to_owned(), expected, got, held, control }
}

fn read() -> BTreeMap<&'static str, Golden> {
    let lines = EXPECTED.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    let golden = |line: &'static str| {
        let mut fields = line.split('\t');
        let name = fields.next()?;
        let (sandbox, free) = (fields.next()?.split('|').collect(), fields.next()?.split('|').collect());
        Some((name, Golden { sandbox, free }))
    };
    lines.filter_map(golden).collect()
}
