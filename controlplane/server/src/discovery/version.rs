//! Version information that `/version` reports.

use serde::Serialize;

/// Reported version, and the build's.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Version {
    /// `1`
    pub major: String,
    /// `36`
    pub minor: String,
    /// Major version whose features can be emulated.
    pub emulation_major: String,
    /// Minor version whose features can be emulated.
    pub emulation_minor: String,
    /// Lowest compatible major version.
    pub min_compatibility_major: String,
    /// Lowest compatible minor version.
    pub min_compatibility_minor: String,
    /// `v1.36.0+skiff.0.1.0`
    pub git_version: String,
    /// Commit of the build, where it is known.
    pub git_commit: String,
    /// `clean` or `dirty`, where it is known.
    pub git_tree_state: String,
    /// Build date, where it is known.
    pub build_date: String,
    /// Clients show it; there is no Go here, and clients accept any text.
    pub go_version: String,
    /// The compiler's name.
    pub compiler: String,
    /// `linux/amd64`
    pub platform: String,
}

impl Default for Version {
    fn default() -> Self {
        let architecture = match std::env::consts::ARCH {
            "x86_64" => "amd64",
            "aarch64" => "arm64",
            other => other,
        };
        Self {
            major: "1".to_owned(),
            minor: "36".to_owned(),
            emulation_major: "1".to_owned(),
            emulation_minor: "36".to_owned(),
            min_compatibility_major: "1".to_owned(),
            min_compatibility_minor: "35".to_owned(),
            git_version: concat!("v1.36.0+skiff.", env!("CARGO_PKG_VERSION")).to_owned(),
            git_commit: String::new(),
            git_tree_state: String::new(),
            build_date: "1970-01-01T00:00:00Z".to_owned(),
            go_version: "none".to_owned(),
            compiler: "rustc".to_owned(),
            platform: format!("{}/{architecture}", std::env::consts::OS),
        }
    }
}
