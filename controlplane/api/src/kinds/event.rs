//! Event: a record of what happened to an object. One stored object of the core group with two
//! representations: `events.k8s.io/v1` is converted.

mod validation;

use std::borrow::Cow;

use k8s_openapi::api::core::v1 as core;
use k8s_openapi::api::events::v1 as events;
use k8s_openapi::jiff::Timestamp;

use crate::kind::{Dependents, Field, Kind, Representation, Updates};
use crate::object::written;
use crate::schema::decode::decode;
use crate::table::{Column, age, or, since};
use crate::value::invalid::Invalid;

/// Event of either version, in its core form.
trait AsCore {
    fn core(&self) -> Cow<'_, core::Event>;
}

impl AsCore for core::Event {
    fn core(&self) -> Cow<'_, core::Event> {
        Cow::Borrowed(self)
    }
}

impl AsCore for events::Event {
    fn core(&self) -> Cow<'_, core::Event> {
        Cow::Owned(to_core(self.clone()))
    }
}

/// Columns of either version.
const fn columns<E: AsCore>() -> [Column<E>; 9] {
    [
        Column::text("Last Seen", "core.v1.Event.lastTimestamp", |event, now| {
            last_seen(&event.core(), now).into()
        }),
        Column::text("Type", "core.v1.Event.type", |event, _| {
            event.core().type_.clone().unwrap_or_default().into()
        }),
        Column::text("Reason", "core.v1.Event.reason", |event, _| {
            event.core().reason.clone().unwrap_or_default().into()
        }),
        Column::text("Object", "core.v1.Event.involvedObject", |event, _| {
            target(&event.core()).into()
        }),
        Column::wide("Subobject", "core.v1.ObjectReference.fieldPath", |event, _| {
            event
                .core()
                .involved_object
                .field_path
                .clone()
                .unwrap_or_default()
                .into()
        }),
        Column::wide("Source", "core.v1.Event.source", |event, _| {
            source(&event.core()).into()
        }),
        Column::text("Message", "core.v1.Event.message", |event, _| {
            event.core().message.as_deref().unwrap_or_default().trim().into()
        }),
        Column::wide("First Seen", "core.v1.Event.firstTimestamp", |event, now| {
            first_seen(&event.core(), now).into()
        }),
        Column::wide("Count", "core.v1.Event.count", |event, _| count(&event.core()).into()),
    ]
}

/// Fields of either version.
const fn fields<E: AsCore>() -> [Field<E>; 11] {
    [
        Field::new("involvedObject.kind", |event| {
            text(event.core().involved_object.kind.as_ref())
        }),
        Field::new("involvedObject.namespace", |event| {
            text(event.core().involved_object.namespace.as_ref())
        }),
        Field::new("involvedObject.name", |event| {
            text(event.core().involved_object.name.as_ref())
        }),
        Field::new("involvedObject.uid", |event| {
            text(event.core().involved_object.uid.as_ref())
        }),
        Field::new("involvedObject.apiVersion", |event| {
            text(event.core().involved_object.api_version.as_ref())
        }),
        Field::new("involvedObject.resourceVersion", |event| {
            text(event.core().involved_object.resource_version.as_ref())
        }),
        Field::new("involvedObject.fieldPath", |event| {
            text(event.core().involved_object.field_path.as_ref())
        }),
        Field::new("reason", |event| text(event.core().reason.as_ref())),
        Field::new("reportingComponent", |event| {
            text(event.core().reporting_component.as_ref())
        }),
        Field::new("source", |event| component(&event.core())),
        Field::new("type", |event| text(event.core().type_.as_ref())),
    ]
}

/// Field labels of `events.k8s.io`, with their names in `v1`.
const NAMES: [(&str, &str); 10] = [
    ("regarding.kind", "involvedObject.kind"),
    ("regarding.namespace", "involvedObject.namespace"),
    ("regarding.name", "involvedObject.name"),
    ("regarding.uid", "involvedObject.uid"),
    ("regarding.apiVersion", "involvedObject.apiVersion"),
    ("regarding.resourceVersion", "involvedObject.resourceVersion"),
    ("regarding.fieldPath", "involvedObject.fieldPath"),
    ("reason", "reason"),
    ("reportingController", "reportingComponent"),
    ("type", "type"),
];

fn text(field: Option<&String>) -> String {
    field.cloned().unwrap_or_default()
}

impl Kind for core::Event {
    const UPDATES: Updates = Updates::CREATE;
    const DEPENDENTS: Dependents = Dependents::Unseen;
    const SHORT_NAMES: &'static [&'static str] = &["ev"];
    const COLUMNS: &'static [Column<Self>] = &columns();
    const NAME_LAST: bool = true;
    const FIELDS: &'static [Field<Self>] = &fields();

    fn set_defaults(&mut self) {
        self.source.get_or_insert_default();
        self.reporting_component.get_or_insert_default();
        self.reporting_instance.get_or_insert_default();
    }

    fn validate(&self) -> Vec<Invalid> {
        validation::of_core(self)
    }
}

impl Kind for events::Event {
    const UPDATES: Updates = Updates::CREATE;
    const DEPENDENTS: Dependents = Dependents::Unseen;
    const SHORT_NAMES: &'static [&'static str] = &["ev"];
    const COLUMNS: &'static [Column<Self>] = &columns();
    const NAME_LAST: bool = true;
    // The labels are those of the stored form, so that selectors find an event whichever version it
    // was created in.
    const FIELDS: &'static [Field<Self>] = &fields();
    const FIELD_NAMES: &'static [(&'static str, &'static str)] = &NAMES;
    const STORED_AS: Option<Representation<Self>> = Some(Representation {
        group: "",
        version: "v1",
        plural: "events",
        encode: |event| written(&to_core(event.clone())),
        decode: |json| decode::<core::Event>(json).map(from_core),
    });

    fn set_defaults(&mut self) {
        // Upstream's type always writes these structs.
        self.deprecated_source.get_or_insert_default();
        self.regarding.get_or_insert_default();
    }

    fn validate(&self) -> Vec<Invalid> {
        validation::of_new(&to_core(self.clone()))
    }

    fn validate_update(&self, old: &Self) -> Vec<Invalid> {
        validation::of_change(&to_core(self.clone()), &to_core(old.clone()))
    }
}

fn first_seen(event: &core::Event, now: Timestamp) -> String {
    match (&event.first_timestamp, &event.event_time) {
        (None, Some(time)) => age(now, time.0),
        (first, _) => since(first.as_ref(), now),
    }
}

fn last_seen(event: &core::Event, now: Timestamp) -> String {
    let series = event.series.as_ref().map(|series| series.last_observed_time.as_ref());
    match (series, &event.last_timestamp) {
        (Some(time), _) => time.map_or_else(|| "<unknown>".to_owned(), |time| age(now, time.0)),
        (None, Some(time)) => age(now, time.0),
        (None, None) => first_seen(event, now),
    }
}

fn count(event: &core::Event) -> i32 {
    let alone = event.count.filter(|count| *count != 0).unwrap_or(1);
    event.series.as_ref().map_or(alone, |series| series.count.unwrap_or(0))
}

/// `pod/web-1`
fn target(event: &core::Event) -> String {
    let kind = event.involved_object.kind.as_deref().unwrap_or_default().to_lowercase();
    match event.involved_object.name.as_deref() {
        Some(name) if !name.is_empty() => format!("{kind}/{name}"),
        Some(_) | None => kind,
    }
}

/// `kubelet, node-1`
fn source(event: &core::Event) -> String {
    let component = component(event);
    let host = event.source.as_ref().and_then(|source| source.host.as_deref());
    match or(host, event.reporting_instance.as_deref().unwrap_or_default()) {
        "" => component,
        host => format!("{component}, {host}"),
    }
}

/// The component that reported, for selectors.
fn component(event: &core::Event) -> String {
    let source = event
        .source
        .as_ref()
        .and_then(|source| source.component.clone())
        .filter(|text| !text.is_empty());
    source.or_else(|| event.reporting_component.clone()).unwrap_or_default()
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
        // This version writes both even if they are empty.
        reporting_component: Some(event.reporting_controller.unwrap_or_default()),
        reporting_instance: Some(event.reporting_instance.unwrap_or_default()),
        series: event.series.map(|series| core::EventSeries {
            count: Some(series.count),
            last_observed_time: Some(series.last_observed_time),
        }),
        source: Some(event.deprecated_source.unwrap_or_default()),
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
        // This version leaves both out if they are empty.
        reporting_controller: event.reporting_component.filter(|text| !text.is_empty()),
        reporting_instance: event.reporting_instance.filter(|text| !text.is_empty()),
        series: event.series.and_then(|series| {
            Some(events::EventSeries {
                count: series.count.unwrap_or_default(),
                last_observed_time: series.last_observed_time?,
            })
        }),
        type_: event.type_,
    }
}
