//! Addresses that two hosts of a link announce, as root, in network namespaces of their own.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

#[allow(dead_code, reason = "of the support for all tests, these need a little")]
mod common;

use std::collections::BTreeSet;
use std::fs::File;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::AsRawFd as _;
use std::time::Duration;

use common::{ip, machine};
use network::services::announce::{Announcer, ranges};
use nix::sched::{CloneFlags, setns, unshare};
use tokio::time::{Instant, timeout, timeout_at};

/// Moves the other end of the link into a network namespace of another host.
fn other_host() -> File {
    let made = std::thread::spawn(|| {
        unshare(CloneFlags::CLONE_NEWNET).unwrap();
        File::open("/proc/thread-self/ns/net").unwrap()
    });
    let namespace = made.join().unwrap();
    let path = format!("/proc/{}/fd/{}", std::process::id(), namespace.as_raw_fd());
    ip(&format!("link set up1 netns {path}"));
    ip("-6 addr add fd00:30::1/64 dev up0 nodad");
    at(&namespace, || {
        ip("addr add 172.30.0.9/24 dev up1");
        ip("-6 addr add fd00:30::9/64 dev up1 nodad");
        ip("link set up1 up");
    });
    namespace
}

fn at<T: Send + 'static>(namespace: &File, work: impl FnOnce() -> T + Send + 'static) -> T {
    let namespace = namespace.try_clone().unwrap();
    let inside = move || {
        setns(namespace, CloneFlags::CLONE_NEWNET).unwrap();
        work()
    };
    std::thread::spawn(inside).join().unwrap()
}

/// Sends a packet to an address, so that the kernel asks for its hardware address.
fn ask(address: IpAddr) {
    let any: IpAddr = if address.is_ipv4() {
        "0.0.0.0".parse().unwrap()
    } else {
        "::".parse().unwrap()
    };
    let socket = UdpSocket::bind((any, 0)).unwrap();
    socket.send_to(b"hello", SocketAddr::new(address, 9)).unwrap();
}

fn mac(interface: &str) -> String {
    let shown = ip(&format!("-o link show {interface}"));
    let mut words = shown.split_whitespace();
    words.find(|word| *word == "link/ether").unwrap();
    words.next().unwrap().to_owned()
}

/// Runs the announcer until the other host knows the address.
async fn known(announcer: &mut Announcer, other: &File, address: IpAddr, mac: &str) {
    let (other, mac) = (other.try_clone().unwrap(), mac.to_owned());
    let learned = tokio::task::spawn_blocking(move || {
        let mut last = String::new();
        for _ in 0..400 {
            last = at(&other, move || {
                ask(address);
                ip(&format!("neigh show {address}"))
            });
            if last.contains(&mac) {
                return;
            }
            std::thread::park_timeout(Duration::from_millis(10));
        }
        panic!("{address} is not known as that of {mac}: {last}");
    });
    tokio::select! {
        claim = announcer.run() => panic!("{claim:?}"),
        learned = learned => learned.unwrap(),
    }
}

#[tokio::test]
async fn hosts_of_the_link_find_announced_addresses_until_another_host_has_them() {
    let _folder = machine();
    let other = other_host();
    let all: BTreeSet<IpAddr> = ["172.30.0.200", "fd00:30::200"]
        .map(|text| text.parse().unwrap())
        .into();
    let mut announcer = Announcer::open().unwrap();
    let elsewhere: IpAddr = "203.0.113.7".parse().unwrap();
    let more = all.iter().copied().chain([elsewhere]).collect();
    assert_eq!(announcer.set(&more, &[]).unwrap(), [elsewhere]);
    assert!(ranges(&["up0"]).is_empty());
    let own: Vec<String> = ranges(&[]).iter().map(ToString::to_string).collect();
    assert_eq!(own, ["172.30.0.0/24", "fd00:30::/64"]);
    let own = mac("up0");
    for address in &all {
        known(&mut announcer, &other, *address, &own).await;
    }
    let there = all.clone();
    let claims = std::thread::spawn({
        let other = other.try_clone().unwrap();
        move || {
            setns(other, CloneFlags::CLONE_NEWNET).unwrap();
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            runtime.block_on(async {
                let mut rival = Announcer::open().unwrap();
                assert!(rival.set(&there, &[]).unwrap().is_empty());
                // It may hear of the other's claims before it has told its own.
                let end = Instant::now() + Duration::from_secs(3);
                while let Ok(Ok(_claim)) = timeout_at(end, rival.run()).await {}
            });
        }
    });
    let mut heard = BTreeSet::new();
    while heard != all {
        let claim = timeout(Duration::from_secs(10), announcer.run())
            .await
            .unwrap()
            .unwrap();
        assert_ne!(claim.by, [0; 6]);
        heard.insert(claim.address);
    }
    claims.join().unwrap();
    // What is announced no longer is not answered.
    announcer.set(&BTreeSet::new(), &[]).unwrap();
    at(&other, || {
        ip("neigh flush dev up1");
        ask("172.30.0.200".parse().unwrap());
    });
    let silent = timeout(Duration::from_secs(1), announcer.run()).await;
    assert!(silent.is_err(), "{silent:?}");
    let known = at(&other, || ip("neigh show 172.30.0.200"));
    assert!(!known.contains("lladdr"), "{known}");
}
