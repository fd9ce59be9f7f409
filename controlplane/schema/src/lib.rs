//! Schemas of custom resources: structural schemas as in upstream's
//! `k8s.io/apiextensions-apiserver/pkg/apiserver/schema`. Pure: no I/O, no clock, no randomness.
//!
//! ```text
//! definition written: props (a view of the JSON) ─► definition (all checks) ─► Structural
//! request:            decode: prune, null, metadata ─► default ─► validate ─► rules
//! ```
//!
//! A [`Structural`] is built once for each version of a definition. It omits fields for readers of
//! the published schema (descriptions, titles, examples).

mod definition;
mod metadata;
mod null;
mod path;
pub mod pattern;
mod props;
mod prune;
mod render;
mod rules;
mod structural;
mod validate;

use serde_json::Value;

use path::Path;

pub use api::{Invalid, InvalidKind};
pub use definition::{FieldPathError, Options};
pub use rules::{Rules, Verdict};
pub use structural::{Additional, Kind, ListType, MAX_DEPTH, MapType, Node, NotStructural, Rule, Structural, Values};
pub use validate::format::is_format;

impl Structural {
    /// Removes unknown fields, except for `apiVersion`, `kind` and `metadata`. Returns their paths,
    /// as `spec.foo[0].bar`, sorted.
    pub fn prune(&self, object: &mut Value) -> Vec<String> {
        prune::object(&self.root, object)
    }

    /// Removes null fields that are neither nullable nor have a default.
    pub fn drop_nulls(&self, object: &mut Value) {
        null::drop_nulls(&self.root, object);
    }

    /// Converts an object from a request or the store to this schema: prunes it, removes nulls, and
    /// drops unknown metadata of embedded objects. The object's own metadata is left to the caller.
    /// Returns the paths of the removed fields.
    ///
    /// # Errors
    /// Metadata of an embedded object has a field of a wrong type.
    pub fn decode(&self, object: &mut Value) -> Result<Vec<String>, Invalid> {
        let mut unknown = self.prune(object);
        self.drop_nulls(object);
        metadata::coerce(&self.root, object, &Path::ROOT, false, &mut unknown)?;
        Ok(unknown)
    }

    /// Validates an object, apart from its metadata and CEL rules. Errors in values that were
    /// invalid before and have not changed are ignored (`pkg/registry/customresource/strategy.go`).
    pub fn validate(&self, new: &Value, old: Option<&Value>) -> Vec<Invalid> {
        let mut found = validate::check(&self.root, new, old, &Path::ROOT);
        metadata::check(&self.root, new, &Path::ROOT, false, &mut found);
        found.extend(self.validate_lists(new, old));
        found
    }

    /// Like [`Self::validate`], for a change of the status alone (`status_strategy.go` beside it).
    pub fn validate_status(&self, new: &Value, old: &Value) -> Vec<Invalid> {
        let mut found = Vec::new();
        if let (Some(node), Some(status)) = (self.root.property("status"), new.get("status")) {
            found = validate::check(node, status, old.get("status"), &Path::given("status"));
        }
        found.extend(self.validate_lists(new, Some(old)));
        found
    }

    fn validate_lists(&self, new: &Value, old: Option<&Value>) -> Vec<Invalid> {
        let found = validate::list_type::check(&self.root, new);
        if found.is_empty() || old.is_none_or(|old| validate::list_type::check(&self.root, old).is_empty()) {
            return found;
        }
        Vec::new()
    }

    /// Sets defaults of missing fields.
    pub fn apply_defaults(&self, object: &mut Value) {
        null::apply_defaults(&self.root, object);
    }
}
