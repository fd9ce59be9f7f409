//! Three nodes of one cluster, joined by the command that the server prints: two on one link, the
//! third behind a router.
//!
//! ```text
//! n1 172.30.0.1 ┐
//! n2 172.30.0.2 ┴ link ─ 172.30.0.254 router 172.31.0.254 ─ n3 172.31.0.3
//! ```

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::PathBuf;

use anyhow::Context as _;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tests::machine::{Machine, Namespace, Setup, ended, eventually};
use tests::{images, leaks, process};

/// The cluster: the first node is that of `skiff up`.
pub(crate) struct Lab {
    pub(crate) machine: Machine,
    pub(crate) others: Vec<Node>,
    pub(crate) router: Namespace,
}

/// A machine that joins as a node.
pub(crate) struct Node {
    pub(crate) name: &'static str,
    pub(crate) namespace: Namespace,
    home: tempfile::TempDir,
    addresses: String,
    /// Environment of `skiff`, and so of the agent.
    pub(crate) environment: Vec<(&'static str, &'static str)>,
    before: BTreeSet<String>,
    left: bool,
}

/// A node's place.
struct Place {
    name: &'static str,
    addresses: [&'static str; 2],
    routers: [&'static str; 2],
}

const PLACES: [Place; 3] = [
    Place {
        name: "n1",
        addresses: ["172.30.0.1", "fd30::1"],
        routers: ["172.30.0.254", "fd30::fe"],
    },
    Place {
        name: "n2",
        addresses: ["172.30.0.2", "fd30::2"],
        routers: ["172.30.0.254", "fd30::fe"],
    },
    Place {
        name: "n3",
        addresses: ["172.31.0.3", "fd31::3"],
        routers: ["172.31.0.254", "fd31::fe"],
    },
];

/// The first node's pod CIDRs; those of the others come from the control plane.
const RANGES: &str = "10.244.0.0/24,fd00:10:244::/64";

/// Addresses for load balancers, on the link of the first two nodes.
const POOL: &str = "172.30.0.200-172.30.0.209";

pub(crate) fn ip(namespace: &Namespace, words: &str) -> anyhow::Result<String> {
    process::run(namespace.command("ip").args(words.split(' ')))
}

fn set(namespace: &Namespace, setting: &str) -> anyhow::Result<String> {
    process::run(namespace.command("sysctl").args(["-qw", setting]))
}

fn router() -> anyhow::Result<Namespace> {
    let router = Namespace::new("router")?;
    for words in [
        "link del up0",
        "link add lan type bridge",
        "link set lan up",
        "addr add 172.30.0.254/24 dev lan",
        "addr add fd30::fe/64 dev lan nodad",
    ] {
        ip(&router, words)?;
    }
    for setting in [
        "net.ipv4.ip_forward=1",
        "net.ipv6.conf.all.forwarding=1",
        // A bridge is a link here, without filtering.
        "net.bridge.bridge-nf-call-iptables=0",
    ] {
        set(&router, setting)?;
    }
    Ok(router)
}

/// A machine at its place, connected.
fn connected(router: &Namespace, number: usize, place: &Place) -> anyhow::Result<Namespace> {
    let namespace = Namespace::new(place.name)?;
    let (port, [v4, v6], [router_v4, router_v6]) = (format!("port{number}"), place.addresses, place.routers);
    ip(&namespace, &format!("link set up1 netns {} name {port}", router.name()))?;
    ip(router, &format!("link set {port} up"))?;
    ip(&namespace, "-4 addr flush dev up0")?;
    for words in [
        format!("addr add {v4}/24 dev up0"),
        format!("addr add {v6}/64 dev up0 nodad"),
        format!("route add default via {router_v4}"),
        format!("-6 route add default via {router_v6}"),
    ] {
        ip(&namespace, &words)?;
    }
    if router_v4 == "172.30.0.254" {
        ip(router, &format!("link set {port} master lan"))?;
    } else {
        ip(router, &format!("addr add {router_v4}/24 dev {port}"))?;
        ip(router, &format!("addr add {router_v6}/64 dev {port} nodad"))?;
    }
    // A firewall as Docker sets it up, by both ways to the tables.
    let firewall = if number == 2 { "iptables-nft" } else { "iptables-legacy" };
    process::run(namespace.command(firewall).args(["-w", "-P", "FORWARD", "DROP"]))?;
    Ok(namespace)
}

impl Lab {
    /// Three nodes: one by `skiff up`, the others by the join command that its server prints.
    pub(crate) fn start() -> anyhow::Result<Self> {
        let mut lab = Self::alone()?;
        for number in 1..PLACES.len() {
            let node = lab.machine(number)?;
            node.join(&lab.line(&[])?, &["--bridge", "skiff0"])?;
            for image in ["nginx", "busybox"] {
                node.skiff(["image", "import", &images::archive(image)?.display().to_string()])?;
            }
            lab.others.push(node);
        }
        Ok(lab)
    }

    /// The first node alone.
    pub(crate) fn alone() -> anyhow::Result<Self> {
        Self::alone_on(|_machine| Ok(()))
    }

    /// The first node alone, on a machine that is prepared before.
    pub(crate) fn alone_on(prepare: impl FnOnce(&Namespace) -> anyhow::Result<()>) -> anyhow::Result<Self> {
        let router = router()?;
        let [first, ..] = &PLACES;
        let namespace = connected(&router, 0, first)?;
        prepare(&namespace)?;
        let words = ["--pod-cidr", RANGES, "--node-name", first.name];
        let words = words.into_iter().chain(["--load-balancer-addresses", POOL]);
        let words: Vec<String> = words.map(str::to_owned).collect();
        let setup = Setup {
            words: &words,
            ..Setup::default()
        };
        Ok(Self {
            machine: Machine::start_with(namespace, setup)?,
            others: Vec::new(),
            router,
        })
    }

    /// The arguments after `skiff` of a new token's join command.
    pub(crate) fn line(&self, options: &[&str]) -> anyhow::Result<Vec<String>> {
        line(&self.machine, options)
    }

    /// A machine at the second or third place that is no node yet.
    pub(crate) fn machine(&self, number: usize) -> anyhow::Result<Node> {
        let place = PLACES.get(number).context("a place")?;
        let namespace = connected(&self.router, number, place)?;
        let home = tempfile::Builder::new().prefix("skiff-").tempdir()?;
        let before = leaks::traces(home.path(), namespace.name())?;
        Ok(Node {
            name: place.name,
            namespace,
            home,
            addresses: place.addresses.join(","),
            environment: vec![("SKIFF_EVICTION_HARD", ""), ("SKIFF_IMAGE_GC_HIGH_THRESHOLD", "100")],
            before,
            left: false,
        })
    }

    /// The namespaces that stand for the nodes.
    pub(crate) fn namespaces(&self) -> impl Iterator<Item = &Namespace> {
        let others = self.others.iter().map(|node| &node.namespace);
        std::iter::once(self.machine.namespace()).chain(others)
    }

    /// The nodes' addresses of version 4.
    pub(crate) fn addresses() -> impl Iterator<Item = IpAddr> {
        PLACES.iter().filter_map(|place| place.addresses[0].parse().ok())
    }

    /// Takes everything down; fails when anything is left.
    pub(crate) fn finish(self) -> anyhow::Result<()> {
        let Self {
            machine,
            others,
            router,
        } = self;
        let ends: Vec<_> = others.into_iter().map(|mut node| node.leave().map(drop)).collect();
        machine.finish()?;
        drop(router);
        ends.into_iter().collect()
    }
}

/// The arguments after `skiff` of a cluster's new token's join command.
pub(crate) fn line(machine: &Machine, options: &[&str]) -> anyhow::Result<Vec<String>> {
    let line = machine.skiff(["token", "create"].iter().chain(options).copied())?;
    let words = line.trim().strip_prefix("skiff ").context("a line")?;
    Ok(words.split(' ').map(str::to_owned).collect())
}

impl Node {
    /// The directory of the node, which is not there before it joins.
    fn state(&self) -> PathBuf {
        self.home.path().join("s")
    }

    /// Runs `skiff ARGUMENTS` on the machine.
    pub(crate) fn skiff<'a>(&self, words: impl IntoIterator<Item = &'a str>) -> anyhow::Result<String> {
        let mut command = self.namespace.command(process::programs()?.join("skiff"));
        command.args(words).arg("--state-dir").arg(self.state());
        command.envs(self.environment.iter().copied());
        process::run(&mut command)
    }

    /// Runs the join command on the machine; the name and the addresses are the place's.
    pub(crate) fn join(&self, line: &[String], options: &[&str]) -> anyhow::Result<String> {
        let own = ["--node-name", self.name, "--node-ip", &self.addresses];
        let own = own.iter().chain(options).copied();
        self.skiff(line.iter().map(String::as_str).chain(own))
    }

    /// Starts the agent again.
    pub(crate) fn start(&self) -> anyhow::Result<()> {
        self.skiff(["up"]).map(drop)
    }

    /// Ends the agent alone.
    pub(crate) fn end(&self, signal: Signal) -> anyhow::Result<()> {
        let file = std::fs::read_to_string(self.state().join("agent.pid"))?;
        let pid: i32 = file.split(' ').next().context("a pid")?.parse()?;
        kill(Pid::from_raw(pid), signal)?;
        ended(pid)
    }

    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.state().join("agent.log")).unwrap_or_default()
    }

    /// Leaves the cluster; fails when anything is left on the machine.
    pub(crate) fn leave(&mut self) -> anyhow::Result<String> {
        let settings: serde_json::Value = serde_json::from_slice(&std::fs::read(self.state().join("cluster.json"))?)?;
        let groups = settings.get("cgroup_root").and_then(serde_json::Value::as_str);
        let said = self.skiff(["leave"])?;
        self.is_clean()?;
        let groups = leaks::cgroups(groups.context("a control group")?)?;
        anyhow::ensure!(groups.is_empty(), "left on the machine: {groups:#?}");
        self.left = true;
        Ok(said)
    }

    /// Fails when anything of a node is on the machine.
    pub(crate) fn is_clean(&self) -> anyhow::Result<()> {
        anyhow::ensure!(!self.state().exists(), "the state directory is there");
        eventually("nothing is left of the node", || {
            let after = leaks::traces(self.home.path(), self.namespace.name());
            let after = after.map_err(|error| format!("{error:#}"))?;
            let left: Vec<_> = after.difference(&self.before).collect();
            left.is_empty().then_some(()).ok_or_else(|| format!("{left:#?}"))
        })
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if self.left || !self.state().exists() {
            return;
        }
        tracing::error!(log = self.log(), node = self.name, "the node ended by a failure");
        if let Err(error) = self.skiff(["leave"]) {
            tracing::error!(%error, "clean up a node");
        }
    }
}
