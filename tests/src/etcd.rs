//! Three members of etcd on this namespace's loopback.

use std::net::TcpListener;
use std::process::{Child, Command, Stdio};

use anyhow::Context as _;

/// Running members; they are killed when this is dropped.
pub struct Etcd {
    home: tempfile::TempDir,
    /// Of clients, and of the other members.
    ports: Vec<(u16, u16)>,
    members: Vec<Child>,
}

impl Etcd {
    /// Starts the members in the network namespace of the calling thread.
    ///
    /// # Errors
    /// When the program is not there.
    pub fn start() -> anyhow::Result<Self> {
        // Held all at once, so that no two are the same.
        let held: Vec<TcpListener> = (0..6)
            .map(|_| TcpListener::bind("127.0.0.1:0"))
            .collect::<Result<_, _>>()?;
        let numbers: Vec<u16> = held
            .iter()
            .map(|held| Ok(held.local_addr()?.port()))
            .collect::<std::io::Result<_>>()?;
        drop(held);
        let ports = numbers.iter().copied().zip(numbers.iter().copied().skip(3)).take(3);
        let mut etcd = Self {
            home: tempfile::Builder::new().prefix("skiff-etcd-").tempdir()?,
            ports: ports.collect(),
            members: Vec::new(),
        };
        for (number, (client, peer)) in etcd.ports.clone().into_iter().enumerate() {
            let member = etcd.member(number, client, peer)?;
            etcd.members.push(member);
        }
        Ok(etcd)
    }

    fn member(&self, number: usize, client: u16, peer: u16) -> anyhow::Result<Child> {
        let all = self.ports.iter().enumerate();
        let all: Vec<String> = all
            .map(|(number, (_, peer))| format!("m{number}=http://127.0.0.1:{peer}"))
            .collect();
        let log = std::fs::File::create(self.home.path().join(format!("m{number}.log")))?;
        Command::new("etcd")
            .args(["--name", &format!("m{number}"), "--data-dir"])
            .arg(self.home.path().join(format!("m{number}")))
            .arg(format!("--listen-client-urls=http://127.0.0.1:{client}"))
            .arg(format!("--advertise-client-urls=http://127.0.0.1:{client}"))
            .arg(format!("--listen-peer-urls=http://127.0.0.1:{peer}"))
            .arg(format!("--initial-advertise-peer-urls=http://127.0.0.1:{peer}"))
            .arg(format!("--initial-cluster={}", all.join(",")))
            .args(["--pre-vote=true", "--logger=zap", "--log-outputs=stderr"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .context("start etcd: .ci/prerequisites --tools installs it")
    }

    /// Value for `--store`.
    pub fn url(&self) -> String {
        let members: Vec<String> = self
            .ports
            .iter()
            .map(|(client, _)| format!("127.0.0.1:{client}"))
            .collect();
        format!("etcd://{}", members.join(","))
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        for member in &mut self.members {
            if let Err(error) = member.kill().and_then(|()| member.wait()) {
                tracing::error!(%error, "kill a member of etcd");
            }
        }
    }
}
