//! One request on its way through the server.

use std::borrow::Cow;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use api::{Registration, Row};
use bytes::Bytes;
use http::request::Parts;
use http::{HeaderMap, Method, Uri};
use hyper::upgrade::OnUpgrade;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::jiff::Timestamp;
use store::{Entry, Key, Store};
use tokio::time::Instant;

use crate::definitions::Table;
use crate::failure::{Failure, GroupResource, Target};
use crate::identity::{Source, User};
use crate::query::Query;
use crate::request::RequestInfo;
use crate::server::Shared;
use crate::storage;

/// How long a reader waits for a revision that is not there yet.
const FRESH_WITHIN: Duration = Duration::from_secs(3);

/// A request for a resource that exists.
pub(crate) struct Context {
    pub(crate) server: Arc<Shared>,
    pub(crate) user: User,
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
    /// The time when a write that waits for others is given up.
    pub(crate) deadline: Instant,
}

/// The request as it came, for those who hand it on.
#[derive(Debug)]
pub(crate) struct Wire {
    pub(crate) method: Method,
    pub(crate) uri: Uri,
    pub(crate) source: Option<Source>,
    /// The connection that a client wants to be something else.
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

/// What is gathered on the way.
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

    /// All of it.
    pub(crate) fn into_vec(self) -> Vec<T> {
        self.0.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What the audit log wants to know besides the request itself.
#[derive(Debug, Default)]
pub(crate) struct Notes {
    /// JSON of the object that was sent.
    pub(crate) request: Option<Bytes>,
    /// JSON of the object that was answered.
    pub(crate) response: Option<Bytes>,
    /// Name, uid and revision in the object that was sent: a new object's name stands nowhere else.
    pub(crate) sent: Identity,
    /// Further facts.
    pub(crate) annotations: Vec<(&'static str, String)>,
}

/// What an object says of itself.
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

    pub(crate) fn now(&self) -> Timestamp {
        (self.server.options.clock)()
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
}

/// `deployments.apps`
pub(crate) fn resource(registration: &Registration) -> GroupResource {
    GroupResource::new(registration.group, registration.plural)
}
