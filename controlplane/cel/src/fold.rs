//! Constant folding of lists, maps and conversions at compile time: they cost nothing at evaluation
//! (`decOptimize` of `cel-go/interpreter/decorators.go`).

use std::collections::BTreeMap;

use crate::functions::Context;
use crate::syntax::ast::{Expr, Kind};
use crate::value::json::Map;
use crate::value::{Entries, Error, Value};

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
///
/// # Errors
/// The conversion of a constant fails.
pub(crate) fn fold(expr: &mut Expr) -> Result<(), Error> {
    expr.kind.children_mut().try_for_each(fold)?;
    let Some(value) = value(&expr.kind)? else {
        return Ok(());
    };
    let of = Box::new(Expr {
        kind: std::mem::replace(&mut expr.kind, Kind::Literal(Value::Null)),
        ..*expr
    });
    expr.kind = Kind::Folded { value, of };
    Ok(())
}

fn constant(expr: &Expr) -> Option<Value<'static>> {
    match &expr.kind {
        Kind::Literal(value) | Kind::Folded { value, .. } => Some(value.clone()),
        _ => None,
    }
}

fn value(kind: &Kind) -> Result<Option<Value<'static>>, Error> {
    let Kind::Call(call) = kind else {
        return Ok(literal(kind));
    };
    let ([argument], None) = (call.args.as_slice(), &call.target) else {
        return Ok(None);
    };
    let argument = constant(argument).filter(|_| CONVERSIONS.contains(&call.function.as_str()));
    let (Some(argument), Some(convert)) = (argument, call.implementation) else {
        return Ok(None);
    };
    let patterns = BTreeMap::new();
    match convert(&mut Context::new(&patterns), &[argument]) {
        Ok(value) => Ok(Some(value)),
        Err(Error::Cost) => Ok(None),
        Err(error) => Err(error),
    }
}

fn literal(kind: &Kind) -> Option<Value<'static>> {
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
        _ => None,
    }
}
