//! The bridge network with IPv6 addresses, as root, each test in its own network namespace.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod common;

use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6, TcpListener, TcpStream};
use std::os::fd::AsRawFd as _;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use common::{address, attach, greeting, inside, ip, listen, machine, nft_tables, open};
use network::{AttachSpec, Attachment, Network as _, PortMapping};
use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, SockaddrIn6, sendto, socket};

const BOTH: &str = "10.66.0.0/24,fd00:66::/64";

/// Machine with an IPv6 address, and behind it a host without a route to pods.
fn dual_machine() -> (tempfile::TempDir, Attachment) {
    let folder = machine();
    ip("-6 addr add fd00:30::1/64 dev up0 nodad");
    ip("-6 route add default via fd00:30::fe");
    let netns = folder.path().join("host");
    let held = netns.clone();
    std::thread::spawn(move || {
        nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).unwrap();
        std::fs::File::create(&held).unwrap();
        let flags = nix::mount::MsFlags::MS_BIND;
        nix::mount::mount(
            Some("/proc/thread-self/ns/net"),
            &held,
            None::<&str>,
            flags,
            None::<&str>,
        )
        .unwrap();
    })
    .join()
    .unwrap();
    let host = Attachment {
        sandbox_id: "host".to_owned(),
        netns,
        addresses: Vec::new(),
        gateway: IpAddr::from([172, 30, 0, 254]),
        interface: "up1".to_owned(),
        ports: Vec::new(),
    };
    ip(&format!("link set up1 netns {}", host.netns.display()));
    inside(&host, || {
        ip("link set up1 up");
        ip("addr add 172.30.0.254/24 dev up1");
        ip("-6 addr add fd00:30::fe/64 dev up1 nodad");
    });
    // The kernel notes a moment later that the link has its other end again.
    let up = (0..1000).any(|_| {
        std::thread::park_timeout(Duration::from_millis(10));
        ip("-o link show up0").contains("state UP")
    });
    assert!(up, "{}", ip("-o link"));
    (folder, host)
}

fn leave(host: &Attachment) {
    nix::mount::umount2(&host.netns, nix::mount::MntFlags::MNT_DETACH).unwrap();
}

fn of(attachment: &Attachment, v6: bool) -> IpAddr {
    let mut held = attachment.addresses.iter().map(|held| held.address);
    held.find(|address| address.is_ipv6() == v6).unwrap()
}

fn read(path: &str) -> String {
    std::fs::read_to_string(Path::new("/proc/sys/net").join(path))
        .unwrap()
        .trim()
        .to_owned()
}

/// Server that answers with the address of its client.
fn peer(at: SocketAddr) -> std::thread::JoinHandle<IpAddr> {
    let listener = TcpListener::bind(at).unwrap();
    std::thread::spawn(move || listener.accept().unwrap().1.ip())
}

#[tokio::test]
async fn pods_have_both_families_and_reach_the_world_by_both() {
    let (folder, host) = dual_machine();
    let network = open(folder.path());
    network.start(BOTH.parse().unwrap()).await.unwrap();
    network.start(BOTH.parse().unwrap()).await.unwrap();
    let (one, two) = (attach(&network, "one").await, attach(&network, "two").await);
    let shown =
        |attachment: &Attachment| -> Vec<String> { attachment.addresses.iter().map(ToString::to_string).collect() };
    assert_eq!(shown(&one), ["10.66.0.2/24", "fd00:66::2/64"]);
    assert_eq!(shown(&two), ["10.66.0.3/24", "fd00:66::3/64"]);
    for v6 in [false, true] {
        let served = SocketAddr::from((of(&two, v6), 80));
        // Immediately: an address under duplicate address detection cannot be bound.
        inside(&two, move || listen(served));
        assert_eq!(
            inside(&one, move || greeting(served)),
            "hello",
            "pod to pod at {served}"
        );
        assert_eq!(
            inside(&two, move || greeting(served)),
            "hello",
            "pod to itself at {served}"
        );
        assert_eq!(greeting(served), "hello", "machine to pod at {served}");
    }
    for local in ["[fd00:66::1]:81", "[fd00:30::1]:82", "172.30.0.1:82"] {
        let local: SocketAddr = local.parse().unwrap();
        listen(local);
        assert_eq!(
            inside(&one, move || greeting(local)),
            "hello",
            "pod to machine at {local}"
        );
    }
    for (there, node) in [("172.30.0.254:83", "172.30.0.1"), ("[fd00:30::fe]:83", "fd00:30::1")] {
        let there: SocketAddr = there.parse().unwrap();
        let seen = inside(&host, move || peer(there));
        drop(inside(&one, move || {
            TcpStream::connect_timeout(&there, Duration::from_secs(3)).unwrap()
        }));
        assert_eq!(
            seen.join().unwrap().to_string(),
            node,
            "who comes from a pod to {there}"
        );
    }
    inside(&one, || {
        let loopback: SocketAddr = "[::1]:84".parse().unwrap();
        listen(loopback);
        assert_eq!(greeting(loopback), "hello");
        assert!(ip("-o link show eth0").contains("mtu 1400"));
    });
    network.stop().await.unwrap();
    leave(&host);
}

#[tokio::test]
async fn one_family_is_enough_and_either_may_be_first() {
    let (folder, host) = dual_machine();
    let network = open(folder.path());
    network.start("fd00:66:1::/64".parse().unwrap()).await.unwrap();
    let one = attach(&network, "one").await;
    assert_eq!(
        (one.addresses.len(), one.gateway.to_string()),
        (1, "fd00:66:1::1".to_owned())
    );
    let served = SocketAddr::from((address(&one), 80));
    inside(&one, move || listen(served));
    assert_eq!(greeting(served), "hello");
    assert_eq!(ip("-4 addr show skiff-test"), "", "nothing of a family without a range");
    assert!(!nft_tables().contains("table ip skiff"), "{}", nft_tables());
    let refused = network.start(BOTH.parse().unwrap()).await.unwrap_err().to_string();
    assert_eq!(refused, "pods still use addresses of fd00:66:1::/64");

    network.detach("one").await.unwrap();
    network
        .start("fd00:66:2::/64,10.66.2.0/24".parse().unwrap())
        .await
        .unwrap();
    let two = attach(&network, "two").await;
    assert_eq!(two.addresses.first().unwrap().to_string(), "fd00:66:2::2/64");
    assert_eq!(of(&two, false).to_string(), "10.66.2.2");
    assert!(
        !ip("-6 addr show skiff-test").contains("fd00:66:1::"),
        "the earlier range's gateway is gone"
    );
    assert!(!ip("-6 route show type blackhole").contains("fd00:66:1::"));
    network.detach("two").await.unwrap();
    network.start("10.66.2.0/24".parse().unwrap()).await.unwrap();
    assert!(!nft_tables().contains("table ip6"), "{}", nft_tables());
    network.stop().await.unwrap();
    leave(&host);
}

#[tokio::test]
async fn a_new_process_adopts_both_addresses_and_a_stop_leaves_nothing() {
    let (folder, host) = dual_machine();
    let before = (ip("-o link"), ip("-6 route"), ip("route"));
    let network = open(folder.path());
    network.start(BOTH.parse().unwrap()).await.unwrap();
    let port = PortMapping {
        host_port: 8080,
        container_port: 80,
        protocol: "TCP".to_owned(),
        host_address: None,
    };
    let spec = AttachSpec {
        sandbox_id: "one".to_owned(),
        ports: vec![port],
        ..AttachSpec::default()
    };
    let one = network.attach(spec.clone()).await.unwrap();
    drop(network);
    let network = open(folder.path());
    network.start(BOTH.parse().unwrap()).await.unwrap();
    assert_eq!(network.attachments().await.unwrap(), std::slice::from_ref(&one));
    assert_eq!(network.attach(spec).await.unwrap(), one);
    assert!(ip("-6 route show type blackhole").contains("fd00:66::/64"));
    assert!(
        nft_tables().contains("table ip6 skiff_skiff_test_ports"),
        "{}",
        nft_tables()
    );
    let two = attach(&network, "two").await;
    assert_eq!(of(&two, true).to_string(), "fd00:66::3");
    network.stop().await.unwrap();
    network.stop().await.unwrap();
    assert_eq!((ip("-o link"), ip("-6 route"), ip("route")), before);
    assert_eq!(nft_tables(), "");
    leave(&host);
}

/// A host port leads to the pod's address of the client's family.
#[tokio::test]
async fn ports_of_the_node_lead_to_pods_by_both_families() {
    let (folder, host) = dual_machine();
    let network = open(folder.path());
    network.start(BOTH.parse().unwrap()).await.unwrap();
    let port = |host_port, host_address: Option<&str>| PortMapping {
        host_port,
        container_port: 80,
        protocol: "TCP".to_owned(),
        host_address: host_address.map(|address| address.parse().unwrap()),
    };
    let spec = AttachSpec {
        sandbox_id: "web".to_owned(),
        ports: vec![
            port(8080, None),
            port(8081, Some("fd00:30::1")),
            port(8082, Some("::")),
            port(8083, Some("0.0.0.0")),
        ],
        ..AttachSpec::default()
    };
    let web = network.attach(spec).await.unwrap();
    let other = attach(&network, "other").await;
    for v6 in [false, true] {
        let served = SocketAddr::from((of(&web, v6), 80));
        inside(&web, move || listen(served));
    }
    for (at, leads) in [
        ("[fd00:30::1]:8080", true),
        ("172.30.0.1:8080", true),
        ("[fd00:66::1]:8080", true),
        ("[fd00:30::1]:8081", true),
        ("[fd00:66::1]:8081", false),
        ("172.30.0.1:8081", false),
        ("[fd00:30::1]:8082", true),
        ("172.30.0.1:8082", false),
        ("[fd00:30::1]:8083", false),
        ("172.30.0.1:8083", true),
    ] {
        let at: SocketAddr = at.parse().unwrap();
        let reached = move || TcpStream::connect_timeout(&at, Duration::from_secs(2)).is_ok();
        for (from, who) in [(&host, "a host"), (&web, "the pod itself"), (&other, "another pod")] {
            if who == "a host" && at.ip().to_string() == "fd00:66::1" {
                continue;
            }
            assert_eq!(inside(from, reached), leads, "{who} to {at}");
        }
        assert_eq!(reached(), leads, "the machine to {at}");
    }
    network.detach("web").await.unwrap();
    assert!(!nft_tables().contains("_ports"), "{}", nft_tables());
    network.stop().await.unwrap();
    leave(&host);
}

/// Sends a router advertisement from up1 to up0, and waits for the route.
fn advertise(host: &Attachment) {
    inside(host, || {
        std::fs::write("/proc/sys/net/ipv6/conf/up1/hop_limit", "255").unwrap();
    });
    let own = ip("-6 -o addr show dev up0 scope link");
    let own = own.split_whitespace().find(|word| word.starts_with("fe80")).unwrap();
    let own: Ipv6Addr = own.split('/').next().unwrap().parse().unwrap();
    // Type 134, hop limit 64, lifetime of half an hour; the kernel adds the checksum.
    let message = [134, 0, 0, 0, 64, 0, 7, 8, 0, 0, 0, 0, 0, 0, 0, 0];
    let listened = (0..400).any(|_| {
        inside(host, move || {
            let index = nix::net::if_::if_nametoindex("up1").unwrap();
            let raw = socket(
                AddressFamily::Inet6,
                SockType::Raw,
                SockFlag::empty(),
                SockProtocol::IcmpV6,
            )
            .unwrap();
            let to = SockaddrIn6::from(SocketAddrV6::new(own, 0, 0, index));
            // Its own address may still be tentative.
            sendto(raw.as_raw_fd(), &message, &to, MsgFlags::empty()).ok();
        });
        std::thread::park_timeout(Duration::from_millis(50));
        ip("-6 route show default").contains("proto ra")
    });
    assert!(listened, "{}{}", ip("-6 route"), ip("-6 addr"));
}

/// A machine with a default route from router advertisements keeps it when forwarding is enabled.
#[tokio::test]
async fn a_route_from_a_router_outlives_the_beginning_of_forwarding() {
    let (folder, host) = dual_machine();
    ip("-6 route del default via fd00:30::fe");
    assert_eq!(
        (read("ipv6/conf/all/forwarding"), read("ipv6/conf/up0/accept_ra")),
        ("0".to_owned(), "1".to_owned())
    );
    ip("link add deaf type veth peer name mute");
    std::fs::write("/proc/sys/net/ipv6/conf/deaf/accept_ra", "0").unwrap();
    advertise(&host);
    let route = ip("-6 route show default");
    let network = open(folder.path());
    network.start("10.66.3.0/24".parse().unwrap()).await.unwrap();
    assert_eq!(
        read("ipv6/conf/all/forwarding"),
        "0",
        "nothing of IPv6 is touched without a range of it"
    );
    assert_eq!(read("ipv6/conf/up0/accept_ra"), "1");
    network.stop().await.unwrap();
    network.start(BOTH.parse().unwrap()).await.unwrap();
    assert_eq!(
        (read("ipv6/conf/all/forwarding"), read("ipv6/conf/up0/accept_ra")),
        ("1".to_owned(), "2".to_owned())
    );
    assert_eq!(
        read("ipv6/conf/deaf/accept_ra"),
        "0",
        "who did not listen does not begin to"
    );
    let words = |route: &str| route.split(" expires").next().unwrap().to_owned();
    assert_eq!(words(&ip("-6 route show default")), words(&route));
    network.stop().await.unwrap();
    leave(&host);
}

/// Router advertisements of a pod are ignored by the node and by other pods, whatever the families.
#[tokio::test]
async fn nobody_listens_to_a_pod_that_says_it_is_a_router() {
    let folder = machine();
    let network = open(folder.path());
    for ranges in ["10.66.4.0/24", "10.66.4.0/24,fd00:66:4::/64"] {
        network.start(ranges.parse().unwrap()).await.unwrap();
        let pod = attach(&network, "pod").await;
        assert_eq!(read("ipv6/conf/skiff-test/accept_ra"), "0", "{ranges}");
        assert_eq!(inside(&pod, || read("ipv6/conf/eth0/accept_ra")), "0", "{ranges}");
        network.detach("pod").await.unwrap();
    }
    network.stop().await.unwrap();
}

#[tokio::test]
async fn what_is_sent_to_a_gone_pod_of_version_6_stays_here() {
    let (folder, host) = dual_machine();
    let network = open(folder.path());
    network.start(BOTH.parse().unwrap()).await.unwrap();
    ip("link del skiff-test");
    let output = Command::new("ip")
        .args(["-6", "route", "get", "fd00:66::9"])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout);
    assert!(!output.status.success() && !said.contains("up0"), "{said}");
    network.stop().await.unwrap();
    leave(&host);
}
