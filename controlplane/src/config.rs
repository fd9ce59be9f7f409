//! Options of the control plane, and the paths of its files.

pub mod authentication;

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, FromArgMatches as _};
use controllers::Addresses;
use server::authn::pki::{self, Profile};
use server::ops::audit::file::Limits;
use server::ops::audit::policy::Policy;

use crate::clock;
use crate::config::authentication::Authentication;
use crate::ranges::pods::{InvalidPodRanges, PodRanges};
use crate::ranges::services::ServiceRanges;

/// Options of `run`.
#[derive(Debug, Clone, Args)]
pub struct Config {
    /// Directory of the cluster's state: database, certificates, audit log, and the administrator's kubeconfig
    #[arg(long, default_value = "/var/lib/skiff", env = "SKIFF_STATE_DIR")]
    pub state_dir: PathBuf,
    /// Address and port to serve HTTPS on; port 0 takes any free one
    #[arg(long, default_value = "127.0.0.1:6443")]
    pub listen: SocketAddr,
    /// Further host names and addresses that clients reach the server by; they go into its certificate
    #[arg(
        long = "advertise",
        value_name = "NAME",
        env = "SKIFF_ADVERTISE",
        value_delimiter = ','
    )]
    pub advertise: Vec<String>,
    /// Range of Services' addresses, or with a comma one of each family, the usual one first; its first address is the server's own
    #[arg(
        long,
        value_name = "CIDR",
        default_value = "10.96.0.0/12",
        env = "SKIFF_SERVICE_CIDR"
    )]
    pub service_cidr: ServiceRanges,
    /// The pods' addresses.
    #[command(flatten)]
    pub pod_ranges: PodRanges,
    /// Addresses that Services which want a load balancer get: `nodes` for those of the nodes, or ranges such as
    /// 192.0.2.0/28 or 192.0.2.10-192.0.2.20, which nodes announce on their links [default: none, as where a cloud gives them]
    #[arg(long, value_name = "ADDRESSES")]
    pub load_balancer_addresses: Option<Addresses>,
    /// Where the objects are kept: the members of an etcd, as etcd://HOST:PORT,HOST:PORT/PREFIX, which several control planes
    /// can share [default: a database in the state directory]
    #[arg(long, value_name = "URL", env = "SKIFF_STORE")]
    pub store: Option<etcd::Address>,
    /// The authority of etcd's certificates; without it etcd is asked without TLS
    #[arg(long, value_name = "FILE", env = "SKIFF_ETCD_CAFILE", requires = "store")]
    pub etcd_cafile: Option<PathBuf>,
    /// The certificate that etcd is shown
    #[arg(long, value_name = "FILE", env = "SKIFF_ETCD_CERTFILE", requires_all = ["etcd_cafile", "etcd_keyfile"])]
    pub etcd_certfile: Option<PathBuf>,
    /// The key of the certificate that etcd is shown
    #[arg(long, value_name = "FILE", env = "SKIFF_ETCD_KEYFILE", requires = "etcd_certfile")]
    pub etcd_keyfile: Option<PathBuf>,
    /// How many seconds of the past are kept for watches and paged lists
    #[arg(long, default_value_t = 300, value_parser = clap::value_parser!(u64).range(10..))]
    pub retention_seconds: u64,
    /// How many days the versions of objects are kept, for reads at a time; 0 keeps them for watches alone
    #[arg(long, env = "SKIFF_HISTORY_DAYS", default_value_t = 7, value_parser = clap::value_parser!(u64).range(..=3650))]
    pub history_days: u64,
    /// How much room they take at most, in MiB; the oldest go first
    #[arg(long, env = "SKIFF_HISTORY_MIB", default_value_t = 256, value_parser = clap::value_parser!(u64).range(1..=1_048_576))]
    pub history_mib: u64,
    /// Size at which a file of the audit log is put aside, in MiB
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u64).range(1..=4096))]
    pub audit_file_mib: u64,
    /// How many files of the audit log are kept; 0 turns it off
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(..=100))]
    pub audit_files: u32,
    /// An audit.k8s.io/v1 Policy that says what the audit log records, instead of the built-in one
    #[arg(long, value_name = "FILE")]
    pub audit_policy_file: Option<PathBuf>,
    /// Tokens of other issuers.
    #[command(flatten)]
    pub authentication: Authentication,
    /// How many seconds /readyz says no before the server stops to take requests, for balancers to notice
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u64).range(..=3600))]
    pub shutdown_delay_seconds: u64,
    /// How many seconds the server's own certificates live; they are renewed when a sixth is left
    #[arg(long, default_value_t = pki::LIFETIME.as_secs(), value_parser = clap::value_parser!(u64).range(60..=315_360_000))]
    pub certificate_seconds: u64,
    /// Start with what is left of a database that is missing, or has lost acknowledged writes;
    /// revisions go on far above
    #[arg(long, env = "SKIFF_ACCEPT_DATA_LOSS")]
    pub accept_data_loss: bool,
    /// Options of the command line, including defaults: names and values.
    #[arg(skip)]
    pub flags: Vec<(String, String)>,
    /// The API server runs alone, under its upstream name.
    #[arg(skip)]
    pub api_server: Option<Box<ApiServer>>,
}

/// Settings of an API server that runs alone, as those that `kube-apiserver` is told: no controllers run beside it.
#[derive(Debug, Clone)]
pub struct ApiServer {
    /// Files of the serving certificate and its key; by default one is issued.
    pub serving: Option<(PathBuf, PathBuf)>,
    /// Directory that an issued serving certificate is written to.
    pub certificates: Option<PathBuf>,
    /// Authorities of clients' certificates, as PEM.
    pub client_authorities: Option<String>,
    /// The private key that signs tokens, as PEM; by default one is made.
    pub signing_key: Option<String>,
    /// Further keys whose tokens are taken: public keys or certificates, as PEM.
    pub verifying_keys: Vec<String>,
    /// Issuers of tokens: the first one issues, all are taken.
    pub issuers: Vec<String>,
    /// Audiences of tokens that the server itself takes.
    pub audiences: Vec<String>,
    /// Admission plugins that are turned off.
    pub disabled_plugins: BTreeSet<String>,
    /// Requests without credentials pass.
    pub anonymous: bool,
    /// Everything is allowed.
    pub always_allow: bool,
    /// File of the audit log, its limits, and what is recorded.
    pub audit: Option<(PathBuf, Limits, Policy)>,
}

impl Config {
    /// The defaults, for an API server that runs alone; it writes no audit log of its own.
    ///
    /// # Errors
    /// For what the environment says.
    pub fn alone(state_dir: PathBuf, listen: SocketAddr) -> Result<Self, clap::Error> {
        let defaults = Self::augment_args(clap::Command::new("run")).try_get_matches_from(["run"])?;
        Ok(Self {
            state_dir,
            listen,
            audit_files: 0,
            ..Self::from_arg_matches(&defaults)?
        })
    }

    /// The private part of the state directory.
    pub fn directory(&self) -> PathBuf {
        self.state_dir.join("controlplane")
    }

    /// Directory of the certificates.
    pub fn pki(&self) -> PathBuf {
        self.directory().join("pki")
    }

    /// Directory of the audit log.
    pub fn audit(&self) -> PathBuf {
        self.directory().join("audit")
    }

    /// The database.
    pub fn database(&self) -> PathBuf {
        self.directory().join("skiff.db")
    }

    /// The administrator's kubeconfig.
    pub fn admin_kubeconfig(&self) -> PathBuf {
        self.state_dir.join("admin.kubeconfig")
    }

    /// The server's certificate: every name that a client may reach it by.
    pub fn serving_profile(&self) -> Profile {
        let fixed = [
            "localhost",
            "kubernetes",
            "kubernetes.default",
            "kubernetes.default.svc",
            "kubernetes.default.svc.cluster.local",
        ];
        let mut names: Vec<String> = fixed.into_iter().map(str::to_owned).collect();
        let mut addresses = vec![IpAddr::from([127, 0, 0, 1]), IpAddr::from([0_u16, 0, 0, 0, 0, 0, 0, 1])];
        addresses.extend((!self.listen.ip().is_unspecified()).then(|| self.listen.ip()));
        addresses.extend(self.service_cidr.first());
        names.extend(addresses.iter().map(IpAddr::to_string));
        names.extend(self.advertise.iter().filter(|name| !name.is_empty()).cloned());
        names.sort_unstable();
        names.dedup();
        Profile::Server {
            common_name: "kube-apiserver".to_owned(),
            organizations: Vec::new(),
            names,
        }
    }

    /// Address at which pods and other remote clients reach a server that listens on `listening`:
    /// the first advertised address, one of the family of the server's Service if there is one, when
    /// it listens on all of them.
    pub fn reachable(&self, listening: SocketAddr) -> SocketAddr {
        let advertised = self.advertise.iter().filter_map(|name| name.parse::<IpAddr>().ok());
        match advertised
            .min_by_key(|address| address.is_ipv6() != self.service_cidr.is_v6())
            .filter(|_| listening.ip().is_unspecified())
        {
            Some(address) => SocketAddr::new(address, listening.port()),
            None => listening,
        }
    }

    /// The URL by which nodes that join reach a server that listens there: by the first name or address that is advertised.
    pub fn public_url(&self, listening: SocketAddr) -> String {
        let advertised = self.advertise.iter().find(|name| !name.is_empty());
        match advertised.map(|name| (name, name.parse::<IpAddr>())) {
            Some((name, Err(_))) => format!("https://{name}:{}", listening.port()),
            Some((_, Ok(address))) if listening.ip().is_unspecified() => {
                format!("https://{}", SocketAddr::new(address, listening.port()))
            }
            Some(_) | None => url(listening),
        }
    }

    /// Identities that etcd and its clients present to each other.
    pub fn etcd_identity(&self) -> etcd::Identity {
        etcd::Identity {
            authority: self.etcd_cafile.clone(),
            certificate: self.etcd_certfile.clone().zip(self.etcd_keyfile.clone()),
        }
    }

    /// Options for opening the store.
    pub fn store_options(&self) -> store::Options {
        store::Options {
            retention: Duration::from_secs(self.retention_seconds),
            kept: (self.history_days > 0).then(|| store::Kept {
                age: Duration::from_hours(self.history_days.saturating_mul(24)),
                bytes: self.history_mib << 20,
            }),
            clock: || u64::try_from(clock::now().as_millisecond()).unwrap_or(0),
            index: server::storage::index,
            class: server::storage::class,
            // The key is created after the database.
            existed: self.pki().join("ca.key").exists(),
            accept_loss: self.accept_data_loss,
            ..store::Options::default()
        }
    }

    /// Lifetime of the server's own certificates.
    pub fn certificate_lifetime(&self) -> Duration {
        Duration::from_secs(self.certificate_seconds)
    }

    /// Limits of the audit log; `None` when it is off.
    pub fn audit_limits(&self) -> Option<Limits> {
        (self.audit_files > 0).then_some(Limits {
            bytes: self.audit_file_mib << 20,
            files: self.audit_files,
            age: None,
        })
    }

    /// Options of the controllers.
    pub fn controllers(&self) -> Result<controllers::Options, InvalidPodRanges> {
        Ok(controllers::Options {
            pod_ranges: self.pod_ranges.each()?,
            load_balancer_addresses: self.load_balancer_addresses.clone(),
            ..controllers::Options::default()
        })
    }
}

/// URL at which clients on this machine reach a server that listens on `listening`.
pub fn url(listening: SocketAddr) -> String {
    let reachable = match listening.ip() {
        IpAddr::V4(address) if address.is_unspecified() => IpAddr::from([127, 0, 0, 1]),
        IpAddr::V6(address) if address.is_unspecified() => IpAddr::from([0_u16, 0, 0, 0, 0, 0, 0, 1]),
        address @ (IpAddr::V4(_) | IpAddr::V6(_)) => address,
    };
    format!("https://{}", SocketAddr::new(reachable, listening.port()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn others_are_told_of_an_address_that_they_reach() {
        #[derive(clap::Parser)]
        struct Program {
            #[command(flatten)]
            config: Config,
        }
        for (listening, advertised, service, joining) in [
            ("0.0.0.0:6443", "10.0.0.1", "10.0.0.1:6443", "https://10.0.0.1:6443"),
            (
                "0.0.0.0:6443",
                "k8s.example.com,10.0.0.1",
                "10.0.0.1:6443",
                "https://k8s.example.com:6443",
            ),
            ("[::]:7", "fd30::1,10.0.0.1", "10.0.0.1:7", "https://[fd30::1]:7"),
            ("[::]:7", "fd30::1", "[fd30::1]:7", "https://[fd30::1]:7"),
            ("10.0.0.2:6443", "10.0.0.1", "10.0.0.2:6443", "https://10.0.0.2:6443"),
            (
                "10.0.0.2:6443",
                "k8s.example.com",
                "10.0.0.2:6443",
                "https://k8s.example.com:6443",
            ),
            ("0.0.0.0:6443", "", "0.0.0.0:6443", "https://127.0.0.1:6443"),
        ] {
            let words = ["program", "--listen", listening, "--advertise", advertised];
            let config = <Program as clap::Parser>::parse_from(words).config;
            let address = listening.parse().unwrap();
            let told = (config.reachable(address).to_string(), config.public_url(address));
            assert_eq!(
                told,
                (service.to_owned(), joining.to_owned()),
                "{listening} {advertised}"
            );
        }
    }

    #[test]
    fn kubeconfigs_name_an_address_that_can_be_reached() {
        assert_eq!(url("0.0.0.0:6443".parse().unwrap()), "https://127.0.0.1:6443");
        assert_eq!(url("10.0.0.1:6443".parse().unwrap()), "https://10.0.0.1:6443");
        assert_eq!(url("[::]:1".parse().unwrap()), "https://[::1]:1");
    }
}
