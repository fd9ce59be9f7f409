//! Fuzzing entry point: parses arbitrary bytes as plugins' results and network configurations.

use serde_json::Value;

use super::list::List;
use super::outcome;

/// Reads the bytes in every way.
pub(crate) fn read(bytes: &[u8]) {
    if let Ok(result) = serde_json::from_slice::<Value>(bytes) {
        drop(outcome::addresses(&result, "eth0"));
    }
    drop(outcome::refusal(bytes, bytes, "exit status 1"));
    if let Ok(list) = List::parse(bytes) {
        // A parsed list is unchanged after serialization and parsing.
        let again = List::of(&list.to_json());
        assert_eq!(again.map(|again| again.to_json()).ok(), Some(list.to_json()));
    }
}
