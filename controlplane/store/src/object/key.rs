//! Names of stored objects, ordered the way a LIST shows them.

use std::borrow::Borrow;
use std::fmt;
use std::sync::Arc;

/// Key of an object: `{group or core}/{plural}/{namespace or empty}/{name}`, ordered by its bytes.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(Arc<str>);

/// A part of a key was empty or contained a `/`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a part of the key is empty or contains a slash")]
pub struct InvalidKey;

impl Key {
    /// The key of `name` in `namespace` (empty for a cluster-scoped kind). An empty group is the
    /// core group.
    ///
    /// Fails if a part contains a `/`, or if plural or name are empty: no name can collide with
    /// another object's key.
    pub fn new(group: &str, plural: &str, namespace: &str, name: &str) -> Result<Self, InvalidKey> {
        let group = if group.is_empty() { "core" } else { group };
        let slashes = [group, plural, namespace, name].iter().any(|part| part.contains('/'));
        if slashes || plural.is_empty() || name.is_empty() {
            return Err(InvalidKey);
        }
        Ok(Self(format!("{group}/{plural}/{namespace}/{name}").into()))
    }

    /// A key read back from the database or from a `continue` token.
    pub fn parse(text: &str) -> Result<Self, InvalidKey> {
        match text.split('/').collect::<Vec<_>>().as_slice() {
            [group, plural, namespace, name] => Self::new(group, plural, namespace, name),
            _ => Err(InvalidKey),
        }
    }

    /// The whole text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// `{group}/{plural}`: the resource that the object belongs to.
    pub fn resource(&self) -> &str {
        resource_of(&self.0)
    }

    /// The API group; `core` for the core group.
    pub fn group(&self) -> &str {
        self.part(0)
    }

    /// The plural name of the resource.
    pub fn plural(&self) -> &str {
        self.part(1)
    }

    /// The namespace; empty for a cluster-scoped object.
    pub fn namespace(&self) -> &str {
        self.part(2)
    }

    /// The name of the object.
    pub fn name(&self) -> &str {
        self.part(3)
    }

    fn part(&self, index: usize) -> &str {
        self.0.split('/').nth(index).unwrap_or_default()
    }
}

impl Borrow<str> for Key {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Key {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

/// All objects of a resource, or those of one namespace of it.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Prefix(Arc<str>);

impl Prefix {
    /// Every object of a resource, in all namespaces. An empty group is the core group.
    pub fn resource(group: &str, plural: &str) -> Self {
        let group = if group.is_empty() { "core" } else { group };
        Self(format!("{group}/{plural}/").into())
    }

    /// The objects of a resource in one namespace.
    pub fn namespace(group: &str, plural: &str, namespace: &str) -> Self {
        let group = if group.is_empty() { "core" } else { group };
        Self(format!("{group}/{plural}/{namespace}/").into())
    }

    /// The text that every key under this prefix begins with; ends in a `/`.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// True if the key lies under this prefix.
    pub fn contains(&self, key: &Key) -> bool {
        key.0.starts_with(&*self.0)
    }

    pub(crate) fn resource_name(&self) -> &str {
        resource_of(&self.0)
    }
}

fn resource_of(text: &str) -> &str {
    let end = text.match_indices('/').nth(1).map_or(text.len(), |(at, _)| at);
    text.get(..end).unwrap_or(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_and_order() {
        let key = Key::new("", "pods", "default", "web").unwrap();
        assert_eq!(key.as_str(), "core/pods/default/web");
        assert_eq!(
            (key.resource(), key.namespace(), key.name()),
            ("core/pods", "default", "web")
        );
        assert_eq!((key.group(), key.plural()), ("core", "pods"));
        let node = Key::new("", "nodes", "", "n1").unwrap();
        assert_eq!(node.as_str(), "core/nodes//n1");
        assert_eq!(Key::parse(node.as_str()), Ok(node));
        assert!(Prefix::resource("", "pods").contains(&key));
        assert!(Prefix::namespace("", "pods", "default").contains(&key));
        assert!(!Prefix::namespace("", "pods", "def").contains(&key));
        assert_eq!(
            Prefix::namespace("apps", "deployments", "x").resource_name(),
            "apps/deployments"
        );
    }

    #[test]
    fn no_part_reaches_another_object() {
        for (namespace, name) in [("default", "a/b"), ("a/b", "c"), ("default", ""), ("", "/")] {
            assert_eq!(
                Key::new("", "pods", namespace, name),
                Err(InvalidKey),
                "{namespace:?} {name:?}"
            );
        }
        assert_eq!(Key::parse("core/pods/a"), Err(InvalidKey));
        assert_eq!(Key::parse("core/pods/a/b/c"), Err(InvalidKey));
    }
}
