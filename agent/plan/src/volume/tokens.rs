//! Service account tokens of a pod's projected volumes.

use k8s_openapi::api::core::v1::{Pod, ServiceAccountTokenProjection};

/// A token request of a volume.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ProjectedToken {
    /// Audience of the token; empty for the API server.
    pub audience: String,
    /// Requested lifetime in seconds.
    pub seconds: i64,
}

impl ProjectedToken {
    /// Returns the request of a projected volume's source.
    pub fn of(source: &ServiceAccountTokenProjection) -> Self {
        Self {
            audience: source.audience.clone().unwrap_or_default(),
            seconds: source.expiration_seconds.unwrap_or(3600),
        }
    }

    /// Returns the requests of the pod's volumes.
    pub fn of_volumes(pod: &Pod) -> Vec<Self> {
        let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
        let sources = volumes.filter_map(|volume| volume.projected.as_ref()?.sources.as_ref());
        let tokens = sources
            .flatten()
            .filter_map(|source| source.service_account_token.as_ref());
        tokens.map(Self::of).collect()
    }
}
