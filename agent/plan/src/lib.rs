//! agent-plan
