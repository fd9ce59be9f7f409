//! Service CIDRs: a finalizer protects each for as long as an address needs it.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use api::cidr::Cidr;
use k8s_openapi::api::networking::v1::ServiceCIDR;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use k8s_openapi::jiff::Timestamp;
use serde_json::json;

use crate::objects::{name, seconds, target};
use crate::step::{Plan, SERVICE_RANGES, Step};

/// Finalizer that protects a range.
pub const FINALIZER: &str = "networking.k8s.io/service-cidr-finalizer";
/// Time that an unused range stays after its deletion was requested: by then, no API server
/// allocates from it.
const GRACE: Duration = Duration::from_secs(10);
const READY: &str = "Ready";

/// Makes the plan for one range. `all` holds all of them, `addresses` the allocated addresses.
pub fn plan(range: &ServiceCIDR, all: &[Arc<ServiceCIDR>], addresses: &[IpAddr], now: Timestamp) -> Plan {
    let mut plan = Plan::default();
    let finalizers = range.metadata.finalizers.as_deref().unwrap_or_default();
    let is_held = finalizers.iter().any(|own| own == FINALIZER);
    let Some(deleted) = &range.metadata.deletion_timestamp else {
        if !is_held {
            let with = finalizers.iter().map(String::as_str).chain([FINALIZER]);
            plan.stage(vec![finalize(range, &with.collect::<Vec<_>>())]);
        }
        plan.stage(condition(range, true, now).into_iter().collect());
        return plan;
    };
    if !is_held {
        return plan;
    }
    if is_needed(range, all, addresses) {
        plan.stage(condition(range, false, now).into_iter().collect());
        return plan;
    }
    let since = Duration::try_from(now.duration_since(deleted.0)).unwrap_or_default();
    let rest = GRACE.saturating_sub(since);
    if rest.is_zero() {
        let rest = finalizers.iter().map(String::as_str).filter(|own| *own != FINALIZER);
        plan.stage(vec![finalize(range, &rest.collect::<Vec<_>>())]);
    } else {
        plan.again(rest);
    }
    plan
}

/// True if some address lies in this range alone and no other range covers the whole of it.
fn is_needed(range: &ServiceCIDR, all: &[Arc<ServiceCIDR>], addresses: &[IpAddr]) -> bool {
    let own: Vec<Cidr> = prefixes(range).collect();
    let others = || all.iter().filter(|other| name(&***other) != name(range));
    let is_covered = |own: &Cidr| others().any(|other| prefixes(other).any(|other| other.covers(*own)));
    !own.iter().all(is_covered)
        && addresses.iter().any(|address| {
            let has = |prefix: &Cidr| prefix.contains(*address);
            own.iter().any(has) && !others().any(|other| prefixes(other).any(|prefix| has(&prefix)))
        })
}

fn finalize(range: &ServiceCIDR, finalizers: &[&str]) -> Step {
    target(SERVICE_RANGES, range).merge(json!({
        "metadata": {
            "uid": range.metadata.uid,
            "resourceVersion": range.metadata.resource_version,
            "finalizers": finalizers,
        },
    }))
}

/// Sets the Ready condition, or the reason why the range is not deleted, if it changed.
fn condition(range: &ServiceCIDR, ready: bool, now: Timestamp) -> Option<Step> {
    let (status, reason, message) = if ready {
        ("True", "", "Kubernetes Service CIDR is ready")
    } else {
        let message =
            "There are still IPAddresses referencing the ServiceCIDR, please remove them or create a new ServiceCIDR";
        ("False", "Terminating", message)
    };
    let all = range.status.as_ref().and_then(|status| status.conditions.as_deref());
    let mut all: Vec<Condition> = all.unwrap_or_default().to_vec();
    let said = |own: &Condition| own.status == status && own.reason == reason && own.message == message;
    if all.iter().any(|own| own.type_ == READY && said(own)) {
        return None;
    }
    all.retain(|own| own.type_ != READY);
    all.push(Condition {
        type_: READY.to_owned(),
        status: status.to_owned(),
        reason: reason.to_owned(),
        message: message.to_owned(),
        last_transition_time: seconds(now),
        observed_generation: None,
    });
    Some(
        target(SERVICE_RANGES, range)
            .merge_status(json!({ "metadata": { "uid": range.metadata.uid }, "status": { "conditions": all } })),
    )
}

fn prefixes(range: &ServiceCIDR) -> impl Iterator<Item = Cidr> {
    let texts = range.spec.iter().filter_map(|spec| spec.cidrs.as_ref()).flatten();
    texts.filter_map(|text| text.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: &str = "2026-01-01T00:01:00Z";

    fn range(name: &str, cidrs: &[&str], deleted: Option<&str>) -> Arc<ServiceCIDR> {
        let object = json!({
            "metadata": { "name": name, "uid": name, "deletionTimestamp": deleted, "finalizers": ["other", FINALIZER] },
            "spec": { "cidrs": cidrs },
            "status": { "conditions": [
                { "type": "Ready", "status": "True", "reason": "", "message": "Kubernetes Service CIDR is ready", "lastTransitionTime": NOW },
            ] },
        });
        Arc::new(serde_json::from_value(object).unwrap())
    }

    /// Returns the plan for the first of the ranges.
    fn planned(all: &[Arc<ServiceCIDR>], addresses: &[&str]) -> String {
        let addresses: Vec<IpAddr> = addresses.iter().map(|text| text.parse().unwrap()).collect();
        let plan = plan(&all[0], all, &addresses, NOW.parse().unwrap());
        let bodies = plan.stages.iter().flatten().map(|step| {
            let Step::Patch { body, .. } = step else {
                panic!("{step}")
            };
            let told = body.pointer("/status/conditions/0/reason");
            told.or(body.pointer("/metadata/finalizers")).unwrap().to_string()
        });
        let again = plan.again.map(|delay| format!("again in {}s", delay.as_secs()));
        bodies.chain(again).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn a_range_is_held_and_ready() {
        assert_eq!(planned(&[range("a", &["10.0.0.0/24"], None)], &[]), "");
        let mut new = (*range("a", &["10.0.0.0/24"], None)).clone();
        (new.metadata.finalizers, new.status) = (None, None);
        assert_eq!(planned(&[Arc::new(new)], &[]), format!("[\"{FINALIZER}\"] \"\""));
    }

    #[test]
    fn one_that_goes_waits_for_its_addresses() {
        let long_ago = Some("2026-01-01T00:00:00Z");
        let own = range("a", &["10.0.0.0/24", "fd00::/112"], long_ago);
        let gone = "[\"other\"]";
        for (others, addresses, expected) in [
            (&[][..], &["10.0.1.1", "::1"][..], gone),
            (&[], &["10.0.0.7"], "\"Terminating\""),
            (&[], &["fd00::7"], "\"Terminating\""),
            // Another range covers all of it, or just the address.
            (&[&["10.0.0.0/16", "fd00::/64"][..]][..], &["10.0.0.7", "fd00::7"], gone),
            (&[&["10.0.0.0/28"]], &["10.0.0.7"], gone),
            (&[&["10.0.0.0/28"]], &["10.0.0.7", "10.0.0.17"], "\"Terminating\""),
        ] {
            let others = others.iter().map(|cidrs| range("b", cidrs, None));
            let all: Vec<_> = [own.clone()].into_iter().chain(others).collect();
            assert_eq!(planned(&all, addresses), expected, "{addresses:?}");
        }
    }

    #[test]
    fn one_that_nobody_needs_goes_after_a_while() {
        let own = range("a", &["10.0.0.0/24"], Some("2026-01-01T00:00:53Z"));
        assert_eq!(planned(&[own], &[]), "again in 3s");
    }
}
