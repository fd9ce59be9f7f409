//! PATCH with `application/apply-patch+yaml`: server-side apply. Missing objects are created.

use api::managed::{self, Application, Applied, ApplyError, Managed};
use api::schema::Schema;
use api::{Object, Registration};
use axum::body::Body;
use bytes::Bytes;
use http::StatusCode;
use serde_json::{Value, json};

use crate::authz::Attributes;
use crate::request::context::Context;
use crate::request::failure::Failure;
use crate::request::object::{self, Live};
use crate::request::options::{FieldValidation, WriteOptions};
use crate::transport::body::{self, check_bounds};
use crate::transport::negotiation::negotiate;
use crate::transport::respond::Response;
use crate::transport::shape;
use crate::write::admission::Part;
use crate::write::amend::{Amendment, Changed, amend};
use crate::write::create::{Stored, check_name, modified, revision, store_new};
use crate::write::managers;

/// Number of attempts when others create or delete the same object.
const ATTEMPTS: usize = 8;

/// Applied configuration and its options.
pub(crate) struct Applying {
    pub(crate) object: Value,
    pub(crate) options: WriteOptions,
    force: bool,
}

impl Applying {
    /// Reads a request.
    ///
    /// # Errors
    /// 400 for a body that is no object, 422 for options that do not go together.
    pub(crate) async fn read(context: &mut Context, body: Body) -> Result<Self, Failure> {
        let options = WriteOptions::of_patch(&context.query, true)?;
        let body = body::read(body).await?;
        context.notes.request = Some(body.clone());
        let (object, lines) = parse(&body)?;
        match options.field_validation {
            FieldValidation::Strict if !lines.is_empty() => {
                let errors = api::yaml::unmarshal_errors(&lines);
                let text = format!("error strict decoding YAML: error converting YAML to JSON: {errors}");
                return Err(Failure::bad_request(text));
            }
            FieldValidation::Warn => context.warnings.extend(lines),
            FieldValidation::Strict | FieldValidation::Ignore => {}
        }
        Ok(Self {
            object,
            options,
            force: context.query.flag("force"),
        })
    }

    /// Decodes the applied configuration as a kind of another version than the request's.
    ///
    /// # Errors
    /// 400 for another kind, 500 for fields of the wrong type.
    pub(crate) fn decode<T: Clone + 'static>(&self, registration: &Registration) -> Result<T, Failure> {
        let (api_version, kind) = (&registration.api_version(), registration.kind);
        let own = |member: &str| self.object.get(member).and_then(Value::as_str).unwrap_or_default();
        if own("apiVersion") != *api_version || own("kind") != kind {
            let slash = if own("apiVersion").contains('/') { "" } else { "/" };
            return Err(Failure::bad_request(format!(
                "invalid object type: {slash}{}, Kind={}",
                own("apiVersion"),
                own("kind")
            )));
        }
        if let Some(schema) = Schema::of_kind(api_version, kind) {
            managed::check_shape(schema, api_version, kind, &self.object).map_err(refused)?;
        }
        let json = self.object.to_string();
        let (object, _unknown) = object::decode_bare(registration, json.as_bytes(), FieldValidation::Ignore)
            .map_err(|message| Failure::Unexpected { message })?;
        object::part(&*object)
    }
}

/// Parses JSON or YAML to an object, with warnings about duplicate keys. Upstream parses JSON as
/// YAML here; that is needed only for their line numbers.
fn parse(body: &Bytes) -> Result<(Value, Vec<String>), Failure> {
    let unreadable = |error: &dyn std::fmt::Display| Failure::bad_request(format!("error decoding YAML: {error}"));
    let json = body.first() == Some(&b'{') && check_bounds(body).is_ok();
    let is_plain = || api::strict::duplicates(body).is_ok_and(|found| found.is_empty());
    let (value, lines) = match serde_json::from_slice(body) {
        Ok(value) if json && is_plain() => (value, Vec::new()),
        _ => {
            let yaml = api::yaml::to_json(body)
                .map_err(|error| unreadable(&format!("error converting YAML to JSON: {error}")))?;
            let lines = yaml.duplicates.iter().map(ToString::to_string).collect();
            (yaml.value, lines)
        }
    };
    let found = match &value {
        Value::Object(_) => {
            check_bounds(value.to_string().as_bytes())?;
            return Ok((value, lines));
        }
        Value::Null => return Ok((json!({}), lines)),
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
    };
    Err(unreadable(&format!(
        "error unmarshaling JSON: while decoding JSON: json: cannot unmarshal {found} into Go value of type \
         map[string]interface {{}}"
    )))
}

/// Answers the object as stored: 201 when it was created.
pub(crate) async fn apply(context: &mut Context, body: Body, part: Part) -> Result<Response, Failure> {
    let representation = negotiate(&context.headers, &context.query)?;
    let applying = Applying::read(context, body).await?;
    let (code, bytes) = put(context, &applying, part).await?;
    context.notes.response = Some(bytes.clone());
    shape::one(context, code, representation, bytes).await
}

async fn put(context: &mut Context, applying: &Applying, part: Part) -> Result<(StatusCode, Bytes), Failure> {
    let name = context.info.name.clone();
    let amendment = Amendment {
        name: &name,
        part,
        dry_run: applying.options.dry_run,
    };
    for _ in 0..ATTEMPTS {
        let shared: &Context = context;
        let change = &mut |live: &Live, _old: &dyn Object| applied_to(shared, applying, live);
        match amend(shared, amendment, change).await {
            Ok(bytes) => return Ok((StatusCode::OK, bytes)),
            Err(Failure::NotFound { target }) if target == context.own_target() && part == Part::Object => {}
            Err(failure) => return Err(failure),
        }
        match create(context, applying).await {
            Err(Failure::AlreadyExists { .. }) if !applying.options.dry_run => {}
            outcome => return outcome.map(|bytes| (StatusCode::CREATED, bytes)),
        }
    }
    Err(modified(context, &name))
}

/// Merges the applied configuration into a stored object.
pub(crate) fn applied_to(context: &Context, applying: &Applying, stored: &Live) -> Result<Changed, Failure> {
    let registration = &context.registration;
    let live = object::stored(registration, stored)?;
    let live: Value = serde_json::from_slice(&live.to_json()).map_err(Failure::internal)?;
    let entries = Managed::parse(object::managed(stored.entry()))
        .map_err(|error| Failure::internal(format!("failed to decode managed fields: {error}")))?;
    let applied = merged(context, applying, &live, entries)?;
    let object = decode(context, &applied.object)?;
    Ok(Changed {
        object,
        applied: Some(applied.managed),
    })
}

fn merged(context: &Context, applying: &Applying, live: &Value, entries: Managed) -> Result<Applied, Failure> {
    let registration = &context.registration;
    let (api_version, kind) = (registration.api_version(), registration.kind);
    let types =
        managers::types(context).ok_or_else(|| Failure::internal(format!("no schema of {api_version} {kind}")))?;
    let application = Application {
        kinds: managers::versioning(context),
        types,
        kind,
        live,
        applied: &applying.object,
        writer: &managers::writer(context),
        force: applying.force,
        ignored: &managers::ignored(context),
    };
    managed::apply(&application, entries).map_err(refused)
}

fn refused(error: ApplyError) -> Failure {
    match error {
        ApplyError::Malformed(message) => Failure::bad_request(message),
        ApplyError::Unfit(message) => Failure::Unexpected { message },
        ApplyError::Conflict(conflicts) => Failure::ApplyConflict { conflicts },
    }
}

fn decode(context: &Context, document: &Value) -> Result<Box<dyn Object>, Failure> {
    let registration = &context.registration;
    let json = document.to_string();
    let json = object::without_empty(registration, json.as_bytes());
    let decoded = registration.decode_reporting(&json).map(|(object, _)| object);
    decoded.map_err(|error| {
        let text = |member: &str| document.pointer(member).and_then(Value::as_str).unwrap_or_default();
        let slash = if registration.group.is_empty() { "/" } else { "" };
        Failure::Unexpected {
            message: format!(
                "failed to convert new typed object ({}/{}; {slash}{}, Kind={}) to object: {error}",
                text("/metadata/namespace"),
                text("/metadata/name"),
                registration.api_version(),
                registration.kind
            ),
        }
    })
}

/// Creates the applied object, for which the user needs the right to create, too.
async fn create(context: &mut Context, applying: &Applying) -> Result<Bytes, Failure> {
    let applied = merged(context, applying, &json!({}), Managed::default())?;
    let mut object = decode(context, &applied.object)?;
    if let Some(uid) = object.metadata().uid.as_deref().filter(|uid| !uid.is_empty()) {
        return Err(Failure::Conflict {
            target: context.own_target(),
            because: format!("uid mismatch: the provided object specified uid {uid}, and no existing object was found")
                .into(),
        });
    }
    check_name(&*object, &context.info.name)?;
    let mut info = context.info.clone();
    info.verb = "create";
    context
        .server
        .authorizer
        .check(&context.user, &Attributes::of(&info, ""))?;
    // Upstream's update that creates stores no revision, but does not refuse one.
    revision(&*object)?;
    object.metadata_mut().resource_version = None;
    let managed = applied.managed.to_json();
    match store_new(context, object, Some(managed), applying.options.dry_run).await? {
        Stored::Entry(entry) => object::external(&context.registration, &context.live(entry).await?),
        Stored::DryRun(mut object, managed) => Ok(object::unstored(&mut *object, None, &managed)),
    }
}
