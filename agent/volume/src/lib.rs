//! agent-volume
