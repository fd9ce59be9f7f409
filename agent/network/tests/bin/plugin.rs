//! The plugin alone, for tests; the agent has it under the same name.

use std::process::ExitCode;

fn main() -> ExitCode {
    network::plugin(std::env::args_os()).unwrap_or(ExitCode::FAILURE)
}
