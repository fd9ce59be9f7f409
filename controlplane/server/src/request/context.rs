//! Context of a request.

use std::borrow::Cow;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use api::managed::{Conversions, splice};
use api::{Object, Registration, Row};
use bytes::Bytes;
use http::request::Parts;
use http::{HeaderMap, Method, Uri};
use hyper::upgrade::OnUpgrade;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::jiff::Timestamp;
use serde::de::DeserializeOwned;
use serde_json::Value;
use store::{CommitError, Entry, Guard, Key, Store, Write};
use tokio::time::Instant;

use crate::authn::identity::{Source, User};
use crate::authn::tokens::Used;
use crate::extensions::definitions::{Converter, PATIENT_LIMIT, Table};
use crate::ops::audit::Layer;
use crate::request::failure::{Failure, GroupResource, Target};
use crate::request::info::RequestInfo;
use crate::request::object::{self, Live};
use crate::request::options::FieldValidation;
use crate::request::query::Query;
use crate::server::shared::Shared;
use crate::storage;
use crate::transport::body::Decoded;

/// Time that a read waits for a revision that is not there yet.
const FRESH_WITHIN: Duration = Duration::from_secs(3);

/// Time that a request waits for the latest revision where several servers share the database.
const LONGEST_REFRESH: Duration = Duration::from_secs(10);

/// A request for a resource that exists.
pub(crate) struct Context {
    pub(crate) server: Arc<Shared>,
    pub(crate) user: User,
    /// Precondition of the request's writes.
    pub(crate) fence: Option<Guard>,
    pub(crate) info: RequestInfo,
    pub(crate) query: Query,
    pub(crate) headers: HeaderMap,
    pub(crate) wire: Wire,
    /// The kinds as they were when the request came.
    pub(crate) table: Arc<Table>,
    pub(crate) registration: Row,
    /// Texts for `Warning` headers.
    pub(crate) warnings: Gathered<String>,
    /// Facts for the audit log.
    pub(crate) annotations: Gathered<(Cow<'static, str>, String)>,
    pub(crate) notes: Notes,
    /// Time spent in layers of the server, for the audit log.
    pub(crate) latencies: Gathered<(Layer, Duration)>,
    /// Results of conversion webhooks for the versions that the object's managers use.
    pub(crate) conversions: Conversions,
    /// The time that tables are of, where it is not now.
    pub(crate) as_of: Option<Timestamp>,
    /// Deadline of a write that waits for others.
    pub(crate) deadline: Instant,
}

/// The request as received, for proxies.
#[derive(Debug)]
pub(crate) struct Wire {
    pub(crate) method: Method,
    pub(crate) uri: Uri,
    pub(crate) source: Option<Source>,
    /// Upgrade of the client's connection, if requested.
    pub(crate) upgrade: Option<OnUpgrade>,
}

impl Wire {
    pub(crate) fn of(parts: &mut Parts) -> Self {
        Self {
            method: parts.method.clone(),
            uri: parts.uri.clone(),
            source: parts.extensions.get::<Source>().copied(),
            upgrade: parts.extensions.remove::<OnUpgrade>(),
        }
    }
}

/// Values collected while a request is handled.
#[derive(Debug)]
pub(crate) struct Gathered<T>(Mutex<Vec<T>>);

impl<T> Default for Gathered<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T> Gathered<T> {
    /// Adds more.
    pub(crate) fn extend(&self, more: impl IntoIterator<Item = T>) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).extend(more);
    }

    /// Returns the collected values.
    pub(crate) fn into_vec(self) -> Vec<T> {
        self.0.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Details for the audit log besides the request itself.
#[derive(Debug, Default)]
pub(crate) struct Notes {
    /// JSON of the object that was sent.
    pub(crate) request: Option<Bytes>,
    /// JSON of the object that was answered.
    pub(crate) response: Option<Bytes>,
    /// Name, uid and revision in the object that was sent, which for a creation is the only source
    /// of the name.
    pub(crate) sent: Identity,
    /// Token of a Secret that a review has verified.
    pub(crate) used: Option<Used>,
    /// Further facts.
    pub(crate) annotations: Vec<(&'static str, String)>,
}

/// Identity of an object, from its metadata.
#[derive(Debug, Default)]
pub(crate) struct Identity {
    pub(crate) name: String,
    pub(crate) uid: String,
    pub(crate) resource_version: String,
}

impl Identity {
    pub(crate) fn of(metadata: &ObjectMeta) -> Self {
        Self {
            name: metadata.name.clone().unwrap_or_default(),
            uid: metadata.uid.clone().unwrap_or_default(),
            resource_version: metadata.resource_version.clone().unwrap_or_default(),
        }
    }
}

impl Context {
    pub(crate) fn store(&self) -> &Store {
        &self.server.store
    }

    /// Stores a change and those that go with it, if the client's fence and the guard hold and the
    /// definition of the request's kind is still the same.
    pub(crate) async fn commit(
        &self,
        write: Write,
        also: Vec<Write>,
        guard: Option<Guard>,
    ) -> Result<Entry, CommitError> {
        let definition = self.table.seen(&self.registration).map(Guard::from);
        let guards = self.fence.iter().cloned().chain(definition).chain(guard).collect();
        let began = Instant::now();
        let committed = self.store().commit_if(write, also, guards).await;
        self.latencies.extend([(Layer::Storage, began.elapsed())]);
        committed
    }

    /// True if the definition of the request's kind has changed since the request came.
    pub(crate) fn is_overtaken(&self) -> bool {
        let seen = self.table.seen(&self.registration);
        seen.is_some() && seen != self.server.definitions.current().seen(&self.registration)
    }

    /// Resets the request for another state of its kind.
    pub(crate) fn begin_anew(&mut self, table: Arc<Table>, registration: Row) {
        self.table = table;
        self.registration = registration;
        self.warnings = Gathered::default();
        self.annotations = Gathered::default();
        self.notes = Notes::default();
        self.conversions = Conversions::default();
    }

    pub(crate) fn now(&self) -> Timestamp {
        (self.server.options.clock)()
    }

    /// Checks the deadline of the request.
    ///
    /// # Errors
    /// 504
    pub(crate) fn in_time(&self) -> Result<(), Failure> {
        if self.deadline <= Instant::now() {
            return Err(Failure::Late);
        }
        Ok(())
    }

    /// Waits a while for a revision that the client has seen elsewhere.
    ///
    /// # Errors
    /// 504 when it does not come.
    pub(crate) async fn fresh(&self, requested: u64) -> Result<(), Failure> {
        let mut current = self.store().revision();
        if requested > current {
            current = self.store().reach(requested, FRESH_WITHIN).await;
        }
        if requested > current {
            return Err(Failure::TooLargeResourceVersion { requested, current });
        }
        Ok(())
    }

    /// `deployments.apps`
    pub(crate) fn resource(&self) -> GroupResource {
        resource(&self.registration)
    }

    /// An object of the request's resource, for messages.
    pub(crate) fn target(&self, name: &str) -> Target {
        Target {
            resource: self.resource(),
            name: name.to_owned(),
        }
    }

    /// 403 about an object of the request's resource.
    pub(crate) fn forbidden(&self, name: &str, because: impl Into<String>) -> Failure {
        Failure::Forbidden {
            target: Some(self.target(name)),
            because: because.into(),
            causes: Vec::new(),
        }
    }

    /// The object that the path names.
    pub(crate) fn own_target(&self) -> Target {
        self.target(&self.info.name)
    }

    /// The key of an object in the request's namespace.
    ///
    /// # Errors
    /// 404 for a name that no object can have.
    pub(crate) fn key(&self, name: &str) -> Result<Key, Failure> {
        let namespace = match self.registration.scope {
            api::kind::Scope::Namespaced => self.info.namespace.as_str(),
            api::kind::Scope::Cluster => "",
        };
        storage::key(&self.registration, namespace, name).ok_or_else(|| Failure::NotFound {
            target: self.target(name),
        })
    }

    /// A stored object as the request's version has it.
    ///
    /// # Errors
    /// 500 where a webhook does not convert it.
    pub(crate) async fn live(&self, entry: Entry) -> Result<Live, Failure> {
        let Some(converter) = self.table.converter(&self.registration) else {
            return Ok(entry.into());
        };
        let lives = Box::pin(self.converted(converter, &self.registration, vec![entry])).await?;
        lives.into_iter().next().ok_or(Failure::Late)
    }

    /// Like [`Self::live`], for many objects.
    ///
    /// # Errors
    /// As [`Self::live`]
    pub(crate) async fn lives(&self, entries: Vec<Entry>) -> Result<Vec<Live>, Failure> {
        self.lives_of(&self.registration, entries).await
    }

    /// Like [`Self::lives`], for any kind.
    ///
    /// # Errors
    /// As [`Self::live`]
    pub(crate) async fn lives_of(&self, row: &Registration, entries: Vec<Entry>) -> Result<Vec<Live>, Failure> {
        let Some(converter) = self.table.converter(row) else {
            return Ok(entries.into_iter().map(Live::from).collect());
        };
        Box::pin(self.converted(converter, row, entries)).await
    }

    async fn converted(
        &self,
        converter: &Converter,
        row: &Registration,
        entries: Vec<Entry>,
    ) -> Result<Vec<Live>, Failure> {
        let own = row.api_version();
        let until = if self.info.lasts() {
            Instant::now() + PATIENT_LIMIT
        } else {
            self.deadline
        };
        converter.live(self.server.calls(), &own, entries, until).await
    }

    /// Converts an object to its storage version by webhook; `None` where no webhook is needed, and
    /// for a dry run.
    ///
    /// # Errors
    /// As [`Self::live`]
    pub(crate) async fn to_store(
        &self,
        object: &dyn Object,
        managed: &str,
        dry_run: bool,
    ) -> Result<Option<Vec<u8>>, Failure> {
        let Some(converter) = self.table.converter(&self.registration).filter(|_| !dry_run) else {
            return Ok(None);
        };
        let object = splice::join(object.to_json(), managed);
        Box::pin(converter.to_store(self.server.calls(), &object, self.deadline)).await
    }

    /// An object of the request's kind, which a definition makes, in another version; both as JSON.
    ///
    /// # Errors
    /// As [`Self::live`]
    pub(crate) async fn in_version(
        &self,
        from: &Registration,
        to: &Registration,
        object: Vec<u8>,
    ) -> Result<Vec<u8>, Failure> {
        let (from, to) = (from.api_version(), to.api_version());
        if let Some(converter) = self.table.converter(&self.registration) {
            let converted = converter.between(self.server.calls(), (&from, &to), &object, self.deadline);
            return Box::pin(converted).await;
        }
        let mut object: Value = serde_json::from_slice(&object).map_err(Failure::internal)?;
        if let Some(members) = object.as_object_mut() {
            members.insert("apiVersion".to_owned(), to.into());
        }
        Ok(object.to_string().into_bytes())
    }

    /// Runs the conversions that an update of managed fields lacked. Returns whether there were
    /// any, so that the update must be repeated.
    ///
    /// # Errors
    /// As [`Self::live`]
    pub(crate) async fn convert_missing(&self) -> Result<bool, Failure> {
        let Some(converter) = self.table.converter(&self.registration) else {
            return Ok(false);
        };
        let missing = self.conversions.take_missing();
        let were_any = !missing.is_empty();
        for wanted in missing {
            let way = (wanted.from.as_str(), wanted.to.as_str());
            let object = converter.between(self.server.calls(), way, wanted.object.as_bytes(), self.deadline);
            let object = Box::pin(object).await?;
            let object = String::from_utf8(object).map_err(Failure::internal)?;
            self.conversions.add(wanted, object);
        }
        Ok(were_any)
    }

    /// Decodes the body of a subresource; unknown fields become warnings of the request.
    ///
    /// # Errors
    /// As [`object::read`]
    pub(crate) fn read_part<T: Clone + 'static>(
        &mut self,
        registration: &Registration,
        decoded: Decoded,
        validation: FieldValidation,
    ) -> Result<T, Failure> {
        let read = object::read_json(registration, decoded, validation)?;
        self.warnings.extend(read.warnings);
        self.notes.request = Some(read.json);
        object::part(&*read.object)
    }

    /// The stored object that the path names.
    ///
    /// # Errors
    /// 404
    pub(crate) fn entry(&self) -> Result<Entry, Failure> {
        let key = self.key(&self.info.name)?;
        self.store().get(&key).ok_or_else(|| Failure::NotFound {
            target: self.own_target(),
        })
    }

    /// Like [`Self::entry`], as the type of its kind.
    ///
    /// # Errors
    /// 404, 500
    pub(crate) fn decoded<K: DeserializeOwned>(&self) -> Result<K, Failure> {
        serde_json::from_slice(&self.entry()?.bytes).map_err(Failure::internal)
    }
}

/// `deployments.apps`
pub(crate) fn resource(registration: &Registration) -> GroupResource {
    GroupResource::new(registration.group, registration.plural)
}

/// Waits until the cache shows what other servers have acknowledged, as upstream reads what is consistent
/// (`pkg/storage/cacher/cacher.go`), for every request that does not say which state it is content with: those that write look
/// at objects, too.
pub(crate) async fn refresh(shared: &Shared, info: &RequestInfo, query: &Query) -> Result<(), Failure> {
    let exactly = query.text("resourceVersionMatch") == Some("Exact");
    let content = matches!(info.verb, "get" | "list" | "watch") && query.text("resourceVersion").is_some();
    if content && !exactly {
        return Ok(());
    }
    shared.store.refresh(LONGEST_REFRESH).await.map_err(|failure| {
        tracing::warn!(
            error = &failure as &dyn std::error::Error,
            "the newest objects are not known"
        );
        Failure::Late
    })
}
