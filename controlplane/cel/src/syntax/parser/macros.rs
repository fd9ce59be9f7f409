//! Macros: `has`, the quantifiers, `map`, `filter`, `sortBy`, the forms with two variables and
//! those for optionals (`cel-go/parser/macro.go`, `cel-go/ext/comprehensions.go`,
//! `cel-go/ext/lists.go`, `cel-go/cel/library.go`).

use super::Parser;
use crate::syntax::Issue;
use crate::syntax::ast::{ACCUMULATOR, Bind, Binding, Call, Comprehension, Expr, Kind};
use crate::value::Value;

/// A call of a global function, or the expansion of `has`.
pub(super) fn global(parser: &mut Parser<'_>, at: usize, function: &str, args: Vec<Expr>) -> Result<Expr, Issue> {
    if function != "has" || args.len() != 1 {
        return parser.call(at, function, args);
    }
    match args.into_iter().next() {
        Some(Expr {
            kind:
                Kind::Select {
                    operand,
                    field,
                    test: false,
                },
            ..
        }) => parser.expanded(
            at,
            Kind::Select {
                operand,
                field,
                test: true,
            },
        ),
        _ => Err(Issue {
            at,
            message: "invalid argument to has() macro".to_owned(),
        }),
    }
}

/// A call of a member function, or the expansion of the macro of that name.
pub(super) fn member(
    parser: &mut Parser<'_>,
    at: usize,
    target: Expr,
    function: &str,
    args: Vec<Expr>,
) -> Result<Expr, Issue> {
    let mut fold = Fold { parser, at };
    match (function, args.len()) {
        ("all" | "exists" | "exists_one" | "existsOne", 2 | 3) => fold.quantifier(target, function, args),
        ("map", 2 | 3) => fold.map(target, args),
        ("filter", 2) => fold.filter(target, args),
        ("transformList" | "transformMap" | "transformMapEntry", 3 | 4) => fold.transform(target, function, args),
        ("optMap" | "optFlatMap", 2) => {
            let binding = if function == "optMap" {
                Binding::Map
            } else {
                Binding::FlatMap
            };
            let [variable, body] = take(args, at)?;
            let variable = name(&variable)?;
            fold.bind(binding, variable, target, body)
        }
        ("sortBy", 2) => fold.sort_by(target, args),
        _ => parser.node(
            at,
            Kind::Call(Call {
                function: function.to_owned(),
                target: Some(Box::new(target)),
                args,
                implementation: None,
            }),
        ),
    }
}

fn take<const N: usize>(args: Vec<Expr>, at: usize) -> Result<[Expr; N], Issue> {
    args.try_into().map_err(|_args| Issue {
        at,
        message: "wrong number of arguments".to_owned(),
    })
}

/// Name of the variable in a macro's argument.
fn name(arg: &Expr) -> Result<String, Issue> {
    let refuse = |message: &str| {
        Err(Issue {
            at: arg.at,
            message: message.to_owned(),
        })
    };
    match &arg.kind {
        Kind::Ident(name) if name == "__result__" => refuse("iteration variable overwrites accumulator variable"),
        Kind::Ident(name) => Ok(name.clone()),
        _ => refuse("argument must be a simple name"),
    }
}

struct Fold<'p, 't> {
    parser: &'p mut Parser<'t>,
    at: usize,
}

/// Initial value, condition, step and result of a fold.
struct Shape {
    initial: Expr,
    condition: Expr,
    step: Expr,
    result: Expr,
}

/// Names of a fold's variables: the second one is optional.
type Variables = (String, Option<String>);

impl Fold<'_, '_> {
    fn literal(&mut self, value: Value<'static>) -> Result<Expr, Issue> {
        self.parser.expanded(self.at, Kind::Literal(value))
    }

    fn accumulator(&mut self) -> Result<Expr, Issue> {
        self.ident(ACCUMULATOR)
    }

    fn ident(&mut self, name: &str) -> Result<Expr, Issue> {
        self.parser.expanded(self.at, Kind::Ident(name.to_owned()))
    }

    fn call(&mut self, function: &str, args: Vec<Expr>) -> Result<Expr, Issue> {
        let call = Call {
            function: function.to_owned(),
            target: None,
            args,
            implementation: None,
        };
        self.parser.expanded(self.at, Kind::Call(call))
    }

    fn list(&mut self, elements: Vec<Expr>) -> Result<Expr, Issue> {
        let optional = Vec::new();
        self.parser.expanded(self.at, Kind::List { elements, optional })
    }

    fn over(&mut self, range: Expr, variables: Variables, shape: Shape) -> Result<Expr, Issue> {
        let fold = Comprehension {
            range,
            variable: variables.0,
            second: variables.1,
            initial: shape.initial,
            condition: shape.condition,
            step: shape.step,
            result: shape.result,
        };
        self.parser.expanded(self.at, Kind::Comprehension(Box::new(fold)))
    }

    fn bind(&mut self, binding: Binding, variable: String, value: Expr, body: Expr) -> Result<Expr, Issue> {
        let bind = Bind {
            binding,
            variable,
            value,
            body,
        };
        self.parser.expanded(self.at, Kind::Bind(Box::new(bind)))
    }

    /// Takes the variables from the first one or two arguments; returns them and the other
    /// arguments.
    fn variables(two: bool, args: Vec<Expr>) -> Result<(Variables, Vec<Expr>), Issue> {
        let mut args = args.into_iter();
        let mut next = || {
            args.next()
                .as_ref()
                .map(|arg| name(arg).map(|name| (name, arg.at)))
                .transpose()
        };
        let (first, _) = next()?.unwrap_or_default();
        let second = if two { next()? } else { None };
        if let Some((second, at)) = &second
            && *second == first
        {
            return Err(Issue {
                at: *at,
                message: format!("duplicate variable name: {first}"),
            });
        }
        Ok(((first, second.map(|(name, _)| name)), args.collect()))
    }

    fn quantifier(&mut self, range: Expr, function: &str, args: Vec<Expr>) -> Result<Expr, Issue> {
        if function == "existsOne" && args.len() == 2 {
            return self.quantifier(range, "exists_one", args);
        }
        let (variables, rest) = Self::variables(args.len() == 3, args)?;
        let [predicate] = take(rest, self.at)?;
        let accumulator = self.accumulator()?;
        let shape = match function {
            "all" => {
                let going = self.accumulator()?;
                Shape {
                    initial: self.literal(Value::Bool(true))?,
                    condition: self.call("@not_strictly_false", vec![going])?,
                    step: self.call("_&&_", vec![accumulator, predicate])?,
                    result: self.accumulator()?,
                }
            }
            "exists" => {
                let going = self.accumulator()?;
                let not = self.call("!_", vec![going])?;
                Shape {
                    initial: self.literal(Value::Bool(false))?,
                    condition: self.call("@not_strictly_false", vec![not])?,
                    step: self.call("_||_", vec![accumulator, predicate])?,
                    result: self.accumulator()?,
                }
            }
            _ => {
                let one = self.literal(Value::Int(1))?;
                let more = self.call("_+_", vec![accumulator, one])?;
                let same = self.accumulator()?;
                let found = self.accumulator()?;
                let one = self.literal(Value::Int(1))?;
                Shape {
                    initial: self.literal(Value::Int(0))?,
                    condition: self.literal(Value::Bool(true))?,
                    step: self.call("_?_:_", vec![predicate, more, same])?,
                    result: self.call("_==_", vec![found, one])?,
                }
            }
        };
        self.over(range, variables, shape)
    }

    /// A fold that extends a list or a map with `step` for elements that pass `filter`.
    fn grow(&mut self, initial: Expr, filter: Option<Expr>, step: Expr) -> Result<Shape, Issue> {
        let step = match filter {
            Some(filter) => {
                let same = self.accumulator()?;
                self.call("_?_:_", vec![filter, step, same])?
            }
            None => step,
        };
        Ok(Shape {
            initial,
            condition: self.literal(Value::Bool(true))?,
            step,
            result: self.accumulator()?,
        })
    }

    fn appended(&mut self, element: Expr) -> Result<Expr, Issue> {
        let accumulator = self.accumulator()?;
        let list = self.list(vec![element])?;
        self.call("_+_", vec![accumulator, list])
    }

    fn map(&mut self, range: Expr, args: Vec<Expr>) -> Result<Expr, Issue> {
        let (variables, mut rest) = Self::variables(false, args)?;
        let element = rest.pop().map_or_else(|| self.literal(Value::Null), Ok)?;
        let step = self.appended(element)?;
        let initial = self.list(Vec::new())?;
        let shape = self.grow(initial, rest.pop(), step)?;
        self.over(range, variables, shape)
    }

    fn filter(&mut self, range: Expr, args: Vec<Expr>) -> Result<Expr, Issue> {
        let (variables, mut rest) = Self::variables(false, args)?;
        let element = self.ident(&variables.0)?;
        let step = self.appended(element)?;
        let initial = self.list(Vec::new())?;
        let shape = self.grow(initial, rest.pop(), step)?;
        self.over(range, variables, shape)
    }

    fn transform(&mut self, range: Expr, function: &str, args: Vec<Expr>) -> Result<Expr, Issue> {
        let (variables, mut rest) = Self::variables(true, args)?;
        let element = rest.pop().map_or_else(|| self.literal(Value::Null), Ok)?;
        let (initial, step) = if function == "transformList" {
            (self.list(Vec::new())?, self.appended(element)?)
        } else {
            let mut inserted = vec![self.accumulator()?];
            if function == "transformMap" {
                inserted.push(self.ident(&variables.0)?);
            }
            inserted.push(element);
            let initial = self.parser.expanded(self.at, Kind::Map(Vec::new()))?;
            (initial, self.call("cel.@mapInsert", inserted)?)
        };
        let shape = self.grow(initial, rest.pop(), step)?;
        self.over(range, variables, shape)
    }

    fn sort_by(&mut self, target: Expr, args: Vec<Expr>) -> Result<Expr, Issue> {
        const INPUT: &str = "@__sortBy_input__";
        let list = self.ident(INPUT)?;
        let range = self.ident(INPUT)?;
        let keys = self.map(range, args)?;
        let sorted = self.call("@sortByAssociatedKeys", vec![list, keys])?;
        self.bind(Binding::Plain, INPUT.to_owned(), target, sorted)
    }
}
