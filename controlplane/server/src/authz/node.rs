//! Node authorization: the rules of the role `system:node`, restricted to objects related to the
//! node. Follows upstream's node authorizer, with its messages. `admission::node` checks what an
//! agent writes into objects.

use api::kinds::node::REVERSE_CONNECTION;
use api::pod::References;
use api::selector::FieldSelector;
use k8s_openapi::api::core::v1::{PersistentVolume, Pod, PodSpec};
use k8s_openapi::api::storage::v1::VolumeAttachment;
use serde::de::DeserializeOwned;
use store::{Entry, Key, Prefix, Store};

use super::policy;
use super::{Action, Attributes, Resource, rules};

const LEASES: &str = "kube-node-lease";

/// Authorizes an agent's request, or returns a reason, which may be empty.
pub(super) fn decide(store: &Store, node: &str, attributes: &Attributes<'_>) -> Result<(), String> {
    let wanted = match attributes.action {
        Action::Resource(wanted) => wanted,
        Action::Path(path) if attributes.verb == "get" && path == REVERSE_CONNECTION => return Ok(()),
        Action::Path(_) => return Err(String::new()),
    };
    let request = Request {
        store,
        node,
        verb: attributes.verb,
        wanted,
    };
    match (wanted.group, wanted.resource) {
        ("", "secrets" | "configmaps") => request.reads_namespaced(),
        ("", "persistentvolumeclaims") if wanted.subresource == "status" => request.writes_status(),
        ("", "persistentvolumeclaims" | "persistentvolumes")
        | ("storage.k8s.io", "volumeattachments")
        | ("resource.k8s.io", "resourceclaims") => request.gets(),
        ("", "serviceaccounts") => request.uses_account(),
        ("coordination.k8s.io", "leases") => request.has_lease(),
        ("storage.k8s.io", "csinodes") => request.has_csi_node(),
        ("resource.k8s.io", "resourceslices") => request.has_slice(),
        ("", "nodes") => request.has_node(),
        ("", "pods") => request.has_pod(),
        ("", "namespaces") if request.follows_peers() => Ok(()),
        _ if policy::node_rules().iter().any(|rule| rules::allows(rule, attributes)) => Ok(()),
        _ => Err(String::new()),
    }
}

struct Request<'a> {
    store: &'a Store,
    node: &'a str,
    verb: &'a str,
    wanted: Resource<'a>,
}

fn no(reason: &str) -> Result<(), String> {
    Err(reason.to_owned())
}

impl Request<'_> {
    fn reads(&self) -> bool {
        matches!(self.verb, "get" | "list" | "watch")
    }

    fn reads_namespaced(&self) -> Result<(), String> {
        if !self.reads() {
            return no("can only read resources of this type");
        }
        if !self.wanted.subresource.is_empty() {
            return no("cannot read subresource");
        }
        if self.wanted.namespace.is_empty() {
            return no("can only read namespaced object of this type");
        }
        self.related()
    }

    fn gets(&self) -> Result<(), String> {
        if self.verb != "get" {
            return no("can only get individual resources of this type");
        }
        if !self.wanted.subresource.is_empty() {
            return no("cannot get subresource");
        }
        self.related()
    }

    fn writes_status(&self) -> Result<(), String> {
        if matches!(self.verb, "update" | "patch") {
            self.related()
        } else {
            no("can only get/update/patch this type")
        }
    }

    fn uses_account(&self) -> Result<(), String> {
        if self.verb == "get" && self.wanted.subresource.is_empty() {
            return self.related();
        }
        if self.verb != "create" || self.wanted.name.is_empty() {
            return no("can only create tokens for individual service accounts");
        }
        if self.wanted.subresource != "token" {
            return no("can only create token subresource of serviceaccount");
        }
        self.related()
    }

    fn has_lease(&self) -> Result<(), String> {
        if !matches!(self.verb, "get" | "create" | "update" | "patch" | "delete") {
            return no("can only get, create, update, patch, or delete a node lease");
        }
        if self.wanted.namespace != LEASES {
            return Err(format!("can only access leases in the {LEASES:?} system namespace"));
        }
        // The name of a created object is in the body, which admission checks.
        if self.verb != "create" && self.wanted.name != self.node {
            return no("can only access node lease with the same name as the requesting node");
        }
        Ok(())
    }

    fn has_csi_node(&self) -> Result<(), String> {
        if !matches!(self.verb, "get" | "create" | "update" | "patch" | "delete") {
            return no("can only get, create, update, patch, or delete a CSINode");
        }
        if !self.wanted.subresource.is_empty() {
            return no("cannot authorize CSINode subresources");
        }
        if self.verb != "create" && self.wanted.name != self.node {
            return no("can only access CSINode with the same name as the requesting node");
        }
        Ok(())
    }

    fn has_slice(&self) -> Result<(), String> {
        if !self.wanted.subresource.is_empty() {
            return no("cannot authorize ResourceSlice subresources");
        }
        match self.verb {
            // The node of a created object is in the body, which admission checks.
            "create" => Ok(()),
            "get" | "update" | "patch" | "delete" => self.related(),
            "list" | "watch" | "deletecollection" if self.selects_own() => Ok(()),
            "list" | "watch" | "deletecollection" => {
                no("can only list/watch/deletecollection resourceslices with nodeName field selector")
            }
            _ => no(
                "only the following verbs are allowed for a ResourceSlice: get, watch, list, create, update, patch, delete, \
                 deletecollection",
            ),
        }
    }

    fn has_node(&self) -> Result<(), String> {
        let Self { node, wanted, .. } = self;
        match (wanted.subresource, self.verb) {
            ("", "create" | "update" | "patch") | ("status", "update" | "patch") => Ok(()),
            ("", "get" | "list" | "watch") if wanted.name == *node => Ok(()),
            ("", "get" | "list" | "watch") if wanted.name.is_empty() => {
                Err(format!("node '{node}' cannot read all nodes, only its own Node object"))
            }
            ("", "get" | "list" | "watch") => Err(format!(
                "node '{node}' cannot read '{}', only its own Node object",
                wanted.name
            )),
            _ => no(""),
        }
    }

    fn has_pod(&self) -> Result<(), String> {
        match (self.wanted.subresource, self.verb) {
            ("", "get") => self.related(),
            ("", "list" | "watch") if self.selects_own() => Ok(()),
            ("", "list" | "watch") if !self.wanted.name.is_empty() => self.related(),
            ("", "list" | "watch") if self.follows_peers() => Ok(()),
            ("", "list" | "watch") => no("can only list/watch pods with spec.nodeName field selector"),
            ("", "create" | "delete") | ("status", "update" | "patch") | ("eviction", "create") => Ok(()),
            _ => no(""),
        }
    }

    /// True if the request lists pods or namespaces that network policies select and at least one
    /// policy exists.
    fn follows_peers(&self) -> bool {
        let lists = matches!(self.verb, "list" | "watch") && self.wanted.subresource.is_empty();
        let policies = Prefix::resource("networking.k8s.io", "networkpolicies");
        lists && self.store.has_any(&policies)
    }

    fn selects_own(&self) -> bool {
        FieldSelector::parse(self.wanted.field_selector)
            .is_ok_and(|selector| selector.exact("spec.nodeName") == Some(self.node))
    }

    /// Checks that the object is related to this node.
    fn related(&self) -> Result<(), String> {
        let Resource { namespace, name, .. } = self.wanted;
        if name.is_empty() {
            return no("No Object name found");
        }
        let related = match self.wanted.resource {
            "pods" => self.is_own_pod(namespace, name),
            "secrets" => {
                self.names(namespace, |spec| References::of(spec).secrets.contains(name))
                    || self.has_volume_with((namespace, name))
            }
            "configmaps" => self.names(namespace, |spec| References::of(spec).config_maps.contains(name)),
            "serviceaccounts" => self.runs_as(namespace, name),
            "persistentvolumeclaims" => self.claims(namespace, name),
            "persistentvolumes" => self.has_volume(name),
            "resourceslices" => Key::new("resource.k8s.io", "resourceslices", "", name)
                .ok()
                .and_then(|key| self.store.get(&key))
                .is_some_and(|slice| is_bound(&slice, self.node)),
            "volumeattachments" => self
                .get::<VolumeAttachment>("storage.k8s.io", "volumeattachments", name)
                .is_some_and(|attachment| attachment.spec.node_name == self.node),
            _ => false,
        };
        if related {
            return Ok(());
        }
        Err(format!(
            "no relationship found between node '{}' and this object",
            self.node
        ))
    }

    /// True if the pod is bound to this node or does not exist: an agent must be able to find out
    /// that its pod is gone.
    fn is_own_pod(&self, namespace: &str, name: &str) -> bool {
        let pod = Key::new("", "pods", namespace, name)
            .ok()
            .and_then(|key| self.store.get(&key));
        pod.is_none_or(|pod| is_bound(&pod, self.node))
    }

    /// True if a pod of this node in the namespace references the object.
    fn names(&self, namespace: &str, find: impl Fn(&PodSpec) -> bool) -> bool {
        let prefix = Prefix::namespace("", "pods", namespace);
        let pods = self.store.select(&prefix, |pod| is_bound(pod, self.node));
        pods.iter()
            .filter_map(|pod| serde_json::from_slice::<Pod>(&pod.bytes).ok()?.spec)
            .any(|spec| find(&spec))
    }

    /// True if a pod of this node in the namespace has the service account. Each pod asks for a
    /// token, so this must not decode all others.
    fn runs_as(&self, namespace: &str, account: &str) -> bool {
        let prefix = Prefix::namespace("", "pods", namespace);
        let has_account = |pod: &Entry| has(pod, "spec.serviceAccountName", account);
        self.store
            .any(&prefix, |pod| is_bound(pod, self.node) && has_account(pod))
    }

    fn claims(&self, namespace: &str, claim: &str) -> bool {
        let prefix = Prefix::namespace("", "pods", namespace);
        let pods = self.store.select(&prefix, |pod| is_bound(pod, self.node));
        pods.iter().any(|pod| {
            let Ok(Pod { spec: Some(spec), .. }) = serde_json::from_slice(&pod.bytes) else {
                return false;
            };
            spec.volumes.iter().flatten().any(|volume| {
                let named = volume.persistent_volume_claim.as_ref();
                named.is_some_and(|named| named.claim_name == claim)
                    // A claim that is made for the pod is named after it.
                    || volume.ephemeral.is_some() && claim == format!("{}-{}", pod.key.name(), volume.name)
            })
        })
    }

    fn has_volume(&self, name: &str) -> bool {
        let volume: Option<PersistentVolume> = self.get("", "persistentvolumes", name);
        volume.is_some_and(|volume| self.is_claimed(&volume))
    }

    /// True if the driver of one of the node's volumes needs the Secret there.
    fn has_volume_with(&self, secret: (&str, &str)) -> bool {
        // Not all are decoded for each Secret.
        let named = |volume: &Entry| str::from_utf8(&volume.bytes).is_ok_and(|text| text.contains(secret.1));
        let volumes = self.store.select(&Prefix::resource("", "persistentvolumes"), named);
        let mut volumes = volumes
            .iter()
            .filter_map(|volume| serde_json::from_slice::<PersistentVolume>(&volume.bytes).ok());
        volumes.any(|volume| needs(&volume, secret) && self.is_claimed(&volume))
    }

    /// True if a pod of this node uses the volume's claim.
    fn is_claimed(&self, volume: &PersistentVolume) -> bool {
        let claim = volume.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref());
        claim.is_some_and(|claim| {
            let (namespace, name) = (claim.namespace.as_deref(), claim.name.as_deref());
            self.claims(namespace.unwrap_or_default(), name.unwrap_or_default())
        })
    }

    fn get<T: DeserializeOwned>(&self, group: &str, plural: &str, name: &str) -> Option<T> {
        let entry = self.store.get(&Key::new(group, plural, "", name).ok()?)?;
        serde_json::from_slice(&entry.bytes).ok()
    }
}

/// True if a volume's driver needs the Secret on nodes (`VisitPVSecretNames`,
/// `pkg/api/v1/persistentvolume/util.go`).
fn needs(volume: &PersistentVolume, secret: (&str, &str)) -> bool {
    let Some(source) = volume.spec.as_ref().and_then(|spec| spec.csi.as_ref()) else {
        return false;
    };
    let secrets = [
        &source.node_publish_secret_ref,
        &source.node_stage_secret_ref,
        &source.node_expand_secret_ref,
    ];
    let mut secrets = secrets.into_iter().flatten();
    secrets.any(|own| (own.namespace.as_deref(), own.name.as_deref()) == (Some(secret.0), Some(secret.1)))
}

/// True if a pod is bound to the node, or a slice belongs to it.
pub(crate) fn is_bound(object: &Entry, node: &str) -> bool {
    has(object, "spec.nodeName", node)
}

fn has(object: &Entry, field: &str, wanted: &str) -> bool {
    let mut fields = object.attributes.fields.iter();
    fields.any(|(label, value)| *label == field && **value == *wanted)
}
