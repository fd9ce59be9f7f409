//! `AuthenticationConfiguration` of `apiserver.config.k8s.io`, as it is written.

use serde::Deserialize;

use super::ConfigurationError;

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Configuration {
    #[serde(default)]
    api_version: String,
    #[serde(default)]
    kind: String,
    #[serde(default)]
    pub(super) jwt: Vec<Jwt>,
    pub(super) anonymous: Option<Anonymous>,
}

/// Requests without credentials that pass: with conditions, those that keep one.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Anonymous {
    pub(super) enabled: bool,
    pub(super) conditions: Vec<Condition>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Condition {
    pub(super) path: String,
}

/// Authenticator of one issuer's tokens.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub(super) struct Jwt {
    pub(super) issuer: Issuer,
    pub(super) claim_validation_rules: Vec<ClaimRule>,
    pub(super) claim_mappings: Mappings,
    pub(super) user_validation_rules: Vec<UserRule>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub(super) struct Issuer {
    pub(super) url: String,
    #[serde(rename = "discoveryURL")]
    pub(super) discovery_url: String,
    pub(super) certificate_authority: String,
    pub(super) audiences: Vec<String>,
    pub(super) audience_match_policy: String,
    pub(super) egress_selector_type: String,
}

/// Claim with a required value, or an expression that must be true.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub(super) struct ClaimRule {
    pub(super) claim: String,
    pub(super) required_value: String,
    pub(super) expression: String,
    pub(super) message: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct UserRule {
    pub(super) expression: String,
    pub(super) message: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Mappings {
    pub(super) username: Mapping,
    pub(super) groups: Mapping,
    pub(super) uid: Unprefixed,
    pub(super) extra: Vec<Extra>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Mapping {
    pub(super) claim: String,
    pub(super) prefix: Option<String>,
    pub(super) expression: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Unprefixed {
    pub(super) claim: String,
    pub(super) expression: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub(super) struct Extra {
    pub(super) key: String,
    pub(super) value_expression: String,
}

impl Configuration {
    /// Parses YAML or JSON. The rules are not checked yet.
    pub(super) fn parse(text: &str) -> Result<Self, ConfigurationError> {
        if text.is_empty() {
            return Err(ConfigurationError::Empty);
        }
        let read: Self = serde_yaml::from_str(text).map_err(ConfigurationError::Parse)?;
        let version = read.api_version.strip_prefix("apiserver.config.k8s.io/");
        let is_known = matches!(version, Some("v1" | "v1beta1" | "v1alpha1"));
        if !is_known || read.kind != "AuthenticationConfiguration" {
            return Err(ConfigurationError::Kind {
                kind: read.kind,
                version: read.api_version,
            });
        }
        Ok(read)
    }
}
