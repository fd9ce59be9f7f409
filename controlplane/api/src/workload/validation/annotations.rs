//! Validation of pod annotations that upstream treats like fields.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{PodSpec, Toleration};

use super::pod_spec::affinity;
use super::{metadata, no_backsteps};
use crate::schema::decode::syntax;
use crate::value::invalid::Invalid;

const MIRROR: &str = "kubernetes.io/config.mirror";
const TOLERATIONS: &str = "scheduler.alpha.kubernetes.io/tolerations";
const DELETION_COST: &str = "controller.kubernetes.io/pod-deletion-cost";
const SECCOMP: &str = "seccomp.security.alpha.kubernetes.io/pod";
const SECCOMP_OF: &str = "container.seccomp.security.alpha.kubernetes.io/";
const APPARMOR_OF: &str = "container.apparmor.security.beta.kubernetes.io/";

/// Number of tolerations in an annotation that are validated.
const JUDGED: usize = 100;

type Annotations = BTreeMap<String, String>;

/// Validates the annotations at `path` of a pod or a pod template.
pub(crate) fn of_pod(errors: &mut Vec<Invalid>, all: Option<&Annotations>, spec: &PodSpec, path: &str) {
    let Some(all) = all else { return };
    if all.iter().map(|(key, value)| key.len() + value.len()).sum::<usize>() > metadata::ANNOTATIONS_LIMIT {
        // The length is reported elsewhere; errors in long annotations would have no limit.
        return;
    }
    let on_node = spec.node_name.as_ref().is_some_and(|name| !name.is_empty());
    if let Some(value) = all.get(MIRROR).filter(|_| !on_node) {
        let detail = "must set spec.nodeName if mirror pod annotation is set";
        errors.push(Invalid::value(format!("{path}[{MIRROR}]"), value, detail));
    }
    if let Some(text) = all.get(TOLERATIONS).filter(|text| !text.is_empty()) {
        tolerations(errors, text, path);
    }
    if let Some(cost) = all.get(DELETION_COST).filter(|cost| !is_cost(cost)) {
        let field = format!("{path}[{DELETION_COST}]");
        errors.push(Invalid::value(field, cost, "must be a 32bit integer"));
    }
    for (key, value) in all
        .iter()
        .filter(|(key, _)| *key == SECCOMP || key.starts_with(SECCOMP_OF))
    {
        seccomp(errors, value, &format!("{path}.{key}"));
    }
    let mut profiles = all
        .iter()
        .filter_map(|(key, value)| Some((key, key.strip_prefix(APPARMOR_OF)?, value)))
        .peekable();
    if profiles.peek().is_none() {
        return;
    }
    let names = names(spec);
    for (key, name, value) in profiles {
        apparmor(errors, &names, (name, value), &format!("{path}[{key}]"));
    }
}

fn names(spec: &PodSpec) -> BTreeSet<&str> {
    let own = spec.containers.iter().map(|own| own.name.as_str());
    let first = spec.init_containers.iter().flatten().map(|own| own.name.as_str());
    let added = spec.ephemeral_containers.iter().flatten().map(|own| own.name.as_str());
    own.chain(first).chain(added).collect()
}

/// Validates changes of a pod's annotations.
pub(crate) fn changes(errors: &mut Vec<Invalid>, new: Option<&Annotations>, old: Option<&Annotations>, path: &str) {
    let value = |all: Option<&Annotations>, key: &str| all.and_then(|all| all.get(key)).cloned();
    let fixed = |key: &&String| *key == MIRROR || key.starts_with(APPARMOR_OF);
    let words = |key: &str, doing: &str| match key {
        MIRROR => format!("may not {doing} mirror pod annotation"),
        _ => format!("may not {doing} AppArmor annotations"),
    };
    for (doing, these, others) in [("remove or update", old, new), ("add", new, old)] {
        for key in these.iter().flat_map(|all| all.keys()).filter(fixed) {
            let (own, other) = (value(these, key), value(others, key));
            let is_change = if doing == "add" { other.is_none() } else { own != other };
            if is_change {
                errors.push(Invalid::forbidden(format!("{path}[{key}]"), words(key, doing)));
            }
        }
    }
}

fn tolerations(errors: &mut Vec<Invalid>, text: &str, path: &str) {
    match serde_json::from_str::<Option<Vec<Toleration>>>(text) {
        Ok(tolerations) => {
            let path = format!("{path}.{TOLERATIONS}");
            let tolerations = tolerations.unwrap_or_default();
            affinity::tolerations(errors, tolerations.get(..JUDGED).unwrap_or(&tolerations), &path);
        }
        Err(error) => errors.push(Invalid::value(
            path,
            TOLERATIONS,
            syntax::words(text.as_bytes(), &error),
        )),
    }
}

/// True for an integer without a plus sign or leading zeros.
fn is_cost(text: &str) -> bool {
    let first = text.bytes().next().unwrap_or(b'+');
    (matches!(first, b'-' | b'1'..=b'9') || text == "0") && text.parse::<i32>().is_ok()
}

fn seccomp(errors: &mut Vec<Invalid>, profile: &str, field: &str) {
    match profile {
        "runtime/default" | "docker/default" | "unconfined" => {}
        _ => match profile.strip_prefix("localhost/") {
            Some(file) => {
                if file.starts_with('/') {
                    errors.push(Invalid::value(field, file, "must be a relative path"));
                }
                no_backsteps(errors, field, file);
            }
            None => errors.push(Invalid::value(field, profile, "must be a valid seccomp profile")),
        },
    }
}

fn apparmor(errors: &mut Vec<Invalid>, names: &BTreeSet<&str>, (name, profile): (&str, &str), field: &str) {
    if !names.contains(name) {
        errors.push(Invalid::value(field, name, "container not found"));
    }
    if !matches!(profile, "" | "runtime/default" | "unconfined") && !profile.starts_with("localhost/") {
        let detail = format!("invalid AppArmor profile name: {profile:?}");
        errors.push(Invalid::value(field, profile, detail));
    }
}

/// Refuses profiles in fields that contradict those in annotations
/// (`validateSeccompAnnotationsAndFields` and `validateAppArmorAnnotationsAndFieldsMatchOnCreate` of
/// `pkg/apis/core/validation/validation.go`). `path` is the specification's.
pub(crate) fn contradictions(errors: &mut Vec<Invalid>, all: Option<&Annotations>, spec: &PodSpec, path: &str) {
    let Some(all) = all else { return };
    let pod = spec.security_context.as_ref();
    if let (Some(text), Some(profile)) = (all.get(SECCOMP), pod.and_then(|pod| pod.seccomp_profile.as_ref())) {
        let path = format!("{path}.securityContext.seccompProfile");
        agree(
            errors,
            "seccomp",
            text,
            (profile.type_.as_str(), profile.localhost_profile.as_deref()),
            &path,
        );
    }
    let is_windows = spec.os.as_ref().is_some_and(|os| os.name == "windows");
    let first = spec.init_containers.as_deref().unwrap_or_default();
    for (list, containers) in [("initContainers", first), ("containers", spec.containers.as_slice())] {
        for (index, container) in containers.iter().enumerate() {
            let own = container.security_context.as_ref();
            let path = format!("{path}.{list}[{index}].securityContext");
            let text = all.get(&format!("{SECCOMP_OF}{}", container.name));
            if let (Some(text), Some(profile)) = (text, own.and_then(|own| own.seccomp_profile.as_ref())) {
                let profile = (profile.type_.as_str(), profile.localhost_profile.as_deref());
                agree(errors, "seccomp", text, profile, &format!("{path}.seccompProfile"));
            }
            let text = all.get(&format!("{APPARMOR_OF}{}", container.name));
            let own = own.and_then(|own| own.app_armor_profile.as_ref());
            let profile = own.or_else(|| pod.and_then(|pod| pod.app_armor_profile.as_ref()));
            if let (Some(text), Some(profile)) = (text.filter(|_| !is_windows), profile) {
                let profile = (profile.type_.as_str(), profile.localhost_profile.as_deref());
                agree(errors, "apparmor", text, profile, &format!("{path}.appArmorProfile"));
            }
        }
    }
}

fn agree(errors: &mut Vec<Invalid>, word: &str, text: &str, (kind, file): (&str, Option<&str>), path: &str) {
    let local = text.strip_prefix("localhost/");
    let is_same = match kind {
        "Unconfined" => text == "unconfined",
        "RuntimeDefault" => text == "runtime/default" || word == "seccomp" && text == "docker/default",
        "Localhost" => local.is_some(),
        _ => true,
    };
    if !is_same {
        let detail = format!("{word} type in annotation and field must match");
        errors.push(Invalid::forbidden(format!("{path}.type"), detail));
    } else if kind == "Localhost" && local != file {
        let detail = format!("{word} profile in annotation and field must match");
        errors.push(Invalid::forbidden(format!("{path}.localhostProfile"), detail));
    }
}
