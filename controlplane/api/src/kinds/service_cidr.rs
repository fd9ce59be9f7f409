//! `ServiceCIDR`: an IP range for Services.

use k8s_openapi::api::networking::v1::{ServiceCIDR, ServiceCIDRStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use k8s_openapi::jiff::Timestamp;

use crate::kind::{Kind, Subresource};
use crate::table::{Column, age_column};
use crate::value::cidr::Cidr;
use crate::value::invalid::Invalid;
use crate::workload::validation::{canonical_range, immutable};

impl Kind for ServiceCIDR {
    const SUBRESOURCES: &'static [Subresource] = &[Subresource::Status];
    const STATUS_WITH_METADATA: bool = false;
    const COLUMNS: &'static [Column<Self>] = &[
        Column::text("CIDRs", "networking.v1.ServiceCIDRSpec.cidrs", |range, _| {
            let cidrs = range.spec.as_ref().and_then(|spec| spec.cidrs.as_ref());
            cidrs.map(|cidrs| cidrs.join(",")).unwrap_or_default().into()
        }),
        age_column(),
    ];

    fn set_defaults(&mut self) {
        self.spec.get_or_insert_default();
    }

    fn prepare_create(&mut self) {
        // No preparation is needed: addresses can be allocated from the range immediately.
        let ready = Condition {
            type_: "Ready".to_owned(),
            status: "True".to_owned(),
            reason: String::new(),
            message: "Kubernetes Service CIDR is ready".to_owned(),
            last_transition_time: self
                .metadata
                .creation_timestamp
                .clone()
                .unwrap_or(Time(Timestamp::UNIX_EPOCH)),
            observed_generation: None,
        };
        self.status = Some(ServiceCIDRStatus {
            conditions: Some(vec![ready]),
        });
    }

    crate::kept_apart!();

    fn validate(&self) -> Vec<Invalid> {
        validate(cidrs(self))
    }

    /// A range of the other family may be added; nothing else may change.
    fn validate_update(&self, old: &Self) -> Vec<Invalid> {
        let (new, old) = (cidrs(self), cidrs(old));
        let mut errors = Vec::new();
        match (old, new) {
            ([own], [first, _]) => {
                fixed(&mut errors, 0, first, own);
                errors.extend(validate(new));
            }
            _ if old.len() == new.len() => {
                for (index, (new, old)) in new.iter().zip(old).enumerate() {
                    fixed(&mut errors, index, new, old);
                }
            }
            _ => immutable(&mut errors, "spec.cidrs", &new, &old),
        }
        errors
    }
}

fn cidrs(range: &ServiceCIDR) -> &[String] {
    let spec = range.spec.as_ref();
    spec.and_then(|spec| spec.cidrs.as_deref()).unwrap_or_default()
}

fn fixed(errors: &mut Vec<Invalid>, index: usize, new: &String, old: &String) {
    immutable(errors, &format!("spec.cidrs[{index}]"), new, old);
}

fn validate(cidrs: &[String]) -> Vec<Invalid> {
    const FIELD: &str = "spec.cidrs";
    let mut errors = Vec::new();
    if cidrs.is_empty() {
        return vec![Invalid::required(FIELD, "at least one CIDR required")];
    }
    if cidrs.len() > 2 {
        // Upstream shows its internal structure, whose fields have Go's names.
        let value = serde_json::json!({ "CIDRs": cidrs }).to_string();
        return vec![Invalid::rendered(FIELD, value, "may only hold up to 2 values")];
    }
    for (index, cidr) in cidrs.iter().enumerate() {
        canonical_range(&mut errors, &format!("{FIELD}[{index}]"), cidr);
    }
    let parsed = cidrs.iter().map(|cidr| cidr.parse::<Cidr>());
    if let [Ok(first), Ok(second)] = parsed.collect::<Vec<_>>().as_slice()
        && first.is_ipv6() == second.is_ipv6()
    {
        let detail = "may specify no more than one IP for each IP family, i.e 192.168.0.0/24 and 2001:db8::/64";
        let value = serde_json::to_string(cidrs).unwrap_or_default();
        errors.push(Invalid::rendered(FIELD, value, detail));
    }
    errors
}
