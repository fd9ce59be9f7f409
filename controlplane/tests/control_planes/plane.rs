//! Members of etcd and control planes, as real processes.

use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use axum::http::Request;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::time::{Duration, Instant};

use super::TIMEOUT;

/// Ports that nobody uses, each given once and to this process alone: one of the kernel's choice may be another test's
/// before etcd listens.
fn ports(count: usize) -> Vec<u16> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let first = 10_000 + std::process::id() % 1_000 * 20;
    let next = || u16::try_from(first + NEXT.fetch_add(1, Ordering::Relaxed)).unwrap();
    let is_free = |port: &u16| TcpListener::bind(("127.0.0.1", *port)).is_ok();
    std::iter::repeat_with(next).filter(is_free).take(count).collect()
}

/// Three members of etcd; they end with the test.
pub(crate) struct Etcd {
    _home: tempfile::TempDir,
    pub(crate) url: String,
    members: Vec<Child>,
}

impl Etcd {
    pub(crate) fn start() -> Self {
        let home = tempfile::tempdir().unwrap();
        let ports = ports(6);
        let (clients, peers) = ports.split_at(3);
        let cluster: Vec<String> = (0..3).map(|m| format!("m{m}=http://127.0.0.1:{}", peers[m])).collect();
        let member = |m: usize| {
            let (client, peer) = (clients[m], peers[m]);
            Command::new("etcd")
                .args(["--name", &format!("m{m}"), "--data-dir"])
                .arg(home.path().join(format!("m{m}")))
                .arg(format!("--listen-client-urls=http://127.0.0.1:{client}"))
                .arg(format!("--advertise-client-urls=http://127.0.0.1:{client}"))
                .arg(format!("--listen-peer-urls=http://127.0.0.1:{peer}"))
                .arg(format!("--initial-advertise-peer-urls=http://127.0.0.1:{peer}"))
                .arg(format!("--initial-cluster={}", cluster.join(",")))
                .arg("--pre-vote=true")
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .expect("etcd starts: .ci/prerequisites --tools installs it")
        };
        let members = (0..3).map(member).collect();
        let addresses: Vec<String> = clients.iter().map(|port| format!("127.0.0.1:{port}")).collect();
        Self {
            url: format!("etcd://{}", addresses.join(",")),
            members,
            _home: home,
        }
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        for member in &mut self.members {
            member.kill().unwrap();
            member.wait().unwrap();
        }
    }
}

/// One control plane; it is killed with the test.
pub(crate) struct Plane {
    pub(crate) home: tempfile::TempDir,
    /// The etcd that holds its objects.
    pub(crate) url: Option<String>,
    port: u16,
    child: Option<Child>,
}

impl Plane {
    /// One with the keys of another, or the first of a cluster.
    pub(crate) fn start(etcd: &Etcd, keys: Option<&Self>) -> Self {
        Self::on(Some(etcd.url.clone()), keys)
    }

    /// One that keeps its objects itself, unless it is told where.
    pub(crate) fn on(url: Option<String>, keys: Option<&Self>) -> Self {
        let home = tempfile::tempdir().unwrap();
        if let Some(other) = keys {
            let pki = Path::new("controlplane/pki");
            std::fs::create_dir(home.path().join("controlplane")).unwrap();
            let (from, to) = (other.home.path().join(pki), home.path().join(pki));
            let copied = Command::new("cp").arg("-a").arg(from).arg(to).status();
            assert!(copied.unwrap().success());
        }
        let mut plane = Self {
            home,
            url,
            port: ports(1)[0],
            child: None,
        };
        plane.again();
        plane
    }

    pub(crate) fn again(&mut self) {
        let log = std::fs::File::options()
            .create(true)
            .append(true)
            .open(self.home.path().join("log"))
            .unwrap();
        let child = Command::new(env!("CARGO_BIN_EXE_skiff-controlplane"))
            .arg("--state-dir")
            .arg(self.home.path())
            .args(["--listen", &format!("127.0.0.1:{}", self.port)])
            .args(self.url.iter().flat_map(|url| ["--store", url]))
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn();
        self.child = Some(child.unwrap());
    }

    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.home.path().join("log")).unwrap()
    }

    /// Tells whether it led and lost that, such as on a machine too busy to renew the lease.
    pub(crate) fn lost(&self) -> bool {
        let log = self.log();
        ["could not be renewed", "another control plane leads"]
            .iter()
            .any(|told| log.contains(told))
    }

    /// A client, once the server is ready.
    pub(crate) async fn client(&self) -> Client {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            let last = match self.try_client().await {
                Ok(client) => return client,
                Err(last) => last,
            };
            assert!(Instant::now() < deadline, "not ready: {last}\n{}", self.log());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    async fn try_client(&self) -> Result<Client, Box<dyn std::error::Error>> {
        let file = Kubeconfig::read_from(self.home.path().join("admin.kubeconfig"))?;
        let config = Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await?;
        let client = Client::try_from(config)?;
        let request = Request::get("/readyz").body(Vec::new())?;
        client.request_text(request).await?;
        Ok(client)
    }

    /// SIGKILL.
    pub(crate) fn kill(&mut self) {
        let mut child = self.child.take().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
    }

    /// SIGTERM, and its end.
    pub(crate) fn finish(&mut self) {
        let pid = i32::try_from(self.child.as_ref().unwrap().id()).unwrap();
        kill(Pid::from_raw(pid), Signal::SIGTERM).unwrap();
        let status = self.end();
        assert!(status.success(), "{status}: {}", self.log());
    }

    pub(crate) fn end(&mut self) -> ExitStatus {
        self.child.take().unwrap().wait().unwrap()
    }
}

impl Drop for Plane {
    fn drop(&mut self) {
        if self.child.is_some() {
            self.kill();
        }
    }
}
