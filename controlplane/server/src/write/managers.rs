//! Field management: the entries of `metadata.managedFields` after each write.

use api::Object;
use api::managed::{self, Change, Managed, Set, Types, Versioning, Writer};
use http::header::USER_AGENT;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry;
use k8s_openapi::jiff::Timestamp;

use crate::request::context::Context;
use crate::request::failure::Failure;
use crate::request::options::{MAX_NAME, check_manager};

/// The most bytes of a subresource's name in an entry.
const MAX_SUBRESOURCE: usize = 256;

/// Manager of a write: the `fieldManager`, or the part of the user agent before the first slash.
pub(crate) fn writer(context: &Context) -> Writer {
    let manager = match context.query.text("fieldManager") {
        Some(manager) => manager.to_owned(),
        None => from_user_agent(context),
    };
    let now = context.now();
    let now = Timestamp::from_second(now.as_second()).unwrap_or(now);
    Writer {
        manager,
        api_version: context.registration.api_version(),
        subresource: context.info.subresource.clone(),
        time: now.to_string(),
    }
}

fn from_user_agent(context: &Context) -> String {
    let agent = context
        .headers
        .get(USER_AGENT)
        .map(|value| String::from_utf8_lossy(value.as_bytes()));
    let agent = agent.unwrap_or_default();
    let product = agent.split('/').next().unwrap_or_default();
    let mut name: String = product.chars().filter(|character| !character.is_control()).collect();
    name.truncate(name.floor_char_boundary(MAX_NAME));
    name
}

/// Conversion between the versions of the request's kind.
pub(crate) fn versioning(context: &Context) -> Versioning<'_> {
    Versioning::new(&context.table.kinds, &context.conversions)
}

/// The types of the request's kind.
pub(crate) fn types(context: &Context) -> Option<Types<'_>> {
    context.registration.types()
}

/// Fields that a write of the object, or of its status, never changes.
pub(crate) fn ignored(context: &Context) -> Set {
    match context.info.subresource.as_str() {
        "" if context.registration.has(api::kind::Subresource::Status) => Set::of_path(&["f:status"]),
        "status" if !context.registration.status_with_metadata => {
            let mut ignored = Set::of_path(&["f:spec"]);
            ignored.union(Set::of_path(&["f:metadata"]));
            ignored
        }
        "status" => {
            let mut ignored = Set::of_path(&["f:spec"]);
            if context.registration.kind == "Pod" {
                for field in ["f:deletionTimestamp", "f:ownerReferences"] {
                    ignored.union(Set::of_path(&["f:metadata", field]));
                }
            }
            ignored
        }
        _ => Set::default(),
    }
}

fn text(object: &dyn Object) -> String {
    String::from_utf8(object.to_json()).unwrap_or_default()
}

/// The entries of a new object: its writer has all of it.
pub(crate) fn of_new(context: &Context, object: &dyn Object) -> String {
    let Some(types) = types(context) else {
        return String::new();
    };
    let change = Change {
        kinds: versioning(context),
        kind: context.registration.kind,
        live: "{}",
        new: &text(object),
    };
    let mut comparison = managed::compare(types, change.live, change.new);
    comparison.changed.subtract_trees(&ignored(context));
    let mut entries = Managed::default();
    managed::update(&mut entries, change, comparison, &writer(context));
    entries.to_json()
}

/// Entries after a write other than an apply. `sent` are the client's: it may edit them, or remove
/// them all.
pub(crate) fn after_update(
    context: &Context,
    live: &str,
    sent: Option<&[ManagedFieldsEntry]>,
    old: &dyn Object,
    new: &dyn Object,
) -> String {
    let Some(types) = types(context) else {
        return live.to_owned();
    };
    let sent = sent.filter(|_| context.info.subresource.is_empty());
    if sent.is_some_and(is_reset) {
        return String::new();
    }
    let sent = sent.and_then(parse);
    let change = Change {
        kinds: versioning(context),
        kind: context.registration.kind,
        live: &text(old),
        new: &text(new),
    };
    let comparison = managed::compare(types, change.live, change.new);
    if comparison.is_empty() && sent.is_none() {
        return live.to_owned();
    }
    let known = || Managed::parse(live).unwrap_or_default();
    let mut entries = sent.unwrap_or_else(known);
    if entries.is_empty() {
        // Fields are not tracked before the first apply.
        return String::new();
    }
    managed::update(&mut entries, change, comparison, &writer(context));
    if entries == known() {
        return live.to_owned();
    }
    entries.to_json()
}

/// `[]` and `[{}]` take all entries away.
fn is_reset(sent: &[ManagedFieldsEntry]) -> bool {
    match sent {
        [] => true,
        [only] => *only == ManagedFieldsEntry::default(),
        _ => false,
    }
}

/// Refuses entries of a client's with names that cannot be.
pub(crate) fn check(context: &Context, name: &str, sent: Option<&[ManagedFieldsEntry]>) -> Result<(), Failure> {
    let mut found = Vec::new();
    for (index, entry) in sent.and_then(parse).iter().flat_map(Managed::entries).enumerate() {
        let path = format!("metadata.managedFields[{index}]");
        found.extend(check_manager(&format!("{path}.manager"), &entry.manager));
        if entry.subresource.len() > MAX_SUBRESOURCE {
            found.push(api::Invalid::too_long(format!("{path}.subresource"), MAX_SUBRESOURCE));
        }
    }
    if found.is_empty() {
        return Ok(());
    }
    let registration = &context.registration;
    Err(Failure::invalid(registration.group, registration.kind, name, &found))
}

fn parse(sent: &[ManagedFieldsEntry]) -> Option<Managed> {
    let text = serde_json::to_string(sent).ok()?;
    Managed::parse(&text).ok().filter(|entries| !entries.is_empty())
}

/// The entries after an apply; the stored ones when nothing but their times would change.
pub(crate) fn after_apply(
    context: &Context,
    live: &str,
    applied: &Managed,
    old: &dyn Object,
    new: &mut dyn Object,
) -> String {
    let revision = old.metadata().resource_version.clone();
    let given = std::mem::replace(&mut new.metadata_mut().resource_version, revision);
    let same = context.registration.same(new, old);
    new.metadata_mut().resource_version = given;
    if same && Managed::parse(live).is_ok_and(|entries| entries.equals_without_times(applied)) {
        return live.to_owned();
    }
    applied.to_json()
}
