//! The API server as its clients see it, without sockets where they make no difference.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests fail by panicking"
)]

mod access;
mod accounts;
mod aggregation;
mod apply;
mod backends;
mod bodies;
mod callers;
mod certificates;
mod classes;
mod connect;
mod connections;
mod conversion_attacks;
mod conversions;
mod definition_documents;
mod definition_expressions;
mod definition_rules;
mod definition_versions;
mod definitions;
mod deletion;
mod discovery;
mod evictions;
mod impersonation;
mod limits;
mod lists;
mod managers;
mod mutating_policies;
mod nodes;
mod objects;
mod order;
mod past;
mod paths;
mod pod_security;
mod policies;
mod policy_checks;
mod priorities;
mod protobuf;
mod published;
mod quotas;
mod restrictions;
mod roles;
mod round_trips;
mod service_changes;
mod service_ranges;
mod services;
mod shutdown;
mod strict;
mod subresources;
mod support;
mod tokens;
mod ui;
mod uses;
mod watches;
mod webhook_attacks;
mod webhook_conditions;
mod webhook_rules;
mod webhook_ways;
mod webhooks;
mod writes;
mod written;
