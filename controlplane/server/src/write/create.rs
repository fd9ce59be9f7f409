//! POST of a new object.

use std::num::{IntErrorKind, ParseIntError};

use api::Object;
use axum::body::Body;
use http::StatusCode;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use store::{CommitError, Entry, Write};
use uuid::Uuid;

use crate::extensions::aggregation;
use crate::extensions::definitions;
use crate::extensions::definitions::names::Names;
use crate::request::context::{Context, Identity};
use crate::request::failure::Failure;
use crate::request::object;
use crate::request::options::WriteOptions;
use crate::transport::body;
use crate::transport::negotiation::negotiate;
use crate::transport::respond::Response;
use crate::transport::shape;
use crate::write::admission::{self, Review, quota};
use crate::write::managers;
use crate::write::owners;

/// Number of names that are tried for `generateName`.
const NAME_ATTEMPTS: usize = 8;
/// Number of times that a creation is admitted anew when its preconditions change meanwhile.
const ATTEMPTS: usize = 64;

/// Answers 201 with the object as stored.
pub(crate) async fn create(context: &mut Context, body: Body) -> Result<Response, Failure> {
    let representation = negotiate(&context.headers, &context.query)?;
    let options = WriteOptions::read(&context.query, "CreateOptions")?;
    let body = body::read(body).await?;
    let mut read = object::read(&context.registration, &context.headers, body, options.field_validation)?;
    context.warnings.extend(read.warnings);
    context.warnings.extend(owners::once(read.object.metadata_mut(), false));
    context.notes.request = Some(read.json);
    context.notes.sent = Identity::of(read.object.metadata());
    // Like upstream, fails if the stored object cannot be converted back, although it is stored
    // (`Create` of `staging/src/k8s.io/apiserver/pkg/storage/etcd3/store.go`).
    let bytes = match store_new(context, read.object, None, options.dry_run).await? {
        Stored::Entry(entry) => object::external(&context.registration, &context.live(entry).await?)?,
        Stored::DryRun(mut object, managed) => object::unstored(&mut *object, None, &managed),
    };
    context.notes.response = Some(bytes.clone());
    shape::one(context, StatusCode::CREATED, representation, bytes).await
}

/// Outcome of a creation.
pub(crate) enum Stored {
    /// The object is stored.
    Entry(Entry),
    /// Object of a dry run, with the text of its managed fields.
    DryRun(Box<dyn Object>, String),
}

/// Everything between decoding and the answer. `managed` is the text of the managed fields of an
/// object that is applied.
pub(crate) async fn store_new(
    context: &mut Context,
    mut object: Box<dyn Object>,
    managed: Option<String>,
    dry_run: bool,
) -> Result<Stored, Failure> {
    set_namespace(context, &mut *object)?;
    let (name, sent) = (&object.metadata().name, &object.metadata().managed_fields);
    managers::check(context, name.as_deref().unwrap_or_default(), sent.as_deref())?;
    definitions::rules::may_create(context, &*object)?;
    admission::may_configure(context, &*object, None)?;
    admission::await_account(context, &*object).await;
    let managed = begin(context, &mut *object, managed);
    finish(context, object, managed, dry_run).await
}

async fn finish(context: &Context, sent: Box<dyn Object>, managed: String, dry_run: bool) -> Result<Stored, Failure> {
    let mut names = if draws_name(&*sent) { NAME_ATTEMPTS } else { 1 };
    for _ in 0..ATTEMPTS {
        // Admission starts from the sent object on each attempt: earlier allocations are not the
        // client's request.
        let mut object = sent.clone_box();
        let review = admit(context, &mut object, &managed).await?;
        let stored = context.to_store(&*object, &managed, dry_run).await?;
        // Webhooks are called before the turn is taken: they may write something themselves.
        let _turn = quota::turn(context).await;
        let given = definitions::names::settle(context, &mut *object).await;
        aggregation::local::settle(&mut *object, context.now());
        let terms = review.end(Some(&*object))?;
        let name = object.metadata().name.clone().unwrap_or_default();
        let key = context.key(&name)?;
        let outcome = if dry_run {
            if context.store().get(&key).is_none() {
                return Ok(Stored::DryRun(object, managed));
            }
            Err(CommitError::Exists)
        } else {
            check_revision(&*object)?;
            let (value, attributes) =
                object::encode_bounded(&context.registration, &mut *object, &managed, (stored, 0))?;
            let write = Write::Create {
                key,
                value,
                attributes,
                within: terms.within,
            };
            let guard = given.as_ref().map(Names::guard);
            context.commit(write, terms.also, guard).await
        };
        match outcome {
            Ok(entry) => return Ok(Stored::Entry(entry)),
            Err(CommitError::Exists) if names > 1 => names -= 1,
            // The state that admission saw has changed: repeat it.
            Err(CommitError::Moved { .. } | CommitError::Changed { .. } | CommitError::Accompanying { .. }) => {}
            Err(error) => {
                let mut failure = commit_failure(context, &name, &error);
                if let Failure::AlreadyExists { drawn, .. } = &mut failure {
                    *drawn = has_prefix(&*sent);
                }
                return Err(failure);
            }
        }
    }
    Err(modified(context, sent.metadata().name.as_deref().unwrap_or_default()))
}

/// Runs a new object through admission and its kind's own rules. As upstream
/// (`staging/src/k8s.io/apiserver/pkg/endpoints/handlers/create.go`,
/// `registry/generic/registry/store.go`), the mutating steps see the sent object with its defaults;
/// derived fields are computed from their result.
async fn admit<'a>(context: &'a Context, new: &mut Box<dyn Object>, managed: &'a str) -> Result<Review<'a>, Failure> {
    let registration = &context.registration;
    let mut review = Review::of_new(context, managed);
    review.mutate(new).await?;
    let object = &mut **new;
    check_mutated(context, object)?;
    identify(context, object);
    registration.prepare_create(object);
    review.allocate(object)?;
    let mut found = registration.validate(object);
    found.extend(definitions::rules::schemas(object, None));
    found.extend(admission::webhooks::faults(object, None));
    found.extend(admission::policies::faults(object, None));
    if found.is_empty() {
        found.extend(admission::policies::unreadable(context, object, None));
    }
    if !found.is_empty() {
        let name = object.metadata().name.as_deref().unwrap_or_default();
        return Err(Failure::invalid(registration.group, registration.kind, name, &found));
    }
    review.warnings.extend(registration.warnings(object, None));
    review
        .warnings
        .extend(definitions::rules::format_warnings(object, None));
    review.validate(object).await?;
    Ok(review)
}

/// A webhook may not change name or namespace; its deletion metadata are ignored like a client's.
fn check_mutated(context: &Context, object: &mut dyn Object) -> Result<(), Failure> {
    set_namespace(context, object)?;
    let metadata = object.metadata_mut();
    metadata.deletion_timestamp = None;
    metadata.deletion_grace_period_seconds = None;
    if context.info.named {
        check_name(object, &context.info.name)
    } else {
        Ok(())
    }
}

/// 409 for an existing object, with upstream's message if it is being deleted.
fn exists(context: &Context, name: &str) -> Failure {
    let entry = context.key(name).ok().and_then(|key| context.store().get(&key));
    let object = entry.and_then(|entry| serde_json::from_slice::<serde_json::Value>(&entry.bytes).ok());
    let deleted = object.and_then(|object| object.pointer("/metadata/deletionTimestamp").cloned());
    Failure::AlreadyExists {
        target: context.target(name),
        going: deleted.is_some(),
        drawn: false,
    }
}

/// Maps a failed commit to the client's error.
pub(crate) fn commit_failure(context: &Context, name: &str, error: &CommitError) -> Failure {
    match error {
        CommitError::Exists => exists(context, name),
        CommitError::NotFound => Failure::NotFound {
            target: context.target(name),
        },
        CommitError::Conflict { .. }
        | CommitError::Moved { .. }
        | CommitError::Changed { .. }
        | CommitError::Accompanying { .. } => modified(context, name),
        CommitError::Full(_) => Failure::Unavailable {
            message: "no space left for the write".into(),
        },
        CommitError::Closed => Failure::Unavailable {
            message: "the server is shutting down".into(),
        },
        CommitError::Unknown(_) => Failure::Late,
        // `dispatch` begins the request anew.
        CommitError::Guarded { key } if definitions::prefix().contains(key) => modified(context, name),
        CommitError::Guarded { .. } => Failure::Unavailable {
            message: "another control plane leads".into(),
        },
        CommitError::Failed(_) => Failure::internal(error),
    }
}

/// 409 for a writer that has read an older version.
pub(crate) fn modified(context: &Context, name: &str) -> Failure {
    Failure::Conflict {
        target: context.target(name),
        because: "the object has been modified; please apply your changes to the latest version and try again".into(),
    }
}

/// Revision that a sent object names; 0 for none.
///
/// # Errors
/// 500 for what is no number, as upstream's `ObjectResourceVersion`
/// (`staging/src/k8s.io/apiserver/pkg/storage/api_object_versioner.go`).
pub(crate) fn revision(object: &dyn Object) -> Result<u64, Failure> {
    let given = object.metadata().resource_version.as_deref().unwrap_or_default();
    if given.is_empty() {
        return Ok(0);
    }
    given.parse().map_err(|error: ParseIntError| {
        let because = if *error.kind() == IntErrorKind::PosOverflow {
            "value out of range"
        } else {
            "invalid syntax"
        };
        Failure::Unexpected {
            message: format!("strconv.ParseUint: parsing {given:?}: {because}"),
        }
    })
}

/// A revision may not be given. As in upstream's store, what is no number is none
/// (`Create` of `staging/src/k8s.io/apiserver/pkg/storage/etcd3/store.go`).
fn check_revision(object: &dyn Object) -> Result<(), Failure> {
    match revision(object) {
        Ok(0) | Err(_) => Ok(()),
        Ok(_) => Err(Failure::Unexpected {
            message: "resourceVersion should not be set on objects to be created".to_owned(),
        }),
    }
}

/// The object's namespace: the path's, unless it contradicts.
pub(crate) fn set_namespace(context: &Context, object: &mut dyn Object) -> Result<(), Failure> {
    let wanted = match context.registration.scope {
        api::kind::Scope::Namespaced => Some(context.info.namespace.clone()),
        api::kind::Scope::Cluster => None,
    };
    let own = object
        .metadata_mut()
        .namespace
        .take()
        .filter(|namespace| !namespace.is_empty());
    if wanted.is_some() {
        check_namespace(context, own.as_deref())?;
    }
    object.metadata_mut().namespace = wanted;
    Ok(())
}

/// A namespace that a body names must be the path's.
pub(crate) fn check_namespace(context: &Context, own: Option<&str>) -> Result<(), Failure> {
    match own {
        Some(own) if !own.is_empty() && own != context.info.namespace => Err(Failure::bad_request(
            "the namespace of the provided object does not match the namespace sent on the request",
        )),
        Some(_) | None => Ok(()),
    }
}

/// Drops fields that a client may not set in a new object and sets defaults; returns the text of
/// the managed fields, which, if not given, cover the sent object with its defaults, not the
/// server's additions.
fn begin(context: &Context, object: &mut dyn Object, managed: Option<String>) -> String {
    let metadata = object.metadata_mut();
    metadata.deletion_timestamp = None;
    metadata.deletion_grace_period_seconds = None;
    metadata.self_link = None;
    metadata.managed_fields = None;
    metadata.generation = None;
    context.registration.set_defaults(object);
    managed.unwrap_or_else(|| managers::of_new(context, object))
}

/// Sets name, UID and creation time.
fn identify(context: &Context, object: &mut dyn Object) {
    let draws = draws_name(object);
    let metadata = object.metadata_mut();
    metadata.uid = Some(Uuid::new_v4().to_string());
    metadata.creation_timestamp = Some(Time(context.now()));
    if draws {
        let prefix = metadata.generate_name.as_deref().unwrap_or_default();
        metadata.name = Some(api::names::generate(prefix, rand::random()));
    }
}

fn draws_name(object: &dyn Object) -> bool {
    object.metadata().name.as_deref().unwrap_or_default().is_empty() && has_prefix(object)
}

fn has_prefix(object: &dyn Object) -> bool {
    let prefix = object.metadata().generate_name.as_deref();
    prefix.is_some_and(|prefix| !prefix.is_empty())
}

pub(crate) fn check_name(new: &dyn Object, name: &str) -> Result<(), Failure> {
    match new.metadata().name.as_deref() {
        Some(own) if own == name => Ok(()),
        None | Some("") => Err(Failure::bad_request(format!(
            "the name of the object ({name} based on URL) was undeterminable: name must be provided"
        ))),
        Some(own) => Err(Failure::bad_request(format!(
            "the name of the object ({own}) does not match the name on the URL ({name})"
        ))),
    }
}
