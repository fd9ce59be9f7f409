//! Nodes that are eligible for a DaemonSet's pods, and the pod for one of them.

use std::collections::BTreeMap;

use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::{
    Node, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, Pod as Whole, PodSpec, PodTemplateSpec, Toleration,
};

use crate::objects::{annotation, name};
use crate::placement::affinity;
use crate::placement::filters::untolerated;
use crate::pod::Pod;
use crate::pod::node_of;
use crate::step::Target;
use crate::workloads::history::REVISION;
use crate::workloads::pod_template;

/// Annotation with the generation of a DaemonSet's template, and the label of its pods with it.
const GENERATION: (&str, &str) = ("deprecated.daemonset.template.generation", "pod-template-generation");

/// Taints that every pod of a DaemonSet tolerates (`AddOrUpdateDaemonPodTolerations` in
/// `pkg/controller/daemon/util/daemonset_util.go`).
const TOLERATED: [(&str, &str); 6] = [
    ("node.kubernetes.io/not-ready", "NoExecute"),
    ("node.kubernetes.io/unreachable", "NoExecute"),
    ("node.kubernetes.io/disk-pressure", "NoSchedule"),
    ("node.kubernetes.io/memory-pressure", "NoSchedule"),
    ("node.kubernetes.io/pid-pressure", "NoSchedule"),
    ("node.kubernetes.io/unschedulable", "NoSchedule"),
];
const HOST_NETWORK: (&str, &str) = ("node.kubernetes.io/network-unavailable", "NoSchedule");

/// Fit of a node for a DaemonSet (`NodeShouldRunDaemonPod`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fit {
    /// The node runs a pod.
    Runs,
    /// An existing pod may stay: only a `NoSchedule` taint prevents a new one.
    Stays,
    /// The node has no pod.
    Never,
}

/// Template of a DaemonSet's pods, with the default tolerations.
pub(super) struct Placing {
    template: PodTemplateSpec,
    generation: Option<i64>,
}

impl Placing {
    pub(super) fn of(set: &DaemonSet, template: &PodTemplateSpec) -> Self {
        let mut template = template.clone();
        let spec = template.spec.get_or_insert_default();
        let tolerations = spec.tolerations.get_or_insert_default();
        let host_network = spec.host_network == Some(true);
        for (key, effect) in TOLERATED.into_iter().chain(host_network.then_some(HOST_NETWORK)) {
            let wanted = Toleration {
                key: Some(key.to_owned()),
                operator: Some("Exists".to_owned()),
                effect: Some(effect.to_owned()),
                ..Toleration::default()
            };
            // A toleration of the same key, effect and operator with a time limit is replaced
            // (`MatchToleration`).
            tolerations.retain(|own| {
                Toleration {
                    toleration_seconds: None,
                    ..own.clone()
                } != wanted
            });
            tolerations.push(wanted);
        }
        Self {
            template,
            generation: annotation(&set.metadata, GENERATION.0).and_then(|text| text.parse().ok()),
        }
    }

    fn spec(&self) -> Option<&PodSpec> {
        self.template.spec.as_ref()
    }

    pub(super) fn fit(&self, node: &Node) -> Fit {
        let Some(spec) = self.spec() else { return Fit::Never };
        let named = spec
            .node_name
            .as_deref()
            .is_none_or(|wanted| wanted.is_empty() || wanted == name(node));
        let tolerations = spec.tolerations.as_deref().unwrap_or_default();
        let refused = |effects: &[&str]| untolerated(node, tolerations, effects).is_some();
        if !named || !affinity::required(spec, node) || refused(&["NoExecute"]) {
            Fit::Never
        } else if refused(&["NoSchedule"]) {
            Fit::Stays
        } else {
            Fit::Runs
        }
    }

    /// The pod for a node (`CreatePodTemplate`, `ReplaceDaemonSetPodNodeNameNodeAffinity`).
    pub(super) fn pod(&self, owner: &Target, hash: &str, node: &str) -> Whole {
        let mut pod = pod_template::pod(owner, &self.template);
        let labels: &mut BTreeMap<_, _> = pod.metadata.labels.get_or_insert_default();
        labels.insert(REVISION.to_owned(), hash.to_owned());
        if let Some(generation) = self.generation {
            labels.insert(GENERATION.1.to_owned(), generation.to_string());
        }
        let affinity = pod.spec.get_or_insert_default().affinity.get_or_insert_default();
        let required = &mut affinity
            .node_affinity
            .get_or_insert_default()
            .required_during_scheduling_ignored_during_execution;
        *required = Some(NodeSelector {
            node_selector_terms: vec![NodeSelectorTerm {
                match_fields: Some(vec![NodeSelectorRequirement {
                    key: "metadata.name".to_owned(),
                    operator: "In".to_owned(),
                    values: Some(vec![node.to_owned()]),
                }]),
                match_expressions: None,
            }],
        });
        pod
    }

    /// True if a pod is of the current template (`IsPodUpdated`).
    pub(super) fn is_current(&self, pod: &Pod, hash: &str) -> bool {
        use crate::objects::Meta as _;
        let label = |key: &str| pod.metadata.labels().and_then(|labels| labels.get(key));
        let generation = self.generation.map(|generation| generation.to_string());
        label(REVISION).is_some_and(|own| own == hash)
            || generation.is_some_and(|generation| label(GENERATION.1) == Some(&generation))
    }
}

/// The node that a pod is bound to or waits for (`GetTargetNodeName`).
pub(super) fn target_node(pod: &Pod) -> Option<&str> {
    if let Some(node) = node_of(pod) {
        return Some(node);
    }
    let affinity = pod.spec.as_ref()?.affinity.as_ref()?.node_affinity.as_ref()?;
    let required = affinity.required_during_scheduling_ignored_during_execution.as_ref()?;
    let fields = required
        .node_selector_terms
        .iter()
        .flat_map(|term| term.match_fields.iter().flatten());
    let mut named = fields.filter(|field| field.key == "metadata.name" && field.operator == "In");
    match named.next()?.values.as_deref()? {
        [node] => Some(node),
        _ => None,
    }
}
