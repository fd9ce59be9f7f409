//! Validation of time zone names.

use crate::value::{invalid::Invalid, schedule::time_zone};

/// Validates the name of a time zone.
pub(crate) fn validate(zone: &str, field: &str) -> Vec<Invalid> {
    if zone.is_empty() {
        let detail = "timeZone must be nil or non-empty string";
        return vec![Invalid::value(field, zone, detail)];
    }
    let mut errors = Vec::new();
    if zone.eq_ignore_ascii_case("Local") {
        let detail = "timeZone must be an explicit time zone as defined in https://www.iana.org/time-zones";
        errors.push(Invalid::value(field, zone, detail));
    }
    if zone != "Local" && time_zone(zone).is_none() {
        errors.push(Invalid::value(field, zone, format!("unknown time zone {zone}")));
    }
    errors
}
