//! Tokens and expressions of the text form; the JSON form shares the expressions.

use crate::error::{ErrorCode, TextSpan, TraceError, closest};
use crate::limits::{MAX_EXPR_DEPTH, MAX_EXPR_NODES};
use crate::model::{BinaryOp, Expr, UnaryOp};

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Tok<'a> {
    Ident(&'a str),
    /// A quoted string, unescaped.
    Quoted(String),
    /// The magnitude of an integer.
    Int(u64),
    Float(f64),
    Punct(&'static str),
    End,
}

impl Tok<'_> {
    pub fn describe(&self) -> String {
        match self {
            Tok::Ident(name) => format!("`{}`", shorten(name)),
            Tok::Quoted(text) => format!("{:?}", shorten(text)),
            Tok::Int(n) => format!("`{n}`"),
            Tok::Float(x) => format!("`{x}`"),
            Tok::Punct(p) => format!("`{p}`"),
            Tok::End => "the end of the text".into(),
        }
    }
}

fn shorten(text: &str) -> String {
    if text.chars().count() <= 40 {
        text.into()
    } else {
        text.chars().take(37).chain("...".chars()).collect()
    }
}

/// Longest first.
const PUNCTS: &[&str] = &[
    "..", "<<", ">>", "<=", ">=", "==", "!=", "&&", "||", "(", ")", "[", "]", "{", "}", ",", ":",
    "?", "=", "+", "-", "*", "/", "%", "&", "|", "^", "<", ">", "!", "~",
];

/// A text read token by token, one token ahead.
pub(crate) struct Lexer<'a> {
    rest: &'a str,
    line: u32,
    column: u32,
    tok: Tok<'a>,
    span: TextSpan,
    /// Where the token before the current one ended.
    pub last: TextSpan,
}

pub(crate) type Result<T> = std::result::Result<T, TraceError>;

impl<'a> Lexer<'a> {
    pub fn new(text: &'a str) -> Result<Self> {
        let span = TextSpan {
            line: 1,
            column: 1,
            length: 1,
        };
        let mut lexer = Self {
            rest: text,
            line: 1,
            column: 1,
            tok: Tok::End,
            span,
            last: span,
        };
        lexer.advance()?;
        Ok(lexer)
    }

    pub fn peek(&self) -> &Tok<'a> {
        &self.tok
    }

    pub fn span(&self) -> TextSpan {
        self.span
    }

    /// Takes the current token and reads the next.
    pub fn next(&mut self) -> Result<Tok<'a>> {
        self.last = self.span;
        let tok = std::mem::replace(&mut self.tok, Tok::End);
        self.advance()?;
        Ok(tok)
    }

    pub fn is(&self, punct: &str) -> bool {
        matches!(self.tok, Tok::Punct(p) if p == punct)
    }

    pub fn is_word(&self, word: &str) -> bool {
        matches!(self.tok, Tok::Ident(w) if w == word)
    }

    pub fn eat(&mut self, punct: &str) -> Result<bool> {
        let found = self.is(punct);
        if found {
            self.next()?;
        }
        Ok(found)
    }

    pub fn eat_word(&mut self, word: &str) -> Result<bool> {
        let found = self.is_word(word);
        if found {
            self.next()?;
        }
        Ok(found)
    }

    pub fn expect(&mut self, punct: &str) -> Result<()> {
        if self.eat(punct)? {
            Ok(())
        } else {
            Err(self.unexpected(&format!("`{punct}`")))
        }
    }

    pub fn expect_word(&mut self, word: &str) -> Result<()> {
        if self.eat_word(word)? {
            Ok(())
        } else {
            Err(self.unexpected(&format!("`{word}`")))
        }
    }

    /// An error at the current token that says what was wanted.
    pub fn unexpected(&self, wanted: &str) -> TraceError {
        let message = format!("expected {wanted}, found {}", self.tok.describe());
        TraceError::new(ErrorCode::Syntax, "", message).at(self.span)
    }

    fn error_here(&self, message: impl Into<String>, hint: &str) -> TraceError {
        let at = TextSpan {
            line: self.line,
            column: self.column,
            length: 1,
        };
        TraceError::new(ErrorCode::Syntax, "", message)
            .with_hint(hint)
            .at(at)
    }

    fn bump(&mut self, bytes: usize) -> &'a str {
        let (taken, rest) = self.rest.split_at_checked(bytes).unwrap_or((self.rest, ""));
        for c in taken.chars() {
            if c == '\n' {
                self.line = self.line.saturating_add(1);
                self.column = 1;
            } else {
                self.column = self.column.saturating_add(1);
            }
        }
        self.rest = rest;
        taken
    }

    fn skip_blank(&mut self) {
        loop {
            let blank = self.rest.len() - self.rest.trim_start().len();
            if blank > 0 {
                self.bump(blank);
            }
            if !self.rest.starts_with('#') {
                return;
            }
            let line = self.rest.find('\n').unwrap_or(self.rest.len());
            self.bump(line);
        }
    }

    fn advance(&mut self) -> Result<()> {
        self.skip_blank();
        let (line, column) = (self.line, self.column);
        let Some(first) = self.rest.chars().next() else {
            self.tok = Tok::End;
            self.span = TextSpan {
                line,
                column,
                length: 1,
            };
            return Ok(());
        };
        self.tok = if first.is_ascii_alphabetic() || first == '_' {
            let len = self
                .rest
                .find(|c: char| !(c.is_ascii_alphanumeric() || c == '_'))
                .unwrap_or(self.rest.len());
            Tok::Ident(self.bump(len))
        } else if first.is_ascii_digit() {
            self.number()?
        } else if first == '"' {
            self.quoted()?
        } else if self.rest.starts_with("//") {
            return Err(self.error_here(
                "unexpected `//`",
                "comments start with #; division is a single / and rounds down",
            ));
        } else if let Some(punct) = PUNCTS.iter().copied().find(|p| self.rest.starts_with(p)) {
            self.bump(punct.len());
            Tok::Punct(punct)
        } else {
            return Err(self.error_here(
                format!("unexpected character {first:?}"),
                "quote names that are not plain identifiers",
            ));
        };
        let length = if self.line == line {
            self.column.saturating_sub(column).max(1)
        } else {
            1
        };
        self.span = TextSpan {
            line,
            column,
            length,
        };
        Ok(())
    }

    fn number(&mut self) -> Result<Tok<'a>> {
        let start = self.rest;
        let bytes = start.as_bytes();
        let at = |i: usize| bytes.get(i).copied().unwrap_or(b' ');
        if at(0) == b'0' && matches!(at(1), b'x' | b'X') {
            let digits = start.get(2..).unwrap_or("");
            let len = digits
                .find(|c: char| !(c.is_ascii_alphanumeric() || c == '_'))
                .unwrap_or(digits.len());
            let clean: String = digits
                .get(..len)
                .unwrap_or("")
                .chars()
                .filter(|c| *c != '_')
                .collect();
            let value = u64::from_str_radix(&clean, 16)
                .map_err(|_| self.error_here("bad hexadecimal number", "use at most 16 digits"))?;
            self.bump(2 + len);
            return Ok(Tok::Int(value));
        }
        let digits = |mut i: usize| {
            while at(i).is_ascii_digit() || at(i) == b'_' {
                i += 1;
            }
            i
        };
        let mut end = digits(0);
        let mut float = false;
        if at(end) == b'.' && at(end + 1).is_ascii_digit() {
            end = digits(end + 1);
            float = true;
        }
        if matches!(at(end), b'e' | b'E') {
            let sign = usize::from(matches!(at(end + 1), b'+' | b'-'));
            if at(end + 1 + sign).is_ascii_digit() {
                end = digits(end + 1 + sign);
                float = true;
            }
        }
        if at(end).is_ascii_alphabetic() {
            return Err(self.error_here("a number runs into a word", "put a space between them"));
        }
        let clean: String = start
            .get(..end)
            .unwrap_or("")
            .chars()
            .filter(|c| *c != '_')
            .collect();
        let tok = if float {
            let value: f64 = clean
                .parse()
                .map_err(|_| self.error_here("bad number", "write it like 0.5"))?;
            Tok::Float(value)
        } else {
            let value: u64 = clean
                .parse()
                .map_err(|_| self.error_here("a number of more than 64 bits", "stay below 2^64"))?;
            Tok::Int(value)
        };
        self.bump(end);
        Ok(tok)
    }

    fn quoted(&mut self) -> Result<Tok<'a>> {
        let open = self.error_here(
            "a string without an end",
            "close it with \" on the same line",
        );
        self.bump(1);
        let mut out = String::new();
        loop {
            let Some(c) = self.rest.chars().next() else {
                return Err(open);
            };
            if c == '\n' {
                return Err(open);
            }
            if c == '"' {
                self.bump(1);
                return Ok(Tok::Quoted(out));
            }
            if c != '\\' {
                out.push(c);
                self.bump(c.len_utf8());
                continue;
            }
            let bad = self.error_here("unknown escape", "use \\\\ \\\" \\n \\r \\t or \\u{hex}");
            self.bump(1);
            let Some(escape) = self.rest.chars().next() else {
                return Err(open);
            };
            let plain = match escape {
                '\\' | '"' => Some(escape),
                'n' => Some('\n'),
                'r' => Some('\r'),
                't' => Some('\t'),
                _ => None,
            };
            if let Some(c) = plain {
                out.push(c);
                self.bump(1);
                continue;
            }
            let hex = self
                .rest
                .strip_prefix("u{")
                .and_then(|r| r.split_once('}'))
                .map(|(h, _)| h);
            let Some(hex) = hex.filter(|h| h.len() <= 6) else {
                return Err(bad);
            };
            let c = u32::from_str_radix(hex, 16).ok().and_then(char::from_u32);
            out.push(c.ok_or(bad)?);
            self.bump(hex.len() + 3);
        }
    }
}

/// A string with quotes and escapes, as [`Lexer`] reads it.
pub(crate) fn quote(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '"' => out.push_str("\\\""),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c.is_control() => out.push_str(&format!("\\u{{{:x}}}", u32::from(c))),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

/// Whether a name can stand unquoted.
pub(crate) fn is_ident(name: &str) -> bool {
    let mut chars = name.chars();
    chars
        .next()
        .is_some_and(|c| c.is_ascii_alphabetic() || c == '_')
        && chars.all(|c| c.is_ascii_alphanumeric() || c == '_')
}

/// What names in expressions mean.
pub(crate) trait Names {
    /// The loop variable or parameter of that name.
    fn lookup(&self, name: &str) -> Option<Expr>;
    /// All names in scope, for hints.
    fn known(&self) -> Vec<&str>;
}

/// `p0` or `g2`: program ids and grid extents, which no other name can shadow unquoted.
pub(crate) fn axis_word(word: &str) -> Option<Expr> {
    Some(match word {
        "p0" => Expr::Pid(0),
        "p1" => Expr::Pid(1),
        "p2" => Expr::Pid(2),
        "g0" => Expr::Grid(0),
        "g1" => Expr::Grid(1),
        "g2" => Expr::Grid(2),
        _ => return None,
    })
}

#[derive(Clone, Copy)]
pub(crate) enum Function {
    Unary(UnaryOp),
    Binary(BinaryOp),
    Select,
    CeilDiv,
    /// `var(n)`: the loop variable of depth n.
    Var,
    /// `param(n)`: parameter number n.
    Param,
}

pub(crate) const FUNCTIONS: &[(&str, Function)] = &[
    ("min", Function::Binary(BinaryOp::Min)),
    ("max", Function::Binary(BinaryOp::Max)),
    ("select", Function::Select),
    ("ceil_div", Function::CeilDiv),
    ("wrap_add", Function::Binary(BinaryOp::WrapAdd)),
    ("wrap_sub", Function::Binary(BinaryOp::WrapSub)),
    ("wrap_mul", Function::Binary(BinaryOp::WrapMul)),
    ("wrap_shl", Function::Binary(BinaryOp::WrapShl)),
    ("c_div", Function::Binary(BinaryOp::CDiv)),
    ("c_rem", Function::Binary(BinaryOp::CRem)),
    ("u_div", Function::Binary(BinaryOp::UDiv)),
    ("u_rem", Function::Binary(BinaryOp::URem)),
    ("u_shr", Function::Binary(BinaryOp::UShr)),
    ("u_lt", Function::Binary(BinaryOp::ULt)),
    ("u_le", Function::Binary(BinaryOp::ULe)),
    ("trunc_i8", Function::Unary(UnaryOp::TruncI8)),
    ("trunc_u8", Function::Unary(UnaryOp::TruncU8)),
    ("trunc_i16", Function::Unary(UnaryOp::TruncI16)),
    ("trunc_u16", Function::Unary(UnaryOp::TruncU16)),
    ("trunc_i32", Function::Unary(UnaryOp::TruncI32)),
    ("trunc_u32", Function::Unary(UnaryOp::TruncU32)),
    ("var", Function::Var),
    ("param", Function::Param),
];

/// Infix operators with their precedence, as in C; higher binds tighter.
pub(crate) const INFIX: &[(&str, BinaryOp, u8)] = &[
    ("|", BinaryOp::Or, 3),
    ("^", BinaryOp::Xor, 4),
    ("&", BinaryOp::And, 5),
    ("==", BinaryOp::Eq, 6),
    ("!=", BinaryOp::Ne, 6),
    ("<", BinaryOp::Lt, 7),
    ("<=", BinaryOp::Le, 7),
    (">", BinaryOp::Gt, 7),
    (">=", BinaryOp::Ge, 7),
    ("<<", BinaryOp::Shl, 8),
    (">>", BinaryOp::Shr, 8),
    ("+", BinaryOp::Add, 9),
    ("-", BinaryOp::Sub, 9),
    ("*", BinaryOp::Mul, 10),
    ("/", BinaryOp::Div, 10),
    ("%", BinaryOp::Mod, 10),
];

/// Nested calls of the parser; a parenthesised operand, the dearest level of a tree, takes five.
const MAX_NESTING: usize = 5 * MAX_EXPR_DEPTH + 16;

pub(crate) struct ExprParser<'p, 'a, N> {
    pub lexer: &'p mut Lexer<'a>,
    pub names: &'p N,
    nesting: usize,
    nodes: usize,
}

impl<'p, 'a, N: Names> ExprParser<'p, 'a, N> {
    pub fn new(lexer: &'p mut Lexer<'a>, names: &'p N) -> Self {
        Self {
            lexer,
            names,
            nesting: 0,
            nodes: 0,
        }
    }

    /// Nodes read so far, or a little more.
    pub fn nodes(&self) -> usize {
        self.nodes
    }

    /// Reads one expression; its depth is bounded.
    pub fn parse(&mut self) -> Result<Expr> {
        let start = self.lexer.span();
        let (expr, depth) = self.ternary()?;
        if depth > MAX_EXPR_DEPTH {
            return Err(too_deep(start));
        }
        Ok(expr)
    }

    fn enter(&mut self) -> Result<()> {
        self.nesting += 1;
        if self.nesting > MAX_NESTING {
            Err(too_deep(self.lexer.span()))
        } else {
            Ok(())
        }
    }

    fn node(&mut self) -> Result<()> {
        self.nodes += 1;
        if self.nodes > 2 * MAX_EXPR_NODES {
            Err(too_deep(self.lexer.span()))
        } else {
            Ok(())
        }
    }

    /// An expression and the depth of its tree.
    fn ternary(&mut self) -> Result<(Expr, usize)> {
        self.enter()?;
        let (cond, dc) = self.infix(1)?;
        let out = if self.lexer.eat("?")? {
            let (a, da) = self.ternary()?;
            self.lexer.expect(":")?;
            let (b, db) = self.ternary()?;
            self.node()?;
            (
                Expr::Select(Box::new(cond), Box::new(a), Box::new(b)),
                1 + dc.max(da).max(db),
            )
        } else {
            (cond, dc)
        };
        self.nesting -= 1;
        Ok(out)
    }

    fn infix(&mut self, least: u8) -> Result<(Expr, usize)> {
        self.enter()?;
        let (mut left, mut depth) = self.prefix()?;
        while let Tok::Punct(punct) = *self.lexer.peek() {
            // The logical operators are shorthand for a select.
            let logical = match punct {
                "||" => Some(1),
                "&&" => Some(2),
                _ => None,
            };
            if let Some(precedence) = logical {
                if precedence < least {
                    break;
                }
                self.lexer.next()?;
                let (right, dr) = self.infix(precedence + 1)?;
                self.node()?;
                let truth = Expr::Binary(BinaryOp::Ne, Box::new(right), Box::new(Expr::Const(0)));
                let (a, b) = if punct == "&&" {
                    (truth, Expr::Const(0))
                } else {
                    (Expr::Const(1), truth)
                };
                left = Expr::Select(Box::new(left), Box::new(a), Box::new(b));
                depth = 1 + depth.max(dr + 1).max(2);
            } else {
                let Some((_, op, precedence)) = INFIX.iter().copied().find(|(p, _, _)| *p == punct)
                else {
                    break;
                };
                if precedence < least {
                    break;
                }
                self.lexer.next()?;
                let (right, dr) = self.infix(precedence + 1)?;
                self.node()?;
                left = Expr::Binary(op, Box::new(left), Box::new(right));
                depth = 1 + depth.max(dr);
            }
            // A long chain of one operator makes a deep tree without nested calls.
            if depth > MAX_EXPR_DEPTH {
                return Err(too_deep(self.lexer.span()));
            }
        }
        self.nesting -= 1;
        Ok((left, depth))
    }

    fn prefix(&mut self) -> Result<(Expr, usize)> {
        self.enter()?;
        self.node()?;
        let out = if self.lexer.eat("-")? {
            if let Tok::Int(n) = *self.lexer.peek() {
                let value = 0i64
                    .checked_sub_unsigned(n)
                    .ok_or_else(|| too_big(self.lexer.span()))?;
                self.lexer.next()?;
                (Expr::Const(value), 1)
            } else {
                let (a, depth) = self.prefix()?;
                (Expr::Unary(UnaryOp::Neg, Box::new(a)), depth + 1)
            }
        } else if self.lexer.eat("!")? {
            let (a, depth) = self.prefix()?;
            (Expr::Unary(UnaryOp::Not, Box::new(a)), depth + 1)
        } else if self.lexer.eat("~")? {
            let (a, depth) = self.prefix()?;
            (Expr::Unary(UnaryOp::BitNot, Box::new(a)), depth + 1)
        } else {
            self.primary()?
        };
        self.nesting -= 1;
        Ok(out)
    }

    fn primary(&mut self) -> Result<(Expr, usize)> {
        if self.lexer.eat("(")? {
            let out = self.ternary()?;
            self.lexer.expect(")")?;
            return Ok(out);
        }
        let span = self.lexer.span();
        match self.lexer.peek() {
            Tok::Int(n) => {
                let value = i64::try_from(*n).map_err(|_| too_big(span))?;
                self.lexer.next()?;
                Ok((Expr::Const(value), 1))
            }
            Tok::Ident(word) => {
                let word = *word;
                self.lexer.next()?;
                if self.lexer.is("(") {
                    return self.call(word, span);
                }
                let expr = axis_word(word).or_else(|| self.names.lookup(word));
                expr.map(|e| (e, 1)).ok_or_else(|| self.unknown(word, span))
            }
            Tok::Quoted(_) => {
                let Tok::Quoted(name) = self.lexer.next()? else {
                    return Err(self.lexer.unexpected("a name"));
                };
                self.names
                    .lookup(&name)
                    .map(|e| (e, 1))
                    .ok_or_else(|| self.unknown(&name, span))
            }
            _ => Err(self.lexer.unexpected("an expression")),
        }
    }

    fn unknown(&self, name: &str, span: TextSpan) -> TraceError {
        let known = self.names.known();
        let hint = match closest(name, known.iter().copied()) {
            Some(near) => format!("did you mean {near:?}"),
            None => {
                "expressions know p0 p1 p2, g0 g1 g2, parameters and enclosing loops' variables"
                    .into()
            }
        };
        let message = format!("no parameter or loop variable {:?}", shorten(name));
        TraceError::new(ErrorCode::UnknownName, "", message)
            .with_hint(hint)
            .at(span)
    }

    fn call(&mut self, word: &str, span: TextSpan) -> Result<(Expr, usize)> {
        let Some((_, function)) = FUNCTIONS.iter().copied().find(|(name, _)| *name == word) else {
            let names = FUNCTIONS.iter().map(|(name, _)| *name);
            let hint = match closest(word, names) {
                Some(near) => format!("did you mean {near}"),
                None => "see the list of functions in GRAMMAR.md".into(),
            };
            let message = format!("no function `{}`", shorten(word));
            return Err(TraceError::new(ErrorCode::UnknownName, "", message)
                .with_hint(hint)
                .at(span));
        };
        self.lexer.expect("(")?;
        let out = match function {
            Function::Unary(op) => {
                let (a, d) = self.ternary()?;
                (Expr::Unary(op, Box::new(a)), d + 1)
            }
            Function::Binary(op) => {
                let (a, da) = self.ternary()?;
                self.lexer.expect(",")?;
                let (b, db) = self.ternary()?;
                (Expr::Binary(op, Box::new(a), Box::new(b)), 1 + da.max(db))
            }
            Function::Select => {
                let (c, dc) = self.ternary()?;
                self.lexer.expect(",")?;
                let (a, da) = self.ternary()?;
                self.lexer.expect(",")?;
                let (b, db) = self.ternary()?;
                let depth = 1 + dc.max(da).max(db);
                (Expr::Select(Box::new(c), Box::new(a), Box::new(b)), depth)
            }
            Function::CeilDiv => {
                let (a, da) = self.ternary()?;
                self.lexer.expect(",")?;
                let (b, db) = self.ternary()?;
                self.node()?;
                let neg = |e| Expr::Unary(UnaryOp::Neg, Box::new(e));
                let quotient = Expr::Binary(BinaryOp::Div, Box::new(neg(a)), Box::new(b));
                (neg(quotient), 2 + (da + 1).max(db))
            }
            Function::Var | Function::Param => {
                let Tok::Int(n) = *self.lexer.peek() else {
                    return Err(self.lexer.unexpected("a number"));
                };
                let n = u32::try_from(n).map_err(|_| too_big(self.lexer.span()))?;
                self.lexer.next()?;
                let expr = match function {
                    Function::Var => Expr::Var(crate::model::VarId(n)),
                    _ => Expr::Param(crate::model::ParamId(n)),
                };
                (expr, 1)
            }
        };
        self.lexer.expect(")")?;
        Ok(out)
    }
}

fn too_deep(span: TextSpan) -> TraceError {
    TraceError::new(ErrorCode::TooDeep, "", "expression too large")
        .with_hint(format!(
            "use at most {MAX_EXPR_DEPTH} levels and {MAX_EXPR_NODES} nodes"
        ))
        .at(span)
}

fn too_big(span: TextSpan) -> TraceError {
    TraceError::new(ErrorCode::BadValue, "", "a number outside its range")
        .with_hint("values are signed 64-bit integers, ids 32-bit")
        .at(span)
}

/// Reads a text that is one expression.
pub(crate) fn parse_expr(text: &str, names: &impl Names) -> Result<Expr> {
    let mut lexer = Lexer::new(text)?;
    let expr = ExprParser::new(&mut lexer, names).parse()?;
    match lexer.peek() {
        Tok::End => Ok(expr),
        _ => Err(lexer.unexpected("an operator or the end of the expression")),
    }
}
