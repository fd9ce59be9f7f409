//! Options of `skiff store`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

#[derive(Subcommand)]
pub(crate) enum StoreCommand {
    /// Move the objects from the database here to an etcd, or back, while no control plane runs; revisions and uids stay
    Move(MoveOptions),
}

#[derive(Args)]
pub(crate) struct MoveOptions {
    /// Where they are: `sqlite`, or an etcd as etcd://HOST:PORT,HOST:PORT/PREFIX
    pub(crate) from: String,
    /// Where they are to be, in the same words; nothing may be there
    pub(crate) to: String,
    /// The authority of etcd's certificates; without it etcd is asked without TLS
    #[arg(long, value_name = "FILE")]
    pub(crate) etcd_cafile: Option<PathBuf>,
    /// The certificate that etcd is shown
    #[arg(long, value_name = "FILE")]
    pub(crate) etcd_certfile: Option<PathBuf>,
    /// Its key
    #[arg(long, value_name = "FILE")]
    pub(crate) etcd_keyfile: Option<PathBuf>,
}
