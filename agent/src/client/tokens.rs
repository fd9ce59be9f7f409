//! Service account tokens of pods: requested in the pod's name, cached, and renewed in time.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use agent_plan::pod::pods;
use agent_plan::volume::tokens::ProjectedToken;
use agent_plan::{Timestamp, after};
use k8s_openapi::api::authentication::v1::{BoundObjectReference, TokenRequest, TokenRequestSpec, TokenRequestStatus};
use k8s_openapi::api::core::v1::{Pod, PodSpec, ServiceAccount, Volume};
use kube::api::PostParams;
use kube::{Api, Client};
use tracing::warn;

use crate::client::sources;

/// Maximum age of a token before its renewal, for any lifetime.
const OLDEST_SECONDS: i64 = 24 * 3600;

/// Seconds before a token's issue in which the API server takes it, too.
const LEEWAY_SECONDS: i64 = 60;

struct Kept {
    token: String,
    /// Time from which on it is valid, which is to come after the clock was set back.
    begins: Timestamp,
    ends: Timestamp,
    renew_at: Timestamp,
}

/// Tokens of this node's pods, by UID.
#[derive(Default)]
pub(crate) struct Tokens(Mutex<BTreeMap<String, BTreeMap<ProjectedToken, Kept>>>);

impl Tokens {
    /// Returns the tokens that the pod's volumes show.
    pub(crate) async fn fetch(
        &self,
        client: &Client,
        pod: &Pod,
        now: Timestamp,
    ) -> Result<BTreeMap<ProjectedToken, String>, kube::Error> {
        let mut tokens = BTreeMap::new();
        for projected in ProjectedToken::of_volumes(pod) {
            let known = self.valid(pods::uid(pod), &projected, now);
            let token = match known {
                Some((token, true)) => token,
                Some((token, false)) => match self.request(client, pod, &projected, now).await {
                    Ok(fresh) => fresh,
                    Err(error) => {
                        warn!(pod = pods::name(pod), %error, "a token could not be renewed; the old one stays");
                        token
                    }
                },
                None => self.request(client, pod, &projected, now).await?,
            };
            tokens.insert(projected, token);
        }
        Ok(tokens)
    }

    /// Returns a cached token that has not expired, and whether it is fresh.
    fn valid(&self, uid: &str, projected: &ProjectedToken, now: Timestamp) -> Option<(String, bool)> {
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let kept = kept.get(uid)?.get(projected).filter(|kept| now < kept.ends)?;
        Some((kept.token.clone(), kept.begins <= now && now < kept.renew_at))
    }

    async fn request(
        &self,
        client: &Client,
        pod: &Pod,
        projected: &ProjectedToken,
        now: Timestamp,
    ) -> Result<String, kube::Error> {
        let status = request(client, pod, &projected.audience, Some(projected.seconds)).await?;
        let (token, ends) = (status.token.unwrap_or_default(), status.expiration_timestamp);
        let lives = ends
            .as_ref()
            .map_or(projected.seconds, |ends| ends.0.duration_since(now).as_secs());
        let kept = Kept {
            token: token.clone(),
            begins: after(now, -LEEWAY_SECONDS),
            ends: after(now, lives),
            renew_at: after(now, (lives / 5 * 4).min(OLDEST_SECONDS)),
        };
        let mut tokens = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        tokens
            .entry(pods::uid(pod).to_owned())
            .or_default()
            .insert(projected.clone(), kept);
        Ok(token)
    }

    /// Returns when the first of a pod's tokens is due for renewal.
    pub(crate) fn renew_at(&self, uid: &str) -> Option<Timestamp> {
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.get(uid)?.values().map(|kept| kept.renew_at).min()
    }

    /// Drops the tokens of a removed pod.
    pub(crate) fn forget(&self, uid: &str) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(uid);
    }
}

/// Requests a token of the pod's service account.
pub(crate) async fn request(
    client: &Client,
    pod: &Pod,
    audience: &str,
    seconds: Option<i64>,
) -> Result<TokenRequestStatus, kube::Error> {
    let account = pod.spec.as_ref().and_then(|spec| spec.service_account_name.as_deref());
    let request = TokenRequest {
        spec: Some(TokenRequestSpec {
            audiences: (!audience.is_empty()).then(|| vec![audience.to_owned()]),
            expiration_seconds: seconds,
            bound_object_ref: Some(BoundObjectReference {
                api_version: Some("v1".to_owned()),
                kind: Some("Pod".to_owned()),
                name: Some(pods::name(pod).to_owned()),
                uid: Some(pods::uid(pod).to_owned()),
            }),
        }),
        ..TokenRequest::default()
    };
    let api: Api<ServiceAccount> = Api::namespaced(client.clone(), pods::namespace(pod));
    let account = account.filter(|account| !account.is_empty()).unwrap_or("default");
    let answer: TokenRequest = api
        .create_subresource("token", account, &PostParams::default(), &request)
        .await?;
    Ok(answer.status.unwrap_or_default())
}

/// Returns the message for users when a token request fails.
pub(crate) fn refused(spec: &PodSpec, error: &kube::Error) -> String {
    let shows = |volume: &&Volume| {
        let mut sources = volume.projected.iter().flat_map(|all| all.sources.iter().flatten());
        sources.any(|source| source.service_account_token.is_some())
    };
    let mut volumes = spec.volumes.iter().flatten();
    let volume = volumes.find(shows).map_or("", |volume| volume.name.as_str());
    let cause = sources::told(error);
    format!("MountVolume.SetUp failed for volume {volume:?} : failed to fetch token: {cause}")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_token_is_renewed_in_time_and_when_the_clock_was_set_back() {
        let at = |second: i64| Timestamp::from_second(second).unwrap();
        let projected = ProjectedToken {
            audience: String::new(),
            seconds: 3600,
        };
        let kept = Kept {
            token: "t".to_owned(),
            begins: at(100_000 - LEEWAY_SECONDS),
            ends: at(103_600),
            renew_at: at(102_880),
        };
        let tokens = Tokens::default();
        let of_pod = BTreeMap::from([(projected.clone(), kept)]);
        tokens.0.lock().unwrap().insert("uid".to_owned(), of_pod);
        for (now, expected) in [
            (90_000, Some(false)),
            (99_999, Some(true)),
            (102_879, Some(true)),
            (102_880, Some(false)),
            (103_600, None),
        ] {
            let fresh = tokens.valid("uid", &projected, at(now)).map(|(_, fresh)| fresh);
            assert_eq!(fresh, expected, "{now}");
        }
    }

    #[test]
    fn a_token_that_is_refused_is_told_in_the_words_of_the_api() {
        let spec = json!({"containers": [], "volumes": [
            {"name": "own", "projected": {"sources": [{"configMap": {"name": "c"}}]}},
            {"name": "kube-api-access-x", "projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]}},
        ]});
        let status = json!({"status": "Failure", "code": 404, "reason": "NotFound", "message": "pods \"p\" not found"});
        let error = kube::Error::Api(serde_json::from_value(status).unwrap());
        assert_eq!(
            refused(&serde_json::from_value(spec).unwrap(), &error),
            "MountVolume.SetUp failed for volume \"kube-api-access-x\" : failed to fetch token: pods \"p\" not found"
        );
    }
}
