//! Messages of `csi.proto` and of the kubelet's `pluginregistration/v1/api.proto`, as far as a node
//! needs them.

#![expect(missing_docs, reason = "fields are those of the protocols")]

use std::collections::BTreeMap;

use prost::Message;

use crate::Capabilities;

/// Message without fields.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct Empty {}

/// Plugin behind a registration socket.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct PluginInfo {
    #[prost(string, tag = "1")]
    pub kind: String,
    #[prost(string, tag = "2")]
    pub name: String,
    #[prost(string, tag = "3")]
    pub endpoint: String,
    #[prost(string, repeated, tag = "4")]
    pub supported_versions: Vec<String>,
}

/// Outcome of a registration.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct RegistrationStatus {
    #[prost(bool, tag = "1")]
    pub plugin_registered: bool,
    #[prost(string, tag = "2")]
    pub error: String,
}

/// `NodeGetInfoResponse`.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct NodeInfo {
    #[prost(string, tag = "1")]
    pub node_id: String,
    #[prost(int64, tag = "2")]
    pub max_volumes_per_node: i64,
    #[prost(message, optional, tag = "3")]
    pub accessible_topology: Option<Topology>,
}

/// Topological segments of a node.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Topology {
    #[prost(btree_map = "string, string", tag = "1")]
    pub segments: BTreeMap<String, String>,
}

/// `NodeGetCapabilitiesResponse`.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct NodeCapabilities {
    #[prost(message, repeated, tag = "1")]
    pub capabilities: Vec<NodeCapability>,
}

/// `NodeServiceCapability`.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct NodeCapability {
    #[prost(message, optional, tag = "1")]
    pub rpc: Option<RpcCapability>,
}

/// `NodeServiceCapability.RPC`.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct RpcCapability {
    #[prost(int32, tag = "1")]
    pub kind: i32,
}

/// Use of a volume.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct VolumeCapability {
    #[prost(message, optional, tag = "1")]
    pub block: Option<Empty>,
    #[prost(message, optional, tag = "2")]
    pub mount: Option<MountVolume>,
    #[prost(message, optional, tag = "3")]
    pub access_mode: Option<AccessMode>,
}

/// Mount of a volume with a file system.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct MountVolume {
    #[prost(string, tag = "1")]
    pub fs_type: String,
    #[prost(string, repeated, tag = "2")]
    pub mount_flags: Vec<String>,
    #[prost(string, tag = "3")]
    pub volume_mount_group: String,
}

/// `VolumeCapability.AccessMode`.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct AccessMode {
    #[prost(int32, tag = "1")]
    pub mode: i32,
}

/// `NodeStageVolumeRequest`.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct StageRequest {
    #[prost(string, tag = "1")]
    pub volume_id: String,
    #[prost(btree_map = "string, string", tag = "2")]
    pub publish_context: BTreeMap<String, String>,
    #[prost(string, tag = "3")]
    pub staging_target_path: String,
    #[prost(message, optional, tag = "4")]
    pub volume_capability: Option<VolumeCapability>,
    #[prost(btree_map = "string, string", tag = "5")]
    pub secrets: BTreeMap<String, String>,
    #[prost(btree_map = "string, string", tag = "6")]
    pub volume_context: BTreeMap<String, String>,
}

/// `NodePublishVolumeRequest`.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct PublishRequest {
    #[prost(string, tag = "1")]
    pub volume_id: String,
    #[prost(btree_map = "string, string", tag = "2")]
    pub publish_context: BTreeMap<String, String>,
    #[prost(string, tag = "3")]
    pub staging_target_path: String,
    #[prost(string, tag = "4")]
    pub target_path: String,
    #[prost(message, optional, tag = "5")]
    pub volume_capability: Option<VolumeCapability>,
    #[prost(bool, tag = "6")]
    pub readonly: bool,
    #[prost(btree_map = "string, string", tag = "7")]
    pub secrets: BTreeMap<String, String>,
    #[prost(btree_map = "string, string", tag = "8")]
    pub volume_context: BTreeMap<String, String>,
}

/// `NodeExpandVolumeRequest`.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct ExpandRequest {
    #[prost(string, tag = "1")]
    pub volume_id: String,
    #[prost(string, tag = "2")]
    pub volume_path: String,
    #[prost(message, optional, tag = "3")]
    pub capacity_range: Option<CapacityRange>,
    #[prost(string, tag = "4")]
    pub staging_target_path: String,
    #[prost(message, optional, tag = "5")]
    pub volume_capability: Option<VolumeCapability>,
    #[prost(btree_map = "string, string", tag = "6")]
    pub secrets: BTreeMap<String, String>,
}

/// `CapacityRange`.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct CapacityRange {
    #[prost(int64, tag = "1")]
    pub required_bytes: i64,
}

/// `NodeUnstageVolumeRequest` and `NodeUnpublishVolumeRequest`, which have the same fields.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct UndoRequest {
    #[prost(string, tag = "1")]
    pub volume_id: String,
    #[prost(string, tag = "2")]
    pub path: String,
}

impl VolumeCapability {
    /// Use as a block device.
    pub fn block(mode: &str, driver: Capabilities) -> Self {
        Self {
            block: Some(Empty {}),
            mount: None,
            ..Self::new("", &[], None, mode, driver)
        }
    }

    /// Mount with the first access mode of a volume (`asCSIAccessModeV1` and
    /// `asSingleNodeMultiWriterCapableCSIAccessModeV1`, `pkg/volume/csi/csi_client.go`).
    pub fn new(fs_type: &str, options: &[String], group: Option<i64>, mode: &str, driver: Capabilities) -> Self {
        let mode = match (mode, driver.tells_writers) {
            ("ReadWriteOnce" | "ReadWriteOncePod", false) => 1,
            ("ReadOnlyMany", _) => 3,
            ("ReadWriteMany", _) => 5,
            ("ReadWriteOncePod", true) => 6,
            ("ReadWriteOnce", true) => 7,
            (_, _) => 0,
        };
        Self {
            block: None,
            mount: Some(MountVolume {
                fs_type: fs_type.to_owned(),
                mount_flags: options.to_owned(),
                volume_mount_group: group.map(|group| group.to_string()).unwrap_or_default(),
            }),
            access_mode: Some(AccessMode { mode }),
        }
    }
}
