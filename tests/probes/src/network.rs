//! Addresses that a sandbox has no business with: the host's, the service's, the gateway, other sandboxes, metadata.

use std::net::{IpAddr, SocketAddr, TcpListener};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::UnixListener;
use std::process::Command;
use std::time::Duration;

use it::http::Endpoint;

use crate::ground::{Ground, WHO, inside};
use crate::report::{Control, Report, Row};

/// Where clouds tell machines who they are.
const METADATA: [&str; 4] = ["169.254.169.254:80", "169.254.170.2:80", "100.100.100.200:80", "[fd00:ec2::254]:80"];
/// Where the neighbour listens, and for how long.
const PORT: &str = "45454";
const SECONDS: &str = "6";

/// What is tried, and what it is called.
type Target = (String, String);

fn addresses() -> Vec<IpAddr> {
    let output = Command::new("ip").args(["-oneline", "address", "show"]).output();
    let text = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    let address = |line: &str| line.split_whitespace().nth(3)?.split('/').next()?.parse::<IpAddr>().ok();
    let link_local = |address: &IpAddr| matches!(address, IpAddr::V6(six) if six.segments()[0] == 0xfe80);
    text.lines().filter_map(address).filter(|address| !link_local(address)).collect()
}

fn gateways() -> Vec<IpAddr> {
    let output = Command::new("ip").args(["route", "show", "default"]).output();
    let text = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    text.lines().filter_map(|line| line.split_whitespace().nth(2)?.parse().ok()).collect()
}

fn targets(ground: &Ground, port: u16) -> Vec<Target> {
    let mut targets = Vec::new();
    let mut add = |name: String, target: String| targets.push((name, target));
    for address in addresses() {
        add(format!("host {address}"), format!("tcp:{}", SocketAddr::new(address, port)));
        if !address.is_loopback() {
            add(format!("host {address}, UDP"), format!("udp:{}", SocketAddr::new(address, port)));
        }
    }
    if let Endpoint::Tcp(address) = &ground.daemon.client.endpoint {
        add("the API's port".to_owned(), format!("tcp:{address}"));
    }
    for socket in ["sandboxd.sock", "launch.sock"] {
        let path = ground.daemon.runtime_dir().join(socket);
        add(format!("the socket {socket}"), format!("unix:{}", path.display()));
    }
    add("an abstract socket".to_owned(), format!("abstract:probe-host-{port}"));
    for gateway in gateways() {
        add(format!("gateway {gateway}, DNS"), format!("udp:{}", SocketAddr::new(gateway, 53)));
        add(format!("gateway {gateway}"), format!("tcp:{}", SocketAddr::new(gateway, 80)));
    }
    for address in METADATA {
        add(format!("metadata {address}"), format!("tcp:{address}"));
    }
    add("multicast DNS".to_owned(), "udp:224.0.0.251:5353".to_owned());
    targets
}

/// Try them all.
pub fn probe(ground: &Ground, report: &mut Report) {
    report.class("network: a sandbox with none");
    // Both families, as the kernel has it unless it is told otherwise.
    let listener =
        TcpListener::bind("[::]:0").or_else(|_| TcpListener::bind("0.0.0.0:0")).expect("a port of the host's");
    let port = listener.local_addr().expect("its number").port();
    let name = std::os::unix::net::SocketAddr::from_abstract_name(format!("probe-host-{port}")).expect("a name");
    let _abstract = UnixListener::bind_addr(&name).expect("an abstract socket");
    let targets = targets(ground, port);
    let arguments: Vec<&str> =
        ["connect"].into_iter().chain(targets.iter().map(|(_, target)| target.as_str())).collect();
    let free = ground.here(&arguments);
    let answers = WHO.map(|who| inside(&ground.session(who), &arguments));
    for (name, target) in &targets {
        let [root, user] = answers.each_ref().map(|answers| answers.get(target).cloned().unwrap_or_default());
        let free = free.get(target).cloned().unwrap_or_default();
        let held = [&root, &user].iter().all(|answer| !answer.is_empty() && *answer != "DONE");
        let got = if root == user { root } else { format!("root {root}, user {user}") };
        // The launcher speaks in packets: EPROTOTYPE says that it is there.
        let control = if free == "DONE" || free == "errno 91" {
            Control::Works("reached from the host".to_owned())
        } else {
            Control::LeftOut(format!("not reached from the host either ({free})"))
        };
        report.add(&Row { probe: name.clone(), expected: "not reached".to_owned(), got, held, control });
    }
    neighbour(ground, report);
}

fn neighbour(ground: &Ground, report: &mut Report) {
    let (one, other) = (ground.session("root"), ground.session("root"));
    let targets = [format!("tcp:127.0.0.1:{PORT}"), format!("abstract:probe-{PORT}")];
    let arguments = ["connect", &targets[0], &targets[1]];
    let (own, theirs) = std::thread::scope(|scope| {
        let listening = scope.spawn(|| inside(&other, &["listen", PORT, SECONDS]));
        let reached = || {
            let own = inside(&other, &arguments);
            own.values().all(|answer| answer == "DONE").then_some(own)
        };
        let own = it::daemon::wait_for(Duration::from_secs(5), reached).unwrap_or_default();
        let theirs = inside(&one, &arguments);
        let _ = listening.join();
        (own, theirs)
    });
    for target in targets {
        let got = theirs.get(&target).cloned().unwrap_or_default();
        let works = own.get(&target).is_some_and(|answer| answer == "DONE");
        let held = !got.is_empty() && got != "DONE";
        let control = Control::of(works, "reached from within the other");
        report.add(&Row {
            probe: format!("another sandbox's {target}"),
            expected: "not reached".to_owned(),
            got,
            held,
            control,
        });
    }
}
