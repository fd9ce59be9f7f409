//! Estimated cost of an expression, from the limits in the schemas of its variables
//! (`cel-go/checker/cost.go`, `k8s.io/apiserver/pkg/cel/library/cost.go`).

mod calls;

use crate::check::Types;
use crate::cost::actual::{LIST_COST, MAP_COST, STRUCT_COST, tenth};
use crate::schema::{Schema, Shape};
use crate::syntax::ast::{ACCUMULATOR, Bind, Binding, Call, Comprehension, Entry, Expr, Kind};
use crate::types::Type;
use crate::value::Value;

use calls::{Given, of_function};

/// A range of costs or sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// Minimum.
    pub min: u64,
    /// Maximum.
    pub max: u64,
}

const ZERO: Range = Range::exactly(0);
const ONE: Range = Range::exactly(1);
const UNKNOWN: Range = Range { min: 0, max: u64::MAX };

impl Range {
    const fn exactly(value: u64) -> Self {
        Self { min: value, max: value }
    }

    fn each(self, run: impl Fn(u64) -> u64) -> Self {
        Self {
            min: run(self.min),
            max: if self.max == u64::MAX { u64::MAX } else { run(self.max) },
        }
    }

    fn plus(self, other: Self) -> Self {
        Self {
            min: self.min.saturating_add(other.min),
            max: self.max.saturating_add(other.max),
        }
    }

    fn times(self, other: Self) -> Self {
        Self {
            min: self.min.saturating_mul(other.min),
            max: self.max.saturating_mul(other.max),
        }
    }

    fn or(self, other: Self) -> Self {
        Self {
            min: self.min.min(other.min),
            max: self.max.max(other.max),
        }
    }
}

/// Known properties of a node's value.
#[derive(Clone, Copy, Default)]
struct Shown<'s> {
    size: Option<Range>,
    /// Size of its items or values.
    entry: Option<Range>,
    /// Schema of the value.
    schema: Option<&'s Schema>,
    /// Schema of its items, if an expression built the list from items of that schema.
    element: Option<&'s Schema>,
    /// Schema of `self`, if a function returned the value: without a path to it, upstream looks for
    /// its items at the root (`EstimateSize` in
    /// `k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel/compilation.go`).
    root: Option<&'s Schema>,
}

impl<'s> Shown<'s> {
    fn of(schema: Option<&'s Schema>) -> Self {
        Self {
            schema,
            ..Self::default()
        }
    }

    fn items(&self) -> Self {
        let inner = match self.schema.map(|schema| &schema.shape) {
            Some(Shape::List { items, .. }) => Some(&**items),
            Some(Shape::Map(values)) => Some(&**values),
            _ => self.element,
        };
        Self {
            size: self.entry,
            ..Self::of(inner)
        }
    }

    /// An item as an index or a comprehension reads it.
    fn item(&self) -> Self {
        let items = self.items();
        Self {
            schema: items.schema.or(self.root),
            ..items
        }
    }
}

struct Estimator<'t, 's> {
    types: &'t Types,
    locals: Vec<(String, Shown<'s>)>,
    root: Option<&'s Schema>,
}

pub(crate) fn estimate(expr: &Expr, types: &Types, variables: &[(&str, &Schema)]) -> Range {
    let mut estimator = Estimator {
        types,
        locals: variables
            .iter()
            .map(|(name, schema)| ((*name).to_owned(), Shown::of(Some(schema))))
            .collect(),
        root: variables.first().map(|(_, schema)| *schema),
    };
    estimator.visit(expr).0
}

/// True if a tree reads a variable.
pub(crate) fn uses(expr: &Expr, variable: &str) -> bool {
    matches!(&expr.kind, Kind::Ident(name) if name == variable)
        || expr.kind.children().any(|child| uses(child, variable))
}

/// True if a tree selects a field of a variable, tests it or selects it as an optional
/// (`hasSelectExp` of `k8s.io/apiserver/pkg/apis/apiserver/validation/validation.go`).
pub(crate) fn selects(expr: &Expr, variable: &str, name: &str) -> bool {
    let is_variable = |expr: &Expr| matches!(&expr.written().kind, Kind::Ident(own) if own == variable);
    let own = match &expr.kind {
        Kind::Select { operand, field, .. } => field == name && is_variable(operand),
        Kind::Call(call) if call.function == "_?._" => match call.args.as_slice() {
            [operand, field] => {
                let is_field = matches!(&field.written().kind, Kind::Literal(value) if value.as_str() == Some(name));
                is_field && is_variable(operand)
            }
            _ => false,
        },
        _ => false,
    };
    own || expr.kind.children().any(|child| selects(child, variable, name))
}

const fn scalar(of: &Type) -> bool {
    matches!(
        of,
        Type::Bool | Type::Double | Type::Duration | Type::Int | Type::Timestamp | Type::Uint
    )
}

impl<'s> Estimator<'_, 's> {
    fn type_of(&self, expr: &Expr) -> &Type {
        self.types.get(expr.id).unwrap_or(&Type::Dyn)
    }

    /// Size of a node's value, from its literal, its schema or its type.
    fn size(&self, expr: &Expr, shown: &Shown<'_>) -> Range {
        let known = match &expr.written().kind {
            Kind::Literal(value) => Some(Range::exactly(value.size())),
            Kind::List { elements, .. } => Some(Range::exactly(u64::try_from(elements.len()).unwrap_or(u64::MAX))),
            Kind::Map(entries) => Some(Range::exactly(u64::try_from(entries.len()).unwrap_or(u64::MAX))),
            _ => None,
        };
        let declared = || {
            shown
                .schema
                .and_then(|schema| schema.max)
                .map(|max| Range { min: 0, max })
        };
        let of = self.type_of(expr);
        let typed = match of {
            Type::Optional(inner) => scalar(inner),
            other => scalar(other),
        };
        shown
            .size
            .or(known)
            .or_else(declared)
            .or(typed.then_some(ONE))
            .unwrap_or(UNKNOWN)
    }

    fn visit(&mut self, expr: &Expr) -> (Range, Shown<'s>) {
        let expr = expr.written();
        match &expr.kind {
            Kind::Literal(_) | Kind::Folded { .. } => (ZERO, Shown::default()),
            Kind::Ident(name) => {
                let found = self.locals.iter().rev().find(|(known, _)| known == name);
                (ONE, found.map(|(_, shown)| *shown).unwrap_or_default())
            }
            Kind::Select { operand, field, test } => {
                let (cost, of) = self.visit(operand);
                if *test {
                    return (cost, Shown::default());
                }
                let shown = Self::field(&of, field);
                let counted = matches!(
                    self.type_of(operand),
                    Type::Map(..) | Type::Object(_) | Type::Struct(_) | Type::Dyn
                );
                (if counted { cost.plus(ONE) } else { cost }, shown)
            }
            Kind::Call(call) => self.call(expr, call),
            Kind::List { elements, .. } => self.list(elements),
            Kind::Map(entries) => self.map(entries),
            Kind::Struct { fields, .. } => {
                let inner = fields
                    .iter()
                    .map(|field| self.visit(&field.value).0)
                    .fold(ZERO, Range::plus);
                (inner.plus(Range::exactly(STRUCT_COST)), Shown::default())
            }
            Kind::Comprehension(fold) => self.fold(fold),
            Kind::Bind(bind) => self.bind(bind),
        }
    }

    fn list(&mut self, elements: &[Expr]) -> (Range, Shown<'s>) {
        let (mut cost, mut entry, mut schema) = (Range::exactly(LIST_COST), None, None);
        for element in elements {
            let (more, shown) = self.visit(element);
            cost = cost.plus(more);
            let size = self.size(element, &shown);
            entry = Some(entry.map_or(size, |known: Range| known.or(size)));
            schema = shown.schema;
        }
        let shown = Shown {
            entry: Some(entry.unwrap_or(ZERO)),
            element: schema.filter(|_| elements.len() == 1),
            ..Shown::default()
        };
        (cost, shown)
    }

    fn map(&mut self, entries: &[Entry]) -> (Range, Shown<'s>) {
        let (mut cost, mut inner) = (Range::exactly(MAP_COST), None);
        for entry in entries {
            cost = cost.plus(self.visit(&entry.key).0);
            let (more, shown) = self.visit(&entry.value);
            cost = cost.plus(more);
            let size = self.size(&entry.value, &shown);
            inner = Some(inner.map_or(size, |known: Range| known.or(size)));
        }
        let shown = Shown {
            entry: Some(inner.unwrap_or(ZERO)),
            ..Shown::default()
        };
        (cost, shown)
    }

    fn bind(&mut self, bind: &Bind) -> (Range, Shown<'s>) {
        let (cost, mut shown) = self.visit(&bind.value);
        shown.size = Some(self.size(&bind.value, &shown));
        self.locals.push((bind.variable.clone(), shown));
        let (body, mut outcome) = self.visit(&bind.body);
        outcome.size = Some(self.size(&bind.body, &outcome));
        self.locals.pop();
        let lazy = if bind.binding == Binding::Plain {
            body
        } else {
            Range { min: 0, max: body.max }
        };
        (cost.plus(lazy).plus(Range::exactly(LIST_COST)), outcome)
    }

    fn field(of: &Shown<'s>, name: &str) -> Shown<'s> {
        match of.schema.map(|schema| &schema.shape) {
            Some(Shape::Object(object)) => Shown::of(object.field(name).map(|field| &field.schema)),
            // Upstream considers fields only, not the values of maps.
            _ => Shown::default(),
        }
    }

    fn fold(&mut self, fold: &Comprehension) -> (Range, Shown<'s>) {
        let (range_cost, range) = self.visit(&fold.range);
        let (initial_cost, mut initial) = self.visit(&fold.initial);
        initial.size = Some(self.size(&fold.initial, &initial));
        let rounds = self.size(&fold.range, &range);
        let keys = Shown {
            // Upstream gives the type of keys no size (`KeyType` in
            // `k8s.io/apiserver/pkg/cel/types.go`).
            size: Some(ZERO),
            ..Shown::default()
        };
        let base = self.locals.len();
        self.locals.push((ACCUMULATOR.to_owned(), initial));
        let map = matches!(self.type_of(&fold.range), Type::Map(..));
        match &fold.second {
            Some(second) => {
                let first = if map {
                    keys
                } else {
                    Shown {
                        size: Some(ONE),
                        ..Shown::default()
                    }
                };
                self.locals.push((fold.variable.clone(), first));
                self.locals.push((second.clone(), range.item()));
            }
            None => self
                .locals
                .push((fold.variable.clone(), if map { keys } else { range.item() })),
        }
        let condition = self.visit(&fold.condition).0;
        let (step, grown) = self.visit(&fold.step);
        self.locals.truncate(base + 1);
        let result = self.visit(&fold.result).0;
        self.locals.truncate(base);
        let cost = range_cost
            .plus(initial_cost)
            .plus(result)
            .plus(rounds.times(step.plus(condition)));
        let shown = match &fold.initial.written().kind {
            Kind::List { .. } | Kind::Map(_) => Shown {
                size: Some(rounds),
                entry: grown.entry,
                element: grown.element,
                ..Shown::default()
            },
            _ => Shown {
                size: Some(ONE),
                ..Shown::default()
            },
        };
        (cost, shown)
    }

    fn call(&mut self, expr: &Expr, call: &Call) -> (Range, Shown<'s>) {
        let parts: Vec<Part<'_, 's>> = call
            .operands()
            .map(|operand| {
                let (cost, shown) = self.visit(operand);
                (operand, cost, shown)
            })
            .collect();
        let sum = parts.iter().map(|(_, cost, _)| *cost).fold(ZERO, Range::plus);
        match (call.function.as_str(), parts.as_slice()) {
            ("dyn" | "value" | "orValue" | "or" | "optional.of", [(operand, _, shown), ..]) => {
                let size = Some(self.size(operand, shown));
                (sum.plus(ONE), Shown { size, ..*shown })
            }
            ("_&&_" | "_||_", [(_, left, _), _]) => {
                let min = left.min;
                (Range { min, max: sum.max }, Shown::default())
            }
            ("_?_:_", [(_, condition, _), positive, negative]) => {
                let outcome = self.either(positive, negative);
                (condition.plus(positive.1.or(negative.1)), outcome)
            }
            ("_[_]", [(_, _, shown), _]) => (sum.plus(ONE), shown.item()),
            ("_[?_]", [(_, _, shown), _]) => (sum.plus(ONE), shown.items()),
            ("_?._", [(_, _, shown), (field, _, _)]) => {
                let name = match &field.kind {
                    Kind::Literal(Value::String(name)) => &**name,
                    _ => "",
                };
                (sum.plus(ONE), Self::field(shown, name))
            }
            ("_+_", [left, right]) => {
                let (cost, shown) = self.added(expr, left, right);
                (sum.plus(cost), shown)
            }
            // Upstream knows the cost of `matches` as a member only (`overloads.MatchesString`).
            ("matches", _) if call.target.is_none() => (sum.plus(ONE), Shown::default()),
            (function, _) => {
                let (cost, size) = of_function(function, &self.given(&parts));
                let shown = Shown {
                    size,
                    root: self.root,
                    ..Shown::default()
                };
                (sum.plus(cost), shown)
            }
        }
    }

    /// The value of a conditional: one of two.
    fn either(&self, (left, _, shown): &Part<'_, 's>, (right, _, other): &Part<'_, 's>) -> Shown<'s> {
        Shown {
            size: Some(self.size(left, shown).or(self.size(right, other))),
            entry: widest(shown.entry, other.entry),
            schema: shown.schema,
            element: shown.element.or(other.element),
            root: shown.root.or(other.root),
        }
    }

    fn added(
        &self,
        expr: &Expr,
        (left, _, shown): &Part<'_, 's>,
        (right, _, other): &Part<'_, 's>,
    ) -> (Range, Shown<'s>) {
        let size = self.size(left, shown).plus(self.size(right, other));
        let of = self.type_of(expr);
        let outcome = Shown {
            size: (!scalar(of)).then_some(size),
            entry: widest(shown.entry.or(shown.items().size), other.entry),
            schema: None,
            element: shown.element.or(shown.items().schema).or(other.element),
            root: shown.root.or(other.root),
        };
        let text = matches!(of, Type::String | Type::Bytes | Type::Dyn);
        (if text { size.each(tenth) } else { ONE }, outcome)
    }

    fn given(&self, parts: &[Part<'_, 's>]) -> Given<'_> {
        let elements = parts.first().and_then(|(_, _, shown)| {
            let items = shown.items();
            let declared = items.schema.and_then(|schema| schema.max);
            items.size.or(declared.map(|max| Range { min: 0, max }))
        });
        Given {
            types: parts.iter().map(|(operand, _, _)| self.type_of(operand)).collect(),
            literals: parts.iter().map(|(operand, _, _)| literal(operand)).collect(),
            sizes: parts
                .iter()
                .map(|(operand, _, shown)| self.size(operand, shown))
                .collect(),
            elements: elements.unwrap_or(UNKNOWN),
        }
    }
}

/// An operand, its cost and what is known of its value.
type Part<'e, 's> = (&'e Expr, Range, Shown<'s>);

fn widest(left: Option<Range>, right: Option<Range>) -> Option<Range> {
    match (left, right) {
        (Some(left), Some(right)) => Some(left.or(right)),
        (left, right) => left.or(right),
    }
}

fn literal(expr: &Expr) -> Option<u64> {
    match &expr.kind {
        Kind::Literal(Value::Int(number)) => Some(u64::try_from(*number).unwrap_or(0)),
        _ => None,
    }
}
