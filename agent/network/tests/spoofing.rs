//! Attacks of a pod with `CAP_NET_ADMIN`: spoofed addresses, and attempts to bypass network
//! policies.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]
#![allow(dead_code, reason = "the shared helpers have more than this uses")]

mod common;

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::AsRawFd as _;
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
    socket.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
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

fn link_local(pod: &Attachment) -> String {
    let shown = in_pod(pod, "-6 -o addr show dev eth0 scope link");
    let mut words = shown.split_whitespace();
    let found = words.find(|word| word.starts_with("fe80")).unwrap();
    found.split('/').next().unwrap().to_owned()
}

/// Announces to the machine that an address is at a pod's interface, by ARP or neighbor
/// advertisement.
fn advertise(pod: &Attachment, address: &str, hardware: [u8; 6]) {
    let target: std::net::Ipv6Addr = address.parse().unwrap();
    let mut said = vec![136, 0, 0, 0, 0x60, 0, 0, 0];
    said.extend(target.octets());
    said.extend([2, 1]);
    said.extend(hardware);
    inside(pod, move || {
        let flags = SockFlag::SOCK_CLOEXEC;
        let raw = socket(AddressFamily::Inet6, SockType::Raw, flags, SockProtocol::IcmpV6).unwrap();
        setsockopt(&raw, sockopt::Ipv6Ttl, &255).unwrap();
        let to: std::net::SocketAddrV6 = "[fd00:66::1]:0".parse().unwrap();
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
    send(&one, "[fd00:66::2]:0", "[fd00:66::3]:90", "judged");
    assert_eq!(next(&waiting).0, "judged");
    network.stop().await.unwrap();
}

#[tokio::test]
async fn pods_are_known_to_the_guard_for_as_long_as_they_are() {
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
    let each = elements();
    assert_eq!(each, 7);
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
    assert_eq!(elements(), each * 2, "another process goes on");
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
    assert!(nft_tables().contains(TABLE));
    network.stop().await.unwrap();
    assert!(!nft_tables().contains(TABLE));
}
