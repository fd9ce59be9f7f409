//! DELETE of one object: at once, after a grace period, or when its finalizers are removed.

pub(crate) mod collection;

use api::Object;
use api::kind::Dependents;
use axum::body::Body;
use bytes::Bytes;
use http::StatusCode;
use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, StatusDetails, Time};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use store::{CommitError, Entry, Write};

use crate::extensions::definitions;
use crate::request::context::Context;
use crate::request::failure::{Failure, GroupResource};
use crate::request::object;
use crate::request::options::{Deletion, Propagation};
use crate::transport::body;
use crate::transport::negotiation::negotiate;
use crate::transport::respond::{self, Response};
use crate::transport::shape;
use crate::write::admission::webhooks::{self, Asked};
use crate::write::admission::{self, quota};
use crate::write::amend::own_finalizers;
use crate::write::create::{commit_failure, modified};

const ATTEMPTS: usize = 64;
const ORPHAN: &str = "orphan";
const FOREGROUND: &str = "foregroundDeletion";

/// Answers the object or a `Status`.
pub(crate) async fn delete(context: &mut Context, body: Body) -> Result<Response, Failure> {
    let representation = negotiate(&context.headers, &context.query)?;
    let body = body::read(body).await?;
    context.notes.request = Some(body.clone()).filter(|body| !body.is_empty());
    let deletion = Deletion::read(&context.headers, &context.query, body)?;
    warn_of_orphans(context, &deletion);
    let name = context.info.name.clone();
    let removed = remove(context, &name, &deletion).await?;
    context.notes.response = Some(removed.bytes.clone());
    if removed.gone && !context.registration.answers_deleted {
        let details = StatusDetails {
            name: Some(name),
            group: Some(context.registration.group.to_owned()).filter(|group| !group.is_empty()),
            kind: Some(context.registration.plural.to_owned()),
            uid: removed.uid,
            ..StatusDetails::default()
        };
        return respond::status(
            representation.encoding,
            StatusCode::OK,
            &respond::success(200, Some(details)),
        );
    }
    let accepted = !removed.gone && deletion.orphan_dependents == Some(false);
    let code = if accepted { StatusCode::ACCEPTED } else { StatusCode::OK };
    shape::one(context, code, representation, removed.bytes).await
}

/// Warns clients that delete jobs without a propagation policy about their pods.
pub(crate) fn warn_of_orphans(context: &mut Context, deletion: &Deletion) {
    let registration = &context.registration;
    let orphans = registration.dependents == Dependents::Orphaned && registration.group == "batch";
    if orphans && deletion.propagation().is_none() {
        let warning = "child pods are preserved by default when jobs are deleted; set propagationPolicy=Background to \
                       remove them or set propagationPolicy=Orphan to suppress this warning";
        context.warnings.extend([warning.to_owned()]);
    }
}

/// Result of a deletion.
#[derive(Debug)]
pub(crate) struct Removed {
    /// True if the object is gone; otherwise it waits for its grace period or its finalizers.
    pub(crate) gone: bool,
    pub(crate) uid: Option<String>,
    /// The object's last JSON.
    pub(crate) bytes: Bytes,
}

/// Next step of a deletion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    /// Removes the object.
    Remove,
    /// The object is marked, or its mark changes.
    Mark,
    /// The object waits as it is.
    Wait,
}

/// Deletes an object of the request's resource and namespace.
///
/// # Errors
/// 403, 404, 409
pub(crate) async fn remove(context: &Context, name: &str, deletion: &Deletion) -> Result<Removed, Failure> {
    remove_with(context, name, deletion, &mut |_entry, _object| Ok(Vec::new())).await
}

/// Hook before an object is removed: it may change the object, or refuse, and returns the writes to
/// other objects that are committed with the deletion. It may be called several times.
pub(crate) type Farewell<'a> = dyn FnMut(&Entry, &mut dyn Object) -> Result<Vec<Write>, Failure> + Send + 'a;

/// Like [`remove`], after the preconditions hold.
///
/// # Errors
/// 403, 404, 409, and those of `farewell`
pub(crate) async fn remove_with(
    context: &Context,
    name: &str,
    deletion: &Deletion,
    farewell: &mut Farewell<'_>,
) -> Result<Removed, Failure> {
    let registration = &context.registration;
    let key = context.key(name)?;
    admission::may_delete(context, name)?;
    let kind = GroupResource::new(registration.group, registration.kind);
    for _ in 0..ATTEMPTS {
        let entry = context.store().get(&key).ok_or_else(|| Failure::NotFound {
            target: context.target(name),
        })?;
        admission::may_touch(context, &entry)?;
        let live = context.live(entry).await?;
        let entry = live.entry().clone();
        let mut object = object::stored(registration, &live)?;
        let uid = object.metadata().uid.clone();
        deletion.check(&kind, name, uid.as_deref().unwrap_or_default(), entry.revision)?;
        // An eviction has asked about itself.
        if context.info.verb != "create" && !webhooks::are_idle(context) {
            let asked = Asked::to_delete(context, &*object, object::managed(&entry), deletion);
            Box::pin(webhooks::admit(&asked)).await?;
        }
        // Webhooks are called before the turn is taken: they may write something themselves.
        let _turn = quota::turn(context).await;
        let mut also = farewell(&entry, &mut *object)?;
        definitions::names::mark_deleted(&mut *object, context.now());
        let step = decide(context, &mut *object, deletion);
        if step == Step::Remove {
            also.extend(quota::charge(context, Some(&*object), None)?);
            also.extend(admission::farewell(context.store(), &*object));
        }
        if deletion.dry_run || step == Step::Wait {
            let bytes = object::unstored(&mut *object, Some(entry.revision), object::managed(&entry));
            return Ok(Removed {
                gone: step == Step::Remove,
                uid,
                bytes,
            });
        }
        let (value, attributes) = object::encode_marked(registration, &live, &mut *object)?;
        let expected = entry.revision;
        let write = match step {
            Step::Remove => Write::Delete {
                key: key.clone(),
                expected: Some(expected),
                last: value,
            },
            Step::Mark | Step::Wait => Write::Update {
                key: key.clone(),
                value,
                attributes,
                expected,
            },
        };
        match context.commit(write, also, None).await {
            Ok(entry) => {
                let bytes = object::external_marked(registration, &live, &mut *object, &entry)?;
                return Ok(Removed {
                    gone: step == Step::Remove,
                    uid,
                    bytes,
                });
            }
            Err(CommitError::Conflict { .. } | CommitError::Accompanying { .. }) => {}
            Err(error) => return Err(commit_failure(context, name, &error)),
        }
    }
    Err(modified(context, name))
}

fn decide(context: &Context, object: &mut dyn Object, deletion: &Deletion) -> Step {
    let requested = deletion.grace.map(|seconds| if seconds < 0 { 1 } else { seconds });
    let marked = object.metadata().deletion_timestamp.is_some();
    let current = object
        .metadata()
        .deletion_grace_period_seconds
        .filter(|seconds| marked && *seconds > 0);
    if let Some(current) = current {
        // Already being deleted: the grace period can only be shortened.
        return match requested.filter(|seconds| *seconds < current) {
            Some(seconds) => shorten(object, context.now(), current, seconds),
            None => Step::Wait,
        };
    }
    let grace = if marked {
        0
    } else {
        context.registration.grace(object, requested)
    };
    let dependents = context.registration.dependents;
    let changed = set_propagation(object.metadata_mut(), deletion.propagation(), dependents);
    if grace == 0 && !has_finalizers(object) {
        return Step::Remove;
    }
    if marked {
        return if changed { Step::Mark } else { Step::Wait };
    }
    mark(object, context.now(), grace);
    Step::Mark
}

fn has_finalizers(object: &dyn Object) -> bool {
    object.metadata().finalizers.as_ref().is_some_and(|own| !own.is_empty()) || !own_finalizers(object).is_empty()
}

/// Shortens the grace period of an object that is being deleted. The deletion timestamp never moves
/// into the past; of a period that has passed one second is left (`BeforeDelete` of
/// `staging/src/k8s.io/apiserver/pkg/registry/rest/delete.go`).
fn shorten(object: &mut dyn Object, now: Timestamp, current: i64, mut seconds: i64) -> Step {
    let metadata = object.metadata_mut();
    if let Some(Time(at)) = &mut metadata.deletion_timestamp {
        *at = later(*at, seconds - current);
        if *at < now {
            *at = now;
            seconds = seconds.min(1);
        }
    }
    metadata.deletion_grace_period_seconds = Some(seconds);
    if seconds == 0 && !has_finalizers(object) {
        Step::Remove
    } else {
        Step::Mark
    }
}

fn mark(object: &mut dyn Object, now: Timestamp, grace: i64) {
    let metadata = object.metadata_mut();
    metadata.deletion_timestamp = Some(Time(later(now, grace)));
    metadata.deletion_grace_period_seconds = Some(grace);
    // The generation tells observers that the desired state has changed.
    metadata.generation = metadata
        .generation
        .map(|generation| if generation > 0 { generation + 1 } else { generation });
    if let Some(namespace) = object.as_any_mut().downcast_mut::<Namespace>() {
        namespace.metadata.deletion_grace_period_seconds = None;
        namespace.status.get_or_insert_default().phase = Some("Terminating".to_owned());
    }
}

fn later(at: Timestamp, seconds: i64) -> Timestamp {
    at.checked_add(SignedDuration::from_secs(seconds)).unwrap_or(at)
}

/// Sets the finalizers of the propagation policy; returns whether they changed. The kind's default
/// applies where neither the client nor the object has one.
fn set_propagation(metadata: &mut ObjectMeta, propagation: Option<Propagation>, dependents: Dependents) -> bool {
    let before = metadata.finalizers.clone().unwrap_or_default();
    let said = before
        .iter()
        .any(|finalizer| finalizer == ORPHAN || finalizer == FOREGROUND);
    let own = match dependents {
        Dependents::Collected => None,
        Dependents::Orphaned => (!said).then_some(Propagation::Orphan),
        Dependents::Unseen => Some(Propagation::Background),
    };
    let asked = propagation.filter(|_| dependents != Dependents::Unseen);
    let Some(propagation) = asked.or(own) else {
        return false;
    };
    let mut after: Vec<String> = before
        .iter()
        .filter(|finalizer| *finalizer != ORPHAN && *finalizer != FOREGROUND)
        .cloned()
        .collect();
    match propagation {
        Propagation::Orphan => after.push(ORPHAN.to_owned()),
        Propagation::Foreground => after.push(FOREGROUND.to_owned()),
        Propagation::Background => {}
    }
    let changed = after != before;
    metadata.finalizers = Some(after).filter(|after| !after.is_empty());
    changed
}
