//! Event: what happened to an object. One stored object, core's, with two representations: `events.k8s.io/v1` converts.

use k8s_openapi::Resource;
use k8s_openapi::api::core::v1 as core;
use k8s_openapi::api::events::v1 as events;

use crate::decode::decode;
use crate::kind::{Kind, Representation};
use crate::object::encode;

impl Kind for core::Event {
    const SHORT_NAMES: &'static [&'static str] = &["ev"];
}

impl Kind for events::Event {
    const SHORT_NAMES: &'static [&'static str] = &["ev"];
    const STORED_AS: Option<Representation<Self>> = Some(Representation {
        group: "",
        version: "v1",
        plural: "events",
        encode: |event| encode(&to_core(event.clone())),
        decode: |json| decode(json, core::Event::KIND).map(from_core),
    });
}

/// The core form of an event.
pub fn to_core(event: events::Event) -> core::Event {
    core::Event {
        action: event.action,
        count: event.deprecated_count,
        event_time: event.event_time,
        first_timestamp: event.deprecated_first_timestamp,
        involved_object: event.regarding.unwrap_or_default(),
        last_timestamp: event.deprecated_last_timestamp,
        message: event.note,
        metadata: event.metadata,
        reason: event.reason,
        related: event.related,
        reporting_component: event.reporting_controller,
        reporting_instance: event.reporting_instance,
        series: event.series.map(|series| core::EventSeries {
            count: Some(series.count),
            last_observed_time: Some(series.last_observed_time),
        }),
        source: event.deprecated_source,
        type_: event.type_,
    }
}

/// The `events.k8s.io/v1` form of an event.
pub fn from_core(event: core::Event) -> events::Event {
    events::Event {
        action: event.action,
        deprecated_count: event.count,
        deprecated_first_timestamp: event.first_timestamp,
        deprecated_last_timestamp: event.last_timestamp,
        deprecated_source: event.source,
        event_time: event.event_time,
        metadata: event.metadata,
        note: event.message,
        reason: event.reason,
        regarding: Some(event.involved_object),
        related: event.related,
        reporting_controller: event.reporting_component,
        reporting_instance: event.reporting_instance,
        series: event.series.and_then(|series| {
            Some(events::EventSeries {
                count: series.count.unwrap_or_default(),
                last_observed_time: series.last_observed_time?,
            })
        }),
        type_: event.type_,
    }
}
