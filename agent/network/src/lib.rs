//! agent-network
