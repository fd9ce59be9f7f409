//! Eviction manager: monitors memory, disks and processes, reclaims unused resources, and evicts
//! pods that exceed their limits of disk usage, or one pod at a time under pressure.

mod evicted;
mod images;
mod signals;
pub(crate) mod storage;

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use agent_plan::node::eviction::{self, Candidate, Contents, Layout, Pressure, Starved, Used, Watch};
use agent_plan::pod::pods;
use agent_plan::pod::termination::Termination;
use k8s_openapi::api::core::v1::Pod;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep};
use tracing::{info, warn};

use crate::Error;
use crate::client::events::Kind;
use crate::context::Context;
use crate::node::measure::PodLook;
use crate::pod::orders::Order;

pub(crate) use images::prune;

/// Interval of the checks.
const INTERVAL: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_secs(1);
/// Time until removed data is freed on a disk.
const SETTLING: Duration = Duration::from_secs(20);

struct Keeper {
    context: Arc<Context>,
    orders: mpsc::Sender<Order>,
    watch: Watch,
    storage: storage::Storage,
    images: images::Collector,
    evicted: evicted::Evicted,
}

/// Runs the eviction manager without end.
pub(crate) async fn run(context: Arc<Context>, orders: mpsc::Sender<Order>) -> Result<Infallible, Error> {
    let upkeep = &context.config.upkeep;
    let mut thresholds = upkeep.thresholds.clone();
    if upkeep.enforce {
        thresholds = thresholds.enforced();
    }
    let mut keeper = Keeper {
        watch: Watch::new(thresholds),
        storage: storage::Storage::default(),
        images: images::Collector::new(upkeep.images),
        evicted: evicted::Evicted::default(),
        context,
        orders,
    };
    loop {
        let ended = keeper.round().await?;
        if ended.is_empty() {
            keeper.rest().await;
        } else {
            keeper.wait_for(&ended).await;
            keeper.settle().await;
        }
    }
}

impl Keeper {
    /// Waits for the next check; signals that change fast end the wait earlier.
    async fn rest(&self) {
        let next = Instant::now() + INTERVAL;
        while Instant::now() < next {
            sleep(POLL).await;
            if self.watch.is_news(&signals::observe(&self.context).await) {
                return;
            }
        }
    }

    /// Checks once; returns the pods that are evicted.
    async fn round(&mut self) -> Result<Vec<String>, Error> {
        let observations = signals::observe(&self.context).await;
        let (pressures, starved) = self.watch.observe(&observations, self.context.now());
        self.context.pressures.send_if_modified(|shown| {
            let news = *shown != pressures;
            *shown = pressures;
            news
        });
        if let Some(starved) = starved
            .as_ref()
            .filter(|starved| starved.signal.pressure() == Pressure::Memory)
        {
            // Does not wait for disks.
            let ended = self.reclaim(starved).await?;
            if !ended.is_empty() {
                return Ok(ended);
            }
        }
        let mut ended = Vec::new();
        for (pod, signal, message) in self.storage.exceeding(&self.context).await {
            let termination = eviction::termination(message, eviction::AT_ONCE, false);
            if self.evict(&pod, signal, termination).await? {
                ended.push(pods::uid(&pod).to_owned());
            }
        }
        if !ended.is_empty() {
            return Ok(ended);
        }
        self.images.turn(&self.context).await;
        match starved {
            Some(starved) if starved.signal.pressure() != Pressure::Memory => self.reclaim(&starved).await,
            Some(_) | None => Ok(ended),
        }
    }

    /// Reclaims unused resources, and evicts one pod if that is not enough.
    async fn reclaim(&mut self, starved: &Starved) -> Result<Vec<String>, Error> {
        let resource = starved.signal.resource();
        let message = format!("Attempting to reclaim {resource}");
        warn!(signal = starved.signal.name(), available = %starved.available, "{message}");
        self.context.node_event(Kind::Warning, "EvictionThresholdMet", message);
        let layout = match starved.signal.pressure() {
            Pressure::Disk => signals::layout(&self.context).await,
            Pressure::Memory | Pressure::Pid => Layout::default(),
        };
        if self.give_back(layout.contents(starved.signal)).await? {
            return Ok(Vec::new());
        }
        let Some(look) = self.context.look().await else {
            return Ok(Vec::new());
        };
        let running: Vec<PodLook> = look.pods.into_iter().filter(|pod| !pod.containers.is_empty()).collect();
        let mut candidates = Vec::new();
        for pod in &running {
            let disk = match starved.signal.pressure() {
                Pressure::Disk => storage::measure(&self.context, &pod.pod).await,
                Pressure::Memory | Pressure::Pid => None,
            };
            candidates.push(candidate(pod, disk));
        }
        eviction::rank(&mut candidates, starved.signal, layout);
        let longest = self.watch.thresholds().longest_grace;
        let grace = |pod: &Pod| {
            if starved.hard {
                return eviction::AT_ONCE;
            }
            longest.min(pods::grace(pod)).max(eviction::AT_ONCE)
        };
        for Candidate { pod, used } in candidates {
            let (message, annotations) = eviction::message(starved, pod, &used);
            let termination = Termination {
                annotations,
                ..eviction::termination(message, grace(pod), true)
            };
            if self.evict(pod, starved.signal.name(), termination).await? {
                return Ok(vec![pods::uid(pod).to_owned()]);
            }
        }
        warn!(signal = starved.signal.name(), "no pod can be ended");
        Ok(Vec::new())
    }

    /// Removes unused data from a file system; returns whether that is enough.
    async fn give_back(&mut self, contents: Contents) -> Result<bool, Error> {
        if !contents.can_shrink() {
            return Ok(false);
        }
        if contents.layers {
            self.order(Order::Shed).await?;
        }
        if contents.images {
            self.images.remove_all_unused(&self.context).await;
        }
        let enough = self.watch.is_satisfied(&signals::observe(&self.context).await);
        if enough || !contents.layers {
            return Ok(enough);
        }
        // Workers of the pods remove containers meanwhile.
        sleep(POLL).await;
        Ok(self.watch.is_satisfied(&signals::observe(&self.context).await))
    }

    /// Evicts a pod, unless it is critical or already ending. Returns whether it ends.
    async fn evict(&mut self, pod: &Pod, signal: &'static str, termination: Termination) -> Result<bool, Error> {
        let message = &termination.message;
        if eviction::is_critical(pod) {
            warn!(pod = pods::name(pod), message, "a critical pod is not evicted");
            return Ok(false);
        }
        if !self.evicted.add(pods::uid(pod), termination.grace, Instant::now()) {
            return Ok(false);
        }
        info!(
            pod = pods::name(pod),
            namespace = pods::namespace(pod),
            message,
            "evicted"
        );
        self.context.started.evicted(signal);
        self.order(Order::End(pods::uid(pod).to_owned(), termination)).await?;
        Ok(true)
    }

    async fn order(&self, order: Order) -> Result<(), Error> {
        self.orders.send(order).await.map_err(|_gone| Error::WatchEnded)
    }

    /// Waits until some pods are removed: only then is it known whether others have to be evicted.
    async fn wait_for(&self, uids: &[String]) {
        let deadline = uids.iter().filter_map(|uid| self.evicted.deadline(uid)).max();
        let deadline = deadline.unwrap_or_else(Instant::now);
        while Instant::now() < deadline {
            sleep(POLL).await;
            if uids.iter().any(|uid| self.context.pod_directory(uid).exists()) {
                continue;
            }
            // The writable layers of containers are removed last.
            let sandboxes = self.context.parts.runtime.sandboxes().await.unwrap_or_default();
            if !sandboxes.iter().any(|sandbox| uids.contains(&sandbox.pod.uid)) {
                return;
            }
        }
        warn!(?uids, "evicted pods are not gone yet");
    }

    /// Waits until removed data is freed: containerd does so later. Evicting another pod would not
    /// help.
    async fn settle(&self) {
        let deadline = Instant::now() + SETTLING;
        while Instant::now() < deadline {
            let mut observations = signals::observe(&self.context).await;
            observations.retain(|signal, _| signal.pressure() == Pressure::Disk);
            if self.watch.is_satisfied(&observations) {
                return;
            }
            sleep(POLL).await;
        }
    }
}

fn candidate(look: &PodLook, disk: Option<agent_plan::node::storage::DiskUse>) -> Candidate<'_> {
    let bytes = |amount: u64| i64::try_from(amount).unwrap_or(i64::MAX);
    let containers: BTreeMap<String, i64> = look
        .containers
        .iter()
        .filter_map(|container| Some((container.name.clone(), bytes(container.usage.working_set?))))
        .collect();
    Candidate {
        pod: &look.pod,
        used: Used {
            memory: look.usage.working_set.map(bytes),
            containers: containers.into_iter().collect(),
            disk,
            processes: look.usage.processes.map(bytes),
        },
    }
}
