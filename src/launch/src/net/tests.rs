//! The network on the real kernel, in network namespaces that end with the test.

use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::fs::{Mode, OFlags};
use rustix::thread::{LinkNameSpaceType, UnshareFlags};
use wire::launch::{EgressRule, Protocol, Rest};

use super::*;

const PATIENCE: Duration = Duration::from_millis(500);

fn namespace() -> OwnedFd {
    rustix::fs::open("/proc/thread-self/ns/net", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).unwrap()
}

/// What stands for the directory of the cgroups.
fn directory() -> (tempfile::TempDir, OwnedFd) {
    let made = tempfile::tempdir().unwrap();
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let opened = rustix::fs::open(made.path(), flags, Mode::empty()).unwrap();
    (made, opened)
}

fn go_to(namespace: &OwnedFd) {
    rustix::thread::move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
}

fn fresh() -> OwnedFd {
    crate::sys::unshare(UnshareFlags::NEWNET).unwrap();
    namespace()
}

/// A host, two sandboxes in slots 1 and 2, and an internet, each a namespace of its own; `body` runs on the host.
fn with_world(body: impl FnOnce(&Settings, [&OwnedFd; 4]) + Send) {
    let settings: Settings = toml::from_str("pool = \"198.19.0.0/20\"\nuplinks = [\"world\"]").unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (internet, one, two, host) = (fresh(), fresh(), fresh(), fresh());
            ip(&["link", "set", "lo", "up"]);
            let world = Pair { name: "world", gateway: [9, 9, 9, 1].into(), address: [9, 9, 9, 9].into() };
            world.make(internet.as_fd()).unwrap();
            ip(&["route", "add", "default", "via", "9.9.9.9", "onlink", "dev", "world"]);
            // The internet has every address.
            go_to(&internet);
            ip(&["link", "set", "lo", "up"]);
            ip(&["route", "add", "local", "default", "dev", "lo", "table", "local"]);
            ip(&["route", "add", "throw", "198.19.0.0/20", "table", "local"]);
            go_to(&host);
            let mut nft = open().unwrap();
            ruleset::ensure(&mut nft, &settings).unwrap();
            forwarding::on(&mut nft, &settings, directory().1.as_fd()).unwrap();
            go_to(&two);
            ip(&["link", "set", "lo", "up"]);
            go_to(&host);
            for (slot, inside) in [(1, &one), (2, &two)] {
                let (name, pool) = (settings.device(slot), settings.pool);
                let pair = Pair { name: &name, gateway: pool.gateway(), address: pool.address(slot) };
                pair.make(inside.as_fd()).unwrap();
            }
            body(&settings, [&host, &one, &two, &internet]);
        });
    });
}

fn ip(arguments: &[&str]) {
    assert!(std::process::Command::new("ip").args(arguments).status().unwrap().success(), "{arguments:?}");
}

fn follow(settings: &Settings, slot: u32, egress: &Egress) {
    let mut nft = open().unwrap();
    let chain = ruleset::ensure_policy(&mut nft, settings, egress).unwrap();
    let policies = Set { table: &settings.table(), name: "policies" };
    nft.put(policies, &Element::of(&settings.device(slot)).leading_to(&chain)).unwrap();
}

/// Whether a connection from the namespace `from` to `to` is accepted there; `listening` is where somebody listens.
fn connects(from: &OwnedFd, to: (Ipv4Addr, u16)) -> bool {
    let back = namespace();
    go_to(from);
    let connected = TcpStream::connect_timeout(&SocketAddr::from(to), PATIENCE).is_ok();
    go_to(&back);
    connected
}

fn listen(at: &OwnedFd, port: u16) -> TcpListener {
    let back = namespace();
    go_to(at);
    let listener = TcpListener::bind(("0.0.0.0", port)).unwrap();
    go_to(&back);
    listener
}

fn refused(settings: &Settings, slot: u32) -> u64 {
    let Answer::Refusals { refusals } = refusals(Some(settings)).unwrap() else { panic!("no counts") };
    refusals.iter().find(|counted| counted.slot == slot).map_or(0, |counted| counted.packets)
}

#[test]
fn a_sandbox_reaches_the_internet_and_nothing_else() {
    with_world(|settings, [host, one, two, internet]| {
        let _listening = [listen(internet, 80), listen(host, 80), listen(one, 80), listen(two, 80)];
        assert!(!connects(one, ([1, 1, 1, 1].into(), 80)), "without a policy nothing passes");
        // One, and again for each second that its sender waits in vain.
        assert!(refused(settings, 1) >= 1);
        follow(settings, 1, &Egress::default());
        assert!(
            connects(host, ([1, 1, 1, 1].into(), 80)) && connects(two, ([198, 19, 0, 3].into(), 80)),
            "the control"
        );
        assert!(connects(one, ([1, 1, 1, 1].into(), 80)));
        let never: [Ipv4Addr; 14] = [
            [198, 19, 0, 1].into(),
            [9, 9, 9, 1].into(),
            [198, 19, 0, 3].into(),
            [10, 1, 2, 3].into(),
            [100, 64, 0, 1].into(),
            [169, 254, 169, 254].into(),
            [172, 16, 0, 1].into(),
            [192, 168, 1, 1].into(),
            [192, 0, 2, 1].into(),
            [198, 18, 0, 1].into(),
            [203, 0, 113, 7].into(),
            [224, 0, 0, 1].into(),
            [240, 0, 0, 1].into(),
            [255, 255, 255, 255].into(),
        ];
        let before = refused(settings, 1);
        for address in never {
            assert!(!connects(one, (address, 80)), "{address}");
        }
        assert!(refused(settings, 1) >= before + 11, "{} after {before}", refused(settings, 1));
        assert!(!connects(internet, ([198, 19, 0, 2].into(), 80)), "nobody comes in");
    });
}

#[test]
fn lists_and_permits_decide_in_their_order() {
    with_world(|settings, [_, one, _, internet]| {
        let _listening = [listen(internet, 80), listen(internet, 443)];
        let rule = |address: [u8; 4], prefix, ports| EgressRule {
            address: address.into(),
            prefix,
            ports,
            protocol: Some(Protocol::Tcp),
        };
        let deny = vec![rule([1, 1, 1, 0], 24, None)];
        let allow = vec![rule([1, 0, 0, 0], 8, Some((443, 443))), rule([0, 0, 0, 0], 0, Some((80, 80)))];
        follow(settings, 1, &Egress { rest: Rest::Deny, deny, allow });
        let reached = |address: [u8; 4], port| connects(one, (address.into(), port));
        assert!(reached([1, 2, 3, 4], 443) && !reached([1, 1, 1, 1], 443) && !reached([2, 2, 2, 2], 443));
        assert!(reached([2, 2, 2, 2], 80) && !reached([10, 0, 0, 1], 80), "0.0.0.0/0 is the internet");
        let mut nft = open().unwrap();
        for (address, port) in [([3, 3, 3, 3], Some((Protocol::Tcp, 443))), ([10, 0, 0, 1], None)] {
            let set = if port.is_some() { "permitted_ports" } else { "permitted" };
            let permit = Permit { address: address.into(), port, seconds: 1 };
            let set = Set { table: &settings.table(), name: set };
            nft.put(set, &Element::permit("sbx1", &permit)).unwrap();
            nft.put(set, &Element::permit("sbx1", &permit)).unwrap();
        }
        assert!(reached([3, 3, 3, 3], 443) && !reached([3, 3, 3, 4], 443), "what was permitted");
        assert!(!reached([10, 0, 0, 1], 80), "a permit opens no private range");
        std::thread::sleep(Duration::from_millis(1500));
        assert!(!reached([3, 3, 3, 3], 443), "a permit ends");
    });
}

#[test]
fn another_s_address_is_believed_of_nobody() {
    with_world(|settings, [_, one, _, internet]| {
        follow(settings, 1, &Egress::default());
        let back = namespace();
        go_to(internet);
        let server = UdpSocket::bind("1.1.1.1:53000").unwrap();
        server.set_read_timeout(Some(PATIENCE)).unwrap();
        go_to(one);
        // What a command could not do, which has no CAP_NET_ADMIN.
        for own in ["198.19.0.2", "198.19.0.3", "198.19.0.1", "9.9.9.9", "8.8.8.8"] {
            if own != "198.19.0.2" {
                ip(&["address", "add", &format!("{own}/32"), "dev", "eth0"]);
            }
            let socket = UdpSocket::bind((own, 0)).unwrap();
            let _ = socket.send_to(own.as_bytes(), "1.1.1.1:53000");
            let mut buffer = [0; 64];
            let came = server.recv(&mut buffer).map(|length| buffer[..length].to_vec()).ok();
            assert_eq!(came.is_some(), own == "198.19.0.2", "{own}");
        }
        go_to(&back);
    });
}

#[test]
fn what_a_slot_had_is_forgotten_and_the_table_replaced_around_the_rest() {
    with_world(|settings, [_, one, _, internet]| {
        let _listening = listen(internet, 80);
        follow(settings, 1, &Egress::default());
        let other = Settings { log: true, ..settings.clone() };
        let mut nft = open().unwrap();
        ruleset::ensure(&mut nft, &other).unwrap();
        assert!(connects(one, ([1, 1, 1, 1].into(), 80)), "a new version of the table keeps who is in it");
        let policies = Set { table: &settings.table(), name: "policies" };
        assert_eq!(nft.elements(policies).unwrap().len(), 1);
        forget(Some(1), Some(settings)).unwrap();
        assert!(nft.elements(policies).unwrap().is_empty());
        assert!(!connects(one, ([1, 1, 1, 1].into(), 80)));
    });
}

#[test]
fn a_device_forwards_as_long_as_somebody_needs_it_and_no_longer() {
    with_world(|settings, _| {
        let file = |device: &str| format!("/proc/sys/net/ipv4/conf/{device}/forwarding");
        let set = |device: &str, value: &str| std::fs::write(file(device), value).unwrap();
        let forwards = || std::fs::read_to_string(file("world")).unwrap().trim() == "1";
        let mut nft = open().unwrap();
        let ((_kept, own), (_too, others)) = (directory(), directory());
        // It was switched on by the making of the pair itself, before there was anybody to undo it.
        remove(settings, own.as_fd()).unwrap();
        assert!(forwards(), "a device that forwarded before goes on");
        set("world", "0");
        ruleset::ensure(&mut nft, settings).unwrap();
        forwarding::on(&mut nft, settings, own.as_fd()).unwrap();
        assert!(forwards());
        forwarding::on(&mut nft, settings, own.as_fd()).unwrap();
        let other = Settings { name: "other".to_owned(), ..settings.clone() };
        ruleset::ensure(&mut nft, &other).unwrap();
        forwarding::on(&mut nft, &other, others.as_fd()).unwrap();
        remove(settings, own.as_fd()).unwrap();
        assert!(forwards(), "another launcher needs it");
        remove(&other, others.as_fd()).unwrap();
        assert!(!forwards(), "nobody needs it");
        ruleset::ensure(&mut nft, settings).unwrap();
        forwarding::on(&mut nft, settings, own.as_fd()).unwrap();
        set("all", "1");
        remove(settings, own.as_fd()).unwrap();
        assert!(forwards(), "the whole host forwards");
        set("all", "0");
        set("world", "0");
        // Somebody flushes every table; it is written again, or it is not.
        for written in [true, false] {
            ruleset::ensure(&mut nft, settings).unwrap();
            forwarding::on(&mut nft, settings, own.as_fd()).unwrap();
            ruleset::remove(settings).unwrap();
            if written {
                ruleset::ensure(&mut nft, settings).unwrap();
                forwarding::on(&mut nft, settings, own.as_fd()).unwrap();
            }
            assert!(forwards(), "written again: {written}");
            remove(settings, own.as_fd()).unwrap();
            assert!(!forwards(), "it did not forward before; written again: {written}");
        }
    });
}
