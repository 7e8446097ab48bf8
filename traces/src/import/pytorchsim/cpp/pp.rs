//! The preprocessor: conditionals, object-like and function-like macros, includes of the headers
//! that producers use (known ones are skipped, since their names are built in).

use std::collections::HashMap;
use std::rc::Rc;

use super::ast::IntTy;
use super::lex::{Tok, Token, lex};
use crate::import::pytorchsim::diag::{Diag, Pos, Res};

/// Tokens after expansion, at most.
const MAX_EXPANDED: usize = 1 << 20;
/// Macros expanding inside macros, at most.
const MAX_NESTING: usize = 32;
/// Files included, at most.
const MAX_INCLUDES: usize = 32;

/// Where local headers come from.
pub(crate) trait Headers {
    /// The text of a file beside the producer, if there is one.
    fn header(&mut self, name: &str, pos: Pos) -> Res<Option<(u16, String)>>;
}

#[derive(Clone)]
struct Macro {
    params: Option<Vec<Rc<str>>>,
    body: Vec<Token>,
}

const PRELUDE: &str = "
#define NULL nullptr
#define INT8_MAX 127
#define INT16_MAX 32767
#define INT32_MAX 2147483647
#define INT64_MAX 9223372036854775807L
#define UINT8_MAX 255
#define UINT16_MAX 65535
#define UINT32_MAX 4294967295U
#define UINT64_MAX 18446744073709551615UL
#define SIZE_MAX 18446744073709551615UL
#define INT8_MIN (-128)
#define INT16_MIN (-32767-1)
#define INT32_MIN (-2147483647-1)
#define INT64_MIN (-9223372036854775807L-1)
#define INT_MAX 2147483647
#define INT_MIN (-2147483647-1)
#define UINT_MAX 4294967295U
#define LONG_MAX 9223372036854775807L
#define LLONG_MAX 9223372036854775807L
#define INT32_C(c) c
#define UINT32_C(c) ((uint32_t)(c##U))
#define INT64_C(c) c##L
#define UINT64_C(c) c##UL
#define __cplusplus 201703L
#define __STDC__ 1
#define __GNUC__ 13
#define __restrict
#define __restrict__
#define __inline inline
";

const KNOWN_HEADERS: &[&str] = &[
    "cstddef",
    "cstdint",
    "cstdlib",
    "climits",
    "limits",
    "algorithm",
    "utility",
    "array",
    "cassert",
    "type_traits",
    "stddef.h",
    "stdint.h",
    "stdbool.h",
    "stdlib.h",
    "limits.h",
    "assert.h",
    "initializer_list",
    "cstring",
    "string.h",
    "cstdio",
    "stdio.h",
    "cmath",
    "math.h",
    "vector",
    "numeric",
    "functional",
];

/// The tokens of `text` after preprocessing.
pub(crate) fn preprocess(
    text: &str,
    file: u16,
    abi: u32,
    headers: &mut dyn Headers,
) -> Res<Vec<Token>> {
    let mut pp = Pp {
        macros: HashMap::new(),
        out: Vec::new(),
        headers,
        includes: 0,
        once: Vec::new(),
    };
    pp.file(lex(PRELUDE, file)?, 0)?;
    let zero = Pos {
        file,
        line: 1,
        column: 1,
        length: 1,
    };
    let version = Token {
        tok: Tok::Int(u64::from(abi), IntTy::I32),
        pos: zero,
        bol: false,
        space: true,
    };
    pp.macros.insert(
        "TOGSIM_ABI_VERSION".into(),
        Macro {
            params: None,
            body: vec![version],
        },
    );
    pp.file(lex(text, file)?, 0)?;
    let mut out = pp.out;
    let pos = out.last().map_or(zero, |t| t.pos);
    out.push(Token {
        tok: Tok::Eof,
        pos,
        bol: true,
        space: true,
    });
    Ok(out)
}

struct Pp<'h> {
    macros: HashMap<Rc<str>, Macro>,
    out: Vec<Token>,
    headers: &'h mut dyn Headers,
    includes: usize,
    once: Vec<String>,
}

struct Cond {
    /// This branch is read.
    live: bool,
    /// Some branch of this conditional has been read.
    taken: bool,
    /// The conditional itself stands in text that is read.
    parent: bool,
    seen_else: bool,
    pos: Pos,
}

fn is(t: &Token, p: &str) -> bool {
    matches!(&t.tok, Tok::Punct(q) if *q == p)
}

impl Pp<'_> {
    fn file(&mut self, tokens: Vec<Token>, depth: usize) -> Res<()> {
        let mut conds: Vec<Cond> = Vec::new();
        let mut pending: Vec<Token> = Vec::new();
        let mut i = 0;
        while let Some(t) = tokens.get(i) {
            if t.tok == Tok::Eof {
                break;
            }
            if t.bol && is(t, "#") {
                let end = i + 1 + tokens.iter().skip(i + 1).take_while(|t| !t.bol).count();
                let line = tokens.get(i + 1..end).unwrap_or_default();
                let name = match line.first().map(|t| &t.tok) {
                    Some(Tok::Ident(n)) => n.to_string(),
                    None => String::new(),
                    Some(_) => return Err(Diag::syntax(t.pos, "a directive without a name")),
                };
                let rest = line.get(1..).unwrap_or_default();
                let live = conds.last().is_none_or(|c| c.live);
                if live {
                    self.flush(&mut pending)?;
                }
                self.directive(&name, rest, t.pos, live, &mut conds, depth)?;
                i = end;
                continue;
            }
            if conds.last().is_none_or(|c| c.live) {
                pending.push(t.clone());
            }
            i += 1;
        }
        if let Some(c) = conds.last() {
            return Err(Diag::syntax(c.pos, "a conditional without #endif"));
        }
        self.flush(&mut pending)
    }

    fn flush(&mut self, pending: &mut Vec<Token>) -> Res<()> {
        let tokens = std::mem::take(pending);
        let mut out = std::mem::take(&mut self.out);
        let r = self.expand(&tokens, &mut Vec::new(), &mut out);
        self.out = out;
        r
    }

    fn directive(
        &mut self,
        name: &str,
        rest: &[Token],
        pos: Pos,
        live: bool,
        conds: &mut Vec<Cond>,
        depth: usize,
    ) -> Res<()> {
        match name {
            "ifdef" | "ifndef" | "if" => {
                let yes = match (live, name) {
                    (false, _) => false,
                    (true, "if") => self.condition(rest, pos)?,
                    (true, _) => match rest.first().map(|t| &t.tok) {
                        Some(Tok::Ident(n)) => self.macros.contains_key(n) == (name == "ifdef"),
                        _ => return Err(Diag::syntax(pos, format!("#{name} without a name"))),
                    },
                };
                if conds.len() >= 64 {
                    return Err(Diag::deep(pos, "conditionals nested deeper than 64"));
                }
                conds.push(Cond {
                    live: yes,
                    taken: yes,
                    parent: live,
                    seen_else: false,
                    pos,
                });
            }
            "elif" | "else" | "endif" => {
                let Some(c) = conds.last_mut() else {
                    return Err(Diag::syntax(pos, format!("#{name} without #if")));
                };
                if name == "endif" {
                    conds.pop();
                    return Ok(());
                }
                if c.seen_else {
                    return Err(Diag::syntax(pos, format!("#{name} after #else")));
                }
                c.seen_else = name == "else";
                let wanted = c.parent && !c.taken;
                let yes = wanted && (name == "else" || self.condition(rest, pos)?);
                if let Some(c) = conds.last_mut() {
                    c.live = yes;
                    c.taken |= yes;
                }
            }
            _ if !live => {}
            "define" => self.define(rest, pos)?,
            "undef" => match rest.first().map(|t| &t.tok) {
                Some(Tok::Ident(n)) => {
                    self.macros.remove(n);
                }
                _ => return Err(Diag::syntax(pos, "#undef without a name")),
            },
            "include" => self.include(rest, pos, depth)?,
            "pragma" => match rest.first().map(|t| &t.tok) {
                Some(Tok::Ident(n))
                    if matches!(
                        &**n,
                        "once" | "GCC" | "clang" | "region" | "endregion" | "STDC"
                    ) => {}
                _ => return Err(Diag::unsupported(pos, "this #pragma")),
            },
            "" | "line" | "warning" | "ident" => {}
            "error" => return Err(Diag::value(pos, "the source stops itself with #error")),
            _ => {
                return Err(Diag::unsupported(
                    pos,
                    format_args!("the directive #{name}"),
                ));
            }
        }
        Ok(())
    }

    fn define(&mut self, rest: &[Token], pos: Pos) -> Res<()> {
        let Some(Token {
            tok: Tok::Ident(name),
            ..
        }) = rest.first()
        else {
            return Err(Diag::syntax(pos, "#define without a name"));
        };
        let mut at = 1;
        let mut params = None;
        if rest.get(1).is_some_and(|t| is(t, "(") && !t.space) {
            let mut names = Vec::new();
            at = 2;
            loop {
                match rest.get(at) {
                    Some(t) if is(t, ")") => break,
                    Some(t) if is(t, ",") => {}
                    Some(Token {
                        tok: Tok::Ident(n), ..
                    }) => names.push(n.clone()),
                    Some(t) => return Err(Diag::unsupported(t.pos, "this macro parameter")),
                    None => {
                        return Err(Diag::syntax(
                            pos,
                            "a macro parameter list that does not end",
                        ));
                    }
                }
                at += 1;
            }
            at += 1;
            if names.len() > 64 {
                return Err(Diag::limit(pos, "a macro with more than 64 parameters"));
            }
            params = Some(names);
        }
        let body: Vec<Token> = rest.get(at..).unwrap_or_default().to_vec();
        if let Some(t) = body.iter().find(|t| is(t, "#")) {
            return Err(Diag::unsupported(t.pos, "the stringising operator #"));
        }
        if self.macros.len() > 20_000 {
            return Err(Diag::limit(pos, "more than 20000 macros"));
        }
        self.macros.insert(name.clone(), Macro { params, body });
        Ok(())
    }

    fn include(&mut self, rest: &[Token], pos: Pos, depth: usize) -> Res<()> {
        match rest.first().map(|t| &t.tok) {
            Some(Tok::Punct("<")) => {
                let mut name = String::new();
                for t in rest.iter().skip(1).take_while(|t| !is(t, ">")) {
                    match &t.tok {
                        Tok::Ident(n) => name.push_str(n),
                        Tok::Punct(p) => name.push_str(p),
                        _ => return Err(Diag::syntax(t.pos, "a header name that cannot be read")),
                    }
                }
                if KNOWN_HEADERS.contains(&name.as_str()) || name.ends_with("togsim_runtime.h") {
                    return Ok(());
                }
                Err(Diag::unsupported(pos, format_args!("the header <{name}>")))
            }
            Some(Tok::Str(name)) => {
                if name.ends_with("togsim_runtime.h") || KNOWN_HEADERS.contains(&&**name) {
                    return Ok(());
                }
                if self.once.iter().any(|n| **n == **name) {
                    return Ok(());
                }
                if depth >= 8 || self.includes >= MAX_INCLUDES {
                    return Err(Diag::deep(pos, "too many includes"));
                }
                self.includes += 1;
                let Some((file, text)) = self.headers.header(name, pos)? else {
                    return Err(Diag::value(
                        pos,
                        format!("the header \"{name}\" is not in the folder"),
                    )
                    .hint("put it beside the producer, or remove the include"));
                };
                if text.contains("#pragma once") {
                    self.once.push(name.to_string());
                }
                self.file(lex(&text, file)?, depth + 1)
            }
            _ => Err(Diag::unsupported(pos, "this form of #include")),
        }
    }

    /// Expands `tokens` into `out`. `active` holds the macros being expanded.
    fn expand(&self, tokens: &[Token], active: &mut Vec<Rc<str>>, out: &mut Vec<Token>) -> Res<()> {
        let mut i = 0;
        while let Some(t) = tokens.get(i) {
            i += 1;
            if out.len() >= MAX_EXPANDED {
                return Err(Diag::limit(
                    t.pos,
                    format!("macros expand to more than {MAX_EXPANDED} tokens"),
                ));
            }
            let Tok::Ident(name) = &t.tok else {
                out.push(t.clone());
                continue;
            };
            let Some(m) = self.macros.get(name) else {
                out.push(t.clone());
                continue;
            };
            if active.contains(name) {
                out.push(t.clone());
                continue;
            }
            if active.len() >= MAX_NESTING {
                return Err(Diag::deep(
                    t.pos,
                    format!("macros nested deeper than {MAX_NESTING}"),
                ));
            }
            let mut body: Vec<Token> = Vec::new();
            match &m.params {
                None => body.extend(m.body.iter().map(|b| Token {
                    pos: t.pos,
                    bol: false,
                    ..b.clone()
                })),
                Some(params) => {
                    if !tokens.get(i).is_some_and(|n| is(n, "(")) {
                        out.push(t.clone());
                        continue;
                    }
                    let (args, next) = arguments(tokens, i + 1, t.pos)?;
                    i = next;
                    let args = if params.is_empty()
                        && args.len() == 1
                        && args.iter().all(|a| a.is_empty())
                    {
                        Vec::new()
                    } else {
                        args
                    };
                    if args.len() != params.len() {
                        let m = format!(
                            "macro {name} takes {} arguments, {} given",
                            params.len(),
                            args.len()
                        );
                        return Err(Diag::syntax(t.pos, m));
                    }
                    for (k, b) in m.body.iter().enumerate() {
                        if body.len() >= MAX_EXPANDED {
                            return Err(Diag::limit(
                                t.pos,
                                format!("macros expand to more than {MAX_EXPANDED} tokens"),
                            ));
                        }
                        let pasted = m.body.get(k + 1).is_some_and(|n| is(n, "##"))
                            || (k > 0 && m.body.get(k - 1).is_some_and(|n| is(n, "##")));
                        let arg = match &b.tok {
                            Tok::Ident(n) => {
                                params.iter().position(|p| p == n).and_then(|p| args.get(p))
                            }
                            _ => None,
                        };
                        match arg {
                            // An operand of ## is not expanded, any other argument is.
                            Some(a) if pasted => body.extend(a.iter().cloned()),
                            Some(a) => self.expand(a, active, &mut body)?,
                            None => body.push(Token {
                                pos: t.pos,
                                bol: false,
                                ..b.clone()
                            }),
                        }
                    }
                }
            }
            let body = paste(body)?;
            active.push(name.clone());
            let r = self.expand(&body, active, out);
            active.pop();
            r?;
        }
        Ok(())
    }

    fn condition(&self, rest: &[Token], pos: Pos) -> Res<bool> {
        // defined(NAME) is answered before macros expand.
        let mut tokens = Vec::new();
        let mut i = 0;
        while let Some(t) = rest.get(i) {
            i += 1;
            if !matches!(&t.tok, Tok::Ident(n) if &**n == "defined") {
                tokens.push(t.clone());
                continue;
            }
            let parens = rest.get(i).is_some_and(|n| is(n, "("));
            i += usize::from(parens);
            let Some(Token {
                tok: Tok::Ident(n), ..
            }) = rest.get(i)
            else {
                return Err(Diag::syntax(t.pos, "defined without a name"));
            };
            i += 1 + usize::from(parens);
            let value = u64::from(self.macros.contains_key(n));
            tokens.push(Token {
                tok: Tok::Int(value, IntTy::I64),
                ..t.clone()
            });
        }
        let mut out = Vec::new();
        self.expand(&tokens, &mut Vec::new(), &mut out)?;
        let mut c = CondParser {
            tokens: &out,
            at: 0,
            pos,
            depth: 0,
        };
        let v = c.binary(0)?;
        if c.at < out.len() {
            return Err(Diag::syntax(pos, "a condition of #if that cannot be read"));
        }
        Ok(v != 0)
    }
}

/// The comma-separated arguments of a macro call from `at` on, and where they end.
fn arguments(tokens: &[Token], mut at: usize, pos: Pos) -> Res<(Vec<Vec<Token>>, usize)> {
    let mut args = vec![Vec::new()];
    let mut depth = 0usize;
    loop {
        let Some(t) = tokens.get(at) else {
            return Err(Diag::syntax(pos, "a macro call that does not end"));
        };
        at += 1;
        if depth == 0 && is(t, ")") {
            return Ok((args, at));
        }
        if depth == 0 && is(t, ",") {
            args.push(Vec::new());
            continue;
        }
        if is(t, "(") || is(t, "[") || is(t, "{") {
            // Braces and brackets do not protect commas in C, but unbalanced they mean nothing here.
            depth += usize::from(is(t, "("));
        } else if is(t, ")") {
            depth -= 1;
        }
        if let Some(last) = args.last_mut() {
            last.push(t.clone());
        }
    }
}

fn paste(body: Vec<Token>) -> Res<Vec<Token>> {
    if !body.iter().any(|t| is(t, "##")) {
        return Ok(body);
    }
    let mut out: Vec<Token> = Vec::new();
    let mut tokens = body.into_iter();
    while let Some(t) = tokens.next() {
        if !is(&t, "##") {
            out.push(t);
            continue;
        }
        let (Some(left), Some(right)) = (out.pop(), tokens.next()) else {
            return Err(Diag::syntax(t.pos, "## without two operands"));
        };
        let mut text = String::new();
        for side in [&left, &right] {
            match &side.tok {
                Tok::Ident(n) => text.push_str(n),
                Tok::Int(v, _) => text.push_str(&v.to_string()),
                _ => return Err(Diag::unsupported(t.pos, "this use of ##")),
            }
        }
        let made = lex(&text, left.pos.file)?;
        match made.into_iter().next() {
            Some(m) if m.tok != Tok::Eof => out.push(Token { tok: m.tok, ..left }),
            _ => return Err(Diag::unsupported(t.pos, "this use of ##")),
        }
    }
    Ok(out)
}

/// Conditions of `#if`: integers, names (0), `!`, `( )` and binary operators.
struct CondParser<'a> {
    tokens: &'a [Token],
    at: usize,
    pos: Pos,
    depth: u32,
}

impl CondParser<'_> {
    fn bad<T>(&self) -> Res<T> {
        let pos = self.tokens.get(self.at).map_or(self.pos, |t| t.pos);
        Err(Diag::syntax(pos, "a condition of #if that cannot be read"))
    }

    fn primary(&mut self) -> Res<i64> {
        self.depth += 1;
        if self.depth > 64 {
            return Err(Diag::deep(self.pos, "a condition of #if nested too deep"));
        }
        let Some(t) = self.tokens.get(self.at) else {
            return self.bad();
        };
        self.at += 1;
        let v = match &t.tok {
            Tok::Int(v, _) => *v as i64,
            Tok::Ident(n) => i64::from(&**n == "true"),
            Tok::Punct("!") => i64::from(self.primary()? == 0),
            Tok::Punct("-") => self.primary()?.wrapping_neg(),
            Tok::Punct("+") => self.primary()?,
            Tok::Punct("~") => !self.primary()?,
            Tok::Punct("(") => {
                let v = self.binary(0)?;
                if !self.tokens.get(self.at).is_some_and(|t| is(t, ")")) {
                    return self.bad();
                }
                self.at += 1;
                v
            }
            _ => return self.bad(),
        };
        self.depth -= 1;
        Ok(v)
    }

    fn binary(&mut self, min: u8) -> Res<i64> {
        let mut a = self.primary()?;
        while let Some(Token {
            tok: Tok::Punct(p), ..
        }) = self.tokens.get(self.at)
        {
            let level = match *p {
                "*" | "/" | "%" => 10,
                "+" | "-" => 9,
                "<<" | ">>" => 8,
                "<" | "<=" | ">" | ">=" => 7,
                "==" | "!=" => 6,
                "&" => 5,
                "^" => 4,
                "|" => 3,
                "&&" => 2,
                "||" => 1,
                _ => break,
            };
            if level <= min {
                break;
            }
            self.at += 1;
            let b = self.binary(level)?;
            a = match *p {
                "*" => a.wrapping_mul(b),
                "/" | "%" if b == 0 => {
                    return Err(Diag::value(self.pos, "division by zero in #if"));
                }
                "/" => a.wrapping_div(b),
                "%" => a.wrapping_rem(b),
                "+" => a.wrapping_add(b),
                "-" => a.wrapping_sub(b),
                "<<" => a.wrapping_shl(b as u32 & 63),
                ">>" => a.wrapping_shr(b as u32 & 63),
                "<" => i64::from(a < b),
                "<=" => i64::from(a <= b),
                ">" => i64::from(a > b),
                ">=" => i64::from(a >= b),
                "==" => i64::from(a == b),
                "!=" => i64::from(a != b),
                "&" => a & b,
                "^" => a ^ b,
                "|" => a | b,
                "&&" => i64::from(a != 0 && b != 0),
                _ => i64::from(a != 0 || b != 0),
            };
        }
        Ok(a)
    }
}
