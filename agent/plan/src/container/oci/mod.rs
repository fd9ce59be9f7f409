//! The OCI runtime specification of a container. The runtime sets the parts that only it knows
//! (root, namespaces' paths, the cgroup's path, numeric ids).

pub mod apparmor;
pub mod capabilities;
mod declared;
mod mounts;
mod seccomp;
pub mod selinux;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use k8s_openapi::api::core::v1::{Container, Pod, PodSpec, SeccompProfile};
use oci_spec::runtime::Spec;
use serde_json::{Value, json};

use crate::container::environment::{self, Environment, ReferenceError, Sources, Surroundings};
use crate::resources;

pub use declared::volumes;
use declared::{MOST_PATHS, MOST_VOLUMES};

/// The image's configuration of its program.
#[derive(Clone, Debug, Default)]
pub struct Image {
    /// `Entrypoint`.
    pub entrypoint: Vec<String>,
    /// `Cmd`.
    pub command: Vec<String>,
    /// `Env`.
    pub environment: Vec<String>,
    /// `WorkingDir`.
    pub working_directory: Option<String>,
}

/// A directory or file of the node that is mounted into the container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// The path on the node.
    pub source: PathBuf,
    /// In the container.
    pub destination: String,
    /// The container's access.
    pub access: Access,
    /// Propagation of later mounts.
    pub propagation: Propagation,
    /// The mount is a default one, not one of the pod's spec.
    pub own: bool,
    /// The files belong to this pod alone: they get the container's `SELinux` label.
    pub labelled: bool,
}

/// A device node that the container gets: of a device plugin, or the block device of a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// The path in the container.
    pub path: PathBuf,
    /// True for a block device.
    pub block: bool,
    /// Major and minor number.
    pub numbers: (u64, u64),
    /// Permission bits of the node on the machine.
    pub mode: u32,
    /// User and group of the node on the machine.
    pub owner: (u32, u32),
    /// What the container may do: letters of `rwm`.
    pub access: String,
    /// The node on the machine, if it is mounted: runtimes make none outside of `/dev`.
    pub mounted: Option<PathBuf>,
}

impl Device {
    /// Mount of the node, if it is to be mounted.
    pub fn mount(&self) -> Option<Mount> {
        Some(Mount {
            source: self.mounted.clone()?,
            destination: self.path.display().to_string(),
            access: Access::ReadWrite,
            propagation: Propagation::Private,
            own: false,
            labelled: false,
        })
    }

    fn kind(&self) -> &'static str {
        if self.block { "b" } else { "c" }
    }

    fn node(&self) -> Value {
        let ((major, minor), (uid, gid)) = (self.numbers, self.owner);
        let (path, kind) = (&self.path, self.kind());
        json!({
            "path": path, "type": kind, "major": major, "minor": minor,
            "fileMode": self.mode, "uid": uid, "gid": gid,
        })
    }

    fn rule(&self) -> Value {
        let (major, minor) = self.numbers;
        json!({"allow": true, "type": self.kind(), "major": major, "minor": minor, "access": self.access})
    }
}

/// Access of a container to a mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Read and write.
    ReadWrite,
    /// Read-only, without the mounts below.
    ReadOnly,
    /// Recursively read-only.
    ReadOnlyBelow,
}

/// Mount propagation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Propagation {
    /// No propagation (`None`).
    Private,
    /// Mounts of the node appear in the container (`HostToContainer`).
    FromNode,
    /// Mounts propagate in both directions (`Bidirectional`).
    BothWays,
}

/// Abilities of the node.
#[derive(Clone, Debug)]
pub struct Abilities {
    /// The agent's bounding set; no container gets more.
    pub capabilities: BTreeSet<String>,
    /// The node's memory in bytes.
    pub memory: i64,
    /// Maximum number of processes of a pod's container.
    pub pids: i64,
    /// True if the agent can map all user ids: it is in the initial user namespace.
    pub all_users: bool,
    /// Directories of the processors' thermal interrupts; they are masked.
    pub thermal: Vec<String>,
}

/// Inputs of a specification.
#[derive(Clone, Copy, Debug)]
pub struct Inputs<'a> {
    /// The pod.
    pub pod: &'a Pod,
    /// The container.
    pub container: &'a Container,
    /// Its image.
    pub image: &'a Image,
    /// Objects that its environment refers to.
    pub sources: &'a Sources,
    /// The node's contribution to the environment.
    pub surroundings: &'a Surroundings,
    /// Volumes and the default files.
    pub mounts: &'a [Mount],
    /// Devices of plugins and volumes; a privileged container has all of the machine's besides.
    pub devices: &'a [Device],
    /// Abilities of the node.
    pub abilities: &'a Abilities,
    /// The text of the seccomp profile on the node that [`localhost_profile`] names.
    pub seccomp: Option<&'a [u8]>,
    /// The loaded `AppArmor` profile.
    pub app_armor: Option<&'a str>,
    /// `SELinux` labels, where the kernel has `SELinux` enabled.
    pub se_linux: Option<&'a selinux::Labels>,
}

/// The container has no valid specification.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SpecError {
    /// A reference cannot be resolved.
    #[error(transparent)]
    Reference(#[from] ReferenceError),
    /// Neither the image nor the container has a command.
    #[error("no command specified")]
    NoCommand,
    /// The working directory is not absolute.
    #[error("working directory {0:?} is not absolute")]
    WorkingDirectory(String),
    /// The image declares too many volumes, or too long paths.
    #[error(
        "the image declares {0} volumes with {1} bytes of paths; {MOST_VOLUMES} with {MOST_PATHS} at most are made"
    )]
    Volumes(usize, usize),
    /// The file of a seccomp profile is invalid; the text is the decoder's.
    #[error("the seccomp profile is not valid: {0}")]
    Seccomp(String),
    /// The specification is invalid; the text is the decoder's.
    #[error("the specification is not valid: {0}")]
    Invalid(String),
}

/// Builds the specification of a container.
pub fn build(inputs: &Inputs<'_>) -> Result<Spec, SpecError> {
    let Inputs {
        pod, container, image, ..
    } = *inputs;
    let own = environment::own(pod, container, inputs.sources, inputs.surroundings)?;
    let mut variables = environment::build(pod, &image.environment, &own, inputs.surroundings)?;
    let terminal = container.tty == Some(true);
    if terminal && variables.get("TERM").is_none() {
        variables.set("TERM", "xterm")?;
    }
    let context = container.security_context.as_ref();
    let privileged = context.and_then(|context| context.privileged).unwrap_or(false);
    let capabilities = capabilities::build(
        context.and_then(|context| context.capabilities.as_ref()),
        privileged,
        &inputs.abilities.capabilities,
    );
    let mut process = json!({
        "terminal": terminal,
        "user": {"uid": 0, "gid": 0},
        "args": arguments(container, image, &own)?,
        "env": variables.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>(),
        "cwd": working_directory(container, image)?,
        "capabilities": {"bounding": capabilities, "effective": capabilities, "permitted": capabilities},
        "noNewPrivileges": context.and_then(|context| context.allow_privilege_escalation) == Some(false),
        "oomScoreAdj": resources::oom_score_adj(pod, container, inputs.abilities.memory),
    });
    if let Value::Object(process) = &mut process {
        process.insert("rlimits".to_owned(), json!([]));
        if let Some(profile) = inputs.app_armor {
            process.insert("apparmorProfile".to_owned(), json!(profile));
        }
        if let Some(label) = inputs.se_linux.and_then(|labels| labels.process.as_ref()) {
            process.insert("selinuxLabel".to_owned(), json!(label));
        }
    }
    let read_only = context
        .and_then(|context| context.read_only_root_filesystem)
        .unwrap_or(false);
    let specification = json!({
        "ociVersion": "1.0.2",
        "root": {"path": "rootfs", "readonly": read_only},
        "process": process,
        "mounts": mounts::build(inputs.mounts, privileged),
        "linux": linux(inputs, privileged, &capabilities)?,
    });
    serde_json::from_value(specification).map_err(|error| SpecError::Invalid(error.to_string()))
}

/// Returns the image's entry point and command, overridden by the container's: `command` without
/// `args` drops the image's arguments too. References see the container's `own` variables only, not
/// the image's.
fn arguments(container: &Container, image: &Image, own: &Environment) -> Result<Vec<String>, SpecError> {
    let given = |list: &Option<Vec<String>>| {
        let list = list.as_ref().filter(|list| !list.is_empty());
        list.map(|list| environment::expand_all(list, own)).transpose()
    };
    let command = given(&container.command)?;
    let arguments = given(&container.args)?.unwrap_or_else(|| {
        if command.is_some() {
            Vec::new()
        } else {
            image.command.clone()
        }
    });
    let all: Vec<String> = command
        .unwrap_or_else(|| image.entrypoint.clone())
        .into_iter()
        .chain(arguments)
        .collect();
    if all.is_empty() {
        Err(SpecError::NoCommand)
    } else {
        Ok(all)
    }
}

fn working_directory(container: &Container, image: &Image) -> Result<String, SpecError> {
    let wanted = container.working_dir.as_deref().filter(|path| !path.is_empty());
    let wanted = wanted
        .or(image.working_directory.as_deref().filter(|path| !path.is_empty()))
        .unwrap_or("/");
    if wanted.starts_with('/') {
        Ok(wanted.to_owned())
    } else {
        Err(SpecError::WorkingDirectory(wanted.to_owned()))
    }
}

fn linux(inputs: &Inputs<'_>, privileged: bool, capabilities: &BTreeSet<String>) -> Result<Value, SpecError> {
    let none = PodSpec::default();
    let limits = resources::container_limits(inputs.pod.spec.as_ref().unwrap_or(&none), inputs.container);
    let mut memory = json!({});
    if let Some(bytes) = limits.memory {
        // The runtime uses one limit for memory and swap together where the kernel accounts swap.
        memory = json!({"limit": bytes});
    }
    let mut cpu = json!({"shares": limits.cpu_shares});
    if let Some(quota) = limits.cpu_quota {
        cpu = json!({"shares": limits.cpu_shares, "quota": quota, "period": resources::PERIOD});
    }
    let mut rules = vec![json!({"allow": privileged, "access": "rwm"})];
    rules.extend(inputs.devices.iter().filter(|_| !privileged).map(Device::rule));
    let mut resources = json!({
        "devices": rules,
        "memory": memory,
        "cpu": cpu,
        "pids": {"limit": inputs.abilities.pids},
    });
    if !limits.hugepages.is_empty()
        && let Value::Object(resources) = &mut resources
    {
        let pages: Vec<Value> = limits
            .hugepages
            .iter()
            .map(|(size, bytes)| json!({"pageSize": size, "limit": bytes}))
            .collect();
        resources.insert("hugepageLimits".to_owned(), pages.into());
    }
    let mut linux = json!({"resources": resources, "rootfsPropagation": mounts::propagation(inputs.mounts)});
    let made = inputs.devices.iter().filter(|device| device.mounted.is_none());
    let nodes: Vec<Value> = made.map(Device::node).collect();
    let unmasked = inputs
        .container
        .security_context
        .as_ref()
        .and_then(|own| own.proc_mount.as_deref());
    if let Value::Object(linux) = &mut linux {
        if !nodes.is_empty() {
            linux.insert("devices".to_owned(), nodes.into());
        }
        if !privileged && unmasked != Some("Unmasked") {
            let thermal = inputs.abilities.thermal.iter().map(String::as_str);
            let masked: Vec<&str> = MASKED.iter().copied().chain(thermal).collect();
            linux.insert("maskedPaths".to_owned(), json!(masked));
            linux.insert("readonlyPaths".to_owned(), json!(READ_ONLY));
        }
        if let Some(labels) = inputs.se_linux {
            linux.insert("mountLabel".to_owned(), json!(labels.mount));
        }
        if let Some(profile) = seccomp(inputs, capabilities)?.filter(|_| !privileged) {
            linux.insert("seccomp".to_owned(), profile);
        }
        let settings = sysctls(inputs.pod.spec.as_ref().unwrap_or(&none), inputs.abilities.all_users);
        if !settings.is_empty() {
            linux.insert("sysctl".to_owned(), json!(settings));
        }
    }
    Ok(linux)
}

/// Sysctls of the pod's own namespaces: those in its spec, and in a network namespace of its own
/// unprivileged ports start at 0 and, where there are `all_users` and the pod has no user
/// namespace, any user may send echo requests.
pub fn sysctls(spec: &PodSpec, all_users: bool) -> BTreeMap<String, String> {
    let own = spec.security_context.iter();
    let own = own.flat_map(|context| context.sysctls.iter().flatten());
    let mut all: BTreeMap<String, String> = own
        .map(|sysctl| (sysctl.name.replace('/', "."), sysctl.value.clone()))
        .collect();
    if spec.host_network != Some(true) {
        let mut default = |name: &str, value: &str| {
            all.entry(name.to_owned()).or_insert_with(|| value.to_owned());
        };
        default("net.ipv4.ip_unprivileged_port_start", "0");
        if all_users && spec.host_users != Some(false) {
            default("net.ipv4.ping_group_range", "0 2147483647");
        }
    }
    all
}

/// Returns the profile that applies: the container's own takes precedence over the pod's.
fn seccomp_profile<'a>(pod: &'a Pod, container: &'a Container) -> Option<&'a SeccompProfile> {
    let own = container.security_context.as_ref();
    let pod = pod.spec.as_ref().and_then(|spec| spec.security_context.as_ref());
    own.and_then(|own| own.seccomp_profile.as_ref())
        .or_else(|| pod.and_then(|pod| pod.seccomp_profile.as_ref()))
}

/// Returns the path of a container's `Localhost` seccomp profile, relative to the node's directory
/// of profiles.
pub fn localhost_profile<'a>(pod: &'a Pod, container: &'a Container) -> Option<&'a str> {
    let profile = seccomp_profile(pod, container).filter(|profile| profile.type_ == "Localhost")?;
    profile.localhost_profile.as_deref()
}

fn seccomp(inputs: &Inputs<'_>, capabilities: &BTreeSet<String>) -> Result<Option<Value>, SpecError> {
    match seccomp_profile(inputs.pod, inputs.container).map(|profile| profile.type_.as_str()) {
        Some("RuntimeDefault") => Ok(Some(seccomp::profile(capabilities))),
        Some("Localhost") => {
            let text = inputs.seccomp.unwrap_or_default();
            let profile = serde_json::from_slice(text);
            profile.map(Some).map_err(|error| SpecError::Seccomp(error.to_string()))
        }
        Some(_) | None => Ok(None),
    }
}

const MASKED: &[&str] = &[
    "/proc/acpi",
    "/proc/asound",
    "/proc/interrupts",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/sys/devices/virtual/powercap",
    "/sys/firmware",
];

const READ_ONLY: &[&str] = &["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"];

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(mut spec: Value) -> Vec<String> {
        spec["containers"] = json!([]);
        let spec: PodSpec = serde_json::from_value(spec).unwrap();
        listed(&spec, true)
    }

    fn listed(spec: &PodSpec, all_users: bool) -> Vec<String> {
        sysctls(spec, all_users)
            .iter()
            .map(|(name, value)| format!("{name}={value}"))
            .collect()
    }

    #[test]
    fn a_plugins_device_has_a_node_and_a_rule() {
        let device = Device {
            path: "/dev/a".into(),
            block: false,
            numbers: (1, 3),
            mode: 0o666,
            owner: (0, 5),
            mounted: None,
            access: "rw".to_owned(),
        };
        assert_eq!(
            device.node(),
            json!({"path": "/dev/a", "type": "c", "major": 1, "minor": 3, "fileMode": 438, "uid": 0, "gid": 5})
        );
        let rule = json!({"allow": true, "type": "c", "major": 1, "minor": 3, "access": "rw"});
        assert_eq!(device.rule(), rule);
        let both = json!({"devices": [device.node()], "resources": {"devices": [rule]}});
        let read: oci_spec::runtime::Linux = serde_json::from_value(both).unwrap();
        assert_eq!(read.devices().as_ref().unwrap()[0].file_mode(), Some(0o666));
    }

    #[test]
    fn any_user_binds_any_port_of_the_pods_own_network() {
        let (port, ping) = (
            "net.ipv4.ip_unprivileged_port_start=0",
            "net.ipv4.ping_group_range=0 2147483647",
        );
        assert_eq!(settings(json!({})), [port, ping]);
        assert_eq!(settings(json!({"hostUsers": false})), [port]);
        assert_eq!(listed(&PodSpec::default(), false), [port]);
        assert_eq!(settings(json!({"hostNetwork": true})), [""; 0]);
        let own = json!({"sysctls": [
            {"name": "net/ipv4/ip_unprivileged_port_start", "value": "77"},
            {"name": "net.ipv4.ping_group_range", "value": "1 0"},
        ]});
        assert_eq!(
            settings(json!({"securityContext": own})),
            [
                "net.ipv4.ip_unprivileged_port_start=77",
                "net.ipv4.ping_group_range=1 0"
            ]
        );
    }
}
