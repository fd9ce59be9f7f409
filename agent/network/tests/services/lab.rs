//! Machine with pods, Services and an external host.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsRawFd as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use agent_plan::network::proxy::{Input, Name, Node, Proxy, Service, Slice};
use network::services::{Config, Services};
use network::{AttachSpec, Attachment, Cni, CniConfig, Network};
use nix::sched::{CloneFlags, setns, unshare};
use serde_json::{Value, json};

use crate::common::{address, inside, ip, machine, open};

/// Port on which pods serve.
pub(crate) const PORT: u16 = 8080;
pub(crate) const TABLE: &str = "skiff_test_services";
/// Addresses of the node and of the external host on the link between them.
pub(crate) const NODE: &str = "172.30.0.1";
pub(crate) const STRANGER: &str = "172.30.0.9";

pub(crate) struct Lab {
    folder: tempfile::TempDir,
    pub(crate) network: Box<dyn Network>,
    pub(crate) tables: Services,
    pub(crate) proxy: Proxy,
    /// Network namespace of the external host.
    outside: File,
    pub(crate) pods: BTreeMap<&'static str, Attachment>,
}

/// Client of a request.
#[derive(Clone, Copy)]
pub(crate) enum From {
    Node,
    Outside,
    Pod(&'static str),
}

impl Lab {
    /// Pods `web`, `db` and `client`; the first two answer with their name and the client's
    /// address.
    pub(crate) async fn new() -> Self {
        Self::on(|folder| Box::new(open(folder))).await
    }

    /// The same on a network of CNI plugins, whose addresses are not known in advance.
    pub(crate) async fn with_plugins() -> Self {
        Self::on(|folder| {
            let (conf, ipam) = (folder.join("conf"), folder.join("ipam"));
            std::fs::create_dir(&conf).unwrap();
            let ipam = json!({"type": "host-local", "dataDir": ipam, "ranges": [[{"subnet": "10.77.0.0/24"}]],
                "routes": [{"dst": "0.0.0.0/0"}]});
            let bridge =
                json!({"type": "bridge", "bridge": "cni-test", "isGateway": true, "hairpinMode": true, "ipam": ipam});
            let list = json!({"cniVersion": "1.0.0", "name": "pods", "plugins": [bridge]});
            std::fs::write(conf.join("10-pods.conflist"), list.to_string()).unwrap();
            let configuration = CniConfig {
                state_dir: folder.join("state"),
                conf_dir: conf,
                bin_dirs: vec!["/opt/cni/bin".into(), "/usr/lib/cni".into()],
                time_limit: Duration::from_secs(30),
            };
            Box::new(Cni::open(configuration).unwrap())
        })
        .await
    }

    async fn on(open: impl FnOnce(&Path) -> Box<dyn Network>) -> Self {
        let folder = machine();
        let outside = outside();
        let network = open(folder.path());
        let ranges = "10.77.0.0/24,fd00:77::/64".parse().unwrap();
        network.start(ranges).await.unwrap();
        let mut pods = BTreeMap::new();
        for name in ["web", "db", "client"] {
            let spec = AttachSpec {
                sandbox_id: name.to_owned(),
                ..AttachSpec::default()
            };
            pods.insert(name, network.attach(spec).await.unwrap());
        }
        for name in ["web", "db"] {
            serve(&pods[name], name);
        }
        let tables = Services::open(config(&*network, TABLE)).unwrap();
        let node = Node {
            name: "n1".to_owned(),
            zone: None,
            addresses: vec![NODE.parse().unwrap()],
            reserved: [(NODE.parse().unwrap(), 6443)].into(),
        };
        let mut lab = Self {
            folder,
            network,
            tables,
            proxy: Proxy::new(node),
            outside,
            pods,
        };
        lab.fill();
        lab
    }

    /// Applies the plan to the tables.
    pub(crate) fn fill(&mut self) {
        fill(&mut self.tables, &self.proxy);
    }

    /// Changes the node's routes, and sees to the one to Services.
    pub(crate) fn reroute(&self, words: &str) {
        ip(words);
        let config = self.tables.config().clone();
        std::thread::spawn(move || config.reach()).join().unwrap().unwrap();
    }

    /// Creates a Service with this name and these fields; its endpoints as `POD`, or as `ADDRESS
    /// NODE [ending]`.
    pub(crate) fn service(&mut self, name: &str, spec: &Value, endpoints: &[&str]) {
        self.service_with(name, spec, &json!({}), endpoints);
    }

    pub(crate) fn service_with(&mut self, name: &str, spec: &Value, status: &Value, endpoints: &[&str]) {
        let (name, input) = self.input_with(name, spec, status, endpoints);
        self.update(name, input);
    }

    /// Input of the plan for a Service.
    pub(crate) fn input(&self, name: &str, spec: &Value, endpoints: &[&str]) -> (Name, Input) {
        self.input_with(name, spec, &json!({}), endpoints)
    }

    fn input_with(&self, name: &str, spec: &Value, status: &Value, endpoints: &[&str]) -> (Name, Input) {
        let object = json!({"metadata": {"namespace": "t", "name": name}, "spec": spec, "status": status});
        let (name, service) = Service::new(&serde_json::from_value(object).unwrap());
        let slices = [false, true].map(|v6| Arc::new(self.slice(&name, v6, endpoints)));
        let input = Input {
            service: Some(Arc::new(service)),
            slices: slices.into(),
        };
        (name, input)
    }

    pub(crate) fn remove(&mut self, name: &str) {
        self.update(Name::new("t", name), Input::default());
    }

    fn update(&mut self, name: Name, input: Input) {
        let update = self.proxy.update(BTreeMap::from([(name, input)]));
        self.tables.change(&update.changes).unwrap();
        if let Some(datagrams) = update.datagrams {
            network::services::forget(&datagrams).unwrap();
        }
    }

    fn slice(&self, service: &Name, v6: bool, endpoints: &[&str]) -> Slice {
        let endpoint = |text: &&str| {
            let (name, node) = text.split_once(' ').unwrap_or((text, "n1"));
            let held = self.pods.get(name).map(|pod| &pod.addresses);
            let held = held.and_then(|held| held.iter().find(|held| held.is_ipv6() == v6));
            let address = held.map_or_else(|| name.to_owned(), |held| held.address.to_string());
            let (node, ends) = node.split_once(' ').map_or((node, false), |(node, _)| (node, true));
            let conditions = json!({"ready": !ends, "serving": true, "terminating": ends});
            json!({"addresses": [address], "nodeName": node, "conditions": conditions})
        };
        let ports = ["TCP", "UDP", "SCTP"].map(|protocol| json!({"port": PORT, "protocol": protocol}));
        let slice = json!({
            "metadata": {"namespace": "t", "name": "s", "labels": {"kubernetes.io/service-name": service.name()}},
            "addressType": if v6 { "IPv6" } else { "IPv4" },
            "ports": ports,
            "endpoints": endpoints.iter().map(endpoint).collect::<Vec<_>>(),
        });
        Slice::new(&serde_json::from_value(slice).unwrap(), "n1").unwrap().1
    }

    pub(crate) fn pod(&self, name: &str) -> IpAddr {
        address(&self.pods[name])
    }

    pub(crate) fn run<T: Send + 'static>(&self, from: From, work: impl FnOnce() -> T + Send + 'static) -> T {
        match from {
            From::Node => work(),
            From::Outside => at(self.outside.try_clone().unwrap(), work),
            From::Pod(name) => inside(&self.pods[name], work),
        }
    }

    /// Answer with the server's name and the client's address that it saw: `web 10.77.0.4`;
    /// otherwise the error.
    pub(crate) fn ask(&self, from: From, to: &str) -> String {
        let to: SocketAddr = to.parse().unwrap();
        self.run(from, move || {
            connect(to).unwrap_or_else(|error| error.kind().to_string())
        })
    }

    /// The same by one UDP packet from a new port.
    pub(crate) fn send(&self, from: From, to: &str) -> String {
        let sender = self.sender(from, to);
        send(&sender)
    }

    /// UDP client that always sends from one port.
    pub(crate) fn sender(&self, from: From, to: &str) -> UdpSocket {
        let to: SocketAddr = to.parse().unwrap();
        self.run(from, move || {
            let any = if to.is_ipv6() { "[::]:0" } else { "0.0.0.0:0" };
            let socket = UdpSocket::bind(any).unwrap();
            socket.connect(to).unwrap();
            socket.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
            socket
        })
    }

    pub(crate) async fn end(self) {
        network::services::remove(TABLE).unwrap();
        for name in self.pods.keys() {
            self.network.detach(name).await.unwrap();
        }
        self.network.stop().await.unwrap();
        let left = crate::common::nft_tables();
        assert_eq!(left, "");
        drop(self.folder);
    }
}

/// Fills the tables on a dedicated thread, as the agent does.
pub(crate) fn fill(tables: &mut Services, proxy: &Proxy) {
    std::thread::scope(|scope| {
        let filled = scope.spawn(|| tables.refill(|| proxy.all()));
        filled.join().unwrap().unwrap();
    });
}

pub(crate) fn config(network: &dyn Network, table: &str) -> Config {
    Config {
        table: table.to_owned(),
        pods: network.served(),
        services: vec!["10.96.0.0/16".parse().unwrap(), "fd96::/112".parse().unwrap()],
        node_ports: Vec::new(),
    }
}

/// Received answer, or the error.
pub(crate) fn send(sender: &UdpSocket) -> String {
    let mut said = [0; 64];
    let length = sender.send(b"who").and_then(|_| sender.recv(&mut said));
    length.map_or_else(
        |error| error.kind().to_string(),
        |length| String::from_utf8_lossy(&said[..length]).into_owned(),
    )
}

/// Waits until a condition holds.
pub(crate) fn eventually(what: &str, mut is: impl FnMut() -> bool) {
    let seen = (0..1000).any(|_| {
        let seen = is();
        if !seen {
            std::thread::park_timeout(Duration::from_millis(10));
        }
        seen
    });
    assert!(seen, "{what}");
}

fn connect(to: SocketAddr) -> std::io::Result<String> {
    let mut stream = TcpStream::connect_timeout(&to, Duration::from_secs(2))?;
    stream.set_read_timeout(Some(Duration::from_secs(20)))?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    Ok(text)
}

fn serve(pod: &Attachment, name: &'static str) {
    for held in &pod.addresses {
        let at = SocketAddr::from((held.address, PORT));
        let bound = inside(pod, move || bind(at));
        answer(bound, name);
    }
}

type Bound = (TcpListener, UdpSocket);

pub(crate) fn bind(at: SocketAddr) -> Bound {
    (TcpListener::bind(at).unwrap(), UdpSocket::bind(at).unwrap())
}

/// Server that answers with its name and the client's address.
pub(crate) fn answer((listener, socket): Bound, name: &'static str) {
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let mut stream = stream;
            let peer = stream.peer_addr().unwrap().ip();
            drop(write!(stream, "{name} {peer}"));
        }
    });
    std::thread::spawn(move || {
        let mut asked = [0; 4096];
        while let Ok((_, from)) = socket.recv_from(&mut asked) {
            drop(socket.send_to(format!("{name} {}", from.ip()).as_bytes(), from));
        }
    });
}

fn at<T: Send + 'static>(namespace: File, work: impl FnOnce() -> T + Send + 'static) -> T {
    let thread = std::thread::spawn(move || {
        setns(namespace, CloneFlags::CLONE_NEWNET).unwrap();
        work()
    });
    thread.join().unwrap()
}

/// Moves the peer of the machine's uplink into its own namespace, with a route to the node.
fn outside() -> File {
    let made = std::thread::spawn(|| {
        unshare(CloneFlags::CLONE_NEWNET).unwrap();
        ip("link set lo up");
        File::open("/proc/thread-self/ns/net").unwrap()
    });
    let namespace = made.join().unwrap();
    let path = format!("/proc/{}/fd/{}", std::process::id(), namespace.as_raw_fd());
    ip(&format!("link set up1 netns {path}"));
    at(namespace.try_clone().unwrap(), || {
        ip("addr add 172.30.0.9/24 dev up1");
        ip("-6 addr add fd00:30::9/64 dev up1 nodad");
        ip("link set up1 up");
        for route in ["10.96.0.0/16", "203.0.113.0/24", "10.77.0.0/24"] {
            ip(&format!("route add {route} via 172.30.0.1"));
        }
        ip("-6 route add fd00:77::/64 via fd00:30::1");
    });
    ip("-6 addr add fd00:30::1/64 dev up0 nodad");
    namespace
}
