//! Last known Services and EndpointSlices in a file: after a restart, names are served from it
//! until the API server has answered.

use std::fs::File;
use std::io::{self, BufWriter, Write as _};
use std::path::Path;
use std::sync::Arc;

use agent_plan::network::dns::Forwarding;
use agent_plan::network::proxy::{Name, Service, Slice};
use network::Ranges;
use serde::{Deserialize, Serialize};

use crate::networking::services::slices::{Services, Slices, by_service};

/// State of an earlier run.
pub(super) struct Last {
    /// Pod CIDRs, at whose gateways it served.
    pub(super) ranges: Option<Ranges>,
    pub(super) forwarding: Forwarding,
    pub(super) services: Services,
    pub(super) slices: Slices,
}

#[derive(Deserialize)]
struct Read {
    ranges: Option<Ranges>,
    #[serde(default)]
    forwarding: Forwarding,
    services: Vec<(Name, Service)>,
    slices: Vec<(Name, Slice)>,
}

#[derive(Serialize)]
struct Written<'a> {
    ranges: Option<Ranges>,
    forwarding: &'a Forwarding,
    services: Vec<(&'a Name, &'a Service)>,
    slices: Vec<(&'a Name, &'a Slice)>,
}

impl Last {
    /// `None` if the file is absent or of another version.
    pub(super) fn read(path: &Path) -> Option<Self> {
        let Read {
            ranges,
            forwarding,
            services,
            slices,
        } = serde_json::from_slice(&std::fs::read(path).ok()?).ok()?;
        Some(Self {
            ranges,
            forwarding,
            services: services.into_iter().map(|(name, own)| (name, Arc::new(own))).collect(),
            slices: by_service(slices.into_iter().map(|(name, own)| (name, Arc::new(own))).collect()),
        })
    }
}

/// Replaces the file. An empty one after a power failure counts as absent.
pub(super) fn write(
    path: &Path,
    ranges: Option<Ranges>,
    forwarding: &Forwarding,
    (services, slices): (&Services, &Slices),
) -> io::Result<()> {
    let written = Written {
        ranges,
        forwarding,
        services: services.iter().map(|(name, own)| (name, &**own)).collect(),
        slices: slices
            .iter()
            .flat_map(|(service, all)| all.iter().map(move |own| (service, &**own)))
            .collect(),
    };
    let draft = path.with_extension("draft");
    let mut file = BufWriter::new(File::create(&draft)?);
    serde_json::to_writer(&mut file, &written)?;
    file.flush()?;
    std::fs::rename(&draft, path)
}
