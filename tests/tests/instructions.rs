//! Instructions that the control plane executes for frequent requests, as valgrind's callgrind counts them. Unlike times
//! they differ little between runs, whatever else the machine does, so that growth is seen. They are those
//! of the debug build that all tests run. Another toolchain changes them, and so may a feature that is worth it: set
//! [`BOUNDS`] to what `cargo nextest run --package tests --test instructions` prints when it fails.

#![allow(clippy::unreadable_literal, reason = "counts are written as they are printed")]

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use bytes::Bytes;
use futures::TryFutureExt as _;
use http::Method;
use http::header::{ACCEPT, ACCEPT_ENCODING};
use serde_json::json;
use tests::http::Connection;
use tests::machine::Namespace;
use tests::process;
use tests::server::Server;

/// Requests, how many of each are sent in a round, and the instructions of one. Those that cost most come first: what the
/// server does after its start is little beside them.
const BOUNDS: [(Request, u64, u64); 5] = [
    (Request::List, 1, 112057762),
    (Request::Table, 1, 450946705),
    (Request::Create, 10, 9650579),
    (Request::Get, 30, 1367367),
    (Request::Bind, 10, 6641578),
];
/// Growth that is no failure, in percent.
const TOLERANCE: u64 = 30;
/// Most rounds of a request. The lowest count is taken, and one that is low enough ends them: what the server does meanwhile
/// for itself only adds.
const ROUNDS: u64 = 16;
/// Instructions of a server that has nothing to do, in the time before each count.
const IDLE: u64 = 20_000_000;

const PODS: &str = "/api/v1/namespaces/default/pods";
const STORED: u64 = 500;

#[derive(Debug, Clone, Copy)]
enum Request {
    Get,
    List,
    Table,
    Create,
    Bind,
}

impl Request {
    /// Sends it, for the pod of that number.
    async fn send(self, connection: &mut Connection, number: u64) -> anyhow::Result<Bytes> {
        let stored = format!("stored-{number}");
        match self {
            Self::Get => connection.read_as(&format!("{PODS}/{stored}"), &[]).await,
            Self::List => connection.read_as(PODS, &[]).await,
            Self::Table => {
                let table = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json";
                let headers = [(ACCEPT, table), (ACCEPT_ENCODING, "gzip")];
                connection.read_as(PODS, &headers).await
            }
            Self::Create => {
                let pod = pod(&format!("created-{number}"));
                connection.expect(Method::POST, PODS, pod).await
            }
            Self::Bind => {
                let path = format!("{PODS}/{stored}/binding");
                let (metadata, target) = (json!({"name": stored}), json!({"kind": "Node", "name": "elsewhere"}));
                let binding = json!({"apiVersion": "v1", "kind": "Binding", "metadata": metadata, "target": target});
                connection.expect(Method::POST, &path, binding.to_string().into()).await
            }
        }
    }
}

/// A pod that no scheduler touches.
fn pod(name: &str) -> Bytes {
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": "web"}},
        "spec": {
            "schedulerName": "nobody",
            "containers": [{
                "name": "web", "image": "nginx:1", "ports": [{"containerPort": 80}],
                "env": [{"name": "COLOR", "value": "blue"}],
                "resources": {"requests": {"cpu": "10m", "memory": "16Mi"}, "limits": {"memory": "64Mi"}},
                "readinessProbe": {"httpGet": {"path": "/", "port": 80}},
            }],
        },
    });
    Bytes::from(pod.to_string())
}

/// The instruction counter of a control plane.
struct Counter {
    /// Arguments by which `vgdb` finds the process.
    process: [String; 2],
    /// Beginning of the names of its files.
    dumps: PathBuf,
    count: u32,
}

impl Counter {
    /// Starts the server under callgrind on the state that is there. It counts nothing yet, which is several times as fast.
    fn start(server: &mut Server) -> anyhow::Result<Self> {
        let folder = server.state().to_owned();
        let built = process::programs()?.join("skiff-controlplane");
        // Valgrind reads all of a program's debug information before it starts it.
        let program = folder.join("skiff-controlplane");
        let mut strip = Command::new("strip");
        process::run(strip.arg("--strip-debug").arg("-o").arg(&program).arg(built))?;
        let dumps = folder.join("callgrind");
        let prefix = format!("--vgdb-prefix={}", folder.join("vgdb").display());
        let mut valgrind = Command::new("valgrind");
        valgrind
            .args(["--tool=callgrind", "--instr-atstart=no", &prefix])
            .arg(format!("--callgrind-out-file={}", dumps.display()))
            .arg(program);
        server.again_by(valgrind)?;
        Ok(Self {
            process: [prefix, format!("--pid={}", server.pid()?)],
            dumps,
            count: 0,
        })
    }

    fn tell(&self, words: &[&str]) -> anyhow::Result<()> {
        process::run(Command::new("vgdb").args(&self.process).args(words)).map(drop)
    }

    /// Instructions since the last call.
    async fn take(&mut self) -> anyhow::Result<u64> {
        // For what follows a response: the audit log, watches, controllers.
        tokio::time::sleep(Duration::from_millis(300)).await;
        self.tell(&["dump"])?;
        self.count += 1;
        let dump = std::fs::read_to_string(self.dumps.with_extension(self.count.to_string()))?;
        let total = dump.lines().find_map(|line| line.strip_prefix("totals: "));
        Ok(total.context("totals of a dump")?.trim().parse()?)
    }
}

#[tokio::test(flavor = "current_thread")]
async fn frequent_requests_do_not_grow() -> anyhow::Result<()> {
    tests::logging();
    let namespace = Namespace::new("instructions")?;
    namespace.enter()?;
    let mut server = Server::start(Some(namespace), "127.0.0.1:6443")?;
    let mut connection = server.ready().await?.connect().await?;
    for number in 0..STORED {
        let pod = pod(&format!("stored-{number}"));
        connection.expect(Method::POST, PODS, pod).await?;
    }
    server.kill()?;
    let mut counter = Counter::start(&mut server)?;
    // It is slow to start.
    let target = server.ready().or_else(|_| server.ready()).await?;
    let mut connection = target.connect().await?;
    counter.tell(&["instrumentation", "on"])?;
    // A moment later controllers read all pods.
    let mut idle = 0;
    for _ in 0..100 {
        idle = if counter.take().await? < IDLE { idle + 1 } else { 0 };
        if idle == 5 {
            break;
        }
    }

    let (mut all, mut grown) = (Vec::new(), Vec::new());
    for (request, size, bound) in BOUNDS {
        let most = bound + bound * TOLERANCE / 100;
        let mut least = u64::MAX;
        for round in 0..ROUNDS {
            for number in round * size..(round + 1) * size {
                request.send(&mut connection, number).await?;
            }
            let count = counter.take().await? / size;
            // What is done once is done in the first round.
            if round > 0 {
                least = least.min(count);
            }
            if least <= most {
                break;
            }
        }
        if least > most {
            grown.push(format!("{request:?}: {least} instructions, allowed are {most}"));
        } else if least < bound / 4 * 3 {
            println!("{request:?}: {least} instructions, please lower the bound of {bound}");
        }
        all.push(format!("    (Request::{request:?}, {size}, {least}),"));
    }
    let all = all.join("\n");
    ensure!(grown.is_empty(), "{grown:#?}; all counts, for BOUNDS:\n{all}");
    server.finish()
}
