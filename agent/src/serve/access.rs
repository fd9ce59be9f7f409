//! Authentication and authorization: the API server may request everything. Other clients may use a
//! kubelet's endpoints, with a certificate of the cluster or a token, if the API server authorizes
//! them.

pub(crate) mod reviews;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Extension;
use axum::extract::{Request, State};
use axum::http::header::AUTHORIZATION;
use axum::http::{Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec};
use k8s_openapi::api::authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec};
use kube::Api;
use kube::api::PostParams;
use reviews::{Asked, Who};
use sha2::{Digest, Sha256};
use tracing::warn;

use crate::context::Context;

/// Common name of the API server's client certificate.
const API_SERVER: &str = "kube-apiserver-kubelet-client";
/// Cache TTLs, as in a kubelet: valid tokens, invalid tokens, permissions, denials.
const PROVEN: Duration = Duration::from_mins(2);
const UNPROVEN: Duration = Duration::from_secs(10);
const ALLOWED: Duration = Duration::from_mins(5);
const DENIED: Duration = Duration::from_secs(30);
/// Maximum length of a token.
const TOKEN_BYTES: usize = 8 << 10;

/// Peer of a connection.
#[derive(Clone, Debug, Default)]
pub(super) struct Client {
    /// User of a certificate that the client CA has signed.
    proven: Option<Who>,
    admitted: Arc<AtomicBool>,
}

impl Client {
    pub(super) fn of(proven: Option<Who>) -> Self {
        Self {
            proven,
            admitted: Arc::default(),
        }
    }

    pub(super) fn has_certificate(&self) -> bool {
        self.proven.is_some()
    }

    /// Set by the first request that is authorized.
    pub(super) fn admitted(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.admitted)
    }
}

pub(super) async fn authorize(
    State(context): State<Arc<Context>>,
    Extension(client): Extension<Client>,
    request: Request,
    next: Next,
) -> Response {
    let who = match client.proven {
        Some(who) if who.name == API_SERVER => return next.run(request).await,
        Some(who) => who,
        None => match whose(&context, token(&request)).await {
            Some(who) => who,
            None => return (StatusCode::UNAUTHORIZED, "Unauthorized").into_response(),
        },
    };
    let path = request.uri().path();
    if is_own(path) {
        return (StatusCode::FORBIDDEN, format!("Forbidden (user={})", who.name)).into_response();
    }
    let (verb, subresources) = (verb(request.method()), subresources(path));
    for subresource in subresources {
        match may(&context, &who, Asked { verb, subresource }).await {
            Ok(true) => {
                client.admitted.store(true, Ordering::Relaxed);
                return next.run(request).await;
            }
            Ok(false) => {}
            Err(error) => {
                warn!(user = who.name, error, "whether somebody may ask is not known");
                let text = format!(
                    "Authorization error (user={}, verb={verb}, resource=nodes, subresource={subresource})",
                    who.name
                );
                return (StatusCode::INTERNAL_SERVER_ERROR, text).into_response();
            }
        }
    }
    let text = format!(
        "Forbidden (user={}, verb={verb}, resource=nodes, subresource(s)=[{}])",
        who.name,
        subresources.join(" ")
    );
    (StatusCode::FORBIDDEN, text).into_response()
}

fn token(request: &Request) -> Option<&str> {
    let said = request.headers().get(AUTHORIZATION)?.to_str().ok()?;
    let (kind, token) = said.trim().split_once(' ')?;
    let token = token.trim();
    (kind.eq_ignore_ascii_case("bearer") && !token.is_empty() && token.len() <= TOKEN_BYTES).then_some(token)
}

/// Authenticates a token with a `TokenReview`.
async fn whose(context: &Context, token: Option<&str>) -> Option<Who> {
    let token = token?;
    let key: [u8; 32] = Sha256::digest(token).into();
    if let Some(known) = context.access.tokens.get(&key) {
        return known;
    }
    let review = TokenReview {
        spec: TokenReviewSpec {
            token: token.to_owned(),
            ..TokenReviewSpec::default()
        },
        ..TokenReview::default()
    };
    let api: Api<TokenReview> = Api::all(context.parts.client.clone());
    let parameters = PostParams::default();
    let status = match context.access.ask(api.create(&parameters, &review)).await {
        Ok(answer) => answer.status.unwrap_or_default(),
        Err(error) => {
            warn!(error, "whose token it is is not known");
            return None;
        }
    };
    let who = status
        .user
        .filter(|_| status.authenticated == Some(true))
        .map(|user| Who {
            name: user.username.unwrap_or_default(),
            uid: user.uid,
            groups: user.groups.unwrap_or_default(),
            extra: user.extra.unwrap_or_default(),
        });
    let time = if who.is_some() { PROVEN } else { UNPROVEN };
    context.access.tokens.put(key, who.clone(), time);
    who
}

/// True if the API server authorizes a user for an action on this node.
async fn may(context: &Context, who: &Who, asked: Asked) -> Result<bool, String> {
    let key = (who.clone(), asked);
    if let Some(known) = context.access.permissions.get(&key) {
        return Ok(known);
    }
    let review = SubjectAccessReview {
        spec: SubjectAccessReviewSpec {
            user: Some(who.name.clone()),
            uid: who.uid.clone(),
            groups: Some(who.groups.clone()),
            extra: Some(who.extra.clone()),
            resource_attributes: Some(ResourceAttributes {
                verb: Some(asked.verb.to_owned()),
                version: Some("v1".to_owned()),
                resource: Some("nodes".to_owned()),
                subresource: Some(asked.subresource.to_owned()),
                name: Some(context.config.node_name.clone()),
                ..ResourceAttributes::default()
            }),
            ..SubjectAccessReviewSpec::default()
        },
        ..SubjectAccessReview::default()
    };
    let api: Api<SubjectAccessReview> = Api::all(context.parts.client.clone());
    let parameters = PostParams::default();
    let answer = context.access.ask(api.create(&parameters, &review)).await?;
    let allowed = answer.status.is_some_and(|status| status.allowed);
    let time = if allowed { ALLOWED } else { DENIED };
    context.access.permissions.put(key, allowed, time);
    Ok(allowed)
}

/// True for paths that only the API server may request.
fn is_own(path: &str) -> bool {
    [
        "/crashes",
        "/dial",
        "/local-path",
        "/milestones",
        "/reach",
        api::kinds::metrics::PATH,
    ]
    .iter()
    .any(|own| is_below(path, own))
}

/// Returns the subresources of a path, as in a kubelet: one of two is sufficient.
fn subresources(path: &str) -> &'static [&'static str] {
    let below = |place: &str| is_below(path, place);
    if below("/stats") {
        &["stats"]
    } else if below("/metrics") {
        &["metrics"]
    } else if below("/logs") {
        &["log"]
    } else if below("/pods") || below("/runningpods") {
        &["pods", "proxy"]
    } else if below("/healthz") {
        &["healthz", "proxy"]
    } else if below("/configz") {
        &["configz", "proxy"]
    } else if below("/flagz") {
        &["configz"]
    } else if below("/statusz") {
        &["statusz"]
    } else {
        &["proxy"]
    }
}

fn is_below(path: &str, place: &str) -> bool {
    path.strip_prefix(place)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

fn verb(method: &Method) -> &'static str {
    match method.as_str() {
        "POST" => "create",
        "GET" => "get",
        "PUT" => "update",
        "PATCH" => "patch",
        "DELETE" => "delete",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_path_is_a_part_of_the_node() {
        for (path, wanted) in [
            ("/stats/summary", &["stats"][..]),
            ("/metrics", &["metrics"]),
            ("/metrics/cadvisor", &["metrics"]),
            ("/metricsandmore", &["proxy"]),
            ("/logs/", &["log"]),
            ("/runningpods/", &["pods", "proxy"]),
            ("/healthz/ping", &["healthz", "proxy"]),
            ("/flagz", &["configz"]),
            ("/statusz", &["statusz"]),
            ("/exec/default/web/web", &["proxy"]),
            ("/containerLogs/default/web/web", &["proxy"]),
        ] {
            assert_eq!(subresources(path), wanted, "{path}");
            assert!(!is_own(path), "{path}");
        }
        for path in [
            "/dial/22",
            "/dial/default/web/80",
            "/local-path/pvc-1",
            "/crashes",
            "/milestones",
        ] {
            assert!(is_own(path), "{path}");
        }
    }
}
