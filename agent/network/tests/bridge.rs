//! Tests of the bridge network, as root, each in its own network namespace.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod common;

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use common::{address, attach, greeting, inside, ip, listen, machine, nft_tables, open};
use network::{AttachSpec, Attachment, Bridge, Network as _, PortMapping};

#[tokio::test]
async fn pods_reach_each_other_and_the_machine() {
    let folder = machine();
    let network = open(folder.path());
    network.start("10.77.0.0/24".parse().unwrap()).await.unwrap();
    network.start("10.77.0.0/24".parse().unwrap()).await.unwrap();
    let (one, two) = (attach(&network, "one").await, attach(&network, "two").await);
    assert_eq!(attach(&network, "one").await, one, "a second attach returns the first");
    let served = SocketAddr::from((address(&two), 80));
    inside(&two, move || listen(served));
    assert_eq!(inside(&one, move || greeting(served)), "hello", "pod to pod");
    assert_eq!(inside(&two, move || greeting(served)), "hello", "pod to itself");
    assert_eq!(greeting(served), "hello", "machine to pod");
    for local in ["10.77.0.1:81", "172.30.0.1:82"] {
        let local: SocketAddr = local.parse().unwrap();
        listen(local);
        assert_eq!(
            inside(&one, move || greeting(local)),
            "hello",
            "pod to machine at {local}"
        );
    }
    let loopback = SocketAddr::from(([127, 0, 0, 1], 83));
    inside(&one, move || {
        listen(loopback);
        assert_eq!(greeting(loopback), "hello", "the pod's own loopback is up");
    });
    let links = inside(&one, || ip("-o link show eth0"));
    assert!(links.contains("mtu 1400"), "the uplink's MTU: {links}");
    let told = inside(&one, || ip("-6 -o address show dev eth0"));
    assert_eq!(told, "", "every pod would hear of it");
    let ports = ip("-o link show master skiff-test");
    let ports: Vec<&str> = ports.lines().filter_map(|line| line.split([' ', '@']).nth(1)).collect();
    assert_eq!(ports.len(), 2, "{ports:?}");
    for port in ports {
        assert_eq!(ip(&format!("-6 -o address show dev {port}")), "", "nobody needs it");
    }
    network.stop().await.unwrap();
}

#[tokio::test]
async fn a_new_process_adopts_and_a_stop_leaves_nothing() {
    let folder = machine();
    let before = ip("-o link").lines().count();
    let network = open(folder.path());
    network.stop().await.unwrap();
    let network = open(folder.path());
    network.start("10.77.1.0/24".parse().unwrap()).await.unwrap();
    let one = attach(&network, "one").await;
    attach(&network, "two").await;
    drop(network);

    let network = open(folder.path());
    network.start("10.77.1.0/24".parse().unwrap()).await.unwrap();
    assert_eq!(network.attachments().await.unwrap().len(), 2);
    assert_eq!(attach(&network, "one").await, one);
    let served = SocketAddr::from((address(&one), 80));
    inside(&one, move || listen(served));
    assert_eq!(greeting(served), "hello");
    network.detach("one").await.unwrap();
    network.detach("one").await.unwrap();
    network.detach("never").await.unwrap();
    assert!(!one.netns.exists());
    let three = attach(&network, "three").await;
    assert_ne!(address(&three), address(&one), "an address rests");
    assert!(ip("route show type blackhole").contains("10.77.1.0/24"));
    assert!(nft_tables().contains("skiff_skiff_test"));

    network.stop().await.unwrap();
    network.stop().await.unwrap();
    assert_eq!(ip("-o link").lines().count(), before, "{}", ip("-o link"));
    assert_eq!(ip("route show type blackhole"), "");
    assert_eq!(nft_tables(), "");
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert!(!mounts.contains(&folder.path().display().to_string()), "{mounts}");
}

/// A crash between two steps leaves a namespace, a link or a record; the next attempt succeeds and
/// a stop removes everything.
#[tokio::test]
async fn leftovers_of_a_crash_do_not_stand_in_the_way() {
    let folder = machine();
    let network = open(folder.path());
    network.start("10.77.2.0/24".parse().unwrap()).await.unwrap();
    let lost = attach(&network, "lost").await;
    std::fs::remove_file(folder.path().join("network/attachments/lost.json")).unwrap();
    drop(network);

    let network = open(folder.path());
    network.start("10.77.2.0/24".parse().unwrap()).await.unwrap();
    assert!(network.attachments().await.unwrap().is_empty());
    let again = attach(&network, "lost").await;
    let served = SocketAddr::from((address(&again), 80));
    inside(&again, move || listen(served));
    assert_eq!(greeting(served), "hello");
    std::fs::remove_file(folder.path().join("network/attachments/lost.json")).unwrap();
    drop(network);
    open(folder.path()).stop().await.unwrap();
    assert!(!lost.netns.exists());
    // The kernel deletes the interfaces of a namespace asynchronously.
    let gone = (0..3000).any(|_| {
        std::thread::park_timeout(Duration::from_millis(10));
        !ip("-o link").contains("veth")
    });
    assert!(gone, "{}", ip("-o link"));
}

/// A failed attachment is undone without affecting anything else on the machine: in particular, the
/// cleanup runs in the host's namespace, not in the pod's.
#[tokio::test]
async fn an_attachment_that_fails_in_the_middle_leaves_nothing() {
    let folder = machine();
    let network = open(folder.path());
    network.start("10.77.5.0/24".parse().unwrap()).await.unwrap();
    let other = attach(&network, "other").await;
    let links = || -> Vec<String> {
        let all = ip("-o -br link");
        all.lines()
            .map(|line| line.split_whitespace().next().unwrap().to_owned())
            .collect()
    };
    let before = (links(), nft_tables());
    // A bridge name that belongs to a link that is no bridge: the failure occurs after the
    // namespace and the veth pair were created.
    ip("link set skiff-test name real");
    ip("link add skiff-test type veth peer name dull");
    let spec = AttachSpec {
        sandbox_id: "web".to_owned(),
        ports: vec![PortMapping {
            host_port: 8080,
            container_port: 80,
            protocol: "TCP".to_owned(),
            host_address: None,
        }],
        ..AttachSpec::default()
    };
    for _ in 0..5 {
        let failed = network.attach(spec.clone()).await.unwrap_err().to_string();
        assert!(failed.starts_with("connect to the bridge"), "{failed}");
    }
    ip("link del skiff-test");
    ip("link set real name skiff-test");
    assert_eq!((links(), nft_tables()), before);
    let names = |folder: &Path| -> Vec<String> {
        let entries = std::fs::read_dir(folder).unwrap();
        entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect()
    };
    assert_eq!(names(&folder.path().join("network/netns")), ["other"]);
    assert_eq!(names(&folder.path().join("network/attachments")), ["other.json"]);
    assert_eq!(network.attachments().await.unwrap(), [other]);
    let web = network.attach(spec).await.unwrap();
    let served = SocketAddr::from((address(&web), 80));
    inside(&web, move || listen(served));
    assert_eq!(greeting("172.30.0.1:8080".parse().unwrap()), "hello");
    network.stop().await.unwrap();
    assert_eq!(nft_tables(), "");
}

/// A process killed at any moment of an attachment leaves it complete or absent: the next process
/// must not adopt a partial one.
#[test]
fn attack_25_a_killed_process_leaves_whole_attachments_or_none() {
    let folder = machine();
    let executor = || {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap()
    };
    let start = |network: &Bridge| {
        let starting = network.start("10.77.6.0/24".parse().unwrap());
        executor().block_on(starting).unwrap();
    };
    start(&open(folder.path()));
    for step in 0..60_u64 {
        let sandbox = format!("s{step}");
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "attaches_for_another_test", "--nocapture", "--ignored"])
            .env("SKIFF_ATTACH", format!("{}={sandbox}", folder.path().display()))
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::null())
            .spawn()
            .unwrap();
        // The child signals when it begins.
        let mut begun = Vec::new();
        let mut output = child.stdout.take().unwrap();
        while !begun.ends_with(b"begin\n") {
            let mut byte = [0];
            output.read_exact(&mut byte).unwrap();
            begun.extend(byte);
        }
        std::thread::park_timeout(Duration::from_micros(step * 100));
        child.kill().unwrap();
        child.wait().unwrap();
        let network = open(folder.path());
        start(&network);
        let attachment = executor().block_on(attach(&network, &sandbox));
        let served = SocketAddr::from((address(&attachment), 80));
        inside(&attachment, move || listen(served));
        assert_eq!(greeting(served), "hello", "step {step}");
        executor().block_on(network.detach(&sandbox)).unwrap();
        assert!(executor().block_on(network.attachments()).unwrap().is_empty());
    }
    executor().block_on(open(folder.path()).stop()).unwrap();
    // The kernel deletes the interfaces of a namespace asynchronously.
    let gone = (0..3000).any(|_| {
        std::thread::park_timeout(Duration::from_millis(10));
        !ip("-o link").contains("veth")
    });
    assert!(gone, "{}", ip("-o link"));
}

/// Helper process that is killed by the test above.
#[test]
#[ignore = "run by another test"]
fn attaches_for_another_test() {
    let Ok(order) = std::env::var("SKIFF_ATTACH") else {
        return;
    };
    let (folder, sandbox) = order.split_once('=').unwrap();
    let executor = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let network = open(Path::new(folder));
    executor
        .block_on(network.start("10.77.6.0/24".parse().unwrap()))
        .unwrap();
    std::io::stdout().write_all(b"begin\n").unwrap();
    executor.block_on(attach(&network, sandbox));
    loop {
        std::thread::park();
    }
}

#[tokio::test]
async fn what_is_sent_to_a_gone_pod_stays_here() {
    let folder = machine();
    let network = open(folder.path());
    network.start("10.77.3.0/24".parse().unwrap()).await.unwrap();
    ip("link del skiff-test");
    let output = Command::new("ip").args(["route", "get", "10.77.3.9"]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout);
    assert!(!output.status.success() && !said.contains("up0"), "{said}");
    network.stop().await.unwrap();
}

#[tokio::test]
async fn impossible_ids_and_ranges_are_refused() {
    let folder = machine();
    let network = open(folder.path());
    assert!(network.start("10.77.4.0/31".parse().unwrap()).await.is_err());
    network.start("10.77.4.0/30".parse().unwrap()).await.unwrap();
    for id in ["../../etc", "a/b", "", "."] {
        let spec = AttachSpec {
            sandbox_id: id.to_owned(),
            ..AttachSpec::default()
        };
        assert!(network.attach(spec).await.is_err(), "{id:?}");
        assert!(network.detach(id).await.is_err(), "{id:?}");
    }
    attach(&network, "only").await;
    let spec = AttachSpec {
        sandbox_id: "second".to_owned(),
        ..AttachSpec::default()
    };
    let full = network.attach(spec).await.unwrap_err().to_string();
    assert_eq!(full, "no free address in 10.77.4.0/30");
    network.stop().await.unwrap();
}

const WAY_FROM_LOOPBACK: &str = "/proc/sys/net/ipv4/conf/skiff-test/route_localnet";

fn way_from_loopback() -> String {
    std::fs::read_to_string(WAY_FROM_LOOPBACK).unwrap().trim().to_owned()
}

/// Routes 127.0.0.0/8 inside the pod to the node, so that it can send to the node's loopback.
fn take_loopback_for_the_nodes(pod: &Attachment) {
    inside(pod, || {
        ip("addr del 127.0.0.1/8 dev lo");
        ip("route add 127.0.0.0/8 via 10.77.4.1 dev eth0");
        std::fs::write("/proc/sys/net/ipv4/conf/eth0/route_localnet", "1").unwrap();
    });
}

/// A host port leads to its pod from the node, its loopback and other pods, across a restart and
/// until the pod is removed; no pod reaches the node's loopback through it.
#[tokio::test]
async fn attack_30_ports_of_the_node_lead_to_pods_and_not_back() {
    let folder = machine();
    let network = open(folder.path());
    network.start("10.77.4.0/24".parse().unwrap()).await.unwrap();
    let port = |host_port, host_address: Option<&str>| PortMapping {
        host_port,
        container_port: 80,
        protocol: "TCP".to_owned(),
        host_address: host_address.map(|address| address.parse().unwrap()),
    };
    let spec = AttachSpec {
        sandbox_id: "web".to_owned(),
        ports: vec![port(8080, None), port(8081, Some("172.30.0.1"))],
        ..AttachSpec::default()
    };
    let web = network.attach(spec).await.unwrap();
    let other = attach(&network, "other").await;
    let served = SocketAddr::from((address(&web), 80));
    inside(&web, move || listen(served));
    let open_at = |at: &str| at.parse::<SocketAddr>().unwrap();
    let check = |what: &str| {
        for at in ["172.30.0.1:8080", "127.0.0.1:8080", "172.30.0.1:8081"] {
            assert_eq!(greeting(open_at(at)), "hello", "{what}: {at}");
        }
        for (from, who) in [(&web, "itself"), (&other, "another")] {
            let at = open_at("172.30.0.1:8080");
            assert_eq!(
                inside(from, move || greeting(at)),
                "hello",
                "{what}: the pod from {who}"
            );
        }
        let closed = open_at("127.0.0.1:8081");
        assert!(
            TcpStream::connect_timeout(&closed, Duration::from_secs(1)).is_err(),
            "{what}: {closed}"
        );
    };
    check("at first");
    drop(network);
    let network = open(folder.path());
    network.start("10.77.4.0/24".parse().unwrap()).await.unwrap();
    check("after a restart");

    take_loopback_for_the_nodes(&other);
    let private = open_at("127.0.0.1:84");
    listen(private);
    let is_closed = |when: &str| {
        let reached = inside(&other, move || {
            TcpStream::connect_timeout(&private, Duration::from_secs(1)).is_ok()
        });
        assert!(!reached, "the node's loopback is its own {when}");
    };
    is_closed("while a port leads to a pod");
    network.detach("web").await.unwrap();
    is_closed("after the last one");
    assert_eq!(way_from_loopback(), "0");
    let gone = open_at("172.30.0.1:8080");
    assert!(TcpStream::connect_timeout(&gone, Duration::from_secs(1)).is_err());
    assert!(!nft_tables().contains("_ports"), "{}", nft_tables());

    // State left by another process without a guard.
    drop(network);
    std::fs::write(WAY_FROM_LOOPBACK, "1").unwrap();
    let network = open(folder.path());
    network.start("10.77.4.0/24".parse().unwrap()).await.unwrap();
    is_closed("after the next start");
    assert_eq!(way_from_loopback(), "0");
    network.stop().await.unwrap();
    assert_eq!(nft_tables(), "");
}
