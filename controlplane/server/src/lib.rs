//! The API server: the table of kinds times the verbs, as one [`axum::Router`].
//!
//! ```text
//! request ─► authentication ─► RequestInfo ─► authorization ─► decode ─► defaults ─► admission ─► validate ─► store
//!             identity, tokens   request     authorization    object    └──────────── admission ──────┘    (commit)
//!                                          answer ◄─ negotiation, shape ◄──────────────────────────────────┘
//! ```
//!
//! All clients use this router, including the controllers of the same process, for which
//! [`identity::assume`] sets a user as TLS would, and the page that `ui` serves. No handler knows a
//! kind by name: differences between kinds are in their rows of `api::KINDS`.
//!
//! Most of the server treats `metadata.managedFields` as text: only code that changes it parses it
//! ([`managers`](api::managed)).

pub mod agents;
pub mod audit;
pub mod authorization;
pub mod body;
pub mod discovery;
pub mod failure;
pub mod fuzzing;
pub mod identity;
pub mod negotiation;
pub mod node_proxy;
pub mod path;
pub mod pki;
pub mod query;
pub mod request;
pub mod respond;
pub mod storage;
pub mod tls;
pub mod tokens;
pub mod version;
mod weight;

mod admission;
mod aggregation;
mod authentication;
mod bootstrap;
mod compress;
mod context;
mod definitions;
mod dialing;
mod dispatch;
mod duration;
mod exchange;
mod flow;
mod follower;
mod gate;
mod health;
mod lines;
mod managers;
mod metrics;
mod object;
mod openapi;
mod options;
mod owners;
mod pages;
mod recording;
mod selection;
mod server;
mod services;
mod shape;
mod subresource;
mod tunnel;
mod ui;
mod uses;
mod verbs;

pub use aggregation::FrontProxy;
pub use bootstrap::BootstrapError;
pub use failure::Failure;
pub use identity::User;
pub use server::{Clock, Options, Server};
