//! Address of etcd: `etcd://HOST:PORT,HOST:PORT/PREFIX`.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// Members, and the prefix of all keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Address {
    pub(crate) members: Vec<String>,
    /// Starts with a slash and does not end with one.
    pub(crate) prefix: String,
}

/// TLS certificates of the client and the members.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Identity {
    /// CA of the members' certificates; `None` connects without TLS.
    pub authority: Option<PathBuf>,
    /// Client certificate and its key.
    pub certificate: Option<(PathBuf, PathBuf)>,
}

/// The text is not a valid address of etcd.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("expected the members of etcd and perhaps a prefix, such as etcd://10.0.0.1:2379,10.0.0.2:2379/skiff")]
pub struct InvalidAddress;

impl FromStr for Address {
    type Err = InvalidAddress;

    fn from_str(text: &str) -> Result<Self, InvalidAddress> {
        let rest = text.strip_prefix("etcd://").ok_or(InvalidAddress)?;
        let (members, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        let is_member = |member: &str| {
            let (host, port) = member.rsplit_once(':').unwrap_or_default();
            let bracketed = host.starts_with('[') && host.ends_with(']');
            let plain = !host.is_empty() && !host.contains([':', '@', '[', ']', '?', '#', ' ']);
            (bracketed || plain) && port.parse::<u16>().is_ok_and(|port| port > 0)
        };
        let members: Vec<String> = members.split(',').map(str::to_owned).collect();
        let prefix = prefix.trim_end_matches('/');
        if !members.iter().all(|member| is_member(member)) {
            return Err(InvalidAddress);
        }
        Ok(Self {
            members,
            prefix: if prefix.is_empty() {
                "/skiff".to_owned()
            } else {
                format!("/{prefix}")
            },
        })
    }
}

impl fmt::Display for Address {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "etcd://{}{}", self.members.join(","), self.prefix)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_and_a_prefix() {
        for (text, shown) in [
            ("etcd://127.0.0.1:2379", Some("etcd://127.0.0.1:2379/skiff")),
            ("etcd://a:1,[::1]:2/x/y/", Some("etcd://a:1,[::1]:2/x/y")),
            ("etcd://a", None),
            ("etcd://a:0", None),
            ("etcd://a:1,", None),
            ("etcd://::1:2379", None),
            ("http://a:1", None),
            ("a:1", None),
        ] {
            let parsed = text.parse::<Address>();
            assert_eq!(
                parsed.map(|address| address.to_string()).ok().as_deref(),
                shown,
                "{text}"
            );
        }
    }
}
