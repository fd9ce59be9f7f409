//! Authentication of tokens of other issuers: by a file, or by flags that stand for one
//! (`pkg/kubeapiserver/options/authentication.go`).

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;

use clap::Args;
use serde_json::{Value, json};
use server::authn::oidc::{ConfigurationError, Issuers};

/// Flags about tokens of other issuers.
#[derive(Debug, Clone, Default, Args)]
#[expect(clippy::struct_field_names, reason = "flags are those of upstream")]
pub struct Authentication {
    /// An `AuthenticationConfiguration` of apiserver.config.k8s.io: issuers of JSON Web Tokens that
    /// authenticate users, and which anonymous requests pass; not together with the --oidc flags
    #[arg(long, value_name = "FILE", env = "SKIFF_AUTHENTICATION_CONFIG")]
    authentication_config: Option<PathBuf>,
    /// The URL of an OpenID Connect issuer whose tokens authenticate users; only https
    #[arg(long, value_name = "URL")]
    oidc_issuer_url: Option<String>,
    /// The audience that its tokens must have
    #[arg(long, value_name = "ID")]
    oidc_client_id: Option<String>,
    /// The authority of the issuer's server [default: those that the machine trusts]
    #[arg(long, value_name = "FILE")]
    oidc_ca_file: Option<PathBuf>,
    /// The claim that is the user's name [default: sub]
    #[arg(long, value_name = "CLAIM")]
    oidc_username_claim: Option<String>,
    /// What is put before the name, `-` for nothing [default: the issuer's URL and #, but nothing
    /// before an email]
    #[arg(long, value_name = "PREFIX", allow_hyphen_values = true)]
    oidc_username_prefix: Option<String>,
    /// The claim that is the user's groups, one or a list
    #[arg(long, value_name = "CLAIM")]
    oidc_groups_claim: Option<String>,
    /// What is put before each group
    #[arg(long, value_name = "PREFIX", allow_hyphen_values = true)]
    oidc_groups_prefix: Option<String>,
    /// Algorithms that tokens may be signed by [default: RS256]
    #[arg(long, value_name = "ALG", value_delimiter = ',')]
    oidc_signing_algs: Vec<String>,
    /// A claim, and the value that it must have; may be repeated
    #[arg(long, value_name = "CLAIM=VALUE", value_parser = pair)]
    oidc_required_claim: Vec<(String, String)>,
}

/// Reason for which the issuers cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum AuthenticationError {
    /// The flags contradict each other.
    #[error("{0}")]
    Flags(&'static str),
    /// The authority cannot be read.
    #[error("read {}", path.display())]
    Authority {
        /// The file.
        path: PathBuf,
        /// Cause of the failure.
        #[source]
        source: io::Error,
    },
    /// The file is no valid configuration.
    #[error("failed to load authentication configuration from file \"{}\"", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Cause of the failure.
        #[source]
        source: ConfigurationError,
    },
    /// The flags are no valid configuration.
    #[error("set up the OpenID Connect issuer")]
    Invalid(#[from] ConfigurationError),
}

fn pair(text: &str) -> Result<(String, String), &'static str> {
    let (claim, value) = text.split_once('=').ok_or("malformed pair, expect string=string")?;
    Ok((claim.trim().to_owned(), value.trim().to_owned()))
}

impl Authentication {
    /// The configured issuers, if there are any; none of them may issue service accounts' tokens.
    ///
    /// # Errors
    /// When the flags or the file break a rule.
    pub fn issuers(&self, own: &[String]) -> Result<Option<Issuers>, AuthenticationError> {
        let has_flags = self.has_flags();
        if let Some(path) = &self.authentication_config {
            if has_flags {
                let because = "authentication-config file and oidc-* flags are mutually exclusive";
                return Err(AuthenticationError::Flags(because));
            }
            let path = path.clone();
            let loaded = Issuers::load(&path, own);
            return loaded
                .map(Some)
                .map_err(|source| AuthenticationError::File { path, source });
        }
        let given = |flag: Option<&String>| flag.cloned().unwrap_or_default();
        let (url, client) = (
            given(self.oidc_issuer_url.as_ref()),
            given(self.oidc_client_id.as_ref()),
        );
        if url.is_empty() || client.is_empty() {
            let because = "oidc-issuer-url and oidc-client-id must be specified together when any oidc-* flags are set";
            return if has_flags {
                Err(AuthenticationError::Flags(because))
            } else {
                Ok(None)
            };
        }
        let configuration = self.configuration(&url, &client)?.to_string();
        let usual = ["RS256".to_owned()];
        let algorithms = if self.oidc_signing_algs.is_empty() {
            usual.as_slice()
        } else {
            &self.oidc_signing_algs
        };
        Ok(Some(Issuers::parse(&configuration, algorithms, own)?))
    }

    fn has_flags(&self) -> bool {
        let texts = [
            &self.oidc_issuer_url,
            &self.oidc_client_id,
            &self.oidc_username_claim,
            &self.oidc_username_prefix,
            &self.oidc_groups_claim,
            &self.oidc_groups_prefix,
        ];
        texts.iter().any(|flag| flag.is_some())
            || self.oidc_ca_file.is_some()
            || !self.oidc_signing_algs.is_empty()
            || !self.oidc_required_claim.is_empty()
    }

    /// The file that the flags stand for.
    fn configuration(&self, url: &str, client: &str) -> Result<Value, AuthenticationError> {
        let claim = self.oidc_username_claim.as_deref().unwrap_or("sub");
        let prefix = match self.oidc_username_prefix.as_deref().unwrap_or_default() {
            "" if claim != "email" => format!("{url}#"),
            "-" => String::new(),
            prefix => prefix.to_owned(),
        };
        let mut mappings = json!({"username": {"claim": claim, "prefix": prefix}});
        if let (Some(groups), Some(mappings)) = (&self.oidc_groups_claim, mappings.as_object_mut()) {
            let prefix = self.oidc_groups_prefix.as_deref().unwrap_or_default();
            mappings.insert("groups".to_owned(), json!({"claim": groups, "prefix": prefix}));
        }
        let read = |path: &PathBuf| {
            std::fs::read_to_string(path).map_err(|source| AuthenticationError::Authority {
                path: path.clone(),
                source,
            })
        };
        let authority = self.oidc_ca_file.as_ref().map(read).transpose()?.unwrap_or_default();
        let required: BTreeMap<&String, &String> = self
            .oidc_required_claim
            .iter()
            .map(|(claim, value)| (claim, value))
            .collect();
        let required = required.into_iter();
        let rules: Vec<Value> = required
            .map(|(claim, value)| json!({"claim": claim, "requiredValue": value}))
            .collect();
        Ok(json!({
            "apiVersion": "apiserver.config.k8s.io/v1",
            "kind": "AuthenticationConfiguration",
            "jwt": [{
                "issuer": {"url": url, "audiences": [client], "certificateAuthority": authority},
                "claimValidationRules": rules,
                "claimMappings": mappings,
            }],
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(clap::Parser)]
    struct Program {
        #[command(flatten)]
        authentication: Authentication,
    }

    fn flags(words: &str) -> Authentication {
        let words = std::iter::once("program").chain(words.split_whitespace());
        <Program as clap::Parser>::parse_from(words).authentication
    }

    #[test]
    fn flags_stand_for_a_file() {
        let usual = "--oidc-issuer-url https://i.example --oidc-client-id me";
        for (words, mappings) in [
            (
                "",
                json!({"username": {"claim": "sub", "prefix": "https://i.example#"}}),
            ),
            (
                "--oidc-username-claim email",
                json!({"username": {"claim": "email", "prefix": ""}}),
            ),
            (
                "--oidc-username-prefix -",
                json!({"username": {"claim": "sub", "prefix": ""}}),
            ),
            (
                "--oidc-username-claim=n --oidc-username-prefix=p: --oidc-groups-claim=g --oidc-groups-prefix=q:",
                json!({"username": {"claim": "n", "prefix": "p:"}, "groups": {"claim": "g", "prefix": "q:"}}),
            ),
        ] {
            let flags = flags(&format!(
                "{usual} {words} --oidc-required-claim b=1=2 --oidc-required-claim a=x"
            ));
            let jwt = &flags.configuration("https://i.example", "me").unwrap()["jwt"][0];
            assert_eq!(jwt["claimMappings"], mappings, "{words}");
            let required = json!([{"claim": "a", "requiredValue": "x"}, {"claim": "b", "requiredValue": "1=2"}]);
            assert_eq!(jwt["claimValidationRules"], required);
        }
    }

    #[test]
    fn flags_that_contradict_each_other_are_refused_in_upstreams_words() {
        let together = "oidc-issuer-url and oidc-client-id must be specified together when any oidc-* flags are set";
        let usual = "--oidc-issuer-url=https://i.example --oidc-client-id=me";
        for (words, expected) in [
            ("--oidc-issuer-url=https://i.example".to_owned(), together),
            ("--oidc-groups-claim=g".to_owned(), together),
            (
                "--authentication-config=/missing --oidc-signing-algs=RS256".to_owned(),
                "authentication-config file and oidc-* flags are mutually exclusive",
            ),
            (
                "--authentication-config=/missing".to_owned(),
                "failed to load authentication configuration from file \"/missing\"",
            ),
            (format!("{usual} --oidc-ca-file=/missing"), "read /missing"),
        ] {
            assert_eq!(flags(&words).issuers(&[]).unwrap_err().to_string(), expected, "{words}");
        }
        for (words, expected) in [
            (
                "--oidc-issuer-url=http://i.example --oidc-client-id=me".to_owned(),
                "invalid authentication configuration: jwt[0].issuer.url: Invalid value: \"http://i.example\": URL \
                 scheme must be https",
            ),
            (
                format!("{usual} --oidc-signing-algs=RS256,HS256"),
                "oidc: unsupported signing alg: \"HS256\"",
            ),
        ] {
            let AuthenticationError::Invalid(error) = flags(&words).issuers(&[]).unwrap_err() else {
                panic!("{words}");
            };
            assert_eq!(error.to_string(), expected, "{words}");
        }
        assert!(flags("").issuers(&[]).unwrap().is_none());
    }
}
