//! Tokens.

use std::rc::Rc;

use super::ast::IntTy;
use crate::import::pytorchsim::diag::{Diag, Pos, Res};

/// One kind of token.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Tok {
    /// An identifier or keyword.
    Ident(Rc<str>),
    /// An integer literal with its C type.
    Int(u64, IntTy),
    /// A floating-point literal; the parser refuses it.
    Float,
    /// A string literal, without quotes and escapes untouched.
    Str(Rc<str>),
    /// Punctuation.
    Punct(&'static str),
    /// The end of the input.
    Eof,
}

/// A token with its place.
#[derive(Clone, Debug)]
pub(crate) struct Token {
    pub tok: Tok,
    pub pos: Pos,
    /// First on its line.
    pub bol: bool,
    /// White space before it.
    pub space: bool,
}

/// Tokens of one file, at most.
pub(crate) const MAX_TOKENS: usize = 1 << 20;

const PUNCTS: &[&str] = &[
    "<<=", ">>=", "...", "<=>", "->*", "::", "->", "++", "--", "<<", ">>", "<=", ">=", "==", "!=",
    "&&", "||", "+=", "-=", "*=", "/=", "%=", "&=", "|=", "^=", "##", "{", "}", "[", "]", "(", ")",
    ";", ":", "?", ".", "+", "-", "*", "/", "%", "&", "|", "^", "!", "~", "=", "<", ">", ",", "#",
    "\\", "@", "$", "`",
];

/// All tokens of `text`, with an [`Tok::Eof`] at the end.
pub(crate) fn lex(text: &str, file: u16) -> Res<Vec<Token>> {
    Lexer {
        bytes: text.as_bytes(),
        text,
        at: 0,
        line: 1,
        line_start: 0,
        file,
        counted: (0, 0),
    }
    .run()
}

struct Lexer<'a> {
    bytes: &'a [u8],
    text: &'a str,
    at: usize,
    line: u32,
    line_start: usize,
    file: u16,
    /// Where the column was last counted, and what it was: long lines are counted once.
    counted: (usize, u32),
}

impl Lexer<'_> {
    fn byte(&self, ahead: usize) -> u8 {
        self.bytes.get(self.at + ahead).copied().unwrap_or(0)
    }

    fn pos(&self, start: usize, length: usize) -> Pos {
        // The column counts characters, as editors do.
        let column = self
            .text
            .get(self.line_start..start)
            .map_or(0, |s| s.chars().count());
        Pos {
            file: self.file,
            line: self.line,
            column: column as u32 + 1,
            length: length.clamp(1, 200) as u32,
        }
    }

    /// The place of the token being read, whose column has just been counted.
    fn here(&self, start: usize, length: usize) -> Pos {
        if self.counted.0 != start {
            return self.pos(start, length);
        }
        let column = self.counted.1.saturating_add(1);
        Pos {
            file: self.file,
            line: self.line,
            column,
            length: length.clamp(1, 200) as u32,
        }
    }

    fn newline(&mut self) {
        self.line = self.line.saturating_add(1);
        self.line_start = self.at;
        self.counted = (self.at, 0);
    }

    fn run(mut self) -> Res<Vec<Token>> {
        let mut out = Vec::new();
        let (mut bol, mut space) = (true, false);
        while self.at < self.bytes.len() {
            let c = self.byte(0);
            match c {
                b'\n' => {
                    self.at += 1;
                    self.newline();
                    bol = true;
                    space = true;
                    continue;
                }
                b' ' | b'\t' | b'\r' | 0x0b | 0x0c => {
                    self.at += 1;
                    space = true;
                    continue;
                }
                b'\\'
                    if self.byte(1) == b'\n'
                        || (self.byte(1) == b'\r' && self.byte(2) == b'\n') =>
                {
                    self.at += if self.byte(1) == b'\n' { 2 } else { 3 };
                    self.newline();
                    space = true;
                    continue;
                }
                b'/' if self.byte(1) == b'/' => {
                    while self.at < self.bytes.len() && self.byte(0) != b'\n' {
                        if self.byte(0) == b'\\' && self.byte(1) == b'\n' {
                            self.at += 2;
                            self.newline();
                        } else {
                            self.at += 1;
                        }
                    }
                    space = true;
                    continue;
                }
                b'/' if self.byte(1) == b'*' => {
                    let open = self.pos(self.at, 2);
                    self.at += 2;
                    loop {
                        if self.at >= self.bytes.len() {
                            return Err(Diag::syntax(open, "a comment that never ends"));
                        }
                        if self.byte(0) == b'*' && self.byte(1) == b'/' {
                            self.at += 2;
                            break;
                        }
                        let c = self.byte(0);
                        self.at += 1;
                        if c == b'\n' {
                            self.newline();
                        }
                    }
                    space = true;
                    continue;
                }
                _ => {}
            }
            let (start, line) = (self.at, self.line);
            let gap = self
                .text
                .get(self.counted.0..start)
                .map_or(0, |s| s.chars().count());
            let before = self.counted.1.saturating_add(gap as u32);
            self.counted = (start, before);
            let tok = self.token()?;
            let length = self
                .text
                .get(start..self.at)
                .map_or(1, |s| s.chars().count());
            let column = before.saturating_add(1);
            let pos = Pos {
                file: self.file,
                line,
                column,
                length: length.clamp(1, 200) as u32,
            };
            out.push(Token {
                tok,
                pos,
                bol,
                space,
            });
            if out.len() > MAX_TOKENS {
                return Err(Diag::limit(pos, format!("more than {MAX_TOKENS} tokens")));
            }
            bol = false;
            space = false;
        }
        let pos = self.pos(self.at, 1);
        out.push(Token {
            tok: Tok::Eof,
            pos,
            bol: true,
            space: true,
        });
        Ok(out)
    }

    fn token(&mut self) -> Res<Tok> {
        let start = self.at;
        let c = self.byte(0);
        if c.is_ascii_alphabetic() || c == b'_' {
            while self.byte(0).is_ascii_alphanumeric() || self.byte(0) == b'_' {
                self.at += 1;
            }
            let word = self.text.get(start..self.at).unwrap_or_default();
            if word.len() > 512 {
                return Err(Diag::limit(
                    self.pos(start, 1),
                    "a name longer than 512 characters",
                ));
            }
            return Ok(Tok::Ident(word.into()));
        }
        if c.is_ascii_digit() || (c == b'.' && self.byte(1).is_ascii_digit()) {
            return self.number();
        }
        if c == b'"' || c == b'\'' {
            return self.quoted(c);
        }
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        for p in PUNCTS {
            if rest.starts_with(p.as_bytes()) {
                self.at += p.len();
                return Ok(Tok::Punct(p));
            }
        }
        let shown = self
            .text
            .get(start..)
            .and_then(|s| s.chars().next())
            .unwrap_or('?');
        Err(Diag::syntax(
            self.pos(start, 1),
            format!("unexpected character {shown:?}"),
        ))
    }

    fn quoted(&mut self, quote: u8) -> Res<Tok> {
        let start = self.at;
        self.at += 1;
        loop {
            match self.byte(0) {
                0 | b'\n' => {
                    return Err(Diag::syntax(
                        self.pos(start, 1),
                        "a quotation that does not end on its line",
                    ));
                }
                b'\\' => self.at += 2,
                c if c == quote => break,
                _ => self.at += 1,
            }
            if self.at > self.bytes.len() {
                return Err(Diag::syntax(
                    self.pos(start, 1),
                    "a quotation that does not end on its line",
                ));
            }
        }
        let body = self.text.get(start + 1..self.at).unwrap_or_default();
        self.at += 1;
        if quote == b'"' {
            return Ok(Tok::Str(body.into()));
        }
        let value = match body.as_bytes() {
            [c] if c.is_ascii() => u64::from(*c),
            [b'\\', b'0'] => 0,
            [b'\\', b'n'] => 10,
            [b'\\', b't'] => 9,
            [b'\\', c @ (b'\\' | b'\'')] => u64::from(*c),
            _ => {
                return Err(Diag::unsupported(
                    self.pos(start, 1),
                    "this character literal",
                ));
            }
        };
        Ok(Tok::Int(value, IntTy::I8))
    }

    fn number(&mut self) -> Res<Tok> {
        let start = self.at;
        while self.byte(0).is_ascii_alphanumeric()
            || matches!(self.byte(0), b'_' | b'.')
            || (self.byte(0) == b'\'' && self.byte(1).is_ascii_alphanumeric())
            || (matches!(self.byte(0), b'+' | b'-')
                && self.at > start
                && matches!(self.bytes.get(self.at - 1), Some(b'e' | b'E' | b'p' | b'P'))
                && !self
                    .bytes
                    .get(start..start + 2)
                    .is_some_and(|p| p == b"0x" || p == b"0X"))
        {
            self.at += 1;
        }
        let length = self.at - start;
        let pos = self.here(start, length);
        let raw: String = self
            .text
            .get(start..self.at)
            .unwrap_or_default()
            .chars()
            .filter(|c| *c != '\'')
            .collect();
        let lower = raw.to_ascii_lowercase();
        let (radix, digits) = if let Some(d) = lower.strip_prefix("0x") {
            (16, d)
        } else if let Some(d) = lower.strip_prefix("0b") {
            (2, d)
        } else if lower.len() > 1 && lower.starts_with('0') && !lower.contains(['.', 'e']) {
            (8, lower.strip_prefix('0').unwrap_or_default())
        } else {
            (10, lower.as_str())
        };
        let body = digits.trim_end_matches(['u', 'l', 'z']);
        let suffix = digits.get(body.len()..).unwrap_or_default();
        if radix == 10 && body.contains(['.', 'e', 'f']) {
            return Ok(Tok::Float);
        }
        if body.is_empty() && radix == 8 {
            // "0" with a suffix such as 0u or 0ull.
            return Self::typed(0, 8, suffix)
                .ok_or_else(|| Diag::syntax(pos, format!("unknown suffix in {raw}")));
        }
        let value = u64::from_str_radix(body, radix).map_err(|e| {
            let overflow = matches!(e.kind(), std::num::IntErrorKind::PosOverflow);
            if overflow {
                Diag::value(pos, format!("{raw} does not fit 64 bits"))
            } else {
                Diag::syntax(pos, format!("{raw} is no integer"))
            }
        })?;
        Self::typed(value, radix, suffix)
            .ok_or_else(|| Diag::syntax(pos, format!("unknown suffix in {raw}")))
    }

    /// The type C gives an integer literal (on the 64-bit targets that producers are built for).
    fn typed(value: u64, radix: u32, suffix: &str) -> Option<Tok> {
        let (unsigned, long) = match suffix {
            "" => (false, false),
            "u" => (true, false),
            "l" | "ll" | "z" => (false, true),
            "ul" | "ull" | "lu" | "llu" | "uz" | "zu" => (true, true),
            _ => return None,
        };
        let fits = |max: u64| value <= max;
        let ty = if unsigned {
            if !long && fits(u64::from(u32::MAX)) {
                IntTy::U32
            } else {
                IntTy::U64
            }
        } else if !long && fits(i32::MAX as u64) {
            IntTy::I32
        } else if !long && radix != 10 && fits(u64::from(u32::MAX)) {
            IntTy::U32
        } else if fits(i64::MAX as u64) {
            IntTy::I64
        } else {
            IntTy::U64
        };
        Some(Tok::Int(value, ty))
    }
}
