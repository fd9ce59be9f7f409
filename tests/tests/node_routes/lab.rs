//! Three nodes of one cluster: two on one link, the third behind a router.
//!
//! ```text
//! n1 172.30.0.1 ┐
//! n2 172.30.0.2 ┴ link ─ 172.30.0.254 router 172.31.0.254 ─ n3 172.31.0.3
//! ```

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::PathBuf;
use std::process::{Child, Command};

use anyhow::Context as _;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tests::machine::{Machine, Namespace, Setup, eventually};
use tests::{images, leaks, process};

/// The cluster: the first node is that of `skiff up`.
pub(crate) struct Lab {
    pub(crate) machine: Machine,
    pub(crate) others: Vec<Node>,
    pub(crate) router: Namespace,
}

/// A node that joins.
pub(crate) struct Node {
    pub(crate) name: &'static str,
    pub(crate) namespace: Namespace,
    home: tempfile::TempDir,
    words: Vec<String>,
    agent: Option<Child>,
    before: BTreeSet<String>,
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

/// The ranges of a node's pods.
fn ranges(number: usize) -> String {
    format!("10.244.{number}.0/24,fd00:10:244:{number}::/64")
}

fn ip(namespace: &Namespace, words: &str) -> anyhow::Result<String> {
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
        // A bridge is a link here, nothing that is filtered.
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
    process::run(namespace.command(firewall).args(["-P", "FORWARD", "DROP"]))?;
    Ok(namespace)
}

impl Lab {
    pub(crate) fn start() -> anyhow::Result<Self> {
        let router = router()?;
        let [first, others @ ..] = &PLACES;
        let namespace = connected(&router, 0, first)?;
        let words = ["--pod-cidr", &ranges(0), "--node-name", first.name].map(str::to_owned);
        let setup = Setup {
            words: &words,
            ..Setup::default()
        };
        let machine = Machine::start_with(namespace, setup)?;
        let mut lab = Self {
            machine,
            others: Vec::new(),
            router,
        };
        for (number, place) in (1..).zip(others) {
            let node = lab.join(number, place)?;
            lab.others.push(node);
        }
        for place in &PLACES {
            let ready = format!("node/{}", place.name);
            lab.machine
                .kubectl(["wait", &ready, "--for=condition=Ready", "--timeout=60s"])?;
        }
        Ok(lab)
    }

    fn join(&self, number: usize, place: &Place) -> anyhow::Result<Node> {
        let namespace = connected(&self.router, number, place)?;
        let home = tempfile::Builder::new().prefix("skiff-").tempdir()?;
        let before = leaks::traces(home.path(), namespace.name())?;
        let folder = home.path().join("images");
        std::fs::create_dir(&folder)?;
        for image in ["nginx", "busybox"] {
            std::fs::copy(images::archive(image)?, folder.join(format!("{image}.tar")))?;
        }
        let settings: serde_json::Value =
            serde_json::from_slice(&std::fs::read(self.machine.state().join("cluster.json"))?)?;
        let port = settings.get("listen_port").context("a port")?;
        let [v4, v6] = place.addresses;
        let pki = home.path().join("pki");
        process::run(
            self.machine
                .namespace()
                .command(process::programs()?.join("skiff-controlplane"))
                .args(["issue-node", "--name", place.name, "--address", v4, "--address", v6])
                .args(["--server", &format!("https://172.30.0.1:{port}")])
                .arg("--state-dir")
                .arg(self.machine.state())
                .arg("--out")
                .arg(&pki),
        )?;
        let path = |path: PathBuf| path.display().to_string();
        let pairs = [
            ("--state-dir", path(home.path().join("agent"))),
            ("--node-name", place.name.to_owned()),
            ("--kubeconfig", path(pki.join("agent.kubeconfig"))),
            ("--serving-cert", path(pki.join("serving.crt"))),
            ("--serving-key", path(pki.join("serving.key"))),
            ("--client-ca", path(pki.join("ca.crt"))),
            ("--address", format!("{v4},{v6}")),
            ("--pod-cidr", ranges(number)),
            ("--cgroup-root", format!("skiff-{}-{}", place.name, std::process::id())),
            ("--image-dir", path(folder)),
        ];
        let mut node = Node {
            name: place.name,
            namespace,
            home,
            words: pairs
                .into_iter()
                .flat_map(|(flag, value)| [flag.to_owned(), value])
                .collect(),
            agent: None,
            before,
        };
        node.start()?;
        Ok(node)
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
        let ends: Vec<_> = others.into_iter().map(Node::finish).collect();
        machine.finish()?;
        drop(router);
        ends.into_iter().collect()
    }
}

impl Node {
    fn command(&self, verb: &str) -> anyhow::Result<Command> {
        let mut command = self.namespace.command(process::programs()?.join("skiff-agent"));
        command.arg(verb).args(&self.words);
        command.envs([("SKIFF_EVICTION_HARD", ""), ("SKIFF_IMAGE_GC_HIGH_THRESHOLD", "100")]);
        Ok(command)
    }

    pub(crate) fn start(&mut self) -> anyhow::Result<()> {
        let log = std::fs::File::options()
            .create(true)
            .append(true)
            .open(self.home.path().join("agent.log"))?;
        let mut command = self.command("run")?;
        self.agent = Some(command.stdout(log.try_clone()?).stderr(log).spawn()?);
        Ok(())
    }

    pub(crate) fn end(&mut self, signal: Signal) -> anyhow::Result<()> {
        let mut agent = self.agent.take().context("a running agent")?;
        kill(Pid::from_raw(i32::try_from(agent.id())?), signal)?;
        agent.wait()?;
        Ok(())
    }

    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.home.path().join("agent.log")).unwrap_or_default()
    }

    fn finish(mut self) -> anyhow::Result<()> {
        self.end(Signal::SIGTERM)?;
        process::run(self.command("cleanup")?.arg("--with-images"))?;
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
        if self.agent.is_none() {
            return;
        }
        tracing::error!(log = self.log(), node = self.name, "the node ended by a failure");
        let ended = self.end(Signal::SIGTERM);
        let clean = self
            .command("cleanup")
            .and_then(|mut command| process::run(&mut command));
        if let Err(error) = ended.and(clean) {
            tracing::error!(%error, "clean up a node");
        }
    }
}
