//! What concerns a machine rather than a cluster.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

/// One of the two programs that make a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Part {
    /// The API server, its store, controllers and scheduler
    Controlplane,
    /// What runs pods
    Agent,
}

#[derive(Args)]
pub(crate) struct CheckOptions {
    /// Look only at what this part needs [default: both, or with --server what a node needs]
    #[arg(value_enum)]
    pub(crate) part: Option<Part>,
    /// Server of the cluster that the machine is to join: look whether it answers, and at the clocks
    #[arg(long, value_name = "HOST[:PORT]")]
    pub(crate) server: Option<String>,
    /// What shall make the containers [default: embedded, or as the node here has it]
    #[arg(long, value_name = "NAME", value_parser = ["embedded", "containerd"])]
    pub(crate) runtime: Option<String>,
    /// What shall connect the pods [default: bridge, or as the node here has it]
    #[arg(long, value_name = "NAME", value_parser = ["bridge", "cni"])]
    pub(crate) network: Option<String>,
    /// Output: json
    #[arg(short, long, value_parser = ["json"])]
    pub(crate) output: Option<String>,
}

#[derive(Args)]
pub(crate) struct UninstallOptions {
    /// Remove nothing: list what is there (exit code 1 when there is something)
    #[arg(long)]
    pub(crate) verify: bool,
}

#[derive(Args)]
pub(crate) struct UpgradeOptions {
    /// The new programs: a folder, or an archive that `make dist` makes [default: the folder of this program]
    #[arg(long, value_name = "DIR|ARCHIVE")]
    pub(crate) from: Option<PathBuf>,
    /// Seconds that the new programs have to become Ready before the former ones take their places again
    #[arg(long, default_value = "60", value_name = "SECONDS")]
    pub(crate) timeout: u64,
}
