//! Parser by precedence. The depth is checked while the tree is built, so that neither this parser
//! nor any later traversal of the tree can overflow the stack.

mod macros;

use api::names::is_reserved;

use super::ast::{Call, Entry, Expr, Initializer, Kind};
use super::lexer::{Token, tokens};
use super::{Issue, literal};
use crate::value::Value;

/// Deepest tree before macro expansion (`cel-go/parser/options.go`).
const MAX_DEPTH: usize = 250;
/// Deepest tree after macro expansion: each level of text may add a few levels.
const MAX_EXPANDED_DEPTH: usize = 1_000;
/// Longest text (`cel-go/parser/options.go`).
const MAX_CODE_POINTS: usize = 100_000;

const EXPECTED: &str =
    "{'[', '{', '(', '.', '-', '!', 'true', 'false', 'null', NUM_FLOAT, NUM_INT, NUM_UINT, STRING, BYTES, IDENTIFIER}";

/// Parses an expression; returns its tree and the number of nodes.
pub(crate) fn parse(text: &str) -> Result<(Expr, usize), Issue> {
    let length = text.chars().count();
    if length > MAX_CODE_POINTS {
        return Err(Issue {
            at: 0,
            message: format!("expression code point size exceeds limit: size: {length}, limit {MAX_CODE_POINTS}"),
        });
    }
    let mut parser = Parser {
        tokens: tokens(text)?,
        position: 0,
        level: 0,
        nodes: 0,
    };
    let expr = parser.expr()?;
    match parser.peek() {
        Token::End => Ok((expr, parser.nodes)),
        other => Err(parser.issue(format!(
            "Syntax error: mismatched input '{}' expecting <EOF>",
            other.text()
        ))),
    }
}

struct Parser<'t> {
    tokens: Vec<(usize, Token<'t>)>,
    position: usize,
    level: usize,
    nodes: usize,
}

impl<'t> Parser<'t> {
    fn peek(&self) -> Token<'t> {
        self.tokens.get(self.position).map_or(Token::End, |(_, token)| *token)
    }

    fn here(&self) -> usize {
        let last = self.tokens.last().map_or(0, |(at, _)| *at);
        self.tokens.get(self.position).map_or(last, |(at, _)| *at)
    }

    fn take(&mut self) -> (usize, Token<'t>) {
        let taken = (self.here(), self.peek());
        self.position += 1;
        taken
    }

    fn accept(&mut self, symbol: &str) -> bool {
        let found = self.peek() == Token::Symbol(symbol);
        if found {
            self.position += 1;
        }
        found
    }

    fn expect(&mut self, symbol: &str) -> Result<(), Issue> {
        if self.accept(symbol) {
            return Ok(());
        }
        Err(self.issue(format!(
            "Syntax error: mismatched input '{}' expecting '{symbol}'",
            self.peek().text()
        )))
    }

    fn issue(&self, message: String) -> Issue {
        Issue {
            at: self.here(),
            message,
        }
    }

    /// A new node; fails if the tree of `kind` is too deep.
    fn node(&mut self, at: usize, kind: Kind) -> Result<Expr, Issue> {
        self.bounded(at, kind, MAX_DEPTH)
    }

    /// A new node of a macro expansion.
    fn expanded(&mut self, at: usize, kind: Kind) -> Result<Expr, Issue> {
        self.bounded(at, kind, MAX_EXPANDED_DEPTH)
    }

    fn bounded(&mut self, at: usize, kind: Kind, most: usize) -> Result<Expr, Issue> {
        let depth = 1 + kind.children().map(|child| child.depth).max().unwrap_or(0);
        // The depth of an expansion says little about the text.
        let made = kind.is_made()
            || kind
                .children()
                .any(|child| child.kind.is_made() || child.depth > MAX_DEPTH);
        if depth > if made { MAX_EXPANDED_DEPTH } else { most } {
            return Err(Issue {
                at,
                message: "max recursion depth exceeded".to_owned(),
            });
        }
        self.nodes += 1;
        Ok(Expr {
            id: self.nodes - 1,
            at,
            depth,
            kind,
        })
    }

    fn call(&mut self, at: usize, function: &str, args: Vec<Expr>) -> Result<Expr, Issue> {
        let call = Call {
            function: function.to_owned(),
            target: None,
            args,
            implementation: None,
        };
        self.node(at, Kind::Call(call))
    }

    fn expr(&mut self) -> Result<Expr, Issue> {
        self.level += 1;
        if self.level > MAX_DEPTH {
            return Err(Issue {
                at: self.here(),
                message: format!("expression recursion limit exceeded: {MAX_DEPTH}"),
            });
        }
        let condition = self.logical("||", "_||_")?;
        let at = self.here();
        let found = if self.accept("?") {
            let positive = self.logical("||", "_||_")?;
            self.expect(":")?;
            let negative = self.expr()?;
            self.call(at, "_?_:_", vec![condition, positive, negative])?
        } else {
            condition
        };
        self.level -= 1;
        Ok(found)
    }

    /// A chain of `||` or `&&`, balanced so that long chains are not deep.
    fn logical(&mut self, symbol: &str, function: &str) -> Result<Expr, Issue> {
        let mut terms = Vec::new();
        let mut places = Vec::new();
        loop {
            terms.push(if symbol == "||" {
                self.logical("&&", "_&&_")?
            } else {
                self.relation()?
            });
            let at = self.here();
            if !self.accept(symbol) {
                break;
            }
            places.push(at);
        }
        let mut terms = terms.into_iter();
        self.balanced(function, &mut terms, &places)
    }

    fn balanced(
        &mut self,
        function: &str,
        terms: &mut std::vec::IntoIter<Expr>,
        places: &[usize],
    ) -> Result<Expr, Issue> {
        let middle = places.len() / 2;
        let Some((left, rest)) = places.split_at_checked(middle) else {
            return Err(self.issue("Syntax error".to_owned()));
        };
        let Some((at, right)) = rest.split_first() else {
            return terms.next().ok_or_else(|| self.issue("Syntax error".to_owned()));
        };
        let left = self.balanced(function, terms, left)?;
        let right = self.balanced(function, terms, right)?;
        self.call(*at, function, vec![left, right])
    }

    fn relation(&mut self) -> Result<Expr, Issue> {
        let mut left = self.calculation(&[("+", "_+_"), ("-", "_-_")], true)?;
        loop {
            let function = match self.peek() {
                Token::Symbol("==") => "_==_",
                Token::Symbol("!=") => "_!=_",
                Token::Symbol("<") => "_<_",
                Token::Symbol("<=") => "_<=_",
                Token::Symbol(">") => "_>_",
                Token::Symbol(">=") => "_>=_",
                Token::Symbol("in") => "@in",
                _ => return Ok(left),
            };
            let (at, _) = self.take();
            let right = self.calculation(&[("+", "_+_"), ("-", "_-_")], true)?;
            left = self.call(at, function, vec![left, right])?;
        }
    }

    fn calculation(&mut self, operators: &[(&str, &str)], sums: bool) -> Result<Expr, Issue> {
        let products = [("*", "_*_"), ("/", "_/_"), ("%", "_%_")];
        let mut left = if sums {
            self.calculation(&products, false)?
        } else {
            self.unary()?
        };
        loop {
            let next = self.peek();
            let Some((_, function)) = operators.iter().find(|(symbol, _)| next == Token::Symbol(symbol)) else {
                return Ok(left);
            };
            let (at, _) = self.take();
            let right = if sums {
                self.calculation(&products, false)?
            } else {
                self.unary()?
            };
            left = self.call(at, function, vec![left, right])?;
        }
    }

    fn unary(&mut self) -> Result<Expr, Issue> {
        let at = self.here();
        for (symbol, function) in [("!", "!_"), ("-", "-_")] {
            let mut count = 0_usize;
            while self.peek() == Token::Symbol(symbol) {
                // A single minus is part of the number that follows.
                if count == 0 && symbol == "-" && self.number_follows() {
                    return self.member();
                }
                self.position += 1;
                count += 1;
            }
            if count > 0 {
                let operand = self.member()?;
                return if count.is_multiple_of(2) {
                    Ok(operand)
                } else {
                    self.call(at, function, vec![operand])
                };
            }
        }
        self.member()
    }

    fn number_follows(&self) -> bool {
        matches!(
            self.tokens.get(self.position + 1),
            Some((_, Token::Int(_) | Token::Float(_)))
        )
    }

    fn member(&mut self) -> Result<Expr, Issue> {
        let mut operand = self.primary()?;
        loop {
            let at = self.here();
            if self.accept(".") {
                operand = self.selection(at, operand)?;
            } else if self.accept("[") {
                let optional = self.accept("?");
                let index = self.expr()?;
                self.expect("]")?;
                let function = if optional { "_[?_]" } else { "_[_]" };
                operand = self.call(at, function, vec![operand, index])?;
            } else {
                return Ok(operand);
            }
        }
    }

    fn selection(&mut self, at: usize, operand: Expr) -> Result<Expr, Issue> {
        let optional = self.accept("?");
        let place = self.here();
        let (field, quoted) = match self.peek() {
            Token::Ident(name) => (name.to_owned(), false),
            Token::Quoted(name) => (name.to_owned(), true),
            other => {
                let text = if other == Token::End { "" } else { other.text() };
                return Err(self.issue(match other {
                    Token::Symbol("true" | "false" | "null" | "in") => mismatched(text, "IDENTIFIER"),
                    _ => format!("Syntax error: no viable alternative at input '.{text}'"),
                }));
            }
        };
        self.position += 1;
        if optional {
            let name = self.node(place, Kind::Literal(Value::from(field)))?;
            return self.call(at, "_?._", vec![operand, name]);
        }
        let open = self.here();
        if !quoted && self.accept("(") {
            let args = self.arguments(")")?;
            return macros::member(self, open, operand, &field, args);
        }
        let operand = Box::new(operand);
        self.node(
            at,
            Kind::Select {
                operand,
                field,
                test: false,
            },
        )
    }

    fn arguments(&mut self, close: &str) -> Result<Vec<Expr>, Issue> {
        let mut args = Vec::new();
        if self.accept(close) {
            return Ok(args);
        }
        loop {
            args.push(self.expr()?);
            if !self.accept(",") {
                self.expect(close)?;
                return Ok(args);
            }
        }
    }

    fn primary(&mut self) -> Result<Expr, Issue> {
        let at = self.here();
        let negative = self.number_follows() && self.accept("-");
        let (_, token) = self.take();
        let value = match token {
            Token::Symbol("(") => {
                let inner = self.expr()?;
                self.expect(")")?;
                return Ok(inner);
            }
            Token::Symbol("[") => return self.list(at),
            Token::Symbol("{") => return self.map(at),
            Token::Symbol(".") => return self.name(at),
            Token::Ident(_) => {
                self.position -= 1;
                return self.name(at);
            }
            Token::Symbol("true") => Some(Value::Bool(true)),
            Token::Symbol("false") => Some(Value::Bool(false)),
            Token::Symbol("null") => Some(Value::Null),
            Token::Int(text) => literal::int(text, negative),
            Token::Uint(text) => literal::uint(text),
            Token::Float(text) => literal::float(text, negative),
            Token::String(text) => literal::string(text, false),
            Token::Bytes(text) => literal::string(text, true),
            Token::Symbol(_) | Token::Quoted(_) | Token::End => {
                return Err(Issue {
                    at,
                    message: mismatched(token.text(), EXPECTED),
                });
            }
        };
        let value = value.ok_or_else(|| Issue {
            at,
            message: match token {
                Token::Int(_) => "invalid int literal",
                Token::Uint(_) => "invalid uint literal",
                Token::Float(_) => "invalid double literal",
                _ => "unable to unescape string",
            }
            .to_owned(),
        })?;
        self.node(at, Kind::Literal(value))
    }

    /// An identifier, a call of a global function, or a message of a named type.
    fn name(&mut self, at: usize) -> Result<Expr, Issue> {
        let place = self.here();
        let (_, token) = self.take();
        let Token::Ident(name) = token else {
            return Err(Issue {
                at: place,
                message: mismatched(token.text(), "IDENTIFIER"),
            });
        };
        if is_reserved(name) {
            return Err(Issue {
                at,
                message: format!("reserved identifier: {name}"),
            });
        }
        let open = self.here();
        if self.accept("(") {
            let args = self.arguments(")")?;
            return macros::global(self, open, name, args);
        }
        if let Some(found) = self.message(name)? {
            return Ok(found);
        }
        self.node(at, Kind::Ident(name.to_owned()))
    }

    /// `a.b.C{field: value}`, if that follows.
    fn message(&mut self, first: &str) -> Result<Option<Expr>, Issue> {
        let start = self.position;
        let mut name = first.to_owned();
        while self.accept(".") {
            if let Token::Ident(part) = self.peek() {
                self.position += 1;
                name.push('.');
                name.push_str(part);
            } else {
                self.position = start;
                return Ok(None);
            }
        }
        let at = self.here();
        if !self.accept("{") {
            self.position = start;
            return Ok(None);
        }
        let mut fields = Vec::new();
        while !self.accept("}") {
            let optional = self.accept("?");
            let (_, token) = self.take();
            let (Token::Ident(name) | Token::Quoted(name)) = token else {
                self.position -= 1;
                return Err(self.issue(mismatched(token.text(), "'}'")));
            };
            let at = self.here();
            self.expect(":")?;
            fields.push(Initializer {
                name: name.to_owned(),
                at,
                value: self.expr()?,
                optional,
            });
            if !self.accept(",") {
                self.expect("}")?;
                break;
            }
        }
        self.node(at, Kind::Struct { name, fields }).map(Some)
    }

    fn list(&mut self, at: usize) -> Result<Expr, Issue> {
        let mut elements = Vec::new();
        let mut optional = Vec::new();
        while !self.accept("]") {
            if self.accept("?") {
                optional.push(elements.len());
            }
            elements.push(self.expr()?);
            if !self.accept(",") {
                self.expect("]")?;
                break;
            }
        }
        self.node(at, Kind::List { elements, optional })
    }

    fn map(&mut self, at: usize) -> Result<Expr, Issue> {
        let mut entries = Vec::new();
        while !self.accept("}") {
            let optional = self.accept("?");
            let key = self.expr()?;
            self.expect(":")?;
            let value = self.expr()?;
            entries.push(Entry { key, value, optional });
            if !self.accept(",") {
                self.expect("}")?;
                break;
            }
        }
        self.node(at, Kind::Map(entries))
    }
}

fn mismatched(text: &str, expected: &str) -> String {
    format!("Syntax error: mismatched input '{text}' expecting {expected}")
}
