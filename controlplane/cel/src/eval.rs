//! Evaluation of a checked tree, with upstream's cost for each step
//! (`cel-go/interpreter/interpretable.go`, `runtimecost.go`).

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::cost::actual::{self, LIST_COST, MAP_COST, STRUCT_COST};
use crate::functions::{Context, add};
use crate::syntax::ast::{ACCUMULATOR, Bind, Binding, Call, Comprehension, Entry, Expr, Initializer, Kind};
use crate::value::json::{Map, bounded};
use crate::value::object::Object;
use crate::value::{Bindings, Entries, Error, Key, Value};

/// Rounds between two checks for an interruption (`CheckFrequency` of `pkg/apis/cel/config.go`).
const CHECK_FREQUENCY: u64 = 100;

pub(crate) struct Machine<'e, 'a> {
    pub(crate) bindings: &'e dyn Bindings<'a>,
    pub(crate) locals: Vec<(&'e str, Value<'a>)>,
    pub(crate) context: Context<'e>,
    pub(crate) cost: u64,
    pub(crate) limit: u64,
    pub(crate) rounds: u64,
}

impl<'e, 'a> Machine<'e, 'a> {
    fn charge(&mut self, cost: u64) -> Result<(), Error> {
        self.cost = self.cost.saturating_add(cost);
        if self.cost > self.limit {
            return Err(Error::Cost);
        }
        Ok(())
    }

    pub(crate) fn eval(&mut self, expr: &'e Expr) -> Result<Value<'a>, Error> {
        match &expr.kind {
            Kind::Literal(value) | Kind::Folded { value, .. } => Ok(value.clone()),
            Kind::Ident(name) => {
                self.charge(1)?;
                self.ident(name)
            }
            Kind::Select { operand, field, test } => {
                let of = self.eval(operand)?;
                if *test {
                    return present(&of, field).map(Value::Bool);
                }
                self.charge(1)?;
                select(&of, field)
            }
            Kind::Call(call) => self.call(call),
            Kind::List { elements, optional } => self.list(elements, optional),
            Kind::Map(entries) => self.map(entries),
            Kind::Struct { name, fields } => self.object(name, fields),
            Kind::Comprehension(fold) => self.fold(fold),
            Kind::Bind(bind) => self.bind(bind),
        }
    }

    /// Evaluates the branch of a conditional or an index: a variable there costs nothing.
    fn operand(&mut self, expr: &'e Expr) -> Result<Value<'a>, Error> {
        match &expr.kind {
            Kind::Ident(name) => self.ident(name),
            _ => self.eval(expr),
        }
    }

    fn ident(&self, name: &str) -> Result<Value<'a>, Error> {
        if let Some((_, value)) = self.locals.iter().rev().find(|(known, _)| *known == name) {
            return Ok(value.clone());
        }
        self.bindings
            .get(name)
            .unwrap_or_else(|| Err(Error::new(format!("no such attribute(s): {name}"))))
    }

    /// Takes the accumulator's value out: its replacement follows at once, so it can grow in place.
    fn taken(&mut self) -> Result<Value<'a>, Error> {
        self.charge(1)?;
        let place = self.locals.iter_mut().rev().find(|(known, _)| *known == ACCUMULATOR);
        Ok(place.map(|(_, value)| std::mem::take(value)).unwrap_or_default())
    }

    fn call(&mut self, call: &'e Call) -> Result<Value<'a>, Error> {
        match (call.function.as_str(), call.args.as_slice()) {
            ("_&&_", [left, right]) => return self.logical(left, right, false),
            ("_||_", [left, right]) => return self.logical(left, right, true),
            ("_?_:_", [condition, positive, negative]) => {
                return match self.eval(condition)? {
                    Value::Bool(true) => self.operand(positive),
                    Value::Bool(false) => self.operand(negative),
                    _ => Err(Error::overload()),
                };
            }
            ("@not_strictly_false", [operand]) => {
                self.charge(1)?;
                return match self.eval(operand) {
                    Ok(Value::Bool(false)) => Ok(Value::Bool(false)),
                    Err(Error::Cost) => Err(Error::Cost),
                    Ok(_) | Err(_) => Ok(Value::Bool(true)),
                };
            }
            ("_?._", [operand, field]) => {
                let of = self.eval(operand)?;
                let found = optional_select(&of, field)?;
                self.charge(u64::from(matches!(found, Value::Optional(Some(_)))))?;
                return Ok(found);
            }
            ("_+_", [left, right]) if is_accumulator(left) => {
                let left = self.taken()?;
                let right = self.eval(right)?;
                self.charge(1)?;
                return add(&mut self.context, left, &right);
            }
            ("cel.@mapInsert", [map, rest @ ..]) if is_accumulator(map) => {
                let Value::Map(map) = self.taken()? else {
                    return Err(Error::overload());
                };
                return self.insert(map, rest);
            }
            ("or" | "orValue", [other]) => {
                if let Some(target) = &call.target {
                    return match self.eval(target)? {
                        Value::Optional(None) => self.eval(other),
                        Value::Optional(Some(content)) if call.function == "orValue" => Ok((*content).clone()),
                        found @ Value::Optional(Some(_)) => Ok(found),
                        _ => Err(Error::overload()),
                    };
                }
            }
            _ => {}
        }
        let mut args = Vec::with_capacity(call.args.len() + 1);
        for operand in call.operands() {
            let is_index = call.function == "_[_]" && args.len() == 1;
            args.push(if is_index {
                self.operand(operand)?
            } else {
                self.eval(operand)?
            });
        }
        let run = call.implementation.ok_or_else(Error::overload)?;
        // The cost by the arguments is charged before the function runs.
        let is_set = call.function == "@in" && call.args.get(1).is_some_and(is_set);
        self.charge(if is_set {
            0
        } else {
            actual::before(&call.function, &args)
        })?;
        self.charge(actual::nested(&call.function, &args))?;
        let result = run(&mut self.context, &args)?;
        self.charge(actual::after(&call.function, &result))?;
        Ok(result)
    }

    fn insert(&mut self, map: Map<'a>, rest: &'e [Expr]) -> Result<Value<'a>, Error> {
        self.charge(1)?;
        let entry = size_of::<(Key<'_>, Value<'_>)>();
        match rest {
            [key, value] => {
                let key = self.eval(key)?;
                let value = self.eval(value)?;
                self.context.allocate(entry)?;
                let key = key
                    .to_key()
                    .ok_or_else(|| Error::new(format!("unsupported key type: {}", key.type_name())))?;
                map.insert(key, value).map(Value::Map)
            }
            [more] => {
                let Value::Map(more) = self.eval(more)? else {
                    return Err(Error::overload());
                };
                let mut map = map;
                for key in more.keys() {
                    self.context.allocate(entry)?;
                    if let Some(value) = more.get(&key) {
                        map = map.insert(key, value?)?;
                    }
                }
                Ok(Value::Map(map))
            }
            _ => Err(Error::overload()),
        }
    }

    /// `&&` and `||`: one side may decide even if the other one fails.
    fn logical(&mut self, left: &'e Expr, right: &'e Expr, decides: bool) -> Result<Value<'a>, Error> {
        let first = self.eval(left);
        match &first {
            Ok(Value::Bool(value)) if *value == decides => return first,
            Err(Error::Cost) => return first,
            Ok(_) | Err(_) => {}
        }
        let second = self.eval(right);
        match (first, second) {
            (_, Err(Error::Cost)) => Err(Error::Cost),
            (_, Ok(Value::Bool(value))) if value == decides => Ok(Value::Bool(value)),
            (Ok(Value::Bool(_)), Ok(Value::Bool(_))) => Ok(Value::Bool(!decides)),
            (Err(error), _) | (Ok(Value::Bool(_)), Err(error)) => Err(error),
            (Ok(_), _) => Err(Error::overload()),
        }
    }

    fn list(&mut self, elements: &'e [Expr], optional: &[usize]) -> Result<Value<'a>, Error> {
        self.charge(beyond(elements.len()))?;
        let mut items = Vec::with_capacity(elements.len());
        for (index, element) in elements.iter().enumerate() {
            let value = self.eval(element)?;
            if optional.contains(&index) {
                let Value::Optional(content) = value else {
                    return Err(not_optional(&value));
                };
                items.extend(content.map(|content| (*content).clone()));
            } else {
                items.push(value);
            }
        }
        self.charge(LIST_COST)?;
        let made = Value::from(items);
        bounded(made.all())?;
        Ok(made)
    }

    fn map(&mut self, entries: &'e [Entry]) -> Result<Value<'a>, Error> {
        self.charge(beyond(entries.len()))?;
        let mut made = Entries::new();
        for entry in entries {
            let key = self.eval(&entry.key)?;
            let mut value = self.eval(&entry.value)?;
            if entry.optional {
                let Value::Optional(content) = value else {
                    return Err(not_optional(&value));
                };
                let Some(content) = content else {
                    continue;
                };
                value = (*content).clone();
            }
            let key = key
                .to_key()
                .ok_or_else(|| Error::new(format!("unsupported key type: {}", key.type_name())))?;
            made.insert(key, value);
        }
        self.charge(MAP_COST)?;
        let made = Value::Map(Map::from(made));
        bounded(made.all())?;
        Ok(made)
    }

    fn object(&mut self, name: &str, fields: &'e [Initializer]) -> Result<Value<'a>, Error> {
        self.charge(beyond(fields.len()))?;
        let mut made = BTreeMap::new();
        for field in fields {
            let mut value = self.eval(&field.value)?;
            if field.optional {
                let Value::Optional(content) = value else {
                    return Err(not_optional(&value));
                };
                let Some(content) = content else {
                    made.remove(&*field.name);
                    continue;
                };
                value = (*content).clone();
            }
            made.insert(Arc::from(field.name.as_str()), value);
        }
        self.charge(STRUCT_COST)?;
        Object::new(name, made).map(|object| Value::Object(Arc::new(object)))
    }

    fn fold(&mut self, fold: &'e Comprehension) -> Result<Value<'a>, Error> {
        let range = self.eval(&fold.range)?;
        let initial = self.eval(&fold.initial)?;
        let base = self.locals.len();
        self.locals.push((ACCUMULATOR, initial));
        let outcome = self.rounds(fold, &range, base);
        let result = outcome.and_then(|()| self.eval(&fold.result)).and_then(Value::settled);
        self.locals.truncate(base);
        result
    }

    fn rounds(&mut self, fold: &'e Comprehension, range: &Value<'a>, base: usize) -> Result<(), Error> {
        match range {
            Value::List(list) => {
                for (index, item) in list.iter().enumerate() {
                    let variables = if fold.second.is_some() {
                        (Value::length(index), Some(item?))
                    } else {
                        (item?, None)
                    };
                    if !self.round(fold, variables, base)? {
                        break;
                    }
                }
            }
            Value::Map(map) => {
                for key in map.keys() {
                    let value = if fold.second.is_some() {
                        map.get(&key).transpose()?
                    } else {
                        None
                    };
                    if !self.round(fold, (key.to_value(), value), base)? {
                        break;
                    }
                }
            }
            _ => return Err(Error::overload()),
        }
        Ok(())
    }

    /// Runs one iteration; returns false when the fold has ended.
    fn round(
        &mut self,
        fold: &'e Comprehension,
        (first, second): (Value<'a>, Option<Value<'a>>),
        base: usize,
    ) -> Result<bool, Error> {
        self.rounds += 1;
        if self.rounds.is_multiple_of(CHECK_FREQUENCY) && self.bindings.is_interrupted() {
            // Other errors would not end enclosing comprehensions.
            return Err(Error::Cost);
        }
        self.locals.truncate(base + 1);
        self.locals.push((fold.variable.as_str(), first));
        if let (Some(name), Some(value)) = (&fold.second, second) {
            self.locals.push((name.as_str(), value));
        }
        // The error of a failed step is the quantifier's value until a later step decides
        // otherwise.
        if !matches!(self.eval(&fold.condition)?, Value::Bool(true)) {
            self.locals.truncate(base + 1);
            return Ok(false);
        }
        let step = self.step(fold);
        self.locals.truncate(base + 1);
        match (self.locals.get_mut(base), step) {
            (Some((_, place)), Ok(value)) => {
                *place = value;
                Ok(true)
            }
            (_, step) => step.map(|_| false),
        }
    }

    fn step(&mut self, fold: &'e Comprehension) -> Result<Value<'a>, Error> {
        let Kind::Call(call) = &fold.step.kind else {
            return self.eval(&fold.step);
        };
        let decides = match call.function.as_str() {
            "_&&_" => false,
            "_||_" => true,
            _ => return self.eval(&fold.step),
        };
        let [_, predicate] = call.args.as_slice() else {
            return Err(Error::overload());
        };
        let before = self.taken()?;
        match self.eval(predicate) {
            Ok(Value::Bool(value)) if value == decides => Ok(Value::Bool(value)),
            Ok(Value::Bool(_)) => Ok(before),
            Ok(_) => Ok(failed(&before, Error::overload())),
            Err(Error::Cost) => Err(Error::Cost),
            Err(error) => Ok(failed(&before, error)),
        }
    }

    fn bind(&mut self, bind: &'e Bind) -> Result<Value<'a>, Error> {
        let value = self.eval(&bind.value)?;
        let content = match (bind.binding, value) {
            (Binding::Plain, value) => value,
            (_, Value::Optional(None)) => {
                // `hasValue()` and `optional.none()`, to which upstream's macro expands.
                self.charge(2)?;
                return Ok(Value::Optional(None));
            }
            (binding, Value::Optional(Some(content))) => {
                // `hasValue()`, `value()` and possibly `optional.of()`.
                self.charge(if binding == Binding::Map { 3 } else { 2 })?;
                Arc::unwrap_or_clone(content)
            }
            _ => return Err(Error::overload()),
        };
        self.locals.push((bind.variable.as_str(), content));
        let body = self.eval(&bind.body);
        self.locals.pop();
        Ok(match bind.binding {
            Binding::Plain | Binding::FlatMap => body?,
            Binding::Map => Value::some(body?),
        })
    }
}

/// Cost of the parts of a literal. Upstream does not count those, but limits the evaluation time.
fn beyond(parts: usize) -> u64 {
    /// Number of parts that are included in the cost of the whole.
    const USUAL: usize = 100;
    u64::try_from(parts.saturating_sub(USUAL) / 4).unwrap_or(u64::MAX)
}

/// True for a constant list that upstream converts to a set (`maybeOptimizeSetMembership` of
/// `cel-go/interpreter/decorators.go`).
fn is_set(expr: &Expr) -> bool {
    let Kind::Folded {
        value: Value::List(list),
        ..
    } = &expr.kind
    else {
        return false;
    };
    let is_scalar = |item: Result<Value<'_>, Error>| {
        matches!(
            item,
            Ok(Value::Bool(_) | Value::Int(_) | Value::Uint(_) | Value::Double(_) | Value::String(_) | Value::Null)
        )
    };
    list.iter().all(is_scalar)
}

fn is_accumulator(expr: &Expr) -> bool {
    matches!(&expr.kind, Kind::Ident(name) if name == ACCUMULATOR)
}

fn not_optional(value: &Value<'_>) -> Error {
    Error::new(format!(
        "cannot initialize optional entry from non-optional value {}",
        value.type_name()
    ))
}

fn missing(field: &str) -> Error {
    Error::new(format!("no such key: {field}"))
}

/// `of.field`
fn select<'a>(of: &Value<'a>, field: &str) -> Result<Value<'a>, Error> {
    match of {
        Value::Map(map) => map.field(field).unwrap_or_else(|| Err(missing(field))),
        Value::Object(object) if object.is_patch() => object.part(field),
        Value::Optional(None) => Ok(Value::Optional(None)),
        Value::Optional(Some(content)) => optional_field(content, field),
        _ => Err(Error::overload()),
    }
}

fn present(of: &Value<'_>, field: &str) -> Result<bool, Error> {
    match of {
        Value::Map(map) => Ok(map.field(field).transpose()?.is_some()),
        Value::Object(object) if object.is_patch() => Ok(object.has(field)),
        Value::Optional(None) => Ok(false),
        Value::Optional(Some(content)) => present(content, field),
        _ => Err(Error::overload()),
    }
}

fn optional_field<'a>(of: &Value<'a>, field: &str) -> Result<Value<'a>, Error> {
    match of {
        Value::Map(map) => Ok(map.field(field).transpose()?.map_or(Value::Optional(None), Value::some)),
        _ => Err(Error::overload()),
    }
}

/// `of.?field`
fn optional_select<'a>(of: &Value<'a>, field: &Expr) -> Result<Value<'a>, Error> {
    let Kind::Literal(Value::String(field)) = &field.kind else {
        return Err(Error::overload());
    };
    match of {
        Value::Optional(None) => Ok(Value::Optional(None)),
        Value::Optional(Some(content)) => optional_field(content, field),
        other => optional_field(other, field),
    }
}

/// Value of a quantifier after a failed step: the first error wins.
fn failed<'a>(before: &Value<'a>, error: Error) -> Value<'a> {
    if let Value::Failed(_) = before {
        before.clone()
    } else {
        Value::Failed(Arc::new(error))
    }
}

impl Value<'_> {
    /// Returns the value, or the error that it stands for.
    pub(crate) fn settled(self) -> Result<Self, Error> {
        match self {
            Self::Failed(error) => Err((*error).clone()),
            other => Ok(other),
        }
    }
}
