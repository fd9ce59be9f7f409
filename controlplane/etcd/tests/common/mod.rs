//! Members of etcd for one test, and objects to write.
#![allow(dead_code, reason = "each test binary uses its own part")]
#![allow(missing_docs, unreachable_pub, reason = "test helpers")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests fail by panicking")]

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use controlplane_etcd::{Address, Etcd, Identity};
use etcd_client::Client;
use store::{Attributes, Entry, Key, Options, Prefix, Store, Value, Write};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// Ports that nobody uses, each given once and to this process alone: one of the kernel's choice may be another test's
/// before etcd listens.
fn ports(count: usize) -> Vec<u16> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let first = 10_000 + std::process::id() % 1_000 * 20;
    let next = || u16::try_from(first + NEXT.fetch_add(1, Ordering::Relaxed)).unwrap();
    let is_free = |port: &u16| TcpListener::bind(("127.0.0.1", *port)).is_ok();
    std::iter::repeat_with(next).filter(is_free).take(count).collect()
}

/// Members on the loopback interface. They end with the test.
pub struct Members {
    directory: tempfile::TempDir,
    ports: Vec<(u16, u16)>,
    extra: Vec<String>,
    scheme: &'static str,
    running: Vec<Option<Child>>,
}

impl Members {
    /// Starts members with additional flags.
    pub fn start(count: usize, extra: &[&str]) -> Self {
        Self::with_scheme("http", count, extra)
    }

    pub fn with_scheme(scheme: &'static str, count: usize, extra: &[&str]) -> Self {
        let numbers = ports(count * 2);
        let mut members = Self {
            directory: tempfile::tempdir().unwrap(),
            ports: numbers.chunks(2).map(|pair| (pair[0], pair[1])).collect(),
            extra: extra.iter().map(|&flag| flag.to_owned()).collect(),
            scheme,
            running: Vec::new(),
        };
        for number in 0..count {
            let child = members.spawn(number);
            members.running.push(Some(child));
        }
        members
    }

    fn data(&self, number: usize) -> PathBuf {
        self.directory.path().join(format!("m{number}"))
    }

    fn spawn(&self, number: usize) -> Child {
        let (client, peer) = self.ports[number];
        let cluster: Vec<String> = (0..self.ports.len())
            .map(|other| format!("m{other}=http://127.0.0.1:{}", self.ports[other].1))
            .collect();
        let log = std::fs::File::options()
            .create(true)
            .append(true)
            .open(self.data(number).with_extension("log"));
        Command::new("etcd")
            .args(["--name", &format!("m{number}"), "--data-dir"])
            .arg(self.data(number))
            .arg(format!("--listen-client-urls={}://127.0.0.1:{client}", self.scheme))
            .arg(format!("--advertise-client-urls={}://127.0.0.1:{client}", self.scheme))
            .arg(format!("--listen-peer-urls=http://127.0.0.1:{peer}"))
            .arg(format!("--initial-advertise-peer-urls=http://127.0.0.1:{peer}"))
            .arg(format!("--initial-cluster={}", cluster.join(",")))
            .args(["--pre-vote=true", "--logger=zap", "--log-outputs=stderr"])
            .args(&self.extra)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log.unwrap())
            .spawn()
            .expect("etcd starts: .ci/prerequisites --tools installs it")
    }

    pub fn address(&self) -> Address {
        let members: Vec<String> = (0..self.ports.len()).map(|number| self.member(number)).collect();
        format!("etcd://{}", members.join(",")).parse().unwrap()
    }

    /// Address of a member.
    pub fn member(&self, number: usize) -> String {
        format!("127.0.0.1:{}", self.ports[number].0)
    }

    /// A client beside the store, once the member answers.
    pub async fn client(&self) -> Client {
        let client = Client::connect([self.member(0)], None).await.unwrap();
        eventually("etcd answers", async || {
            let answer = client.clone().get("/", None).await;
            answer.map(drop).map_err(|failure| failure.to_string())
        })
        .await;
        client
    }

    /// Kills a member with SIGKILL, and waits for its end.
    pub fn kill(&mut self, number: usize) {
        if let Some(mut child) = self.running[number].take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    pub fn restart(&mut self, number: usize) {
        let child = self.spawn(number);
        self.running[number] = Some(child);
    }

    pub async fn open(&self, options: Options) -> Store {
        self.open_as(&Identity::default(), options).await.unwrap()
    }

    pub async fn open_as(&self, identity: &Identity, options: Options) -> Result<Store, String> {
        open(&self.address(), identity, options).await
    }
}

async fn open(address: &Address, identity: &Identity, options: Options) -> Result<Store, String> {
    let backend = Etcd::open(address, identity, &options)
        .await
        .map_err(|failure| chain(&failure))?;
    let opening = tokio::task::spawn_blocking(|| Store::with_backend(Box::new(backend), options));
    opening.await.unwrap().map_err(|failure| chain(&failure))
}

/// State of a [`Link`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    Open,
    /// Requests arrive, answers do not.
    Mute,
    /// Nothing arrives.
    Dead,
    /// Connections end.
    Cut,
}

/// Proxy of a member that can lose requests and answers.
pub struct Link {
    pub way: watch::Sender<Way>,
    near: String,
    far: String,
    _carrier: JoinSet<()>,
}

impl Link {
    pub async fn to(far: String) -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let near = listener.local_addr().unwrap().to_string();
        let (way, told) = watch::channel(Way::Open);
        let (target, mut carrier) = (far.clone(), JoinSet::new());
        carrier.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                if let Ok(member) = TcpStream::connect(&target).await {
                    connections.spawn(carry(client, member, told.clone()));
                }
            }
        });
        Self {
            way,
            near,
            far,
            _carrier: carrier,
        }
    }

    /// Opens a store that uses the link first, and the member itself if that fails.
    pub async fn open(&self) -> Store {
        let address = format!("etcd://{},{}", self.near, self.far).parse().unwrap();
        open(&address, &Identity::default(), options()).await.unwrap()
    }
}

async fn carry(client: TcpStream, member: TcpStream, way: watch::Receiver<Way>) {
    let ((from_client, to_client), (from_member, to_member)) = (client.into_split(), member.into_split());
    let mut cut = way.clone();
    tokio::select! {
        () = pump(from_client, to_member, way.clone(), &[Way::Open, Way::Mute]) => {}
        () = pump(from_member, to_client, way, &[Way::Open]) => {}
        cut = cut.wait_for(|way| *way == Way::Cut) => drop(cut),
    }
}

async fn pump(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, mut way: watch::Receiver<Way>, passes: &[Way]) {
    let mut buffer = vec![0; 1 << 16];
    while let Ok(read @ 1..) = from.read(&mut buffer).await {
        let passing = way.wait_for(|way| passes.contains(way)).await.is_ok();
        if !passing || to.write_all(&buffer[..read]).await.is_err() {
            return;
        }
    }
}

impl Drop for Members {
    fn drop(&mut self) {
        for number in 0..self.running.len() {
            self.kill(number);
        }
    }
}

pub fn chain(mut failure: &dyn std::error::Error) -> String {
    let mut text = failure.to_string();
    while let Some(source) = failure.source() {
        failure = source;
        text = format!("{text}: {failure}");
    }
    text
}

pub fn options() -> Options {
    Options {
        index: |_, _| Attributes::default(),
        class,
        ..Options::default()
    }
}

fn class(resource: &str) -> store::Class {
    match resource {
        "coordination.k8s.io/leases" => store::Class::HeadOnly { time_to_live: None },
        _ => store::Class::Kept,
    }
}

pub fn key(name: &str) -> Key {
    Key::new("", "pods", "default", name).unwrap()
}

pub fn lease(name: &str) -> Key {
    Key::new("coordination.k8s.io", "leases", "default", name).unwrap()
}

pub fn pods() -> Prefix {
    Prefix::resource("", "pods")
}

pub fn value(data: &str) -> Value {
    Value::parse(format!(r#"{{"metadata":{{"resourceVersion":""}},"data":"{data}"}}"#).into_bytes()).unwrap()
}

pub fn create(key: &Key, data: &str) -> Write {
    Write::Create {
        key: key.clone(),
        value: value(data),
        attributes: Attributes::default(),
        within: None,
    }
}

pub fn update(entry: &Entry, data: &str) -> Write {
    Write::Update {
        key: entry.key.clone(),
        value: value(data),
        attributes: Attributes::default(),
        expected: entry.revision,
    }
}

pub fn delete(key: &Key) -> Write {
    Write::Delete {
        key: key.clone(),
        expected: None,
        last: value("last"),
    }
}

/// The object's `data`; asserts that its resourceVersion is the entry's revision.
pub fn data(entry: &Entry) -> String {
    let object: serde_json::Value = serde_json::from_slice(&entry.bytes).unwrap();
    assert_eq!(object["metadata"]["resourceVersion"], entry.revision.to_string());
    object["data"].as_str().unwrap().to_owned()
}

/// Waits until a check succeeds.
pub async fn eventually<F: Future<Output = Result<(), String>>>(what: &str, mut check: impl FnMut() -> F) {
    let deadline = tokio::time::Instant::now() + Duration::from_mins(1);
    loop {
        match check().await {
            Ok(()) => return,
            Err(last) if tokio::time::Instant::now() > deadline => panic!("{what}: {last}"),
            Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
        }
    }
}

/// Writes certificates by a test CA to files.
pub fn certificates(directory: &Path) {
    let key = rcgen::KeyPair::generate().unwrap();
    let mut parameters = rcgen::CertificateParams::new(Vec::new()).unwrap();
    parameters.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let authority = rcgen::CertifiedIssuer::self_signed(parameters, key).unwrap();
    std::fs::write(directory.join("ca.crt"), authority.pem()).unwrap();
    for name in ["server", "client"] {
        let key = rcgen::KeyPair::generate().unwrap();
        let parameters = rcgen::CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
        let certificate = parameters.signed_by(&key, &authority).unwrap();
        std::fs::write(directory.join(format!("{name}.crt")), certificate.pem()).unwrap();
        std::fs::write(directory.join(format!("{name}.key")), key.serialize_pem()).unwrap();
    }
}
