//! Tests of the network of CNI plugins, as root, each in its own network namespace: the standard
//! plugins, and misbehaving ones.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod machine;

use std::fs;
use std::time::Duration;

use machine::{Machine, cause, inside, run, spec};
use network::{AttachSpec, Network as _, PortMapping};
use serde_json::{Value, json};
use tokio::time::Instant;

#[tokio::test]
async fn the_standard_plugins_connect_pods_and_are_remembered() {
    let machine = Machine::new();
    let portmap = json!({"type": "portmap", "capabilities": {"portMappings": true}});
    machine.configure("1.0.0", &[machine.bridge(), portmap]);
    let network = machine.open();
    network.start("10.244.0.0/24".parse().unwrap()).await.unwrap();
    let ports = vec![PortMapping {
        host_port: 8080,
        container_port: 80,
        protocol: "TCP".to_owned(),
        host_address: None,
    }];
    let first = network.attach(AttachSpec { ports, ..spec("a") }).await.unwrap();
    let second = network.attach(spec("b")).await.unwrap();
    assert_ne!(first.addresses, second.addresses);
    assert_eq!(first.gateway.to_string(), "10.77.0.1");
    let address = first.addresses.first().unwrap().address.to_string();
    assert!(inside(&first, "ip -o -4 addr show eth0").contains(&format!(" {address}/24 ")));
    assert!(inside(&first, "ip -o link show lo").contains("LOOPBACK,UP"));
    assert!(inside(&second, "ip route").contains("default via 10.77.0.1"));
    assert!(run("iptables-save", "-t nat").contains(&format!("--to-destination {address}:80")));
    assert_eq!(network.attach(spec("a")).await.unwrap(), first);
    drop(network);
    let network = machine.open();
    network.start("10.244.0.0/24".parse().unwrap()).await.unwrap();
    assert!(first.addresses.iter().all(|held| network.has_pod(held.address)));
    assert!(!network.has_pod("10.77.0.1".parse().unwrap()), "the gateway is no pod");
    assert_eq!(network.attachments().await.unwrap(), [first, second]);
    // Detached with the list that attached, not with the current one.
    fs::remove_file(machine.path("conf").join("10-pods.conflist")).unwrap();
    network.detach("a").await.unwrap();
    network.detach("a").await.unwrap();
    assert!(!run("iptables-save", "-t nat").contains("--to-destination"));
    assert_eq!(machine.held().len(), 1);
    let error = network.attach(spec("c")).await.unwrap_err();
    assert!(cause(&error).starts_with("failed to setup network for sandbox \"c\": cni plugin not initialized"));
    network.stop().await.unwrap();
    network.stop().await.unwrap();
    machine.is_clean();
}

#[tokio::test]
async fn a_cleanup_that_was_told_no_range_gives_addresses_of_it_back() {
    let machine = Machine::new();
    let ipam = json!({"type": "host-local", "dataDir": machine.path("ipam")});
    let ranged = json!({"type": "bridge", "bridge": "cni-test", "capabilities": {"ipRanges": true}, "ipam": ipam});
    machine.configure("1.0.0", &[ranged]);
    let network = machine.open();
    network.start("10.66.0.0/24".parse().unwrap()).await.unwrap();
    let attachment = network.attach(spec("a")).await.unwrap();
    assert_eq!(attachment.gateway.to_string(), "10.66.0.1");
    assert_eq!(machine.held().len(), 1);
    drop(network);
    machine.open().stop().await.unwrap();
    machine.is_clean();
}

/// A plugin after the bridge fails: the address is released, and the next pod gets its network.
async fn fails(script: &str, expected: &str) {
    let machine = Machine::new();
    machine.plugin("odd", &format!("case $CNI_COMMAND in ADD) {script};; esac"));
    machine.configure("1.0.0", &[machine.bridge(), json!({"type": "odd"})]);
    let network = machine.open();
    let error = network.attach(spec("a")).await.unwrap_err();
    assert!(cause(&error).contains(expected), "{error}");
    assert!(
        machine.calls().last().unwrap().starts_with("DEL "),
        "{:?}",
        machine.calls()
    );
    assert!(network.attachments().await.unwrap().is_empty());
    machine.is_clean();
    machine.configure("1.0.0", &[machine.bridge()]);
    network.attach(spec("a")).await.unwrap();
    network.stop().await.unwrap();
    machine.is_clean();
}

#[tokio::test]
async fn attack_42_a_plugin_that_answers_nonsense() {
    fails(
        "echo hello; exit 0",
        "plugin type=\"odd\" name=\"pods\" failed (add): its result is not JSON",
    )
    .await;
}

#[tokio::test]
async fn attack_42_a_plugin_that_fails_with_and_without_words() {
    fails(
        "echo '{\"code\": 100, \"msg\": \"no more\", \"details\": \"really\"}'; exit 1",
        "failed to setup network for sandbox \"a\": plugin type=\"odd\" name=\"pods\" failed (add): no more; really",
    )
    .await;
    fails("echo oops >&2; exit 1", "netplugin failed: \"oops\\n\"").await;
    fails("exit 1", "netplugin failed with no error message: exit status 1").await;
}

#[tokio::test]
async fn attack_42_a_plugin_that_hangs_is_killed_with_its_children() {
    fails("sleep 7654 & wait", "failed (add): no answer within 20s").await;
    until_killed("sleep 7654");
}

/// Waits until no process has these arguments.
fn until_killed(arguments: &str) {
    let gone = (0..1000).any(|_| {
        std::thread::park_timeout(Duration::from_millis(10));
        !run("ps", "-eo args").contains(arguments)
    });
    assert!(gone, "{}", run("ps", "-eo args"));
}

#[tokio::test]
async fn attack_42_a_plugin_that_prints_for_ever() {
    fails("yes", "it prints more than 1048576 bytes").await;
}

#[tokio::test]
async fn attack_42_a_missing_plugin() {
    let machine = Machine::new();
    machine.configure("1.0.0", &[json!({"type": "nowhere"})]);
    let network = machine.open();
    let error = network.attach(spec("a")).await.unwrap_err();
    assert!(
        cause(&error).contains("failed to find plugin \"nowhere\" in path ["),
        "{error}"
    );
    // It is kept for another try, as its plugins may have something of it.
    network.stop().await.unwrap_err();
    machine.is_clean();
}

#[tokio::test]
async fn without_a_valid_list_the_network_is_not_ready() {
    let machine = Machine::new();
    let network = machine.open();
    assert_eq!(network.unready().await.as_deref(), Some("cni plugin not initialized"));
    fs::write(machine.path("conf").join("00-bad.conflist"), "{").unwrap();
    assert_eq!(network.unready().await.as_deref(), Some("cni plugin not initialized"));
    machine.configure("1.0.0", &[machine.bridge()]);
    assert_eq!(network.unready().await, None);
}

/// Waits until the cached status has expired.
async fn later() {
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(6)).await;
    tokio::time::resume();
}

/// Waits until the plugins have said so: a question is left after two seconds, and a busy machine may take longer.
async fn says(network: &impl network::Network, wanted: Option<&str>) {
    let mut said = network.unready().await;
    for _ in 0..30 {
        if said.as_deref() == wanted {
            return;
        }
        said = network.unready().await;
    }
    assert_eq!(said.as_deref(), wanted);
}

#[tokio::test]
async fn while_a_plugin_says_that_it_is_not_ready_the_network_is_not() {
    let machine = Machine::new();
    let marker = machine.path("down");
    let refusal = json!({"code": 50, "msg": "no daemon", "details": "it was stopped"});
    let status = format!(
        "[ $CNI_COMMAND = STATUS ] && [ -e {} ] && echo '{refusal}' && exit 1; exit 0",
        marker.display()
    );
    machine.plugin("modern", &status);
    fs::write(&marker, "").unwrap();
    machine.configure("1.0.0", &[json!({"type": "modern"})]);
    let network = machine.open();
    assert_eq!(network.unready().await, None);
    assert!(
        machine.commands().is_empty(),
        "an older version does not have the question"
    );
    machine.configure("1.1.0", &[json!({"type": "modern"})]);
    for _ in 0..3 {
        says(&network, Some("no daemon; it was stopped")).await;
    }
    assert_eq!(machine.commands(), ["STATUS"], "not asked each time");
    fs::remove_file(&marker).unwrap();
    later().await;
    says(&network, None).await;
    fs::write(&marker, "").unwrap();
    later().await;
    says(&network, Some("no daemon; it was stopped")).await;
    machine.configure("1.1.0", &[json!({"type": "nowhere"})]);
    let missing = network.unready().await.unwrap();
    assert!(
        missing.starts_with("failed to find plugin \"nowhere\" in path ["),
        "{missing}"
    );
}

#[tokio::test]
async fn attack_42_a_plugin_that_hangs_when_it_is_asked_holds_up_nobody() {
    let machine = Machine::new();
    machine.plugin("modern", "exit 0");
    machine.configure("1.1.0", &[json!({"type": "modern"})]);
    let network = machine.open();
    says(&network, None).await;
    machine.plugin("modern", "sleep 7655");
    later().await;
    let asked = Instant::now();
    assert_eq!(
        network.unready().await,
        None,
        "what it said before counts until it is killed"
    );
    assert!(asked.elapsed() < Duration::from_secs(15), "{:?}", asked.elapsed());
    let mut said = None;
    while said.is_none() && asked.elapsed() < Duration::from_mins(1) {
        tokio::time::sleep(Duration::from_millis(100)).await;
        said = network.unready().await;
    }
    assert_eq!(said.as_deref(), Some("no answer within 20s"));
    assert_eq!(machine.commands(), ["STATUS", "STATUS"], "one at a time");
    until_killed("sleep 7655");
}

#[tokio::test]
async fn a_list_that_was_a_mistake_is_left_behind_when_it_is_mended() {
    let machine = Machine::new();
    machine.configure("1.0.0", &[json!({"type": "nowhere"}), machine.bridge()]);
    let network = machine.open();
    network.attach(spec("a")).await.unwrap_err();
    network.attach(spec("b")).await.unwrap_err();
    network.detach("a").await.unwrap_err();
    machine.configure("1.0.0", &[machine.bridge()]);
    network.detach("a").await.unwrap();
    assert_eq!(network.attach(spec("b")).await.unwrap().addresses.len(), 1);
    network.stop().await.unwrap();
    machine.is_clean();
}

#[tokio::test]
async fn what_a_good_list_holds_is_not_forgotten_for_another_ones_word() {
    let machine = Machine::new();
    let marker = machine.sticky();
    machine.configure(
        "1.0.0",
        &[json!({"type": "sticky", "ips": [{"address": "10.77.0.9/24"}]})],
    );
    let network = machine.open();
    network.attach(spec("a")).await.unwrap();
    fs::write(&marker, "").unwrap();
    machine.configure("1.0.0", &[machine.bridge()]);
    let error = network.detach("a").await.unwrap_err();
    assert!(cause(&error).ends_with("exit status 7"), "{error}");
    // The plugins' resources are released as far as possible.
    fs::remove_file(machine.path("bin").join("sticky")).unwrap();
    network.detach("a").await.unwrap();
    network.stop().await.unwrap();
    machine.is_clean();
}

#[tokio::test]
async fn namespaces_go_at_the_end_though_the_list_is_wrong() {
    let machine = Machine::new();
    machine.configure("1.0.0", &[json!({"type": "nowhere"}), machine.bridge()]);
    let network = machine.open();
    network.attach(spec("a")).await.unwrap_err();
    let error = network.stop().await.unwrap_err();
    assert!(cause(&error).contains("failed to find plugin \"nowhere\""), "{error}");
    machine.is_clean();
    machine.configure("1.0.0", &[machine.bridge()]);
    network.stop().await.unwrap();
}

#[tokio::test]
async fn attack_42_an_address_that_another_pod_has_is_refused() {
    let machine = Machine::new();
    let result = json!({"cniVersion": "1.0.0", "ips": [{"address": "10.77.0.9/24"}]});
    machine.plugin("twice", &format!("[ $CNI_COMMAND = ADD ] && echo '{result}'; exit 0"));
    machine.configure("1.0.0", &[json!({"type": "twice"})]);
    let network = machine.open();
    network.attach(spec("a")).await.unwrap();
    let error = network.attach(spec("b")).await.unwrap_err();
    assert!(
        cause(&error).contains("address 10.77.0.9 is that of sandbox \"a\" already"),
        "{error}"
    );
    network.stop().await.unwrap();
    machine.is_clean();
}

#[tokio::test]
async fn attack_42_deletion_without_addition_and_of_a_vanished_namespace() {
    let machine = Machine::new();
    machine.configure("1.0.0", &[machine.bridge()]);
    let network = machine.open();
    network.detach("never").await.unwrap();
    let attachment = network.attach(spec("a")).await.unwrap();
    nix::mount::umount2(&attachment.netns, nix::mount::MntFlags::MNT_DETACH).unwrap();
    assert_eq!(machine.held().len(), 1);
    drop(network);
    // Same as after a reboot: the address is released at the start.
    let network = machine.open();
    network.start("10.244.0.0/24".parse().unwrap()).await.unwrap();
    assert!(network.attachments().await.unwrap().is_empty());
    network.detach("a").await.unwrap();
    machine.is_clean();
}

#[tokio::test]
async fn attack_42_what_a_plugin_does_not_let_go_is_not_forgotten() {
    let machine = Machine::new();
    let marker = machine.sticky();
    let result = json!({"type": "sticky", "ips": [{"address": "10.77.0.9/24"}]});
    machine.configure("1.0.0", &[result]);
    let network = machine.open();
    network.attach(spec("a")).await.unwrap();
    fs::write(&marker, "").unwrap();
    let error = network.detach("a").await.unwrap_err();
    let expected = "failed to destroy network for sandbox \"a\": plugin type=\"sticky\" name=\"pods\" failed (delete): netplugin failed with no error message: exit status 7";
    assert_eq!(cause(&error), expected);
    let left = network.attachments().await.unwrap();
    assert!(
        left.len() == 1 && left.iter().all(|left| left.addresses.is_empty()),
        "{left:?}"
    );
    fs::remove_file(&marker).unwrap();
    // A partly removed attachment is not returned.
    let again = network.attach(spec("a")).await.unwrap();
    assert_eq!(again.addresses.len(), 1);
    assert_eq!(machine.commands(), ["ADD", "DEL", "DEL", "ADD"]);
    fs::write(&marker, "").unwrap();
    network.detach("a").await.unwrap_err();
    drop(network);
    fs::remove_file(&marker).unwrap();
    let network = machine.open();
    network.start("10.244.0.0/24".parse().unwrap()).await.unwrap();
    assert!(network.attachments().await.unwrap().is_empty());
    machine.is_clean();
}

#[tokio::test]
async fn plugins_of_the_newest_version_are_told_what_is_valid_and_asked_for_their_state() {
    let machine = Machine::new();
    let seen = machine.path("seen");
    machine.plugin(
        "modern",
        &format!("if [ $CNI_COMMAND = GC ]; then cat >{}; else cat; fi", seen.display()),
    );
    let plugin = json!({"type": "modern", "ips": [{"address": "10.77.0.9/24"}]});
    machine.configure("1.1.0", &[plugin]);
    let network = machine.open();
    network.attach(spec("a")).await.unwrap();
    network.start("10.244.0.0/24".parse().unwrap()).await.unwrap();
    assert_eq!(machine.commands(), ["ADD", "CHECK", "GC", "STATUS"]);
    let request: Value = serde_json::from_slice(&fs::read(&seen).unwrap()).unwrap();
    let valid = json!([{"containerID": "a", "ifname": "eth0"}]);
    assert_eq!(request.get("cni.dev/valid-attachments"), Some(&valid));
    network.stop().await.unwrap();
    machine.is_clean();
}

#[tokio::test]
async fn a_bridge_that_tables_do_not_see_is_told_of() {
    let machine = Machine::new();
    machine.configure("1.0.0", &[machine.bridge()]);
    let network = machine.open();
    let setting = |value: &str| {
        for name in ["bridge-nf-call-iptables", "bridge-nf-call-ip6tables"] {
            fs::write(format!("/proc/sys/net/bridge/{name}"), value).unwrap();
        }
    };
    setting("0");
    let told = network.bypass().unwrap();
    assert!(told.contains("net.bridge.bridge-nf-call-iptables is not 1"), "{told}");
    setting("1");
    assert_eq!(network.bypass(), None);
    setting("0");
    machine.configure("1.0.0", &[json!({"type": "ptp"})]);
    assert_eq!(network.bypass(), None, "without a bridge there is nothing to see");
}
