//! Events: what happened to pods and to the node, for people. Deduplicated, bounded in rate, never waited for.

use std::borrow::Cow;
use std::collections::BTreeMap;

use agent_plan::{Timestamp, pods};
use k8s_openapi::api::core::v1::{Event, EventSource, Node, ObjectReference, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube::api::{Api, Patch, PatchParams, PostParams};
use tokio::sync::mpsc;
use tracing::debug;

use crate::context::Clock;

const QUEUE: usize = 1024;
/// Bytes of a message: events take no more.
const LONGEST: usize = 1024;
const REMEMBERED: usize = 2048;
const BURST: u32 = 25;
const REFILL_SECONDS: i64 = 300;

/// Whether something went wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It did not.
    Normal,
    /// It did.
    Warning,
}

struct Happening {
    about: ObjectReference,
    kind: Kind,
    reason: Cow<'static, str>,
    message: String,
    at: Timestamp,
}

/// Takes events without ever blocking; drops them when the API is too slow.
#[derive(Clone)]
pub struct Recorder {
    queue: mpsc::Sender<Happening>,
    clock: Clock,
}

/// Sends what a [`Recorder`] takes; part of the agent's tasks.
pub struct Sender {
    queue: mpsc::Receiver<Happening>,
    client: kube::Client,
    host: String,
    known: BTreeMap<String, Known>,
    budgets: BTreeMap<String, (u32, Timestamp)>,
    /// The last event's number: names are its times in nanoseconds, made unique.
    last: i128,
}

struct Known {
    name: String,
    namespace: String,
    count: i32,
    last: Timestamp,
}

/// A recorder and its other end.
pub fn channel(client: kube::Client, host: &str, clock: Clock) -> (Recorder, Sender) {
    let (sender, receiver) = mpsc::channel(QUEUE);
    let other = Sender {
        queue: receiver,
        client,
        host: host.to_owned(),
        known: BTreeMap::new(),
        budgets: BTreeMap::new(),
        last: 0,
    };
    (Recorder { queue: sender, clock }, other)
}

impl Recorder {
    /// Something happened to a pod, or to a container of it.
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
            api_version: Some("v1".to_owned()),
            kind: Some("Pod".to_owned()),
            name: pod.metadata.name.clone(),
            namespace: pod.metadata.namespace.clone(),
            uid: pod.metadata.uid.clone(),
            resource_version: pod.metadata.resource_version.clone(),
            field_path: field,
        };
        self.send(about, kind, reason.into(), message);
    }

    /// Something happened to the node. Its uid in events is its name, as everywhere.
    pub fn node(&self, node: &Node, kind: Kind, reason: &'static str, message: String) {
        let about = ObjectReference {
            kind: Some("Node".to_owned()),
            name: node.metadata.name.clone(),
            uid: node.metadata.name.clone(),
            ..ObjectReference::default()
        };
        self.send(about, kind, reason.into(), message);
    }

    fn send(&self, about: ObjectReference, kind: Kind, reason: Cow<'static, str>, mut message: String) {
        // Before it is queued and remembered: what it tells may be somebody else's text of any length.
        message.truncate(message.floor_char_boundary(LONGEST));
        let happening = Happening {
            about,
            kind,
            reason,
            message,
            at: (self.clock)(),
        };
        if let Err(error) = self.queue.try_send(happening) {
            debug!(%error, "an event is dropped");
        }
    }
}

impl Sender {
    /// Sends events until the last recorder is gone.
    pub async fn run(mut self) {
        while let Some(happening) = self.queue.recv().await {
            if let Err(error) = self.publish(happening).await {
                debug!(error = %error, "an event could not be stored");
            }
        }
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
        self.last = happening.at.as_nanosecond().max(self.last.saturating_add(1));
        let event = self.event(&happening);
        let namespace = event.metadata.namespace.clone().unwrap_or_default();
        let api: Api<Event> = Api::namespaced(self.client.clone(), &namespace);
        let name = event.metadata.name.clone().unwrap_or_default();
        api.create(&PostParams::default(), &event).await?;
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

    fn remember(&mut self, key: String, known: Known) {
        if self.known.len() >= REMEMBERED {
            let middle = self
                .known
                .values()
                .map(|known| known.last)
                .max()
                .unwrap_or(Timestamp::MIN);
            self.known
                .retain(|_, known| agent_plan::after(known.last, 600) > middle);
        }
        if self.known.len() < REMEMBERED {
            self.known.insert(key, known);
        }
    }

    fn event(&self, happening: &Happening) -> Event {
        let about = &happening.about;
        let namespace = about.namespace.clone().unwrap_or_else(|| "default".to_owned());
        let name = about.name.as_deref().unwrap_or_default();
        let kind = match happening.kind {
            Kind::Normal => "Normal",
            Kind::Warning => "Warning",
        };
        Event {
            metadata: ObjectMeta {
                name: Some(format!("{name}.{:x}", self.last)),
                namespace: Some(namespace),
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
