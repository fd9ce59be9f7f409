//! POST of a `TokenRequest`: a token for a service account, which may be bound to a pod, a Secret or a node.

use api::kinds::subresources::TOKEN_REQUEST;
use axum::body::Body;
use http::StatusCode;
use k8s_openapi::api::authentication::v1::{BoundObjectReference, TokenRequest, TokenRequestSpec, TokenRequestStatus};
use k8s_openapi::api::core::v1::{Pod, ServiceAccount};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use store::Key;
use uuid::Uuid;

use crate::authn;
use crate::authn::identity::User;
use crate::authn::tokens::{Claims, Named, Private};
use crate::request::context::Context;
use crate::request::failure::{Failure, GroupResource, Target};
use crate::request::options::{FieldValidation, WriteOptions};
use crate::transport::body;
use crate::transport::negotiation::negotiate_review;
use crate::transport::respond::{self, Response, encode};
use crate::write::admission::{self, webhooks};
use crate::write::create::check_namespace;

const GROUP: &str = "authentication.k8s.io";
const KIND: &str = "TokenRequest";
const VERSION: &str = "authentication.k8s.io/v1";
/// Seconds that a token lives when the request does not say.
const DEFAULT: i64 = 3600;
const SHORTEST: i64 = 600;
const LONGEST: i64 = 1 << 32;
/// Lifetime that admission requests: such tokens are valid for a year, for clients that do not
/// reload their file, and the audit log shows such use.
const EXTENDED: i64 = 3607;
const YEAR: i64 = 365 * 24 * 3600;

/// `POST serviceaccounts/NAME/token`
pub(crate) async fn create(context: &mut Context, body: Body) -> Result<Response, Failure> {
    let representation = negotiate_review(&context.headers, &context.query)?;
    let options = WriteOptions::read(&context.query, "CreateOptions")?;
    let body = body::read(body).await?;
    let decoded = body::to_json(
        &context.headers,
        body,
        KIND,
        options.field_validation != FieldValidation::Ignore,
    )?;
    let request: TokenRequest = context.read_part(&TOKEN_REQUEST, decoded, options.field_validation)?;
    check_namespace(context, request.metadata.namespace.as_deref())?;
    check_name(context, &request.metadata)?;
    let request = webhooks::admit_part(context, &TOKEN_REQUEST, request).await?;
    let mut request = Parsed {
        metadata: request.metadata,
        spec: request.spec.unwrap_or_default(),
        status: None,
    };
    let account: ServiceAccount = decode(&context.entry()?.bytes)?;
    let now = context.now();
    check_account(context, &mut request.metadata, &account)?;
    begin(context, &mut request, now);
    check(&request.spec)?;
    admission::may_request_token(context, &request.spec)?;
    let private = bind(context, &request.spec, &account)?;
    request.status = Some(issue(context, &request.spec, private, now)?);
    let answer = encode(&request);
    respond::document(representation.encoding, StatusCode::CREATED, (VERSION, KIND), &answer)
}

/// Request with a spec.
struct Parsed {
    metadata: ObjectMeta,
    spec: TokenRequestSpec,
    status: Option<TokenRequestStatus>,
}

impl serde::Serialize for Parsed {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let request = TokenRequest {
            metadata: self.metadata.clone(),
            spec: Some(self.spec.clone()),
            status: self.status.clone(),
        };
        request.serialize(serializer)
    }
}

/// Checks that the name in the object equals the one in the path.
fn check_name(context: &Context, metadata: &ObjectMeta) -> Result<(), Failure> {
    let account = &context.info.name;
    let own = metadata.name.as_deref().unwrap_or_default();
    if own.is_empty() || own == account {
        return Ok(());
    }
    let found = api::Invalid::value("metadata.name", own, "must match the service account name if specified");
    Err(Failure::invalid(GROUP, KIND, account, &[found]))
}

/// Checks that the UID in the object is the account's: an account of the same name may have taken
/// its place (`TokenRequestServiceAccountUIDValidation`). It is set where it is missing.
fn check_account(context: &Context, metadata: &mut ObjectMeta, account: &ServiceAccount) -> Result<(), Failure> {
    let uid = account.metadata.uid.clone().unwrap_or_default();
    let own = metadata.uid.take().filter(|own| !own.is_empty());
    if let Some(own) = own.filter(|own| *own != uid) {
        let because =
            format!("the UID in the token request ({own}) does not match the UID of the service account ({uid})");
        return Err(Failure::Conflict {
            target: Target {
                resource: GroupResource::new(GROUP, KIND),
                name: context.info.name.clone(),
            },
            because: because.into(),
        });
    }
    metadata.uid = Some(uid);
    Ok(())
}

/// Sets defaults.
fn begin(context: &Context, request: &mut Parsed, now: Timestamp) {
    let spec = &mut request.spec;
    if spec.audiences.as_ref().is_none_or(Vec::is_empty) {
        spec.audiences = Some(authn::audiences(&context.server).to_vec());
    }
    spec.expiration_seconds.get_or_insert(DEFAULT);
    request.metadata.name = Some(context.info.name.clone());
    request.metadata.namespace = Some(context.info.namespace.clone());
    request.metadata.creation_timestamp = Some(Time(now));
    request.metadata.managed_fields = None;
}

fn check(spec: &TokenRequestSpec) -> Result<(), Failure> {
    let seconds = spec.expiration_seconds.unwrap_or(DEFAULT);
    let detail = if seconds < SHORTEST {
        "may not specify a duration less than 10 minutes"
    } else if seconds > LONGEST {
        "may not specify a duration larger than 2^32 seconds"
    } else {
        return Ok(());
    };
    let found = api::Invalid::value("spec.expirationSeconds", seconds, detail);
    Err(Failure::invalid(GROUP, KIND, "", &[found]))
}

fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Failure> {
    serde_json::from_slice(bytes).map_err(Failure::internal)
}

/// Fields of an object that its token contains.
#[derive(Deserialize)]
struct Partial {
    metadata: PartialMetadata,
}

#[derive(Deserialize)]
struct PartialMetadata {
    uid: String,
}

fn find(context: &Context, plural: &'static str, namespace: &str, name: &str) -> Result<store::Entry, Failure> {
    let key = Key::new("", plural, namespace, name).ok();
    key.and_then(|key| context.store().get(&key))
        .ok_or_else(|| Failure::NotFound {
            target: Target {
                resource: GroupResource::new("", plural),
                name: name.to_owned(),
            },
        })
}

/// The account and the object that the token is bound to.
fn bind(context: &Context, spec: &TokenRequestSpec, account: &ServiceAccount) -> Result<Private, Failure> {
    let namespace = &context.info.namespace;
    let mut private = Private {
        namespace: namespace.clone(),
        node: None,
        pod: None,
        secret: None,
        serviceaccount: Named {
            name: context.info.name.clone(),
            uid: account.metadata.uid.clone().unwrap_or_default(),
        },
        warnafter: None,
    };
    let Some(reference) = &spec.bound_object_ref else {
        return Ok(private);
    };
    let name = reference.name.as_deref().unwrap_or_default();
    let version = reference.api_version.as_deref().unwrap_or_default();
    let kind = reference.kind.as_deref().unwrap_or_default();
    let named = |entry: &store::Entry| {
        let uid = decode::<Partial>(&entry.bytes)?.metadata.uid;
        Ok::<_, Failure>(Named {
            name: name.to_owned(),
            uid,
        })
    };
    let bound = match (version.contains('/'), kind) {
        (false, "Pod") => {
            let pod: Pod = decode(&find(context, "pods", namespace, name)?.bytes)?;
            private.node = node_of(context, &pod);
            private.pod.insert(own_pod(context, &pod)?)
        }
        (false, "Secret") => private
            .secret
            .insert(named(&find(context, "secrets", namespace, name)?)?),
        (false, "Node") => private.node.insert(named(&find(context, "nodes", "", name)?)?),
        _ => {
            let (group, version) = version.rsplit_once('/').unwrap_or(("", version));
            let message = format!("cannot bind token to object of type {group}/{version}, Kind={kind}");
            return Err(Failure::bad_request(message));
        }
    };
    check_uid(reference, bound)?;
    Ok(private)
}

fn own_pod(context: &Context, pod: &Pod) -> Result<Named, Failure> {
    let account = &context.info.name;
    let runs_as = pod.spec.as_ref().and_then(|spec| spec.service_account_name.as_deref());
    if runs_as != Some(account) {
        return Err(Failure::bad_request(format!(
            "cannot bind token for serviceaccount {account:?} to pod running with different serviceaccount name."
        )));
    }
    Ok(Named {
        name: pod.metadata.name.clone().unwrap_or_default(),
        uid: pod.metadata.uid.clone().unwrap_or_default(),
    })
}

/// The node of a pod; its uid where the Node is there.
fn node_of(context: &Context, pod: &Pod) -> Option<Named> {
    let name = pod.spec.as_ref()?.node_name.clone().filter(|name| !name.is_empty())?;
    let entry = find(context, "nodes", "", &name).ok();
    let uid = entry.and_then(|entry| Some(decode::<Partial>(&entry.bytes).ok()?.metadata.uid));
    Some(Named {
        name,
        uid: uid.unwrap_or_default(),
    })
}

fn check_uid(reference: &BoundObjectReference, bound: &Named) -> Result<(), Failure> {
    let wanted = reference.uid.as_deref().unwrap_or_default();
    if wanted.is_empty() || wanted == bound.uid {
        return Ok(());
    }
    let kind = reference.kind.clone().unwrap_or_default();
    Err(Failure::Conflict {
        target: Target {
            resource: GroupResource::new("", kind),
            name: bound.name.clone(),
        },
        because: format!(
            "the UID in the bound object reference ({wanted}) does not match the UID in record. The object might have \
             been deleted and then recreated"
        )
        .into(),
    })
}

fn issue(
    context: &mut Context,
    spec: &TokenRequestSpec,
    mut private: Private,
    now: Timestamp,
) -> Result<TokenRequestStatus, Failure> {
    let promised = spec.expiration_seconds.unwrap_or(DEFAULT);
    let audiences = spec.audiences.clone().unwrap_or_default();
    let mut lives = promised;
    if private.pod.is_some() && promised == EXTENDED && audiences == authn::audiences(&context.server) {
        lives = YEAR;
        private.warnafter = Some(now.as_second() + promised);
    }
    let id = Uuid::new_v4().to_string();
    context
        .notes
        .annotations
        .push(("authentication.kubernetes.io/issued-credential-id", format!("JTI={id}")));
    let claims = Claims {
        aud: audiences,
        exp: now.as_second() + lives,
        iat: now.as_second(),
        iss: context.server.options.issuers.first().cloned().unwrap_or_default(),
        jti: id,
        sub: User::account_name(&private.namespace, &private.serviceaccount.name),
        kubernetes: private,
        nbf: now.as_second(),
    };
    let key = context.server.tokens.key().ok_or(Failure::NoSuchResource)?;
    let token = key.sign(&claims).map_err(Failure::internal)?;
    let end = now.saturating_add(SignedDuration::from_secs(promised));
    Ok(TokenRequestStatus {
        token: Some(token),
        expiration_timestamp: Some(Time(end.map_err(Failure::internal)?)),
    })
}
