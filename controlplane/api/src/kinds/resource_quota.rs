//! `ResourceQuota`: limits on the total resources of a namespace.

use k8s_openapi::api::core::v1::ResourceQuota;

mod validation;

use crate::kind::{Kind, Subresource};
use crate::table::{Column, age_column};
use crate::value::invalid::Invalid;
use crate::value::quantity::Quantity;
use crate::workload::pod::defaults::amounts;

impl Kind for ResourceQuota {
    const ANSWERS_DELETED: bool = true;
    const SHORT_NAMES: &'static [&'static str] = &["quota"];
    const SUBRESOURCES: &'static [Subresource] = &[Subresource::Status];
    const COLUMNS: &'static [Column<Self>] = &[
        Column::text(
            "Request",
            "Request represents a minimum amount of cpu/memory that a container may consume.",
            |quota, _| used(quota, false).into(),
        ),
        Column::text(
            "Limit",
            "Limits control the maximum amount of cpu/memory that a container may use independent of contention on the node.",
            |quota, _| used(quota, true).into(),
        ),
        age_column(),
    ];

    fn set_defaults(&mut self) {
        let spec = self.spec.get_or_insert_default();
        spec.hard.iter_mut().for_each(amounts);
        let status = self.status.get_or_insert_default();
        for list in [&mut status.hard, &mut status.used].into_iter().flatten() {
            amounts(list);
        }
    }

    crate::spec_and_status!();

    /// Warns about requests above limits in new quotas.
    fn warnings(&self, old: Option<&Self>) -> Vec<String> {
        let hard = self.spec.as_ref().and_then(|spec| spec.hard.as_ref());
        let Some(hard) = hard.filter(|_| old.is_none()) else {
            return Vec::new();
        };
        let resources = ["cpu", "memory", "storage", "ephemeral-storage"].into_iter();
        let warnings = resources.filter_map(|resource| {
            let plain = hard
                .get_key_value(resource)
                .filter(|_| ["cpu", "memory"].contains(&resource));
            let (request, least) = hard.get_key_value(&format!("requests.{resource}")).or(plain)?;
            let (limit, most) = hard.get_key_value(&format!("limits.{resource}"))?;
            let exceeds = Quantity::of(least) > Quantity::of(most);
            exceeds.then(|| {
                format!(
                    "ResourceQuota {request} ({}) should be less than {limit} ({})",
                    least.0, most.0
                )
            })
        });
        warnings.collect()
    }

    fn validate(&self) -> Vec<Invalid> {
        self.spec.as_ref().map(validation::validate).unwrap_or_default()
    }

    fn validate_update(&self, old: &Self) -> Vec<Invalid> {
        let (new, old) = (
            self.spec.clone().unwrap_or_default(),
            old.spec.clone().unwrap_or_default(),
        );
        validation::update(&new, &old)
    }

    fn validate_status(&self, _old: &Self) -> Vec<Invalid> {
        let mut errors = Vec::new();
        let status = self.status.as_ref();
        for (amounts, path) in [
            (status.and_then(|status| status.hard.as_ref()), "status.hard"),
            (status.and_then(|status| status.used.as_ref()), "status.used"),
        ] {
            validation::amounts(&mut errors, amounts, path);
        }
        errors
    }
}

/// `cpu: 1/2, pods: 3/10`, for limits or for everything else.
fn used(quota: &ResourceQuota, of_limits: bool) -> String {
    let Some(status) = &quota.status else {
        return String::new();
    };
    let used = |name: &str| {
        let amount = status.used.as_ref().and_then(|used| used.get(name));
        amount.map_or("0", |amount| amount.0.as_str())
    };
    let parts = status.hard.iter().flatten();
    let parts = parts.filter(|(name, _)| name.starts_with("limits.") == of_limits);
    let texts: Vec<String> = parts
        .map(|(name, hard)| format!("{name}: {}/{}", used(name), hard.0))
        .collect();
    texts.join(", ")
}
