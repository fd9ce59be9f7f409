//! Audit records of a request: at its arrival (where the sink wants it), at the beginning or end of
//! its answer, and at the end of a long-running one: a watch, a log, a session.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context as Waker, Poll};
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use http::header::{CACHE_CONTROL, USER_AGENT};
use http::request::Parts;
use http::{HeaderName, HeaderValue, StatusCode};
use http_body::{Frame, SizeHint};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use uuid::Uuid;

use crate::authn::identity::Source;
use crate::authn::{Caller, Impersonated};
use crate::authz::Decision;
use crate::ops::audit::{Layer, ObjectRef, Record, Sink, Stage};
use crate::request::context::Notes;
use crate::request::failure::Failure;
use crate::request::info::RequestInfo;
use crate::request::path;
use crate::request::query::Query;
use crate::server::flow_control::Flow;
use crate::server::shared::{Clock, Shared};
use crate::transport::respond::{Response, encode};
use crate::transport::tunnel;

pub(crate) const AUDIT_ID: HeaderName = HeaderName::from_static("audit-id");
/// Characters of a request's name for the audit that its client may choose.
const LONGEST_ID: usize = 64;
/// Limit of the recorded source addresses of a request.
const MOST_SOURCES: usize = 32;

/// Requests that take longer have their latency in the record.
const SLOW: SignedDuration = SignedDuration::from_millis(500);

/// Status recorded for a request whose client did not wait for the answer: it may have taken effect
/// all the same.
const CLIENT_GONE: u16 = 499;

/// Records a request, even if its client disconnects and its handler is dropped.
pub(crate) struct Recording {
    sink: Option<Arc<dyn Sink>>,
    clock: Clock,
    trail: Option<Trail>,
    /// Request info of an unauthenticated request, from its path alone.
    refused: Option<RequestInfo>,
    pub(crate) outcome: Outcome,
}

impl Recording {
    pub(crate) fn begin(shared: &Shared, parts: &Parts, caller: Option<&Caller>, received: Timestamp) -> Self {
        let sink = shared.options.audit.clone();
        let refused = caller.is_none().then(|| info(parts).unwrap_or_default());
        let trail = Trail::new(parts, caller.cloned().unwrap_or_default(), received);
        if let Some(sink) = sink.as_ref().filter(|sink| sink.wants_received() && refused.is_none()) {
            let outcome = Outcome {
                info: info(parts).unwrap_or_default(),
                ..Outcome::default()
            };
            // The answer waits for its own record's place, which is behind this one's.
            sink.record(trail.clone().record(outcome, Stage::RequestReceived, 0, received));
        }
        let outcome = Outcome {
            id: trail.id.clone(),
            ..Outcome::default()
        };
        Self {
            trail: sink.is_some().then_some(trail),
            sink,
            clock: shared.options.clock.clone(),
            refused,
            outcome,
        }
    }

    /// Records the answer of a moment; one that lasts, again when it ends.
    pub(crate) async fn end(mut self, mut response: Response, failure: Option<Failure>, at: Timestamp) -> Response {
        let switched = response.status() == StatusCode::SWITCHING_PROTOCOLS;
        // Answers may hold secrets: neither proxies nor browsers may cache them.
        let headers = response.headers_mut();
        headers
            .entry(CACHE_CONTROL)
            .or_insert(HeaderValue::from_static("no-cache, private"));
        if let Ok(id) = HeaderValue::from_str(&self.outcome.id) {
            headers.insert(AUDIT_ID, id);
        }
        let lasts = switched || (self.outcome.info.lasts() && failure.is_none());
        let Some(record) = self.record(response.status().as_u16(), failure, lasts, at) else {
            return response;
        };
        let Some(sink) = self.sink.take() else { return response };
        let waiting = sink.record(record.clone());
        if lasts {
            let end = End {
                sink,
                clock: self.clock.clone(),
                record: Some(record),
            };
            response = until_end(response, end);
        }
        if let Some(waiting) = waiting {
            // It can only have panicked, which was reported there.
            drop(waiting.await);
        }
        response
    }

    fn record(&mut self, code: u16, failure: Option<Failure>, lasts: bool, at: Timestamp) -> Option<Record> {
        let trail = self.trail.take()?;
        let refused = self.refused.take();
        // Upstream records unauthenticated requests only at the beginning of the answer.
        let stage = if lasts || refused.is_some() {
            Stage::ResponseStarted
        } else {
            Stage::ResponseComplete
        };
        if let Some(info) = refused {
            self.outcome.info = info;
        }
        let latencies = std::mem::take(&mut self.outcome.latencies);
        let mut record = trail.record(std::mem::take(&mut self.outcome), stage, code, at);
        if let Some(failure) = failure {
            let status = failure.status();
            record.response_object.get_or_insert_with(|| encode(&status));
            record.failure = Some(Box::new(status));
        }
        note_latency(&mut record, latencies);
        Some(record)
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        let now = (self.clock)();
        if let (Some(record), Some(sink)) = (self.record(CLIENT_GONE, None, false, now), &self.sink) {
            sink.record(record);
        }
    }
}

/// Annotates the record of a slow request other than a watch when its answer is complete
/// (`writeLatencyToAnnotation`, `apiserver/pkg/endpoints/filters/audit.go`).
fn note_latency(record: &mut Record, latencies: Vec<(Layer, Duration)>) {
    let took = record.staged.duration_since(record.received);
    if record.stage != Stage::ResponseComplete || record.verb == "watch" || took <= SLOW {
        return;
    }
    let mut layers = BTreeMap::from([(Layer::Total, Duration::try_from(took).unwrap_or_default())]);
    for (layer, took) in latencies {
        let all = layers.entry(layer).or_default();
        *all = if layer.is_parallel() {
            took.max(*all)
        } else {
            took + *all
        };
    }
    for (layer, took) in layers.into_iter().filter(|(_, took)| !took.is_zero()) {
        let took = api::duration::text(i64::try_from(took.as_nanos()).unwrap_or(i64::MAX));
        record.annotations.push((layer.annotation().into(), took));
    }
}

/// Keeps a value until a long-running answer is complete or its client is gone.
pub(crate) fn until_end(mut response: Response, kept: impl Send + Unpin + 'static) -> Response {
    if response.status() == StatusCode::SWITCHING_PROTOCOLS {
        tunnel::keep(&mut response, kept);
        return response;
    }
    response.map(|body| Body::new(Followed { body, _kept: kept }))
}

/// Body whose end is observed.
struct Followed<K> {
    body: Body,
    _kept: K,
}

impl<K: Unpin> http_body::Body for Followed<K> {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        waker: &mut Waker<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        Pin::new(&mut self.body).poll_frame(waker)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Records the end of a long-running answer when it is dropped: it is complete, or its client is
/// gone.
struct End {
    sink: Arc<dyn Sink>,
    clock: Clock,
    record: Option<Record>,
}

impl Drop for End {
    fn drop(&mut self) {
        if let Some(mut record) = self.record.take() {
            record.stage = Stage::ResponseComplete;
            record.staged = (self.clock)();
            note_latency(&mut record, Vec::new());
            self.sink.record(record);
        }
    }
}

/// Results of the handlers for the answer's headers and the audit log.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    /// The request's audit ID, for the client and for an aggregated server.
    pub(crate) id: String,
    pub(crate) info: RequestInfo,
    pub(crate) impersonated: Option<Impersonated>,
    pub(crate) decision: Option<Decision>,
    pub(crate) warnings: Vec<String>,
    pub(crate) annotations: Vec<(Cow<'static, str>, String)>,
    pub(crate) notes: Notes,
    pub(crate) flow: Option<Flow>,
    /// Time spent in layers of the server.
    pub(crate) latencies: Vec<(Layer, Duration)>,
}

/// Attributes of the request for the audit log.
#[derive(Clone)]
struct Trail {
    id: String,
    uri: String,
    caller: Caller,
    user_agent: String,
    sources: Vec<IpAddr>,
    received: Timestamp,
}

/// The audit's name of a request as its client chose it.
fn own_id(parts: &Parts) -> Option<String> {
    let id = parts.headers.get(AUDIT_ID)?.to_str().ok()?;
    (!id.is_empty() && id.len() <= LONGEST_ID).then(|| id.to_owned())
}

/// Source IPs of a request: those in forwarding headers, then the peer's.
fn sources(parts: &Parts) -> Vec<IpAddr> {
    let header = |name: &str| parts.headers.get(name).and_then(|value| value.to_str().ok());
    let forwarded = header("x-forwarded-for").unwrap_or_default().split(',');
    let told = forwarded
        .chain(header("x-real-ip"))
        .filter_map(|text| text.trim().parse().ok());
    let mut sources: Vec<IpAddr> = told.take(MOST_SOURCES).collect();
    let connected = parts.extensions.get::<Source>().map(|source| source.0.ip());
    sources.extend(connected.filter(|own| sources.last() != Some(own)));
    sources
}

/// Request info, as far as the path tells.
fn info(parts: &Parts) -> Result<RequestInfo, Failure> {
    let segments = path::segments(parts.uri.path())?;
    RequestInfo::new(&parts.method, &segments, &Query::parse(parts.uri.query())?)
}

impl Trail {
    fn new(parts: &Parts, caller: Caller, received: Timestamp) -> Self {
        let user_agent = parts
            .headers
            .get(USER_AGENT)
            .and_then(|value| value.to_str().ok())
            .unwrap_or_default();
        Self {
            id: own_id(parts).unwrap_or_else(|| Uuid::new_v4().to_string()),
            uri: parts.uri.path_and_query().map(ToString::to_string).unwrap_or_default(),
            caller,
            user_agent: user_agent.to_owned(),
            sources: sources(parts),
            received,
        }
    }

    fn record(self, outcome: Outcome, stage: Stage, code: u16, now: Timestamp) -> Record {
        let Outcome { info, notes, .. } = outcome;
        let Caller { user, annotations } = self.caller;
        let own = annotations.into_iter().chain(notes.annotations);
        let own = own.map(|(name, text)| (Cow::Borrowed(name), text));
        let mut annotations: Vec<(Cow<'static, str>, String)> = own.chain(outcome.annotations).collect();
        if let Some(decision) = outcome.decision {
            let answer = if decision.is_allowed() { "allow" } else { "forbid" };
            annotations.push(("authorization.k8s.io/decision".into(), answer.to_owned()));
            annotations.push(("authorization.k8s.io/reason".into(), decision.to_string()));
        }
        let object = info.is_resource.then(|| ObjectRef {
            resource: info.resource,
            namespace: info.namespace,
            name: Some(info.name)
                .filter(|name| !name.is_empty())
                .unwrap_or(notes.sent.name),
            uid: notes.sent.uid,
            group: info.group,
            version: info.version,
            subresource: info.subresource,
            resource_version: notes.sent.resource_version,
        });
        Record {
            id: self.id,
            stage,
            received: self.received,
            staged: now,
            uri: self.uri,
            verb: info.verb.to_owned(),
            user,
            constraint: outcome
                .impersonated
                .as_ref()
                .and_then(|impersonated| impersonated.constraint.clone()),
            impersonated: outcome.impersonated.map(|impersonated| impersonated.user),
            user_agent: self.user_agent,
            sources: self.sources,
            object,
            code,
            failure: None,
            request_object: notes.request,
            response_object: notes.response,
            annotations,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use k8s_openapi::jiff::Timestamp;

    use super::note_latency;
    use crate::ops::audit::Layer;
    use crate::ops::audit::tests::record;

    #[test]
    fn slow_requests_are_annotated() {
        let told = |verb: &str, received: i64, latencies: &[(Layer, u64)]| {
            let mut record = record(verb, "pods");
            record.annotations.clear();
            record.received = Timestamp::from_microsecond(received).unwrap();
            let latencies = latencies.iter();
            let latencies = latencies.map(|(layer, milliseconds)| (*layer, Duration::from_millis(*milliseconds)));
            note_latency(&mut record, latencies.collect());
            let told = record.annotations.iter().map(|(name, text)| format!("{name}={text}"));
            told.collect::<Vec<_>>()
        };
        let total = "apiserver.latency.k8s.io/total=999.999ms";
        let (slow, fast) = (1_790_000_000_000_001, 1_790_000_000_500_001);
        assert_eq!(told("get", slow, &[(Layer::Queue, 0)]), [total]);
        assert!(told("get", fast, &[(Layer::Storage, 2)]).is_empty());
        assert!(told("watch", slow, &[]).is_empty());
        let latencies = [
            (Layer::ValidatingWebhook, 2),
            (Layer::ValidatingWebhook, 3),
            (Layer::Storage, 2),
            (Layer::Storage, 3),
        ];
        let expected = [
            "apiserver.latency.k8s.io/etcd=5ms",
            "apiserver.latency.k8s.io/validating-webhook=3ms",
            total,
        ];
        assert_eq!(told("create", slow, &latencies), expected);
    }
}
