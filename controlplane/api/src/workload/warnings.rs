//! Warnings about accepted objects, in upstream's words (`pkg/api/…/warnings.go` and the
//! strategies).

mod addresses;
mod paths;
mod ports;
mod template;

use k8s_openapi::api::core::v1::{NodeSelectorTerm, PersistentVolumeClaimSpec};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as Text;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

pub(crate) use addresses::{of_address, of_range};
pub(crate) use template::{of_job, of_maker, of_pod, of_template};

use crate::value::names::dns1123_label;
use crate::value::quantity::Quantity;

/// Number of items that are compared pairwise: warnings must not cost more than the request.
const COMPARED: usize = 128;

/// Deprecated labels of nodes.
const OLD_LABELS: [(&str, &str); 8] = [
    (
        "beta.kubernetes.io/arch",
        "deprecated since v1.14; use \"kubernetes.io/arch\" instead",
    ),
    (
        "beta.kubernetes.io/os",
        "deprecated since v1.14; use \"kubernetes.io/os\" instead",
    ),
    (
        "failure-domain.beta.kubernetes.io/region",
        "deprecated since v1.17; use \"topology.kubernetes.io/region\" instead",
    ),
    (
        "failure-domain.beta.kubernetes.io/zone",
        "deprecated since v1.17; use \"topology.kubernetes.io/zone\" instead",
    ),
    (
        "beta.kubernetes.io/instance-type",
        "deprecated since v1.17; use \"node.kubernetes.io/instance-type\" instead",
    ),
    ("app.kubernetes.io/created-by", "deprecated since v1.9"),
    (
        "scheduler.alpha.kubernetes.io/preferAvoidPods",
        "deprecated since v1.22; use Taints and Tolerations instead",
    ),
    (
        "node-role.kubernetes.io/master",
        "use \"node-role.kubernetes.io/control-plane\" instead",
    ),
];

/// Warning about a deprecated node label.
pub(crate) fn old_label(label: &str) -> Option<&'static str> {
    let found = OLD_LABELS.iter().find(|(own, _)| *own == label);
    found.map(|(_, message)| *message)
}

fn of_term(warnings: &mut Vec<String>, term: &NodeSelectorTerm, path: &str) {
    for (index, expression) in term.match_expressions.iter().flatten().enumerate() {
        if let Some(message) = old_label(&expression.key) {
            let key = &expression.key;
            warnings.push(format!("{path}.matchExpressions[{index}].key: {key} is {message}"));
        }
    }
}

/// Warns about node selector terms.
pub(crate) fn of_terms(warnings: &mut Vec<String>, terms: &[NodeSelectorTerm], path: &str) {
    for (index, term) in terms.iter().enumerate() {
        of_term(warnings, term, &format!("{path}[{index}]"));
    }
}

/// Warns about the mount options annotation, which a field has replaced.
pub(crate) fn mount_options_annotation(warnings: &mut Vec<String>, metadata: &ObjectMeta) {
    const OLD: &str = "volume.beta.kubernetes.io/mount-options";
    if has_annotation(metadata, OLD) {
        warnings.push(format!(
            "metadata.annotations[{OLD}]: deprecated since v1.31; use \"mountOptions\" attribute instead"
        ));
    }
}

/// Warns about the storage class annotation of volumes and claims.
pub(crate) fn storage_class_annotation(warnings: &mut Vec<String>, metadata: &ObjectMeta) {
    const OLD: &str = "volume.beta.kubernetes.io/storage-class";
    if has_annotation(metadata, OLD) {
        warnings.push(format!(
            "metadata.annotations[{OLD}]: deprecated since v1.8; use \"storageClassName\" attribute instead"
        ));
    }
}

pub(crate) fn has_annotation(metadata: &ObjectMeta, name: &str) -> bool {
    metadata.annotations.as_ref().is_some_and(|all| all.contains_key(name))
}

/// Warns about a fraction of a byte.
fn fraction(warnings: &mut Vec<String>, amount: Option<&Text>, field: impl FnOnce() -> String) {
    if let Some(amount) = amount.filter(|amount| Quantity::of(amount).milli() % 1000 != 0) {
        let (field, text) = (field(), &amount.0);
        warnings.push(format!(
            "{field}: fractional byte value {text:?} is invalid, must be an integer"
        ));
    }
}

/// Warns about a claim's spec at any path.
pub(crate) fn of_claim(warnings: &mut Vec<String>, spec: &PersistentVolumeClaimSpec, path: &str) {
    let Some(asked) = &spec.resources else { return };
    for (list, name) in [(&asked.requests, "requests"), (&asked.limits, "limits")] {
        let amount = list.as_ref().and_then(|list| list.get("storage"));
        fraction(warnings, amount, || format!("{path}.resources.{name}[storage]"));
    }
}

/// Warning about a name that is the prefix of pod names and host names.
pub(crate) fn pods_name(metadata: &ObjectMeta) -> Option<String> {
    host_name(metadata, "Pod names and hostnames")
}

/// Warning about a name that is a host name.
pub(crate) fn pod_name(metadata: &ObjectMeta) -> Option<String> {
    host_name(metadata, "the Pod's hostname")
}

fn host_name(metadata: &ObjectMeta, what: &str) -> Option<String> {
    let problems = dns1123_label(metadata.name.as_deref().unwrap_or_default());
    (!problems.is_empty()).then(|| {
        let problems = problems.join(" ");
        format!(
            "metadata.name: this is used in {what}, which can result in surprising behavior; a DNS label is recommended: \
             [{problems}]"
        )
    })
}
