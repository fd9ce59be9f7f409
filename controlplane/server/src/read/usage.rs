//! GET of the resource usage of nodes and pods (`metrics.k8s.io`). Nothing of it is stored: the
//! agents measure on request.
//!
//! Objects to report are in the store; a node's agent is trusted only about the pods that are bound
//! to its node. Pods that do not run, and those of nodes that do not answer in time, are left out.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use api::kinds::metrics::{ContainerMetrics, Measures, NodeMetrics, PATH, PodMetrics};
use api::{Registration, Row};
use axum::body::Body;
use bytes::Bytes;
use futures::{FutureExt, StreamExt};
use http::{Request, StatusCode};
use http_body_util::{BodyExt, Limited};
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use serde::Deserialize;
use store::{Entry, Key};

use super::list::page;
use crate::node::agents::{Answer, Within};
use crate::request::context::Context;
use crate::request::failure::{Failure, GroupResource, Target};
use crate::transport::negotiation::negotiate;
use crate::transport::respond::{Response, encode};
use crate::transport::shape;

/// Timeout for the answers of all agents together. An agent without a recent measurement takes a
/// second.
const TIMEOUT: Duration = Duration::from_secs(8);
/// Timeout for a connection to one agent: the other answers wait for it.
const CONNECT: Duration = Duration::from_secs(1);
/// Agents that are asked at once.
const AT_ONCE: usize = 32;
/// Bytes of one agent's answer.
const LARGEST: usize = 4 * 1024 * 1024;

/// Fields of a stored node or pod that are needed here.
#[derive(Deserialize)]
struct Known {
    metadata: ObjectMeta,
    #[serde(default)]
    spec: Placed,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Placed {
    node_name: Option<String>,
}

impl Known {
    fn read(entry: &Entry) -> Result<Self, Failure> {
        serde_json::from_slice(&entry.bytes).map_err(Failure::internal)
    }

    fn name(&self) -> &str {
        self.metadata.name.as_deref().unwrap_or_default()
    }

    /// Node whose agent has the measurement.
    fn node(&self, subject: Subject) -> Option<&str> {
        match subject {
            Subject::Nodes => self.metadata.name.as_deref(),
            Subject::Pods => self.spec.node_name.as_deref().filter(|node| !node.is_empty()),
        }
    }
}

/// Resource whose usage is requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Subject {
    Nodes,
    Pods,
}

impl Subject {
    fn of(registration: &Registration) -> Self {
        match registration.scope {
            api::kind::Scope::Cluster => Self::Nodes,
            api::kind::Scope::Namespaced => Self::Pods,
        }
    }
}

/// Answers with the usage of one node or pod.
pub(crate) async fn get(context: &mut Context) -> Result<Response, Failure> {
    let representation = negotiate(&context.headers, &context.query)?;
    let subject = Subject::of(&context.registration);
    let missing = |group: &'static str| Failure::NotFound {
        target: Target {
            resource: GroupResource::new(group, context.registration.plural),
            name: match subject {
                Subject::Nodes => context.info.name.clone(),
                Subject::Pods => format!("{}/{}", context.info.namespace, context.info.name),
            },
        },
    };
    let stored = stored(context)?;
    let key = crate::storage::key(stored, &context.info.namespace, &context.info.name);
    let entry = key
        .and_then(|key| context.store().get(&key))
        .ok_or_else(|| missing(""))?;
    let known = [Known::read(&entry)?];
    let answers = measure(context, subject, &known).await;
    let told = tell(subject, &known, &answers, context).into_iter().next();
    let bytes = told.ok_or_else(|| missing(context.registration.group))?;
    shape::one(context, StatusCode::OK, representation, bytes).await
}

/// Answers with the usage of the selected nodes or pods.
pub(crate) async fn list(context: &mut Context) -> Result<Response, Failure> {
    let representation = negotiate(&context.headers, &context.query)?;
    let (own, stored) = (context.registration.clone(), stored(context)?);
    context.registration = Row::Program(stored);
    let page = page(context).await;
    context.registration = own;
    let page = page?;
    let subject = Subject::of(&context.registration);
    let known = page
        .entries
        .iter()
        .map(|live| Known::read(live.entry()))
        .collect::<Result<Vec<_>, _>>()?;
    let answers = measure(context, subject, &known).await;
    let items = tell(subject, &known, &answers, context);
    shape::list(context, representation, &page.head, items).await
}

/// Registration of the measured resource.
fn stored(context: &Context) -> Result<&'static Registration, Failure> {
    api::find("", "v1", context.registration.plural).ok_or(Failure::NoSuchResource)
}

/// Measures by node. Agents that do not answer are missing; those of nodes that are not heard of are not asked.
async fn measure(context: &Context, subject: Subject, known: &[Known]) -> BTreeMap<String, Measures> {
    let nodes: BTreeSet<&str> = known.iter().filter_map(|known| known.node(subject)).collect();
    let asked: Vec<_> = nodes
        .into_iter()
        .filter(|node| is_there(context, node))
        .map(|node| ask(context, node.to_owned()).boxed())
        .collect();
    let mut asked = futures::stream::iter(asked).buffer_unordered(AT_ONCE);
    let mut answers = BTreeMap::new();
    let gather = async {
        while let Some(answer) = asked.next().await {
            answers.extend(answer);
        }
    };
    if tokio::time::timeout(TIMEOUT, gather).await.is_err() {
        tracing::debug!("some agents did not measure in time");
    }
    answers
}

/// True unless the node's Ready condition is Unknown.
fn is_there(context: &Context, node: &str) -> bool {
    let key = Key::new("", "nodes", "", node).ok();
    let entry = key.and_then(|key| context.store().get(&key));
    let node = entry.and_then(|entry| serde_json::from_slice::<Node>(&entry.bytes).ok());
    let status = node.and_then(|node| node.status).unwrap_or_default();
    let mut conditions = status.conditions.into_iter().flatten();
    conditions.all(|condition| condition.type_ != "Ready" || condition.status != "Unknown")
}

async fn ask(context: &Context, node: String) -> Option<(String, Measures)> {
    match answer(context, &node).await {
        Ok(measures) => Some((node, measures)),
        Err(because) => {
            tracing::debug!(node, because, "a node's agent does not measure");
            None
        }
    }
}

async fn answer(context: &Context, node: &str) -> Result<Measures, String> {
    let request = Request::get(PATH)
        .extension(Within(CONNECT))
        .body(Body::empty())
        .map_err(|error| error.to_string())?;
    let asked = context
        .server
        .network
        .ask(node, request, |_, error| Failure::internal(error))
        .await;
    let Answer::Whole(answer) = asked.map_err(|failure| failure.to_string())? else {
        return Err("it switches protocols".to_owned());
    };
    if !answer.status().is_success() {
        return Err(format!("it answers {}", answer.status()));
    }
    let body = Limited::new(answer.into_body(), LARGEST).collect().await;
    let bytes = body.map_err(|error| error.to_string())?.to_bytes();
    serde_json::from_slice(&bytes).map_err(|error| error.to_string())
}

/// The objects of those that were measured, in the order of `known`.
fn tell(subject: Subject, known: &[Known], answers: &BTreeMap<String, Measures>, context: &Context) -> Vec<Bytes> {
    let now = Time(context.now());
    let about = |known: &Known| ObjectMeta {
        name: known.metadata.name.clone(),
        namespace: known.metadata.namespace.clone(),
        creation_timestamp: Some(now.clone()),
        labels: known.metadata.labels.clone(),
        ..ObjectMeta::default()
    };
    let of_node = |known: &Known| {
        let measures = answers.get(known.name())?;
        Some(encode(&NodeMetrics {
            metadata: about(known),
            timestamp: Some(measures.time.clone()),
            window: window(measures),
            usage: measures.node.to_list(),
            ..NodeMetrics::default()
        }))
    };
    // Keyed by node and UID, so that a node cannot report pods of another one.
    let pods: BTreeMap<(&str, &str), _> = answers
        .iter()
        .flat_map(|(node, measures)| {
            let pods = measures.pods.iter();
            pods.map(move |pod| ((node.as_str(), pod.uid.as_str()), (measures, pod)))
        })
        .collect();
    let of_pod = |known: &Known| {
        let uid = known.metadata.uid.as_deref()?;
        let (measures, pod) = pods.get(&(known.node(subject)?, uid))?;
        let containers: Vec<_> = pod
            .containers
            .iter()
            .map(|(name, usage)| ContainerMetrics {
                name: name.clone(),
                usage: usage.to_list(),
            })
            .collect();
        (!containers.is_empty()).then(|| {
            encode(&PodMetrics {
                metadata: about(known),
                timestamp: Some(measures.time.clone()),
                window: window(measures),
                containers,
                ..PodMetrics::default()
            })
        })
    };
    match subject {
        Subject::Nodes => known.iter().filter_map(of_node).collect(),
        Subject::Pods => known.iter().filter_map(of_pod).collect(),
    }
}

/// Formats a duration under a minute as Go does.
fn window(measures: &Measures) -> String {
    let (seconds, millis) = (measures.window_millis / 1000, measures.window_millis % 1000);
    let fraction = format!(".{millis:03}");
    let text = format!("{seconds}{}s", fraction.trim_end_matches('0').trim_end_matches('.'));
    match seconds / 60 {
        0 => text,
        minutes => format!(
            "{minutes}m{}",
            text.replacen(&seconds.to_string(), &(seconds % 60).to_string(), 1)
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_are_written_as_go_does() {
        let text = |window_millis| {
            window(&Measures {
                time: Time(k8s_openapi::jiff::Timestamp::UNIX_EPOCH),
                window_millis,
                node: api::kinds::metrics::Usage::default(),
                pods: Vec::new(),
            })
        };
        assert_eq!(
            [1000, 1003, 15_020, 61_500].map(text),
            ["1s", "1.003s", "15.02s", "1m1.5s"]
        );
    }
}
