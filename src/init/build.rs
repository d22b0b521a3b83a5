//! Compiles `seccomp.policy` into BPF for the target architecture, as Rust source in `OUT_DIR`.
#![allow(clippy::expect_used, reason = "a build script reports by failing")]

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::{env, fs, path::Path};

use seccompiler::{BpfProgram, TargetArch, compile_from_json, sock_filter};

const EPERM: u32 = 1;
const ENOSYS: u32 = 38;

/// clone(2): every `CLONE_NEW*` that it takes (`CLONE_NEWTIME` exists for clone3 and unshare alone).
const NEW_NAMESPACES: [u32; 7] =
    [0x0002_0000, 0x0200_0000, 0x0400_0000, 0x0800_0000, 0x1000_0000, 0x2000_0000, 0x4000_0000];
/// personality(2): the ones that change nothing of security: Linux, 32-bit Linux names, each with uname 2.6, and the query.
const PERSONALITIES: [u32; 5] = [0x0, 0x8, 0x2_0000, 0x2_0008, 0xffff_ffff];
/// socket(2): `AF_UNIX`, `AF_INET`, `AF_INET6`, `AF_NETLINK`. Others load kernel modules on demand.
const FAMILIES: [u32; 4] = [1, 2, 10, 16];

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=seccomp.policy");
    let arch = env::var("CARGO_CFG_TARGET_ARCH").expect("cargo names the target");
    let out = env::var("OUT_DIR").expect("cargo gives a directory");
    let policy = Policy::parse(&fs::read_to_string("seccomp.policy").expect("seccomp.policy is readable"), &arch);

    let known = policy.allow.iter().chain(&policy.refuse).map(|name| rule(name, "")).collect::<Vec<_>>();
    let known = by_ranges(&compile(&arch, &known, &errno(ENOSYS), "\"allow\""), known.len());
    let mut refused = policy.refuse.iter().map(|name| rule(name, "")).collect::<Vec<_>>();
    refused.extend(conditions());
    let commands = policy.command.iter().map(|name| rule(name, "")).collect::<Vec<_>>();

    let mut source = String::new();
    emit(&mut source, "KNOWN", &known);
    emit(&mut source, "REFUSED", &compile(&arch, &refused, "\"allow\"", &errno(EPERM)));
    emit(&mut source, "COMMAND", &compile(&arch, &commands, "\"allow\"", &errno(ENOSYS)));
    fs::write(Path::new(&out).join("filters.rs"), source).expect("OUT_DIR is writable");
}

#[derive(Default)]
struct Policy {
    allow: Vec<String>,
    refuse: Vec<String>,
    command: Vec<String>,
}

impl Policy {
    fn parse(text: &str, arch: &str) -> Self {
        let mut lists: BTreeMap<&str, Vec<String>> = BTreeMap::new();
        let mut section = None;
        for line in text.lines().map(|line| line.split('#').next().unwrap_or_default().trim()) {
            if let Some(header) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
                let mut words = header.split_whitespace();
                let name = words.next().expect("a section has a name");
                section = words.next().is_none_or(|only| only == arch).then_some(name);
            } else if let Some(name) = section {
                lists.entry(name).or_default().extend(line.split_whitespace().map(str::to_owned));
            }
        }
        let mut take = |name| lists.remove(name).unwrap_or_default();
        let policy = Self { allow: take("allow"), refuse: take("refuse"), command: take("command") };
        assert!(lists.is_empty(), "seccomp.policy: unknown sections {:?}", lists.keys());
        for name in &policy.refuse {
            assert!(!policy.allow.contains(name), "seccomp.policy: {name} is both allowed and refused");
        }
        policy
    }
}

/// Refusals that depend on an argument.
fn conditions() -> Vec<String> {
    let mut rules: Vec<String> = NEW_NAMESPACES
        .iter()
        .map(|flag| rule("clone", &format!(r#"{{"index":0,"type":"dword","op":{{"masked_eq":{flag}}},"val":{flag}}}"#)))
        .collect();
    let none_of = |values: &[u32]| {
        let each = values.iter().map(|value| format!(r#"{{"index":0,"type":"dword","op":"ne","val":{value}}}"#));
        each.collect::<Vec<_>>().join(",")
    };
    rules.push(rule("personality", &none_of(&PERSONALITIES)));
    rules.push(rule("socket", &none_of(&FAMILIES)));
    rules.push(rule("socketpair", &none_of(&FAMILIES[..1])));
    rules
}

fn rule(syscall: &str, args: &str) -> String {
    match args {
        "" => format!(r#"{{"syscall":"{syscall}"}}"#),
        args => format!(r#"{{"syscall":"{syscall}","args":[{args}]}}"#),
    }
}

fn errno(value: u32) -> String {
    format!(r#"{{"errno":{value}}}"#)
}

fn compile(arch: &str, rules: &[String], mismatch: &str, matched: &str) -> BpfProgram {
    let target = TargetArch::try_from(arch).expect("the target is x86_64 or aarch64");
    let json = format!(
        r#"{{"filter":{{"mismatch_action":{mismatch},"match_action":{matched},"filter":[{}]}}}}"#,
        rules.join(",")
    );
    let mut programs = compile_from_json(json.as_bytes(), target).expect("seccomp.policy compiles");
    programs.remove("filter").expect("the program that was asked for")
}

/// The same filter, shorter: `program` compares with each of its `count` numbers in turn, some 1,800
/// instructions that the kernel runs once for every system call there is when it is installed (0.7 ms); this
/// one compares with the ends of their ranges (0.1 ms).
fn by_ranges(program: &BpfProgram, count: usize) -> BpfProgram {
    // linux/bpf_common.h: jumps by comparison with a constant, and returns.
    const JEQ: u16 = 0x15;
    const JGT: u16 = 0x25;
    const JGE: u16 = 0x35;
    const RET: u16 = 0x06;
    let start = program.iter().position(|i| i.code == JEQ).expect("the check of the architecture") + 1;
    let first = start + program[start..].iter().position(|i| i.code == JEQ).expect("a comparison");
    let mut numbers = program[first..].iter().filter(|i| i.code == JEQ).map(|i| i.k).collect::<Vec<_>>();
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!(numbers.len(), count, "seccompiler compares with each number once");
    let mut ranges: Vec<(u32, u32)> = Vec::new();
    for number in numbers {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == number => *last = number,
            _ => ranges.push((number, number)),
        }
    }
    // The check of the architecture and the load of the number, as they are; then two jumps for each range.
    let mut short = program[..first].to_vec();
    for (place, (low, high)) in ranges.iter().enumerate() {
        let left = u8::try_from(2 * (ranges.len() - place)).expect("few enough ranges for a jump");
        short.push(sock_filter { code: JGE, jt: 0, jf: left - 1, k: *low });
        short.push(sock_filter { code: JGT, jt: 0, jf: left - 1, k: *high });
    }
    short.push(sock_filter { code: RET, jt: 0, jf: 0, k: 0x0005_0000 | ENOSYS });
    short.push(sock_filter { code: RET, jt: 0, jf: 0, k: 0x7fff_0000 });
    short
}

fn emit(source: &mut String, name: &str, program: &BpfProgram) {
    writeln!(source, "pub static {name}: [libc::sock_filter; {}] = [", program.len()).expect("a String grows");
    for i in program {
        writeln!(source, "    libc::sock_filter {{ code: {}, jt: {}, jf: {}, k: {} }},", i.code, i.jt, i.jf, i.k)
            .expect("a String grows");
    }
    source.push_str("];\n");
}
