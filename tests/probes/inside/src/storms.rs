//! Using up what others need: processes, memory, disk, descriptors, processor, patience. Each is bounded by its
//! arguments, so that a host without limits survives the trial.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::{name, say, sys};

/// One write when something is to be filled.
const PIECE: usize = 1 << 20;

/// Whether there is such a storm.
pub fn act(what: &[&str]) -> bool {
    let Some(parsed) = parse(what) else { return false };
    match parsed {
        Storm::Forks { most, hold } => say("forks", &multiply(most, hold)),
        Storm::Zombies { most, hold } => say("zombies", &zombies(most, hold)),
        Storm::Memory { mib } => say("memory", &memory(mib)),
        Storm::Fill { directory, mib } => say("fill", &fill(directory, mib)),
        Storm::Inodes { directory, most } => say("inodes", &inodes(directory, most)),
        Storm::Descriptors { hold } => say("descriptors", &descriptors(hold)),
        Storm::Flood { mib } => flood(mib),
        Storm::Processor { threads, hold } => say("processor", &multiply_busy(threads, hold)),
        Storm::Signals => say("signals", &signals()),
        Storm::Outlive { file } => say("outlive", &outlive(file)),
    }
    true
}

enum Storm<'a> {
    Forks { most: usize, hold: u64 },
    Zombies { most: usize, hold: u64 },
    Memory { mib: usize },
    Fill { directory: &'a str, mib: usize },
    Inodes { directory: &'a str, most: usize },
    Descriptors { hold: u64 },
    Flood { mib: usize },
    Processor { threads: usize, hold: u64 },
    Signals,
    Outlive { file: &'a str },
}

fn parse<'a>(what: &[&'a str]) -> Option<Storm<'a>> {
    let number = |text: &str| text.parse::<usize>().ok();
    let seconds = |text: &str| text.parse::<u64>().ok();
    Some(match what {
        ["forks", most, hold] => Storm::Forks { most: number(most)?, hold: seconds(hold)? },
        ["zombies", most, hold] => Storm::Zombies { most: number(most)?, hold: seconds(hold)? },
        ["memory", mib] => Storm::Memory { mib: number(mib)? },
        ["fill", directory, mib] => Storm::Fill { directory, mib: number(mib)? },
        ["inodes", directory, most] => Storm::Inodes { directory, most: number(most)? },
        ["descriptors", hold] => Storm::Descriptors { hold: seconds(hold)? },
        ["flood", mib] => Storm::Flood { mib: number(mib)? },
        ["processor", threads, hold] => Storm::Processor { threads: number(threads)?, hold: seconds(hold)? },
        ["signals"] => Storm::Signals,
        ["outlive", file] => Storm::Outlive { file },
        _ => return None,
    })
}

fn rest(seconds: u64) {
    std::thread::sleep(Duration::from_secs(seconds));
}

/// Processes that live until the end of the command.
fn multiply(most: usize, hold: u64) -> String {
    for made in 0..most {
        match sys::fork() {
            Err(errno) => {
                rest(hold);
                return format!("{} after {made}", name::errno(errno));
            }
            Ok(None) => {
                rest(hold + 2);
                sys::exit(0)
            }
            Ok(Some(_)) => {}
        }
    }
    rest(hold);
    format!("DONE: {most}")
}

/// Processes that have ended and that nobody waits for.
fn zombies(most: usize, hold: u64) -> String {
    sys::on_signal(libc::SIGCHLD, false);
    for made in 0..most {
        match sys::fork() {
            Err(errno) => {
                rest(hold);
                return format!("{} after {made}", name::errno(errno));
            }
            Ok(None) => sys::exit(0),
            Ok(Some(_)) => {}
        }
    }
    rest(hold);
    format!("DONE: {most}")
}

fn memory(mib: usize) -> String {
    for taken in 0..mib {
        if let Err(errno) = sys::touch_memory(1 << 20) {
            return format!("{} after {taken} MiB", name::errno(errno));
        }
    }
    format!("DONE: {mib} MiB")
}

fn fill(directory: &str, mib: usize) -> String {
    let path = Path::new(directory).join("probe-fill");
    let result = write_much(&path, mib);
    let _ = fs::remove_file(path);
    result
}

fn write_much(path: &Path, mib: usize) -> String {
    let mut file = match File::create(path) {
        Ok(file) => file,
        Err(error) => return name::io::<()>(Err(error)),
    };
    let piece = vec![b'x'; PIECE];
    for written in 0..mib {
        if let Err(error) = file.write_all(&piece) {
            return format!("{} after {written} MiB", name::io::<()>(Err(error)));
        }
    }
    format!("DONE: {mib} MiB")
}

fn inodes(directory: &str, most: usize) -> String {
    let place = Path::new(directory).join("probe-inodes");
    let _ = fs::create_dir(&place);
    let mut said = format!("DONE: {most}");
    for number in 0..most {
        if let Err(error) = File::create(place.join(number.to_string())) {
            said = format!("{} after {number}", name::io::<()>(Err(error)));
            break;
        }
    }
    let _ = fs::remove_dir_all(place);
    said
}

fn descriptors(hold: u64) -> String {
    let mut held = Vec::new();
    loop {
        match File::open("/dev/null") {
            Ok(file) => held.push(file),
            Err(error) => {
                rest(hold);
                return format!("{} after {}", name::io::<()>(Err(error)), held.len());
            }
        }
    }
}

fn flood(mib: usize) {
    let piece = vec![b'x'; PIECE];
    let mut out = std::io::stdout().lock();
    for _ in 0..mib {
        if out.write_all(&piece).is_err() {
            return;
        }
    }
}

fn multiply_busy(threads: usize, hold: u64) -> String {
    let end = Instant::now() + Duration::from_secs(hold);
    let workers: Vec<_> = (0..threads)
        .map(|_| {
            std::thread::spawn(move || {
                let mut turns = 0_u64;
                while Instant::now() < end {
                    turns = std::hint::black_box(turns.wrapping_add(1));
                }
            })
        })
        .collect();
    let made = workers.len();
    workers.into_iter().for_each(|worker| drop(worker.join()));
    format!("DONE: {made}")
}

/// Every signal at PID 1, then SIGKILL at everybody.
fn signals() -> String {
    for signal in 1..=64 {
        let _ = sys::call(libc::SYS_kill, [1, signal, 0, 0, 0, 0]);
        let _ = sys::call(libc::SYS_tgkill, [1, 1, signal, 0, 0, 0]);
    }
    if let Ok(pidfd) = sys::call(libc::SYS_pidfd_open, [1, 0, 0, 0, 0, 0]) {
        let _ = sys::call(libc::SYS_pidfd_send_signal, [pidfd as usize, libc::SIGKILL as usize, 0, 0, 0, 0]);
    }
    for signal in [libc::SIGSTOP, libc::SIGKILL] {
        let _ = sys::call(libc::SYS_kill, [-1_isize as usize, signal as usize, 0, 0, 0, 0]);
    }
    "sent".to_owned()
}

/// A process that has left its session, its parent and its signals behind writes to `file` for as long as it lives.
fn outlive(file: &str) -> String {
    for _ in 0..2 {
        match sys::fork() {
            Err(errno) => return name::errno(errno),
            // The first waits for ever: the deadline is to end it.
            Ok(Some(_)) => loop {
                rest(60);
            },
            Ok(None) => {
                let _ = sys::call(libc::SYS_setsid, [0; 6]);
                (1..=64).for_each(|signal| sys::on_signal(signal, true));
            }
        }
    }
    loop {
        if let Ok(mut file) = OpenOptions::new().append(true).create(true).open(file) {
            let _ = file.write_all(b"x");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}
