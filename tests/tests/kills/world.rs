//! A cluster whose parts are killed, and what goes on in it meanwhile.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::ensure;
use http::{Method, StatusCode};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use tests::http::Target;
use tests::images;
use tests::machine::Machine;
use tests::parts::Parts;

use super::daemon;
use super::daemons::{Api, Daemon};
use super::looks::{first_processes, has_written, holder};
use super::start::Started;

/// Pods that the test leaves alone.
pub(crate) const BYSTANDERS: [&str; 2] = ["still-0", "still-1"];
pub(crate) const PODS: &str = "/api/v1/namespaces/default/pods";

/// Process to kill.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Victim {
    Agent,
    ControlPlane,
    /// The supervisor of a pod, or its shim.
    Holder,
    Containerd,
}

/// Operation on pods during the kills.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Deed {
    Create,
    /// A container's process ends, so that it is started again.
    Exit,
    Delete,
}

/// Numbers that look random and are the same in each run.
pub(crate) struct Dice(pub(crate) u64);

impl Dice {
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        // splitmix64
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (mixed ^ (mixed >> 31)) % bound
    }

    pub(crate) fn one<'a, T>(&mut self, of: &'a [T]) -> Option<&'a T> {
        let count = u64::try_from(of.len()).ok().filter(|count| *count > 0)?;
        of.get(usize::try_from(self.below(count)).ok()?)
    }
}

/// A cluster, and what the test knows of it. After a failure its parts end in this order.
pub(crate) struct World {
    pub(crate) parts: Parts,
    pub(crate) agent: Daemon,
    pub(crate) control_plane: Daemon,
    pub(crate) machine: Machine,
    pub(crate) containerd: Option<daemon::Daemon>,
    pub(crate) folder: tempfile::TempDir,
    pub(crate) api: Api,
    pub(crate) images: [String; 2],
    pub(crate) dice: Dice,
    /// Names of pods that must exist, and of those that must go away.
    pub(crate) wanted: BTreeSet<String>,
    pub(crate) leaving: BTreeSet<String>,
    pub(crate) next: usize,
    /// Directory in which containers record their starts, one file for each pod.
    pub(crate) starts: PathBuf,
    /// Number of supervisors or shims that were killed: none may have existed.
    pub(crate) held: usize,
}

pub(crate) fn uid(pod: &Value) -> &str {
    pod["metadata"]["uid"].as_str().unwrap_or_default()
}

pub(crate) fn status(pod: &Value) -> &Value {
    &pod["status"]["containerStatuses"][0]
}

impl World {
    pub(crate) async fn start(parts: Parts) -> anyhow::Result<Self> {
        let Started {
            machine,
            containerd,
            folder,
        } = Started::with(parts, "kills", &[]).await?;
        let images = [images::nginx(&machine)?, images::busybox(&machine)?];
        let agent = Daemon::find(&machine, "skiff-agent", "agent.log")?;
        let control_plane = Daemon::find(&machine, "skiff-controlplane", "controlplane.log")?;
        let api = Api {
            target: Target::from_kubeconfig(&machine.kubeconfig())?,
            connection: None,
        };
        let starts = folder.path().join("starts");
        std::fs::create_dir(&starts)?;
        Ok(Self {
            parts,
            agent,
            control_plane,
            machine,
            containerd,
            folder,
            api,
            images,
            dice: Dice(25),
            wanted: BTreeSet::new(),
            leaving: BTreeSet::new(),
            next: 0,
            starts,
            held: 0,
        })
    }

    pub(crate) async fn create(&mut self, name: &str, spec: Value) -> anyhow::Result<()> {
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec});
        let (status, answer) = self.api.ask(&Method::POST, PODS, &pod).await?;
        ensure!(
            status == StatusCode::CREATED || status == StatusCode::CONFLICT,
            "{name}: {status} {answer}"
        );
        self.wanted.insert(name.to_owned());
        Ok(())
    }

    /// A pod whose container writes down each of its starts.
    pub(crate) fn busy(&self, name: &str) -> Value {
        let script = format!("echo started >> /starts/{name}; trap 'exit 0' TERM; while :; do sleep 1000 & wait; done");
        json!({
            "terminationGracePeriodSeconds": 1,
            "volumes": [
                {"name": "starts", "hostPath": {"path": self.starts}},
                {"name": "memory", "emptyDir": {"medium": "Memory"}},
            ],
            "containers": [{
                "name": "busy", "image": self.images[1], "command": ["sh", "-c", script],
                "volumeMounts": [{"name": "starts", "mountPath": "/starts"}, {"name": "memory", "mountPath": "/memory"}],
            }],
        })
    }

    pub(crate) async fn bystanders(&mut self) -> anyhow::Result<Vec<SocketAddr>> {
        for name in BYSTANDERS {
            let spec = json!({"containers": [{
                "name": "web", "image": self.images[0], "readinessProbe": {"tcpSocket": {"port": 80}, "periodSeconds": 1},
            }]});
            self.create(name, spec).await?;
        }
        let pods = self.settle().await?;
        let address = |name: &str| format!("{}:80", pods[name]["status"]["podIP"].as_str().unwrap_or_default()).parse();
        Ok(BYSTANDERS.iter().map(|name| address(name)).collect::<Result<_, _>>()?)
    }

    /// Starts an operation; its pod may be gone by then.
    pub(crate) async fn begin(&mut self, deed: Deed) -> anyhow::Result<()> {
        let busy: Vec<String> = self
            .wanted
            .iter()
            .filter(|name| name.starts_with("busy"))
            .cloned()
            .collect();
        match deed {
            Deed::Create => {
                let name = format!("busy-{}", self.next);
                self.next += 1;
                let spec = self.busy(&name);
                self.create(&name, spec).await
            }
            Deed::Exit => {
                let fresh = self.fresh(&busy);
                let Some(name) = self.dice.one(&fresh).cloned() else {
                    return Ok(());
                };
                let (_, pod) = self
                    .api
                    .ask(&Method::GET, &format!("{PODS}/{name}"), &Value::Null)
                    .await?;
                for pid in first_processes(uid(&pod)) {
                    if has_written(pid) {
                        kill(Pid::from_raw(pid), Signal::SIGKILL).ok();
                    }
                }
                Ok(())
            }
            Deed::Delete => {
                let Some(name) = self.dice.one(&busy).cloned() else {
                    return Ok(());
                };
                let grace = self.dice.below(2);
                let path = format!("{PODS}/{name}?gracePeriodSeconds={grace}");
                let (status, answer) = self.api.ask(&Method::DELETE, &path, &Value::Null).await?;
                ensure!(
                    status.is_success() || status == StatusCode::NOT_FOUND,
                    "{name}: {status} {answer}"
                );
                self.wanted.remove(&name);
                self.leaving.insert(name);
                Ok(())
            }
        }
    }

    /// Number of starts of a pod's container, by its own record.
    pub(crate) fn started(&self, name: &str) -> usize {
        let starts = std::fs::read_to_string(self.starts.join(name)).unwrap_or_default();
        starts.lines().count()
    }

    /// Picks pods whose next restart has no back-off of minutes; mostly those without any back-off.
    fn fresh(&mut self, busy: &[String]) -> Vec<String> {
        let most = if self.dice.below(8) == 0 { 2 } else { 1 };
        let fresh = busy.iter().filter(|name| self.started(name) <= most);
        fresh.cloned().collect()
    }

    /// Deletes all pods but the bystanders.
    pub(crate) async fn empty(&mut self) -> anyhow::Result<()> {
        let busy: Vec<String> = self
            .wanted
            .iter()
            .filter(|name| name.starts_with("busy"))
            .cloned()
            .collect();
        for name in busy {
            let path = format!("{PODS}/{name}?gracePeriodSeconds=0");
            let (status, answer) = self.api.ask(&Method::DELETE, &path, &Value::Null).await?;
            ensure!(status.is_success(), "{name}: {status} {answer}");
            self.wanted.remove(&name);
            self.leaving.insert(name);
        }
        Ok(())
    }

    /// Waits until a new agent serves: bystander pods look settled before it does.
    pub(crate) async fn agent_serves(&mut self) -> anyhow::Result<()> {
        let pods = self.api.pods().await?;
        let node = pods.values().find_map(|pod| pod["spec"]["nodeName"].as_str());
        let path = format!("/api/v1/nodes/{}/proxy/healthz", node.unwrap_or_default());
        let (status, answer) = self.api.ask(&Method::GET, &path, &Value::Null).await?;
        ensure!(status.is_success(), "{path}: {status} {answer}");
        Ok(())
    }

    pub(crate) async fn strike(&mut self, victim: Victim) -> anyhow::Result<()> {
        match victim {
            Victim::Agent => {
                self.agent.kill()?;
                self.agent.run()
            }
            Victim::ControlPlane => {
                self.control_plane.kill()?;
                self.control_plane.run()
            }
            Victim::Containerd => {
                if let Some(containerd) = &mut self.containerd {
                    containerd.kill();
                    containerd.resume().await;
                }
                Ok(())
            }
            Victim::Holder => {
                let busy: Vec<String> = self
                    .wanted
                    .iter()
                    .filter(|name| name.starts_with("busy"))
                    .cloned()
                    .collect();
                let mut there = Vec::new();
                for name in self.fresh(&busy) {
                    let path = format!("{PODS}/{name}");
                    let (_, pod) = self.api.ask(&Method::GET, &path, &Value::Null).await?;
                    let first = first_processes(uid(&pod)).first().copied();
                    if first.is_some_and(has_written) {
                        there.extend(holder(self, uid(&pod)));
                    }
                }
                if let Some(pid) = self.dice.one(&there).copied() {
                    kill(Pid::from_raw(pid), Signal::SIGKILL)?;
                    self.held += 1;
                }
                Ok(())
            }
        }
    }

    pub(crate) async fn finish(mut self) -> anyhow::Result<()> {
        // `skiff down` ends what `skiff up` has started.
        self.control_plane.kill()?;
        self.agent.kill()?;
        self.machine.skiff(["up"])?;
        let (machine, containerd, folder) = (self.machine, self.containerd, self.folder);
        let started = Started {
            machine,
            containerd,
            folder,
        };
        started.finish().await
    }
}
