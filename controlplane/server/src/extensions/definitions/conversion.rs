//! Conversion between the versions of a kind by a webhook (`pkg/apiserver/conversion/{webhook_converter,converter}.go`).
//!
//! ```text
//! stored bytes ─► coerced and defaulted in their version ─► webhook ─► pruned in the version that is asked for ─► Live
//! object written ─► webhook ─► pruned in the version that is stored ─► store
//! ```
//!
//! A webhook may be anybody's server: it makes a request wait for [`LIMIT`] at most, and its answers are bounded by the
//! client's limit.

mod review;

use std::borrow::Cow;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use k8s_openapi::api::admissionregistration::v1::{ServiceReference, WebhookClientConfig};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use serde::Deserialize;
use serde_json::Value;
use store::{Entry, Key};
use tokio::sync::OnceCell;
use tokio::time::{Instant, timeout_at};
use uuid::Uuid;

use super::version::Version;
use crate::node::agent::Network;
use crate::ops::metrics::{Converted, Metrics};
use crate::request::failure::Failure;
use crate::request::object::Live;
use crate::write::admission::webhooks::answer::Version as ReviewVersion;
use crate::write::admission::webhooks::client::Client;
use review::Fault;

/// Time that a webhook has (`setGlobalDefaults` of `staging/src/k8s.io/apiserver/pkg/util/webhook/authentication.go`).
const LIMIT: Duration = Duration::from_secs(30);
/// Deadline for conversions in long-running requests.
pub(crate) const PATIENT_LIMIT: Duration = Duration::from_secs(34);
/// Objects of a list that are sent at a time, and their bytes, if they are more than one.
const BATCH: usize = 500;
const BATCH_BYTES: usize = 1 << 20;
/// Number of converted events that are cached for other watchers, and the size limit of one.
const KEPT: usize = 64;
const KEPT_BYTES: usize = 64 << 10;

/// Identifies a converted event: its revision, object and requested version.
type Place = (u64, Key, String);

/// Parts of the server that calls of webhooks go through.
#[derive(Clone, Copy)]
pub(crate) struct Calls<'s> {
    pub(crate) network: &'s Network,
    pub(crate) metrics: &'s Metrics,
}

/// The webhook of a definition.
pub(crate) struct Converter {
    /// Name of the definition.
    name: String,
    versions: Arc<[Arc<Version>]>,
    stored: Arc<Version>,
    client: Client,
    reviews: Option<ReviewVersion>,
    recent: Mutex<VecDeque<(Place, Arc<OnceCell<Live>>)>>,
}

impl Converter {
    /// The webhook of a definition that has one.
    pub(super) fn of(
        definition: &CustomResourceDefinition,
        versions: &Arc<[Arc<Version>]>,
        stored: &Arc<Version>,
    ) -> Option<Self> {
        let conversion = definition.spec.conversion.as_ref();
        let conversion = conversion.filter(|own| own.strategy == "Webhook")?;
        let webhook = conversion.webhook.clone().unwrap_or_default();
        let own = webhook.client_config.unwrap_or_default();
        let is_blank = |bundle: &[u8]| bundle.iter().all(u8::is_ascii_whitespace);
        let config = WebhookClientConfig {
            ca_bundle: own.ca_bundle.filter(|bundle| !is_blank(&bundle.0)),
            service: own.service.map(|service| ServiceReference {
                name: service.name,
                namespace: service.namespace,
                path: service.path,
                port: service.port,
            }),
            url: own.url,
        };
        Some(Self {
            name: definition.metadata.name.clone().unwrap_or_default(),
            versions: Arc::clone(versions),
            stored: Arc::clone(stored),
            client: Client::new(&config),
            reviews: ReviewVersion::of(&webhook.conversion_review_versions),
            recent: Mutex::default(),
        })
    }

    /// Stored objects as one version has them. Those of the version itself are not sent.
    ///
    /// # Errors
    /// 500 with upstream's message, 504
    pub(crate) async fn live(
        &self,
        calls: Calls<'_>,
        to: &str,
        entries: Vec<Entry>,
        until: Instant,
    ) -> Result<Vec<Live>, Failure> {
        let mut lives: Vec<Live> = entries.into_iter().map(Live::from).collect();
        let mut from = 0;
        while from < lives.len() {
            let (mut batch, mut places, mut bytes) = (Vec::new(), Vec::new(), 0);
            let mut next = from;
            for (place, live) in lives.iter().enumerate().skip(from) {
                let own = &live.entry().bytes;
                if !is_of(own, to) {
                    if !batch.is_empty() && (batch.len() == BATCH || bytes + own.len() > BATCH_BYTES) {
                        break;
                    }
                    bytes += own.len();
                    batch.push(self.read(own)?);
                    places.push(place);
                }
                next = place + 1;
            }
            let converted = self.converted(calls, to, batch, until).await?;
            for (place, value) in places.into_iter().zip(converted) {
                if let Some(live) = lives.get_mut(place) {
                    live.convert(&value);
                }
            }
            from = next;
        }
        Ok(lives)
    }

    /// Like [`Self::live`], for an event with many watchers: it is converted once for all of them.
    ///
    /// # Errors
    /// As [`Self::live`]
    pub(crate) async fn watched(&self, calls: Calls<'_>, to: &str, entry: &Entry) -> Result<Live, Failure> {
        let until = Instant::now() + PATIENT_LIMIT;
        let converted = async || {
            let lives = self.live(calls, to, vec![entry.clone()], until).await?;
            Ok(lives.into_iter().next().unwrap_or_else(|| entry.clone().into()))
        };
        if is_of(&entry.bytes, to) || entry.bytes.len() > KEPT_BYTES {
            return converted().await;
        }
        let cell = self.cell((entry.revision, entry.key.clone(), to.to_owned()));
        let known = timeout_at(until, cell.get_or_try_init(converted)).await;
        known.unwrap_or(Err(Failure::Late)).cloned()
    }

    fn cell(&self, place: Place) -> Arc<OnceCell<Live>> {
        let mut recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, cell)) = recent.iter().find(|(own, _)| *own == place) {
            return Arc::clone(cell);
        }
        if recent.len() == KEPT {
            recent.pop_front();
        }
        let cell = Arc::new(OnceCell::new());
        recent.push_back((place, Arc::clone(&cell)));
        cell
    }

    /// An object in the version that is stored, with an empty revision; nothing if it is of that version.
    ///
    /// # Errors
    /// As [`Self::live`]
    pub(crate) async fn to_store(
        &self,
        calls: Calls<'_>,
        object: &[u8],
        until: Instant,
    ) -> Result<Option<Vec<u8>>, Failure> {
        if is_of(object, &self.stored.qualified) {
            return Ok(None);
        }
        let mut object: Value = serde_json::from_slice(object).map_err(Failure::internal)?;
        if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
            metadata.remove("resourceVersion");
        }
        let mut stored = self.one(calls, &self.stored.qualified, object, until).await?;
        if let Some(metadata) = stored.get_mut("metadata").and_then(Value::as_object_mut) {
            metadata.insert("resourceVersion".to_owned(), "".into());
        }
        Ok(Some(stored.to_string().into_bytes()))
    }

    /// Any object of the kind in another version, both as JSON.
    ///
    /// # Errors
    /// As [`Self::live`]
    pub(crate) async fn between(
        &self,
        calls: Calls<'_>,
        (from, to): (&str, &str),
        object: &[u8],
        until: Instant,
    ) -> Result<Vec<u8>, Failure> {
        let mut object: Value = serde_json::from_slice(object).map_err(Failure::internal)?;
        let Some(members) = object.as_object_mut() else {
            return Ok(object.to_string().into_bytes());
        };
        // An object with only type metadata is valid in any version (`isEmptyUnstructuredObject`).
        let is_empty = members.keys().all(|name| name == "apiVersion" || name == "kind");
        let own = if is_empty { to } else { from };
        members.insert("apiVersion".to_owned(), own.into());
        if !is_empty && from != to {
            object = self.one(calls, to, object, until).await?;
        }
        Ok(object.to_string().into_bytes())
    }

    /// A stored object, coerced and defaulted in its own version.
    fn read(&self, stored: &[u8]) -> Result<Value, Failure> {
        let mut value: Value = serde_json::from_slice(stored).map_err(Failure::internal)?;
        let own = value.get("apiVersion").and_then(Value::as_str).unwrap_or_default();
        let version = self.version(own).ok_or_else(|| Failure::Unexpected {
            message: format!("request to convert CR from an invalid group/version: {own}"),
        })?;
        version.coerce(&mut value).map_err(Failure::internal)?;
        Ok(value)
    }

    fn version(&self, qualified: &str) -> Option<&Version> {
        let own = self.versions.iter().find(|version| version.qualified == qualified);
        own.map(|version| &**version)
    }

    async fn one(&self, calls: Calls<'_>, to: &str, object: Value, until: Instant) -> Result<Value, Failure> {
        let converted = self.converted(calls, to, vec![object], until).await?;
        let missing = || Failure::internal("no object was converted");
        converted.into_iter().next().ok_or_else(missing)
    }

    /// Objects in another version, pruned by its schema.
    async fn converted(
        &self,
        calls: Calls<'_>,
        to: &str,
        objects: Vec<Value>,
        until: Instant,
    ) -> Result<Vec<Value>, Failure> {
        if objects.is_empty() {
            return Ok(objects);
        }
        let version = self.version(to).ok_or_else(|| Failure::Unexpected {
            message: format!("request to convert CR to an invalid group/version: {to}"),
        })?;
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(Failure::Late);
        }
        let began = Instant::now();
        let outcome = self.ask(calls, to, &objects, left.min(LIMIT)).await;
        let from = objects.first().and_then(|object| object.get("apiVersion"));
        let short = |version: &str| version.rsplit('/').next().unwrap_or_default().to_owned();
        calls.metrics.webhooks.converted(&Converted {
            definition: &self.name,
            from: short(from.and_then(Value::as_str).unwrap_or_default()),
            to: short(to),
            took: began.elapsed(),
            failure_type: outcome.as_ref().err().map(|fault| fault.failure_type),
        });
        let mut converted = outcome.map_err(|fault| {
            tracing::warn!(definition = self.name, error = fault.because, "objects not converted");
            if until <= Instant::now() {
                return Failure::Late;
            }
            Failure::Unexpected { message: fault.because }
        })?;
        for value in &mut converted {
            let pruned = version.schema.decode(value);
            pruned.map_err(|error| Failure::Unexpected {
                message: error.to_string(),
            })?;
        }
        Ok(converted)
    }

    async fn ask(&self, calls: Calls<'_>, to: &str, objects: &[Value], limit: Duration) -> Result<Vec<Value>, Fault> {
        let text = |member: &str| {
            let own = objects.first().and_then(|object| object.get(member));
            own.and_then(Value::as_str).unwrap_or_default()
        };
        let kind = format!("{}, Kind={}", text("apiVersion"), text("kind"));
        let reviews = self
            .reviews
            .ok_or_else(|| Fault::call("no supported conversion review versions".to_owned()))?;
        let failed = |because: String| format!("conversion webhook for {kind} failed: {because}");
        let uid = Uuid::new_v4().to_string();
        let question = review::question(reviews, &uid, to, objects);
        let answer = self.client.post(calls.network, question, limit).await;
        let answer = answer.map_err(|error| Fault::call(failed(error.because())))?;
        let converted = review::converted(reviews, &uid, &answer).map_err(|fault| Fault {
            because: failed(fault.because),
            ..fault
        })?;
        review::take(&kind, to, objects, converted)
    }
}

/// True if an object has the given version.
fn is_of(json: &[u8], version: &str) -> bool {
    #[derive(Deserialize)]
    struct Typed<'a> {
        #[serde(rename = "apiVersion", borrow)]
        own: Cow<'a, str>,
    }
    // The server writes it first.
    let rest = json.strip_prefix(br#"{"apiVersion":""#);
    let rest = rest.and_then(|rest| rest.strip_prefix(version.as_bytes()));
    if rest.is_some_and(|rest| rest.first() == Some(&b'"')) {
        return true;
    }
    serde_json::from_slice::<Typed<'_>>(json).is_ok_and(|typed| typed.own == version)
}
