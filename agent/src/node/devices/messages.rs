//! Messages of the kubelet's device plugin API
//! (`k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1/api.proto`), as far as they are used.

use std::collections::BTreeMap;

use prost::Message;

/// Version of the API.
pub(super) const VERSION: &str = "v1beta1";
/// Health of a device that may be used.
pub(super) const HEALTHY: &str = "Healthy";

#[derive(Clone, PartialEq, Message)]
pub(super) struct Empty {}

#[derive(Clone, PartialEq, Message)]
pub(super) struct RegisterRequest {
    #[prost(string, tag = "1")]
    pub(super) version: String,
    /// Name of the plugin's socket in the directory of the plugins.
    #[prost(string, tag = "2")]
    pub(super) endpoint: String,
    #[prost(string, tag = "3")]
    pub(super) resource_name: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Options {
    #[prost(bool, tag = "1")]
    pub(super) pre_start_required: bool,
    #[prost(bool, tag = "2")]
    pub(super) get_preferred_allocation_available: bool,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ListAndWatchResponse {
    #[prost(message, repeated, tag = "1")]
    pub(super) devices: Vec<Device>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Device {
    #[prost(string, tag = "1")]
    pub(super) id: String,
    #[prost(string, tag = "2")]
    pub(super) health: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct PreStartContainerRequest {
    #[prost(string, repeated, tag = "1")]
    pub(super) devices_ids: Vec<String>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct PreferredAllocationRequest {
    #[prost(message, repeated, tag = "1")]
    pub(super) container_requests: Vec<ContainerPreferredAllocationRequest>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ContainerPreferredAllocationRequest {
    #[prost(string, repeated, tag = "1")]
    pub(super) available: Vec<String>,
    #[prost(string, repeated, tag = "2")]
    pub(super) must_include: Vec<String>,
    #[prost(int32, tag = "3")]
    pub(super) allocation_size: i32,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct PreferredAllocationResponse {
    #[prost(message, repeated, tag = "1")]
    pub(super) container_responses: Vec<ContainerPreferredAllocationResponse>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ContainerPreferredAllocationResponse {
    #[prost(string, repeated, tag = "1")]
    pub(super) ids: Vec<String>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct AllocateRequest {
    #[prost(message, repeated, tag = "1")]
    pub(super) container_requests: Vec<ContainerAllocateRequest>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ContainerAllocateRequest {
    #[prost(string, repeated, tag = "1")]
    pub(super) devices_ids: Vec<String>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct AllocateResponse {
    #[prost(message, repeated, tag = "1")]
    pub(super) container_responses: Vec<ContainerAllocateResponse>,
}

/// What a container gets with its devices.
#[derive(Clone, PartialEq, Message)]
pub(super) struct ContainerAllocateResponse {
    #[prost(btree_map = "string, string", tag = "1")]
    pub(super) envs: BTreeMap<String, String>,
    #[prost(message, repeated, tag = "2")]
    pub(super) mounts: Vec<Mount>,
    #[prost(message, repeated, tag = "3")]
    pub(super) devices: Vec<DeviceSpec>,
    #[prost(btree_map = "string, string", tag = "4")]
    pub(super) annotations: BTreeMap<String, String>,
    #[prost(message, repeated, tag = "5")]
    pub(super) cdi_devices: Vec<CdiDevice>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Mount {
    #[prost(string, tag = "1")]
    pub(super) container_path: String,
    #[prost(string, tag = "2")]
    pub(super) host_path: String,
    #[prost(bool, tag = "3")]
    pub(super) read_only: bool,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct DeviceSpec {
    #[prost(string, tag = "1")]
    pub(super) container_path: String,
    #[prost(string, tag = "2")]
    pub(super) host_path: String,
    #[prost(string, tag = "3")]
    pub(super) permissions: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct CdiDevice {
    #[prost(string, tag = "1")]
    pub(super) name: String,
}
