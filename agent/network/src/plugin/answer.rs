//! Answers to a CNI runtime.

use serde_json::{Value, json};

use crate::{Attachment, Error};

/// Error codes of the CNI specification; codes from 100 on are the plugin's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Code {
    /// The configuration's version is not supported.
    Version,
    /// The container is unknown.
    Unknown,
    /// An environment variable is missing or invalid.
    Environment,
    /// I/O error.
    Io,
    /// The input cannot be decoded.
    Decode,
    /// The input could not be read.
    Input,
    /// The configuration is invalid.
    Configuration,
    /// The plugin is not available (STATUS).
    Unavailable,
    /// The container's network differs from the recorded one (CHECK).
    Differs,
}

impl Code {
    const fn number(self) -> u32 {
        match self {
            Self::Version => 1,
            Self::Unknown => 3,
            Self::Environment => 4,
            Self::Io | Self::Input => 5,
            Self::Decode => 6,
            Self::Configuration => 7,
            Self::Unavailable => 50,
            Self::Differs => 100,
        }
    }
}

/// Error result of the CNI specification.
#[derive(Debug)]
pub(super) struct Refusal {
    code: Code,
    message: String,
    details: String,
}

impl Refusal {
    pub(super) fn new(code: Code, doing: &str, error: &dyn std::error::Error) -> Self {
        let mut details = error.to_string();
        let mut source = error.source();
        while let Some(inner) = source {
            details = format!("{details}: {inner}");
            source = inner.source();
        }
        Self {
            code,
            message: doing.to_owned(),
            details,
        }
    }

    pub(super) fn plain(code: Code, message: String) -> Self {
        Self {
            code,
            message,
            details: String::new(),
        }
    }

    pub(super) fn text(&self) -> String {
        if self.details.is_empty() {
            return self.message.clone();
        }
        format!("{}: {}", self.message, self.details)
    }

    /// Serializes in the caller's version, if known.
    pub(super) fn to_json(&self, input: &str) -> Value {
        let asked: Value = serde_json::from_str(input).unwrap_or_default();
        let version = asked.get("cniVersion").and_then(Value::as_str).unwrap_or("1.1.0");
        json!({
            "cniVersion": version, "code": self.code.number(), "msg": self.message, "details": self.details,
        })
    }
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        let code = match &error {
            Error::InvalidId(_)
            | Error::RangeTooSmall(_)
            | Error::NoIpv6(_)
            | Error::RangeInUse(_)
            | Error::BridgeTaken { .. }
            | Error::RangeTaken { .. } => Code::Configuration,
            Error::Exhausted(_) => Code::Unavailable,
            Error::NotStarted
            | Error::Io { .. }
            | Error::Kernel { .. }
            | Error::Unconfigured { .. }
            | Error::Plugin { .. }
            | Error::Incomplete(_)
            | Error::Held(_) => Code::Io,
        };
        Self::new(code, "the bridge", &error)
    }
}

/// Success result, with the name of the host end of the veth pair.
pub(super) fn result(version: &str, bridge: &str, attachment: &Attachment, link: &str) -> Value {
    let old = version.starts_with("0.");
    let ips: Vec<Value> = attachment
        .addresses
        .iter()
        .map(|held| {
            let mut ip = json!({"address": held.to_string(), "gateway": held.gateway(), "interface": 2});
            if let Some(ip) = ip.as_object_mut().filter(|_| old) {
                ip.insert("version".to_owned(), json!(if held.is_ipv6() { "6" } else { "4" }));
            }
            ip
        })
        .collect();
    let routes = attachment.addresses.iter().map(|held| {
        let all = if held.is_ipv6() { "::/0" } else { "0.0.0.0/0" };
        json!({"dst": all, "gw": held.gateway()})
    });
    json!({
        "cniVersion": version,
        "interfaces": [
            {"name": bridge},
            {"name": link},
            {"name": attachment.interface, "sandbox": attachment.netns},
        ],
        "ips": ips,
        "routes": routes.collect::<Vec<_>>(),
        "dns": {},
    })
}
