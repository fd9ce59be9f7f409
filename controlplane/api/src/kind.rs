//! The `Kind` trait: properties of a kind of object. Everything has a default, so that a plain kind
//! takes a few lines.

use k8s_openapi::api::autoscaling::v1::Scale;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::{ClusterResourceScope, Metadata, NamespaceResourceScope, Resource, ResourceScope, SubResourceScope};
use schemars::JsonSchema;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::schema::decode::DecodeError;
use crate::table::{Column, Shown, age_column};
use crate::value::invalid::Invalid;
use crate::value::names::Rule;

/// Scope of a kind.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Scope {
    /// Cluster-scoped.
    Cluster,
    /// Namespaced.
    Namespaced,
}

/// Maps `k8s_openapi`'s scope types to values.
pub trait Scoped: ResourceScope {
    /// The scope as a value.
    const SCOPE: Scope;
}

impl Scoped for ClusterResourceScope {
    const SCOPE: Scope = Scope::Cluster;
}

impl Scoped for NamespaceResourceScope {
    const SCOPE: Scope = Scope::Namespaced;
}

impl Scoped for SubResourceScope {
    const SCOPE: Scope = Scope::Namespaced;
}

/// Subresource of a kind.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Subresource {
    /// `status`: the part that controllers write.
    Status,
    /// `scale`: replicas alone, as `autoscaling/v1` Scale.
    Scale,
    /// `binding`: assigns a pod to a node.
    Binding,
    /// `eviction`: a deletion that respects disruption budgets, as `policy/v1` Eviction.
    Eviction,
    /// `log`: a container's output.
    Log,
    /// `ephemeralcontainers`: adds debugging containers to a running pod.
    EphemeralContainers,
    /// `resize`: resources of a running pod's containers.
    Resize,
    /// `exec`: a command in a container, with its streams.
    Exec,
    /// `attach`: a container's own streams.
    Attach,
    /// `portforward`: connections to a pod's ports.
    PortForward,
    /// `proxy`: HTTP requests to the backend of the object.
    Proxy,
    /// `finalize`: a namespace's own finalizers.
    Finalize,
    /// `token`: a token of a service account, as `authentication.k8s.io/v1` `TokenRequest`.
    Token,
    /// `approval`: the decision on a certificate signing request.
    Approval,
}

impl Subresource {
    /// The path segment.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Status => "status",
            Self::Scale => "scale",
            Self::Binding => "binding",
            Self::Eviction => "eviction",
            Self::Log => "log",
            Self::EphemeralContainers => "ephemeralcontainers",
            Self::Resize => "resize",
            Self::Exec => "exec",
            Self::Attach => "attach",
            Self::PortForward => "portforward",
            Self::Proxy => "proxy",
            Self::Finalize => "finalize",
            Self::Token => "token",
            Self::Approval => "approval",
        }
    }
}

/// Verbs that a kind supports.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Verbs {
    /// Stored objects with all verbs.
    All,
    /// Stored objects without `deletecollection`.
    OneByOne,
    /// An action in the form of an object: created, never stored.
    CreateOnly,
    /// Objects that the server generates on request.
    ReadOnly,
    /// Objects that the node agents measure on request.
    Measured,
}

impl Verbs {
    /// The verbs as discovery lists them.
    pub const fn names(self) -> &'static [&'static str] {
        match self {
            Self::All => &[
                "create",
                "delete",
                "deletecollection",
                "get",
                "list",
                "patch",
                "update",
                "watch",
            ],
            Self::OneByOne => &["create", "delete", "get", "list", "patch", "update", "watch"],
            Self::CreateOnly => &["create"],
            Self::ReadOnly | Self::Measured => &["get", "list"],
        }
    }

    /// True if objects are stored.
    pub const fn are_stored(self) -> bool {
        matches!(self, Self::All | Self::OneByOne)
    }

    /// True if objects cannot be written.
    pub const fn only_read(self) -> bool {
        matches!(self, Self::ReadOnly | Self::Measured)
    }
}

/// Behavior of a PUT besides replacing the version that it names.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Updates {
    /// Creates the object if it does not exist.
    pub create: bool,
    /// Replaces the current version if the request names none.
    pub unconditional: bool,
}

impl Updates {
    /// Most kinds: the object must exist, its version need not be named.
    pub const PLAIN: Self = Self {
        create: false,
        unconditional: true,
    };
    /// Kinds that a PUT may create.
    pub const CREATE: Self = Self {
        create: true,
        unconditional: true,
    };
    /// Kinds whose version must be named.
    pub const CONDITIONAL: Self = Self {
        create: false,
        unconditional: false,
    };
    /// Kinds that a PUT may create, and whose version must be named to change them.
    pub const CREATE_CONDITIONAL: Self = Self {
        create: true,
        unconditional: false,
    };
}

/// A field that `fieldSelector` may name, besides `metadata.name` and `metadata.namespace`.
pub struct Field<K> {
    /// Path of the field, such as `spec.nodeName`.
    pub label: &'static str,
    /// Its value as text.
    pub value: fn(&K) -> String,
}

impl<K> Field<K> {
    /// Names a field.
    pub const fn new(label: &'static str, value: fn(&K) -> String) -> Self {
        Self { label, value }
    }
}

/// Other kind in whose form objects are stored, for one object with two representations.
pub struct Representation<K> {
    /// Group of the stored form; empty for core.
    pub group: &'static str,
    /// Version of the stored form.
    pub version: &'static str,
    /// Path segment of the stored form.
    pub plural: &'static str,
    /// Encodes the stored form as JSON.
    pub encode: fn(&K) -> Vec<u8>,
    /// Reads the stored form.
    pub decode: fn(&[u8]) -> Result<K, DecodeError>,
}

/// Default for the dependents of a deleted object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dependents {
    /// Deleted unless the client says otherwise.
    Collected,
    /// Kept unless the client says otherwise, as before there was a garbage collector.
    Orphaned,
    /// Dependents are ignored, whatever the client says.
    Unseen,
}

/// A kind of object that the control plane serves. Functions are pure; the server calls them in the
/// order: decode, `set_defaults`, `prepare_*`, `set_defaults`-dependent admission, `validate*`.
pub trait Kind:
    Resource<Scope: Scoped>
    + Metadata<Ty = ObjectMeta>
    + Serialize
    + DeserializeOwned
    + JsonSchema
    + Clone
    + PartialEq
    + Send
    + Sync
    + 'static
{
    /// Names such as `po` that clients may use for the plural.
    const SHORT_NAMES: &'static [&'static str] = &[];
    /// Groups of kinds, such as `all`.
    const CATEGORIES: &'static [&'static str] = &[];
    /// Subresources that are served.
    const SUBRESOURCES: &'static [Subresource] = &[];
    /// Verbs that are supported.
    const VERBS: Verbs = Verbs::All;
    /// Columns of the table besides the name.
    const COLUMNS: &'static [Column<Self>] = &[age_column::<Self>()];
    /// Members that cells show; if empty, all but the managed fields.
    const SHOWN: &'static [Shown] = &[];
    /// True if the name is the last, wide column instead of the first.
    const NAME_LAST: bool = false;
    /// Fields that selectors may name.
    const FIELDS: &'static [Field<Self>] = &[];
    /// Names that selectors use instead, each with the label of [`Kind::FIELDS`] that it stands
    /// for; if empty, the labels are the names.
    const FIELD_NAMES: &'static [(&'static str, &'static str)] = &[];
    /// The rule for `metadata.name`.
    const NAME: Rule = Rule::Subdomain;
    /// True if a write of status may also change labels, annotations, finalizers and owner
    /// references.
    const STATUS_WITH_METADATA: bool = true;
    /// True if `metadata.generation` counts changes of the spec.
    const GENERATION: bool = false;
    /// Behavior of a PUT.
    const UPDATES: Updates = Updates::PLAIN;
    /// True if a deletion returns the deleted object instead of a `Status`.
    const ANSWERS_DELETED: bool = false;
    /// Default for dependents when the owner is deleted.
    const DEPENDENTS: Dependents = Dependents::Collected;
    /// Deprecation warning that clients of the kind get.
    const DEPRECATED: Option<&'static str> = None;
    /// Set when objects are stored in another kind's form.
    const STORED_AS: Option<Representation<Self>> = None;

    /// The name as tables show it.
    fn shown_name(&self) -> String {
        self.metadata().name.clone().unwrap_or_default()
    }
    /// Reason and message for the row of an object that has run to completion.
    fn completed(&self) -> Option<(&'static str, &'static str)> {
        None
    }
    /// Keeps information from the client's JSON that the type cannot hold.
    fn decoded(&mut self, _json: &[u8]) {}
    /// Sets upstream's defaults. Idempotent.
    fn set_defaults(&mut self) {}
    /// Drops fields that a create must not set, such as status.
    fn prepare_create(&mut self) {}
    /// Keeps fields that an update of the main resource must not change, such as status.
    fn prepare_update(&mut self, _old: &Self) {}
    /// Keeps fields that an update of `status` must not change, such as spec.
    fn prepare_status(&mut self, _old: &Self) {}
    /// Keeps all fields but those that the kind's own subresource changes: `finalize` or
    /// `approval`.
    fn prepare_own(&mut self, old: &Self) {
        self.clone_from(old);
    }
    /// True if the spec differs, which increments `generation`.
    fn spec_changed(&self, _old: &Self) -> bool {
        false
    }
    /// Validates a new object, in addition to its metadata.
    fn validate(&self) -> Vec<Invalid> {
        Vec::new()
    }
    /// Validates an update, in addition to its metadata. The default applies the rules of a new
    /// object.
    fn validate_update(&self, _old: &Self) -> Vec<Invalid> {
        self.validate()
    }
    /// Validates an update of `status`.
    fn validate_status(&self, _old: &Self) -> Vec<Invalid> {
        Vec::new()
    }
    /// Validates an update of the kind's own subresource. The default applies the rules for
    /// `status`.
    fn validate_own(&self, old: &Self) -> Vec<Invalid> {
        self.validate_status(old)
    }
    /// Warnings for a client whose create, or update of `old`, is accepted.
    fn warnings(&self, _old: Option<&Self>) -> Vec<String> {
        Vec::new()
    }
    /// Warnings for a client whose update of `status` is accepted.
    fn status_warnings(&self) -> Vec<String> {
        Vec::new()
    }
    /// The `scale` subresource, if the kind has one.
    fn scale(&self) -> Option<Scale> {
        None
    }
    /// Sets the replicas of the `scale` subresource.
    fn set_scale(&mut self, _replicas: i32) {}
    /// Grace period of a deletion in seconds; 0 deletes immediately.
    fn grace(&self, _requested: Option<i64>) -> i64 {
        0
    }
}
