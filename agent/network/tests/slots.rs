//! Slots: pod networks created ahead of time, as root, each test in its own network namespace.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod common;

use std::io::{Read as _, Write as _};
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, SystemTime};

use common::{address, attach, greeting, inside, ip, listen, machine, nft_tables};
use network::{AttachSpec, Bridge, Config, Network as _};

const SLOTS: usize = 3;
const RANGES: &str = "10.55.0.0/24,fd00:55::/64";

fn open(folder: &Path) -> Bridge {
    Bridge::open(Config {
        state_dir: folder.join("network"),
        bridge: "skiff-test".to_owned(),
        direct: Vec::new(),
        routes: None,
        slots: SLOTS,
        guarded: true,
    })
    .unwrap()
}

fn names(folder: &Path, sub: &str) -> Vec<String> {
    let entries = std::fs::read_dir(folder.join("network").join(sub))
        .into_iter()
        .flatten();
    let mut names: Vec<String> = entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

/// Host ends of veth pairs on the bridge.
fn ports() -> usize {
    ip("-o link show type veth").matches("master skiff-test").count()
}

fn until(what: &str, reached: impl Fn() -> bool, shown: impl Fn() -> String) {
    let reached = (0..1000).any(|_| {
        if !reached() {
            std::thread::park_timeout(Duration::from_millis(10));
        }
        reached()
    });
    assert!(reached, "{what}: {}", shown());
}

fn until_full(folder: &Path) {
    let full = || names(folder, "slots").len() == SLOTS;
    until("the slots are made", full, || {
        format!("{:?} {}", names(folder, "slots"), ip("-o link"))
    });
}

#[tokio::test]
async fn a_pod_takes_what_was_made_ahead_and_more_is_made_after_it() {
    let folder = machine();
    let network = open(folder.path());
    network.start(RANGES.parse().unwrap()).await.unwrap();
    until_full(folder.path());
    until("they hang on the bridge", || ports() == SLOTS, || ip("-o link"));
    assert!(
        network.attachments().await.unwrap().is_empty(),
        "nobody is told of them"
    );
    let first = names(folder.path(), "slots").remove(0);
    let one = attach(&network, "one").await;
    assert_eq!(
        address(&one).to_string(),
        "10.55.0.2",
        "what has waited longest is taken first"
    );
    until(
        "it is held for the pod alone",
        || !names(folder.path(), "slots").contains(&first),
        || format!("{first} in {:?}", names(folder.path(), "slots")),
    );
    assert_eq!(names(folder.path(), "netns"), ["one"]);
    assert_eq!(network.attachments().await.unwrap(), std::slice::from_ref(&one));
    assert_eq!(attach(&network, "one").await, one);
    let served: Vec<SocketAddr> = one.addresses.iter().map(|held| (held.address, 80).into()).collect();
    for at in served {
        inside(&one, move || listen(at));
        assert_eq!(greeting(at), "hello", "{at}");
    }
    until_full(folder.path());
    // The next process finds the owner of the link in the record.
    drop(network);
    let network = open(folder.path());
    network.start(RANGES.parse().unwrap()).await.unwrap();
    assert_eq!(network.attachments().await.unwrap(), std::slice::from_ref(&one));
    assert_eq!(greeting((address(&one), 80).into()), "hello", "a restart harms nobody");
    until_full(folder.path());
    until(
        "only they and the pod hang on the bridge",
        || ports() == SLOTS + 1,
        || ip("-o link"),
    );
    network.detach("one").await.unwrap();
    until("its link is gone", || ports() == SLOTS, || ip("-o link"));
    let two = attach(&network, "two").await;
    assert_ne!(address(&two), address(&one), "an address rests");
    network.stop().await.unwrap();
    assert_eq!(
        (ip("-o link show type bridge"), nft_tables()),
        (String::new(), String::new())
    );
    assert_eq!(ports(), 0);
    assert!(names(folder.path(), "slots").is_empty() && names(folder.path(), "netns").is_empty());
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert!(!mounts.contains(&folder.path().display().to_string()), "{mounts}");
}

#[tokio::test]
async fn pods_that_come_at_once_or_have_users_of_their_own_are_served_too() {
    let folder = machine();
    let network = open(folder.path());
    network.start(RANGES.parse().unwrap()).await.unwrap();
    until_full(folder.path());
    let first = names(folder.path(), "slots");
    let ids: Vec<String> = (0..12).map(|number| format!("pod{number}")).collect();
    let all = futures::future::join_all(ids.iter().map(|id| attach(&network, id))).await;
    let mut addresses: Vec<_> = all.iter().map(address).collect();
    addresses.sort();
    addresses.dedup();
    assert_eq!(addresses.len(), ids.len(), "{addresses:?}");
    let slots = || names(folder.path(), "slots");
    let others = || slots().iter().all(|slot| !first.contains(slot));
    until("those that were taken are let go", others, || format!("{:?}", slots()));
    until_full(folder.path());
    let before = slots();
    let spec = AttachSpec {
        sandbox_id: "users".to_owned(),
        user_ids: Some(1 << 20),
        ..AttachSpec::default()
    };
    let own = network.attach(spec).await.unwrap();
    assert_eq!(slots(), before, "they are the machine's users'");
    inside(&own, || assert!(ip("-o link show eth0").contains("eth0")));
    // A slot whose link was removed from the bridge is not used.
    ip("link set dev skiff-test name other");
    ip("link add skiff-test type bridge");
    ip("link set skiff-test up");
    let late = attach(&network, "late").await;
    let shown = || inside(&late, || ip("-o link show eth0"));
    until("its link is up", || shown().contains("state UP"), shown);
    // Its other end, maybe beside those of slots that are made anew.
    let own = shown();
    let (peer, _) = own.split_once("@if").unwrap().1.split_once(':').unwrap();
    let links = ip("-o link show type veth master skiff-test");
    let is_port = links.lines().any(|line| line.starts_with(&format!("{peer}: ")));
    assert!(is_port, "{own}{links}");
    ip("link del other");
    network.stop().await.unwrap();
    assert!(!ip("-o link show type veth").contains("skiff-test"));
}

/// Slots hold addresses that pods may need, and are removed when the range changes.
#[tokio::test]
async fn slots_give_way_to_pods_and_to_other_ranges() {
    let folder = machine();
    let network = open(folder.path());
    network.start("10.55.1.0/27".parse().unwrap()).await.unwrap();
    until_full(folder.path());
    for number in 0..28 {
        attach(&network, &format!("pod{number}")).await;
    }
    let spec = AttachSpec {
        sandbox_id: "users".to_owned(),
        user_ids: Some(1 << 20),
        ..AttachSpec::default()
    };
    network.attach(spec).await.unwrap();
    let more = AttachSpec {
        sandbox_id: "more".to_owned(),
        ..AttachSpec::default()
    };
    let full = network.attach(more).await.unwrap_err().to_string();
    assert_eq!(full, "no free address in 10.55.1.0/27");
    for sandbox in network.attachments().await.unwrap() {
        network.detach(&sandbox.sandbox_id).await.unwrap();
    }
    network.start("10.55.2.0/24".parse().unwrap()).await.unwrap();
    until_full(folder.path());
    network.start("10.55.3.0/24".parse().unwrap()).await.unwrap();
    let pod = attach(&network, "pod").await;
    assert!(address(&pod).to_string().starts_with("10.55.3."), "{pod:?}");
    network.stop().await.unwrap();
    assert_eq!(ports(), 0);
}

fn executor() -> tokio::runtime::Runtime {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_all().build().unwrap()
}

/// A process killed at any moment while it creates or takes slots leaves complete pods, and nothing
/// that the next process does not remove.
#[test]
fn a_killed_process_leaves_whole_pods_and_no_slots() {
    let folder = machine();
    for step in 0..40_u64 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "takes_slots_for_another_test", "--nocapture", "--ignored"])
            .env("SKIFF_SLOTS", format!("{}={step}", folder.path().display()))
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::null())
            .spawn()
            .unwrap();
        // The child signals when the slots exist, and then takes them.
        let mut begun = Vec::new();
        let mut output = child.stdout.take().unwrap();
        while !begun.ends_with(b"begin\n") {
            let mut byte = [0];
            output.read_exact(&mut byte).unwrap();
            begun.extend(byte);
        }
        // The first half of the runs kills it while it takes slots, the others while it creates new
        // ones.
        let moment = if step < 20 { step * 60 } else { 200_000 + step * 400 };
        std::thread::park_timeout(Duration::from_micros(moment));
        child.kill().unwrap();
        child.wait().unwrap();
        let network = open(folder.path());
        let runtime = executor();
        runtime.block_on(network.start(RANGES.parse().unwrap())).unwrap();
        let known = runtime.block_on(network.attachments()).unwrap();
        assert_eq!(names(folder.path(), "netns").len(), known.len(), "step {step}");
        for number in 0..4 {
            let pod = runtime.block_on(attach(&network, &format!("s{step}-{number}")));
            let served = SocketAddr::from((address(&pod), 80));
            inside(&pod, move || listen(served));
            assert_eq!(greeting(served), "hello", "step {step}, pod {number}");
            runtime.block_on(network.detach(&pod.sandbox_id)).unwrap();
        }
        assert!(
            runtime.block_on(network.attachments()).unwrap().is_empty(),
            "step {step}"
        );
        drop(network);
        let left = names(folder.path(), "slots").len();
        until(
            "nothing hangs on the bridge but slots",
            || ports() <= left.max(SLOTS),
            || format!("step {step}: {}", ip("-o link")),
        );
    }
    executor().block_on(common::open(folder.path()).stop()).unwrap();
    until(
        "all is gone",
        || !ip("-o link").contains("skiff-test"),
        || ip("-o link"),
    );
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert!(!mounts.contains(&folder.path().display().to_string()), "{mounts}");
}

/// Helper process that is killed by the test above.
#[test]
#[ignore = "run by another test"]
fn takes_slots_for_another_test() {
    let Ok(order) = std::env::var("SKIFF_SLOTS") else {
        return;
    };
    let (folder, step) = order.split_once('=').unwrap();
    let (network, runtime) = (open(Path::new(folder)), executor());
    runtime.block_on(network.start(RANGES.parse().unwrap())).unwrap();
    until_full(Path::new(folder));
    std::io::stdout().write_all(b"begin\n").unwrap();
    for number in 0..4 {
        runtime.block_on(attach(&network, &format!("s{step}-{number}")));
    }
    loop {
        std::thread::park();
    }
}

fn now() -> SystemTime {
    SystemTime::UNIX_EPOCH + SystemTime::UNIX_EPOCH.elapsed().unwrap()
}

/// Benchmark of attachments with and without slots. Run it with `--ignored --nocapture`.
#[test]
#[ignore = "a measurement"]
fn what_an_attachment_costs() {
    let folder = machine();
    for slots in [0, 4, 8, 0, 4, 8] {
        let config = Config {
            state_dir: folder.path().join("network"),
            bridge: "skiff-test".to_owned(),
            direct: Vec::new(),
            routes: None,
            guarded: true,
            slots,
        };
        let (network, runtime) = (Bridge::open(config).unwrap(), executor());
        runtime.block_on(network.start(RANGES.parse().unwrap())).unwrap();
        let spent = || {
            let all = nix::sys::resource::getrusage(nix::sys::resource::UsageWho::RUSAGE_SELF).unwrap();
            let (user, system) = (all.user_time(), all.system_time());
            (user.tv_sec() + system.tv_sec()) * 1_000_000 + user.tv_usec() + system.tv_usec()
        };
        let mut took = Vec::new();
        let before = spent();
        for number in 0..100 {
            std::thread::park_timeout(Duration::from_millis(400));
            let begun = now();
            runtime.block_on(attach(&network, &format!("pod{number}")));
            took.push(begun.elapsed().unwrap());
        }
        took.sort();
        let single = spent() - before;
        println!(
            "{slots} slots: one by one median {:?}, p90 {:?}, CPU {} us each",
            took[50],
            took[90],
            single / 100
        );
        for number in 0..100 {
            runtime.block_on(network.detach(&format!("pod{number}"))).unwrap();
        }
        std::thread::park_timeout(Duration::from_secs(2));
        let (before, begun) = (spent(), now());
        let ids: Vec<String> = (0..100).map(|number| format!("pod{number}")).collect();
        runtime.block_on(futures::future::join_all(ids.iter().map(|id| attach(&network, id))));
        let all = begun.elapsed().unwrap();
        println!(
            "{slots} slots: a burst of 100 {all:?}, CPU {} us each",
            (spent() - before) / 100
        );
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        println!("{}", status.lines().find(|line| line.starts_with("VmRSS")).unwrap());
        runtime.block_on(network.stop()).unwrap();
    }
}
