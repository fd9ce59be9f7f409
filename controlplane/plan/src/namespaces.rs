//! Conditions of a namespace that is being deleted.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::NamespaceCondition;
use k8s_openapi::jiff::Timestamp;

use crate::objects::seconds;

/// Content that is left in a namespace.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Remains {
    /// Objects, by resource as clients spell it (`deployments.apps`).
    pub objects: BTreeMap<String, usize>,
    /// Number of objects held by each finalizer.
    pub finalizers: BTreeMap<String, usize>,
    /// Errors of failed deletions.
    pub failures: Vec<String>,
    /// Group versions whose discovery failed, such as `example.com/v1`.
    pub undiscovered: Vec<String>,
}

impl Remains {
    /// True if the namespace can be finalized.
    pub fn is_empty(&self) -> bool {
        self.objects.is_empty() && self.failures.is_empty() && self.undiscovered.is_empty()
    }
}

struct Statement {
    kind: &'static str,
    bad: Option<(&'static str, String)>,
    good: (&'static str, &'static str),
}

/// The conditions, in upstream's words; unchanged ones keep their transition times.
pub fn conditions(old: &[NamespaceCondition], remains: &Remains, now: Timestamp) -> Vec<NamespaceCondition> {
    statements(remains)
        .into_iter()
        .map(|Statement { kind, bad, good }| {
            let status = if bad.is_some() { "True" } else { "False" };
            let (reason, message) = bad.unwrap_or_else(|| (good.0, good.1.to_owned()));
            let before = old.iter().find(|old| old.type_ == kind && old.status == status);
            NamespaceCondition {
                type_: kind.to_owned(),
                status: status.to_owned(),
                reason: Some(reason.to_owned()),
                message: Some(message),
                last_transition_time: before
                    .and_then(|before| before.last_transition_time.clone())
                    .or_else(|| Some(seconds(now))),
            }
        })
        .collect()
}

fn statements(remains: &Remains) -> [Statement; 5] {
    let list = |counts: &BTreeMap<String, usize>, link: &str| {
        let parts: Vec<String> = counts
            .iter()
            .map(|(name, count)| format!("{name} {link} {count} resource instances"))
            .collect();
        (!parts.is_empty()).then(|| parts.join(", "))
    };
    let failures = (!remains.failures.is_empty()).then(|| {
        let count = remains.failures.len();
        format!(
            "Failed to delete all resource types, {count} remaining: {}",
            remains.failures.join(", ")
        )
    });
    let undiscovered = (!remains.undiscovered.is_empty()).then(|| {
        let stale = |own: &String| format!("{own}: stale GroupVersion discovery: {own}");
        let stale: Vec<String> = remains.undiscovered.iter().map(stale).collect();
        let message = format!(
            "Discovery failed for some groups, {} failing: unable to retrieve the complete list of server APIs: {}",
            stale.len(),
            stale.join(", ")
        );
        ("DiscoveryFailed", message)
    });
    let left = list(&remains.objects, "has").map(|list| format!("Some resources are remaining: {list}"));
    let held = list(&remains.finalizers, "in")
        .map(|list| format!("Some content in the namespace has finalizers remaining: {list}"));
    [
        Statement {
            kind: "NamespaceDeletionDiscoveryFailure",
            bad: undiscovered,
            good: ("ResourcesDiscovered", "All resources successfully discovered"),
        },
        Statement {
            kind: "NamespaceDeletionGroupVersionParsingFailure",
            bad: None,
            good: ("ParsedGroupVersions", "All legacy kube types successfully parsed"),
        },
        Statement {
            kind: "NamespaceDeletionContentFailure",
            bad: failures.map(|message| ("ContentDeletionFailed", message)),
            good: (
                "ContentDeleted",
                "All content successfully deleted, may be waiting on finalization",
            ),
        },
        Statement {
            kind: "NamespaceContentRemaining",
            bad: left.map(|message| ("SomeResourcesRemain", message)),
            good: ("ContentRemoved", "All content successfully removed"),
        },
        Statement {
            kind: "NamespaceFinalizersRemaining",
            bad: held.map(|message| ("SomeFinalizersRemain", message)),
            good: ("ContentHasNoFinalizers", "All content-preserving finalizers finished"),
        },
    ]
}
