//! `audit.k8s.io/v1` Policy: which requests are recorded, at which level and stages. The first
//! matching rule decides; requests that match none are not recorded.

use serde::Deserialize;
use serde_json::Value;
use thiserror::Error;

use super::{Record, Stage};

/// Audit level: how much of a request is recorded.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
pub enum Level {
    /// The request is not recorded.
    #[default]
    None,
    /// User, verb and object reference, without the objects.
    Metadata,
    /// With the request object.
    Request,
    /// With the request and response objects.
    RequestResponse,
}

/// Failure to load an audit policy.
#[derive(Debug, Error)]
pub enum PolicyError {
    /// The file cannot be read.
    #[error("read the policy")]
    Read(#[source] std::io::Error),
    /// The file cannot be parsed.
    #[error("parse the policy")]
    Parse(#[source] serde_yaml::Error),
    /// The file holds an object of another kind.
    #[error("expected kind Policy of audit.k8s.io/v1, found {kind:?} of {version:?}")]
    Kind {
        /// Kind found in the file.
        kind: String,
        /// API version found in the file.
        version: String,
    },
    /// The policy has no rules, so nothing would be recorded.
    #[error("the policy has no rules")]
    Empty,
    /// A rule matches both resources and non-resource paths.
    #[error("rules[{rule}] cannot apply to both regular resources and non-resource URLs")]
    Both {
        /// Its index.
        rule: usize,
    },
    /// A group that there cannot be, such as one with a version.
    #[error("rules[{rule}] has the group {group:?}: {because}")]
    Group {
        /// Its index.
        rule: usize,
        /// The group.
        group: String,
        /// Upstream's text.
        because: String,
    },
    /// Names of objects of no resource.
    #[error("rules[{rule}] has resourceNames, which require at least one resource")]
    Names {
        /// Its index.
        rule: usize,
    },
    /// A path that matches nothing.
    #[error("rules[{rule}] has the non-resource URL {url:?}, which must begin with a '/', or be '*'")]
    Url {
        /// Its index.
        rule: usize,
        /// The path.
        url: String,
    },
}

/// A policy, ready to decide.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Policy {
    #[serde(default)]
    api_version: String,
    #[serde(default)]
    kind: String,
    #[serde(default, rename = "metadata")]
    _metadata: Value,
    rules: Vec<Rule>,
    #[serde(default)]
    omit_stages: Vec<Stage>,
    #[serde(default)]
    omit_managed_fields: bool,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Rule {
    level: Level,
    #[serde(default)]
    users: Vec<String>,
    #[serde(default)]
    user_groups: Vec<String>,
    #[serde(default)]
    verbs: Vec<String>,
    #[serde(default)]
    resources: Vec<Target>,
    #[serde(default)]
    namespaces: Vec<String>,
    #[serde(default, rename = "nonResourceURLs")]
    urls: Vec<String>,
    #[serde(default)]
    omit_stages: Vec<Stage>,
    omit_managed_fields: Option<bool>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Target {
    #[serde(default)]
    group: String,
    #[serde(default)]
    resources: Vec<String>,
    #[serde(default)]
    resource_names: Vec<String>,
}

/// Decision of the policy about a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Decision {
    pub(crate) level: Level,
    pub(crate) without_managed_fields: bool,
    /// A message may quote the value that it complains about.
    pub(crate) hides_messages: bool,
}

impl Policy {
    /// Reads a policy from a file, as YAML or JSON.
    ///
    /// # Errors
    /// When it cannot be read, or is no policy.
    pub fn load(path: &std::path::Path) -> Result<Self, PolicyError> {
        Self::parse(&std::fs::read_to_string(path).map_err(PolicyError::Read)?)
    }

    /// Reads a policy.
    ///
    /// # Errors
    /// When it is none.
    pub fn parse(text: &str) -> Result<Self, PolicyError> {
        let policy: Self = serde_yaml::from_str(text).map_err(PolicyError::Parse)?;
        if policy.kind != "Policy" || policy.api_version != "audit.k8s.io/v1" {
            return Err(PolicyError::Kind {
                kind: policy.kind,
                version: policy.api_version,
            });
        }
        if policy.rules.is_empty() {
            return Err(PolicyError::Empty);
        }
        for (index, rule) in policy.rules.iter().enumerate() {
            let about_resources = !rule.resources.is_empty() || !rule.namespaces.is_empty();
            if about_resources && !rule.urls.is_empty() {
                return Err(PolicyError::Both { rule: index });
            }
            if let Some(url) = rule.urls.iter().find(|url| *url != "*" && !url.starts_with('/')) {
                return Err(PolicyError::Url {
                    rule: index,
                    url: url.clone(),
                });
            }
            for target in &rule.resources {
                target.check(index)?;
            }
        }
        Ok(policy)
    }

    /// Returns the decision for a record; `None` when the record is omitted.
    pub(crate) fn decide(&self, record: &Record) -> Option<Decision> {
        let rule = self.rules.iter().find(|rule| rule.fits(record))?;
        let omitted = rule.omit_stages.contains(&record.stage) || self.omit_stages.contains(&record.stage);
        (rule.level != Level::None && !omitted).then(|| Decision {
            level: rule.level,
            without_managed_fields: rule.omit_managed_fields.unwrap_or(self.omit_managed_fields),
            hides_messages: false,
        })
    }
}

impl Target {
    fn check(&self, rule: usize) -> Result<(), PolicyError> {
        let because = api::names::dns1123_subdomain(&self.group).join(", ");
        if !["", "*"].contains(&&*self.group) && !because.is_empty() {
            return Err(PolicyError::Group {
                rule,
                group: self.group.clone(),
                because,
            });
        }
        if self.resources.is_empty() && !self.resource_names.is_empty() {
            return Err(PolicyError::Names { rule });
        }
        Ok(())
    }
}

fn allows(list: &[String], value: &str) -> bool {
    list.is_empty() || list.iter().any(|own| own == value)
}

impl Rule {
    fn fits(&self, record: &Record) -> bool {
        let in_groups =
            self.user_groups.is_empty() || record.user.groups.iter().any(|group| self.user_groups.contains(group));
        if !allows(&self.users, &record.user.name) || !in_groups || !allows(&self.verbs, &record.verb) {
            return false;
        }
        if !self.namespaces.is_empty() || !self.resources.is_empty() {
            return self.fits_resource(record);
        }
        self.urls.is_empty() || (record.object.is_none() && self.fits_url(&record.uri))
    }

    fn fits_url(&self, uri: &str) -> bool {
        let path = uri.split('?').next().unwrap_or(uri);
        self.urls.iter().any(|url| match url.strip_suffix('*') {
            Some(begin) => path.starts_with(begin),
            None => path == url,
        })
    }

    fn fits_resource(&self, record: &Record) -> bool {
        let Some(object) = &record.object else { return false };
        if !allows(&self.namespaces, &object.namespace) {
            return false;
        }
        let whole = match object.subresource.as_str() {
            "" => object.resource.clone(),
            subresource => format!("{}/{subresource}", object.resource),
        };
        let named = |own: &str| {
            let part = own
                .strip_prefix("*/")
                .is_some_and(|part| !part.is_empty() && part == object.subresource);
            own == "*" || own == whole || part || own.strip_suffix("/*") == Some(&object.resource)
        };
        self.resources.is_empty()
            || self.resources.iter().any(|target| {
                (target.group == "*" || target.group == object.group)
                    && allows(&target.resource_names, &object.name)
                    && (target.resources.is_empty() || target.resources.iter().any(|own| named(own)))
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::authn::identity::User;
    use crate::ops::audit::ObjectRef;

    fn record(verb: &str, resource: &str, subresource: &str, name: &str) -> Record {
        let mut record = crate::ops::audit::tests::record(verb, resource);
        record.user = User::new("jane", ["devs"]);
        if let Some(object) = &mut record.object {
            object.subresource = subresource.into();
            object.name = name.into();
        }
        record
    }

    const POLICY: &str = r#"
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
omitManagedFields: true
rules:
- level: RequestResponse
  resources: [{group: "", resources: ["pods"]}]
  omitManagedFields: false
- level: Metadata
  resources: [{group: "", resources: ["pods/log", "*/scale"]}]
- level: None
  resources: [{group: "", resources: ["configmaps"], resourceNames: ["leader"]}]
- level: Request
  resources: [{group: "*", resources: ["gadgets"]}]
- level: None
  users: ["system:kube-proxy"]
  verbs: ["watch"]
  resources: [{group: "", resources: ["endpoints"]}]
- level: None
  userGroups: ["devs"]
  nonResourceURLs: ["/api*", "/version"]
- level: Request
  namespaces: ["default"]
  resources: [{group: "", resources: ["configmaps"]}]
  omitStages: [ResponseStarted]
- level: Metadata
"#;

    #[test]
    fn the_first_rule_that_fits_decides() {
        let policy = Policy::parse(POLICY).unwrap();
        let level = |record: &Record| policy.decide(record).map(|decision| decision.level);
        assert_eq!(level(&record("create", "pods", "", "p")), Some(Level::RequestResponse));
        assert_eq!(level(&record("get", "pods", "log", "p")), Some(Level::Metadata));
        assert_eq!(level(&record("get", "things", "scale", "p")), Some(Level::Metadata));
        assert_eq!(
            level(&record("get", "gadgets", "", "p")),
            Some(Level::Request),
            "any group"
        );
        assert_eq!(level(&record("update", "configmaps", "", "leader")), None);
        assert_eq!(
            level(&record("update", "configmaps", "", "other")),
            Some(Level::Request)
        );
        assert_eq!(
            level(&record("watch", "endpoints", "", "")),
            Some(Level::Metadata),
            "another user"
        );
        let mut received = record("create", "pods", "", "p");
        received.stage = Stage::RequestReceived;
        assert_eq!(level(&received), None, "stages that the policy leaves out");
        let mut started = record("watch", "configmaps", "", "");
        started.stage = Stage::ResponseStarted;
        assert_eq!(level(&started), None, "stages that the rule leaves out");
        let mut path = record("get", "", "", "");
        path.object = None;
        for (uri, expected) in [
            ("/apis/apps?x=1", None),
            ("/version", None),
            ("/versions", Some(Level::Metadata)),
        ] {
            path.uri = uri.into();
            assert_eq!(level(&path), expected, "{uri}");
        }
        assert_eq!(
            policy
                .decide(&record("create", "pods", "", "p"))
                .map(|decision| decision.without_managed_fields),
            Some(false)
        );
        assert_eq!(
            policy
                .decide(&record("create", "secrets", "", "p"))
                .map(|decision| decision.without_managed_fields),
            Some(true)
        );
        assert_eq!(
            record("get", "a", "", "")
                .object
                .map(|object: ObjectRef| object.resource)
                .as_deref(),
            Some("a")
        );
    }

    #[test]
    fn what_is_no_policy_is_refused() {
        for (text, expected) in [
            (
                "{kind: Policy, apiVersion: audit.k8s.io/v1, rules: []}",
                "the policy has no rules",
            ),
            (
                "{kind: Policy, apiVersion: audit.k8s.io/v1beta1, rules: []}",
                "expected kind Policy of audit.k8s.io/v1, found \"Policy\" of \"audit.k8s.io/v1beta1\"",
            ),
            (
                "{kind: Policy, apiVersion: audit.k8s.io/v1, rules: [{level: Metadata, nonResourceURLs: [/a], namespaces: [b]}]}",
                "rules[0] cannot apply to both regular resources and non-resource URLs",
            ),
            (
                "{kind: Policy, apiVersion: audit.k8s.io/v1, rules: [{level: Metadata, nonResourceURLs: [a]}]}",
                "rules[0] has the non-resource URL \"a\", which must begin with a '/', or be '*'",
            ),
            (
                "{kind: Policy, apiVersion: audit.k8s.io/v1, rules: [{level: None, resources: [{group: apps/v1}]}]}",
                "rules[0] has the group \"apps/v1\": a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')",
            ),
            (
                "{kind: Policy, apiVersion: audit.k8s.io/v1, rules: [{level: None, resources: [{group: apps, resourceNames: [a]}]}]}",
                "rules[0] has resourceNames, which require at least one resource",
            ),
            (
                "{kind: Policy, apiVersion: audit.k8s.io/v1, rules: [{level: All}]}",
                "parse the policy",
            ),
            (
                "{kind: Policy, apiVersion: audit.k8s.io/v1, rules: [{levels: None}]}",
                "parse the policy",
            ),
        ] {
            assert_eq!(Policy::parse(text).unwrap_err().to_string(), expected, "{text}");
        }
    }
}
