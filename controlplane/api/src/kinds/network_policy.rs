//! `NetworkPolicy`: which traffic pods may have.

use k8s_openapi::api::networking::v1::{NetworkPolicy, NetworkPolicyPort, NetworkPolicySpec};

mod validation;

use crate::invalid::Invalid;
use crate::kind::{Column, Kind};
use crate::pod::defaults::text;
use crate::table::{age_column, selector_or_none};

impl Kind for NetworkPolicy {
    const SHORT_NAMES: &'static [&'static str] = &["netpol"];
    const GENERATION: bool = true;
    const COLUMNS: &'static [Column<Self>] = &[
        Column::text("Pod-Selector", "Which pods it is about.", |policy, _| {
            let spec = policy.spec.as_ref();
            selector_or_none(spec.and_then(|spec| spec.pod_selector.as_ref())).into()
        }),
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
