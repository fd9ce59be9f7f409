//! `NetworkPolicy`: allowed traffic of pods.

use k8s_openapi::api::networking::v1::{NetworkPolicy, NetworkPolicyPort, NetworkPolicySpec};

mod validation;

use crate::kind::Kind;
use crate::table::{Column, age_column, selector_or_none};
use crate::value::invalid::Invalid;
use crate::workload::pod::defaults::text;
use crate::workload::warnings::of_range;

impl Kind for NetworkPolicy {
    const SHORT_NAMES: &'static [&'static str] = &["netpol"];
    const GENERATION: bool = true;
    const COLUMNS: &'static [Column<Self>] = &[
        Column::text(
            "Pod-Selector",
            "networking.v1.NetworkPolicySpec.podSelector",
            |policy, _| {
                let spec = policy.spec.as_ref();
                selector_or_none(spec.and_then(|spec| spec.pod_selector.as_ref())).into()
            },
        ),
        age_column(),
    ];

    fn set_defaults(&mut self) {
        let spec = self.spec.get_or_insert_default();
        spec.pod_selector.get_or_insert_default();
        if spec.policy_types.as_ref().is_none_or(Vec::is_empty) {
            let mut types = vec!["Ingress".to_owned()];
            if spec.egress.as_ref().is_some_and(|rules| !rules.is_empty()) {
                types.push("Egress".to_owned());
            }
            spec.policy_types = Some(types);
        }
        ports(spec).for_each(|port| text(&mut port.protocol, "TCP"));
    }

    fn warnings(&self, _old: Option<&Self>) -> Vec<String> {
        let mut warnings = Vec::new();
        let Some(spec) = &self.spec else { return warnings };
        let into = spec.ingress.iter().flatten().map(|rule| rule.from.as_ref());
        let out = spec.egress.iter().flatten().map(|rule| rule.to.as_ref());
        let into = into
            .enumerate()
            .map(|(index, peers)| (format!("spec.ingress[{index}].from"), peers));
        let out = out
            .enumerate()
            .map(|(index, peers)| (format!("spec.egress[{index}].to"), peers));
        for (path, peers) in into.chain(out) {
            for (index, peer) in peers.into_iter().flatten().enumerate() {
                let Some(block) = &peer.ip_block else { continue };
                let path = format!("{path}[{index}].ipBlock");
                of_range(&mut warnings, &block.cidr, &format!("{path}.cidr"));
                for (index, except) in block.except.iter().flatten().enumerate() {
                    of_range(&mut warnings, except, &format!("{path}.except[{index}]"));
                }
            }
        }
        warnings
    }

    fn validate(&self) -> Vec<Invalid> {
        self.spec.as_ref().map(validation::validate).unwrap_or_default()
    }

    crate::spec_alone!();
}

fn ports(spec: &mut NetworkPolicySpec) -> impl Iterator<Item = &mut NetworkPolicyPort> {
    let into = spec.ingress.iter_mut().flatten().flat_map(|rule| rule.ports.iter_mut());
    let out = spec.egress.iter_mut().flatten().flat_map(|rule| rule.ports.iter_mut());
    into.chain(out).flatten()
}
