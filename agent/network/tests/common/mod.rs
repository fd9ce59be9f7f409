//! Test support: an isolated machine for each test, and traffic on it.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use network::{AttachSpec, Attachment, Bridge, Config, Network as _};
use nix::sched::{CloneFlags, setns, unshare};

/// Isolated machine: this thread, and those that it starts, are in a new network namespace.
pub(crate) fn machine() -> tempfile::TempDir {
    unshare(CloneFlags::CLONE_NEWNET).expect("a network namespace; these tests need root");
    ip("link set lo up");
    // Addresses that are ready later are news of the links.
    std::fs::write("/proc/sys/net/ipv6/conf/default/accept_dad", "0").unwrap();
    ip("link add up0 type veth peer name up1");
    ip("link set up0 up mtu 1400");
    ip("link set up1 up");
    ip("addr add 172.30.0.1/24 dev up0");
    ip("route add default via 172.30.0.254");
    tempfile::tempdir().unwrap()
}

pub(crate) fn ip(words: &str) -> String {
    let output = Command::new("ip").args(words.split(' ')).output().unwrap();
    assert!(
        output.status.success(),
        "ip {words}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).unwrap()
}

pub(crate) fn nft_tables() -> String {
    String::from_utf8(Command::new("nft").args(["list", "tables"]).output().unwrap().stdout).unwrap()
}

pub(crate) fn open(folder: &Path) -> Bridge {
    Bridge::open(Config {
        state_dir: folder.join("network"),
        bridge: "skiff-test".to_owned(),
        direct: Vec::new(),
        routes: None,
        slots: 0,
        guarded: true,
    })
    .unwrap()
}

pub(crate) async fn attach(network: &Bridge, sandbox: &str) -> Attachment {
    let spec = AttachSpec {
        sandbox_id: sandbox.to_owned(),
        ..AttachSpec::default()
    };
    network.attach(spec).await.unwrap()
}

pub(crate) fn address(attachment: &Attachment) -> IpAddr {
    attachment.addresses.first().unwrap().address
}

/// Runs `work` on a thread inside the sandbox.
pub(crate) fn inside<T: Send + 'static>(attachment: &Attachment, work: impl FnOnce() -> T + Send + 'static) -> T {
    let namespace = File::open(&attachment.netns).unwrap();
    std::thread::spawn(move || {
        setns(namespace, CloneFlags::CLONE_NEWNET).unwrap();
        work()
    })
    .join()
    .unwrap()
}

pub(crate) fn listen(at: SocketAddr) -> TcpListener {
    let listener = TcpListener::bind(at).unwrap();
    let serving = listener.try_clone().unwrap();
    std::thread::spawn(move || {
        for stream in serving.incoming() {
            drop(stream.and_then(|mut stream| stream.write_all(b"hello")));
        }
    });
    listener
}

pub(crate) fn greeting(at: SocketAddr) -> String {
    let mut stream =
        TcpStream::connect_timeout(&at, Duration::from_secs(20)).unwrap_or_else(|error| panic!("{at}: {error}"));
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text
}
