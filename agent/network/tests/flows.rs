//! UDP flows to host ports, as root, in their own network namespace.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]
#![allow(dead_code, reason = "the shared helpers have more than this uses")]

mod common;

use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

use common::{attach, inside, ip, machine, open};
use network::{AttachSpec, Attachment, Bridge, Network as _, PortMapping};

const PORT: u16 = 5353;

/// Pod that answers packets to its host port with its name.
async fn serve(network: &Bridge, name: &'static str) -> Attachment {
    let port = PortMapping {
        host_port: PORT,
        container_port: 53,
        protocol: "UDP".to_owned(),
        host_address: None,
    };
    let spec = AttachSpec {
        sandbox_id: name.to_owned(),
        ports: vec![port],
        ..AttachSpec::default()
    };
    let pod = network.attach(spec).await.unwrap();
    for held in &pod.addresses {
        let at = SocketAddr::from((held.address, 53));
        let socket = inside(&pod, move || UdpSocket::bind(at).unwrap());
        std::thread::spawn(move || {
            let mut asked = [0; 16];
            while let Ok((_, from)) = socket.recv_from(&mut asked) {
                socket.send_to(name.as_bytes(), from).ok();
            }
        });
    }
    pod
}

/// UDP client that always sends from the same port to the same address.
struct Sender {
    socket: UdpSocket,
    to: SocketAddr,
    what: &'static str,
}

impl Sender {
    fn new(what: &'static str, from: u16, to: &str) -> Self {
        let to: SocketAddr = to.parse().unwrap();
        let any = if to.is_ipv6() { "::" } else { "0.0.0.0" };
        let socket = UdpSocket::bind((any, from)).unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
        Self { socket, to, what }
    }

    fn ask(&self) -> String {
        let mut said = [0; 16];
        self.socket.send_to(b"who", self.to).ok();
        let length = self.socket.recv_from(&mut said).map_or(0, |(length, _)| length);
        String::from_utf8_lossy(said.get(..length).unwrap()).into_owned()
    }

    /// A pod needs a moment until it listens, less than the timeout of a conntrack entry.
    fn reaches(&self, name: &str) {
        let reached = (0..50).any(|_| self.ask() == name);
        assert!(reached, "{} to {} does not reach {name}", self.what, self.to);
    }
}

/// A client that keeps sending from one port reaches the pod of the host port now, whether there
/// was no pod before, a deleted one, or one that is deleted after the next one was added.
#[tokio::test]
async fn who_never_stops_sending_to_a_port_reaches_the_pod_that_is_there_now() {
    let folder = machine();
    ip("-6 addr add fd00:30::1/64 dev up0 nodad");
    let network = open(folder.path());
    network
        .start("10.77.8.0/24,fd00:77:8::/64".parse().unwrap())
        .await
        .unwrap();
    let client = attach(&network, "client").await;
    let mut senders = vec![
        Sender::new("the node", 7000, "172.30.0.1:5353"),
        Sender::new("the node", 7001, "127.0.0.1:5353"),
        Sender::new("the node", 7002, "[fd00:30::1]:5353"),
    ];
    senders.extend(inside(&client, || {
        [
            Sender::new("a pod", 7000, "172.30.0.1:5353"),
            Sender::new("a pod", 7001, "[fd00:30::1]:5353"),
        ]
    }));
    let all_reach = |name: &str| senders.iter().for_each(|sender| sender.reaches(name));
    all_reach("");
    serve(&network, "first").await;
    all_reach("first");
    network.detach("first").await.unwrap();
    all_reach("");
    serve(&network, "second").await;
    all_reach("second");
    serve(&network, "third").await;
    all_reach("second");
    network.detach("second").await.unwrap();
    all_reach("third");
    network.stop().await.unwrap();
}
