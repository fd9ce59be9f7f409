//! Files of every container: `/etc/hosts` and `/etc/resolv.conf`.

mod resolver;

use k8s_openapi::api::core::v1::{HostAlias, Pod};

use crate::pod::pods;
pub use resolver::{ClusterDns, Resolution, asks_others, resolv_conf, servers};

/// The longest hostname that the kernel accepts.
const LONGEST_HOSTNAME: usize = 64;

/// The hostname is too long for the kernel.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "failed to construct FQDN from pod hostname and cluster domain, FQDN {name} is too long ({LONGEST_HOSTNAME} is the max, {} \
     characters requested)",
    name.len()
)]
pub struct HostnameTooLong {
    /// The full name.
    name: String,
}

/// Hostname of a pod in the kernel: the short one, or the FQDN where `setHostnameAsFQDN` is set.
pub fn kernel_hostname(pod: &Pod, cluster: &str) -> Result<String, HostnameTooLong> {
    let short = pods::hostname(pod);
    let full = pod.spec.as_ref().and_then(|spec| spec.set_hostname_as_fqdn) == Some(true);
    match pods::domain(pod, cluster).filter(|_| full) {
        None => Ok(short),
        Some(domain) => {
            let name = format!("{short}.{domain}");
            if name.len() > LONGEST_HOSTNAME {
                Err(HostnameTooLong { name })
            } else {
                Ok(name)
            }
        }
    }
}

/// Hostname that a pod's programs see: the kernel's, which is the node's for pods on the host
/// network.
pub fn told_hostname(pod: &Pod, cluster: &str, node: &str) -> String {
    if pod.spec.as_ref().is_some_and(pods::host_network) {
        return node.to_owned();
    }
    kernel_hostname(pod, cluster).unwrap_or_else(|_too_long| pods::hostname(pod))
}

/// Returns `/etc/hosts` of a pod with its own network namespace.
pub fn hosts(addresses: &[String], hostname: &str, domain: Option<&str>, aliases: &[HostAlias]) -> String {
    let mut text = String::from(
        "# Kubernetes-managed hosts file.\n127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n\
         fe00::0\tip6-localnet\nfe00::0\tip6-mcastprefix\nfe00::1\tip6-allnodes\nfe00::2\tip6-allrouters\n",
    );
    for address in addresses {
        match domain {
            Some(domain) => text.extend([format!("{address}\t{hostname}.{domain}\t{hostname}\n")]),
            None => text.extend([format!("{address}\t{hostname}\n")]),
        }
    }
    text + &aliases_text(aliases)
}

/// Returns `/etc/hosts` of a pod on the host network: the node's own, marked, with the pod's
/// aliases.
pub fn host_network_hosts(node: &str, aliases: &[HostAlias]) -> String {
    format!(
        "# Kubernetes-managed hosts file (host network).\n{node}{}",
        aliases_text(aliases)
    )
}

fn aliases_text(aliases: &[HostAlias]) -> String {
    if aliases.is_empty() {
        return String::new();
    }
    let mut text = String::from("\n# Entries added by HostAliases.\n");
    for alias in aliases {
        text.extend([format!(
            "{}\t{}\n",
            alias.ip,
            alias.hostnames.iter().flatten().cloned().collect::<Vec<_>>().join("\t")
        )]);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;

    #[test]
    fn a_full_host_name_must_fit_the_kernel() {
        let named = |subdomain: &str, full: bool| -> Pod {
            let spec = serde_json::json!({"containers": [], "subdomain": subdomain, "setHostnameAsFQDN": full});
            serde_json::from_value(
                serde_json::json!({"metadata": {"name": "web-0", "namespace": "shop"}, "spec": spec}),
            )
            .unwrap()
        };
        let name = |subdomain: &str, full: bool| kernel_hostname(&named(subdomain, full), "cluster.local");
        assert_eq!(name("db", false).unwrap(), "web-0");
        assert_eq!(name("", true).unwrap(), "web-0");
        assert_eq!(name("db", true).unwrap(), "web-0.db.shop.svc.cluster.local");
        let error = name(&"x".repeat(40), true).unwrap_err().to_string();
        assert!(
            error.ends_with("is too long (64 is the max, 69 characters requested)"),
            "{error}"
        );
    }

    #[test]
    fn programs_are_told_what_the_kernel_says() {
        let told = |spec: serde_json::Value| {
            let metadata = serde_json::json!({"name": "web-0", "namespace": "shop"});
            let pod = serde_json::json!({"metadata": metadata, "spec": spec});
            told_hostname(&serde_json::from_value(pod).unwrap(), "cluster.local", "node-7")
        };
        let of = |network: bool, full: bool| {
            told(serde_json::json!({
                "containers": [], "subdomain": "db", "hostNetwork": network, "setHostnameAsFQDN": full,
            }))
        };
        assert_eq!(of(false, false), "web-0");
        assert_eq!(of(false, true), "web-0.db.shop.svc.cluster.local");
        assert_eq!(of(true, false), "node-7");
        assert_eq!(of(true, true), "node-7");
        let longest = told(serde_json::json!({"containers": [], "hostnameOverride": "x".repeat(64)}));
        assert_eq!(longest, "x".repeat(63));
    }

    #[test]
    fn hosts_name_the_pod() {
        expect![[r"
            # Kubernetes-managed hosts file.
            127.0.0.1	localhost
            ::1	localhost ip6-localhost ip6-loopback
            fe00::0	ip6-localnet
            fe00::0	ip6-mcastprefix
            fe00::1	ip6-allnodes
            fe00::2	ip6-allrouters
            10.0.0.7	web-0
            fd00::7	web-0

            # Entries added by HostAliases.
            1.2.3.4	a	b
        "]]
        .assert_eq(&hosts(
            &["10.0.0.7".to_owned(), "fd00::7".to_owned()],
            "web-0",
            None,
            &[HostAlias {
                ip: "1.2.3.4".into(),
                hostnames: Some(vec!["a".into(), "b".into()]),
            }],
        ));
    }
}
