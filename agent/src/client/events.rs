//! Events of pods and of the node: deduplicated, rate-limited, asynchronous, and sent when nothing
//! more urgent is in progress: a starting pod would have to share the processors with its events.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::time::Duration;

use agent_plan::Timestamp;
use agent_plan::pod::pods;
use k8s_openapi::api::core::v1::{Event, EventSource, Node, ObjectReference, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube::api::{Api, Patch, PatchParams, PostParams};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, timeout, timeout_at};
use tokio_util::sync::CancellationToken;
use tracing::debug;

use crate::clock::Clock;

/// Queue length: more than the events of a large burst of pods while they are delayed.
const QUEUE: usize = 4096;
/// Maximum length of a message in bytes, as the API allows.
const LONGEST: usize = 1024;
const REMEMBERED: usize = 2048;
/// Names that are tried for one event: another component may have created an event of the same
/// object at the same instant.
const NAMES: usize = 16;
const BURST: u32 = 25;
const REFILL_SECONDS: i64 = 300;
/// Longest delay of an event for starting pods.
const MAX_DELAY: Duration = Duration::from_secs(1);
/// A larger number of starting pods delays events for longer: the time of a hundred pods on two
/// processors.
const CROWD: usize = 8;
const MAX_DELAY_IN_CROWDS: Duration = Duration::from_secs(3);

/// Type of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Expected operation.
    Normal,
    /// Failure.
    Warning,
}

struct Happening {
    about: ObjectReference,
    kind: Kind,
    reason: Cow<'static, str>,
    message: String,
    annotations: Option<BTreeMap<String, String>>,
    at: Timestamp,
    given: Instant,
}

/// Queues events without blocking; drops them if the API server is too slow.
#[derive(Clone)]
pub struct Recorder {
    queue: mpsc::Sender<Happening>,
    clock: Clock,
    /// Number of pods in an operation that is waited for.
    urgent: watch::Sender<usize>,
    /// Number of events that are not sent yet.
    untold: watch::Sender<usize>,
    /// The agent is ending: events are sent without delay.
    ending: CancellationToken,
}

/// Delays events while it is held.
pub(crate) struct Urgent(watch::Sender<usize>);

impl Drop for Urgent {
    fn drop(&mut self) {
        self.0.send_modify(|urgent| *urgent = urgent.saturating_sub(1));
    }
}

/// Sends events of a [`Recorder`]; one of the agent's tasks.
pub struct Sender {
    queue: mpsc::Receiver<Happening>,
    urgent: watch::Receiver<usize>,
    untold: watch::Sender<usize>,
    ending: CancellationToken,
    client: kube::Client,
    host: String,
    known: BTreeMap<String, Known>,
    budgets: BTreeMap<String, (u32, Timestamp)>,
    /// Number of the last event: names are timestamps in nanoseconds, made unique.
    last: i128,
}

struct Known {
    name: String,
    namespace: String,
    count: i32,
    last: Timestamp,
}

/// Returns a recorder and its sender.
pub fn channel(client: kube::Client, host: &str, clock: Clock) -> (Recorder, Sender) {
    let (sender, receiver) = mpsc::channel(QUEUE);
    let (urgent, untold) = (watch::Sender::new(0), watch::Sender::new(0));
    let ending = CancellationToken::new();
    let other = Sender {
        queue: receiver,
        urgent: urgent.subscribe(),
        untold: untold.clone(),
        ending: ending.clone(),
        client,
        host: host.to_owned(),
        known: BTreeMap::new(),
        budgets: BTreeMap::new(),
        last: 0,
    };
    let recorder = Recorder {
        queue: sender,
        clock,
        urgent,
        untold,
        ending,
    };
    (recorder, other)
}

impl Recorder {
    /// Marks a pod's operation as urgent while the returned guard is held.
    pub(crate) fn urgent(&self) -> Urgent {
        self.urgent.send_modify(|urgent| *urgent = urgent.saturating_add(1));
        Urgent(self.urgent.clone())
    }

    /// True if any pod's operation is urgent.
    pub(crate) fn is_urgent(&self) -> bool {
        *self.urgent.borrow() > 0
    }

    /// True if the operations of many pods are urgent.
    pub(crate) fn is_crowded(&self) -> bool {
        *self.urgent.borrow() > CROWD
    }

    /// Sends queued events without delay from now on, and waits for them for at most `limit`.
    pub(crate) async fn settle(&self, limit: Duration) {
        self.ending.cancel();
        let mut untold = self.untold.subscribe();
        drop(timeout(limit, untold.wait_for(|untold| *untold == 0)).await);
    }

    /// Records an event of a pod or of its container.
    pub fn pod(
        &self,
        pod: &Pod,
        container: Option<&str>,
        kind: Kind,
        reason: impl Into<Cow<'static, str>>,
        message: String,
    ) {
        let field = container.map(|name| {
            let list = if pods::is_init(pod, name) {
                "initContainers"
            } else if pods::is_ephemeral(pod, name) {
                "ephemeralContainers"
            } else {
                "containers"
            };
            format!("spec.{list}{{{name}}}")
        });
        let about = ObjectReference {
            field_path: field,
            ..reference(pod)
        };
        self.send(about, kind, reason.into(), message, None);
    }

    /// Records an event of a pod, with annotations if there are any.
    pub(crate) fn annotated(
        &self,
        pod: &Pod,
        kind: Kind,
        reason: &'static str,
        message: String,
        annotations: BTreeMap<String, String>,
    ) {
        let annotations = Some(annotations).filter(|all| !all.is_empty());
        self.send(reference(pod), kind, reason.into(), message, annotations);
    }

    /// Records an event of the node. The node's UID in events is its name, as in a kubelet.
    pub fn node(&self, node: &Node, kind: Kind, reason: &'static str, message: String) {
        let about = ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Node".to_owned()),
            name: node.metadata.name.clone(),
            uid: node.metadata.name.clone(),
            ..ObjectReference::default()
        };
        self.send(about, kind, reason.into(), message, None);
    }

    fn send(
        &self,
        about: ObjectReference,
        kind: Kind,
        reason: Cow<'static, str>,
        mut message: String,
        annotations: Option<BTreeMap<String, String>>,
    ) {
        // Truncated before it is queued and stored: the message may contain untrusted text of any
        // length.
        message.truncate(message.floor_char_boundary(LONGEST));
        let happening = Happening {
            about,
            kind,
            reason,
            message,
            annotations,
            at: (self.clock)(),
            given: Instant::now(),
        };
        self.untold.send_modify(|untold| *untold = untold.saturating_add(1));
        if let Err(error) = self.queue.try_send(happening) {
            told(&self.untold);
            debug!(%error, "an event is dropped");
        }
    }
}

impl Sender {
    /// Sends events until the last recorder is dropped.
    pub async fn run(mut self) {
        while let Some(happening) = self.next().await {
            if let Err(error) = self.publish(happening).await {
                debug!(error = %error, "an event could not be stored");
            }
            told(&self.untold);
        }
    }

    /// Returns the next event to send when it is due.
    async fn next(&mut self) -> Option<Happening> {
        let happening = self.queue.recv().await?;
        // Events were delayed for long enough, or nothing is urgent.
        let calm = async {
            let nobody = self.urgent.wait_for(|urgent| *urgent == 0);
            if timeout_at(happening.given + MAX_DELAY, nobody).await.is_err() {
                let few = self.urgent.wait_for(|urgent| *urgent <= CROWD);
                drop(timeout_at(happening.given + MAX_DELAY_IN_CROWDS, few).await);
            }
        };
        self.ending.run_until_cancelled(calm).await;
        Some(happening)
    }

    async fn publish(&mut self, happening: Happening) -> Result<(), kube::Error> {
        let object = happening.about.uid.clone().unwrap_or_default();
        let field = happening.about.field_path.as_deref().unwrap_or_default();
        let key = format!("{object}/{field}/{}/{}", happening.reason, happening.message);
        if !self.spend(&object, happening.at) {
            return Ok(());
        }
        if let Some(known) = self.known.get_mut(&key) {
            known.count = known.count.saturating_add(1);
            known.last = happening.at;
            let api: Api<Event> = Api::namespaced(self.client.clone(), &known.namespace);
            let patch = serde_json::json!({"count": known.count, "lastTimestamp": Time(happening.at)});
            match api
                .patch(&known.name, &PatchParams::default(), &Patch::Strategic(patch))
                .await
            {
                Ok(_) => return Ok(()),
                Err(kube::Error::Api(status)) if status.code == 404 => {}
                Err(error) => return Err(error),
            }
        }
        let (name, namespace) = self.create(&happening).await?;
        self.remember(
            key,
            Known {
                name,
                namespace,
                count: 1,
                last: happening.at,
            },
        );
        Ok(())
    }

    /// Creates an event; returns its name and namespace.
    async fn create(&mut self, happening: &Happening) -> Result<(String, String), kube::Error> {
        let mut tries = 1;
        loop {
            self.last = happening.at.as_nanosecond().max(self.last.saturating_add(1));
            let event = self.event(happening);
            let namespace = event.metadata.namespace.clone().unwrap_or_default();
            let api: Api<Event> = Api::namespaced(self.client.clone(), &namespace);
            match api.create(&PostParams::default(), &event).await {
                Ok(_) => return Ok((event.metadata.name.unwrap_or_default(), namespace)),
                Err(kube::Error::Api(status)) if status.code == 409 && tries < NAMES => tries += 1,
                Err(error) => return Err(error),
            }
        }
    }

    /// 25 events per object at once, then one every five minutes.
    fn spend(&mut self, object: &str, at: Timestamp) -> bool {
        if self.budgets.len() >= REMEMBERED {
            self.budgets.clear();
        }
        let (left, since) = self.budgets.entry(object.to_owned()).or_insert((BURST, at));
        let refill = at.duration_since(*since).as_secs() / REFILL_SECONDS;
        if refill > 0 {
            *left = left.saturating_add(u32::try_from(refill).unwrap_or(BURST)).min(BURST);
            *since = at;
        }
        let allowed = *left > 0;
        *left = left.saturating_sub(1);
        allowed
    }

    /// Makes room by forgetting the half that has not been told for longest.
    fn remember(&mut self, key: String, known: Known) {
        if self.known.len() >= REMEMBERED {
            let mut times: Vec<_> = self.known.values().map(|known| known.last).collect();
            let (_, middle, _) = times.select_nth_unstable(REMEMBERED / 2);
            let middle = *middle;
            self.known.retain(|_, known| known.last > middle);
        }
        self.known.insert(key, known);
    }

    fn event(&self, happening: &Happening) -> Event {
        let about = &happening.about;
        let namespace = about.namespace.clone().unwrap_or_else(|| "default".to_owned());
        let [object, uid] = [&about.name, &about.uid].map(|own| own.as_deref().unwrap_or_default());
        let kind = match happening.kind {
            Kind::Normal => "Normal",
            Kind::Warning => "Warning",
        };
        Event {
            metadata: ObjectMeta {
                name: Some(api::names::of_event(object, uid, self.last)),
                namespace: Some(namespace),
                annotations: happening.annotations.clone(),
                ..ObjectMeta::default()
            },
            involved_object: about.clone(),
            type_: Some(kind.to_owned()),
            reason: Some(happening.reason.clone().into_owned()),
            message: Some(happening.message.clone()),
            source: Some(EventSource {
                component: Some("kubelet".to_owned()),
                host: Some(self.host.clone()),
            }),
            reporting_component: Some("kubelet".to_owned()),
            reporting_instance: Some(self.host.clone()),
            first_timestamp: Some(Time(happening.at)),
            last_timestamp: Some(Time(happening.at)),
            count: Some(1),
            ..Event::default()
        }
    }
}

fn reference(pod: &Pod) -> ObjectReference {
    ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("Pod".to_owned()),
        name: pod.metadata.name.clone(),
        namespace: pod.metadata.namespace.clone(),
        uid: pod.metadata.uid.clone(),
        resource_version: pod.metadata.resource_version.clone(),
        field_path: None,
    }
}

fn told(untold: &watch::Sender<usize>) {
    untold.send_modify(|untold| *untold = untold.saturating_sub(1));
}

#[cfg(test)]
mod tests;
