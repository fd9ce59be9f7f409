//! Paths of fields, built on the stack and written only for errors
//! (`k8s.io/apimachinery/pkg/util/validation/field`).

use std::fmt;

/// Path of a field: a linked list from the leaf to the root.
#[derive(Clone, Copy)]
pub(crate) struct Path<'a> {
    parent: Option<&'a Path<'a>>,
    element: Element<'a>,
}

#[derive(Clone, Copy)]
enum Element<'a> {
    /// Upstream's nil path.
    Root,
    /// A path as text.
    Given(&'a str),
    /// `.name`
    Child(&'a str),
    /// `.name`, with the dot even at the beginning.
    Dotted(&'a str),
    /// `[key]`
    Key(&'a str),
    /// `[1]`
    Index(usize),
}

impl<'a> Path<'a> {
    /// The root of an object.
    pub(crate) const ROOT: Path<'static> = Path {
        parent: None,
        element: Element::Root,
    };

    /// A base path; empty for the root.
    pub(crate) fn given(text: &'a str) -> Self {
        let element = if text.is_empty() {
            Element::Root
        } else {
            Element::Given(text)
        };
        Self { parent: None, element }
    }

    fn with(&'a self, element: Element<'a>) -> Path<'a> {
        Path {
            parent: Some(self),
            element,
        }
    }

    /// `path.name`
    pub(crate) fn child(&'a self, name: &'a str) -> Path<'a> {
        self.with(Element::Child(name))
    }

    /// `path.name`, with the dot even below the root, as kube-openapi formats undeclared fields.
    pub(crate) fn dotted(&'a self, name: &'a str) -> Path<'a> {
        self.with(Element::Dotted(name))
    }

    /// `path[key]`
    pub(crate) fn key(&'a self, key: &'a str) -> Path<'a> {
        self.with(Element::Key(key))
    }

    /// `path[1]`
    pub(crate) fn index(&'a self, index: usize) -> Path<'a> {
        self.with(Element::Index(index))
    }

    /// True if the path is empty.
    pub(crate) fn is_root(&self) -> bool {
        matches!(self.element, Element::Root)
    }

    /// The path as the `field` of an error: upstream prints a nil path as `<nil>`.
    pub(crate) fn field(&self) -> String {
        if self.is_root() {
            "<nil>".to_owned()
        } else {
            self.to_string()
        }
    }
}

impl fmt::Display for Path<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(parent) = self.parent {
            parent.fmt(formatter)?;
        }
        match self.element {
            Element::Root => Ok(()),
            Element::Given(text) => formatter.write_str(text),
            Element::Child(name) => {
                if self.parent.is_some_and(|parent| !parent.is_root()) {
                    formatter.write_str(".")?;
                }
                formatter.write_str(name)
            }
            Element::Dotted(name) => write!(formatter, ".{name}"),
            Element::Key(key) => write!(formatter, "[{key}]"),
            Element::Index(index) => write!(formatter, "[{index}]"),
        }
    }
}
