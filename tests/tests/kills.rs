//! Agents, supervisors, shims, containerd and control planes are killed at many moments, while pods come, end, restart and go.
//! What must hold: no container is lost or runs twice, nothing is left behind, pods that nobody touched serve all the while,
//! and `restartCount` is how often a container was started again.
//!
//! `SKIFF_KILLS` says how many kills there are for each runtime; a few dozen where it says nothing. Run it by
//! `cargo nextest run -p tests --test kills --run-ignored all`.

#![allow(
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test fails by panicking"
)]

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use http::{Method, StatusCode};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use tests::http::Target;
use tests::images;
use tests::machine::Machine;
use tests::parts::Parts;

use customer::Customer;
use daemons::{Api, Daemon};
use looks::{first_processes, has_written, holders, parent};
use start::Started;

#[path = "kills/customer.rs"]
mod customer;
#[path = "../../agent/runtime/tests/common/daemon.rs"]
mod daemon;
#[path = "kills/daemons.rs"]
mod daemons;
#[path = "kills/looks.rs"]
mod looks;
#[path = "containers/start.rs"]
mod start;

/// Kills between two looks at everything.
const ROUND: usize = 8;
/// Pods that nobody touches.
const BYSTANDERS: [&str; 2] = ["still-0", "still-1"];
const PODS: &str = "/api/v1/namespaces/default/pods";

/// Whom to kill.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Victim {
    Agent,
    ControlPlane,
    /// The supervisor of a pod, or its shim.
    Holder,
    Containerd,
}

/// What goes on meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Deed {
    Create,
    /// A container's process ends, so that it is started again.
    Exit,
    Delete,
}

/// Numbers that look random and are the same in each run.
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: u64) -> u64 {
        // splitmix64
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (mixed ^ (mixed >> 31)) % bound
    }

    fn one<'a, T>(&mut self, of: &'a [T]) -> Option<&'a T> {
        let count = u64::try_from(of.len()).ok().filter(|count| *count > 0)?;
        of.get(usize::try_from(self.below(count)).ok()?)
    }
}

struct World {
    parts: Parts,
    machine: Machine,
    folder: tempfile::TempDir,
    containerd: Option<daemon::Daemon>,
    agent: Daemon,
    control_plane: Daemon,
    api: Api,
    images: [String; 2],
    dice: Dice,
    /// Names of pods that shall be there, and of those that shall go.
    wanted: BTreeSet<String>,
    leaving: BTreeSet<String>,
    next: usize,
    /// Where containers write down that they were started, one file for each pod.
    starts: PathBuf,
}

fn uid(pod: &Value) -> &str {
    pod["metadata"]["uid"].as_str().unwrap_or_default()
}

fn status(pod: &Value) -> &Value {
    &pod["status"]["containerStatuses"][0]
}

impl World {
    async fn start(parts: Parts) -> anyhow::Result<Self> {
        let Started {
            machine,
            folder,
            containerd,
        } = Started::with(parts, "kills").await?;
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
            machine,
            folder,
            containerd,
            agent,
            control_plane,
            api,
            images,
            dice: Dice(25),
            wanted: BTreeSet::new(),
            leaving: BTreeSet::new(),
            next: 0,
            starts,
        })
    }

    async fn create(&mut self, name: &str, spec: Value) -> anyhow::Result<()> {
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
    fn busy(&self, name: &str) -> Value {
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

    async fn bystanders(&mut self) -> anyhow::Result<Vec<SocketAddr>> {
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

    /// Begins something; what it is about may be gone by then.
    async fn begin(&mut self, deed: Deed) -> anyhow::Result<()> {
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
                let Some(name) = self.dice.one(&busy).cloned() else {
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

    async fn strike(&mut self, victim: Victim) -> anyhow::Result<()> {
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
                let names: Vec<&String> = self.wanted.iter().filter(|name| name.starts_with("busy")).collect();
                let Some(name) = self.dice.one(&names).copied().cloned() else {
                    return Ok(());
                };
                let (_, pod) = self
                    .api
                    .ask(&Method::GET, &format!("{PODS}/{name}"), &Value::Null)
                    .await?;
                let first = first_processes(uid(&pod)).first().copied();
                let Some(pid) = first.filter(|pid| has_written(*pid)) else {
                    return Ok(());
                };
                let holder = parent(pid).unwrap_or(0);
                let line = std::fs::read(format!("/proc/{holder}/cmdline")).unwrap_or_default();
                let line = String::from_utf8_lossy(&line).into_owned();
                if line.starts_with("skiff-supervisor") || line.contains("containerd-shim") {
                    kill(Pid::from_raw(holder), Signal::SIGKILL).ok();
                }
                Ok(())
            }
        }
    }

    async fn finish(mut self) -> anyhow::Result<()> {
        // `skiff down` ends what `skiff up` has started.
        self.control_plane.kill()?;
        self.agent.kill()?;
        self.machine.skiff(["up"])?;
        let (machine, folder, containerd) = (self.machine, self.folder, self.containerd);
        let started = Started {
            machine,
            folder,
            containerd,
        };
        started.finish().await
    }
}

async fn story(parts: Parts, kills: usize) -> anyhow::Result<()> {
    let mut world = World::start(parts).await?;
    let customer = Customer::start(world.bystanders().await?);
    for _ in 0..3 {
        world.begin(Deed::Create).await?;
    }
    let before = world.settle().await?;
    let held = holders(&before)?;
    let victims: &[Victim] = if parts.containerd {
        &[
            Victim::Agent,
            Victim::Agent,
            Victim::Agent,
            Victim::Holder,
            Victim::Containerd,
            Victim::ControlPlane,
        ]
    } else {
        &[
            Victim::Agent,
            Victim::Agent,
            Victim::Agent,
            Victim::Holder,
            Victim::ControlPlane,
        ]
    };
    let mut history = Vec::new();
    for number in 0..kills {
        let busy = world.wanted.len() - BYSTANDERS.len();
        let deeds: &[Deed] = match busy {
            0..=2 => &[Deed::Create],
            3..=5 => &[Deed::Create, Deed::Exit, Deed::Delete],
            _ => &[Deed::Exit, Deed::Delete],
        };
        let deed = *world.dice.one(deeds).context("a deed")?;
        let victim = *world.dice.one(victims).context("a victim")?;
        // Everything that a deed begins happens within this; the agent's own start, too, when it was the last one's victim.
        let after = Duration::from_micros(world.dice.below(250_000));
        history.push(format!("{number}: {deed:?}, {victim:?} after {after:?}"));
        world.begin(deed).await?;
        tokio::time::sleep(after).await;
        world.strike(victim).await?;
        if number % ROUND == ROUND - 1 {
            let last = history.split_off(history.len().saturating_sub(ROUND));
            world.settle().await.with_context(|| last.join("\n"))?;
        }
    }
    let after = world.settle().await.with_context(|| history.join("\n"))?;
    for name in BYSTANDERS {
        let (one, other) = (status(&before[name]), status(&after[name]));
        ensure!(one["containerID"] == other["containerID"], "{name}: {other}");
        ensure!(other["restartCount"] == 0, "{name}: {other}");
    }
    for ((pid, least), (same, now)) in held.into_iter().zip(holders(&after)?) {
        ensure!(
            pid == same && now <= least + 2,
            "descriptors of {pid}: {least}, then {now}"
        );
    }
    let served = customer.finish()?;
    ensure!(served > kills, "{served} pages");
    world.finish().await
}

fn run(parts: Parts, otherwise: usize) -> anyhow::Result<()> {
    tests::logging();
    let kills = match std::env::var("SKIFF_KILLS") {
        Ok(text) => text.parse().context("SKIFF_KILLS")?,
        Err(_) => otherwise,
    };
    let executor = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    executor.block_on(Box::pin(story(parts, kills)))
}

#[test]
#[ignore = "takes as long as it is told to"]
fn attack_25_nothing_is_lost_doubled_or_left_by_kills() -> anyhow::Result<()> {
    run(Parts::default(), 48)
}

#[test]
#[ignore = "takes as long as it is told to"]
fn attack_25_nothing_is_lost_doubled_or_left_by_kills_with_cni() -> anyhow::Result<()> {
    let (containerd, cni) = (false, true);
    run(Parts { containerd, cni }, 24)
}

#[test]
#[ignore = "takes as long as it is told to"]
fn attack_25_nothing_is_lost_doubled_or_left_by_kills_with_containerd() -> anyhow::Result<()> {
    let (containerd, cni) = (true, false);
    run(Parts { containerd, cni }, 24)
}

#[test]
#[ignore = "takes as long as it is told to"]
fn attack_25_nothing_is_lost_doubled_or_left_by_kills_with_containerd_and_cni() -> anyhow::Result<()> {
    let (containerd, cni) = (true, true);
    run(Parts { containerd, cni }, 24)
}
