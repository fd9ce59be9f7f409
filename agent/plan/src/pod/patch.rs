//! The smallest strategic merge patch between two statuses.

use k8s_openapi::api::core::v1::PodStatus;
use serde_json::{Map, Value, json};

/// Lists in a pod's status with a merge key. All others are replaced as a whole.
const MERGED: &[(&str, &str)] = &[("conditions", "type"), ("podIPs", "ip"), ("hostIPs", "ip")];

/// Returns the patch body for `pods/status`, or `None` when both are equal. The uid guards against
/// a pod of the same name.
pub fn status(uid: &str, old: &PodStatus, new: &PodStatus) -> Option<Value> {
    // Mostly: a worker asks after each event of its pod.
    if old == new {
        return None;
    }
    let (old, new) = (object(old), object(new));
    let mut patch = Map::new();
    for (field, value) in &new {
        let before = old.get(field);
        if before == Some(value) {
            continue;
        }
        let Some((_, key)) = MERGED.iter().find(|(merged, _)| merged == field) else {
            patch.insert(field.clone(), value.clone());
            continue;
        };
        let changes = list(before, value, key);
        // The same elements in another order, which such a patch cannot change: other clients write
        // conditions too.
        if !changes.is_empty() {
            patch.insert(field.clone(), Value::Array(changes));
        }
    }
    for field in old.keys().filter(|field| !new.contains_key(*field)) {
        patch.insert(field.clone(), Value::Null);
    }
    (!patch.is_empty()).then(|| json!({"metadata": {"uid": uid}, "status": patch}))
}

fn object(status: &PodStatus) -> Map<String, Value> {
    match serde_json::to_value(status) {
        Ok(Value::Object(fields)) => fields,
        Ok(_) | Err(_) => Map::new(),
    }
}

/// Returns changed and new elements, and a deletion for each removed one.
fn list(old: Option<&Value>, new: &Value, key: &str) -> Vec<Value> {
    let old = old.and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let new = new.as_array().map_or(&[][..], Vec::as_slice);
    let find = |list: &[Value], wanted: Option<&Value>| list.iter().find(|item| item.get(key) == wanted).cloned();
    let mut changes = Vec::new();
    for item in new {
        let before = find(old, item.get(key));
        if before.as_ref() == Some(item) {
            continue;
        }
        let mut change = item.clone();
        if let (Some(Value::Object(before)), Value::Object(change)) = (before, &mut change) {
            for field in before.keys() {
                change.entry(field.clone()).or_insert(Value::Null);
            }
        }
        changes.push(change);
    }
    for item in old {
        if find(new, item.get(key)).is_none()
            && let Some(name) = item.get(key)
        {
            changes.push(json!({key: name, "$patch": "delete"}));
        }
    }
    changes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> PodStatus {
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn equal_statuses_need_no_patch() {
        let one = parse(r#"{"phase":"Running","conditions":[{"type":"Ready","status":"True"}]}"#);
        assert_eq!(status("u", &one, &one.clone()), None);
    }

    #[test]
    fn another_order_needs_no_patch() {
        let stored = parse(
            r#"{"conditions":[{"type":"DisruptionTarget","status":"True"},{"type":"Ready","status":"True"}],
                "podIPs":[{"ip":"fd00::1"},{"ip":"10.0.0.1"}]}"#,
        );
        let own = parse(
            r#"{"conditions":[{"type":"Ready","status":"True"},{"type":"DisruptionTarget","status":"True"}],
                "podIPs":[{"ip":"10.0.0.1"},{"ip":"fd00::1"}]}"#,
        );
        assert_eq!(status("u", &stored, &own), None);
        assert_eq!(
            status(
                "u",
                &stored,
                &parse(r#"{"podIPs":[{"ip":"10.0.0.1"},{"ip":"fd00::1"}]}"#)
            ),
            Some(json!({"metadata": {"uid": "u"}, "status": {"conditions": null}}))
        );
    }

    #[test]
    fn only_what_changed_is_sent() {
        let old = parse(
            r#"{"phase":"Pending","reason":"X","podIPs":[{"ip":"10.0.0.1"}],
                "conditions":[{"type":"A","status":"True"},{"type":"Ready","status":"False","reason":"No"}]}"#,
        );
        let new = parse(
            r#"{"phase":"Running","podIPs":[{"ip":"10.0.0.2"}],
                "conditions":[{"type":"A","status":"True"},{"type":"Ready","status":"True"}]}"#,
        );
        let expected = json!({"metadata": {"uid": "u"}, "status": {
            "phase": "Running",
            "reason": null,
            "podIPs": [{"ip": "10.0.0.2"}, {"ip": "10.0.0.1", "$patch": "delete"}],
            "conditions": [{"type": "Ready", "status": "True", "reason": null}],
        }});
        assert_eq!(status("u", &old, &new), Some(expected));
    }
}
