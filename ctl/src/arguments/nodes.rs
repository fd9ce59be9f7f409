//! Tokens by which other machines come into a cluster.

use std::net::IpAddr;

use clap::{Args, Subcommand};

use super::{Backends, UpOptions};

#[derive(Subcommand)]
pub(crate) enum TokenCommand {
    /// Make a token and print the line by which another machine joins
    Create(TokenOptions),
    /// List the tokens
    List,
    /// Delete tokens, by their ids or as a whole
    Delete {
        #[arg(required = true, value_name = "TOKEN")]
        tokens: Vec<String>,
    },
}

#[derive(Args)]
pub(crate) struct TokenOptions {
    /// Lifetime of the token, such as 90s, 30m, 24h or 7d; 0 is for ever
    #[arg(long, default_value = "24h", value_name = "TIME", value_parser = lifetime)]
    pub(crate) ttl: u64,
    /// A word about the token, for the list
    #[arg(long, value_name = "TEXT")]
    pub(crate) description: Option<String>,
    /// Where the other machine reaches the API server [default: as cluster-info says]
    #[arg(long, value_name = "HOST[:PORT]")]
    pub(crate) server: Option<String>,
}

#[derive(Args)]
pub(crate) struct JoinOptions {
    /// Where the API server is
    #[arg(value_name = "HOST:PORT")]
    pub(crate) server: String,
    /// The token
    #[arg(long)]
    pub(crate) token: String,
    /// Hash of the public key of the cluster's authority
    #[arg(long, value_name = "sha256:HASH")]
    pub(crate) ca_hash: String,
    /// Name of the node [default: the host name]
    #[arg(long, value_name = "NAME")]
    pub(crate) node_name: Option<String>,
    /// Address of the node; with a comma, one of each family [default: the one towards the API server]
    #[arg(long, value_name = "IP", value_delimiter = ',')]
    pub(crate) node_ip: Vec<IpAddr>,
    /// Port of the node agent [default: 10250, or the next free one]
    #[arg(long, value_name = "PORT")]
    pub(crate) agent_port: Option<u16>,
    /// Name of the bridge [default: skiff0, or one derived from the state directory]
    #[arg(long, value_name = "NAME")]
    pub(crate) bridge: Option<String>,
    /// Control group that holds the pods [default: skiff, or one derived from the state directory]
    #[arg(long, value_name = "PATH")]
    pub(crate) cgroup_root: Option<String>,
    /// Begin although `skiff check` finds that the machine lacks something
    #[arg(long)]
    pub(crate) skip_checks: bool,
    #[command(flatten)]
    pub(crate) backends: Backends,
}

impl JoinOptions {
    /// The part that a node of `skiff up` has, too.
    pub(crate) fn node(&self) -> UpOptions {
        UpOptions {
            agent_port: self.agent_port,
            node_name: self.node_name.clone(),
            bridge: self.bridge.clone(),
            cgroup_root: self.cgroup_root.clone(),
            node_address: self.node_ip.clone(),
            skip_checks: self.skip_checks,
            backends: self.backends.clone(),
            ..UpOptions::default()
        }
    }
}

/// Seconds.
fn lifetime(text: &str) -> Result<u64, String> {
    let (number, unit) = text.split_at(text.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(text.len()));
    let seconds = match unit {
        "" if number == "0" => 0,
        "s" => 1,
        "m" => 60,
        "h" => 3600,
        "d" => 86_400,
        _ => return Err("expected a number with s, m, h or d, or 0".to_owned()),
    };
    let number: u64 = number
        .parse()
        .map_err(|_wrong| "expected a number with s, m, h or d, or 0".to_owned())?;
    // A hundred years: no token is for longer.
    let bounded = number.checked_mul(seconds).filter(|all| *all <= 3_155_760_000);
    bounded.ok_or_else(|| "longer than a hundred years; 0 is for ever".to_owned())
}

#[cfg(test)]
mod tests {
    use super::lifetime;

    #[test]
    fn lifetimes_are_numbers_with_a_unit() {
        for (text, seconds) in [
            ("0", Some(0)),
            ("90s", Some(90)),
            ("30m", Some(1800)),
            ("24h", Some(86_400)),
            ("7d", Some(604_800)),
            ("24", None),
            ("h", None),
            ("1w", None),
            ("-1h", None),
            ("99999999999d", None),
        ] {
            assert_eq!(lifetime(text).ok(), seconds, "{text}");
        }
    }
}
