//! Upstream's descriptions of the fields that table columns show.

use std::collections::BTreeMap;
use std::sync::LazyLock;

/// `# FIELD` and its text, in turn; written by `schema/descriptions.py`.
static TEXTS: &str = include_str!("../../schema/descriptions.txt");

static BY_FIELD: LazyLock<BTreeMap<&str, &str>> = LazyLock::new(|| {
    let records = TEXTS.strip_prefix("# ").unwrap_or(TEXTS).split("\n# ");
    let records = records.filter_map(|record| record.split_once('\n'));
    records.map(|(field, text)| (field, text.trim_end())).collect()
});

/// Upstream's description of a field like `core.v1.PodSpec.nodeName`. A text that is no such name
/// is returned unchanged.
pub fn described(text: &'static str) -> &'static str {
    if text.contains(' ') {
        return text;
    }
    BY_FIELD.get(text).copied().unwrap_or(text)
}
