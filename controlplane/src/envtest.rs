//! The programs that controller-runtime's envtest starts, by their names: `kube-apiserver` and `etcd`.
//!
//! ```text
//! envtest ─► etcd --data-dir=D --listen-client-urls=U            answers U/health, keeps nothing itself
//!        ─► kube-apiserver --etcd-servers=U --cert-dir=C …      asks U for D, and keeps its objects there
//! ```
//!
//! `skiff test-assets` makes both names links to this program. As upstream, the API server has no controllers beside it.

pub mod api_server;
pub mod etcd;

use std::ffi::OsStr;
use std::path::Path;

/// A name that this program is started by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Name {
    /// The API server alone.
    ApiServer,
    /// The store that it is told of.
    Etcd,
}

impl Name {
    /// Program that the first word of a command line names; `None` for our own.
    pub fn of(program: &OsStr) -> Option<Self> {
        let name = Path::new(program).file_name()?.to_str()?;
        match name {
            "kube-apiserver" => Some(Self::ApiServer),
            "etcd" => Some(Self::Etcd),
            _ => None,
        }
    }
}
