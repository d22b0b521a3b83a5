//! `make probes`: what a hostile tenant, image, registry or client tries against the real service, each beside a
//! control that shows that the attempt works where nothing stops it.
//!
//! | module | what it tries |
//! |---|---|
//! | [`runtime`] | the init's program, descriptors, directories, set-uid programs, devices |
//! | [`links`] | links where something is mounted, swapped while sandboxes start |
//! | [`kernel`] | system calls and files of the kernel, answers against `expected.tsv` |
//! | [`images`] | layers and documents of a hostile registry |
//! | [`network`] | the host's addresses, the service's, the gateway, other sandboxes |
//! | [`denial`] | using up what others need |
//! | [`api`] | paths, tokens, requests, connections |
//!
//! `probes [CLASS…]` tries these classes alone.
#![allow(clippy::print_stdout, clippy::expect_used, clippy::unwrap_used)]

mod api;
mod archive;
mod denial;
mod ground;
mod images;
mod kernel;
mod links;
mod network;
mod registry;
mod report;
mod runtime;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::time::Instant;

use ground::Ground;
use report::Report;

type Class = fn(&Ground, &mut Report);

const CLASSES: [(&str, Class); 7] = [
    ("runtime", runtime::probe),
    ("links", links::probe),
    ("kernel", kernel::probe),
    ("images", images::probe),
    ("network", network::probe),
    ("denial", denial::probe),
    ("api", api::probe),
];

fn main() -> ExitCode {
    let wanted: Vec<String> = std::env::args().skip(1).collect();
    if let Some(unknown) = wanted.iter().find(|name| !CLASSES.iter().any(|(class, _)| class == name)) {
        eprintln!("usage: probes [CLASS…]; {unknown} is none of {:?}", CLASSES.map(|(class, _)| class));
        return ExitCode::from(2);
    }
    let ground = Ground::new(
        |outside, program| [runtime::images(program), links::images(outside), images::images(outside)].concat(),
        &[images::LAZY.as_slice(), &api::LAZY].concat(),
    );
    let mut report = Report::default();
    for (name, probe) in CLASSES {
        if wanted.is_empty() || wanted.iter().any(|class| class == name) {
            let begun = Instant::now();
            let tried = catch_unwind(AssertUnwindSafe(|| probe(&ground, &mut report)));
            println!("({name}: {:.0} s)", begun.elapsed().as_secs_f64());
            if let Err(panic) = tried {
                report.broken(name, &said(panic.as_ref()));
            }
        }
    }
    report.repeat();
    let (line, well) = report.closing();
    drop(ground);
    println!("\n{line}");
    if well { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// What a panic said.
fn said(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned())).unwrap_or_default()
}
