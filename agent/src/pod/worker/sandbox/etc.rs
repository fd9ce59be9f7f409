//! Files in `/etc` that all containers of a pod share.

use std::io::{Read as _, Write as _};
use std::net::IpAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use agent_plan::container::files;
use agent_plan::pod::pods;
use k8s_openapi::api::core::v1::{Pod, PodSpec};

use crate::client::events::Kind;
use crate::context::Context;

/// Files that [`write()`] writes.
pub(in crate::pod::worker) const NAMES: [&str; 3] = ["hosts", "hostname", "resolv.conf"];

/// Creates them empty, so that containers can be created that mount them.
pub(in crate::pod::worker) fn place(directory: &Path) -> std::io::Result<()> {
    let etc = directory.join("etc");
    NAMES.iter().try_for_each(|name| {
        let file = std::fs::File::options().create(true).append(true).open(etc.join(name));
        file.map(drop)
    })
}

/// Writes `hosts`, `resolv.conf` and `hostname` in place.
pub(in crate::pod::worker) fn write(
    context: &Context,
    pod: &Pod,
    spec: &PodSpec,
    directory: &Path,
    addresses: &[IpAddr],
) -> std::io::Result<()> {
    let etc = directory.join("etc");
    let hostname = pods::hostname(pod);
    let aliases = spec.host_aliases.as_deref().unwrap_or(&[]);
    let hosts = if pods::host_network(spec) {
        host_network_hosts(spec)
    } else {
        let domain = pods::domain(pod, &context.config.dns.domain);
        let addresses: Vec<String> = addresses.iter().map(ToString::to_string).collect();
        files::hosts(&addresses, &hostname, domain.as_deref(), aliases)
    };
    put(&etc.join("hosts"), &hosts)?;
    let mut cluster = context.names.cluster(&context.config.dns);
    if context.config.dns.servers.is_empty() && !addresses.is_empty() && addresses.iter().all(IpAddr::is_ipv6) {
        // Without any of its family the pod asks the machine's servers.
        cluster.servers.retain(|server| server.contains(':'));
    }
    let files::Resolution { text, omitted } = files::resolv_conf(
        spec.dns_policy.as_deref().unwrap_or("ClusterFirst"),
        spec.dns_config.as_ref(),
        pods::namespace(pod),
        pods::host_network(spec),
        &cluster,
        &crate::networking::resolver::text(&context.config)?,
    );
    put(&etc.join("resolv.conf"), &text)?;
    for told in omitted {
        context.recorder.pod(pod, None, Kind::Warning, "DNSConfigForming", told);
    }
    let told = files::told_hostname(pod, &context.config.dns.domain, &crate::node::machine::hostname());
    put(&etc.join("hostname"), &(told + "\n"))
}

/// Brings `hosts` of a pod on the host network up to date with the node's, for a container that is
/// restarted.
pub(in crate::pod::worker) fn renew_hosts(pod: &Pod, directory: &Path) -> std::io::Result<()> {
    let Some(spec) = pod.spec.as_ref().filter(|spec| pods::host_network(spec)) else {
        return Ok(());
    };
    let (path, hosts) = (directory.join("etc").join("hosts"), host_network_hosts(spec));
    // No more of it is read: containers may have written any amount.
    let (mut now, most) = (Vec::new(), u64::try_from(hosts.len()).unwrap_or(u64::MAX));
    let file = std::fs::File::open(&path);
    let read = file.and_then(|file| file.take(most.saturating_add(1)).read_to_end(&mut now));
    if read.is_ok() && now == hosts.as_bytes() {
        return Ok(());
    }
    put(&path, &hosts)
}

fn host_network_hosts(spec: &PodSpec) -> String {
    let node = std::fs::read_to_string("/etc/hosts").unwrap_or_default();
    files::host_network_hosts(&node, spec.host_aliases.as_deref().unwrap_or(&[]))
}

/// Writes a file that is readable by users other than root, whatever the agent's umask is.
fn put(path: &Path, text: &str) -> std::io::Result<()> {
    let mut file = std::fs::File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(path)?;
    // Only if there is something: ext4 writes a truncated file to the disk as it is closed
    // (`auto_da_alloc`).
    if file.metadata()?.len() > 0 {
        file.set_len(0)?;
    }
    file.write_all(text.as_bytes())?;
    file.set_permissions(std::fs::Permissions::from_mode(0o644))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_restarted_container_on_the_host_network_gets_the_nodes_current_hosts() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::create_dir(directory.path().join("etc")).unwrap();
        let renewed = |host_network: bool| {
            let hosts = directory.path().join("etc/hosts");
            std::fs::write(&hosts, "before").unwrap();
            let spec = PodSpec {
                host_network: Some(host_network),
                ..PodSpec::default()
            };
            let pod = Pod {
                spec: Some(spec),
                ..Pod::default()
            };
            renew_hosts(&pod, directory.path()).unwrap();
            std::fs::read_to_string(&hosts).unwrap()
        };
        assert!(renewed(true).starts_with("# Kubernetes-managed hosts file (host network).\n"));
        assert_eq!(renewed(false), "before");
    }
}
