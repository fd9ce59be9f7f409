//! Kills at the points of a pod's life that have names: its agent, or its supervisor, stops there and waits.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, ensure};
use http::Method;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use tests::machine::eventually;
use tests::parts::Parts;

use super::customer::Customer;
use super::looks::{first_processes, has_written, holder};
use super::world::{PODS, Victim, World, status, uid};

pub(crate) const ALL: &[Victim] = &[Victim::Agent, Victim::Holder, Victim::Containerd, Victim::ControlPlane];

/// On a pod's way up, in no particular order. The program runs at those of the last row.
const UP: &[&str] = &[
    "connected",
    "namespace held",
    "attached",
    "directory made",
    "group made",
    "sandbox recorded",
    "sandboxed",
    "volumes made",
    "created",
];
const UP_EMBEDDED: &[&str] = &["container precreated"];
const UP_CONTAINERD: &[&str] = &["snapshot made", "container stored", "task made"];
const RUNNING: &[&str] = &["start told", "started"];
/// On its way down.
const DOWN: &[&str] = &[
    "signalled",
    "removing",
    "processes ended",
    "group removed",
    "sandbox removed",
    "unconnected",
    "released",
    "detached",
    "volumes removed",
    "finishing",
];
const DOWN_CONTAINERD: &[&str] = &["unstored"];

/// Stage of a pod's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Up,
    Running,
    Down,
}

fn points(parts: Parts) -> Vec<(Way, &'static str)> {
    let (up, down) = if parts.containerd {
        (UP_CONTAINERD, DOWN_CONTAINERD)
    } else {
        (UP_EMBEDDED, &[][..])
    };
    let named = |way: Way, lists: [&'static [&'static str]; 2]| {
        let all = lists.into_iter().flatten();
        all.map(|point| (way, *point)).collect::<Vec<_>>()
    };
    let all = [
        named(Way::Up, [UP, up]),
        named(Way::Running, [RUNNING, &[]]),
        named(Way::Down, [DOWN, down]),
    ];
    all.concat()
}

/// The file with the failpoint, and the file with the pid of the stopped process.
struct Sign {
    file: PathBuf,
}

impl Sign {
    fn reached(&self) -> PathBuf {
        self.file.with_extension(failpoint::REACHED)
    }

    fn set(&self, point: &str) -> anyhow::Result<()> {
        let new = self.file.with_extension("new");
        fs::write(&new, point)?;
        Ok(fs::rename(new, &self.file)?)
    }

    /// Waits until a process has stopped there.
    fn stopped(&self, point: &str) -> anyhow::Result<i32> {
        let pid = eventually(&format!("{point:?} is reached"), || {
            let read = fs::read_to_string(self.reached());
            read.ok()
                .and_then(|text| text.parse().ok())
                .ok_or_else(|| "nobody is there".to_owned())
        })?;
        fs::remove_file(self.reached())?;
        eventually("it stops", || {
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).map_err(|error| error.to_string())?;
            stat.contains(") T ").then_some(pid).ok_or(stat)
        })
    }
}

fn go_on(pid: i32) {
    // It may be the killed process.
    if Path::new("/proc").join(pid.to_string()).exists() {
        kill(Pid::from_raw(pid), Signal::SIGCONT).ok();
    }
}

async fn kill_at(world: &mut World, sign: &Sign, way: Way, point: &str, victim: Victim) -> anyhow::Result<()> {
    let name = format!("busy-{}", world.next);
    world.next += 1;
    let spec = world.busy(&name);
    let path = format!("{PODS}/{name}");
    if way != Way::Down {
        sign.set(point)?;
    }
    world.create(&name, spec).await?;
    // Now: when the agent has stopped, the pod may be gone.
    let (_, pod) = world.api.ask(&Method::GET, &path, &Value::Null).await?;
    let uid = uid(&pod).to_owned();
    ensure!(!uid.is_empty(), "{pod}");
    if way == Way::Down {
        world.settle().await?;
        sign.set(point)?;
        let path = format!("{path}?gracePeriodSeconds=1");
        let (status, answer) = world.api.ask(&Method::DELETE, &path, &Value::Null).await?;
        ensure!(status.is_success(), "{status} {answer}");
        world.wanted.remove(&name);
        world.leaving.insert(name.clone());
    }
    let stopped = sign.stopped(point)?;
    if way == Way::Running {
        // Whether the script runs yet is not what this test checks.
        eventually("its script runs", || {
            let first = first_processes(&uid);
            let written = first.iter().any(|pid| has_written(*pid));
            written.then_some(()).ok_or_else(|| format!("{first:?}"))
        })?;
    }
    match victim {
        Victim::Holder => {
            if let Some(pid) = holder(world, &uid) {
                kill(Pid::from_raw(pid), Signal::SIGKILL)?;
                world.held += 1;
            }
        }
        Victim::Agent | Victim::ControlPlane | Victim::Containerd => world.strike(victim).await?,
    }
    go_on(stopped);
    world.settle().await?;
    if way != Way::Down {
        // Its deletion must clean up all of it.
        let (status, answer) = world
            .api
            .ask(&Method::DELETE, &format!("{path}?gracePeriodSeconds=0"), &Value::Null)
            .await?;
        ensure!(status.is_success(), "{status} {answer}");
        world.wanted.remove(&name);
        world.leaving.insert(name);
        world.settle().await?;
    }
    Ok(())
}

/// Checks that the bystanders still run.
fn untouched(before: &BTreeMap<String, Value>, after: &BTreeMap<String, Value>) -> anyhow::Result<()> {
    for (name, pod) in before {
        let (one, other) = (status(pod), status(&after[name]));
        ensure!(one["containerID"] == other["containerID"], "{name}: {other}");
    }
    Ok(())
}

pub(crate) async fn story(parts: Parts, victims: &[Victim]) -> anyhow::Result<()> {
    let mut world = World::start(parts).await?;
    let sign = Sign {
        file: world.folder.path().join("failpoint"),
    };
    world.agent.set(failpoint::FILE, &sign.file.display().to_string());
    world.strike(Victim::Agent).await?;
    let customer = Customer::start(world.bystanders().await?);
    let before = world.settle().await?;
    let mut count = 0;
    for (way, point) in points(parts) {
        for victim in victims {
            if *victim == Victim::Containerd && !parts.containerd {
                continue;
            }
            let killed = kill_at(&mut world, &sign, way, point, *victim).await;
            let context = || format!("{victim:?} killed at {point:?} with {parts:?}");
            killed.with_context(context)?;
            untouched(&before, &world.settle().await?).with_context(context)?;
            count += 1;
        }
    }
    let served = customer.finish()?;
    tracing::info!(count, served, held = world.held, ?parts, "killed at points");
    ensure!(served > count, "{served} pages");
    ensure!(
        world.held > 0 || !victims.contains(&Victim::Holder),
        "no supervisor or shim was ever there to be killed"
    );
    world.finish().await
}
