//! A set of fields, in memory and as `FieldsV1` JSON.
//!
//! A path element is kept as `FieldsV1` writes it: `f:NAME` a member, `k:{…}` the list item with
//! these keys, `v:…` the item of a set, `i:N` an index.

use std::fmt;

use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, Visitor};
use serde::ser::{Serialize, SerializeMap, Serializer};

/// A set of fields. A field may be in the set, fields below it may be, or both.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Set {
    /// Sorted by element; none is empty.
    items: Vec<(Box<str>, Node)>,
}

/// State of one field.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Node {
    /// True if the field itself is in the set.
    pub(super) member: bool,
    /// Fields below it.
    pub(super) children: Set,
}

impl Node {
    /// The field itself, nothing below it.
    pub(super) fn leaf() -> Self {
        Self {
            member: true,
            children: Set::default(),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        !self.member && self.children.is_empty()
    }
}

impl Set {
    /// True if the set is empty.
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    pub(super) fn items(&self) -> impl Iterator<Item = (&str, &Node)> {
        self.items.iter().map(|(element, node)| (&**element, node))
    }

    fn place(&self, element: &str) -> Result<usize, usize> {
        match self.items.last() {
            Some((last, _)) if **last < *element => Err(self.items.len()),
            Some(_) => self.items.binary_search_by(|(own, _)| (**own).cmp(element)),
            None => Err(0),
        }
    }

    pub(super) fn get(&self, element: &str) -> Option<&Node> {
        let place = self.place(element).ok()?;
        self.items.get(place).map(|(_, node)| node)
    }

    /// Merges a node into the set.
    pub(super) fn add(&mut self, element: &str, node: Node) {
        if node.is_empty() {
            return;
        }
        match self.place(element) {
            Ok(place) => {
                if let Some((_, own)) = self.items.get_mut(place) {
                    own.member |= node.member;
                    own.children.union(node.children);
                }
            }
            Err(place) => self.items.insert(place, (element.into(), node)),
        }
    }

    /// Removes a field and everything below it.
    pub(super) fn remove(&mut self, element: &str) {
        if let Ok(place) = self.place(element) {
            self.items.remove(place);
        }
    }

    /// Changes the node of a field, if there is one.
    pub(super) fn change(&mut self, element: &str, change: impl FnOnce(&mut Node)) {
        let Ok(place) = self.place(element) else { return };
        let Some((_, node)) = self.items.get_mut(place) else {
            return;
        };
        change(node);
        if node.is_empty() {
            self.items.remove(place);
        }
    }

    /// Adds all fields of another set.
    pub fn union(&mut self, other: Self) {
        self.items.extend(other.items);
        self.put_in_order();
    }

    /// Sorts the items and merges those with the same element.
    fn put_in_order(&mut self) {
        if self.items.is_sorted_by(|(left, _), (right, _)| left < right) {
            return;
        }
        self.items.sort_by(|(left, _), (right, _)| left.cmp(right));
        self.items.dedup_by(|(element, node), (kept, own)| {
            let same = element == kept;
            if same {
                own.member |= node.member;
                own.children.union(std::mem::take(&mut node.children));
            }
            same
        });
    }

    /// Removes the fields that are in another set. Fields below a field of the other set stay.
    pub fn subtract(&mut self, other: &Self) {
        if other.is_empty() {
            return;
        }
        self.items.retain_mut(|(element, node)| {
            if let Some(theirs) = other.get(element) {
                node.member &= !theirs.member;
                node.children.subtract(&theirs.children);
            }
            !node.is_empty()
        });
    }

    /// Removes the fields that are in another set, and everything below them.
    pub fn subtract_trees(&mut self, other: &Self) {
        self.items.retain_mut(|(element, node)| {
            let Some(theirs) = other.get(element) else { return true };
            if theirs.member {
                return false;
            }
            node.children.subtract_trees(&theirs.children);
            !node.is_empty()
        });
    }

    /// The fields that are in both sets.
    #[must_use]
    pub fn intersection(&self, other: &Self) -> Self {
        let both = self.items.iter().filter_map(|(element, node)| {
            let theirs = other.get(element)?;
            let node = Node {
                member: node.member && theirs.member,
                children: node.children.intersection(&theirs.children),
            };
            (!node.is_empty()).then(|| (element.clone(), node))
        });
        Self { items: both.collect() }
    }

    /// True if a path is in the set.
    pub fn contains(&self, path: &[&str]) -> bool {
        match path {
            [] => false,
            [last] => self.get(last).is_some_and(|node| node.member),
            [first, rest @ ..] => self.get(first).is_some_and(|node| node.children.contains(rest)),
        }
    }

    /// The set of one path.
    pub fn of_path(path: &[&str]) -> Self {
        let mut set = Self::default();
        if let [first, rest @ ..] = path {
            let node = Node {
                member: rest.is_empty(),
                children: Self::of_path(rest),
            };
            set.items.push(((*first).into(), node));
        }
        set
    }

    /// Every path of the set as upstream prints it: `.spec.containers[name="web"].image`.
    pub fn paths(&self) -> Vec<String> {
        let mut found = Vec::new();
        self.walk(&mut String::new(), &mut found);
        found
    }

    fn walk(&self, prefix: &mut String, found: &mut Vec<String>) {
        let length = prefix.len();
        // Upstream lists the members of a level before the fields below them.
        for (element, _) in self.items().filter(|(_, node)| node.member) {
            found.push(format!("{prefix}{}", shown(element)));
        }
        for (element, node) in self.items().filter(|(_, node)| !node.children.is_empty()) {
            prefix.push_str(&shown(element));
            node.children.walk(prefix, found);
            prefix.truncate(length);
        }
    }
}

/// A path element as upstream prints it.
pub(super) fn shown(element: &str) -> String {
    let (kind, text) = element.split_at_checked(2).unwrap_or((element, ""));
    match kind {
        "f:" => format!(".{text}"),
        "v:" => format!("[={text}]"),
        "k:" => {
            let keys: serde_json::Map<String, serde_json::Value> = serde_json::from_str(text).unwrap_or_default();
            let texts: Vec<String> = keys.iter().map(|(name, value)| format!("{name}={value}")).collect();
            format!("[{}]", texts.join(","))
        }
        _ => format!("[{text}]"),
    }
}

impl Serialize for Set {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        write(self, false, serializer)
    }
}

/// Serializes a level of the tree; `.` means that the level's own field is in the set.
fn write<S: Serializer>(set: &Set, own: bool, serializer: S) -> Result<S::Ok, S::Error> {
    let mut map = serializer.serialize_map(None)?;
    if own && !set.is_empty() {
        map.serialize_entry(".", &Empty {})?;
    }
    for (element, node) in set.items() {
        map.serialize_entry(element, &Level(node))?;
    }
    map.end()
}

#[derive(serde::Serialize)]
struct Empty {}

struct Level<'a>(&'a Node);

impl Serialize for Level<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        write(&self.0.children, self.0.member, serializer)
    }
}

impl<'de> Deserialize<'de> for Set {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Node::deserialize(deserializer)?.children)
    }
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Reader)
    }
}

struct Reader;

impl<'de> Visitor<'de> for Reader {
    type Value = Node;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a set of fields")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Node, A::Error> {
        let mut node = Node::default();
        while let Some(element) = members.next_key::<std::borrow::Cow<'de, str>>()? {
            if element == "." {
                node.member = true;
                members.next_value::<IgnoredAny>()?;
            } else if is_element(&element) {
                let child: Node = members.next_value()?;
                node.children.items.push((element.into(), child));
            } else if element.as_bytes().get(1) == Some(&b':') {
                // Unknown elements of later versions are dropped, as upstream does.
                members.next_value::<IgnoredAny>()?;
            } else {
                return Err(serde::de::Error::custom(format!("missing colon: {element}")));
            }
        }
        node.children.put_in_order();
        node.member |= node.children.is_empty();
        Ok(node)
    }
}

fn is_element(text: &str) -> bool {
    let (kind, rest) = text.split_at_checked(2).unwrap_or_default();
    match kind {
        "f:" => true,
        "k:" => rest.starts_with('{'),
        "v:" => !rest.is_empty(),
        "i:" => rest.parse::<i64>().is_ok(),
        _ => false,
    }
}
