//! Pods behind a firewall that drops forwarded packets, as root, each test in its own network
//! namespace.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod common;

use std::net::SocketAddr;
use std::process::Command;

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
        run(variant, "-P FORWARD DROP");
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
        // The firewall's rules are reloaded.
        run(variant, "-F FORWARD");
        assert_eq!(network.pass().await.unwrap(), None);
        assert_eq!(network.pass().await.unwrap(), None);
        let rules = run(variant, "-S FORWARD");
        assert_eq!(rules.matches("skiff-test: pods").count(), 3, "{rules}");
        all("after it was set up anew", outside);
        network.stop().await.unwrap();
        assert_eq!(run(variant, "-S FORWARD"), "-P FORWARD DROP\n");
    }
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
    run("nft", "add rule inet strict forward ip saddr 10.63.0.0/16 accept");
    assert_eq!(network.pass().await.unwrap(), None, "its operator knows of the pods");
    network.stop().await.unwrap();
    assert_eq!(nft_tables(), "table inet strict\n");
}
