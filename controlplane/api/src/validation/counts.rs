//! Rules for the numbers in a status.

use super::non_negative;
use crate::invalid::Invalid;

/// Why a part cannot be more than all pods.
pub(crate) const OF_ALL: &str = "cannot be greater than status.replicas";

/// Errors for numbers below zero.
pub(crate) fn natural<const N: usize>(errors: &mut Vec<Invalid>, numbers: [(&str, i64); N]) {
    for (name, number) in numbers {
        non_negative(errors, &format!("status.{name}"), number);
    }
}

/// Errors for numbers that are more than a second one.
pub(crate) fn at_most<const N: usize>(errors: &mut Vec<Invalid>, numbers: [(&str, Option<i32>, i32, &str); N]) {
    for (name, number, most, detail) in numbers {
        let number = number.unwrap_or(0);
        if number > most {
            errors.push(Invalid::value(format!("status.{name}"), number, detail));
        }
    }
}

/// An error for a count of collisions that is less than it was.
pub(crate) fn collisions(errors: &mut Vec<Invalid>, new: Option<i32>, old: Option<i32>) {
    let new = new.unwrap_or(0);
    if old.is_some_and(|old| new < old) {
        errors.push(Invalid::value("status.collisionCount", new, "cannot be decremented"));
    }
}
