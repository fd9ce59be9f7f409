//! Compilation and evaluation with limits: no text and no value can crash the process.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread;

use regex::Regex;

use crate::check::{Types, check};
use crate::cost::estimate::{self, Range};
use crate::eval::Machine;
use crate::fold::fold;
use crate::functions::Context;
use crate::lint::lint;
use crate::schema::Schema;
use crate::syntax::ast::Expr;
use crate::syntax::{Issue, parse};
use crate::types::{Environment, Type};
use crate::value::{Bindings, Error, Value};

/// Cost limit of one evaluation (`k8s.io/apiserver/pkg/apis/cel/config.go`).
pub const PER_CALL_LIMIT: u64 = 1_000_000;

/// Depth that fits on any thread's stack.
const SHALLOW: usize = 24;
/// Stack size for deeper trees: the deepest has a thousand levels.
const DEEP_STACK: usize = 64 * 1024 * 1024;

/// Compile error of an expression, as upstream displays it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CompileError {
    /// Syntax and type errors.
    #[error("compilation failed: {0}")]
    Issues(String),
    /// A constant cannot be converted.
    #[error("program instantiation failed: {0}")]
    Constant(Error),
}

/// The same before positions are formatted.
enum Fault {
    Issues(Vec<Issue>),
    Constant(Error),
}

impl From<Vec<Issue>> for Fault {
    fn from(issues: Vec<Issue>) -> Self {
        Self::Issues(issues)
    }
}

impl From<Issue> for Fault {
    fn from(issue: Issue) -> Self {
        Self::Issues(vec![issue])
    }
}

/// A compiled expression: parsed and checked.
#[derive(Debug)]
pub struct Program {
    expr: Expr,
    types: Types,
    patterns: BTreeMap<String, Regex>,
}

impl Environment {
    /// Compiles an expression.
    pub fn compile(&self, text: &str) -> Result<Program, CompileError> {
        let compiled = catch_unwind(AssertUnwindSafe(|| -> Result<Program, Fault> {
            let (expr, nodes) = with_stack(levels(text), || parse(text))??;
            with_stack(expr.depth, move || self.checked(expr, nodes))?
        }));
        let compiled = compiled.unwrap_or_else(|_panic| Err(Issue::internal().into()));
        compiled.map_err(|fault| match fault {
            Fault::Issues(issues) => CompileError::Issues(display(text, issues)),
            Fault::Constant(error) => CompileError::Constant(error),
        })
    }

    fn checked(&self, mut expr: Expr, nodes: usize) -> Result<Program, Fault> {
        let types = check(&mut expr, nodes, self)?;
        let patterns = lint(&expr, &types)?;
        fold(&mut expr).map_err(Fault::Constant)?;
        Ok(Program { expr, types, patterns })
    }
}

impl Program {
    /// Result type of the expression.
    pub fn result(&self) -> &Type {
        self.types.get(self.expr.id).unwrap_or(&Type::Dyn)
    }

    /// Depth of the expression; each level takes stack at evaluation.
    pub const fn depth(&self) -> usize {
        self.expr.depth
    }

    /// True if the expression reads a variable.
    pub fn uses(&self, variable: &str) -> bool {
        with_stack(self.expr.depth, || estimate::uses(&self.expr, variable)).unwrap_or(true)
    }

    /// True if the expression selects a field of a variable, by `variable.field`,
    /// `has(variable.field)` or `variable.?field`.
    pub fn selects(&self, variable: &str, field: &str) -> bool {
        with_stack(self.expr.depth, || estimate::selects(&self.expr, variable, field)).unwrap_or(true)
    }

    /// Minimum and maximum cost of the expression, if the schemas of its variables limit their
    /// sizes.
    pub fn estimate(&self, variables: &[(&str, &Schema)]) -> Range {
        with_stack(self.expr.depth, || {
            estimate::estimate(&self.expr, &self.types, variables)
        })
        .unwrap_or(Range { min: 0, max: u64::MAX })
    }

    /// Evaluates the expression and takes its cost from the budget, at most [`PER_CALL_LIMIT`] of it.
    pub fn evaluate<'a>(&self, bindings: &dyn Bindings<'a>, budget: &mut u64) -> Result<Value<'a>, Error> {
        let limit = PER_CALL_LIMIT.min(*budget);
        let ran = catch_unwind(AssertUnwindSafe(|| {
            with_stack(self.expr.depth, || {
                let mut machine = Machine {
                    bindings,
                    locals: Vec::new(),
                    context: Context::new(&self.patterns),
                    cost: 0,
                    limit,
                    rounds: 0,
                };
                (machine.eval(&self.expr), machine.cost)
            })
        }));
        let Ok(Ok((result, cost))) = ran else {
            return Err(Error::new("internal error"));
        };
        *budget = budget.saturating_sub(cost);
        result
    }
}

/// A thread could not be started, the only error that is not the expression's.
#[derive(Clone, Copy, Debug)]
struct NoThread;

impl From<NoThread> for Fault {
    fn from(_: NoThread) -> Self {
        Issue::internal().into()
    }
}

/// Runs a closure with enough stack for a depth, on a separate thread if necessary.
fn with_stack<T: Send>(levels: usize, run: impl FnOnce() -> T + Send) -> Result<T, NoThread> {
    if levels <= SHALLOW {
        return Ok(run());
    }
    thread::scope(|scope| {
        thread::Builder::new()
            .stack_size(DEEP_STACK)
            .spawn_scoped(scope, run)
            .map_err(|_limit| NoThread)?
            .join()
            .map_err(|_panic| NoThread)
    })
}

/// Upper bound of a text's nesting depth, from opening brackets and conditionals alone, since a
/// closing bracket may be inside a string.
fn levels(text: &str) -> usize {
    text.bytes().filter(|byte| b"([{?".contains(byte)).count()
}

/// Formats all issues, sorted by position (`cel-go/common/error.go`).
fn display(text: &str, mut issues: Vec<Issue>) -> String {
    issues.sort_by_key(|issue| issue.at);
    let shown: Vec<String> = issues.iter().map(|issue| show(text, issue)).collect();
    shown.join("\n")
}

fn show(text: &str, issue: &Issue) -> String {
    /// Longest source line that is quoted.
    const MAX_SNIPPET: usize = 16_384;
    let before = text.get(..issue.at).unwrap_or(text);
    let line = before.matches('\n').count();
    let column = before.rsplit('\n').next().unwrap_or_default().chars().count();
    let mut out = format!("ERROR: <input>:{}:{}: {}", line + 1, column + 1, issue.message);
    let snippet = text.split('\n').nth(line).unwrap_or_default().replace('\t', " ");
    if snippet.len() <= MAX_SNIPPET {
        let mut characters = snippet.chars();
        let dots: String = characters
            .by_ref()
            .take(column)
            .map(|c| if c.len_utf8() > 1 { '．' } else { '.' })
            .collect();
        let mark = if characters.next().is_some_and(|c| c.len_utf8() > 1) {
            '＾'
        } else {
            '^'
        };
        out = format!("{out}\n | {snippet}\n | {dots}{mark}");
    }
    out
}
