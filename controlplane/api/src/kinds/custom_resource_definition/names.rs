//! Accepted names of a `CustomResourceDefinition`, and the conditions about them.

use std::collections::BTreeSet;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceConversion, CustomResourceDefinition, CustomResourceDefinitionCondition,
    CustomResourceDefinitionNames, CustomResourceDefinitionStatus,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use x509_parser::pem::Pem;

use super::APPROVED;

/// Names that are taken in a group.
#[derive(Debug, Default)]
pub struct Taken {
    resources: BTreeSet<String>,
    kinds: BTreeSet<String>,
}

impl Taken {
    /// Takes the names that a definition was given.
    pub fn add(&mut self, names: &CustomResourceDefinitionNames) {
        self.resources.insert(names.plural.clone());
        self.resources.extend(names.singular.clone());
        self.resources.extend(names.short_names.iter().flatten().cloned());
        self.kinds.insert(names.kind.clone());
        self.kinds.extend(names.list_kind.clone());
    }

    /// Takes the names of a built-in kind.
    pub fn add_row(&mut self, row: &crate::Registration) {
        let resources = [row.plural, row.singular]
            .into_iter()
            .chain(row.short_names.iter().copied());
        self.resources.extend(resources.map(str::to_owned));
        self.kinds.extend([row.kind, row.list_kind].map(str::to_owned));
    }

    fn refuses(used: &BTreeSet<String>, wanted: &str, accepted: &str) -> Option<String> {
        (wanted != accepted && used.contains(wanted)).then(|| format!("{wanted:?} is already in use"))
    }
}

/// Updates the accepted names and the conditions of a definition from its spec and the names that
/// other definitions of its group have (`calculateNamesAndConditions` of
/// `pkg/controller/status/naming_controller.go`; its `establishing_controller.go` and
/// `apiapproval_controller.go`).
pub fn settle(definition: &mut CustomResourceDefinition, taken: &Taken, now: Timestamp) {
    let wanted = definition.spec.names.clone();
    let mut status = definition.status.take().unwrap_or_default();
    let accepted = status.accepted_names.take().unwrap_or_default();
    let (names, conflict) = calculate(&wanted, accepted, taken);
    status.accepted_names = Some(names);
    let is_accepted = conflict.is_none();
    let accepted = match conflict {
        None => condition("NamesAccepted", true, "NoConflicts", "no conflicts found"),
        Some((reason, message)) => condition("NamesAccepted", false, reason, &message),
    };
    set(&mut status, accepted, now);
    if !is_true(&status, "Established") {
        let established = if !is_accepted {
            condition("Established", false, "NotAccepted", "not all names are accepted")
        } else if definition.spec.conversion.as_ref().is_some_and(has_bad_bundle) {
            let message = "The conversion webhook CABundle is invalid";
            condition("Established", false, "InvalidCABundle", message)
        } else {
            let message = "the initial names have been accepted";
            condition("Established", true, "InitialNamesAccepted", message)
        };
        set(&mut status, established, now);
    }
    if is_protected(&definition.spec.group) {
        let (approval, message) = approval_of(definition);
        let (is_approved, reason) = match approval {
            Approval::Invalid => (false, "InvalidAnnotation"),
            Approval::Missing => (false, "MissingAnnotation"),
            Approval::Approved => (true, "ApprovedAnnotation"),
            Approval::Bypassed => (false, "UnapprovedAnnotation"),
        };
        let conformant = condition("KubernetesAPIApprovalPolicyConformant", is_approved, reason, &message);
        set(&mut status, conformant, now);
    }
    definition.status = Some(status);
}

/// True if a conversion's webhook has a CA bundle without a certificate (`ValidateCABundle` of
/// `staging/src/k8s.io/apiserver/pkg/util/webhook/validation.go`).
pub(super) fn has_bad_bundle(conversion: &CustomResourceConversion) -> bool {
    let webhook = conversion.webhook.as_ref();
    let client = webhook.and_then(|webhook| webhook.client_config.as_ref());
    let bundle = client.and_then(|client| client.ca_bundle.as_ref());
    bundle.is_some_and(|own| !own.0.is_empty() && !Pem::iter_from_buffer(&own.0).any(|pem| pem.is_ok()))
}

type Conflict = Option<(&'static str, String)>;

/// Accepted names of a definition, and the conflicts of the others.
fn calculate(
    wanted: &CustomResourceDefinitionNames,
    mut names: CustomResourceDefinitionNames,
    taken: &Taken,
) -> (CustomResourceDefinitionNames, Conflict) {
    let mut conflict = None;
    let mut decide = |used, reason, wanted: &str, accepted: &str| match Taken::refuses(used, wanted, accepted) {
        Some(message) => {
            conflict = Some((reason, message));
            false
        }
        None => true,
    };
    if decide(&taken.resources, "PluralConflict", &wanted.plural, &names.plural) {
        names.plural.clone_from(&wanted.plural);
    }
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    let (own, accepted) = (text(&wanted.singular), text(&names.singular));
    if decide(&taken.resources, "SingularConflict", &own, &accepted) {
        names.singular.clone_from(&wanted.singular);
    }
    let known = names.short_names.clone().unwrap_or_default();
    let refused = wanted.short_names.iter().flatten().filter(|name| !known.contains(name));
    let mut refused: Vec<String> = refused
        .filter_map(|name| Taken::refuses(&taken.resources, name, ""))
        .collect();
    refused.dedup();
    let (own, accepted) = (text(&wanted.list_kind), text(&names.list_kind));
    let kinds = [
        decide(&taken.kinds, "KindConflict", &wanted.kind, &names.kind),
        decide(&taken.kinds, "ListKindConflict", &own, &accepted),
    ];
    match refused.as_slice() {
        [] => names.short_names.clone_from(&wanted.short_names),
        several => {
            let message = match several {
                [only] => only.clone(),
                several => format!("[{}]", several.join(", ")),
            };
            // Conflicts of kinds take precedence over those of short names.
            if kinds.iter().all(|decided| *decided) {
                conflict = Some(("ShortNamesConflict", message));
            }
        }
    }
    let [kind, list_kind] = kinds;
    if kind {
        names.kind.clone_from(&wanted.kind);
    }
    if list_kind {
        names.list_kind.clone_from(&wanted.list_kind);
    }
    names.categories.clone_from(&wanted.categories);
    (names, conflict)
}

/// A condition without a time.
pub fn condition(kind: &str, holds: bool, reason: &str, message: &str) -> CustomResourceDefinitionCondition {
    CustomResourceDefinitionCondition {
        type_: kind.to_owned(),
        status: if holds { "True" } else { "False" }.to_owned(),
        reason: Some(reason.to_owned()),
        message: Some(message.to_owned()),
        ..CustomResourceDefinitionCondition::default()
    }
}

/// Sets a condition (`SetCRDCondition` of `pkg/apihelpers/helpers.go`).
pub fn set(status: &mut CustomResourceDefinitionStatus, mut new: CustomResourceDefinitionCondition, now: Timestamp) {
    let now = Timestamp::from_second(now.as_second()).unwrap_or(now);
    let conditions = status.conditions.get_or_insert_default();
    let Some(old) = conditions.iter_mut().find(|old| old.type_ == new.type_) else {
        new.last_transition_time = Some(Time(now));
        conditions.push(new);
        return;
    };
    if old.status != new.status || old.last_transition_time.is_none() {
        old.last_transition_time = Some(Time(now));
    }
    old.status = new.status;
    old.reason = new.reason;
    old.message = new.message;
}

/// True if a condition has the status `True`.
pub fn is_true(status: &CustomResourceDefinitionStatus, kind: &str) -> bool {
    let mut conditions = status.conditions.iter().flatten();
    conditions.any(|own| own.type_ == kind && own.status == "True")
}

/// True if the group is one of the Kubernetes project's own (`IsProtectedCommunityGroup` of
/// `pkg/apihelpers/helpers.go`).
pub(super) fn is_protected(group: &str) -> bool {
    let is_below = |domain: &str| group == domain || group.strip_suffix(domain).is_some_and(|head| head.ends_with('.'));
    is_below("k8s.io") || is_below("kubernetes.io")
}

/// Approval, by annotation, of a kind in one of the Kubernetes project's own groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Approval {
    Invalid,
    Approved,
    Bypassed,
    Missing,
}

/// The approval with the reason (`GetAPIApprovalState`).
pub(super) fn approval_of(definition: &CustomResourceDefinition) -> (Approval, String) {
    const SEE: &str = "see https://github.com/kubernetes/enhancements/pull/1111";
    let annotations = definition.metadata.annotations.as_ref();
    let text = annotations.and_then(|all| all.get(APPROVED)).map_or("", String::as_str);
    let is_url = text.split_once("://").is_some_and(|(scheme, rest)| {
        let is_scheme = scheme.starts_with(|letter: char| letter.is_ascii_alphabetic())
            && scheme
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte));
        is_scheme && !rest.is_empty() && !rest.starts_with('/') && !rest.contains([' ', '\n'])
    });
    if text.is_empty() {
        let reason = format!("protected groups must have approval annotation \"{APPROVED}\", {SEE}");
        (Approval::Missing, reason)
    } else if text.starts_with("unapproved") {
        (Approval::Bypassed, format!("not approved: {text:?}"))
    } else if is_url {
        (Approval::Approved, format!("approved in {text}"))
    } else {
        let reason = format!(
            "protected groups must have approval annotation \"{APPROVED}\" with either a URL or a reason starting with \
             \"unapproved\", {SEE}"
        );
        (Approval::Invalid, reason)
    }
}
