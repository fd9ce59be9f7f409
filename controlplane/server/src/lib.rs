//! The API server: the table of kinds times the verbs, as one [`axum::Router`].
//!
//! ```text
//! request ─► authentication ─► RequestInfo ─► authorization ─► decode ─► defaults ─► admission ─► validate ─► store
//!                 authn        request::info      authz      request::object └───── write::admission ───┘    (commit)
//!                                          answer ◄─ transport::shape ◄────────────────────────────────────┘
//! ```
//!
//! | module | what is in it |
//! |---|---|
//! | `transport` | TLS, upgrades, content negotiation, bodies and answers |
//! | `server` | the router: flow control, limits, dispatch to handlers, objects of every cluster |
//! | `request` | a request and its parts: path, query, options, object, context, failure |
//! | `authn` | users: certificates, tokens, other issuers, sessions of browsers, impersonation, reviews of tokens |
//! | `authz` | roles, the nodes' rights, reviews of access |
//! | `write` | verbs that change objects, with admission and field management |
//! | `read` | verbs that read objects, now and as they were |
//! | `storage` | layout of objects in the store, allocation of addresses and ports |
//! | `node` | what the nodes' agents serve: logs, commands, proxies |
//! | `discovery` | which APIs there are: discovery, OpenAPI, version |
//! | `extensions` | custom resources and aggregated servers |
//! | `ops` | health, metrics, audit log, z-pages, the UI |
//!
//! All clients use this router, including the controllers of the same process, for which
//! [`authn::identity::assume`] sets a user as TLS would, and the page that `ops::ui` serves. No handler knows a
//! kind by name: differences between kinds are in their rows of `api::KINDS`.
//!
//! Most of the server treats `metadata.managedFields` as text: only code that changes it parses it
//! ([`managers`](api::managed)).

pub mod authn;
pub mod authz;
pub mod discovery;
pub mod node;
pub mod ops;
pub mod request;
pub mod storage;
pub mod transport;

mod extensions;
mod read;
mod server;
mod write;

pub use authn::identity::User;
pub use extensions::aggregation::FrontProxy;
pub use request::failure::Failure;
pub use server::bootstrap::BootstrapError;
pub use server::{Clock, Options, Server, fuzzing};
