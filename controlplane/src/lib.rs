//! The control plane in one process: store → server → controllers, supervised.
//!
//! [`run`] is the table of contents. Everything else here is what a process needs around it: its configuration, its clock,
//! its certificates' owner and its word to the service manager.

pub mod backup;
pub mod clock;
pub mod config;
pub mod credentials;
pub mod envtest;
mod leader;
pub mod moving;
pub mod ranges;
pub mod renewal;
pub mod sql;

use std::convert::Infallible;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use common::task::JoinSet;
use etcd::Etcd;
use server::authn::pki::{self, Pki, PkiError};
use server::authn::tokens::SigningKey;
use server::ops::audit::Sink;
use server::ops::audit::file::FileSink;
use server::ops::audit::policy::{Policy, PolicyError};
use server::transport::tls;
use server::{Options, Server};
use store::{Lock, Measures, Store};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tracing::{error, info};

use crate::config::authentication::AuthenticationError;
use crate::config::{ApiServer, Config};
use crate::ranges::pods::InvalidPodRanges;
use crate::renewal::{Certificates, RenewalError};

/// Time that tasks have to end after they were told to.
const GRACE: Duration = Duration::from_secs(10);

/// Reason for which the control plane did not start, or stopped.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The pods' ranges cannot be those of a cluster.
    #[error("divide the pods' addresses among nodes")]
    PodRanges(#[from] InvalidPodRanges),
    /// The certificates cannot be made, read or used.
    #[error("set up certificates")]
    Certificates(#[from] RenewalError),
    /// The database cannot be opened.
    #[error("open the store")]
    Open(#[from] store::OpenError),
    /// The ledger in etcd cannot be opened.
    #[error("open the store")]
    Etcd(#[from] etcd::OpenError),
    /// The cluster in etcd was signed by another control plane's keys.
    #[error(
        "etcd at {address} holds a cluster whose keys are not in {}: copy that directory from another control plane of it",
        pki.display()
    )]
    Keys {
        /// Members and prefix.
        address: etcd::Address,
        /// Directory in which the keys are expected.
        pki: PathBuf,
    },
    /// The audit log cannot be opened.
    #[error("open the audit log")]
    Audit(#[source] io::Error),
    /// The audit policy cannot be used.
    #[error("load the audit policy")]
    AuditPolicy(#[from] PolicyError),
    /// Tokens of other issuers cannot be authenticated as configured.
    #[error("set up authentication")]
    Authentication(#[from] AuthenticationError),
    /// The address cannot be listened on.
    #[error("listen on {address}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// Cause of the failure.
        #[source]
        source: io::Error,
    },
    /// The cluster's first objects cannot be made.
    #[error("make the cluster's first objects")]
    Bootstrap(#[source] server::BootstrapError),
    /// The controllers ended.
    #[error("run the controllers")]
    Controllers(#[source] controllers::Error),
    /// A task panicked: a bug.
    #[error("a task failed")]
    Task(#[source] tokio::task::JoinError),
    /// The server ended unexpectedly: a bug.
    #[error("the server ended")]
    Ended,
}

/// Runs the control plane until `cancel`: then it returns `Ok` when all that it started has ended.
///
/// The first task that fails stops the others and is the error.
pub async fn run(config: Config, cancel: CancellationToken) -> Result<(), Error> {
    let controllers = config.controllers()?;
    pki::private_directory(&config.directory()).map_err(RenewalError::Make)?;
    // The store's lock comes first: it keeps a second process from touching files of a running one.
    let (store, _lock) = open_store(&config).await?;
    let now = clock::now();
    let certificates = Certificates::open(&config, now)?;

    let listener = listen(config.listen).await?;
    let local = listener.local_addr().map_err(|source| Error::Listen {
        address: config.listen,
        source,
    })?;
    let mut address = config.listen;
    address.set_port(local.port());
    let authority = Arc::clone(certificates.authority());
    let kubeconfig = config.admin_kubeconfig();
    authority
        .admin_kubeconfig(&kubeconfig, &config::url(address), now)
        .map_err(RenewalError::Make)?;

    let audit = open_audit(&config)?;
    let mut options = Options::new(Arc::new(clock::now));
    options.audit = audit.clone().map(|sink| sink as Arc<dyn Sink>);
    options.reverse = certificates.nodes().reverse();
    options.agents = Some(certificates.nodes());
    let key = Arc::new(token_key(&config, &authority).map_err(RenewalError::Make)?);
    let names = authority.serving_names().map_err(RenewalError::Make)?;
    let credentials = credentials(&authority, Arc::clone(&key), names);
    options.signing_key = Some(key);
    options.address = config.reachable(address).to_string();
    options.url = config.public_url(address);
    options.service_ranges = config.service_cidr.each().to_vec();
    options.authority = Some(authority.authority().into());
    if let Some(alone) = &config.api_server {
        alone_options(alone, &mut options);
    }
    outside_options(&config, &mut options)?;
    options.front_proxy = Some(certificates.front_proxy());
    options.flags.clone_from(&config.flags);
    if config.history_days > 0 && config.api_server.is_none() {
        options.measures = Some(Arc::new(Measures::beside(&config.database())));
    }
    let metrics = controllers.metrics.clone();
    options.metrics = Some(Arc::new(move || metrics.text()));
    let server = Server::new(store.clone(), options);
    let controllers = controllers::Options {
        credentials: Some(credentials),
        machine: machine(),
        ..controllers
    };
    info!(%address, revision = store.revision(), "serving");

    let running = Running {
        config,
        server: server.clone(),
        store: store.clone(),
        certificates,
        address,
    };
    let outcome = running.supervise(listener, controllers, cancel).await;
    if let Err(failure) = store.close().await {
        error!(error = &failure as &dyn std::error::Error, "close the store");
    }
    drop(server);
    if let Some(audit) = audit {
        audit.close();
    }
    info!("stopped");
    outcome
}

/// Key that signs service account tokens: the configured one, or our own.
fn token_key(config: &Config, authority: &Pki) -> Result<SigningKey, PkiError> {
    let Some(alone) = &config.api_server else {
        return authority.token_key();
    };
    let key = match &alone.signing_key {
        Some(pem) => SigningKey::from_pem(pem).map_err(PkiError::TokenKey)?,
        None => authority.token_key()?,
    };
    let mut further = alone.verifying_keys.iter();
    further
        .try_fold(key, |key, pem| key.trusting(pem))
        .map_err(PkiError::TokenKey)
}

/// Sets the options of a standalone API server.
fn alone_options(alone: &ApiServer, options: &mut Options) {
    if let Some(authorities) = &alone.client_authorities {
        options.authority = Some(authorities.as_str().into());
    }
    options.issuers.clone_from(&alone.issuers);
    options.audiences.clone_from(&alone.audiences);
    options.disabled_plugins.clone_from(&alone.disabled_plugins);
    options.anonymous = alone.anonymous;
    options.always_allow = alone.always_allow;
}

/// Sets the options about tokens of other issuers, and about anonymous requests.
fn outside_options(config: &Config, options: &mut Options) -> Result<(), AuthenticationError> {
    options.outside = config.authentication.issuers(&options.issuers)?.map(Arc::new);
    let Some((enabled, paths)) = options.outside.as_ref().and_then(|outside| outside.anonymous()) else {
        return Ok(());
    };
    if config.flags.iter().any(|(name, _)| name == "anonymous-auth") {
        let because = "anonymous: Forbidden: --anonymous-auth flag cannot be set when anonymous field is configured in \
                       authentication configuration file";
        return Err(AuthenticationError::Flags(because));
    }
    // `ApplyAuthorization` of upstream looks at its flag alone.
    (options.anonymous, options.anonymous_paths) = (*enabled, paths.clone());
    Ok(())
}

/// Opens the store, with the lock of the state directory where the store has none of its own.
async fn open_store(config: &Config) -> Result<(Store, Option<Lock>), Error> {
    let options = config.store_options();
    let Some(address) = &config.store else {
        return Ok((Store::open(&config.database(), options)?, None));
    };
    let lock = Lock::take(&config.database())?;
    let backend = Etcd::open(address, &config.etcd_identity(), &options).await?;
    let existed = options.existed;
    // The ledger waits for this runtime.
    let opening = tokio::task::spawn_blocking(|| Store::with_backend(Box::new(backend), options));
    let store = opening.await.map_err(Error::Task)??;
    if !existed && store.revision() > 0 {
        return Err(Error::Keys {
            address: address.clone(),
            pki: config.pki(),
        });
    }
    Ok((store, Some(lock)))
}

/// The name of this machine.
fn machine() -> Arc<str> {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    match name.trim() {
        "" => "localhost".into(),
        name => name.into(),
    }
}

/// State that the tasks use.
struct Running {
    config: Config,
    server: Server,
    store: Store,
    certificates: Certificates,
    address: SocketAddr,
}

impl Running {
    /// Runs the tasks; the first that ends, or `cancel`, ends all.
    async fn supervise(
        self,
        listener: TcpListener,
        controllers: controllers::Options,
        cancel: CancellationToken,
    ) -> Result<(), Error> {
        let stop = CancellationToken::new();
        let mut tasks: JoinSet<Result<Infallible, Error>> = JoinSet::new();
        let (router, transport, stopped) = (self.server.router(), self.certificates.transport(), stop.clone());
        tasks.spawn(async move {
            tls::serve(listener, transport, router, stopped).await;
            Err(Error::Ended)
        });
        let (maintained, stopped) = (self.store.clone(), stop.clone());
        tasks.spawn(async move {
            tokio::select! {
                () = maintained.run() => Err(Error::Ended),
                () = stopped.cancelled() => Err(Error::Ended),
            }
        });
        let (certificates, config, address, stopped) =
            (self.certificates, self.config.clone(), self.address, stop.clone());
        tasks.spawn(async move {
            tokio::select! {
                never = certificates.run(&config, address, clock::now) => match never {},
                () = stopped.cancelled() => Err(Error::Ended),
            }
        });
        let outcome = tokio::select! {
            ready = bootstrap(&self.server) => ready,
            () = cancel.cancelled() => Ok(()),
        };
        let outcome = match outcome {
            Ok(()) => {
                let (healed, stopped) = (self.server.clone(), stop.clone());
                tasks.spawn(async move {
                    tokio::select! {
                        never = healed.heal() => match never {},
                        () = stopped.cancelled() => Err(Error::Ended),
                    }
                });
                if self.config.api_server.is_none() {
                    let (server, stopped, shared) = (self.server.clone(), stop.clone(), self.store.is_shared());
                    tasks.spawn(async move {
                        if shared {
                            return leader::lead(server, controllers, stopped).await;
                        }
                        let clients = leader::clients(&server, None);
                        controllers::run(clients, controllers, stopped)
                            .await
                            .map_err(Error::Controllers)
                    });
                }
                first_end(&mut tasks, &cancel).await
            }
            Err(failure) => Err(failure),
        };
        common::notify::stopping();
        self.server.stop();
        if outcome.is_ok() {
            tokio::time::sleep(Duration::from_secs(self.config.shutdown_delay_seconds)).await;
        }
        self.server.drain();
        stop.cancel();
        let ended = tokio::time::timeout(GRACE, async { while tasks.join_next().await.is_some() {} }).await;
        if ended.is_err() {
            error!(tasks = tasks.len(), "did not end in time");
        }
        tasks.shutdown().await;
        outcome
    }
}

async fn bootstrap(server: &Server) -> Result<(), Error> {
    server.bootstrap().await.map_err(Error::Bootstrap)?;
    info!("ready");
    common::notify::ready();
    Ok(())
}

/// Waits for the first task to fail, or for the order to stop.
async fn first_end(tasks: &mut JoinSet<Result<Infallible, Error>>, stop: &CancellationToken) -> Result<(), Error> {
    let ended = tokio::select! {
        biased;
        () = stop.cancelled() => return Ok(()),
        ended = tasks.join_next() => ended,
    };
    match ended {
        Some(Ok(Ok(never))) => match never {},
        Some(Ok(Err(failure))) => Err(failure),
        Some(Err(panic)) => Err(Error::Task(panic)),
        None => Err(Error::Ended),
    }
}

/// Listens on an address. As with upstream, the unspecified IPv4 address includes IPv6 if the
/// machine supports it.
async fn listen(address: SocketAddr) -> Result<TcpListener, Error> {
    let is_shared = std::fs::read_to_string("/proc/sys/net/ipv6/bindv6only").is_ok_and(|text| text.trim() == "0");
    if address.ip() == Ipv4Addr::UNSPECIFIED
        && is_shared
        && let Ok(both) = TcpListener::bind((Ipv6Addr::UNSPECIFIED, address.port())).await
    {
        return Ok(both);
    }
    TcpListener::bind(address)
        .await
        .map_err(|source| Error::Listen { address, source })
}

fn open_audit(config: &Config) -> Result<Option<Arc<FileSink>>, Error> {
    let named = config.api_server.as_ref().and_then(|alone| alone.audit.as_ref());
    let opened = if let Some((path, limits, policy)) = named {
        FileSink::open_file(path, *limits, policy.clone())
            .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))
    } else if let Some(limits) = config.audit_limits() {
        let policy = config.audit_policy_file.as_deref().map(Policy::load).transpose()?;
        FileSink::open(&config.audit(), limits, policy)
    } else {
        return Ok(None);
    };
    opened.map(|sink| Some(Arc::new(sink))).map_err(Error::Audit)
}

/// Credentials that the controllers issue on behalf of the authority.
fn credentials(authority: &Arc<Pki>, key: Arc<SigningKey>, names: Vec<String>) -> controllers::Credentials {
    let certificate = authority.authority().into();
    let authority = Arc::clone(authority);
    controllers::Credentials {
        certificate,
        sign: Arc::new(move |namespace, account, uid, secret| {
            let signed = key.secret_token(namespace, account, uid, secret);
            signed
                .inspect_err(|failure| error!(error = failure as &dyn std::error::Error, "sign a token"))
                .ok()
        }),
        certify: Arc::new(move |request, usages, seconds| {
            let signed = authority.sign(request, usages, seconds, clock::now());
            signed
                .inspect_err(|failure| error!(error = failure as &dyn std::error::Error, "sign a certificate"))
                .ok()
        }),
        names: names.into(),
    }
}
