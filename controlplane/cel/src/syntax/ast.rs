//! The syntax tree, with macros already expanded, as `cel-go/common/ast` shapes it.

use crate::functions::Function;
use crate::value::Value;

/// Prefix of the variables that macros make; no expression can name them.
pub(crate) const ACCUMULATOR: &str = "@result";

/// A node with its id, its offset in the text and its height.
#[derive(Clone, Debug)]
pub(crate) struct Expr {
    /// Id of the node, unique in its program.
    pub(crate) id: usize,
    /// Offset in the text, in bytes.
    pub(crate) at: usize,
    /// Height of the tree below, this node included.
    pub(crate) depth: usize,
    pub(crate) kind: Kind,
}

#[derive(Clone, Debug)]
pub(crate) enum Kind {
    Literal(Value<'static>),
    Ident(String),
    Select {
        operand: Box<Expr>,
        field: String,
        /// A presence test: `has(operand.field)`.
        test: bool,
    },
    Call(Call),
    List {
        elements: Vec<Expr>,
        /// Indices of the elements written `[?x]`.
        optional: Vec<usize>,
    },
    Map(Vec<Entry>),
    Struct {
        name: String,
        fields: Vec<Initializer>,
    },
    Comprehension(Box<Comprehension>),
    Bind(Box<Bind>),
    /// A constant and its expression.
    Folded {
        value: Value<'static>,
        of: Box<Expr>,
    },
}

impl Expr {
    /// The original node of a folded constant.
    pub(crate) fn written(&self) -> &Self {
        match &self.kind {
            Kind::Folded { of, .. } => of,
            _ => self,
        }
    }
}

impl Kind {
    /// The child nodes.
    pub(crate) fn children(&self) -> Box<dyn Iterator<Item = &Expr> + '_> {
        match self {
            Self::Literal(_) | Self::Ident(_) => Box::new(std::iter::empty()),
            Self::Select { operand, .. } => Box::new(std::iter::once(&**operand)),
            Self::Call(call) => Box::new(call.operands()),
            Self::List { elements, .. } => Box::new(elements.iter()),
            Self::Map(entries) => Box::new(entries.iter().flat_map(|entry| [&entry.key, &entry.value])),
            Self::Struct { fields, .. } => Box::new(fields.iter().map(|field| &field.value)),
            Self::Comprehension(fold) => {
                Box::new([&fold.range, &fold.initial, &fold.condition, &fold.step, &fold.result].into_iter())
            }
            Self::Bind(bind) => Box::new([&bind.value, &bind.body].into_iter()),
            Self::Folded { of, .. } => Box::new(std::iter::once(&**of)),
        }
    }

    pub(crate) fn children_mut(&mut self) -> Box<dyn Iterator<Item = &mut Expr> + '_> {
        match self {
            Self::Literal(_) | Self::Ident(_) => Box::new(std::iter::empty()),
            Self::Select { operand, .. } => Box::new(std::iter::once(&mut **operand)),
            Self::Call(call) => Box::new(call.target.as_deref_mut().into_iter().chain(&mut call.args)),
            Self::List { elements, .. } => Box::new(elements.iter_mut()),
            Self::Map(entries) => Box::new(entries.iter_mut().flat_map(|entry| [&mut entry.key, &mut entry.value])),
            Self::Struct { fields, .. } => Box::new(fields.iter_mut().map(|field| &mut field.value)),
            Self::Comprehension(fold) => {
                let fold = &mut **fold;
                let parts = [
                    &mut fold.range,
                    &mut fold.initial,
                    &mut fold.condition,
                    &mut fold.step,
                    &mut fold.result,
                ];
                Box::new(parts.into_iter())
            }
            Self::Bind(bind) => {
                let bind = &mut **bind;
                Box::new([&mut bind.value, &mut bind.body].into_iter())
            }
            Self::Folded { of, .. } => Box::new(std::iter::once(&mut **of)),
        }
    }

    /// True if a macro created the node.
    pub(crate) const fn is_made(&self) -> bool {
        matches!(self, Self::Comprehension(_) | Self::Bind(_))
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) function: String,
    pub(crate) target: Option<Box<Expr>>,
    pub(crate) args: Vec<Expr>,
    /// Set by the checker.
    pub(crate) implementation: Option<Function>,
}

impl Call {
    /// The target, if any, followed by the arguments.
    pub(crate) fn operands(&self) -> impl Iterator<Item = &Expr> {
        self.target.as_deref().into_iter().chain(&self.args)
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) key: Expr,
    pub(crate) value: Expr,
    pub(crate) optional: bool,
}

/// A field of a constructed object.
#[derive(Clone, Debug)]
pub(crate) struct Initializer {
    pub(crate) name: String,
    /// Offset of the colon.
    pub(crate) at: usize,
    pub(crate) value: Expr,
    /// Written `?name: value`.
    pub(crate) optional: bool,
}

/// A fold over a list or a map.
#[derive(Clone, Debug)]
pub(crate) struct Comprehension {
    pub(crate) range: Expr,
    pub(crate) variable: String,
    pub(crate) second: Option<String>,
    pub(crate) initial: Expr,
    pub(crate) condition: Expr,
    pub(crate) step: Expr,
    pub(crate) result: Expr,
}

/// Unwrapping of the value of a [`Bind`], and wrapping of its result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Binding {
    /// The value itself.
    Plain,
    /// The content of an optional; the result becomes an optional.
    Map,
    /// The content of an optional; the result is already an optional.
    FlatMap,
}

/// A variable bound to a value for one expression.
#[derive(Clone, Debug)]
pub(crate) struct Bind {
    pub(crate) binding: Binding,
    pub(crate) variable: String,
    pub(crate) value: Expr,
    pub(crate) body: Expr,
}
