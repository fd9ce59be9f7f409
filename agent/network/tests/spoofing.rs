//! Attacks of a pod with `CAP_NET_ADMIN`: spoofed addresses, and attempts to bypass network
//! policies. And of any pod: a flood of addresses.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]
#![allow(dead_code, reason = "the shared helpers have more than this uses")]

mod common;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6, UdpSocket};
use std::ops::RangeInclusive;
use std::os::fd::AsRawFd as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use common::{attach, greeting, inside, ip, listen, machine, nft_tables, open};
use network::{Attachment, Network as _};
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, SockaddrIn6, sendto, setsockopt, socket, sockopt,
};

const BOTH: &str = "10.66.0.0/24,fd00:66::/64";
const TABLE: &str = "table bridge skiff_skiff_test_guard";

/// Socket that receives the packets.
fn wait_at(address: &str) -> UdpSocket {
    let socket = UdpSocket::bind(address).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    socket
}

/// Sends a packet from an address of the pod.
fn send(pod: &Attachment, from: &str, to: &str, word: &'static str) {
    let (from, to) = (from.to_owned(), to.to_owned());
    inside(pod, move || {
        let index = nix::net::if_::if_nametoindex("eth0").unwrap();
        let [from, to] = [from, to].map(|text| text.replace("eth0", &index.to_string()));
        let socket = UdpSocket::bind(&from).unwrap_or_else(|error| panic!("{from}: {error}"));
        // A source address without a return route may be refused at once.
        drop(socket.send_to(word.as_bytes(), &to));
    });
}

/// Next packet that is received: those sent before it have been dropped.
fn next(socket: &UdpSocket) -> (String, IpAddr) {
    let mut buffer = [0; 64];
    let (length, from) = socket.recv_from(&mut buffer).unwrap();
    (
        String::from_utf8_lossy(buffer.get(..length).unwrap()).into_owned(),
        from.ip(),
    )
}

fn in_pod(pod: &Attachment, words: &str) -> String {
    let words = words.to_owned();
    inside(pod, move || ip(&words))
}

/// The kernel gives it a moment after the link is up.
fn link_local(pod: &Attachment) -> String {
    let found = (0..1000).find_map(|_| {
        let shown = in_pod(pod, "-6 -o addr show dev eth0 scope link");
        let own = shown.split_whitespace().find(|word| word.starts_with("fe80"));
        if own.is_none() {
            std::thread::park_timeout(Duration::from_millis(10));
        }
        own.map(|own| own.split('/').next().unwrap().to_owned())
    });
    found.unwrap()
}

/// Announces to the machine that an address is at a pod's interface, by ARP or neighbor
/// advertisement.
fn advertise(pod: &Attachment, address: &str, hardware: [u8; 6]) {
    let target: Ipv6Addr = address.parse().unwrap();
    let mut said = vec![136, 0, 0, 0, 0x60, 0, 0, 0];
    said.extend(target.octets());
    said.extend([2, 1]);
    said.extend(hardware);
    inside(pod, move || {
        let flags = SockFlag::SOCK_CLOEXEC;
        let raw = socket(AddressFamily::Inet6, SockType::Raw, flags, SockProtocol::IcmpV6).unwrap();
        setsockopt(&raw, sockopt::Ipv6Ttl, &255).unwrap();
        let to: SocketAddrV6 = "[fd00:66::1]:0".parse().unwrap();
        sendto(raw.as_raw_fd(), &said, &SockaddrIn6::from(to), MsgFlags::empty()).unwrap();
    });
}

#[tokio::test]
async fn attack_a_pod_sends_from_no_address_but_its_own() {
    let folder = machine();
    let network = open(folder.path());
    network.start(BOTH.parse().unwrap()).await.unwrap();
    let (one, two) = (attach(&network, "one").await, attach(&network, "two").await);
    // The machine has both in its neighbor cache.
    for pod in [&one, &two] {
        for held in &pod.addresses {
            let at = SocketAddr::from((held.address, 80));
            inside(pod, move || listen(at));
            assert_eq!(greeting(at), "hello");
        }
    }
    let (four, six) = (wait_at("10.66.0.1:90"), wait_at("[fd00:66::1]:90"));
    // An unassigned address, and the neighbor's.
    for stolen in ["10.66.0.77/32", "10.66.0.3/32", "fd00:66::77/128", "fd00:66::3/128"] {
        let family = if stolen.contains(':') { "-6 " } else { "" };
        let nodad = if stolen.contains(':') { " nodad" } else { "" };
        in_pod(&one, &format!("{family}addr add {stolen} dev eth0{nodad}"));
    }
    for stolen in ["10.66.0.77:0", "10.66.0.3:0"] {
        send(&one, stolen, "10.66.0.1:90", "stolen");
    }
    send(&one, "10.66.0.2:0", "10.66.0.1:90", "own");
    assert_eq!(next(&four), ("own".to_owned(), "10.66.0.2".parse().unwrap()));
    for stolen in ["[fd00:66::77]:0", "[fd00:66::3]:0"] {
        send(&one, stolen, "[fd00:66::1]:90", "stolen");
    }
    advertise(&one, "fd00:66::3", [0x0a, 0x58, 0x0a, 0x42, 0, 2]);
    send(&one, "[fd00:66::2]:0", "[fd00:66::1]:90", "own");
    assert_eq!(next(&six), ("own".to_owned(), "fd00:66::2".parse().unwrap()));
    for (family, address) in [("-4", "10.66.0.3"), ("-6", "fd00:66::3")] {
        let known = ip(&format!("{family} neigh show {address}"));
        assert!(
            known.contains("0a:58:0a:42:00:03"),
            "the neighbor is where it was: {known}"
        );
    }

    // With the neighbor's hardware address.
    let hardware = |of: u8| format!("link set eth0 address 0a:58:0a:42:00:0{of}");
    in_pod(&one, &hardware(3));
    send(&one, "10.66.0.2:0", "10.66.0.1:90", "stolen");
    in_pod(&one, &hardware(2));
    send(&one, "10.66.0.2:0", "10.66.0.1:90", "own again");
    assert_eq!(next(&four).0, "own again");
    network.stop().await.unwrap();
}

#[tokio::test]
async fn attack_link_local_addresses_lead_to_no_other_pod() {
    let folder = machine();
    let network = open(folder.path());
    network.start(BOTH.parse().unwrap()).await.unwrap();
    let (one, two) = (attach(&network, "one").await, attach(&network, "two").await);
    let (own, other) = (link_local(&one), link_local(&two));
    let waiting = inside(&two, || wait_at("[::]:90"));
    send(
        &one,
        &format!("[{own}%eth0]:0"),
        &format!("[{other}%eth0]:90"),
        "past policies",
    );
    send(&one, "[fd00:66::2]:0", &format!("[{other}%eth0]:90"), "past policies");
    // Through the node, which has a route to it.
    in_pod(&one, &format!("-6 route add {other}/128 via fd00:66::1 dev eth0"));
    for _ in 0..3 {
        send(&one, "[fd00:66::2]:0", &format!("[{other}%eth0]:90"), "past policies");
        send(&one, "[fd00:66::2]:0", "[fd00:66::3]:90", "judged");
        assert_eq!(next(&waiting).0, "judged");
    }
    network.stop().await.unwrap();
}

/// Sends to addresses of the pod's link, and of the pods' range, that nobody has.
fn flood(pod: &Attachment, goes_on: &Arc<AtomicBool>) -> std::thread::JoinHandle<()> {
    let goes_on = Arc::clone(goes_on);
    inside(pod, move || {
        let index = nix::net::if_::if_nametoindex("eth0").unwrap();
        std::thread::spawn(move || {
            for block in (1..=15_u8).cycle().take(3000) {
                if !goes_on.load(Ordering::Relaxed) {
                    break;
                }
                // Packets that wait for a neighbor fill the buffer of their socket.
                let [four, six] = ["0.0.0.0:0", "[::]:0"].map(|any| UdpSocket::bind(any).unwrap());
                for socket in [&four, &six] {
                    socket.set_nonblocking(true).unwrap();
                }
                for last in 0..=255_u8 {
                    drop(four.send_to(b"x", (Ipv4Addr::new(10, 66, block, last), 9)));
                    let near = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, block.into(), last.into());
                    drop(six.send_to(b"x", SocketAddrV6::new(near, 9, 0, index)));
                }
                std::thread::park_timeout(Duration::from_millis(10));
            }
        })
    })
}

/// Waits until the kernel's tables of neighbors take no other: each try needs a new address.
fn until_full(tries: &RangeInclusive<u8>) {
    for at in ["172.30.0.", "fd00:30::"] {
        let full = tries.clone().any(|last| {
            std::thread::park_timeout(Duration::from_millis(40));
            let words = format!("neigh add {at}{last} lladdr 02:00:00:00:00:01 nud stale dev up0");
            let added = std::process::Command::new("ip")
                .args(words.split(' '))
                .output()
                .unwrap();
            String::from_utf8_lossy(&added.stderr).contains("No buffer space")
        });
        assert!(full, "{at}: {}", ip("neigh"));
    }
}

#[tokio::test]
async fn attack_39_a_pod_that_fills_the_table_of_neighbors_cuts_off_no_other() {
    let folder = machine();
    let network = open(folder.path());
    let ranges = "10.66.0.0/20,fd00:66::/64";
    network.start(ranges.parse().unwrap()).await.unwrap();
    let (flooding, old) = (attach(&network, "flooding").await, attach(&network, "old").await);
    for node in ["10.66.0.1:80", "[fd00:66::1]:80"] {
        listen(node.parse().unwrap());
    }
    let goes_on = Arc::new(AtomicBool::new(true));
    let flood = flood(&flooding, &goes_on);
    until_full(&(1..=120));
    let new = attach(&network, "new").await;
    for (from, to) in [(&old, &new), (&new, &old)] {
        for held in &to.addresses {
            let [pod, node] = [held.address, held.gateway()].map(|address| SocketAddr::from((address, 80)));
            inside(to, move || listen(pod));
            assert_eq!(greeting(pod), "hello", "from the node");
            for at in [pod, node] {
                assert_eq!(inside(from, move || greeting(at)), "hello", "from a pod");
            }
        }
    }
    until_full(&(121..=250));
    goes_on.store(false, Ordering::Relaxed);
    flood.join().unwrap();
    network.stop().await.unwrap();
}

#[tokio::test]
async fn pods_are_known_to_the_guard_and_the_bridge_for_as_long_as_they_are() {
    let folder = machine();
    let network = open(folder.path());
    network.start(BOTH.parse().unwrap()).await.unwrap();
    let one = attach(&network, "one").await;
    let elements = || {
        let listed = std::process::Command::new("nft")
            .args(["list", "ruleset", "bridge"])
            .output()
            .unwrap();
        String::from_utf8(listed.stdout).unwrap().matches("\"veth").count()
    };
    let neighbors = || ip("neigh show dev skiff-test nud permanent").lines().count();
    // Where the bridge has no port for an address, it copies to all.
    let ports = || {
        let listed = std::process::Command::new("bridge")
            .args(["fdb", "show", "br", "skiff-test"])
            .output()
            .unwrap();
        String::from_utf8(listed.stdout).unwrap().matches(" static").count()
    };
    let each = elements();
    assert_eq!((each, neighbors(), ports()), (7, 2, 1));
    // Another program flushes the ruleset.
    std::process::Command::new("nft")
        .args(["flush", "ruleset"])
        .status()
        .unwrap();
    network.pass().await.unwrap();
    assert_eq!(elements(), each);
    let two = attach(&network, "two").await;
    assert_eq!(elements(), each * 2);
    drop(network);
    let network = open(folder.path());
    network.start(BOTH.parse().unwrap()).await.unwrap();
    assert_eq!((elements(), neighbors()), (each * 2, 4), "another process goes on");
    assert_eq!(ports(), 2);
    let at = SocketAddr::from((two.addresses.first().unwrap().address, 80));
    inside(&two, move || listen(at));
    assert_eq!(inside(&one, move || greeting(at)), "hello");
    for sandbox in ["one", "two"] {
        network.detach(sandbox).await.unwrap();
    }
    // A link is deleted shortly after its pod.
    attach(&network, "one").await;
    network.detach("one").await.unwrap();
    attach(&network, "one").await;
    let only_one = (0..500).any(|_| {
        std::thread::park_timeout(Duration::from_millis(10));
        (elements(), neighbors()) == (each, 2)
    });
    assert!(only_one, "{}", ip("neigh"));
    assert!(nft_tables().contains(TABLE));
    network.stop().await.unwrap();
    assert!(!nft_tables().contains(TABLE));
}
