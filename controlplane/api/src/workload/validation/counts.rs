//! Validation of counts in a status.

use super::non_negative;
use crate::value::invalid::Invalid;

/// Message for a count that exceeds the number of replicas.
pub(crate) const OF_ALL: &str = "cannot be greater than status.replicas";

/// Message for a count that exceeds the number of ready replicas.
pub(crate) const OF_READY: &str = "cannot be greater than readyReplicas";

/// Reports negative numbers.
pub(crate) fn natural<const N: usize>(errors: &mut Vec<Invalid>, numbers: [(&str, i64); N]) {
    for (name, number) in numbers {
        non_negative(errors, &format!("status.{name}"), number);
    }
}

/// Reports numbers that exceed another one.
pub(crate) fn at_most<const N: usize>(errors: &mut Vec<Invalid>, numbers: [(&str, Option<i32>, i32, &str); N]) {
    for (name, number, most, detail) in numbers {
        let number = number.unwrap_or(0);
        if number > most {
            errors.push(Invalid::value(format!("status.{name}"), number, detail));
        }
    }
}

/// Counts in the status of a `ReplicaSet` or a `ReplicationController`.
pub(crate) struct OfSet {
    pub(crate) replicas: i32,
    pub(crate) labelled: Option<i32>,
    pub(crate) ready: Option<i32>,
    pub(crate) available: Option<i32>,
    pub(crate) terminating: Option<i32>,
    pub(crate) observed: Option<i64>,
}

/// Validates the counts.
pub(crate) fn of_set(counts: &OfSet) -> Vec<Invalid> {
    let mut errors = Vec::new();
    let count = |count: Option<i32>| i64::from(count.unwrap_or(0));
    natural(
        &mut errors,
        [
            ("replicas", counts.replicas.into()),
            ("fullyLabeledReplicas", count(counts.labelled)),
            ("readyReplicas", count(counts.ready)),
            ("availableReplicas", count(counts.available)),
            ("observedGeneration", counts.observed.unwrap_or(0)),
            ("terminatingReplicas", count(counts.terminating)),
        ],
    );
    let (all, ready) = (counts.replicas, counts.ready.unwrap_or(0));
    at_most(
        &mut errors,
        [
            ("fullyLabeledReplicas", counts.labelled, all, OF_ALL),
            ("readyReplicas", counts.ready, all, OF_ALL),
            ("availableReplicas", counts.available, all, OF_ALL),
            ("availableReplicas", counts.available, ready, OF_READY),
        ],
    );
    errors
}

/// Reports a collision count that decreases.
pub(crate) fn collisions(errors: &mut Vec<Invalid>, new: Option<i32>, old: Option<i32>) {
    let new = new.unwrap_or(0);
    if old.is_some_and(|old| new < old) {
        errors.push(Invalid::value("status.collisionCount", new, "cannot be decremented"));
    }
}
