//! Tokens in Secrets that came with their accounts and are no longer used
//! (`pkg/controller/serviceaccount/legacy_serviceaccount_token_cleaner.go`): after a year without a
//! use they are marked as invalid, and another year later they are deleted.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::jiff::civil::Date;
use k8s_openapi::jiff::tz::TimeZone;
use k8s_openapi::jiff::{SignedDuration, Timestamp};

/// `ConfigMap` with the day since which uses are tracked.
pub const TRACKING: &str = "kube-apiserver-legacy-service-account-token-tracking";
/// Label of a Secret with the day since which its token is invalid.
pub const INVALID_SINCE: &str = "kubernetes.io/legacy-token-invalid-since";
const LAST_USED: &str = "kubernetes.io/legacy-token-last-used";
/// Default of `--legacy-service-account-token-clean-up-period`.
const PERIOD: SignedDuration = SignedDuration::from_hours(365 * 24);

/// Treatment of a token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// The token is kept as it is.
    Keep,
    /// The token is marked as invalid since this day.
    Mark(String),
    /// The Secret is deleted.
    Delete,
}

/// True if uses have been tracked for a whole period after the day `since`.
pub fn is_tracked(since: &str, now: Timestamp) -> bool {
    is_day(since) && since < day(begin(now)).as_str()
}

/// Verdict on the token of a Secret, provided that its account lists it and no pod refers to it.
pub fn judge(secret: &ObjectMeta, now: Timestamp) -> Verdict {
    let first = day(begin(now));
    let label = |name: &str| secret.labels.as_ref()?.get(name).map(String::as_str);
    let created = secret.creation_timestamp.as_ref();
    let is_new = created.is_some_and(|created| created.0 >= begin(now));
    // A label that is no day does not tell that the token is unused.
    let is_used = label(LAST_USED).is_some_and(|last| !is_day(last) || last >= first.as_str());
    if is_new || is_used || secret.deletion_timestamp.is_some() {
        return Verdict::Keep;
    }
    match label(INVALID_SINCE).filter(|since| is_day(since)) {
        None => Verdict::Mark(day(now)),
        Some(since) if since >= first.as_str() => Verdict::Keep,
        Some(_) => Verdict::Delete,
    }
}

fn begin(now: Timestamp) -> Timestamp {
    now.checked_sub(PERIOD).unwrap_or(Timestamp::MIN)
}

fn day(at: Timestamp) -> String {
    at.to_zoned(TimeZone::UTC).date().to_string()
}

fn is_day(text: &str) -> bool {
    text.len() == "2006-01-02".len() && text.parse::<Date>().is_ok()
}

#[cfg(test)]
mod tests {
    use serde_json::{from_value, json};

    use super::*;

    const NOW: &str = "2027-01-15T08:00:00Z";

    #[test]
    fn a_token_is_marked_a_year_after_its_last_use_and_deleted_a_year_later() {
        let check = |created: &str, used: &str, invalid: &str, expected: Verdict| {
            let mut labels = json!({});
            for (name, value) in [(LAST_USED, used), (INVALID_SINCE, invalid)] {
                if !value.is_empty() {
                    labels[name] = value.into();
                }
            }
            let secret: ObjectMeta = from_value(json!({ "creationTimestamp": created, "labels": labels })).unwrap();
            let verdict = judge(&secret, NOW.parse().unwrap());
            assert_eq!(verdict, expected, "{created} {used} {invalid}");
        };
        let old = "2024-01-01T00:00:00Z";
        let mark = || Verdict::Mark("2027-01-15".to_owned());
        check("2026-01-15T08:00:00Z", "", "", Verdict::Keep);
        check("2026-01-15T07:59:59Z", "", "", mark());
        check(old, "2026-01-15", "", Verdict::Keep);
        check(old, "2026-01-14", "", mark());
        check(old, "lately", "", Verdict::Keep);
        check(old, "", "soon", mark());
        check(old, "2025-01-01", "2026-01-15", Verdict::Keep);
        check(old, "2025-01-01", "2026-01-14", Verdict::Delete);
        check(old, "2026-01-15", "2026-01-14", Verdict::Keep);
    }

    #[test]
    fn uses_count_once_they_were_tracked_for_a_year() {
        let tracked = |since: &str| is_tracked(since, NOW.parse().unwrap());
        assert!(tracked("2026-01-14"));
        assert!(!tracked("2026-01-15"), "it began within that day");
        assert!(!tracked("never"));
    }
}
