//! Two clusters on one machine, and what happens to the network of one.

use anyhow::Context as _;

use tests::machine::{Machine, eventually};
use tests::{images, process};

use super::{apply, manifest};

/// Each pod of the first cluster answers at its address.
pub(super) fn answer(machine: &Machine) -> Result<(), String> {
    let path = "jsonpath={.items[*].status.podIP}";
    let addresses = machine.kubectl(["get", "pods", "-o", path]);
    for address in addresses.map_err(|error| error.to_string())?.split(' ') {
        let page = machine.fetch(&format!("http://{address}/"));
        page.map_err(|error| format!("{address}: {error:#}"))?;
    }
    Ok(())
}

fn links(machine: &Machine) -> Result<String, String> {
    let listing = process::run(machine.namespace().command("ip").args(["-o", "link"]));
    listing.map_err(|error| error.to_string())
}

/// Number of ports of a bridge.
fn ports(machine: &Machine, bridge: &str) -> Result<usize, String> {
    Ok(links(machine)?.matches(&format!(" master {bridge} ")).count())
}

#[test]
fn clusters_live_side_by_side() -> anyhow::Result<()> {
    tests::logging();
    let machine = Machine::start("side")?;
    let image = images::nginx(&machine)?;
    apply(&machine, &manifest(&image, 4, "side"))?;
    machine.skiff(["rollout", "status", "deployment/web"])?;
    eventually("the pods answer", || answer(&machine))?;
    let second = tempfile::tempdir()?;
    let skiff = |words: &[&str]| {
        let mut command = machine.namespace().command(process::programs()?.join("skiff"));
        command.args(words).arg("--state-dir").arg(second.path());
        process::run(&mut command)
    };
    let result = skiff(&["up"]).and_then(|_| {
        let (first, other) = (machine.skiff(["status"])?, skiff(&["status"])?);
        assert!(
            first.contains("https://127.0.0.1:6443") && other.contains("https://127.0.0.1:6444"),
            "{first}{other}"
        );
        assert!(
            first.contains("10.244.0.0/24") && other.contains("10.244.1.0/24"),
            "{first}{other}"
        );
        let settings: serde_json::Value = serde_json::from_slice(&std::fs::read(second.path().join("cluster.json"))?)?;
        let bridge = settings["bridge"].as_str().context("a bridge")?;
        eventually("the second has made networks ahead", || {
            match ports(&machine, bridge)? {
                32 => Ok(()),
                ports => Err(format!("{ports} links")),
            }
        })?;
        answer(&machine).map_err(|said| anyhow::anyhow!("beside the second cluster: {said}"))
    });
    let down = skiff(&["down", "--purge"]);
    result?;
    down?;
    machine.skiff(["status"])?;
    answer(&machine).map_err(|said| anyhow::anyhow!("after the second cluster: {said}"))?;
    machine.finish()
}

#[test]
fn a_pod_that_lost_its_network_gets_it_back_and_skiff_why_tells() -> anyhow::Result<()> {
    tests::logging();
    let machine = Machine::start("lost")?;
    let image = images::nginx(&machine)?;
    apply(&machine, &manifest(&image, 2, "lost"))?;
    machine.skiff(["rollout", "status", "deployment/web"])?;
    eventually("the pods answer", || answer(&machine))?;
    // All at once: the agent replaces the first ones meanwhile.
    let ip = |words: &str| process::run(machine.namespace().command("ip").args(words.split(' ')));
    for line in links(&machine).map_err(anyhow::Error::msg)?.lines() {
        if let Some(name) = line.split(' ').nth(1).filter(|name| name.starts_with("veth")) {
            let name = name.split('@').next().unwrap_or_default();
            ip(&format!("link set {name} group 7"))?;
        }
    }
    ip("link del group 7")?;
    eventually("the pods answer again", || answer(&machine))?;
    let pods = machine.kubectl(["get", "pods", "-o", "name"])?;
    for pod in pods.lines() {
        eventually("the pod's events tell", || {
            let said = machine.skiff(["why", pod]).map_err(|error| format!("{error:#}"))?;
            let told = said.contains("NetworkLost") && said.contains("it has been connected again");
            told.then_some(()).ok_or(said)
        })?;
    }
    machine.finish()
}

#[test]
fn skiff_why_explains_deployments_and_nodes() -> anyhow::Result<()> {
    tests::logging();
    let machine = Machine::start("why")?;
    let image = images::nginx(&machine)?;
    apply(&machine, &manifest(&image, 2, "why"))?;
    machine.skiff(["rollout", "status", "deployment/web"])?;
    let node = machine.kubectl(["get", "nodes", "-o", "name"])?;
    for (what, wanted) in [
        (
            "deployment/web",
            "Deployment default/web (2 of 2 pods well): nothing is wrong",
        ),
        (node.trim(), "nothing is wrong"),
    ] {
        eventually(&format!("{what} is well"), || {
            let said = machine.skiff(["why", what]).map_err(|error| format!("{error:#}"))?;
            said.contains(wanted).then_some(()).ok_or(said)
        })?;
    }
    apply(&machine, &manifest("skiff.invalid/none:1", 2, "why"))?;
    eventually("its pods are explained", || {
        let said = machine.skiff(["why", "deployment", "web"]).err();
        let said = said.map(|error| error.to_string()).unwrap_or_default();
        let told = said.contains("something is wrong") && said.contains("cannot be pulled: skiff.invalid/none:1");
        told.then_some(()).ok_or(said)
    })?;
    // A firewall that only its operator can open.
    let nft = |words: &str| process::run(machine.namespace().command("nft").args(words.split(' ')));
    nft("add table inet strict")?;
    nft("add chain inet strict forward { type filter hook forward priority 0 ; policy drop ; }")?;
    eventually("the firewall is told", || {
        let said = machine.skiff(["why", node.trim()]).err().map(|error| error.to_string());
        let said = said.unwrap_or_default();
        said.contains("table inet strict drops").then_some(()).ok_or(said)
    })?;
    nft("delete table inet strict")?;
    machine.finish()
}
