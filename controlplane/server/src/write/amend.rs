//! Updates of stored objects: read, change, check, write, and retry on conflict.

use api::managed::Managed;
use api::{Invalid, Object};
use bytes::Bytes;
use k8s_openapi::api::core::v1::{Namespace, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry;
use store::{Attributes, CommitError, Entry, Key, Value, Write};

use crate::extensions::definitions;
use crate::extensions::definitions::names::Names;
use crate::request::context::Context;
use crate::request::failure::{Cause, Failure};
use crate::request::object::{self, Live};
use crate::transport::body;
use crate::write::admission::{self, Part, Review, quota};
use crate::write::create::{check_name, commit_failure, modified, revision, set_namespace};
use crate::write::managers;

/// Number of attempts when others write the same object.
const ATTEMPTS: usize = 64;
/// Number of failed attempts after which a writer queues with the others: a slow writer would lose
/// each race.
const RACES: usize = 4;

/// A change of the object of a name.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Amendment<'a> {
    pub(crate) name: &'a str,
    pub(crate) part: Part,
    pub(crate) dry_run: bool,
}

/// Makes the new object from the stored one. It may be called several times.
pub(crate) type Change<'a> = dyn FnMut(&Live, &dyn Object) -> Result<Changed, Failure> + Send + 'a;

/// Result of a change.
pub(crate) struct Changed {
    pub(crate) object: Box<dyn Object>,
    /// Managers after an apply.
    pub(crate) applied: Option<Managed>,
}

impl From<Box<dyn Object>> for Changed {
    fn from(object: Box<dyn Object>) -> Self {
        Self { object, applied: None }
    }
}

/// Changes a stored object; the answer is its new JSON.
///
/// # Errors
/// 404, 409, 422, and those of `change`
pub(crate) async fn amend(
    context: &Context,
    amendment: Amendment<'_>,
    change: &mut Change<'_>,
) -> Result<Bytes, Failure> {
    let name = amendment.name;
    let key = context.key(name)?;
    admission::on_update(context)?;
    let mut place = None;
    for attempt in 0..ATTEMPTS {
        if attempt == RACES {
            place = context.server.object_queues.turn(&key.to_string()).await;
        }
        let entry = context.store().get(&key).ok_or_else(|| Failure::NotFound {
            target: context.target(name),
        })?;
        admission::may_touch(context, &entry)?;
        let live = context.live(entry).await?;
        let entry = live.entry();
        let (mut new, managed, gone, also, stored, (_turn, names)) = {
            let old = object::stored(&context.registration, &live)?;
            let Changed {
                object: mut new,
                applied,
            } = changed(context, change, &live, &*old).await?;
            let sent = new.metadata_mut().managed_fields.take();
            if context.info.subresource.is_empty() {
                managers::check(context, name, sent.as_deref())?;
            }
            let mut review = prepare(context, amendment, entry, &mut new, &*old).await?;
            admission::may_become(context, &*new, &*old)?;
            let live = object::managed(entry);
            let managed = match applied {
                _ if amendment.part == Part::Decided => live.to_owned(),
                Some(applied) => managers::after_apply(context, live, &applied, &*old, &mut *new),
                None => {
                    let own = settled(context, amendment.part, &mut review, &*old);
                    let new = own.as_deref().unwrap_or(&*new);
                    updated(context, live, sent.as_deref(), (&*old, new)).await
                }
            };
            let gone = is_finished(&*new);
            let stored = context.to_store(&*new, &managed, amendment.dry_run).await?;
            // Webhooks are called before the turn is taken: they may write something themselves.
            let turn = (
                quota::turn(context).await,
                definitions::names::settle(context, &mut *new).await,
            );
            let terms = review.end((!gone).then_some(&*new))?;
            let mut also = terms.also;
            if gone {
                also.extend(admission::farewell(context.store(), &*new));
            }
            (new, managed, gone, also, stored, turn)
        };
        if amendment.dry_run {
            return Ok(object::unstored(&mut *new, Some(entry.revision), &managed));
        }
        let room = room(amendment.part, entry);
        let (value, attributes) = object::encode_bounded(&context.registration, &mut *new, &managed, (stored, room))?;
        let expected = entry.revision;
        let write = write_of(&key, gone, expected, (value, attributes));
        match context.commit(write, also, names.as_ref().map(Names::guard)).await {
            Ok(entry) => return object::external(&context.registration, &context.live(entry).await?),
            Err(CommitError::Conflict { .. } | CommitError::Changed { .. } | CommitError::Accompanying { .. }) => {}
            Err(error) => return Err(commit_failure(context, name, &error)),
        }
    }
    drop(place);
    Err(modified(context, name))
}

/// Result of a change, once all conversions that it needs are done.
async fn changed(
    context: &Context,
    change: &mut Change<'_>,
    live: &Live,
    old: &dyn Object,
) -> Result<Changed, Failure> {
    loop {
        let changed = change(live, old);
        if !context.convert_missing().await? {
            return changed;
        }
    }
}

/// Managed fields after a change other than an apply. Empty where its versions cannot be converted
/// (`UpdateNoErrors` of apimachinery's `pkg/util/managedfields/internal/fieldmanager.go`).
async fn updated(
    context: &Context,
    live: &str,
    sent: Option<&[ManagedFieldsEntry]>,
    (old, new): (&dyn Object, &dyn Object),
) -> String {
    loop {
        let managed = managers::after_update(context, live, sent, old, new);
        match context.convert_missing().await {
            Ok(true) => {}
            Ok(false) => return managed,
            Err(error) => {
                tracing::warn!(%error, "managed fields not kept up");
                return String::new();
            }
        }
    }
}

/// The write of a changed object, which is its end where there is nothing left to wait for.
fn write_of(key: &Key, gone: bool, expected: u64, (value, attributes): (Value, Attributes)) -> Write {
    let key = key.clone();
    if gone {
        return Write::Delete {
            key,
            expected: Some(expected),
            last: value,
        };
    }
    Write::Update {
        key,
        value,
        attributes,
        expected,
    }
}

/// Prepares a changed object for the store and validates it.
async fn prepare<'a>(
    context: &'a Context,
    amendment: Amendment<'_>,
    entry: &'a Entry,
    boxed: &mut Box<dyn Object>,
    old: &'a dyn Object,
) -> Result<Review<'a>, Failure> {
    let registration = &context.registration;
    let new = &mut **boxed;
    check_name(new, amendment.name)?;
    set_namespace(context, new)?;
    check_preconditions(context, amendment, entry, new, old)?;
    admission::may_configure(context, new, Some(old))?;
    keep_metadata(new, old);
    let mut review = Review::of_change(context, old, amendment.part, object::managed(entry));
    if matches!(amendment.part, Part::Object | Part::Status | Part::Resize) {
        registration.set_defaults(new);
    }
    match amendment.part {
        Part::Decided => return Ok(review),
        Part::Object | Part::Status | Part::Resize | Part::Own => review.mutate(boxed).await?,
        Part::EphemeralContainers => review.mutate_by_webhooks(boxed).await?,
    }
    let new = &mut **boxed;
    let mut tolerated = Vec::new();
    let found = match amendment.part {
        Part::Decided => Vec::new(),
        Part::Object => {
            registration.prepare_update(new, old);
            review.allocate(new)?;
            let mut found = registration.validate_update(new, old, &mut tolerated);
            found.extend(definitions::rules::schemas(new, Some(old)));
            found.extend(admission::webhooks::faults(new, Some(old)));
            found.extend(admission::policies::faults(new, Some(old)));
            if found.is_empty() {
                found.extend(admission::policies::unreadable(context, new, Some(old)));
            }
            found
        }
        Part::Status => {
            registration.prepare_status(new, old);
            review.allocate(new)?;
            registration.validate_status(new, old, &mut tolerated)
        }
        Part::EphemeralContainers => of_pods(new, old, api::pod::ephemeral::update)?,
        Part::Resize => of_pods(new, old, api::pod::resize::update)?,
        Part::Own => {
            registration.prepare_own(new, old);
            review.allocate(new)?;
            registration.validate_own(new, old)
        }
    };
    if found.is_empty() {
        if amendment.part == Part::Object {
            review.warnings.extend(registration.warnings(new, Some(old)));
            review
                .warnings
                .extend(definitions::rules::format_warnings(new, Some(old)));
        } else if amendment.part == Part::Status {
            review.warnings.extend(registration.status_warnings(new));
        }
        review.warnings.extend(tolerated);
        review.validate(new).await?;
        return Ok(review);
    }
    Err(Failure::invalid(
        registration.group,
        registration.kind,
        amendment.name,
        &found,
    ))
}

/// Object as the client made it, if webhooks changed it: managers are tracked before webhooks are
/// called, as in upstream's `pkg/endpoints/handlers/update.go`.
fn settled(context: &Context, part: Part, review: &mut Review<'_>, old: &dyn Object) -> Option<Box<dyn Object>> {
    let mut new = review.take_unmutated()?;
    match part {
        Part::Object => context.registration.prepare_update(&mut *new, old),
        Part::Status => context.registration.prepare_status(&mut *new, old),
        Part::Own => context.registration.prepare_own(&mut *new, old),
        Part::EphemeralContainers | Part::Resize | Part::Decided => {}
    }
    Some(new)
}

/// Size limit of a change to a large object: its present size, and a status as large as the rest.
fn room(part: Part, entry: &Entry) -> usize {
    match part {
        Part::Status => body::LIMIT.saturating_mul(2),
        Part::Object | Part::EphemeralContainers | Part::Resize | Part::Own | Part::Decided => entry.bytes.len(),
    }
}

/// The rules of a subresource that only pods have.
fn of_pods(
    new: &mut dyn Object,
    old: &dyn Object,
    update: fn(&mut Pod, &Pod) -> Vec<Invalid>,
) -> Result<Vec<Invalid>, Failure> {
    let new = new.as_any_mut().downcast_mut::<Pod>();
    match (new, old.as_any().downcast_ref::<Pod>()) {
        (Some(new), Some(old)) => Ok(update(new, old)),
        (_, _) => Err(Failure::NoSuchResource),
    }
}

/// A key as upstream has it: without the group, and with the names that some kinds once had.
fn registry_key(key: &str) -> String {
    let (_, key) = key.split_once('/').unwrap_or(("", key));
    let (resource, rest) = key.split_once('/').unwrap_or((key, ""));
    let prefix = match resource {
        "endpoints" => "services/endpoints",
        "ingresses" => "ingress",
        "nodes" => "minions",
        "replicationcontrollers" => "controllers",
        "services" => "services/specs",
        other => other,
    };
    // Cluster-scoped objects have no namespace.
    format!("{prefix}/{}", rest.trim_start_matches('/'))
}

/// True for a patch whose UID is no precondition: validation refuses another one (`Preconditions` of
/// `pkg/registry/rest/update.go`). The other parts take their metadata from the stored object.
fn is_patch(context: &Context, part: Part) -> bool {
    context.info.verb == "patch" && matches!(part, Part::Object | Part::Status | Part::Own)
}

fn check_preconditions(
    context: &Context,
    amendment: Amendment<'_>,
    entry: &Entry,
    new: &mut dyn Object,
    old: &dyn Object,
) -> Result<(), Failure> {
    let name = amendment.name;
    let given = revision(new);
    new.metadata_mut().resource_version = None;
    let uid = new.metadata().uid.as_deref().unwrap_or_default();
    let own = old.metadata().uid.as_deref().unwrap_or_default();
    if !uid.is_empty() && uid != own && !is_patch(context, amendment.part) {
        let because = format!(
            "StorageError: invalid object, Code: 4, Key: /registry/{}, ResourceVersion: 0, AdditionalErrorMsg: \
             Precondition failed: UID in precondition: {uid}, UID in object meta: {own}",
            registry_key(&entry.key.to_string())
        );
        return Err(Failure::Conflict {
            target: context.target(name),
            because: because.into(),
        });
    }
    let given = given?;
    if given == 0 && amendment.part != Part::Decided && !context.registration.updates.unconditional {
        return Err(unconditional(context, name));
    }
    if given != 0 && given != entry.revision {
        return Err(modified(context, name));
    }
    Ok(())
}

/// 422 for an update without `resourceVersion`, of a kind that requires it. Upstream puts the
/// resource in place of the kind, and the zero as Go writes it.
fn unconditional(context: &Context, name: &str) -> Failure {
    let message = "Invalid value: 0x0: must be specified for an update";
    Failure::Invalid {
        kind: context.resource(),
        name: name.to_owned(),
        causes: vec![Cause {
            reason: "FieldValueInvalid".into(),
            field: "metadata.resourceVersion".to_owned(),
            message: message.to_owned(),
            text: format!("metadata.resourceVersion: {message}"),
        }],
    }
}

/// Keeps the metadata that no client can change; validation refuses another UID.
fn keep_metadata(new: &mut dyn Object, old: &dyn Object) {
    let old = old.metadata();
    let new = new.metadata_mut();
    if new.uid.as_deref().is_none_or(str::is_empty) {
        new.uid.clone_from(&old.uid);
    }
    new.creation_timestamp.clone_from(&old.creation_timestamp);
    new.generation = old.generation;
    new.self_link = None;
    if old.deletion_timestamp.is_some() {
        new.deletion_timestamp.clone_from(&old.deletion_timestamp);
    }
    if old.deletion_grace_period_seconds.is_some() && new.deletion_grace_period_seconds.is_none() {
        new.deletion_grace_period_seconds = old.deletion_grace_period_seconds;
    }
}

/// True if an object that is being deleted can be removed: no grace period or finalizers are left.
pub(crate) fn is_finished(object: &dyn Object) -> bool {
    let metadata = object.metadata();
    metadata.deletion_timestamp.is_some()
        && metadata.deletion_grace_period_seconds.unwrap_or(0) == 0
        && metadata.finalizers.as_ref().is_none_or(Vec::is_empty)
        && own_finalizers(object).is_empty()
}

/// Finalizers in a namespace's spec; empty for other kinds.
pub(crate) fn own_finalizers(object: &dyn Object) -> &[String] {
    object
        .as_any()
        .downcast_ref::<Namespace>()
        .and_then(|namespace| namespace.spec.as_ref())
        .and_then(|spec| spec.finalizers.as_deref())
        .unwrap_or_default()
}
