//! Options of the commands that show the past.

use clap::Args;

use super::TargetOptions;

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
pub(crate) struct UndeleteOptions {
    #[command(flatten)]
    pub(crate) target: TargetOptions,
    /// As it was at a point of the past [default: just before it was deleted]
    #[arg(long, value_name = "TIME|REVISION")]
    pub(crate) at: Option<String>,
}
