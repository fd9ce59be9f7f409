//! Claims of tokens.

use serde::{Deserialize, Serialize};

/// Issuer and default audience of tokens.
pub const ISSUER: &str = "https://kubernetes.default.svc.cluster.local";
/// The issuer of tokens that live in Secrets.
pub(super) const SECRET_ISSUER: &str = "kubernetes/serviceaccount";

/// An object by name and uid.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Named {
    pub(crate) name: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) uid: String,
}

/// The claims of a token that ends.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Claims {
    #[serde(deserialize_with = "one_or_many")]
    pub(crate) aud: Vec<String>,
    pub(crate) exp: i64,
    pub(crate) iat: i64,
    pub(crate) iss: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) jti: String,
    #[serde(rename = "kubernetes.io")]
    pub(crate) kubernetes: Private,
    pub(crate) nbf: i64,
    pub(crate) sub: String,
}

/// The part of the claims that only Kubernetes understands.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Private {
    pub(crate) namespace: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) node: Option<Named>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) pod: Option<Named>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) secret: Option<Named>,
    pub(crate) serviceaccount: Named,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) warnafter: Option<i64>,
}

/// The claims of a token in a Secret: it lives as long as the Secret.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct SecretClaims {
    pub(crate) iss: String,
    #[serde(rename = "kubernetes.io/serviceaccount/namespace")]
    pub(crate) namespace: String,
    #[serde(rename = "kubernetes.io/serviceaccount/secret.name")]
    pub(crate) secret: String,
    #[serde(rename = "kubernetes.io/serviceaccount/service-account.name")]
    pub(crate) account: String,
    #[serde(rename = "kubernetes.io/serviceaccount/service-account.uid")]
    pub(crate) uid: String,
    pub(crate) sub: String,
}

/// Issuer, which every token has.
#[derive(Deserialize)]
pub(super) struct Issued {
    pub(super) iss: String,
}

/// A single audience may be given without a list.
fn one_or_many<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Audience {
        One(String),
        Many(Vec<String>),
    }
    Ok(match Audience::deserialize(deserializer)? {
        Audience::One(audience) => vec![audience],
        Audience::Many(audiences) => audiences,
    })
}
