//! Sessions with a network: what they reach, what they do not, and what is left of them. Each runs in a host and an
//! internet of its own ([`it::world`]); every probe has its control, from where nothing stops it.

use std::path::PathBuf;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use it::daemon::{Options, StateDir, wait_for};
use it::host::children;
use it::world::{HOST, RESOLVER, World};
use it::{Daemon, Session};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

/// Connects and says how that went: `yes`, or the error.
const CONNECT: &str = r#"
use Socket; my ($address, $port, $kind) = @ARGV;
socket(my $s, PF_INET, $kind eq "udp" ? SOCK_DGRAM : SOCK_STREAM, 0) or die;
$SIG{ALRM} = sub { print "timeout"; exit }; alarm 2;
connect($s, sockaddr_in($port, inet_aton($address))) or do { print "no: $!"; exit };
if ($kind eq "udp") { send($s, "hello", 0) or do { print "no: $!"; exit }; recv($s, my $got, 64, 0) // do { print "no: $!"; exit }; print $got eq "hello" ? "yes" : "other"; exit }
print "yes";
"#;

/// Asks a server for a name over UDP, and prints the code and the addresses of the answer.
const ASK: &str = r#"
use Socket; my ($server, $name, $type) = @ARGV; $type ||= 1;
socket(my $s, PF_INET, SOCK_DGRAM, 0) or die; $SIG{ALRM} = sub { print "timeout"; exit }; alarm 5;
my $q = pack("n6", 7, 0x100, 1, 0, 0, 0) . join("", map { pack("C/a*", $_) } split(/\./, $name)) . "\0" . pack("n2", $type, 1);
send($s, $q, 0, sockaddr_in(53, inet_aton($server))) or do { print "no: $!"; exit };
recv($s, my $r, 2048, 0) // do { print "no: $!"; exit };
my (undef, $flags, undef, $count) = unpack("n4", $r); my @found = map { inet_ntoa(substr($r, -4 * $_ - 12 * ($_ - 1), 4)) } reverse 1 .. $count;
print join(" ", $flags & 15, $count);
"#;

/// A service in a world's host, with the runtimes that the tests need.
struct Service {
    world: World,
    daemon: Daemon,
    _state: StateDir,
}

fn catalogue(state: &StateDir) -> PathBuf {
    let entry = |alias: &str, more: Value| {
        let mut entry = json!({"alias": alias, "image": "debian-bookworm"});
        entry.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        entry
    };
    let names = ["allowed.example", "*.below.example", "port.example:443/tcp", "rebinds.example", "turns.example"];
    let file = state.0.with_extension("catalog.json");
    let entries = json!([
        entry("alone", json!({"needs_network": false})),
        entry("open", json!({"needs_network": true, "egress_deny": ["5.5.5.0/24"]})),
        entry(
            "listed",
            json!({
                "needs_network": true, "egress_default": "deny",
                "egress_allow": [names[0], names[1], names[2], names[3], names[4], "6.6.6.6:80/tcp"]
            })
        ),
    ]);
    std::fs::write(&file, entries.to_string()).unwrap();
    file
}

impl Service {
    fn start() -> Self {
        Self::by("builtin")
    }

    fn by(oci_runtime: &str) -> Self {
        let (world, state) = (World::new(), StateDir::new());
        let options = Options::new().env("SANDBOXD_DNS_UPSTREAMS", RESOLVER).env("SANDBOXD_MAX_SESSIONS", "50");
        let options =
            options.env("SANDBOXD_OCI_RUNTIME", oci_runtime).network(&world.host.path).catalog(&catalogue(&state));
        let daemon = options.start();
        Self { world, daemon, _state: state }
    }

    fn rules(&self) -> String {
        self.world.host.sh("nft list ruleset")
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(self._state.0.with_extension("catalog.json"));
    }
}

fn connects(session: &Session, address: &str, port: u16, kind: &str) -> String {
    session.run(["perl", "-e", CONNECT, address, &port.to_string(), kind]).stdout().to_owned()
}

fn ask(session: &Session, server: &str, name: &str, kind: u16) -> String {
    session.run(["perl", "-e", ASK, server, name, &kind.to_string()]).stdout().to_owned()
}

fn refused(service: &Service, session: &Session) -> (u64, u64) {
    std::thread::sleep(Duration::from_millis(1100));
    let info = service.daemon.client.get(&session.path("?usage=true")).expect(200).json();
    let network = &info["usage"]["network"];
    let number = |name: &str| network[name].as_u64().unwrap_or_else(|| panic!("{info}"));
    (number("refused_packets"), number("refused_names"))
}

#[test]
fn a_session_reaches_the_internet_by_address_and_by_name() {
    let service = Service::start();
    service.world.name("some.example", &[&["7.7.7.7"]]);
    let session = service.daemon.session("open");
    assert_eq!(connects(&session, "1.2.3.4", 80, "tcp"), "yes");
    assert_eq!(connects(&session, RESOLVER, 7000, "udp"), "yes");
    assert_eq!(connects(&session, "some.example", 443, "tcp"), "yes", "by what /etc/resolv.conf says");
    assert_eq!(ask(&session, "8.8.8.8", "some.example", 1), "0 1", "whoever is asked answers");
    assert_eq!(ask(&session, RESOLVER, "none.example", 1), "3 0");
    assert_eq!(ask(&session, RESOLVER, "some.example", 28), "0 0", "there is no IPv6");
    // One without a network beside it has none.
    let alone = service.daemon.session("alone");
    assert!(connects(&alone, "1.2.3.4", 80, "tcp").starts_with("no: "));
    // It wakes with its network.
    service.daemon.client.delete(&session.path("")).expect(204);
    let again = Session::open(&service.daemon, json!({"runtime": "open", "session_id": session.id}));
    assert_eq!(connects(&again, "1.2.3.4", 80, "tcp"), "yes");
}

#[test]
fn neither_the_host_nor_its_neighbours_nor_private_ranges_answer() {
    let service = Service::start();
    let (world, host) = (&service.world, &service.world.host);
    let (session, other) = (service.daemon.session("open"), service.daemon.session("open"));
    host.listen(8080);
    let addresses = |session: &Session| session.sh("cat /proc/net/fib_trie").stdout().to_owned();
    let inside = |text: &str| {
        text.lines().filter_map(|line| line.trim().strip_prefix("|-- ")).map(str::to_owned).collect::<Vec<_>>()
    };
    let theirs =
        inside(&addresses(&other)).into_iter().find(|a| a.starts_with("198.18.") && !a.ends_with(".1")).unwrap();
    let gateway = format!("{}.1", theirs.rsplit_once('.').unwrap().0);
    other.run_with(["perl", "-e", "use Socket; socket(S,PF_INET,SOCK_STREAM,0); bind(S,sockaddr_in(8080,INADDR_ANY)); listen(S,5); unless (fork) { close STDOUT; close STDERR; setpgrp; sleep 600 }"], json!({}));
    // Controls: each is listened on, and reached from where nothing is in the way.
    for address in [HOST, "127.0.0.1", &gateway] {
        assert!(host.connects(&format!("{address}:8080")), "{address}");
    }
    for address in ["10.1.2.3", "100.64.0.1", "169.254.169.254", "172.16.0.1", "192.168.1.1", "198.51.100.1", "5.5.5.5"]
    {
        assert!(host.connects(&format!("{address}:80")), "{address}");
    }
    let port = host.sh("ss -Hltn | awk '{print $4}'");
    let api = port.lines().find_map(|line| line.strip_prefix("127.0.0.1:")).expect("the API's port").parse().unwrap();
    let before = refused(&service, &session).0;
    let mut tried = 0;
    for (address, port) in [
        (HOST, 8080),
        (HOST, api),
        (&gateway, 8080),
        (&gateway, api),
        (&gateway, 8153),
        (&gateway, 80),
        (&theirs, 8080),
        (&theirs, 80),
        ("10.1.2.3", 80),
        ("100.64.0.1", 80),
        ("169.254.169.254", 80),
        ("172.16.0.1", 80),
        ("192.168.1.1", 80),
        ("198.51.100.1", 80),
        ("5.5.5.5", 80),
        ("240.0.0.1", 80),
    ] {
        let got = connects(&session, address, port, "tcp");
        assert!(got.starts_with("no: ") || got == "timeout", "{address}:{port}: {got}");
        tried += 1;
    }
    for (address, port) in
        [(HOST, 7000), (gateway.as_str(), 8153), ("255.255.255.255", 7000), ("224.0.0.1", 7000), ("10.1.2.3", 7000)]
    {
        assert_ne!(connects(&session, address, port, "udp"), "yes", "{address}:{port}");
    }
    let counted = refused(&service, &session).0 - before;
    assert!(counted >= tried, "{counted} of {tried} were counted");
    assert_eq!(connects(&session, "1.2.3.4", 80, "tcp"), "yes", "the control inside");
    // Nobody comes in, neither from the internet nor from beside.
    assert!(!world.internet.connects(&format!("{theirs}:8080")));
    // IPv6 has no address and no way.
    let six = session.sh("cat /proc/net/if_inet6; cat /proc/sys/net/ipv6/conf/eth0/disable_ipv6");
    assert!(!six.stdout().contains("eth0") && six.stdout().trim().ends_with('1'), "{}", six.stdout());
}

#[test]
fn only_the_names_on_a_runtime_s_list_are_reached() {
    let service = Service::start();
    let world = &service.world;
    for name in ["allowed.example", "one.below.example", "below.example", "port.example", "dns.example", "evil.example"]
    {
        world.name(name, &[&["7.7.7.7"]]);
    }
    world.name("dns.example", &[&["8.8.8.8"]]);
    world.name("one.below.example", &[&["7.7.7.8"]]);
    world.name("port.example", &[&["7.7.7.9"]]);
    world.name("rebinds.example", &[&["7.7.7.10"], &["169.254.169.254"]]);
    world.name("turns.example", &[&["7.7.7.11"], &["7.7.7.12", "10.0.0.1"]]);
    let (session, open) = (service.daemon.session("listed"), service.daemon.session("open"));
    let denied = |address: &str, port| {
        assert_eq!(connects(&open, address, port, "tcp"), "yes", "the control: {address}:{port}");
        let got = connects(&session, address, port, "tcp");
        assert!(got.starts_with("no: "), "{address}:{port}: {got}");
    };
    // A direct address, before and after its name was asked for.
    denied("7.7.7.7", 80);
    assert_eq!(connects(&session, "allowed.example", 80, "tcp"), "yes");
    assert_eq!(connects(&session, "7.7.7.7", 8443, "tcp"), "yes", "what a name means may be reached");
    denied("7.7.7.6", 80);
    assert_eq!(connects(&session, "one.below.example", 443, "tcp"), "yes");
    assert_eq!(ask(&session, RESOLVER, "below.example", 1), "5 0", "only those below it");
    assert_eq!(connects(&session, "port.example", 443, "tcp"), "yes");
    denied("7.7.7.9", 80);
    assert_eq!(connects(&session, "6.6.6.6", 80, "tcp"), "yes");
    denied("6.6.6.6", 443);
    // Another resolver: over port 53 ours answers, whoever is asked; others have no way.
    assert_eq!(ask(&open, "8.8.8.8", "evil.example", 1), "0 1");
    assert_eq!(ask(&session, "8.8.8.8", "evil.example", 1), "5 0");
    // DNS over HTTPS: its name is not on the list, nor is its address.
    assert_eq!(ask(&session, RESOLVER, "dns.example", 1), "5 0");
    denied("8.8.8.8", 443);
    // A name that changes its answer: to where it may not lead, it does not.
    assert_eq!(connects(&session, "rebinds.example", 80, "tcp"), "yes");
    assert_eq!(ask(&session, RESOLVER, "rebinds.example", 1), "5 0");
    assert!(connects(&session, "169.254.169.254", 80, "tcp").starts_with("no: "));
    assert_eq!(connects(&session, "turns.example", 80, "tcp"), "yes");
    assert_eq!(ask(&session, RESOLVER, "turns.example", 1), "0 1", "without the private address");
    assert_eq!(connects(&session, "7.7.7.12", 80, "tcp"), "yes");
    let (packets, names) = refused(&service, &session);
    assert!(packets >= 5 && names >= 4, "{packets} packets, {names} names");
    // What is permitted to one is permitted to nobody else.
    let another = service.daemon.session("listed");
    assert!(connects(&another, "7.7.7.7", 80, "tcp").starts_with("no: "));
}

#[test]
fn rules_stand_before_a_session_does_and_go_with_it() {
    let service = Service::start();
    let host = &service.world.host;
    assert!(wait_for(Duration::from_secs(5), || service.rules().contains("sandboxd_sbd0x").then_some(())).is_some());
    host.sh("nft add table ip others; nft add chain ip others forward '{ type filter hook forward priority 0; policy accept; }'");
    let others = || host.sh("nft list table ip others");
    let theirs = others();
    let links = || host.sh("ip -o link | cut -d: -f2").split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    let before = links();
    let session = service.daemon.session("listed");
    assert_eq!(links().len(), before.len() + 1);
    let element = "\"sbd0x1\" : goto policy_";
    assert!(service.rules().contains(element), "{}", service.rules());
    service.daemon.client.delete(&session.path("?purge=true")).expect(204);
    assert!(!service.rules().contains(element), "{}", service.rules());
    assert!(wait_for(Duration::from_secs(5), || (links() == before).then_some(())).is_some(), "{:?}", links());
    assert_eq!(others(), theirs);
    // Whoever flushes everything is found out at once by the launcher, whom the kernel tells: the service stands still meanwhile.
    let running = service.daemon.session("listed");
    let is_service =
        |pid: &u32| std::fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|program| program.ends_with("sandboxd"));
    let pid = children(service.daemon.pid).into_iter().find(is_service).unwrap();
    let signal = |signal| kill_process(Pid::from_raw(pid.cast_signed()).unwrap(), signal).unwrap();
    signal(Signal::STOP);
    for _ in 0..3 {
        host.sh("nft flush ruleset");
        let flushed = Instant::now();
        let back = wait_for(Duration::from_secs(20), || service.rules().contains(": goto policy_").then_some(()));
        assert!(back.is_some(), "{}", service.rules());
        println!("written again after {} ms", flushed.elapsed().as_millis());
    }
    signal(Signal::CONT);
    // And by the next session, with those that run.
    host.sh("nft flush ruleset");
    let session = service.daemon.session("open");
    assert_eq!(connects(&running, "6.6.6.6", 80, "tcp"), "yes");
    assert_eq!(connects(&session, "1.2.3.4", 80, "tcp"), "yes");
    assert!(connects(&session, HOST, 8080, "tcp").starts_with("no: "));
    drop((session, running));
    let Service { world, daemon, .. } = &service;
    let report = daemon.client.get("/doctor").expect(200).json();
    let network = report["findings"].as_array().unwrap().iter().find(|f| f["subject"] == "network").unwrap().clone();
    assert_eq!(network["level"], "ok", "{network}");
    world.host.sh("nft add table ip docker; nft add chain ip docker FORWARD '{ type filter hook forward priority 0; policy drop; }'");
    let report = daemon.client.get("/doctor").expect(200).json();
    assert!(report.to_string().contains("chain FORWARD of table docker drops"), "{report}");
}

#[test]
fn nothing_is_left_when_the_service_ends() {
    let service = Service::start();
    let session = service.daemon.session("open");
    assert_eq!(connects(&session, "1.2.3.4", 80, "tcp"), "yes");
    std::mem::forget(session);
    let forwards = || service.world.host.sh("cat /proc/sys/net/ipv4/conf/uplink/forwarding").trim() == "1";
    assert!(forwards());
    // That it did not before is known also after this.
    service.world.host.sh("nft flush ruleset");
    let pid = service.daemon.pid;
    kill_process(Pid::from_raw(pid.cast_signed()).unwrap(), Signal::TERM).unwrap();
    let gone = || service.rules().trim().is_empty().then_some(());
    assert!(wait_for(Duration::from_secs(20), gone).is_some(), "{}", service.rules());
    let links = || (!service.world.host.sh("ip -o link | cut -d: -f2").contains("sbd")).then_some(());
    assert!(wait_for(Duration::from_secs(5), links).is_some());
    assert!(!forwards(), "the uplink did not forward before");
}

#[test]
fn twenty_open_at_once_and_a_network_costs_little() {
    let service = Service::start();
    // Everything that is made once has been.
    drop((service.daemon.session("alone"), service.daemon.session("open")));
    let times = |runtime: &str| {
        let mut times: Vec<Duration> = (0..10)
            .map(|_| {
                let begun = Instant::now();
                let session = service.daemon.session(runtime);
                let took = begun.elapsed();
                drop(session);
                took
            })
            .collect();
        times.sort();
        times[times.len() / 2]
    };
    let (without, with) = (times("alone"), times("open"));
    println!("opening: {without:?} without a network, {with:?} with one (medians of 10)");
    let sessions = Mutex::new(Vec::new());
    let begun = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..20 {
            scope.spawn(|| {
                let session = service.daemon.session("open");
                sessions.lock().unwrap().push(session);
            });
        }
    });
    println!("20 with a network at once: {:?}", begun.elapsed());
    let sessions = sessions.into_inner().unwrap();
    for session in &sessions {
        assert_eq!(connects(session, "1.2.3.4", 80, "tcp"), "yes");
    }
}

#[test]
fn whoever_starts_it_a_session_has_its_network() {
    for runtime in ["crun", "runc"] {
        if !std::path::Path::new("/usr/bin").join(runtime).exists() {
            it::skipped(&format!("{runtime} is not installed"));
            continue;
        }
        let service = Service::by(runtime);
        service.world.name("allowed.example", &[&["7.7.7.7"]]);
        let session = service.daemon.session("listed");
        assert_eq!(connects(&session, "allowed.example", 80, "tcp"), "yes", "{runtime}");
        assert!(connects(&session, HOST, 80, "tcp").starts_with("no: "), "{runtime}");
    }
}

#[test]
fn a_host_that_cannot_give_one_says_so_in_one_line() {
    let (world, state) = (World::new(), StateDir::new());
    // Sixteen others have all there are.
    let _taken: Vec<_> = world.host.within(|| {
        use std::os::linux::net::SocketAddrExt;
        let address =
            |n| std::os::unix::net::SocketAddr::from_abstract_name(format!("sandboxd-dev-network-{n}")).unwrap();
        (0..16).map(|n| std::os::unix::net::UnixListener::bind_addr(&address(n)).unwrap()).collect()
    });
    let daemon = Options::new().network(&world.host.path).catalog(&catalogue(&state)).start();
    let answer = daemon.client.post("/sessions", json!({"runtime": "open"}));
    assert!(answer.status >= 500 && answer.text().contains("launch.toml has no [network]"), "{}", answer.text());
    let report = daemon.client.get("/doctor").expect(200).json().to_string();
    assert!(report.contains("launch.toml has no [network]") && report.contains("nftables"), "{report}");
    let _ = daemon.session("alone");
    let _ = std::fs::remove_file(state.0.with_extension("catalog.json"));
}
