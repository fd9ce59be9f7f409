//! Validation of events: few rules for those of the core group, for compatibility, more for those
//! of `events.k8s.io`. Paths are those of the core form.

use k8s_openapi::api::core::v1::Event;

use crate::value::invalid::Invalid;
use crate::value::names;
use crate::workload::validation::{each, immutable, required};

/// Maximum length of an action, a reason or an instance, in bytes.
const SHORT: usize = 128;
/// Maximum length of a message, in bytes.
const MESSAGE: usize = 1024;

/// Validates the fields that both versions of an event have.
pub(super) fn of_core(event: &Event) -> Vec<Invalid> {
    let mut errors = Vec::new();
    let about = event.involved_object.namespace.as_deref().unwrap_or_default();
    let own = event.metadata.namespace.as_deref().unwrap_or_default();
    let is_new = event.event_time.is_some();
    // Events about objects outside namespaces live in `default`.
    let fits = match (about, own) {
        ("", "" | "default") => true,
        ("", "kube-system") => is_new,
        ("", _) => false,
        (about, own) => is_new || about == own,
    };
    if !fits {
        let detail = "does not match event.namespace";
        errors.push(Invalid::value("involvedObject.namespace", about, detail));
    }
    if is_new {
        let controller = event.reporting_component.as_deref();
        required(&mut errors, "reportingController", controller);
        let controller = controller.unwrap_or_default();
        each(
            &mut errors,
            "reportingController",
            controller,
            names::qualified_name(controller),
        );
        for (field, text) in [
            ("reportingInstance", &event.reporting_instance),
            ("action", &event.action),
            ("reason", &event.reason),
        ] {
            required(&mut errors, field, text.as_deref());
            at_most(&mut errors, field, text.as_deref(), SHORT);
        }
        at_most(&mut errors, "message", event.message.as_deref(), MESSAGE);
    }
    errors
}

fn at_most(errors: &mut Vec<Invalid>, field: &str, text: Option<&str>, limit: usize) {
    if text.is_some_and(|text| text.len() > limit) {
        errors.push(Invalid::value(
            field,
            "",
            format!("can have at most {limit} characters"),
        ));
    }
}

/// Validates a new event of `events.k8s.io`.
pub(super) fn of_new(event: &Event) -> Vec<Invalid> {
    let mut errors = of_core(event);
    series(&mut errors, event);
    if event.event_time.is_none() {
        errors.push(Invalid::required("eventTime", ""));
    }
    let kind = event.type_.as_deref().unwrap_or_default();
    if !matches!(kind, "Normal" | "Warning") {
        errors.push(Invalid::value("type", "", format!("has invalid value: {kind}")));
    }
    let source = event.source.as_ref();
    let named = |text: Option<&String>| text.is_some_and(|text| !text.is_empty());
    for (field, is_set) in [
        ("firstTimestamp", event.first_timestamp.is_some()),
        ("lastTimestamp", event.last_timestamp.is_some()),
        ("count", event.count.is_some_and(|count| count != 0)),
        (
            "source",
            source.is_some_and(|source| named(source.component.as_ref()) || named(source.host.as_ref())),
        ),
    ] {
        if is_set {
            errors.push(Invalid::value(field, "", "needs to be unset"));
        }
    }
    errors
}

fn series(errors: &mut Vec<Invalid>, event: &Event) {
    let Some(series) = &event.series else { return };
    if series.count.unwrap_or(0) < 2 {
        errors.push(Invalid::value("series.count", "", "should be at least 2"));
    }
    if series.last_observed_time.is_none() {
        errors.push(Invalid::required("series.lastObservedTime", ""));
    }
}

/// Validates an update of an event through `events.k8s.io`: only its series may change.
pub(super) fn of_change(new: &Event, old: &Event) -> Vec<Invalid> {
    let mut errors = of_core(new);
    if new.series != old.series {
        series(&mut errors, new);
    }
    immutable(
        &mut errors,
        "involvedObject",
        &new.involved_object,
        &old.involved_object,
    );
    immutable(&mut errors, "reason", &new.reason, &old.reason);
    immutable(&mut errors, "message", &new.message, &old.message);
    immutable(&mut errors, "source", &new.source, &old.source);
    immutable(
        &mut errors,
        "firstTimestamp",
        &new.first_timestamp,
        &old.first_timestamp,
    );
    immutable(&mut errors, "lastTimestamp", &new.last_timestamp, &old.last_timestamp);
    immutable(&mut errors, "count", &new.count, &old.count);
    immutable(&mut errors, "type", &new.type_, &old.type_);
    immutable(&mut errors, "eventTime", &new.event_time, &old.event_time);
    immutable(&mut errors, "action", &new.action, &old.action);
    immutable(&mut errors, "related", &new.related, &old.related);
    immutable(
        &mut errors,
        "reportingController",
        &new.reporting_component,
        &old.reporting_component,
    );
    immutable(
        &mut errors,
        "reportingInstance",
        &new.reporting_instance,
        &old.reporting_instance,
    );
    errors
}
