//! Two networks on one machine, as root, each test in its own network namespace.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod common;

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use common::{address, attach, greeting, inside, ip, listen, machine, nft_tables};
use network::{Attachment, Bridge, Config, Error, Lost, Network as _};
use tokio::sync::mpsc;

const SLOTS: usize = 3;

fn open(folder: &Path, cluster: &str, bridge: &str) -> Bridge {
    Bridge::open(Config {
        state_dir: folder.join(cluster),
        bridge: bridge.to_owned(),
        direct: Vec::new(),
        routes: None,
        slots: SLOTS,
        guarded: true,
    })
    .unwrap()
}

fn ports(bridge: &str) -> usize {
    ip("-o link show type veth")
        .matches(&format!("master {bridge}"))
        .count()
}

fn until(what: &str, reached: impl Fn() -> bool) {
    let reached = (0..1000).any(|_| {
        if !reached() {
            std::thread::park_timeout(Duration::from_millis(10));
        }
        reached()
    });
    assert!(reached, "{what}: {}", ip("-o link"));
}

/// Pod that took a slot and answers at port 80.
async fn pod(network: &Bridge, sandbox: &str) -> Attachment {
    let pod = attach(network, sandbox).await;
    let at = SocketAddr::from((address(&pod), 80));
    inside(&pod, move || listen(at));
    pod
}

fn answers(pod: &Attachment) {
    assert_eq!(greeting((address(pod), 80).into()), "hello", "{}", pod.sandbox_id);
}

#[tokio::test]
async fn two_clusters_on_one_machine_leave_each_others_pods_alone() {
    let folder = machine();
    let (one, two) = (open(folder.path(), "a", "skiff-a"), open(folder.path(), "b", "skiff_a"));
    one.start("10.61.0.0/24".parse().unwrap()).await.unwrap();
    until("the first has slots", || ports("skiff-a") == SLOTS);
    let mut pods = Vec::new();
    for number in 0..SLOTS {
        pods.push(pod(&one, &format!("pod{number}")).await);
    }
    two.start("10.62.0.0/24".parse().unwrap()).await.unwrap();
    until("the second has slots", || ports("skiff_a") == SLOTS);
    pods.iter().for_each(answers);
    // Both have the same name.
    let other = pod(&two, "pod0").await;
    answers(&other);
    two.detach("pod0").await.unwrap();
    drop(two);
    let two = open(folder.path(), "b", "skiff_a");
    two.start("10.62.0.0/24".parse().unwrap()).await.unwrap();
    two.stop().await.unwrap();
    assert_eq!(ports("skiff_a"), 0);
    pods.iter().for_each(answers);
    assert_eq!(nft_tables().lines().count(), 2, "those of the first: {}", nft_tables());
    one.stop().await.unwrap();
    assert_eq!(
        (ip("-o link show type bridge"), nft_tables()),
        (String::new(), String::new())
    );
}

#[tokio::test]
async fn a_bridge_and_a_range_of_another_are_refused_and_left_alone() {
    let folder = machine();
    let one = open(folder.path(), "a", "skiff0");
    one.start("10.61.1.0/24".parse().unwrap()).await.unwrap();
    let own = pod(&one, "own").await;
    for _ in 0..2 {
        let same = open(folder.path(), "b", "skiff0");
        let refused = same.start("10.62.1.0/24".parse().unwrap()).await.unwrap_err();
        let owner = folder.path().join("a").canonicalize().unwrap().display().to_string();
        assert!(
            matches!(&refused, Error::BridgeTaken { owner: told, .. } if *told == owner),
            "{refused}"
        );
        same.stop().await.unwrap();
        answers(&own);
    }
    let overlapping = open(folder.path(), "c", "skiff1");
    let refused = overlapping.start("10.61.1.0/24".parse().unwrap()).await.unwrap_err();
    assert!(matches!(refused, Error::RangeTaken { .. }), "{refused}");
    overlapping.stop().await.unwrap();
    answers(&own);
    ip("link add lan type bridge");
    ip("address add 10.63.1.9/16 dev lan");
    let among = open(folder.path(), "g", "skiff2");
    let refused = among.start("10.63.1.0/24".parse().unwrap()).await.unwrap_err();
    assert!(
        matches!(&refused, Error::RangeTaken { interface, .. } if interface == "lan"),
        "{refused}"
    );
    among.start("10.63.2.0/24".parse().unwrap()).await.unwrap();
    among.stop().await.unwrap();
    ip("link add operators type bridge");
    ip("link add name tap0 type veth peer name tap1");
    ip("link set tap0 master operators");
    let foreign = open(folder.path(), "d", "operators");
    let refused = foreign.start("10.62.1.0/24".parse().unwrap()).await.unwrap_err();
    assert!(matches!(refused, Error::BridgeTaken { .. }), "{refused}");
    foreign.stop().await.unwrap();
    assert_eq!(ports("operators"), 1, "{}", ip("-o link"));
    one.stop().await.unwrap();
    // A network whose state folder was deleted has left its bridge.
    let gone = open(folder.path(), "e", "skiff0");
    gone.start("10.61.1.0/24".parse().unwrap()).await.unwrap();
    drop(gone);
    std::fs::remove_file(folder.path().join("e/range.json")).unwrap();
    until("no slot is being made", || {
        ports("skiff0") == SLOTS || ports("skiff0") == 0
    });
    for slot in std::fs::read_dir(folder.path().join("e/slots")).into_iter().flatten() {
        nix::mount::umount2(&slot.unwrap().path(), nix::mount::MntFlags::MNT_DETACH).unwrap();
    }
    std::fs::remove_dir_all(folder.path().join("e")).unwrap();
    let next = open(folder.path(), "f", "skiff0");
    next.start("10.61.1.0/24".parse().unwrap()).await.unwrap();
    next.stop().await.unwrap();
    common::open(folder.path()).stop().await.unwrap();
}

#[tokio::test]
async fn a_pod_that_lost_its_link_is_connected_again_and_that_is_told() {
    let folder = machine();
    let network = open(folder.path(), "a", "skiff0");
    network
        .start("10.61.2.0/24,fd00:61:2::/64".parse().unwrap())
        .await
        .unwrap();
    until("there are slots", || ports("skiff0") == SLOTS);
    let (one, two) = (pod(&network, "one").await, pod(&network, "two").await);
    until("there are slots again", || ports("skiff0") == SLOTS + 2);
    let (told, mut lost) = mpsc::channel(8);
    let (own, mut mending) = (network.clone(), tokio::task::JoinSet::new());
    mending.spawn(async move { own.mend(told).await });
    let mended = |sandbox: &str| Lost {
        sandbox_id: sandbox.to_owned(),
        failure: None,
    };
    let known: Vec<String> = ip("-o link show type veth")
        .lines()
        .filter(|line| line.contains("master skiff0"))
        .map(|line| line.split(' ').nth(1).unwrap().split('@').next().unwrap().to_owned())
        .collect();
    // All at once: those that replace the first ones must not be among the last.
    for name in &known {
        ip(&format!("link set {name} group 7"));
    }
    ip("link del group 7");
    let mut all = vec![told_of(&mut lost).await, told_of(&mut lost).await];
    all.sort_by(|one, two| one.sandbox_id.cmp(&two.sandbox_id));
    assert_eq!(all, [mended("one"), mended("two")]);
    // A listener on the old address continues: the addresses are the same.
    for pod in [&one, &two] {
        answers(pod);
        let v6 = inside(pod, || ip("-6 -o address show dev eth0"));
        assert!(v6.contains("fd00:61:2::"), "{v6}");
        assert!(inside(pod, || ip("route")).contains("default via 10.61.2.1"));
    }
    ip("link del skiff0");
    let mut all = vec![told_of(&mut lost).await, told_of(&mut lost).await];
    all.sort_by(|one, two| one.sandbox_id.cmp(&two.sandbox_id));
    assert_eq!(all, [mended("one"), mended("two")]);
    [&one, &two].into_iter().for_each(answers);
    // A link that the network itself removes is not lost.
    network.detach("one").await.unwrap();
    answers(&two);
    mending.shutdown().await;
    network.stop().await.unwrap();
    assert!(lost.try_recv().is_err(), "nothing else is told");
}

#[tokio::test]
async fn a_bridge_that_was_removed_set_down_or_emptied_is_made_again() {
    let (folder, ranges) = (machine(), "10.61.3.0/24,fd00:61:3::/64");
    let network = open(folder.path(), "a", "skiff0");
    network.start(ranges.parse().unwrap()).await.unwrap();
    until("there are slots", || ports("skiff0") == SLOTS);
    let one = pod(&network, "one").await;
    until("there are slots again", || ports("skiff0") == SLOTS + 1);
    drop(network);
    // While no process repairs it: the pods' links stay, without a bridge.
    ip("link del skiff0");
    let network = open(folder.path(), "a", "skiff0");
    network.start(ranges.parse().unwrap()).await.unwrap();
    let (told, mut lost) = mpsc::channel(8);
    let (own, mut mending) = (network.clone(), tokio::task::JoinSet::new());
    mending.spawn(async move { own.mend(told).await });
    assert_eq!(told_of(&mut lost).await.sandbox_id, "one");
    answers(&one);
    for change in [
        "link set skiff0 down",
        "-4 address flush dev skiff0",
        "-6 address flush dev skiff0",
    ] {
        ip(change);
        let entry = format!("{} ", address(&one));
        soon(change, || {
            let held = ip("address show dev skiff0");
            held.contains(",UP")
                && held.contains("10.61.3.1/24")
                && held.contains("fd00:61:3::1/64")
                && ip("neigh show dev skiff0 nud permanent").contains(&entry)
        })
        .await;
        answers(&one);
    }
    mending.shutdown().await;
    ip("route flush dev skiff0");
    network.start(ranges.parse().unwrap()).await.unwrap();
    answers(&one);
    network.stop().await.unwrap();
    assert!(lost.try_recv().is_err(), "nothing else is told");
}

async fn soon(what: &str, reached: impl Fn() -> bool) {
    let waiting = async {
        while !reached() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let waited = tokio::time::timeout(Duration::from_secs(20), waiting).await;
    waited.unwrap_or_else(|_| panic!("{what}: {}", ip("address show dev skiff0")));
}

async fn told_of(lost: &mut mpsc::Receiver<Lost>) -> Lost {
    let heard = tokio::time::timeout(Duration::from_secs(20), lost.recv()).await;
    heard
        .unwrap_or_else(|_| panic!("nobody tells: {}", ip("-o link")))
        .unwrap()
}
