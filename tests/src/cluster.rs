//! A whole cluster in this process: the real server over a store in memory, the real controllers and scheduler, and
//! real agents over a simulated runtime and network, under a paused clock. The network between them may lose requests and answers.

#![allow(
    clippy::indexing_slicing,
    clippy::panic,
    clippy::missing_panics_doc,
    reason = "a test fails by panicking; absent JSON is null"
)]

pub mod agent;
mod chaos;
mod oracle;

use std::fmt::Debug;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use serde_json::Value;
use server::authn::identity::assume;
use server::authn::pki::Pki;
use server::authn::tokens::SigningKey;
use server::{Options, Server, User};
use store::Store;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

pub use self::chaos::Chaos;
pub use self::oracle::{Bounds, Violation, check_history};

/// Start of the clusters' clocks.
const EPOCH: i64 = 1_800_000_000;

/// Parameters of a cluster.
#[derive(Debug, Clone, Default)]
pub struct Builder {
    nodes: usize,
    seed: Option<u64>,
}

impl Builder {
    /// Sets the number of nodes.
    #[must_use]
    pub fn nodes(mut self, nodes: usize) -> Self {
        self.nodes = nodes;
        self
    }

    /// Drops some requests before, and some responses after, they took effect, and breaks watches,
    /// at random by `seed`.
    #[must_use]
    pub fn lossy(mut self, seed: u64) -> Self {
        self.seed = Some(seed);
        self
    }

    /// Starts everything.
    pub async fn start(self) -> Cluster {
        let beside = Arc::new(AtomicI64::new(0));
        let clock = clock(Arc::clone(&beside));
        let options = store::Options {
            index: server::storage::index,
            class: server::storage::class,
            ..store::Options::default()
        };
        let store = Store::in_memory(options);
        let pem = SigningKey::generate().expect("a key");
        let key = Arc::new(SigningKey::from_pem(&pem).expect("a key"));
        let mut options = Options::new(clock.clone());
        options.signing_key = Some(Arc::clone(&key));
        let server = Server::new(store.clone(), options);
        server.bootstrap().await.expect("the first objects are stored");
        let cancel = CancellationToken::new();
        let tasks = JoinSet::new();
        let chaos = Chaos::new(self.seed);
        let (router, faults) = (server.router(), chaos.clone());
        let clients: controllers::Clients = Arc::new(move |user, agent| {
            let service = faults.around(assume(User::component(user), agent, router.clone()));
            kube::Client::new(service, "default")
        });
        let directory = tempfile::tempdir().expect("a directory");
        let authority = Pki::open(&directory.path().join("pki"), (clock)()).expect("an authority");
        let now = clock.clone();
        let options = controllers::Options {
            clock: clock.clone(),
            credentials: Some(controllers::Credentials {
                certificate: "a certificate".into(),
                sign: Arc::new(move |namespace, account, uid, secret| {
                    key.secret_token(namespace, account, uid, secret).ok()
                }),
                certify: Arc::new(move |request, usages, seconds| authority.sign(request, usages, seconds, now()).ok()),
                names: Arc::default(),
            }),
            ..controllers::Options::default()
        };
        let mut cluster = Cluster {
            server,
            store,
            chaos,
            cancel,
            tasks,
            clock,
            beside,
            directory,
            controllers: (clients, options, CancellationToken::new()),
        };
        cluster.restart_controllers();
        for number in 1..=self.nodes {
            cluster.add_node(&format!("node-{number}"));
        }
        cluster
    }
}

/// A wall clock that follows tokio's, so many seconds beside it.
fn clock(beside: Arc<AtomicI64>) -> server::Clock {
    let start = tokio::time::Instant::now();
    Arc::new(move || {
        let elapsed = i64::try_from(start.elapsed().as_millis()).unwrap_or(i64::MAX);
        let beside = beside.load(Ordering::Relaxed);
        Timestamp::from_millisecond((EPOCH + beside) * 1000 + elapsed).expect("the clock is in range")
    })
}

/// A running cluster; dropping it ends it.
pub struct Cluster {
    server: Server,
    /// Its store, for oracles that read the history.
    pub store: Store,
    /// The faults of its network.
    pub chaos: Chaos,
    cancel: CancellationToken,
    tasks: JoinSet<()>,
    clock: server::Clock,
    beside: Arc<AtomicI64>,
    directory: tempfile::TempDir,
    /// Arguments of the controllers, and what ends them.
    controllers: (controllers::Clients, controllers::Options, CancellationToken),
}

impl Cluster {
    /// Builds a cluster without nodes and without faults, to be configured before it starts.
    #[must_use]
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// A client of the administrator, without faults.
    pub fn admin(&self) -> kube::Client {
        self.client(User::new("kubernetes-admin", ["system:masters"]), "tests")
    }

    /// A client of a user, without faults.
    pub fn client(&self, user: User, agent: &str) -> kube::Client {
        kube::Client::new(assume(user, agent, self.server.router()), "default")
    }

    /// Adds a node; cancelling the token stops its agent, as if the machine had lost its network.
    pub fn add_node(&mut self, name: &str) -> CancellationToken {
        let user = User::new(format!("system:node:{name}"), ["system:nodes"]);
        let service = self.chaos.around(assume(user, "skiff-agent", self.server.router()));
        let client = kube::Client::new(service, "default");
        let cancel = self.cancel.child_token();
        let (parts, directory) = (
            agent::parts(client, self.clock.clone()),
            self.directory.path().join(name),
        );
        let (name, own_cancel) = (name.to_owned(), cancel.clone());
        self.tasks.spawn(async move {
            let error = agent::run(parts, name.clone(), directory, own_cancel).await;
            if !matches!(error, ::agent::Error::Cancelled) {
                tracing::error!(node = name, %error, "the agent ended");
            }
        });
        cancel
    }

    /// Stops the controllers and the scheduler at any point, and starts them without their former
    /// state.
    pub fn restart_controllers(&mut self) {
        let (clients, options, running) = &mut self.controllers;
        running.cancel();
        *running = self.cancel.child_token();
        let (cancel, begun) = (
            running.clone(),
            controllers::run(Arc::clone(clients), options.clone(), running.clone()),
        );
        self.tasks.spawn(async move {
            // Cancellation drops the rest of the controllers' work.
            if let Some(Err(error)) = cancel.run_until_cancelled(begun).await {
                tracing::debug!(%error, "controllers ended");
            }
        });
    }

    /// Sets every wall clock of the cluster forwards or back, as an operator or a broken time server would.
    pub fn jump(&self, seconds: i64) {
        self.beside.fetch_add(seconds, Ordering::Relaxed);
    }

    /// Directory with the state of each node.
    pub fn directory(&self) -> &std::path::Path {
        self.directory.path()
    }

    /// Has the running pods of each workload share so many thousandths of a processor of work, as their metrics tell.
    pub fn load(&self, milli: u64) {
        self.chaos.set_load(milli, self.clock.clone());
    }

    /// POST, as the administrator.
    pub async fn create(&self, path: &str, object: &Value) -> Value {
        self.request("POST", path, "application/json", object)
            .await
            .expect("created")
    }

    /// A request, as the administrator.
    ///
    /// # Errors
    /// The server's refusal.
    pub async fn request(&self, method: &str, path: &str, kind: &str, body: &Value) -> Result<Value, kube::Error> {
        let body = if body.is_null() {
            Vec::new()
        } else {
            body.to_string().into_bytes()
        };
        let request = http::Request::builder()
            .method(method)
            .uri(path)
            .header("content-type", kind);
        self.admin().request(request.body(body).expect("a request")).await
    }

    /// GET, as the administrator; `Null` where it is not found.
    pub async fn get(&self, path: &str) -> Value {
        match self.request("GET", path, "application/json", &Value::Null).await {
            Ok(value) => value,
            Err(kube::Error::Api(status)) if status.code == 404 => Value::Null,
            Err(error) => panic!("GET {path}: {error}"),
        }
    }

    /// The items of a list.
    pub async fn list(&self, path: &str) -> Vec<Value> {
        self.get(path).await["items"].as_array().cloned().unwrap_or_default()
    }

    /// Waits, for an hour of the cluster's time, until `look` returns `Ok`; fails with the last
    /// state seen.
    pub async fn eventually<T, E: Debug, F: Future<Output = Result<T, E>>>(
        &self,
        what: &str,
        mut look: impl FnMut() -> F,
    ) -> T {
        let deadline = tokio::time::Instant::now() + Duration::from_hours(1);
        loop {
            match look().await {
                Ok(value) => return value,
                Err(state) if tokio::time::Instant::now() > deadline => {
                    panic!("{what}: not within an hour; last: {state:#?}")
                }
                Err(_) => tokio::time::sleep(Duration::from_millis(500)).await,
            }
        }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.cancel.cancel();
        self.tasks.abort_all();
    }
}
