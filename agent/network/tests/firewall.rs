//! Pods behind a firewall that drops forwarded packets, as root, each test in its own network
//! namespace.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod common;

use std::net::{SocketAddr, UdpSocket};
use std::process::Command;
use std::time::Duration;

use common::{address, attach, greeting, inside, ip, listen, machine, nft_tables, open};
use network::Network as _;

fn run(program: &str, words: &str) -> String {
    let output = Command::new(program).args(words.split(' ')).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {words}: {said}");
    String::from_utf8(output.stdout).unwrap()
}

/// Peer of the machine's uplink, with a server and a client.
fn outside() -> std::fs::File {
    let namespace = std::thread::spawn(|| {
        nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).unwrap();
        std::fs::File::open("/proc/thread-self/ns/net").unwrap()
    });
    let namespace = namespace.join().unwrap();
    ip(&format!("link set up1 netns /proc/{}/fd/{}", std::process::id(), {
        use std::os::fd::AsRawFd as _;
        namespace.as_raw_fd()
    }));
    let entered = namespace.try_clone().unwrap();
    std::thread::spawn(move || {
        nix::sched::setns(entered, nix::sched::CloneFlags::CLONE_NEWNET).unwrap();
        ip("link set lo up");
        ip("link set up1 up mtu 1400");
        ip("addr add 172.30.0.254/24 dev up1");
        ip("route add default via 172.30.0.1");
        listen("172.30.0.254:81".parse().unwrap());
    })
    .join()
    .unwrap();
    namespace
}

#[tokio::test]
async fn where_docker_started_first_pods_reach_the_outside_and_each_other() {
    for variant in ["iptables-legacy", "iptables-nft"] {
        let folder = machine();
        let outside = outside();
        run(variant, "-w -P FORWARD DROP");
        // A firewall that also filters bridged packets.
        std::fs::write("/proc/sys/net/bridge/bridge-nf-call-iptables", "1").unwrap();
        let network = open(folder.path());
        network.start("10.63.0.0/24".parse().unwrap()).await.unwrap();
        let (one, two) = (attach(&network, "one").await, attach(&network, "two").await);
        let served = SocketAddr::from((address(&two), 80));
        inside(&two, move || listen(served));
        let all = move |what: &'static str, outside: std::fs::File| {
            assert_eq!(
                inside(&one, move || greeting(served)),
                "hello",
                "{variant}, {what}: pod to pod"
            );
            let far = "172.30.0.254:81".parse().unwrap();
            assert_eq!(
                inside(&one, move || greeting(far)),
                "hello",
                "{variant}, {what}: pod to outside"
            );
            let asked = std::thread::spawn(move || {
                nix::sched::setns(outside, nix::sched::CloneFlags::CLONE_NEWNET).unwrap();
                greeting(served)
            });
            assert_eq!(asked.join().unwrap(), "hello", "{variant}, {what}: outside to pod");
        };
        all("at the start", outside.try_clone().unwrap());
        // The firewall's rules are reloaded, and the kernel's settings.
        run(variant, "-w -F FORWARD");
        std::fs::write("/proc/sys/net/ipv4/ip_forward", "0").unwrap();
        assert_eq!(network.pass().await.unwrap(), None);
        assert_eq!(network.pass().await.unwrap(), None);
        let rules = run(variant, "-w -S FORWARD");
        assert_eq!(rules.matches("skiff-test: pods").count(), 3, "{rules}");
        all("after it was set up anew", outside);
        network.stop().await.unwrap();
        assert_eq!(run(variant, "-w -S FORWARD"), "-P FORWARD DROP\n");
    }
}

/// Answer of a datagram server at an address, from inside the thread's namespace.
fn echoed(at: SocketAddr) -> std::io::Result<usize> {
    let socket = UdpSocket::bind("0.0.0.0:0")?;
    socket.set_read_timeout(Some(Duration::from_secs(20)))?;
    socket.send_to(b"?", at)?;
    socket.recv(&mut [0; 8])
}

#[tokio::test]
async fn where_nothing_may_come_in_pods_ask_for_names_and_reach_services_on_the_node() {
    for variant in ["iptables-legacy", "iptables-nft"] {
        let folder = machine();
        run(variant, "-w -P INPUT DROP");
        let network = open(folder.path());
        network.start("10.63.2.0/24".parse().unwrap()).await.unwrap();
        let pod = attach(&network, "one").await;
        let (names, api) = ("10.63.2.1:53".parse().unwrap(), "172.30.0.1:81".parse().unwrap());
        let (_names, _api) = (listen(names), listen(api));
        let datagrams = UdpSocket::bind(names).unwrap();
        std::thread::spawn(move || {
            while let Ok((_, asker)) = datagrams.recv_from(&mut [0; 8]) {
                datagrams.send_to(b"!", asker).unwrap();
            }
        });
        assert_eq!(inside(&pod, move || greeting(names)), "hello", "{variant}");
        assert_eq!(inside(&pod, move || echoed(names)).unwrap(), 1, "{variant}");
        let rules = run(variant, "-w -S INPUT");
        let mark = rules.split("--mark ").nth(1).unwrap();
        let (mark, _) = mark.split_once('/').unwrap();
        run("nft", "add table ip lead");
        run(
            "nft",
            "add chain ip lead to { type nat hook prerouting priority -100 ; }",
        );
        let lead = format!("add rule ip lead to ip daddr 10.96.0.1 ct mark set {mark} dnat to {api}");
        run("nft", &lead.replace(" dnat", " meta l4proto tcp dnat"));
        let service = "10.96.0.1:443".parse().unwrap();
        assert_eq!(inside(&pod, move || greeting(service)), "hello", "{variant}");
        let shut = inside(&pod, move || {
            std::net::TcpStream::connect_timeout(&api, Duration::from_millis(300))
        });
        assert!(shut.is_err(), "{variant}: the node is open to its pods");
        assert_eq!(network.pass().await.unwrap(), None);
        assert_eq!(run(variant, "-w -S INPUT"), rules, "{variant}");
        network.stop().await.unwrap();
        assert_eq!(run(variant, "-w -S INPUT"), "-P INPUT DROP\n");
    }
}

#[tokio::test]
async fn a_table_of_a_program_that_is_not_there_is_told() {
    let folder = machine();
    run("iptables-legacy", "-w -P FORWARD DROP");
    nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNS).unwrap();
    run("mount", "--make-rprivate /");
    let program = run("which", "iptables-legacy");
    let program = std::fs::canonicalize(program.trim()).unwrap();
    run("mount", &format!("--bind /dev/null {}", program.display()));
    let network = open(folder.path());
    network.start("10.63.3.0/24".parse().unwrap()).await.unwrap();
    let told = network.pass().await.unwrap().unwrap();
    assert!(told.contains("the table filter of iptables-legacy is in use"), "{told}");
    network.stop().await.unwrap();
}

#[tokio::test]
async fn a_firewall_that_cannot_be_opened_is_told() {
    let folder = machine();
    let network = open(folder.path());
    network.start("10.63.1.0/24".parse().unwrap()).await.unwrap();
    assert_eq!(network.pass().await.unwrap(), None);
    assert!(
        !nft_tables().contains("filter"),
        "nothing is made where nothing filters: {}",
        nft_tables()
    );
    run("nft", "add table inet strict");
    run(
        "nft",
        "add chain inet strict forward { type filter hook forward priority 0 ; policy drop ; }",
    );
    let told = network.pass().await.unwrap().unwrap();
    assert!(
        told.contains("chain forward of nftables' table inet strict drops"),
        "{told}"
    );
    run(
        "nft",
        "add chain inet strict input { type filter hook input priority 0 ; policy drop ; }",
    );
    let told = network.pass().await.unwrap().unwrap();
    assert!(
        told.contains("chain input of nftables' table inet strict drops what pods send to the node"),
        "{told}"
    );
    run("nft", "add rule inet strict forward ip saddr 10.63.0.0/16 accept");
    assert_eq!(network.pass().await.unwrap(), None, "its operator knows of the pods");
    network.stop().await.unwrap();
    assert_eq!(nft_tables(), "table inet strict\n");
}
