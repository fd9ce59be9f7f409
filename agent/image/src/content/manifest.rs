//! Manifests and indexes, OCI and Docker schema 2.

use std::collections::BTreeMap;

use oci_spec::image::ImageConfiguration;
use serde::Deserialize;
use serde_json::json;

use crate::config::Limits;
use crate::content::ContentError;
use crate::content::digest::Digest;

pub(crate) const ACCEPTED: &[&str] = &[
    INDEX,
    MANIFEST,
    "application/vnd.docker.distribution.manifest.list.v2+json",
    "application/vnd.docker.distribution.manifest.v2+json",
];
pub(crate) const INDEX: &str = "application/vnd.oci.image.index.v1+json";
pub(crate) const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
pub(crate) const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
pub(crate) const PLAIN_LAYER: &str = "application/vnd.oci.image.layer.v1.tar";
pub(crate) const GZIP_LAYER: &str = "application/vnd.oci.image.layer.v1.tar+gzip";
const LAYERS: &[&str] = &[
    PLAIN_LAYER,
    GZIP_LAYER,
    "application/vnd.oci.image.layer.v1.tar+zstd",
    "application/vnd.docker.image.rootfs.diff.tar",
    "application/vnd.docker.image.rootfs.diff.tar.gzip",
    "application/vnd.docker.image.rootfs.diff.tar.zstd",
    // Non-distributable layers. Their `urls` are ignored: the author of a manifest could name any
    // host (SSRF).
    "application/vnd.oci.image.layer.nondistributable.v1.tar",
    "application/vnd.oci.image.layer.nondistributable.v1.tar+gzip",
    "application/vnd.oci.image.layer.nondistributable.v1.tar+zstd",
    "application/vnd.docker.image.rootfs.foreign.diff.tar",
    "application/vnd.docker.image.rootfs.foreign.diff.tar.gzip",
];
const CONFIGS: &[&str] = &[
    CONFIG,
    "application/vnd.docker.container.image.v1+json",
    "application/octet-stream",
];
/// Maximum nesting of indexes. Registries use one level; an archive's own `index.json` is one more.
pub(crate) const NESTING: usize = 4;

/// A manifest or an index.
#[derive(Debug)]
pub(crate) enum Document {
    Index(Vec<Descriptor>),
    Manifest {
        config: Descriptor,
        layers: Vec<Descriptor>,
    },
}

/// Descriptor of a blob, as in the OCI image specification.
#[derive(Debug, Clone)]
pub(crate) struct Descriptor {
    pub(crate) media_type: String,
    pub(crate) digest: Digest,
    pub(crate) size: u64,
    platform: Option<Platform>,
    annotations: BTreeMap<String, String>,
}

#[derive(Debug, Clone, Deserialize)]
struct Platform {
    #[serde(default)]
    architecture: String,
    #[serde(default)]
    os: String,
    #[serde(default)]
    variant: String,
}

impl Platform {
    /// Place among the platforms whose programs this machine runs, the best first; `None` for
    /// others.
    fn place(&self) -> Option<usize> {
        self.place_on(std::env::consts::ARCH)
    }

    /// As in containerd: without an operating system it is of this one (`platforms.Normalize`), and
    /// a machine of 64 bits also runs programs of 32 bits (`platforms.Only`).
    fn place_on(&self, machine: &str) -> Option<usize> {
        let architecture = match machine {
            "x86_64" => "amd64",
            "aarch64" => "arm64",
            "powerpc64" => "ppc64le",
            other => other,
        };
        let (variant, smaller): (&str, &[(&str, &[&str])]) = match architecture {
            "amd64" => ("v1", &[("386", &[""])]),
            "arm64" => (
                "v8",
                &[
                    ("arm", &["v8"]),
                    ("arm", &["", "v7"]),
                    ("arm", &["v6"]),
                    ("arm", &["v5"]),
                ],
            ),
            _ => ("v1", &[]),
        };
        let is = |architecture: &str, variants: &[&str]| {
            self.architecture == architecture && variants.contains(&self.variant.as_str())
        };
        if !["", "linux"].contains(&self.os.as_str()) {
            return None;
        }
        if is(architecture, &["", variant]) {
            return Some(0);
        }
        let mut smaller = smaller.iter();
        let found = smaller.position(|(architecture, variants)| is(architecture, variants));
        found.map(|found| found + 1)
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawDescriptor {
    #[serde(default)]
    media_type: String,
    digest: String,
    size: u64,
    platform: Option<Platform>,
    #[serde(default)]
    annotations: Option<BTreeMap<String, String>>,
}

/// Fields by which a document declares its own kind.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Said {
    media_type: String,
    manifests: Option<serde::de::IgnoredAny>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawDocument {
    schema_version: i64,
    #[serde(default)]
    media_type: String,
    manifests: Option<Vec<RawDescriptor>>,
    config: Option<RawDescriptor>,
    layers: Option<Vec<RawDescriptor>>,
}

impl Document {
    /// Parses a document and checks its media types. An ambiguous document is refused.
    pub(crate) fn parse(json: &[u8], limits: &Limits) -> Result<Self, ContentError> {
        let raw: RawDocument = serde_json::from_slice(json).map_err(|source| ContentError::Parse {
            what: "manifest",
            source,
        })?;
        if raw.schema_version != 2 || !(raw.media_type.is_empty() || ACCEPTED.contains(&raw.media_type.as_str())) {
            return Err(media_type("manifest", &raw.media_type));
        }
        let says_index = raw.media_type.contains("index") || raw.media_type.contains("list");
        let says_manifest = !raw.media_type.is_empty() && !says_index;
        match (raw.manifests, raw.config, raw.layers) {
            (Some(manifests), None, None) if !says_manifest => {
                let manifests = manifests
                    .into_iter()
                    .map(|raw| raw.check("index"))
                    .collect::<Result<_, _>>()?;
                Ok(Self::Index(manifests))
            }
            (None, Some(config), Some(layers)) if !says_index => {
                if layers.len() > limits.layers {
                    return Err(ContentError::TooManyLayers {
                        actual: layers.len(),
                        limit: limits.layers,
                    });
                }
                config.expect("configuration", CONFIGS)?;
                let layers = layers.into_iter().map(|layer| {
                    layer.expect("layer", LAYERS)?;
                    layer.check("manifest")
                });
                Ok(Self::Manifest {
                    layers: layers.collect::<Result<_, _>>()?,
                    config: config.check("manifest")?,
                })
            }
            _ => Err(media_type("manifest", &raw.media_type)),
        }
    }
}

fn media_type(what: &'static str, media_type: &str) -> ContentError {
    ContentError::MediaType {
        what,
        media_type: media_type.chars().take(100).collect(),
    }
}

impl RawDescriptor {
    fn expect(&self, what: &'static str, accepted: &[&str]) -> Result<(), ContentError> {
        if accepted.contains(&self.media_type.as_str()) {
            Ok(())
        } else {
            Err(media_type(what, &self.media_type))
        }
    }

    fn check(self, what: &'static str) -> Result<Descriptor, ContentError> {
        let digest = Digest::parse(&self.digest).map_err(|source| ContentError::InvalidDigest { what, source })?;
        let annotations = self.annotations.unwrap_or_default();
        Ok(Descriptor {
            media_type: self.media_type,
            digest,
            size: self.size,
            platform: self.platform,
            annotations,
        })
    }
}

impl Descriptor {
    pub(crate) fn new(media_type: impl Into<String>, digest: Digest, size: u64) -> Self {
        Self {
            media_type: media_type.into(),
            digest,
            size,
            platform: None,
            annotations: BTreeMap::new(),
        }
    }

    /// Descriptor of a document, from the media type that the document declares.
    pub(crate) fn of_document(json: &[u8]) -> Self {
        let said: Said = serde_json::from_slice(json).unwrap_or_default();
        let media_type = match (said.media_type.as_str(), &said.manifests) {
            ("", Some(_)) => INDEX.to_owned(),
            ("", None) => MANIFEST.to_owned(),
            _ => said.media_type,
        };
        Self::new(media_type, Digest::of(json), json.len() as u64)
    }

    /// Annotation of a manifest that holds the full image name.
    pub(crate) fn image_name(&self) -> Option<&str> {
        let name = self.annotations.get("io.containerd.image.name").map(String::as_str);
        // A bare tag is not a full name.
        name.or_else(|| self.tag().filter(|name| name.contains([':', '/'])))
    }

    /// Annotation `ref.name` of a layout with several images: a tag, or a name.
    pub(crate) fn tag(&self) -> Option<&str> {
        let tag = self.annotations.get("org.opencontainers.image.ref.name");
        tag.map(String::as_str)
    }

    /// Checks the platform of a manifest's configuration, unless an index has stated it.
    pub(crate) fn check_platform(&self, config: &[u8]) -> Result<(), ContentError> {
        if self.platform.is_some() {
            return Ok(());
        }
        let platform: Platform = serde_json::from_slice(config).map_err(|source| ContentError::Parse {
            what: "configuration",
            source,
        })?;
        platform.place().is_some().then_some(()).ok_or(ContentError::Platform)
    }

    /// Checks bytes against digest and size.
    pub(crate) fn verify(&self, what: &'static str, bytes: &[u8]) -> Result<(), ContentError> {
        if bytes.len() as u64 != self.size {
            return Err(ContentError::Size {
                what,
                actual: bytes.len() as u64,
                expected: self.size,
            });
        }
        let actual = Digest::of(bytes);
        if actual == self.digest {
            Ok(())
        } else {
            Err(ContentError::Digest {
                what,
                actual,
                expected: self.digest.clone(),
            })
        }
    }
}

/// Best descriptor for this platform, else the first one without a platform, as in containerd
/// (`core/images/image.go`, `Manifest`): its configuration is then to be checked
/// ([`Descriptor::check_platform`]).
pub(crate) fn for_this_platform(manifests: &[Descriptor]) -> Result<&Descriptor, ContentError> {
    let places = manifests
        .iter()
        .filter_map(|descriptor| Some((descriptor.platform.as_ref()?.place()?, descriptor)));
    let best = places.min_by_key(|(place, _)| *place).map(|(_, descriptor)| descriptor);
    best.or_else(|| manifests.iter().find(|descriptor| descriptor.platform.is_none()))
        .ok_or(ContentError::Platform)
}

/// Parsed configuration with the digests of its uncompressed layers, lowest first.
pub(crate) fn parse_config(json: &[u8], layers: usize) -> Result<(ImageConfiguration, Vec<Digest>), ContentError> {
    let config: ImageConfiguration = serde_json::from_slice(json).map_err(|source| ContentError::Parse {
        what: "configuration",
        source,
    })?;
    let parse = |text: &String| {
        Digest::parse(text).map_err(|source| ContentError::InvalidDigest {
            what: "configuration",
            source,
        })
    };
    let diff_ids = config
        .rootfs()
        .diff_ids()
        .iter()
        .map(parse)
        .collect::<Result<Vec<_>, _>>()?;
    if diff_ids.len() == layers {
        Ok((config, diff_ids))
    } else {
        Err(ContentError::LayerCount)
    }
}

/// Chain IDs of the layers, lowest first.
pub(crate) fn chain_ids(diff_ids: &[Digest]) -> Vec<Digest> {
    let mut chains: Vec<Digest> = Vec::with_capacity(diff_ids.len());
    for diff_id in diff_ids {
        chains.push(Digest::chained(chains.last(), diff_id));
    }
    chains
}

/// Generates a manifest for an image whose source has none.
pub(crate) fn synthesized<'a>(config: &[u8], layers: impl IntoIterator<Item = &'a Descriptor>) -> Vec<u8> {
    let described = |media_type: &str, digest: &Digest, size: u64| json!({"mediaType": media_type, "digest": digest.as_str(), "size": size});
    let layers: Vec<_> = layers
        .into_iter()
        .map(|layer| described(&layer.media_type, &layer.digest, layer.size))
        .collect();
    let manifest = json!({
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": described(CONFIG, &Digest::of(config), config.len() as u64),
        "layers": layers,
    });
    manifest.to_string().into_bytes()
}

#[cfg(test)]
mod tests {
    use oci_spec::image::Arch;

    use super::*;

    #[test]
    fn a_machine_also_runs_programs_of_32_bits() {
        for (machine, architecture, variant, expected) in [
            ("x86_64", "amd64", "v1", Some(0)),
            ("x86_64", "amd64", "v3", None),
            ("x86_64", "386", "", Some(1)),
            ("x86_64", "arm64", "", None),
            ("aarch64", "arm64", "v8", Some(0)),
            ("aarch64", "arm", "v8", Some(1)),
            ("aarch64", "arm", "", Some(2)),
            ("aarch64", "arm", "v5", Some(4)),
            ("aarch64", "386", "", None),
            ("riscv64", "riscv64", "", Some(0)),
            ("riscv64", "386", "", None),
        ] {
            let platform = |os: &str| Platform {
                architecture: architecture.to_owned(),
                os: os.to_owned(),
                variant: variant.to_owned(),
            };
            let found = platform("linux").place_on(machine);
            assert_eq!(found, expected, "{architecture} {variant} on {machine}");
            assert_eq!(platform("windows").place_on(machine), None);
        }
    }

    #[test]
    fn an_entry_without_a_platform_is_taken_where_there_is_none_of_this_platform() {
        let own = Arch::default().to_string();
        let platform = |architecture: &str| json!({"os": "linux", "architecture": architecture.replace("this", &own)});
        for (entries, expected) in [
            ([None, None], Some(0)),
            ([None, Some("this")], Some(1)),
            ([Some("other"), None], Some(1)),
            ([Some("this"), Some("this")], Some(0)),
            ([Some("386"), Some("this")], Some(1)),
            ([Some("other"), Some("unknown")], None),
        ] {
            let described = entries.iter().enumerate().map(|(number, entry)| {
                let digest = Digest::of(&[u8::from(number > 0)]);
                json!({"digest": digest.as_str(), "size": 1, "platform": entry.map(platform)})
            });
            let index = json!({"schemaVersion": 2, "manifests": described.collect::<Vec<_>>()}).to_string();
            let Ok(Document::Index(manifests)) = Document::parse(index.as_bytes(), &Limits::default()) else {
                panic!("{index}");
            };
            let found = for_this_platform(&manifests).ok();
            let found = found.and_then(|found| manifests.iter().position(|one| one.digest == found.digest));
            assert_eq!(found, expected, "{entries:?}");
        }
        let without = Descriptor::new(MANIFEST, Digest::of(b""), 0);
        let checked = |architecture| without.check_platform(platform(architecture).to_string().as_bytes());
        checked("this").unwrap();
        let untold = json!({"architecture": &own}).to_string();
        without.check_platform(untold.as_bytes()).unwrap();
        let artifact = without.check_platform(b"{}").unwrap_err();
        assert!(matches!(artifact, ContentError::Platform), "{artifact}");
        checked("other").unwrap_err();
    }
}
