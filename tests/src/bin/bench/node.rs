//! Load on one node: one pod a second, exits and restarts, a hundred pods at once, five hundred
//! idle pods.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Context as _;
use bytes::Bytes;
use http::Method;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use tests::http::{Connection, Events, Target};
use tests::machine::{Machine, TIMEOUT};
use tests::process;
use tokio::task::JoinSet;
use tokio::time::{interval, timeout};

use crate::figures::{Table, milliseconds, now, percentiles};

const NAMESPACES: &str = "/api/v1/namespaces";
/// Pods that are made one a second.
const PACED: usize = 60;
const BURST: usize = 100;
const BURSTS: usize = 3;
/// Connections over which a burst is sent.
const SENDERS: usize = 8;
/// Exits at once on SIGTERM and on the stop signal of nginx's image, and is an ordinary process
/// otherwise.
const PROGRAM: &str = "trap 'exit 0' TERM QUIT; while :; do sleep 3600 & wait; done";

/// Time after which the work that a burst's start leaves behind, its events above all, is done.
const UNTIL_REST: Duration = Duration::from_secs(20);

/// More pods than upstream's 110 for a node, with addresses for them.
pub(crate) fn words(crowd: usize) -> Vec<String> {
    vec![
        format!("--max-pods={}", crowd.max(BURST) + 16),
        "--pod-cidr=10.244.0.0/21".to_owned(),
    ]
}

/// Measures with the nginx image, whose shell runs [`PROGRAM`].
pub(crate) async fn measure(
    machine: &Machine,
    target: &Target,
    image: &str,
    table: &mut Table,
    crowd: usize,
) -> anyhow::Result<()> {
    let mut all = Vec::new();
    let (mut running, mut again, mut gone) = (Vec::new(), Vec::new(), Vec::new());
    let mut pods = Pods::new(target, "paced", image).await?;
    let mut seconds = interval(Duration::from_secs(1));
    for number in 0..PACED {
        seconds.tick().await;
        let name = format!("paced-{number}");
        let start = now();
        pods.create(&name).await?;
        let pod = pods.until(&name, is_running).await?;
        running.push(start.elapsed());
        if number % 3 == 0 {
            again.push(pods.restart(&name, &pod).await?);
        }
        // The previous one: a shell that has just started does not handle signals yet.
        if let Some(before) = number.checked_sub(1) {
            let start = now();
            pods.delete(&format!("paced-{before}")).await?;
            gone.push(start.elapsed());
        }
    }
    pods.end().await?;
    for (what, times) in [
        ("pod created -> running, one a second", &mut running),
        ("its process killed -> running again", &mut again),
        ("pod deleted -> gone, its process obeys", &mut gone),
    ] {
        table.row(what, percentiles(times));
    }
    for round in 0..BURSTS {
        let namespace = format!("burst-{round}");
        let mut pods = Pods::new(target, &namespace, image).await?;
        let start = now();
        pods.create_all(BURST).await?;
        pods.until_all(BURST).await?;
        all.push(start.elapsed());
        pods.end().await?;
    }
    all.sort_unstable();
    let each: Vec<String> = all.iter().map(|time| milliseconds(*time)).collect();
    table.row(format!("{BURST} pods created at once -> all running"), each.join(", "));
    rest(machine, target, image, table, crowd).await
}

/// Measures the cost of many idle pods.
async fn rest(machine: &Machine, target: &Target, image: &str, table: &mut Table, crowd: usize) -> anyhow::Result<()> {
    let mut pods = Pods::new(target, "crowd", image).await?;
    pods.create_all(crowd).await?;
    pods.until_all(crowd).await?;
    crate::memory::idle(machine, table, &format!("{crowd} pods that have just started"))?;
    tokio::time::sleep(UNTIL_REST).await;
    crate::memory::idle(machine, table, &format!("{crowd} pods that rest"))?;
    let mut held = Vec::new();
    for (pid, line) in process::with_command_line("skiff-supervisor")? {
        // Processes of this cluster, including the supervisors' parent.
        if line.starts_with("skiff-supervisor") && machine.holds(pid) {
            held.push(process::private_kib(pid)?);
        }
    }
    held.sort_unstable();
    let middle = held.get(held.len() / 2).copied().unwrap_or_default();
    let most = held.last().copied().unwrap_or_default();
    table.row(
        format!("{} supervisors, private memory", held.len()),
        format!("median {middle} KiB, most {most} KiB"),
    );
    pods.end().await
}

/// A namespace of equal pods, and a watch of them.
pub(crate) struct Pods {
    path: String,
    namespace: String,
    image: String,
    target: Target,
    connection: Connection,
    /// Ends with the watch.
    _watching: Connection,
    events: Events,
    seen: BTreeMap<String, Value>,
}

impl Pods {
    pub(crate) async fn new(target: &Target, namespace: &str, image: &str) -> anyhow::Result<Self> {
        let mut connection = target.connect().await?;
        let body = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}});
        connection
            .expect(Method::POST, NAMESPACES, Bytes::from(body.to_string()))
            .await?;
        let path = format!("{NAMESPACES}/{namespace}/pods");
        let mut watching = target.connect().await?;
        let events = watching
            .events(&format!("{path}?watch=true&timeoutSeconds=3600"))
            .await?;
        Ok(Self {
            path,
            namespace: namespace.to_owned(),
            image: image.to_owned(),
            target: target.clone(),
            connection,
            _watching: watching,
            events,
            seen: BTreeMap::new(),
        })
    }

    pub(crate) async fn create(&mut self, name: &str) -> anyhow::Result<()> {
        let body = pod(name, &self.image);
        self.connection.expect(Method::POST, &self.path, body).await.map(drop)
    }

    async fn create_all(&self, count: usize) -> anyhow::Result<()> {
        let mut senders = JoinSet::new();
        for first in 0..SENDERS {
            let mut connection = self.target.connect().await?;
            let (path, image) = (self.path.clone(), self.image.clone());
            senders.spawn(async move {
                for number in (first..count).step_by(SENDERS) {
                    let body = pod(&format!("pod-{number}"), &image);
                    connection.expect(Method::POST, &path, body).await?;
                }
                anyhow::Ok(())
            });
        }
        while let Some(ended) = senders.join_next().await {
            ended??;
        }
        Ok(())
    }

    /// Reads the next event, and remembers the pod; `false` is one that is gone.
    async fn next(&mut self) -> anyhow::Result<(String, bool)> {
        let event = timeout(TIMEOUT, self.events.next()).await;
        let event = event.with_context(|| format!("{}: no event; last seen: {:?}", self.path, self.states()))??;
        let mut event = event.context("the watch ended")?;
        let pod = event.get_mut("object").map(Value::take).context("an object")?;
        let name = pod.pointer("/metadata/name").and_then(Value::as_str);
        let name = name.with_context(|| format!("a name in {pod}"))?.to_owned();
        let there = event.get("type") != Some(&json!("DELETED"));
        if there {
            self.seen.insert(name.clone(), pod);
        } else {
            self.seen.remove(&name);
        }
        Ok((name, there))
    }

    fn states(&self) -> BTreeMap<&str, &Value> {
        let waiting = self.seen.iter().filter(|(_, pod)| !is_running(pod));
        waiting.map(|(name, pod)| (name.as_str(), &pod["status"])).collect()
    }

    pub(crate) async fn until(&mut self, name: &str, so: impl Fn(&Value) -> bool) -> anyhow::Result<Value> {
        loop {
            let (changed, _) = self.next().await?;
            if let Some(pod) = self.seen.get(name).filter(|pod| changed == name && so(pod)) {
                return Ok(pod.clone());
            }
        }
    }

    async fn until_all(&mut self, count: usize) -> anyhow::Result<()> {
        while self.seen.values().filter(|pod| is_running(pod)).count() < count {
            self.next().await?;
        }
        Ok(())
    }

    /// Kills the container's first process; how long until the API shows the next one.
    async fn restart(&mut self, name: &str, pod: &Value) -> anyhow::Result<Duration> {
        let uid = pod.pointer("/metadata/uid").and_then(Value::as_str).context("a uid")?;
        let pid = process::container_of(uid)?;
        let start = now();
        kill(Pid::from_raw(pid), Signal::SIGKILL)?;
        let restarts = "/status/containerStatuses/0/restartCount";
        self.until(name, |pod| pod.pointer(restarts) == Some(&json!(1)) && is_running(pod))
            .await?;
        Ok(start.elapsed())
    }

    pub(crate) async fn delete(&mut self, name: &str) -> anyhow::Result<()> {
        let path = format!("{}/{name}", self.path);
        self.connection.expect(Method::DELETE, &path, Bytes::new()).await?;
        while self.next().await? != (name.to_owned(), false) {}
        Ok(())
    }

    /// Removes the namespace with all its pods.
    pub(crate) async fn end(mut self) -> anyhow::Result<()> {
        let path = format!("{NAMESPACES}/{}", self.namespace);
        self.connection.expect(Method::DELETE, &path, Bytes::new()).await?;
        while !self.seen.is_empty() {
            self.next().await?;
        }
        Ok(())
    }
}

fn pod(name: &str, image: &str) -> Bytes {
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
        "spec": {"containers": [{"name": "main", "image": image, "command": ["/bin/sh", "-c", PROGRAM]}]},
    });
    Bytes::from(pod.to_string())
}

pub(crate) fn is_running(pod: &Value) -> bool {
    let state = pod.pointer("/status/containerStatuses/0/state/running");
    state.is_some()
}
