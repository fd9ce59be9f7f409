//! Watches the pods of this node and dispatches events to their workers.
//!
//! * [`worker`]: the actor of one pod
//! * [`pending`], [`preempted`]: pods that wait for their admission, and pods that make room for them
//! * [`allocation`], [`resizes`]: allocated resources, and deferred resizes
//! * [`instances`]: running containers; [`orders`]: messages to the workers
//! * [`orphans`]: sandboxes and directories of an earlier agent
//! * [`users`]: user and group IDs for user namespaces
//! * [`started`], [`milestones`], [`crashes`]: records for metrics and for debugging

pub(crate) mod allocation;
pub(crate) mod crashes;
pub(crate) mod instances;
pub(crate) mod milestones;
pub(crate) mod orders;
pub(crate) mod orphans;
pub(crate) mod pending;
pub(crate) mod preempted;
mod resizes;
pub(crate) mod started;
pub(crate) mod users;
pub(crate) mod worker;

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use agent_plan::node::admission::preemption;
use agent_plan::pod::{pods, restart};
use common::task::JoinSet;
use futures::{FutureExt, StreamExt};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::runtime::watcher::{self, Event};
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::mpsc;
use tracing::{error, info, warn};

use crate::Error;
use crate::client::requests::watch;
use crate::confined::aside;
use crate::context::Context;
use crate::drivers;
use crate::pod::orders::Order;
use crate::pod::orphans::{Orphans, owner};
use crate::pod::worker::{End, Input, Mailbox, Worker, remove};
use crate::serve::TURN;

/// Maximum number of attempts to remove orphaned sandboxes of an earlier agent.
const REMOVALS: u32 = 8;

struct Dispatcher {
    context: Arc<Context>,
    workers: BTreeMap<String, Arc<Mailbox>>,
    tasks: JoinSet<Ended>,
    listed: BTreeSet<String>,
    /// Pods of an incomplete list.
    coming: Vec<Pod>,
    orphans: Orphans,
    cleaned: bool,
    /// Pods that still exist in the API, for example because of finalizers, and are removed from
    /// the node.
    finished: BTreeSet<String>,
    /// Pods that are deleted from the API and whose workers are not done.
    deleted: BTreeSet<String>,
    /// Number of panics of a pod's worker, by UID.
    broken: BTreeMap<String, u32>,
}

/// Result of a task of the dispatcher.
enum Ended {
    /// The pod with this UID is removed completely.
    Over(String),
    /// The worker of this pod, or one of its tasks, panicked.
    Broken(String),
    /// Sandboxes and directories of a pod whose worker panicked.
    Found(String, Orphans),
    /// All sandboxes of the runtime, listed after events were lost.
    Compared(Vec<runtime::Sandbox>),
    /// Task without a result.
    Other,
}

/// Runs the pods of this node without end.
pub(crate) async fn run(context: Arc<Context>, mut orders: mpsc::Receiver<Order>) -> Result<Infallible, Error> {
    let mut events = context.parts.runtime.events();
    let orphans = Orphans::read(&context).await?;
    let api: Api<Pod> = Api::all(context.parts.client.clone());
    let selector = format!("spec.nodeName={}", context.config.node_name);
    let configuration = watcher::Config::default().fields(&selector);
    let mut changes = pin!(watch(api, configuration));
    let mut dispatcher = Dispatcher {
        context: Arc::clone(&context),
        workers: BTreeMap::new(),
        tasks: JoinSet::new(),
        listed: BTreeSet::new(),
        coming: Vec::new(),
        orphans,
        cleaned: false,
        finished: BTreeSet::new(),
        deleted: BTreeSet::new(),
        broken: BTreeMap::new(),
    };
    let mut interrupted = false;
    loop {
        context.turn();
        tokio::select! {
            () = tokio::time::sleep(TURN) => {}
            change = changes.next() => match change {
                Some(Ok(change)) => {
                    // Each attempt to list begins with this one.
                    interrupted &= matches!(change, Event::Init);
                    dispatcher.change(change).await;
                }
                Some(Err(error)) if !std::mem::replace(&mut interrupted, true) => {
                    warn!(error = image::chain(&error), "the watch of this node's pods is interrupted");
                }
                Some(Err(_)) => {}
                None => return Err(Error::WatchEnded),
            },
            event = events.recv() => match event {
                Ok(event) => dispatcher.tell(event),
                Err(RecvError::Lagged(missed)) => {
                    warn!(missed, "news from the runtime were lost");
                    dispatcher.compare();
                }
                Err(RecvError::Closed) => return Err(Error::RuntimeEnded),
            },
            Some(order) = orders.recv() => dispatcher.order(order),
            Some(ended) = dispatcher.tasks.join_next() => match ended {
                Ok(ended) => dispatcher.ended(ended),
                Err(error) => error!(%error, "a task of the agent ended badly"),
            },
        }
    }
}

impl Dispatcher {
    async fn change(&mut self, change: Event<Pod>) {
        match change {
            Event::Init => {
                self.listed.clear();
                self.coming.clear();
            }
            Event::InitApply(pod) => {
                self.listed.insert(pods::uid(&pod).to_owned());
                self.coming.push(pods::kept(pod));
            }
            Event::InitDone => {
                let mut pods = std::mem::take(&mut self.coming);
                pods.sort_by_cached_key(pending::turn);
                for pod in pods {
                    self.apply(pod).await;
                }
                self.listed_all().await;
            }
            Event::Apply(pod) => self.apply(pod).await,
            Event::Delete(pod) => self.gone(pods::uid(&pod)),
        }
    }

    async fn apply(&mut self, pod: Pod) {
        let pod = Arc::new(pods::kept(pod));
        let uid = pods::uid(&pod).to_owned();
        if self.finished.contains(&uid) && pod.metadata.deletion_timestamp.is_some() {
            return;
        }
        // A pod without a deletion timestamp again was restored from a backup.
        self.finished.remove(&uid);
        self.context.remember(&pod);
        if let Some(worker) = self.workers.get(&uid) {
            worker.put(Input::Pod(pod));
            return;
        }
        pending::look_at_node(&self.context, &pod).await;
        let mailbox = Arc::new(Mailbox::default());
        self.workers.insert(uid.clone(), Arc::clone(&mailbox));
        let mut orphans = std::mem::take(&mut self.orphans);
        self.begin(uid, pod, mailbox, &mut orphans);
        self.orphans = orphans;
    }

    /// Starts the worker of a pod, which adopts its sandboxes.
    fn begin(&mut self, uid: String, pod: Arc<Pod>, mailbox: Arc<Mailbox>, orphans: &mut Orphans) {
        let mut worker = Worker::new(Arc::clone(&self.context), pod);
        for pod in worker.preempts() {
            self.preempt(pod);
        }
        let mut sandboxes = orphans.sandboxes.remove(&uid).unwrap_or_default();
        sandboxes.sort_by_key(|sandbox| sandbox.attempt);
        let newest = sandboxes.pop();
        let addresses = newest
            .as_ref()
            .and_then(|sandbox| orphans.addresses.remove(&sandbox.id));
        for lost in sandboxes.iter().filter(|sandbox| sandbox.lost) {
            worker.remember_started(lost);
        }
        worker.adopt(newest.as_ref(), addresses);
        let mut earlier: BTreeSet<String> = sandboxes.into_iter().map(|sandbox| sandbox.id).collect();
        earlier.extend(
            orphans
                .addresses
                .extract_if(.., |id, _| owner(id) == uid)
                .map(|(id, _)| id),
        );
        worker.succeed(earlier);
        self.tasks.spawn(async move {
            match AssertUnwindSafe(worker.run(mailbox)).catch_unwind().await {
                Ok(End::Over) => Ended::Over(uid),
                Ok(End::Broken) | Err(_) => Ended::Broken(uid),
            }
        });
    }

    /// Ends a pod to make room for another one.
    fn preempt(&self, pod: &Pod) {
        let uid = pods::uid(pod);
        if let Some(worker) = self.workers.get(uid) {
            self.context.preempted.begin(uid);
            self.context.discount(uid);
            worker.put(Input::End(preemption::termination(pod)));
        }
    }

    fn ended(&mut self, ended: Ended) {
        match ended {
            Ended::Over(uid) => {
                self.workers.remove(&uid);
                self.broken.remove(&uid);
                self.context.forget(&uid);
                if !self.deleted.remove(&uid) {
                    self.finished.insert(uid);
                }
            }
            Ended::Broken(uid) => self.revive(uid),
            Ended::Found(uid, mut orphans) => {
                let pod = self.context.known_pod(&uid);
                if let (Some(pod), Some(mailbox)) = (pod, self.workers.get(&uid).cloned()) {
                    self.begin(uid, pod, mailbox, &mut orphans);
                }
            }
            Ended::Compared(sandboxes) => self.compared(sandboxes),
            Ended::Other => {}
        }
    }

    /// Restarts the worker of a pod after a delay that grows with each panic. It adopts the
    /// sandboxes as a new agent would.
    fn revive(&mut self, uid: String) {
        let times = self.broken.entry(uid.clone()).or_default();
        let delay = restart::sandbox_delay_milliseconds(*times);
        *times = times.saturating_add(1);
        error!(
            pod = uid,
            times = *times,
            delay,
            "the worker of a pod broke; it gets a new one"
        );
        let context = Arc::clone(&self.context);
        let delay = Duration::from_millis(u64::try_from(delay).unwrap_or(0));
        self.tasks.spawn(async move {
            tokio::time::sleep(delay).await;
            match Orphans::read(&context).await {
                Ok(orphans) => Ended::Found(uid, orphans),
                Err(error) => {
                    error!(
                        pod = uid,
                        error = image::chain(&error),
                        "what there is of a pod could not be read"
                    );
                    Ended::Broken(uid)
                }
            }
        });
    }

    fn gone(&mut self, uid: &str) {
        self.finished.remove(uid);
        if let Some(worker) = self.workers.get(uid) {
            self.deleted.insert(uid.to_owned());
            self.context.discount(uid);
            worker.put(Input::Gone);
        }
    }

    /// The list is complete: pods that it does not have are gone, and orphaned sandboxes are
    /// removed.
    async fn listed_all(&mut self) {
        let missing: Vec<String> = self
            .workers
            .keys()
            .filter(|uid| !self.listed.contains(*uid))
            .cloned()
            .collect();
        for uid in missing {
            self.gone(&uid);
        }
        self.finished.retain(|uid| self.listed.contains(uid));
        if std::mem::replace(&mut self.cleaned, true) {
            return;
        }
        self.context.devices.retain(&self.listed);
        // Grouped by pod, so that one task removes a pod's sandboxes.
        let mut orphans: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for sandbox in std::mem::take(&mut self.orphans.sandboxes).into_values().flatten() {
            info!(
                sandbox = sandbox.id,
                pod = sandbox.pod.name,
                "the pod of this sandbox is gone"
            );
            orphans
                .entry(owner(&sandbox.id).to_owned())
                .or_default()
                .insert(sandbox.id);
        }
        for id in std::mem::take(&mut self.orphans.addresses).into_keys() {
            if !self.workers.contains_key(owner(&id)) {
                orphans.entry(owner(&id).to_owned()).or_default().insert(id);
            }
        }
        let context = Arc::clone(&self.context);
        let files = common::task::spawn_blocking(move || {
            let mut uids = context.volumes.pods()?;
            uids.extend(drivers::files::pods(&context.config.kubelet_directory));
            Ok::<_, volume::Error>(uids)
        });
        let files = files.await;
        if let Ok(Ok(files)) = files {
            for uid in files.into_iter().filter(|uid| !self.listed.contains(uid)) {
                let first = format!("{uid}-0");
                let ids = orphans.entry(uid).or_default();
                if ids.is_empty() {
                    ids.insert(first);
                }
            }
        } else {
            warn!("the pods' directories could not be read");
        }
        for ids in orphans.into_values() {
            self.discard(ids);
        }
        self.remove_old_logs();
    }

    /// Removes orphaned sandboxes of one pod, with the pod's files unless it is alive. Retries on
    /// failure.
    fn discard(&mut self, ids: BTreeSet<String>) {
        let context = Arc::clone(&self.context);
        let alive = |uid: &str| self.listed.contains(uid) || self.workers.contains_key(uid);
        let work: Vec<(String, String)> = ids
            .into_iter()
            .map(|id| {
                let uid = owner(&id).to_owned();
                (id, if alive(&uid) { String::from("none") } else { uid })
            })
            .collect();
        self.tasks.spawn(async move {
            for times in 0..REMOVALS {
                let mut all = Vec::new();
                for (id, files_of) in &work {
                    all.extend(remove(&context, id, files_of).await.err());
                }
                if all.is_empty() {
                    break;
                }
                let failures = all.join("; ");
                warn!(sandbox = ?work.first(), failures, times, "orphans could not be removed");
                let delay = restart::sandbox_delay_milliseconds(times);
                tokio::time::sleep(Duration::from_millis(u64::try_from(delay).unwrap_or(0))).await;
            }
            Ended::Other
        });
    }

    fn remove_old_logs(&mut self) {
        // Listed at once: during the removal, new pods come with new logs.
        let context = Arc::clone(&self.context);
        let old = context.config.logs.old(&self.listed);
        self.tasks.spawn(async move {
            if let Err(error) = aside(move || context.config.logs.remove_old(&old)).await {
                warn!(%error, "old logs could not be removed");
            }
            Ended::Other
        });
    }

    fn tell(&mut self, event: runtime::Event) {
        let sandbox = match &event {
            runtime::Event::ContainerExited { sandbox_id, .. } | runtime::Event::SandboxLost { sandbox_id } => {
                sandbox_id
            }
        };
        match self.workers.get(owner(sandbox)) {
            Some(worker) => worker.put(Input::Runtime(event)),
            None => self.orphans.note(&event),
        }
    }

    fn order(&self, order: Order) {
        match order {
            Order::End(uid, termination) => {
                if let Some(worker) = self.workers.get(&uid) {
                    worker.put(Input::End(termination));
                }
            }
            Order::Ask(uid, question) => {
                if let Some(worker) = self.workers.get(&uid) {
                    worker.put(Input::Question(question));
                }
            }
            Order::Shed => self.workers.values().for_each(|worker| worker.put(Input::Shed)),
        }
    }

    /// Lists all sandboxes of the runtime, after events were lost.
    fn compare(&mut self) {
        let context = Arc::clone(&self.context);
        self.tasks
            .spawn(async move { Ended::Compared(context.all_sandboxes().await) });
    }

    fn compared(&self, sandboxes: Vec<runtime::Sandbox>) {
        for sandbox in sandboxes {
            if let Some(worker) = self.workers.get(&sandbox.pod.uid) {
                worker.put(Input::Observed(sandbox));
            }
        }
    }
}
