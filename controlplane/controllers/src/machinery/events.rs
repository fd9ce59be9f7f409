//! Events: one recorder for all controllers, which counts repetitions instead of writing them
//! again, and writes with a delay: events must not compete for the processors with the work that
//! they report. At the end of the process all queued events are written at once.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Arc;
use std::time::Duration;

use controlplane_plan::node::node_health::EVICTED;
use controlplane_plan::step::{EVENTS, Note, PatchKind, Target};
use http::Method;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use tracing::debug;

use crate::Clock;
use crate::machinery::request;

/// Capacity of the queue of events; more are dropped, as events are best effort.
const WAITING: usize = 4096;
/// Delay between the recording of an event and its write.
const DELAY: Duration = Duration::from_millis(100);
/// Burst size and interval of writes: many pods that get an event at once also start at once.
/// (Upstream's scheduler sends 50 a second, too.)
const AT_ONCE: u32 = 25;
const EACH: Duration = Duration::from_millis(20);
/// Queue length above which the rate is no longer limited.
const CROWD: usize = 1024;
/// Names that are tried for one event: another component may have recorded one for the same object
/// at the same instant.
const NAMES: usize = 16;
/// Number of written events that the recorder remembers.
const REMEMBERED: usize = 2048;
/// Events of a component about an object and of a type: burst, and seconds until one more
/// (`EventSourceObjectSpamFilter` of `client-go/tools/record/events_cache.go`).
const BURST: u32 = 25;
const REFILL_SECONDS: i64 = 300;
/// Number of messages of a reason within some seconds at which they become one event
/// (`EventAggregator`, there).
const SIMILAR: usize = 10;
const SIMILAR_SECONDS: i64 = 600;
const COMBINED: &str = "(combined from similar events): ";

/// Component whose events have microseconds and an action.
pub(crate) const SCHEDULER: &str = "default-scheduler";
/// Component of events about evictions: upstream's taint eviction is a controller with the account of the node
/// controller (`cmd/kube-controller-manager/app/core.go`).
pub(crate) const TAINT_EVICTION: &str = "taint-eviction-controller";

struct Waiting {
    component: &'static str,
    note: Note,
    at: Timestamp,
    made: Instant,
}

/// Queues events for the writer.
#[derive(Clone)]
pub(crate) struct Recorder {
    sender: mpsc::Sender<Waiting>,
    clock: Clock,
}

/// Host name in the events, for clusters with several control planes.
pub(crate) type Machine = Arc<str>;

impl Recorder {
    /// Returns the recorder and its writer, on a `machine`; once the process is `ending`, the
    /// writer no longer waits.
    pub(crate) fn new(clock: Clock, machine: Machine, ending: CancellationToken) -> (Self, Writer) {
        let (sender, receiver) = mpsc::channel(WAITING);
        (
            Self { sender, clock },
            Writer {
                receiver,
                machine,
                ending,
                written: BTreeMap::new(),
                order: VecDeque::new(),
                number: 0,
                similar: BTreeMap::new(),
                budgets: BTreeMap::new(),
            },
        )
    }

    /// Records an event, if there is one; never waits.
    pub(crate) fn note(&self, component: &'static str, note: Option<Note>) {
        let Some(note) = note else { return };
        let component = if note.reason == EVICTED {
            TAINT_EVICTION
        } else {
            component
        };
        let waiting = Waiting {
            component,
            note,
            at: (self.clock)(),
            made: Instant::now(),
        };
        if self.sender.try_send(waiting).is_err() {
            debug!(component, "event dropped: too many wait");
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Identity {
    component: &'static str,
    about: String,
    reason: &'static str,
    message: String,
}

struct Written {
    target: Target,
    count: i32,
}

/// Writes recorded events.
pub(crate) struct Writer {
    receiver: mpsc::Receiver<Waiting>,
    machine: Machine,
    ending: CancellationToken,
    written: BTreeMap<Identity, Written>,
    order: VecDeque<Identity>,
    /// Number in the newest name: two events at one instant must have different names.
    number: i128,
    /// Hashes of the messages by reason, and the time of the last one.
    similar: BTreeMap<(Subject, &'static str), (BTreeSet<u64>, Timestamp)>,
    /// Number of events that may be written, and the time of the last refill.
    budgets: BTreeMap<Subject, (u32, Timestamp)>,
}

/// A component, the object that it tells of, and the type of the event.
type Subject = (&'static str, String, &'static str);

/// The client of each component.
pub(crate) type Components = Arc<dyn Fn(&str) -> kube::Client + Send + Sync>;

impl Writer {
    /// Writes until all recorders are dropped; events recorded before the end are still written.
    pub(crate) async fn run(mut self, clients: Components) {
        // Time at which all events so far would have been written at the limited rate.
        let mut due = Instant::now();
        while let Some(mut waiting) = self.next().await {
            let Some(identity) = self.admit(&mut waiting) else {
                continue;
            };
            self.wait(waiting.made + DELAY).await;
            if self.receiver.len() < CROWD
                && let Some(at) = due.checked_sub(EACH * (AT_ONCE - 1))
            {
                self.wait(at).await;
            }
            due = due.max(Instant::now()) + EACH;
            let client = clients(waiting.component);
            self.write(&client, waiting, identity).await;
        }
    }

    async fn next(&mut self) -> Option<Waiting> {
        tokio::select! {
            waiting = self.receiver.recv() => waiting,
            () = self.ending.cancelled() => {
                self.receiver.close();
                self.receiver.recv().await
            }
        }
    }

    async fn wait(&self, until: Instant) {
        tokio::select! {
            () = sleep_until(until) => {}
            () = self.ending.cancelled() => {}
        }
    }

    /// Returns the event as which it is counted, or `None` if there were too many. The scheduler's
    /// newer recorder has no such limits.
    fn admit(&mut self, waiting: &mut Waiting) -> Option<Identity> {
        let (component, note, at) = (waiting.component, &mut waiting.note, waiting.at);
        let about = note.about.uid.as_ref().or(note.about.name.as_ref());
        let mut identity = Identity {
            component,
            about: about.cloned().unwrap_or_default(),
            reason: note.reason,
            message: note.message.clone(),
        };
        if component == SCHEDULER {
            return Some(identity);
        }
        let subject = (component, identity.about.clone(), note.severity.text());
        if self.is_like_others(subject.clone(), note, at) {
            COMBINED.clone_into(&mut identity.message);
            note.message.insert_str(0, COMBINED);
        }
        if self.spend(subject, at) {
            return Some(identity);
        }
        // Counted nevertheless, as upstream does before it filters.
        if let Some(written) = self.written.get_mut(&identity) {
            written.count = written.count.saturating_add(1);
        }
        None
    }

    /// True if many messages of this reason came before.
    fn is_like_others(&mut self, subject: Subject, note: &Note, at: Timestamp) -> bool {
        if self.similar.len() >= REMEMBERED {
            self.similar.clear();
        }
        let mut hasher = DefaultHasher::new();
        note.message.hash(&mut hasher);
        let (messages, last) = self
            .similar
            .entry((subject, note.reason))
            .or_insert((BTreeSet::new(), at));
        if at.duration_since(*last).as_secs() > SIMILAR_SECONDS {
            messages.clear();
        }
        *last = at;
        messages.insert(hasher.finish());
        messages.len() >= SIMILAR && messages.pop_first().is_some()
    }

    fn spend(&mut self, subject: Subject, at: Timestamp) -> bool {
        if self.budgets.len() >= REMEMBERED {
            self.budgets.clear();
        }
        let (left, since) = self.budgets.entry(subject).or_insert((BURST, at));
        let refill = at.duration_since(*since).as_secs() / REFILL_SECONDS;
        if refill > 0 {
            *left = left.saturating_add(u32::try_from(refill).unwrap_or(BURST)).min(BURST);
            let spent = SignedDuration::from_secs(refill.saturating_mul(REFILL_SECONDS));
            *since = since.saturating_add(spent).unwrap_or(at);
        }
        let is_left = *left > 0;
        *left = left.saturating_sub(1);
        is_left
    }

    async fn write(&mut self, client: &kube::Client, waiting: Waiting, identity: Identity) {
        let Waiting {
            component, note, at, ..
        } = waiting;
        if let Some(written) = self.written.get_mut(&identity) {
            written.count = written.count.saturating_add(1);
            let body = repetition(component, written.count, &note.message, at);
            let result = request::patch(client, &written.target, None, PatchKind::Merge, &body).await;
            match result {
                Ok(_) => return,
                Err(error) if error.code() != 404 => {
                    debug!(component, %error, "event not counted");
                    return;
                }
                // The event has expired: a new one is created.
                Err(_) => {}
            }
        }
        let namespace = note.about.namespace.clone().unwrap_or_else(|| "default".to_owned());
        let path = request::path(&EVENTS, &namespace, "", "");
        let mut tries = 1;
        loop {
            self.number = at.as_nanosecond().max(self.number.saturating_add(1));
            let [object, uid] = [&note.about.name, &note.about.uid].map(|own| own.as_deref().unwrap_or_default());
            let name = api::names::of_event(object, uid, self.number);
            let metadata = json!({ "name": name, "namespace": namespace });
            let event = event(component, &self.machine, &note, &metadata, at);
            let bytes = event.to_string().into_bytes();
            match request::send::<request::Reply>(client, Method::POST, path.clone(), request::JSON, bytes).await {
                Ok(reply) => {
                    let target = Target {
                        resource: EVENTS,
                        namespace,
                        name,
                        uid: reply.metadata.uid,
                    };
                    return self.remember(identity, Written { target, count: 1 });
                }
                Err(error) if error.code() == 409 && tries < NAMES => tries += 1,
                Err(error) => return debug!(component, %error, "event not written"),
            }
        }
    }

    fn remember(&mut self, identity: Identity, written: Written) {
        if self.written.insert(identity.clone(), written).is_none() {
            self.order.push_back(identity);
        }
        while self.order.len() > REMEMBERED {
            if let Some(oldest) = self.order.pop_front() {
                self.written.remove(&oldest);
            }
        }
    }
}

/// A time with microseconds, as in `eventTime`.
fn micro(at: Timestamp) -> String {
    at.strftime("%Y-%m-%dT%H:%M:%S%.6fZ").to_string()
}

fn whole(at: Timestamp) -> String {
    at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

fn repetition(component: &str, count: i32, message: &str, at: Timestamp) -> Value {
    if component == SCHEDULER {
        json!({ "series": { "count": count, "lastObservedTime": micro(at) } })
    } else {
        json!({ "count": count, "lastTimestamp": whole(at), "message": message })
    }
}

/// Truncates a message to the limit of `events.k8s.io`.
fn shortened(message: &str) -> String {
    const LONGEST: usize = 1024;
    const END: &str = " ...";
    if message.len() <= LONGEST {
        return message.to_owned();
    }
    let start = message.get(..message.floor_char_boundary(LONGEST - END.len()));
    format!("{}{END}", start.unwrap_or_default())
}

/// Scheduler events have the fields of `events.k8s.io`, all others the older ones, as upstream.
fn event(component: &str, machine: &str, note: &Note, metadata: &Value, at: Timestamp) -> Value {
    let mut event = json!({
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": metadata,
        "involvedObject": note.about,
        "type": note.severity.text(),
        "reason": note.reason,
        "message": note.message,
        "reportingComponent": component,
    });
    let rest = if component == SCHEDULER {
        let action = match note.reason {
            "Scheduled" => "Binding",
            "Preempted" => "Preempting",
            _ => "Scheduling",
        };
        json!({
            "message": shortened(&note.message), "eventTime": micro(at), "action": action,
            "reportingInstance": format!("{component}-{machine}"),
            "source": {}, "firstTimestamp": null, "lastTimestamp": null,
        })
    } else {
        json!({
            "eventTime": null, "reportingInstance": "", "source": { "component": component },
            "firstTimestamp": whole(at), "lastTimestamp": whole(at), "count": 1,
        })
    };
    if let (Some(event), Value::Object(rest)) = (event.as_object_mut(), rest) {
        event.extend(rest);
    }
    event
}

#[cfg(test)]
mod tests;
