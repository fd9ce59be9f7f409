//! `kube-apiserver`: upstream's flags, as far as they mean something here.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use clap::{CommandFactory as _, Parser};
use server::ops::audit::file::Limits;
use server::ops::audit::policy::Policy;
use tracing::warn;

use super::etcd;
use crate::config::authentication::Authentication;
use crate::config::{ApiServer, Config};

/// Admission plugins of upstream that can be turned off.
const PLUGINS: [&str; 20] = [
    "CertificateApproval",
    "DefaultIngressClass",
    "DefaultStorageClass",
    "DefaultTolerationSeconds",
    "LimitRanger",
    "MutatingAdmissionPolicy",
    "MutatingAdmissionWebhook",
    "NamespaceLifecycle",
    "PersistentVolumeClaimResize",
    "PodResizeValidator",
    "PodSecurity",
    "PodTopologyLabels",
    "Priority",
    "ResourceQuota",
    "RuntimeClass",
    "ServiceAccount",
    "StorageObjectInUseProtection",
    "TaintNodesByCondition",
    "ValidatingAdmissionPolicy",
    "ValidatingAdmissionWebhook",
];

/// Its further plugins: those that cannot be turned off here, and those that are not there
/// (`pkg/kubeapiserver/options/plugins.go`).
const FIXED: [&str; 21] = [
    "AlwaysAdmit",
    "AlwaysDeny",
    "AlwaysPullImages",
    "CertificateSigning",
    "CertificateSubjectRestriction",
    "ClusterTrustBundleAttest",
    "DenyServiceExternalIPs",
    "EventRateLimit",
    "ExtendedResourceToleration",
    "ImagePolicyWebhook",
    "JobValidation",
    "LimitPodHardAntiAffinityTopology",
    "NamespaceAutoProvision",
    "NamespaceExists",
    "NodeDeclaredFeatureValidator",
    "NodeRestriction",
    "OwnerReferencesPermissionEnforcement",
    "PodGroupProtection",
    "PodGroupWorkloadExists",
    "PodNodeSelector",
    "PodTolerationRestriction",
];

/// The Kubernetes API server alone: no controllers, no scheduler, no nodes. Flags of upstream's that are not named here are
/// accepted and do nothing; the log names them.
#[derive(Debug, Parser)]
#[command(name = "kube-apiserver", version, args_override_self = true)]
struct Flags {
    /// List of etcd servers to connect with (scheme://ip:port), comma separated: those that `skiff test-assets` brings
    #[arg(long, value_delimiter = ',', required = true)]
    etcd_servers: Vec<String>,
    /// The port on which to serve HTTPS with authentication and authorization
    #[arg(long, default_value_t = 6443)]
    secure_port: u16,
    /// The IP address on which to listen for the --secure-port port
    #[arg(long, default_value = "0.0.0.0")]
    bind_address: IpAddr,
    /// The IP address on which to advertise the apiserver to members of the cluster
    #[arg(long)]
    advertise_address: Option<IpAddr>,
    /// A CIDR notation IP range from which to assign service cluster IPs
    #[arg(long, value_delimiter = ',', default_value = "10.0.0.0/24")]
    service_cluster_ip_range: Vec<String>,
    /// The directory where the TLS certs are located: apiserver.crt and apiserver.key, which are made where they are missing
    #[arg(long, default_value = "/var/run/kubernetes")]
    cert_dir: PathBuf,
    /// File containing the x509 Certificate for HTTPS, instead of the one in --cert-dir
    #[arg(long, requires = "tls_private_key_file")]
    tls_cert_file: Option<PathBuf>,
    /// File containing the x509 private key matching --tls-cert-file
    #[arg(long, requires = "tls_cert_file")]
    tls_private_key_file: Option<PathBuf>,
    /// Authorities of client certificates: their common name is the user, their organizations are the groups
    #[arg(long)]
    client_ca_file: Option<PathBuf>,
    /// File with public keys (ECDSA on P-256) or certificates that service account tokens are verified by; may be repeated
    #[arg(long)]
    service_account_key_file: Vec<PathBuf>,
    /// File with the private key (ECDSA on P-256) that service account tokens are signed by
    #[arg(long)]
    service_account_signing_key_file: Option<PathBuf>,
    /// Identifier of the service account token issuer; may be repeated: the first one issues, all are taken
    #[arg(long, default_value = server::authn::tokens::ISSUER)]
    service_account_issuer: Vec<String>,
    /// Audiences of tokens that the API takes [default: the first issuer]
    #[arg(long, value_delimiter = ',')]
    api_audiences: Vec<String>,
    /// RBAC and Node, which are one here, or `AlwaysAllow`
    #[arg(long, value_delimiter = ',', default_value = "AlwaysAllow")]
    authorization_mode: Vec<String>,
    /// Whether requests without credentials are those of system:anonymous
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", default_value = "true")]
    anonymous_auth: bool,
    /// Tokens of other issuers.
    #[command(flatten)]
    authentication: Authentication,
    /// Admission plugins that are on, which are those that are on by default
    #[arg(long, value_delimiter = ',')]
    enable_admission_plugins: Vec<String>,
    /// Admission plugins that should be off although they are on by default
    #[arg(long, value_delimiter = ',')]
    disable_admission_plugins: Vec<String>,
    /// Accepted: privileged containers are always allowed
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    allow_privileged: Option<bool>,
    /// File that requests are recorded in, as --audit-policy-file says; `-` means standard output
    #[arg(long, default_value = "", hide_default_value = true)]
    audit_log_path: OsString,
    /// File with an audit.k8s.io/v1 Policy; without it nothing is recorded
    #[arg(long, default_value = "", hide_default_value = true)]
    audit_policy_file: OsString,
    /// The maximum size in megabytes of the audit log file before it gets rotated; 0 disables rotation
    #[arg(long, default_value_t = 100)]
    audit_log_maxsize: u32,
    /// The maximum number of old audit log files to retain; 0 means any number
    #[arg(long, default_value_t = 100)]
    audit_log_maxbackup: u32,
    /// The maximum number of days to retain old audit log files; 0 means forever
    #[arg(long, default_value_t = 366)]
    audit_log_maxage: u32,
    /// Number for the log level verbosity
    #[arg(short, long, default_value_t = 0)]
    v: u32,
}

/// A command line that was read.
#[derive(Debug)]
pub struct Started {
    /// The log's directives.
    pub log: &'static str,
    flags: Flags,
    given: Vec<(String, String)>,
    ignored: Vec<String>,
}

/// Parses a command line; exits for `--help` and errors.
pub fn parse(words: impl Iterator<Item = OsString>) -> Started {
    let (kept, ignored) = sort(words.map(|word| word.to_string_lossy().into_owned()));
    let given = kept.iter().filter_map(|word| word.strip_prefix("--")?.split_once('='));
    let given = given.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
    let flags = Flags::parse_from(std::iter::once("kube-apiserver".to_owned()).chain(kept));
    Started {
        log: if flags.v < 4 { "info" } else { "debug" },
        flags,
        given,
        ignored,
    }
}

/// Separates known flags from unknown ones. A value in a separate word belongs to its flag, and an
/// underscore in a flag's name equals a dash (`WordSepNormalizeFunc` in
/// `staging/src/k8s.io/component-base/cli/flag/flags.go`).
fn sort(words: impl Iterator<Item = String>) -> (Vec<String>, Vec<String>) {
    let command = Flags::command();
    let known: BTreeSet<&str> = command.get_arguments().filter_map(clap::Arg::get_long).collect();
    let (mut kept, mut ignored) = (Vec::new(), Vec::new());
    let mut keeps = true;
    for word in words {
        let Some(flag) = word.strip_prefix("--") else {
            keeps |= word.starts_with('-');
            if keeps {
                kept.push(word);
            }
            continue;
        };
        let (name, value) = flag.split_at(flag.find('=').unwrap_or(flag.len()));
        let name = name.replace('_', "-");
        keeps = known.contains(name.as_str()) || matches!(name.as_str(), "help" | "version");
        if keeps {
            kept.push(format!("--{name}{value}"));
        } else {
            ignored.push(name);
        }
    }
    (kept, ignored)
}

impl Started {
    /// The configuration of the control plane.
    ///
    /// # Errors
    /// When a file cannot be read, or for what no API server could be.
    pub fn config(self) -> anyhow::Result<Config> {
        let Self {
            flags, given, ignored, ..
        } = self;
        for name in &ignored {
            warn!("--{name} does nothing here");
        }
        if flags.allow_privileged == Some(false) {
            warn!("--allow-privileged=false does nothing here: privileged containers are allowed");
        }
        let state_dir = etcd::data_dir(&flags.etcd_servers)?;
        let range = flags.service_cluster_ip_range.join(",");
        let mut config = Config::alone(state_dir, SocketAddr::new(flags.bind_address, flags.secure_port))?;
        config.service_cidr = range
            .parse()
            .with_context(|| format!("--service-cluster-ip-range={range}"))?;
        config.advertise = flags.advertise_address.iter().map(IpAddr::to_string).collect();
        config.flags = given;
        config.authentication = flags.authentication.clone();
        config.api_server = Some(Box::new(flags.api_server()?));
        Ok(config)
    }
}

impl Flags {
    fn api_server(mut self) -> anyhow::Result<ApiServer> {
        let read = |path: &PathBuf| std::fs::read_to_string(path).with_context(|| format!("read {}", path.display()));
        let always_allow = self.always_allow()?;
        if always_allow && self.anonymous_auth {
            // Follows `ApplyAuthorization` in pkg/kubeapiserver/options/authentication.go.
            warn!("AnonymousAuth is not allowed with the AlwaysAllow authorizer. Resetting AnonymousAuth to false");
        }
        if self.api_audiences.is_empty() {
            self.api_audiences.extend(self.service_account_issuer.first().cloned());
        }
        let named = self.tls_cert_file.take().zip(self.tls_private_key_file.take());
        let usual = (self.cert_dir.join("apiserver.crt"), self.cert_dir.join("apiserver.key"));
        let serving = named.or_else(|| (usual.0.exists() && usual.1.exists()).then_some(usual));
        if serving.is_none() {
            server::authn::pki::private_directory(&self.cert_dir)?;
        }
        Ok(ApiServer {
            audit: self.audit()?,
            certificates: serving.is_none().then(|| self.cert_dir.clone()),
            serving,
            client_authorities: self.client_ca_file.as_ref().map(read).transpose()?,
            signing_key: self.service_account_signing_key_file.as_ref().map(read).transpose()?,
            verifying_keys: self
                .service_account_key_file
                .iter()
                .map(read)
                .collect::<Result<_, _>>()?,
            disabled_plugins: self.disabled_plugins()?,
            issuers: self.service_account_issuer,
            audiences: self.api_audiences,
            anonymous: self.anonymous_auth && !always_allow,
            always_allow,
        })
    }

    /// Follows `ApplyTo` and `getWriter` in `staging/src/k8s.io/apiserver/pkg/server/options/audit.go`.
    fn audit(&self) -> anyhow::Result<Option<(PathBuf, Limits, Policy)>> {
        let named = |flag: &OsString| (!flag.is_empty()).then(|| PathBuf::from(flag));
        let policy = named(&self.audit_policy_file).as_deref().map(Policy::load).transpose();
        let policy =
            policy.with_context(|| format!("loading audit policy file {}", self.audit_policy_file.display()))?;
        let Some(path) = named(&self.audit_log_path) else {
            return Ok(None);
        };
        if policy.is_none() {
            warn!("No audit policy file provided, no events will be recorded for log backend");
        }
        let unless_0 = |value: u32| (value > 0).then_some(value);
        let limits = Limits {
            bytes: unless_0(self.audit_log_maxsize).map_or(u64::MAX, |size| u64::from(size) << 20),
            files: unless_0(self.audit_log_maxbackup).map_or(u32::MAX, |count| count.saturating_add(1)),
            age: unless_0(self.audit_log_maxage).map(|days| Duration::from_hours(24 * u64::from(days))),
        };
        Ok(Some((path, limits, policy.unwrap_or_default())))
    }

    fn always_allow(&self) -> anyhow::Result<bool> {
        for mode in &self.authorization_mode {
            match mode.as_str() {
                "RBAC" | "Node" | "AlwaysAllow" => {}
                "ABAC" | "AlwaysDeny" | "Webhook" => bail!("authorization mode {mode} is not supported"),
                other => bail!("authorization-mode {other:?} is not a valid mode"),
            }
        }
        Ok(self.authorization_mode.iter().any(|mode| mode == "AlwaysAllow"))
    }

    /// Checks the names of plugins as `Validate` in `staging/src/k8s.io/apiserver/pkg/server/options/admission.go`.
    fn disabled_plugins(&self) -> anyhow::Result<BTreeSet<String>> {
        for name in &self.enable_admission_plugins {
            let name = name.as_str();
            ensure!(is_plugin(name), "enable-admission-plugins plugin {name:?} is unknown");
            if FIXED.contains(&name) && !matches!(name, "NodeRestriction" | "NamespaceExists") {
                warn!("the admission plugin {name} cannot be turned on here");
            }
        }
        for name in &self.disable_admission_plugins {
            let name = name.as_str();
            ensure!(is_plugin(name), "disable-admission-plugins plugin {name:?} is unknown");
            let both = self.enable_admission_plugins.iter().any(|enabled| enabled == name);
            ensure!(
                !both,
                "[{name}] in enable-admission-plugins and disable-admission-plugins overlapped"
            );
            if matches!(
                name,
                "NodeRestriction" | "CertificateSigning" | "CertificateSubjectRestriction"
            ) {
                warn!("the admission plugin {name} cannot be turned off here");
            }
        }
        let mut disabled: BTreeSet<String> = self.disable_admission_plugins.iter().cloned().collect();
        disabled.retain(|name| PLUGINS.contains(&name.as_str()));
        Ok(disabled)
    }
}

fn is_plugin(name: &str) -> bool {
    PLUGINS.contains(&name) || FIXED.contains(&name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_that_are_not_known_take_their_values_along() {
        let words = "--feature-gates A=true --secure_port=7 -v 4 --event-ttl=1h --etcd-servers http://a:1 --profiling";
        let (kept, ignored) = sort(words.split(' ').map(str::to_owned));
        assert_eq!(kept, ["--secure-port=7", "-v", "4", "--etcd-servers", "http://a:1"]);
        assert_eq!(ignored, ["feature-gates", "event-ttl", "profiling"]);
    }

    #[test]
    fn the_audit_log_has_upstreams_bounds() {
        for (words, expected) in [
            ("", None),
            ("--audit-log-path= --audit-policy-file=", None),
            ("--audit-log-path=-", Some((100 << 20, 101, Some(366)))),
            (
                "--audit-log-path=a --audit-log-maxsize=1 --audit-log-maxbackup=2 --audit-log-maxage=3",
                Some((1 << 20, 3, Some(3))),
            ),
            (
                "--audit-log-path=a --audit-log-maxsize=0 --audit-log-maxbackup=0 --audit-log-maxage=0",
                Some((u64::MAX, u32::MAX, None)),
            ),
        ] {
            let words = ["kube-apiserver", "--etcd-servers=a"]
                .into_iter()
                .chain(words.split_whitespace());
            let audit = Flags::parse_from(words).audit().unwrap();
            let days = |age: Duration| age.as_secs() / 86_400;
            let bounds = audit.map(|(_, limits, _)| (limits.bytes, limits.files, limits.age.map(days)));
            assert_eq!(bounds, expected);
        }
        let missing = ["kube-apiserver", "--etcd-servers=a", "--audit-policy-file=/missing"];
        let refused = Flags::parse_from(missing).audit().unwrap_err();
        assert!(format!("{refused:#}").starts_with("loading audit policy file /missing: read the policy: "));
    }
}
