//! Watches the pods of this node and gives each one its worker.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::net::IpAddr;
use std::pin::pin;
use std::sync::Arc;

use agent_plan::pods;
use futures::StreamExt;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::runtime::watcher::{self, Event};
use kube::runtime::{WatchStreamExt, watcher as watch};
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tracing::{error, info, warn};

use crate::Error;
use crate::context::Context;
use crate::worker::{Input, Worker, remove};

/// What an earlier agent left, by pod.
struct Leftovers {
    sandboxes: BTreeMap<String, Vec<runtime::Sandbox>>,
    addresses: BTreeMap<String, Vec<IpAddr>>,
}

struct Dispatcher {
    context: Arc<Context>,
    workers: BTreeMap<String, mpsc::UnboundedSender<Input>>,
    tasks: JoinSet<String>,
    listed: BTreeSet<String>,
    leftovers: Leftovers,
    cleaned: bool,
}

/// The uid of the pod that a sandbox was made for.
fn owner(sandbox: &str) -> &str {
    sandbox.rsplit_once('-').map_or(sandbox, |(uid, _)| uid)
}

/// Runs the pods of this node for ever.
pub(crate) async fn run(context: Arc<Context>) -> Result<Infallible, Error> {
    let mut events = context.parts.runtime.events();
    let leftovers = leftovers(&context).await?;
    let api: Api<Pod> = Api::all(context.parts.client.clone());
    let selector = format!("spec.nodeName={}", context.config.node_name);
    let configuration = watcher::Config::default().fields(&selector);
    let mut changes = pin!(watch(api, configuration).default_backoff());
    let mut dispatcher = Dispatcher {
        context: Arc::clone(&context),
        workers: BTreeMap::new(),
        tasks: JoinSet::new(),
        listed: BTreeSet::new(),
        leftovers,
        cleaned: false,
    };
    loop {
        tokio::select! {
            change = changes.next() => match change {
                Some(Ok(change)) => dispatcher.change(change).await,
                Some(Err(error)) => warn!(error = image::chain(&error), "the watch of this node's pods is interrupted"),
                None => return Err(Error::WatchEnded),
            },
            event = events.recv() => match event {
                Ok(event) => dispatcher.tell(event),
                Err(RecvError::Lagged(missed)) => {
                    warn!(missed, "news from the runtime were lost");
                    dispatcher.compare().await;
                }
                Err(RecvError::Closed) => return Err(Error::RuntimeEnded),
            },
            Some(ended) = dispatcher.tasks.join_next() => match ended {
                Ok(uid) => {
                    dispatcher.workers.remove(&uid);
                    context.forget(&uid);
                }
                Err(error) => error!(%error, "a pod's worker ended badly"),
            },
        }
    }
}

async fn leftovers(context: &Context) -> Result<Leftovers, Error> {
    let mut sandboxes: BTreeMap<String, Vec<runtime::Sandbox>> = BTreeMap::new();
    for sandbox in context.parts.runtime.sandboxes().await? {
        sandboxes.entry(sandbox.pod.uid.clone()).or_default().push(sandbox);
    }
    let attachments = context.parts.network.attachments().await?;
    let addresses = attachments.into_iter().map(|attachment| {
        let addresses = attachment
            .addresses
            .iter()
            .map(|cidr| IpAddr::V4(cidr.address))
            .collect();
        (attachment.sandbox_id, addresses)
    });
    Ok(Leftovers {
        sandboxes,
        addresses: addresses.collect(),
    })
}

impl Dispatcher {
    async fn change(&mut self, change: Event<Pod>) {
        match change {
            Event::Init => self.listed.clear(),
            Event::InitApply(pod) => {
                self.listed.insert(pods::uid(&pod).to_owned());
                self.apply(pod);
            }
            Event::InitDone => self.listed_all().await,
            Event::Apply(pod) => self.apply(pod),
            Event::Delete(pod) => self.gone(pods::uid(&pod)),
        }
    }

    fn apply(&mut self, pod: Pod) {
        let pod = Arc::new(pod);
        let uid = pods::uid(&pod).to_owned();
        self.context.remember(&pod);
        if let Some(worker) = self.workers.get(&uid) {
            send(worker, Input::Pod(pod));
            return;
        }
        let mut worker = Worker::new(Arc::clone(&self.context), Arc::clone(&pod));
        let mut sandboxes = self.leftovers.sandboxes.remove(&uid).unwrap_or_default();
        sandboxes.sort_by_key(|sandbox| sandbox.attempt);
        let newest = sandboxes.pop();
        for old in sandboxes {
            self.discard(old.id);
        }
        let addresses = newest
            .as_ref()
            .and_then(|sandbox| self.leftovers.addresses.remove(&sandbox.id));
        worker.adopt(newest.as_ref(), addresses);
        let (sender, receiver) = mpsc::unbounded_channel();
        self.workers.insert(uid.clone(), sender);
        self.tasks.spawn(async move {
            worker.run(receiver).await;
            uid
        });
    }

    fn gone(&mut self, uid: &str) {
        if let Some(worker) = self.workers.get(uid) {
            send(worker, Input::Gone);
        }
    }

    /// The list is complete: what it does not have is gone, and what nobody asked for is removed.
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
        if std::mem::replace(&mut self.cleaned, true) {
            return;
        }
        let orphans: Vec<runtime::Sandbox> = std::mem::take(&mut self.leftovers.sandboxes)
            .into_values()
            .flatten()
            .collect();
        for sandbox in orphans {
            info!(
                sandbox = sandbox.id,
                pod = sandbox.pod.name,
                "the pod of this sandbox is gone"
            );
            self.leftovers.addresses.remove(&sandbox.id);
            self.discard(sandbox.id);
        }
        for id in std::mem::take(&mut self.leftovers.addresses).into_keys() {
            if !self.workers.contains_key(owner(&id)) {
                self.discard(id);
            }
        }
        let context = Arc::clone(&self.context);
        let files = tokio::task::spawn_blocking(move || context.volumes.pods()).await;
        let Ok(Ok(files)) = files else {
            warn!("the pods' directories could not be read");
            return;
        };
        let unknown: Vec<String> = files.into_iter().filter(|uid| !self.listed.contains(uid)).collect();
        for uid in unknown {
            self.discard(format!("{uid}-0"));
        }
        self.remove_old_logs();
    }

    /// Removes a sandbox that belongs to nobody, with its pod's files unless the pod is alive.
    fn discard(&mut self, id: String) {
        let context = Arc::clone(&self.context);
        let uid = owner(&id).to_owned();
        let files_of = if self.listed.contains(&uid) {
            String::from("none")
        } else {
            uid
        };
        self.tasks.spawn(async move {
            if let Err(failures) = remove(&context, &id, &files_of).await {
                warn!(sandbox = id, failures, "leftovers could not be removed");
            }
            id
        });
    }

    fn remove_old_logs(&self) {
        let directory = self.context.config.state_directory.join("logs");
        for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            let uid = name.rsplit('_').next().unwrap_or_default();
            if !self.listed.contains(uid)
                && let Err(error) = std::fs::remove_dir_all(entry.path())
            {
                warn!(path = %entry.path().display(), %error, "old logs could not be removed");
            }
        }
    }

    fn tell(&self, event: runtime::Event) {
        let sandbox = match &event {
            runtime::Event::ContainerExited { sandbox_id, .. } | runtime::Event::SandboxLost { sandbox_id } => {
                sandbox_id
            }
        };
        if let Some(worker) = self.workers.get(owner(sandbox)) {
            send(worker, Input::Runtime(event));
        }
    }

    async fn compare(&self) {
        match self.context.parts.runtime.sandboxes().await {
            Ok(sandboxes) => {
                for sandbox in sandboxes {
                    if let Some(worker) = self.workers.get(&sandbox.pod.uid) {
                        send(worker, Input::Observed(sandbox));
                    }
                }
            }
            Err(error) => error!(
                error = image::chain(&error),
                "the runtime's sandboxes could not be read"
            ),
        }
    }
}

/// A worker that has ended needs no news.
fn send(worker: &mpsc::UnboundedSender<Input>, input: Input) {
    if let Err(error) = worker.send(input) {
        tracing::debug!(%error, "the worker has ended");
    }
}
