//! Flags of a daemon, for its `/flagz`.

use clap::{ArgMatches, Command};

/// Names and values of the options of `command` that are set, sorted; values of an option that is there several times are
/// separated by commas.
pub fn set(command: &Command, matches: &ArgMatches) -> Vec<(String, String)> {
    let set = command.get_arguments().filter_map(|option| {
        let values = matches.try_get_raw(option.get_id().as_str()).ok().flatten();
        let values = values.into_iter().flatten().map(|value| value.to_string_lossy());
        Some((option.get_long()?.to_owned(), values.collect::<Vec<_>>().join(",")))
    });
    let mut flags: Vec<(String, String)> = set.collect();
    flags.sort_unstable();
    flags
}
