//! Pod security policy of a namespace, parsed from its labels.

use std::collections::BTreeMap;
use std::fmt;

use crate::value::invalid::Invalid;

const PREFIX: &str = "pod-security.kubernetes.io/";

/// Level of a policy.
#[derive(Clone, Copy, Debug, Default, Eq, Ord, PartialEq, PartialOrd)]
pub enum Level {
    /// No restrictions.
    #[default]
    Privileged,
    /// Prevents known privilege escalations.
    Baseline,
    /// Follows hardening best practices.
    Restricted,
}

impl Level {
    fn parse(text: &str) -> Option<Self> {
        match text {
            "privileged" => Some(Self::Privileged),
            "baseline" => Some(Self::Baseline),
            "restricted" => Some(Self::Restricted),
            _ => None,
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Privileged => "privileged",
            Self::Baseline => "baseline",
            Self::Restricted => "restricted",
        }
    }
}

/// Kubernetes release of the rules.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Version {
    /// The newest rules.
    #[default]
    Latest,
    /// Rules of release 1.x.
    Minor(u32),
}

impl Version {
    fn parse(text: &str) -> Option<Self> {
        if text == "latest" {
            return Some(Self::Latest);
        }
        let digits = text.strip_prefix("v1.")?;
        let plain = digits == "0" || !digits.starts_with('0');
        let minor = digits
            .bytes()
            .all(|byte| byte.is_ascii_digit())
            .then(|| digits.parse().ok());
        minor.flatten().filter(|_| plain).map(Self::Minor)
    }

    /// True if the version includes rules that were added in release 1.`minor`.
    pub(super) fn reaches(self, minor: u32) -> bool {
        match self {
            Self::Latest => true,
            Self::Minor(own) => own >= minor,
        }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Latest => formatter.write_str("latest"),
            Self::Minor(minor) => write!(formatter, "v1.{minor}"),
        }
    }
}

/// Level of a version: `restricted:latest`.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Demand {
    /// Level of the rules.
    pub level: Level,
    /// Version of the rules.
    pub version: Version,
}

impl fmt::Display for Demand {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}:{}", self.level.name(), self.version)
    }
}

/// Pod security policy of a namespace.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Policy {
    /// Pods that violate it are rejected.
    pub enforce: Demand,
    /// Pods that violate it are noted in the audit log.
    pub audit: Demand,
    /// Users whose pods violate it are warned.
    pub warn: Demand,
}

impl Policy {
    /// Parses the labels of a namespace; also returns their errors. An invalid label counts as
    /// restricted for enforce, as privileged for the other modes.
    pub fn of(labels: &BTreeMap<String, String>) -> (Self, Vec<Invalid>) {
        let mut errors = Vec::new();
        let mut policy = Self::default();
        let enforced = read_level(labels, "enforce", Level::Restricted, &mut errors);
        policy.enforce = Demand {
            level: enforced.map(|(level, _)| level).unwrap_or_default(),
            version: read_version(labels, "enforce", &mut errors).unwrap_or_default(),
        };
        policy.audit = Demand {
            level: read_level(labels, "audit", Level::Privileged, &mut errors)
                .map(|(level, _)| level)
                .unwrap_or_default(),
            version: read_version(labels, "audit", &mut errors).unwrap_or_default(),
        };
        let warned = read_level(labels, "warn", Level::Privileged, &mut errors);
        let version = read_version(labels, "warn", &mut errors);
        policy.warn = match (warned, enforced) {
            // Without a warn label, workloads are warned about at the level that is enforced.
            (None, Some((level, true))) => Demand {
                level,
                version: version.unwrap_or(policy.enforce.version),
            },
            (warned, _) => Demand {
                level: warned.map(|(level, _)| level).unwrap_or_default(),
                version: version.unwrap_or_default(),
            },
        };
        (policy, errors)
    }
}

/// Level of a mode, and whether the label is valid.
fn read_level(
    labels: &BTreeMap<String, String>,
    mode: &str,
    unreadable: Level,
    errors: &mut Vec<Invalid>,
) -> Option<(Level, bool)> {
    let label = format!("{PREFIX}{mode}");
    let text = labels.get(&label)?;
    let level = Level::parse(text);
    if level.is_none() {
        let detail = "must be one of privileged, baseline, restricted";
        errors.push(Invalid::value(
            format!("metadata.labels[{label}]"),
            text.as_str(),
            detail,
        ));
    }
    Some((level.unwrap_or(unreadable), level.is_some()))
}

fn read_version(labels: &BTreeMap<String, String>, mode: &str, errors: &mut Vec<Invalid>) -> Option<Version> {
    let label = format!("{PREFIX}{mode}-version");
    let text = labels.get(&label)?;
    let version = Version::parse(text);
    if version.is_none() {
        let detail = "must be \"latest\" or \"v1.x\"";
        errors.push(Invalid::value(
            format!("metadata.labels[{label}]"),
            text.as_str(),
            detail,
        ));
    }
    Some(version.unwrap_or_default())
}
