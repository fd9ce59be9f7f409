//! `ServiceCIDR`: a range of addresses for Services.

use k8s_openapi::api::networking::v1::{ServiceCIDR, ServiceCIDRStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use k8s_openapi::jiff::Timestamp;

use crate::invalid::Invalid;
use crate::kind::{Column, Kind, Subresource};
use crate::table::age_column;
use crate::validation::{immutable, is_range};

impl Kind for ServiceCIDR {
    const SUBRESOURCES: &'static [Subresource] = &[Subresource::Status];
    const COLUMNS: &'static [Column<Self>] = &[
        Column::text("CIDRs", "The ranges, one of each family at most.", |range, _| {
            let cidrs = range.spec.as_ref().and_then(|spec| spec.cidrs.as_ref());
            cidrs.map(|cidrs| cidrs.join(",")).unwrap_or_default().into()
        }),
        age_column(),
    ];

    fn set_defaults(&mut self) {
        self.spec.get_or_insert_default();
    }

    fn prepare_create(&mut self) {
        // Nothing has to be made ready: addresses are handed out of the range from now on.
        let ready = Condition {
            type_: "Ready".to_owned(),
            status: "True".to_owned(),
            reason: "NetworkReady".to_owned(),
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

    fn prepare_update(&mut self, old: &Self) {
        self.status.clone_from(&old.status);
    }

    fn prepare_status(&mut self, old: &Self) {
        self.spec.clone_from(&old.spec);
    }

    fn validate(&self) -> Vec<Invalid> {
        let cidrs = self
            .spec
            .as_ref()
            .and_then(|spec| spec.cidrs.as_deref())
            .unwrap_or_default();
        let mut errors = Vec::new();
        if cidrs.is_empty() {
            errors.push(Invalid::required("spec.cidrs", "at least one CIDR required"));
        }
        if cidrs.len() > 2 {
            let value = serde_json::to_string(&self.spec).unwrap_or_default();
            errors.push(Invalid::rendered("spec", value, "may only hold up to 2 values"));
        }
        for (index, cidr) in cidrs.iter().enumerate() {
            if !is_range(cidr) {
                let detail = "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)";
                errors.push(Invalid::value(format!("spec.cidrs[{index}]"), cidr, detail));
            }
        }
        errors
    }

    fn validate_update(&self, old: &Self) -> Vec<Invalid> {
        let mut errors = self.validate();
        immutable(&mut errors, "spec.cidrs", &self.spec, &old.spec);
        errors
    }
}
