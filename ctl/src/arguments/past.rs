//! Options of the commands that show the past.

use clap::Args;
use serde::{Deserialize, Serialize};

use super::{Scope, TargetOptions};

/// Bounds of the past that the control plane keeps.
#[derive(Args, Default, Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct History {
    /// How many days the previous versions of objects are kept; 0 keeps none [default: 7]
    #[arg(long, value_name = "DAYS", value_parser = clap::value_parser!(u64).range(..=3650))]
    pub(crate) history_days: Option<u64>,
    /// How much room they take at most, in MiB; the oldest go first [default: 256]
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u64).range(1..=1_048_576))]
    pub(crate) history_mib: Option<u64>,
}

impl History {
    /// Returns these bounds, completed by others.
    pub(crate) fn or(&self, others: &Self) -> Self {
        Self {
            history_days: self.history_days.or(others.history_days),
            history_mib: self.history_mib.or(others.history_mib),
        }
    }

    /// Returns the control plane's flags.
    pub(crate) fn flags(&self) -> impl Iterator<Item = String> {
        let days = self.history_days.map(|days| format!("--history-days={days}"));
        let room = self.history_mib.map(|room| format!("--history-mib={room}"));
        days.into_iter().chain(room)
    }
}

#[derive(Args)]
pub(crate) struct HistoryOptions {
    #[command(flatten)]
    pub(crate) target: TargetOptions,
    /// How many versions, the newest ones
    #[arg(long, default_value_t = 30, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..500))]
    pub(crate) limit: u32,
}

#[derive(Args)]
pub(crate) struct DiffOptions {
    #[command(flatten)]
    pub(crate) target: TargetOptions,
    /// The earlier point: a time, so long ago, or a revision, as those of `get --at`
    #[arg(long, value_name = "TIME|REVISION")]
    pub(crate) from: String,
    /// The later point [default: now]
    #[arg(long, value_name = "TIME|REVISION")]
    pub(crate) to: Option<String>,
}

#[derive(Args)]
pub(crate) struct TraceOptions {
    #[command(flatten)]
    pub(crate) target: TargetOptions,
    /// As of a point of the past, also for what is deleted by now; times from nodes may be unknown
    #[arg(long, value_name = "TIME|REVISION")]
    pub(crate) at: Option<String>,
}

#[derive(Args)]
pub(crate) struct UndeleteOptions {
    #[command(flatten)]
    pub(crate) target: TargetOptions,
    /// As it was at a point of the past [default: just before it was deleted]
    #[arg(long, value_name = "TIME|REVISION")]
    pub(crate) at: Option<String>,
}

#[derive(Args)]
pub(crate) struct SqlOptions {
    /// Print each row as a line of JSON, with whole values
    #[arg(long)]
    pub(crate) json: bool,
    /// Rows that are printed at most
    #[arg(long, default_value_t = 1000, value_name = "ROWS")]
    pub(crate) limit: u64,
    /// Seconds that the query may take
    #[arg(long, default_value_t = 10, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..=600))]
    pub(crate) timeout: u32,
    /// A SELECT from objects and versions (group, resource, namespace, name, revision, time, json; versions also until, ended,
    /// deleted) or audit (time, user, impersonated, verb, resource, namespace, name, subresource, code, agent, uri, json)
    pub(crate) query: String,
}

#[derive(Args)]
pub(crate) struct EventsOptions {
    #[command(flatten)]
    pub(crate) scope: Scope,
    /// Every namespace
    #[arg(short = 'A', long)]
    pub(crate) all_namespaces: bool,
    /// Go on printing what happens
    #[arg(short, long)]
    pub(crate) watch: bool,
    /// Types, with a comma between them [default: all]
    #[arg(long, value_delimiter = ',', value_parser = ["Normal", "Warning"], value_name = "TYPE")]
    pub(crate) types: Vec<String>,
}

#[derive(Args)]
pub(crate) struct WhyOptions {
    #[command(flatten)]
    pub(crate) target: TargetOptions,
    /// Walk the way of a connection from the pod to pod/NAME:PORT or service/NAME:PORT, and try it from inside the pod
    #[arg(long, value_name = "RESOURCE:PORT")]
    pub(crate) reach: Option<String>,
    /// Namespace of what is to be reached [default: that of the pod]
    #[arg(long, value_name = "NAMESPACE", requires = "reach")]
    pub(crate) reach_namespace: Option<String>,
}
