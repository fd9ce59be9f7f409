//! Standalone plugin for tests; the agent includes it under the same name.

use std::process::ExitCode;

fn main() -> ExitCode {
    network::plugin(std::env::args_os()).unwrap_or(ExitCode::FAILURE)
}
