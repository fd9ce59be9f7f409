//! Quantities such as `500m` (`k8s.io/apiserver/pkg/cel/library/quantity.go`), and comparisons
//! shared with semantic versions.

use std::cmp::Ordering;

use api::quantity::Quantity;

use super::Function;
use super::standard::one;
use crate::value::{Error, Value};

pub(super) fn find(name: &str) -> Option<Function> {
    Some(match name {
        "quantity" => |_, args| {
            one(args, |value| {
                let text = value.as_str().ok_or_else(Error::overload)?;
                Quantity::parse(text)
                    .map(Value::Quantity)
                    .map_err(|error| Error::new(error.to_string()))
            })
        },
        "isQuantity" => |_, args| {
            one(args, |value| {
                let text = value.as_str().ok_or_else(Error::overload)?;
                Ok(Value::Bool(Quantity::parse(text).is_ok()))
            })
        },
        "sign" => |_, args| {
            of(args, |amount| {
                Ok(Value::Int(match amount.cmp(&Quantity::ZERO) {
                    Ordering::Less => -1,
                    Ordering::Equal => 0,
                    Ordering::Greater => 1,
                }))
            })
        },
        "isInteger" => |_, args| of(args, |amount| Ok(Value::Bool(integer(amount).is_some()))),
        "asInteger" => |_, args| {
            of(args, |amount| {
                integer(amount)
                    .map(Value::Int)
                    .ok_or_else(|| Error::new("cannot convert value to integer"))
            })
        },
        "asApproximateFloat" => |_, args| of(args, |amount| Ok(Value::Double(amount.per(Quantity::units(1))))),
        "add" => |_, args| combined(args, Quantity::plus),
        "sub" => |_, args| combined(args, Quantity::minus),
        "compareTo" => |_, args| {
            compared(args).map(|order| {
                Value::Int(match order {
                    Ordering::Less => -1,
                    Ordering::Equal => 0,
                    Ordering::Greater => 1,
                })
            })
        },
        "isGreaterThan" => |_, args| compared(args).map(|order| Value::Bool(order.is_gt())),
        "isLessThan" => |_, args| compared(args).map(|order| Value::Bool(order.is_lt())),
        _ => return None,
    })
}

fn of<'a>(args: &[Value<'a>], run: impl FnOnce(Quantity) -> Result<Value<'a>, Error>) -> Result<Value<'a>, Error> {
    one(args, |value| match value {
        Value::Quantity(amount) => run(*amount),
        _ => Err(Error::overload()),
    })
}

fn integer(amount: Quantity) -> Option<i64> {
    let value = amount.value();
    // The maximum stands for all larger values.
    (amount.is_whole() && value.unsigned_abs() < i64::MAX.unsigned_abs()).then_some(value)
}

fn combined<'a>(args: &[Value<'a>], join: fn(Quantity, Quantity) -> Quantity) -> Result<Value<'a>, Error> {
    match args {
        [Value::Quantity(left), Value::Quantity(right)] => Ok(Value::Quantity(join(*left, *right))),
        [Value::Quantity(left), Value::Int(right)] => Ok(Value::Quantity(join(*left, Quantity::units(*right)))),
        _ => Err(Error::overload()),
    }
}

fn compared(args: &[Value<'_>]) -> Result<Ordering, Error> {
    match args {
        [Value::Quantity(left), Value::Quantity(right)] => Ok(left.cmp(right)),
        [Value::Semver(left), Value::Semver(right)] => Ok(left.cmp(right)),
        _ => Err(Error::overload()),
    }
}
