//! Lease: a heartbeat or a lock.

use k8s_openapi::api::coordination::v1::Lease;

use crate::kind::{Kind, Updates};
use crate::table::{Column, age_column};
use crate::value::invalid::Invalid;
use crate::workload::validation::non_negative;

impl Kind for Lease {
    const UPDATES: Updates = Updates::CREATE_CONDITIONAL;
    const COLUMNS: &'static [Column<Self>] = &[
        Column::text("Holder", "coordination.v1.LeaseSpec.holderIdentity", |lease, _| {
            lease
                .spec
                .as_ref()
                .and_then(|spec| spec.holder_identity.clone())
                .unwrap_or_default()
                .into()
        }),
        age_column(),
    ];

    fn set_defaults(&mut self) {
        self.spec.get_or_insert_default();
    }

    fn validate(&self) -> Vec<Invalid> {
        let mut errors = Vec::new();
        let Some(spec) = &self.spec else { return errors };
        if let Some(seconds) = spec.lease_duration_seconds.filter(|seconds| *seconds <= 0) {
            errors.push(Invalid::value(
                "spec.leaseDurationSeconds",
                seconds,
                "must be greater than 0",
            ));
        }
        non_negative(
            &mut errors,
            "spec.leaseTransitions",
            i64::from(spec.lease_transitions.unwrap_or(0)),
        );
        errors
    }
}
