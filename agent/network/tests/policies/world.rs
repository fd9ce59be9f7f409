//! Machine with pods, Services and an external host, and network policies.

use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, TcpStream, UdpSocket};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use agent_plan::network::network_policy::{Input, Pod, Policies, Policy};
use network::policies::Policies as Tables;
use serde_json::{Value, json};

use crate::common::inside;
use crate::lab::{From, Lab, answer, bind};

pub(crate) const TABLE: &str = "skiff_test_policies";
/// Timeout after which a packet counts as dropped.
pub(crate) const TIMEOUT: Duration = Duration::from_millis(300);
pub(crate) const PODS: [&str; 3] = ["web", "db", "client"];

pub(crate) struct World {
    pub(crate) lab: Lab,
    pub(crate) plan: Policies,
    pub(crate) tables: Tables,
}

/// Protocol of a request.
#[derive(Clone, Copy, Debug)]
pub(crate) enum By {
    Tcp,
    Udp,
}

/// `FROM TO PORT`, and whether the connection is allowed, in each family.
pub(crate) type Check<'a> = (&'a str, &'a str, u16, By, bool);

impl World {
    pub(crate) async fn new() -> Self {
        Self::on(Lab::new().await)
    }

    pub(crate) fn on(lab: Lab) -> Self {
        for name in PODS {
            for port in [8080, 8081, 8090] {
                for held in &lab.pods[name].addresses {
                    let at = SocketAddr::from((held.address, port));
                    if name != "client" && port == 8080 {
                        continue;
                    }
                    answer(inside(&lab.pods[name], move || bind(at)), name);
                }
            }
        }
        for address in ["172.30.0.9", "fd00:30::9"] {
            let at = SocketAddr::from((address.parse::<IpAddr>().unwrap(), 8080));
            answer(lab.run(From::Outside, move || bind(at)), "stranger");
        }
        let mut plan = Policies::default();
        let mut inputs = vec![Input::Namespace(
            "t".to_owned(),
            Some([("who".to_owned(), "us".to_owned())].into()),
        )];
        for name in PODS {
            let addresses = lab.pods[name].addresses.iter().map(|held| held.address).collect();
            inputs.push(pod(name, addresses, "n1"));
        }
        plan.update(inputs);
        let tables = Tables::open(TABLE.to_owned()).unwrap();
        tables.refill(&plan.all()).unwrap();
        Self { lab, plan, tables }
    }

    pub(crate) fn update(&mut self, inputs: Vec<Input>) {
        let changes = self.plan.update(inputs);
        self.tables.change(&changes).unwrap();
    }

    pub(crate) fn apply(&mut self, spec: &Value) {
        self.update(vec![policy("p", spec)]);
    }

    pub(crate) fn remove(&mut self) {
        self.update(vec![Input::Policy(("t".to_owned(), "p".to_owned()), None)]);
    }

    pub(crate) fn address(&self, name: &str, v6: bool) -> Option<IpAddr> {
        let fixed = match (name, v6) {
            ("node", false) => "10.77.0.1",
            ("node", true) => "fd00:77::1",
            ("stranger", false) => "172.30.0.9",
            ("stranger", true) => "fd00:30::9",
            _ => {
                let mut held = self.lab.pods[name].addresses.iter();
                return held.find(|held| held.is_ipv6() == v6).map(|held| held.address);
            }
        };
        Some(fixed.parse().unwrap())
    }

    pub(crate) fn asks(&self, from: &str, to: SocketAddr, by: By) -> bool {
        let from = match from {
            "node" => From::Node,
            "stranger" => From::Outside,
            pod => From::Pod(PODS.into_iter().find(|name| *name == pod).unwrap()),
        };
        self.lab.run(from, move || match by {
            By::Tcp => match TcpStream::connect_timeout(&to, TIMEOUT) {
                Ok(_) => true,
                Err(error) => error.kind() == ErrorKind::ConnectionRefused,
            },
            By::Udp => sends(&udp(to), 3),
        })
    }

    /// Like [`World::asks`], with more tries for an answer that is expected, which may come late; a
    /// packet that is dropped never has one.
    pub(crate) fn reaches(&self, from: &str, to: SocketAddr, by: By, expected: bool) -> bool {
        let tries = if expected { 10 } else { 1 };
        (0..tries).any(|_| self.asks(from, to, by))
    }

    #[track_caller]
    pub(crate) fn check(&self, what: &str, checks: &[Check]) {
        for (from, to, port, by, expected) in checks {
            for v6 in [false, true] {
                let Some(address) = self.address(to, v6) else { continue };
                let passed = self.reaches(from, SocketAddr::from((address, *port)), *by, *expected);
                assert_eq!(
                    passed,
                    *expected,
                    "{what}: {from} to {to} ({address}) {port} by {by:?}\n{}",
                    list()
                );
            }
        }
    }

    pub(crate) async fn end(self) {
        network::policies::remove(TABLE).unwrap();
        self.lab.end().await;
    }
}

pub(crate) fn udp(to: SocketAddr) -> UdpSocket {
    let any = if to.is_ipv6() { "[::]:0" } else { "0.0.0.0:0" };
    let socket = UdpSocket::bind(any).unwrap();
    socket.connect(to).unwrap();
    socket.set_read_timeout(Some(TIMEOUT)).unwrap();
    socket
}

/// True if a UDP packet of this size is answered.
pub(crate) fn sends(socket: &UdpSocket, bytes: usize) -> bool {
    let mut said = [0; 64];
    let asked = vec![b'w'; bytes];
    socket.send(&asked).and_then(|_| socket.recv(&mut said)).is_ok()
}

pub(crate) fn list() -> String {
    let listed = Command::new("nft").args(["list", "ruleset"]).output().unwrap();
    String::from_utf8(listed.stdout).unwrap()
}

pub(crate) fn pod(name: &str, addresses: Vec<IpAddr>, node: &str) -> Input {
    labeled(name, name, addresses, node)
}

pub(crate) fn labeled(name: &str, app: &str, addresses: Vec<IpAddr>, node: &str) -> Input {
    let object = json!({"metadata": {"namespace": "t", "name": name, "uid": name, "labels": {"app": app}},
        "spec": {"nodeName": node, "containers": [{"name": "c", "ports": [{"name": "http", "containerPort": 8081}]}]}});
    let kept = Pod::new(&serde_json::from_value(object).unwrap(), "n1").map(|pod| Arc::new(Pod { addresses, ..pod }));
    Input::Pod(name.to_owned(), kept)
}

pub(crate) fn policy(name: &str, spec: &Value) -> Input {
    let object = json!({"metadata": {"namespace": "t", "name": name}, "spec": spec});
    let (name, policy) = Policy::new(&serde_json::from_value(object).unwrap());
    Input::Policy(name, Some(Arc::new(policy)))
}

pub(crate) fn app(name: &str) -> Value {
    json!({"podSelector": {"matchLabels": {"app": name}}})
}

pub(crate) fn web(rest: &Value) -> Value {
    let mut spec = app("web");
    spec.as_object_mut().unwrap().extend(rest.as_object().unwrap().clone());
    spec
}
