//! Constant lists, maps and conversions, evaluated when an expression is compiled: they cost nothing later
//! (`cel-go/interpreter/decorators.go`, `decOptimize`).

use std::collections::BTreeMap;

use crate::functions::Context;
use crate::json::Map;
use crate::syntax::ast::{Expr, Kind};
use crate::value::{Entries, Value};

const CONVERSIONS: &[&str] = &[
    "bool",
    "bytes",
    "double",
    "duration",
    "dyn",
    "int",
    "string",
    "timestamp",
    "type",
    "uint",
];

/// Replaces the constant parts of a checked tree by their values.
pub(crate) fn fold(expr: &mut Expr) {
    expr.kind.children_mut().for_each(fold);
    let Some(value) = value(&expr.kind) else {
        return;
    };
    let of = Box::new(Expr {
        kind: std::mem::replace(&mut expr.kind, Kind::Literal(Value::Null)),
        ..*expr
    });
    expr.kind = Kind::Folded { value, of };
}

fn constant(expr: &Expr) -> Option<Value<'static>> {
    match &expr.kind {
        Kind::Literal(value) | Kind::Folded { value, .. } => Some(value.clone()),
        _ => None,
    }
}

fn value(kind: &Kind) -> Option<Value<'static>> {
    match kind {
        Kind::List { elements, optional } if optional.is_empty() => {
            let items = elements.iter().map(constant);
            items.collect::<Option<Vec<_>>>().map(Value::from)
        }
        Kind::Map(entries) => {
            let mut made = Entries::new();
            for entry in entries {
                let key = constant(&entry.key)?.to_key()?;
                let value = constant(&entry.value).filter(|_| !entry.optional)?;
                made.insert(key, value);
            }
            Some(Value::Map(Map::from(made)))
        }
        Kind::Call(call) if call.target.is_none() && CONVERSIONS.contains(&call.function.as_str()) => {
            let [argument] = call.args.as_slice() else {
                return None;
            };
            let argument = constant(argument)?;
            // What cannot be converted fails when it is evaluated.
            let patterns = BTreeMap::new();
            call.implementation?(&mut Context::new(&patterns), &[argument]).ok()
        }
        _ => None,
    }
}
