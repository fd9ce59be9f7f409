//! Authenticated user of a request, and how to act as one inside the process.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::HeaderValue;
use http::header::USER_AGENT;
use k8s_openapi::api::authentication::v1::UserInfo;
use k8s_openapi::api::coordination::v1::Lease;
use store::{Entry, Guard, Key};
use tower::Service;

/// Group of unrestricted administrators.
pub const MASTERS: &str = "system:masters";
/// Name of the anonymous user.
pub const ANONYMOUS: &str = "system:anonymous";
/// Group of all authenticated users.
pub const AUTHENTICATED: &str = "system:authenticated";
/// Group of all unauthenticated users.
pub const UNAUTHENTICATED: &str = "system:unauthenticated";

/// The group of all service accounts.
pub const ACCOUNTS: &str = "system:serviceaccounts";

/// An authenticated user. The transport puts it into the request's extensions.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct User {
    /// `kubernetes-admin`, `system:node:n1`, `system:serviceaccount:kube-system:deployment-controller` …
    pub name: String,
    /// Groups, `system:authenticated` included.
    pub groups: Vec<String>,
    /// Identifies a user across renames; often empty.
    pub uid: String,
    /// Extras that the authenticator adds.
    pub extra: BTreeMap<String, Vec<String>>,
}

impl User {
    /// A user of these groups and of `system:authenticated`.
    pub fn new<'a>(name: impl Into<String>, groups: impl IntoIterator<Item = &'a str>) -> Self {
        let mut groups: Vec<String> = groups.into_iter().map(str::to_owned).collect();
        if !groups.iter().any(|group| group == AUTHENTICATED) {
            groups.push(AUTHENTICATED.to_owned());
        }
        Self {
            name: name.into(),
            groups,
            ..Self::default()
        }
    }

    /// Anonymous user.
    pub fn anonymous() -> Self {
        Self {
            name: ANONYMOUS.to_owned(),
            groups: vec![UNAUTHENTICATED.to_owned()],
            ..Self::default()
        }
    }

    /// True if the user is in the group.
    pub fn is_in(&self, group: &str) -> bool {
        self.groups.iter().any(|own| own == group)
    }

    /// A service account, in the groups that its token would put it in.
    pub fn account(namespace: &str, name: &str) -> Self {
        let group = format!("{ACCOUNTS}:{namespace}");
        Self::new(Self::account_name(namespace, name), [ACCOUNTS, group.as_str()])
    }

    /// The user name of a service account.
    pub fn account_name(namespace: &str, name: &str) -> String {
        format!("system:serviceaccount:{namespace}:{name}")
    }

    /// A component of the control plane, as its certificate or its account's token would show it.
    pub fn component(name: &str) -> Self {
        let account = name.strip_prefix("system:serviceaccount:");
        match account.and_then(|account| account.split_once(':')) {
            Some((namespace, account)) => Self::account(namespace, account),
            None => Self::new(name, []),
        }
    }

    /// The user as answers and questions to webhooks show him.
    pub(crate) fn info(&self) -> UserInfo {
        UserInfo {
            username: Some(self.name.clone()),
            uid: Some(self.uid.clone()).filter(|uid| !uid.is_empty()),
            groups: Some(self.groups.clone()).filter(|groups| !groups.is_empty()),
            extra: Some(self.extra.clone()).filter(|extra| !extra.is_empty()),
        }
    }
}

/// Address of the client; the transport puts it into the request's extensions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Source(pub SocketAddr);

/// First second in which the credential of a request is no longer valid; in the request's extensions
/// if it is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Until(pub(crate) i64);

/// A service that speaks to `inner` as one user: it puts the identity where TLS would.
#[derive(Debug, Clone)]
pub struct Assumed<S> {
    user: User,
    user_agent: Option<HeaderValue>,
    fence: Option<Fence>,
    inner: S,
}

/// Makes a client's writes conditional on a lease: they are stored only while the lease names this
/// holder, independent of clocks.
#[derive(Debug, Clone)]
pub struct Fence(Guard);

impl Fence {
    /// Fence of a Lease's holder; `None` for an invalid name.
    pub fn new(namespace: &str, lease: &str, holder: &str) -> Option<Self> {
        let key = Key::new("coordination.k8s.io", "leases", namespace, lease).ok()?;
        let holder = holder.to_owned();
        let holds = move |lease: Option<&Entry>| {
            let lease = lease.and_then(|lease| serde_json::from_slice::<Lease>(&lease.bytes).ok());
            let spec = lease.and_then(|lease| lease.spec);
            spec.and_then(|spec| spec.holder_identity)
                .is_some_and(|now| now == holder)
        };
        Some(Self(Guard::Object {
            key,
            holds: Arc::new(holds),
        }))
    }

    pub(crate) fn into_guard(self) -> Guard {
        self.0
    }
}

/// Makes an in-process client act as `user`. The result is what `kube::Client::new` takes. The user
/// agent replaces the client's own one, so that the audit log distinguishes the components.
pub fn assume<S>(user: User, user_agent: &str, inner: S) -> Assumed<S> {
    Assumed {
        user,
        user_agent: HeaderValue::from_str(user_agent).ok(),
        fence: None,
        inner,
    }
}

impl<S> Assumed<S> {
    /// Makes writes conditional on holding a lease.
    #[must_use]
    pub fn fenced(mut self, fence: Option<Fence>) -> Self {
        self.fence = fence;
        self
    }
}

impl<S, B> Service<http::Request<B>> for Assumed<S>
where
    S: Service<http::Request<B>>,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, mut request: http::Request<B>) -> Self::Future {
        request.extensions_mut().insert(self.user.clone());
        if let Some(fence) = &self.fence {
            request.extensions_mut().insert(fence.clone());
        }
        if let Some(user_agent) = &self.user_agent {
            request.headers_mut().insert(USER_AGENT, user_agent.clone());
        }
        self.inner.call(request)
    }
}
