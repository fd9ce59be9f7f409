//! Accessors of objects that several plans use.

use std::collections::BTreeMap;

use k8s_openapi::Metadata;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta, OwnerReference, Time};
use k8s_openapi::jiff::Timestamp;

use crate::step::{Resource, Target};

/// Labels or annotations.
pub type Map = BTreeMap<String, String>;

/// Metadata that every object has, in whatever form it is kept.
pub trait Meta {
    /// Its name, empty if it has none yet.
    fn name(&self) -> &str;
    /// Its namespace, empty if it has none.
    fn namespace(&self) -> &str;
    /// Its uid, empty if it has none yet.
    fn uid(&self) -> &str;
    /// Its revision as a number, 0 if it has none.
    fn revision(&self) -> u64;
    /// Its revision as a `resourceVersion`.
    fn resource_version(&self) -> Option<String>;
    /// Its labels.
    fn labels(&self) -> Option<&Map>;
    /// Its owner references.
    fn owners(&self) -> &[OwnerReference];
    /// Its finalizers.
    fn finalizers(&self) -> &[String];
    /// True if it is being deleted.
    fn is_deleting(&self) -> bool;
}

/// An object in any representation.
pub trait Object {
    /// Type of its metadata.
    type Meta: Meta;

    /// Its metadata.
    fn meta(&self) -> &Self::Meta;
}

/// An object of any kind and representation.
pub trait Whatever: Send + Sync {
    /// Its metadata.
    fn any_meta(&self) -> &dyn Meta;
}

impl<K: Object + Send + Sync> Whatever for K {
    fn any_meta(&self) -> &dyn Meta {
        self.meta()
    }
}

impl<K: Metadata<Ty = ObjectMeta>> Object for K {
    type Meta = ObjectMeta;

    fn meta(&self) -> &ObjectMeta {
        self.metadata()
    }
}

impl Meta for ObjectMeta {
    fn name(&self) -> &str {
        self.name.as_deref().unwrap_or_default()
    }

    fn namespace(&self) -> &str {
        self.namespace.as_deref().unwrap_or_default()
    }

    fn uid(&self) -> &str {
        self.uid.as_deref().unwrap_or_default()
    }

    fn revision(&self) -> u64 {
        revision_of(self)
    }

    fn resource_version(&self) -> Option<String> {
        self.resource_version.clone()
    }

    fn labels(&self) -> Option<&Map> {
        self.labels.as_ref()
    }

    fn owners(&self) -> &[OwnerReference] {
        self.owner_references.as_deref().unwrap_or_default()
    }

    fn finalizers(&self) -> &[String] {
        self.finalizers.as_deref().unwrap_or_default()
    }

    fn is_deleting(&self) -> bool {
        self.deletion_timestamp.is_some()
    }
}

/// The object's revision, 0 if it has none.
pub(crate) fn revision_of(metadata: &ObjectMeta) -> u64 {
    let text = metadata.resource_version.as_deref();
    text.and_then(|text| text.parse().ok()).unwrap_or(0)
}

/// Returns the target of a step for an object.
pub fn target<K: Object>(resource: Resource, object: &K) -> Target {
    let metadata = object.meta();
    Target {
        resource,
        namespace: metadata.namespace().to_owned(),
        name: metadata.name().to_owned(),
        uid: metadata.uid().to_owned(),
    }
}

/// The object's name, empty if it has none yet.
pub fn name<K: Object>(object: &K) -> &str {
    object.meta().name()
}

/// The object's uid, empty if it has none yet.
pub fn uid<K: Object>(object: &K) -> &str {
    object.meta().uid()
}

/// The owner reference of the object's controller, if it has one.
pub fn controller_of<M: Meta + ?Sized>(metadata: &M) -> Option<&OwnerReference> {
    metadata.owners().iter().find(|owner| owner.controller == Some(true))
}

/// The owner reference for objects that a controller creates.
pub fn controlled_by(owner: &Target) -> OwnerReference {
    OwnerReference {
        api_version: owner.resource.api_version(),
        kind: owner.resource.kind.to_owned(),
        name: owner.name.clone(),
        uid: owner.uid.clone(),
        controller: Some(true),
        block_owner_deletion: Some(true),
    }
}

/// The value of an annotation.
pub fn annotation<'a>(metadata: &'a ObjectMeta, key: &str) -> Option<&'a str> {
    metadata.annotations.as_ref()?.get(key).map(String::as_str)
}

/// True if a selector has no requirements.
pub(crate) fn is_empty(selector: &LabelSelector) -> bool {
    selector.match_labels.as_ref().is_none_or(BTreeMap::is_empty)
        && selector.match_expressions.as_ref().is_none_or(Vec::is_empty)
}

/// True if `labels` match `selector`. An empty selector matches nothing here: every controller's
/// selector is required.
pub fn selects(selector: &LabelSelector, labels: Option<&Map>) -> bool {
    !is_empty(selector) && matches(selector, labels)
}

/// True if `labels` match `selector`; an empty selector matches everything.
pub fn matches(selector: &LabelSelector, labels: Option<&Map>) -> bool {
    let get = |key: &str| labels.and_then(|labels| labels.get(key));
    let exact = selector
        .match_labels
        .iter()
        .flatten()
        .all(|(key, value)| get(key) == Some(value));
    exact
        && selector.match_expressions.iter().flatten().all(|expression| {
            let found = get(&expression.key);
            let listed = |value: &String| expression.values.as_deref().unwrap_or_default().contains(value);
            match expression.operator.as_str() {
                "In" => found.is_some_and(listed),
                "NotIn" => !found.is_some_and(listed),
                "Exists" => found.is_some(),
                "DoesNotExist" => found.is_none(),
                _ => false,
            }
        })
}

/// A selector as Go prints it
/// (`staging/src/k8s.io/apimachinery/pkg/apis/meta/v1/generated.pb.go`).
pub(crate) fn printed(selector: Option<&LabelSelector>) -> String {
    let Some(selector) = selector else {
        return "nil".to_owned();
    };
    let labels = selector.match_labels.iter().flatten();
    let labels: Vec<String> = labels.map(|(key, value)| format!("{key}: {value},")).collect();
    let expressions = selector.match_expressions.iter().flatten();
    let expressions = expressions.map(|expression| {
        let values = expression.values.as_deref().unwrap_or_default().join(" ");
        let (key, operator) = (&expression.key, &expression.operator);
        format!("LabelSelectorRequirement{{Key:{key},Operator:{operator},Values:[{values}],}},")
    });
    let (labels, expressions) = (labels.concat(), expressions.collect::<Vec<_>>().concat());
    format!(
        "&LabelSelector{{MatchLabels:map[string]string{{{labels}}},MatchExpressions:[]LabelSelectorRequirement{{{expressions}}},}}"
    )
}

/// `now` with the precision of timestamps in objects: whole seconds.
pub fn seconds(now: Timestamp) -> Time {
    Time(Timestamp::from_second(now.as_second()).unwrap_or(now))
}
