//! IP families of Services, in upstream's order: before allocation (`initIPFamilyFields` in
//! `pkg/registry/core/service/storage/alloc.go`).

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::ServiceSpec;

use super::{is_headless, needs_cluster_ip};
use crate::value::invalid::Invalid;
use crate::workload::validation::{self, one_of_or_none};

const FAMILIES: [&str; 2] = ["IPv4", "IPv6"];
const SINGLE: &str = "SingleStack";
const DUAL: &str = "RequireDualStack";
const PREFER: &str = "PreferDualStack";
const POLICY: &str = "spec.ipFamilyPolicy";

fn list(of: Option<&Vec<String>>) -> &[String] {
    of.map_or(&[], Vec::as_slice)
}

fn rendered(of: Option<&Vec<String>>) -> String {
    serde_json::to_string(&of).unwrap_or_default()
}

/// IP family of an address.
pub fn family_of(address: &str) -> &'static str {
    if address.contains(':') { "IPv6" } else { "IPv4" }
}

/// True if a service that prefers dual-stack keeps its families, whatever the cluster supports now
/// (`isMatchingPreferDualStackClusterIPFields`, there).
pub fn is_left(spec: &ServiceSpec, old: Option<&ServiceSpec>) -> bool {
    old.is_some_and(|old| {
        let is_other = |policy: &Option<String>| policy.as_deref().is_some_and(|policy| policy != PREFER);
        spec.ip_family_policy.is_some()
            && spec.type_ == old.type_
            && needs_cluster_ip(spec)
            && !is_other(&spec.ip_family_policy)
            && !is_other(&old.ip_family_policy)
            && list(spec.cluster_ips.as_ref()) == list(old.cluster_ips.as_ref())
            && list(spec.ip_families.as_ref()) == list(old.ip_families.as_ref())
    })
}

/// Defaults the family policy and families of a service with a cluster IP, or returns the
/// conflicts. `configured` are the cluster's families, the default one first.
pub fn init(spec: &mut ServiceSpec, old: Option<&ServiceSpec>, configured: &[&str]) -> Vec<Invalid> {
    if !needs_cluster_ip(spec) || is_left(spec, old) {
        return Vec::new();
    }
    let usual_family = configured.first().copied().unwrap_or("IPv4");
    // Without a selector, a headless service's endpoints may be of any family.
    let is_free = spec.cluster_ip.as_deref() == Some("None") && spec.selector.as_ref().is_none_or(BTreeMap::is_empty);
    let usual = if is_free { DUAL } else { SINGLE };
    let before = old.and_then(|old| old.ip_family_policy.clone());
    let policy = spec
        .ip_family_policy
        .get_or_insert_with(|| before.unwrap_or_else(|| usual.to_owned()))
        .clone();
    let mut errors = related(spec, old);
    if !errors.is_empty() {
        return errors;
    }
    if let Some(old) = old {
        reduce(&mut errors, spec, old, &policy);
    }
    let pairs = [(&spec.cluster_ips, "cluster IPs"), (&spec.ip_families, "IP families")];
    for (_, what) in pairs
        .into_iter()
        .filter(|(own, _)| policy == SINGLE && list(own.as_ref()).len() == 2)
    {
        let detail = format!("must be 'RequireDualStack' or 'PreferDualStack' when multiple {what} are specified");
        errors.push(Invalid::value(POLICY, &policy, detail));
    }
    infer(&mut errors, spec, configured);
    if !errors.is_empty() {
        return errors;
    }
    let families = spec.ip_families.get_or_insert_default();
    if is_free {
        if families.is_empty() {
            families.push(usual_family.to_owned());
        }
        add_second(families, &policy);
        return errors;
    }
    if policy == DUAL && configured.len() < 2 {
        let detail = "this cluster is not configured for dual-stack services";
        errors.push(Invalid::value(POLICY, &policy, detail));
    }
    let unknown = |(_, family): &(usize, &String)| !configured.contains(&family.as_str());
    for (index, family) in families.iter().enumerate().filter(unknown) {
        let field = format!("spec.ipFamilies[{index}]");
        errors.push(Invalid::value(field, family, "not configured on this cluster"));
    }
    if !errors.is_empty() {
        return errors;
    }
    if families.is_empty() {
        families.push(usual_family.to_owned());
    }
    if configured.len() == 2 {
        add_second(families, &policy);
    }
    errors
}

/// Adds the second family unless the policy is single-stack.
fn add_second(families: &mut Vec<String>, policy: &str) {
    if let [own] = families.as_slice()
        && policy != SINGLE
    {
        let other = FAMILIES.iter().find(|family| own != *family);
        families.extend(other.map(|other| (*other).to_owned()));
    }
}

/// Drops the second address and family of a service that becomes single-stack, and rejects their
/// removal otherwise.
fn reduce(errors: &mut Vec<Invalid>, spec: &mut ServiceSpec, old: &ServiceSpec, policy: &str) {
    let pairs = [
        (&mut spec.cluster_ips, &old.cluster_ips, "cluster IP"),
        (&mut spec.ip_families, &old.ip_families, "IP family"),
    ];
    for (own, old, what) in pairs {
        if policy == SINGLE {
            if own == old
                && let Some(own) = own
            {
                own.truncate(1);
            }
        } else if !list(own.as_ref()).is_empty() && list(own.as_ref()).len() < list(old.as_ref()).len() {
            let detail = format!("must be 'SingleStack' to release the secondary {what}");
            errors.push(Invalid::value(POLICY, policy, detail));
        }
    }
}

/// Infers families from the addresses.
fn infer(errors: &mut Vec<Invalid>, spec: &mut ServiceSpec, configured: &[&str]) {
    let known = list(spec.ip_families.as_ref()).len();
    let own = list(spec.cluster_ips.as_ref()).iter().enumerate();
    for (index, address) in own.take_while(|(_, address)| *address != "None").skip(known) {
        let family = family_of(address);
        if configured.contains(&family) {
            spec.ip_families.get_or_insert_default().push(family.to_owned());
        } else {
            let field = format!("spec.clusterIPs[{index}]");
            let detail = format!("{family} is not configured on this cluster");
            errors.push(Invalid::rendered(field, rendered(spec.cluster_ips.as_ref()), detail));
        }
    }
}

/// Validates addresses, families and policy together
/// (`ValidateServiceClusterIPsRelatedFields` in `pkg/apis/core/validation/validation.go`).
pub(super) fn related(spec: &ServiceSpec, old: Option<&ServiceSpec>) -> Vec<Invalid> {
    let mut errors = Vec::new();
    if !needs_cluster_ip(spec) {
        return errors;
    }
    let (own, families) = (list(spec.cluster_ips.as_ref()), list(spec.ip_families.as_ref()));
    let whole = |detail: &str| Invalid::rendered("spec.clusterIPs", rendered(spec.cluster_ips.as_ref()), detail);
    match (own.first(), spec.cluster_ip.as_ref().filter(|own| !own.is_empty())) {
        (None, Some(_)) => errors.push(Invalid::required("spec.clusterIPs", "")),
        (Some(_), None) => errors.push(whole("must be empty when `clusterIP` is not specified")),
        (Some(first), Some(own)) if own != first => errors.push(whole("first value must match `clusterIP`")),
        (None | Some(_), _) => {}
    }
    for (index, family) in families.iter().enumerate() {
        let field = format!("spec.ipFamilies[{index}]");
        one_of_or_none(&mut errors, &field, Some(family), &FAMILIES);
        if families.iter().take(index).any(|other| other == family) {
            errors.push(Invalid::duplicate(field, family));
        }
    }
    let policies = [PREFER, DUAL, SINGLE];
    one_of_or_none(&mut errors, POLICY, spec.ip_family_policy.as_deref(), &policies);
    let before = old.map(|old| list(old.cluster_ips.as_ref())).unwrap_or_default();
    let mut are_valid = true;
    for (index, address) in own.iter().enumerate() {
        let known = errors.len();
        if index == 0 && address == "None" {
            if own.len() > 1 {
                errors.push(whole("'None' must be the first and only value"));
            }
        } else if !before.contains(address) {
            validation::address(&mut errors, &format!("spec.clusterIPs[{index}]"), address);
        }
        are_valid &= errors.len() == known;
    }
    if own.len() > 2 {
        errors.push(whole("may only hold up to 2 values"));
    }
    if !are_valid {
        return errors;
    }
    let sixes = own.iter().filter(|address| address.contains(':')).count();
    if own.len() > 1 && (sixes == 0 || sixes == own.len()) {
        errors.push(whole("may specify no more than one IP for each IP family"));
    }
    let both = own.iter().zip(families).enumerate().filter(|_| !is_headless(spec));
    for (index, (address, family)) in both {
        if address.contains(':') != (family == "IPv6") {
            let family = if family == "IPv6" { family } else { "IPv4" };
            let detail = format!("expected an {family} value as indicated by `ipFamilies[{index}]`");
            errors.push(Invalid::value(format!("spec.clusterIPs[{index}]"), address, detail));
        }
    }
    errors
}

/// Validates a change of addresses and families: the second ones may come and go, the first ones
/// stay (`validateUpgradeDowngradeClusterIPs` and `validateUpgradeDowngradeIPFamilies` in
/// `pkg/apis/core/validation/validation.go`).
pub(super) fn validate_change(errors: &mut Vec<Invalid>, new: &ServiceSpec, old: &ServiceSpec) {
    if !needs_cluster_ip(new) || !needs_cluster_ip(old) {
        return;
    }
    let is_headless = |spec: &ServiceSpec| matches!(list(spec.cluster_ips.as_ref()), [address] if address == "None");
    if is_headless(new) && is_headless(old) {
        return;
    }
    let (own, before) = (list(new.cluster_ips.as_ref()), list(old.cluster_ips.as_ref()));
    let whole = rendered(new.cluster_ips.as_ref());
    let unset = own.is_empty().then_some("primary clusterIP can not be unset");
    errors.extend(changed(
        "spec.clusterIPs",
        (own, before),
        &whole,
        unset,
        "clusterIP",
        new,
    ));
    if is_headless(new) != is_headless(old) {
        return;
    }
    let (families, known) = (list(new.ip_families.as_ref()), list(old.ip_families.as_ref()));
    let whole = if families.len() == known.len() || own.is_empty() {
        rendered(new.ip_families.as_ref())
    } else {
        whole
    };
    let unset = own.is_empty().then_some("primary ipFamily can not be unset");
    let found = changed("spec.ipFamilies", (families, known), &whole, unset, "ipFamily", new);
    // Upstream names the first one, whichever it is.
    errors.extend(found.into_iter().map(|mut error| {
        if error.field == "spec.ipFamilies[1]" {
            "spec.ipFamilies[0]".clone_into(&mut error.field);
        }
        error
    }));
}

/// Errors of a changed list. `whole` shows it; `unset` is the error for a list without a primary.
fn changed(
    field: &str,
    (new, old): (&[String], &[String]),
    whole: &str,
    unset: Option<&str>,
    what: &str,
    spec: &ServiceSpec,
) -> Vec<Invalid> {
    let mut errors = Vec::new();
    let fault = |index: usize, detail: &str| Invalid::rendered(format!("{field}[{index}]"), whole.to_owned(), detail);
    if new.len() == old.len() {
        let pairs = new.iter().zip(old).enumerate().filter(|(_, (new, old))| new != old);
        return pairs
            .map(|(index, _)| fault(index, "may not change once set"))
            .collect();
    }
    let is_shorter = new.len() < old.len();
    errors.extend(unset.filter(|_| is_shorter).map(|detail| fault(0, detail)));
    if let (Some(new), Some(old)) = (new.first(), old.first())
        && new != old
    {
        errors.push(fault(0, "may not change once set"));
    }
    let policy = spec.ip_family_policy.as_deref();
    if is_shorter && new.len() == 1 && policy != Some(SINGLE) {
        let detail = format!("must be set to 'SingleStack' when releasing the secondary {what}");
        errors.push(Invalid::rendered(
            POLICY,
            serde_json::to_string(&policy).unwrap_or_default(),
            detail,
        ));
    }
    errors
}
