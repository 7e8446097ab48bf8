//! From tokens to the tree.

use std::collections::HashSet;
use std::rc::Rc;

use super::ast::*;
use super::lex::{Tok, Token};
use crate::import::pytorchsim::diag::{Diag, Pos, Res};

/// Nesting of statements and of expressions, at most (together).
const MAX_DEPTH: u32 = 96;
/// Operators in one row (`a + b + c ...`), at most.
const MAX_CHAIN: u32 = 2000;

/// Parses a whole translation unit.
pub(crate) fn parse(tokens: Vec<Token>) -> Res<Unit> {
    let mut p = Parser {
        tokens,
        at: 0,
        depth: 0,
        types: HashSet::new(),
        aliases: Vec::new(),
        unit: Unit::default(),
    };
    p.items(false)?;
    Ok(p.unit)
}

struct Parser {
    tokens: Vec<Token>,
    at: usize,
    depth: u32,
    /// Names of structures.
    types: HashSet<Rc<str>>,
    aliases: Vec<(Rc<str>, Ty)>,
    unit: Unit,
}

#[derive(Default)]
struct Specs {
    is_static: bool,
    is_const: bool,
}

fn int(t: IntTy) -> Ty {
    Ty {
        base: Base::Int(t),
        pointers: 0,
        reference: false,
        is_const: false,
    }
}

impl Parser {
    fn peek(&self, ahead: usize) -> &Tok {
        const EOF: &Tok = &Tok::Eof;
        self.tokens.get(self.at + ahead).map_or(EOF, |t| &t.tok)
    }

    fn pos(&self) -> Pos {
        self.tokens
            .get(self.at)
            .or(self.tokens.last())
            .map(|t| t.pos)
            .unwrap_or_default()
    }

    fn is(&self, p: &str) -> bool {
        matches!(self.peek(0), Tok::Punct(q) if *q == p)
    }

    fn is_at(&self, ahead: usize, p: &str) -> bool {
        matches!(self.peek(ahead), Tok::Punct(q) if *q == p)
    }

    fn word(&self, ahead: usize) -> Option<&str> {
        match self.peek(ahead) {
            Tok::Ident(n) => Some(n),
            _ => None,
        }
    }

    fn is_word(&self, w: &str) -> bool {
        self.word(0) == Some(w)
    }

    fn eat(&mut self, p: &str) -> bool {
        let yes = self.is(p);
        self.at += usize::from(yes);
        yes
    }

    fn eat_word(&mut self, w: &str) -> bool {
        let yes = self.is_word(w);
        self.at += usize::from(yes);
        yes
    }

    fn shown(&self) -> String {
        match self.peek(0) {
            Tok::Ident(n) => format!("`{n}`"),
            Tok::Int(v, _) => format!("`{v}`"),
            Tok::Float => "a floating-point number".into(),
            Tok::Str(_) => "a string".into(),
            Tok::Punct(p) => format!("`{p}`"),
            Tok::Eof => "the end of the file".into(),
        }
    }

    fn expect(&mut self, p: &str) -> Res<()> {
        if self.eat(p) {
            return Ok(());
        }
        Err(Diag::syntax(
            self.pos(),
            format!("expected `{p}`, found {}", self.shown()),
        ))
    }

    fn name(&mut self) -> Res<Rc<str>> {
        if let Tok::Ident(n) = self.peek(0) {
            let n = n.clone();
            self.at += 1;
            return Ok(n);
        }
        Err(Diag::syntax(
            self.pos(),
            format!("expected a name, found {}", self.shown()),
        ))
    }

    fn enter(&mut self) -> Res<()> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(Diag::deep(
                self.pos(),
                format!("nested deeper than {MAX_DEPTH} levels"),
            ));
        }
        Ok(())
    }

    fn leave(&mut self) {
        self.depth = self.depth.saturating_sub(1);
    }

    // ---- the file ----

    fn items(&mut self, inside: bool) -> Res<()> {
        loop {
            if *self.peek(0) == Tok::Eof {
                if inside {
                    return Err(Diag::syntax(self.pos(), "the file ends inside a block"));
                }
                return Ok(());
            }
            if inside && self.eat("}") {
                return Ok(());
            }
            self.item()?;
        }
    }

    fn item(&mut self) -> Res<()> {
        self.attributes()?;
        let pos = self.pos();
        if self.eat(";") {
            return Ok(());
        }
        match self.word(0) {
            Some("using") => return self.using(),
            Some("typedef") => return self.typedef(),
            Some("static_assert" | "_Static_assert") => return self.static_assert(),
            Some("template") => return Err(Diag::unsupported(pos, "a template")),
            Some("class" | "union" | "asm" | "__asm__" | "goto" | "concept") => {
                return Err(Diag::unsupported(
                    pos,
                    format_args!("`{}`", self.word(0).unwrap_or_default()),
                ));
            }
            Some("enum") => return self.enumeration(),
            Some("struct") if self.is_at(2, "{") || self.is_at(2, ";") => return self.structure(),
            Some("namespace") => {
                self.at += 1;
                while self.word(0).is_some() || self.is("::") {
                    self.at += 1;
                }
                self.attributes()?;
                self.expect("{")?;
                self.enter()?;
                let r = self.items(true);
                self.leave();
                return r;
            }
            Some("inline") if self.word(1) == Some("namespace") => {
                self.at += 1;
                return self.item();
            }
            Some("extern") if matches!(self.peek(1), Tok::Str(_)) => {
                if !matches!(self.peek(1), Tok::Str(s) if matches!(&**s, "C" | "C++")) {
                    return Err(Diag::unsupported(pos, "this linkage"));
                }
                self.at += 2;
                if self.eat("{") {
                    self.enter()?;
                    let r = self.items(true);
                    self.leave();
                    return r;
                }
                return self.item();
            }
            _ => {}
        }
        let mut specs = Specs::default();
        let Some(base) = self.base(&mut specs)? else {
            return Err(Diag::syntax(
                pos,
                format!("expected a declaration, found {}", self.shown()),
            ));
        };
        let ty = self.pointers(base)?;
        self.attributes()?;
        let npos = self.pos();
        let name = self.name()?;
        if self.is("(") && !self.is_initializer_paren() {
            return self.function(ty, name, npos);
        }
        let mut list = Vec::new();
        self.declarators(ty, name, npos, &specs, &mut list)?;
        for d in list {
            self.unit.order.push(Item::Global(self.unit.globals.len()));
            self.unit.globals.push(d);
        }
        Ok(())
    }

    /// Whether `name (` starts a value (`int64_t x(3);`) and not a parameter list.
    fn is_initializer_paren(&self) -> bool {
        match self.peek(1) {
            Tok::Int(..) => true,
            Tok::Punct(p) => matches!(*p, "(" | "-" | "+" | "~" | "!"),
            Tok::Ident(n) => !self.starts_type(n) && &**n != "void",
            _ => false,
        }
    }

    fn attributes(&mut self) -> Res<()> {
        loop {
            if self.is("[") && self.is_at(1, "[") {
                self.at += 2;
                while !(self.is("]") && self.is_at(1, "]")) {
                    if *self.peek(0) == Tok::Eof {
                        return Err(Diag::syntax(self.pos(), "an attribute that does not end"));
                    }
                    self.at += 1;
                }
                self.at += 2;
            } else if self.is_word("__attribute__")
                || self.is_word("alignas")
                || self.is_word("__declspec")
            {
                self.at += 1;
                self.skip_parens()?;
            } else if self.is_word("__extension__") {
                self.at += 1;
            } else {
                return Ok(());
            }
        }
    }

    fn skip_parens(&mut self) -> Res<()> {
        let pos = self.pos();
        self.expect("(")?;
        let mut depth = 1usize;
        while depth > 0 {
            if *self.peek(0) == Tok::Eof {
                return Err(Diag::syntax(pos, "a parenthesis that is never closed"));
            }
            if self.is("(") {
                depth += 1;
            } else if self.is(")") {
                depth -= 1;
            }
            self.at += 1;
        }
        Ok(())
    }

    fn static_assert(&mut self) -> Res<()> {
        self.at += 1;
        self.skip_parens()?;
        self.expect(";")
    }

    fn using(&mut self) -> Res<()> {
        self.at += 1;
        if self.eat_word("namespace") {
            self.name()?;
            return self.expect(";");
        }
        if self.is_at(1, "=") {
            let name = self.name()?;
            self.at += 1;
            let pos = self.pos();
            let mut specs = Specs::default();
            let Some(base) = self.base(&mut specs)? else {
                return Err(Diag::syntax(pos, "expected a type"));
            };
            let mut ty = self.pointers(base)?;
            if self.is("(") {
                // A function type such as void (*)(EmitCtx*, int64_t*, int32_t).
                while !self.is(";") && *self.peek(0) != Tok::Eof {
                    self.at += 1;
                }
                ty = Ty {
                    base: Base::Fn,
                    pointers: 0,
                    reference: false,
                    is_const: false,
                };
            }
            self.alias(name, ty, pos)?;
            return self.expect(";");
        }
        // using std::size_t; and the like name types that are built in.
        let pos = self.pos();
        while self.word(0).is_some() || self.is("::") {
            self.at += 1;
        }
        if self.is(";") {
            self.at += 1;
            return Ok(());
        }
        Err(Diag::unsupported(pos, "this form of `using`"))
    }

    fn alias(&mut self, name: Rc<str>, ty: Ty, pos: Pos) -> Res<()> {
        if self.aliases.len() >= 10_000 {
            return Err(Diag::limit(pos, "more than 10000 type names"));
        }
        self.aliases.push((name, ty));
        Ok(())
    }

    fn typedef(&mut self) -> Res<()> {
        self.at += 1;
        let pos = self.pos();
        if self.is_word("struct") && (self.is_at(1, "{") || self.is_at(2, "{")) {
            self.at += 1;
            let tag: Rc<str> = if self.is("{") {
                "".into()
            } else {
                self.name()?
            };
            let fields = self.fields()?;
            let name = self.name()?;
            let key = if tag.is_empty() { name.clone() } else { tag };
            self.types.insert(key.clone());
            self.unit.structs.push(Struct {
                name: key.clone(),
                fields,
            });
            let ty = Ty {
                base: Base::Struct(key),
                pointers: 0,
                reference: false,
                is_const: false,
            };
            self.alias(name, ty, pos)?;
            return self.expect(";");
        }
        let mut specs = Specs::default();
        let Some(base) = self.base(&mut specs)? else {
            return Err(Diag::unsupported(pos, "this typedef"));
        };
        let ty = self.pointers(base)?;
        if self.is("(") && self.is_at(1, "*") {
            self.at += 2;
            let name = self.name()?;
            self.expect(")")?;
            self.skip_parens()?;
            let ty = Ty {
                base: Base::Fn,
                pointers: 0,
                reference: false,
                is_const: false,
            };
            self.alias(name, ty, pos)?;
            return self.expect(";");
        }
        let name = self.name()?;
        self.alias(name, ty, pos)?;
        self.expect(";")
    }

    fn enumeration(&mut self) -> Res<()> {
        let pos = self.pos();
        self.at += 1;
        let scoped = self.eat_word("class") || self.eat_word("struct");
        let mut tag = None;
        if self.word(0).is_some() {
            tag = Some(self.name()?);
        }
        if self.eat(":") {
            let mut specs = Specs::default();
            if self.base(&mut specs)?.is_none() {
                return Err(Diag::syntax(self.pos(), "expected a type"));
            }
        }
        if let Some(t) = &tag {
            self.alias(t.clone(), int(IntTy::I32), pos)?;
        }
        if self.eat(";") {
            return Ok(());
        }
        self.expect("{")?;
        let first = self.unit.enumerators.len();
        while !self.is("}") {
            let pos = self.pos();
            let mut name = self.name()?;
            if let (true, Some(t)) = (scoped, &tag) {
                name = format!("{t}::{name}").into();
            }
            let value = if self.eat("=") {
                Some(self.assignment()?)
            } else {
                None
            };
            self.unit.enumerators.push((name, value, pos));
            if !self.eat(",") {
                break;
            }
        }
        self.expect("}")?;
        self.unit
            .order
            .push(Item::Enum(first, self.unit.enumerators.len()));
        self.expect(";")
    }

    fn structure(&mut self) -> Res<()> {
        self.at += 1;
        let name = self.name()?;
        self.types.insert(name.clone());
        if self.eat(";") {
            return Ok(());
        }
        let fields = self.fields()?;
        self.unit.structs.push(Struct { name, fields });
        self.expect(";")
    }

    fn fields(&mut self) -> Res<Vec<Decl>> {
        self.expect("{")?;
        let mut fields = Vec::new();
        while !self.eat("}") {
            let pos = self.pos();
            let mut specs = Specs::default();
            let Some(base) = self.base(&mut specs)? else {
                return Err(Diag::unsupported(
                    pos,
                    format_args!("{} in a structure", self.shown()),
                ));
            };
            let ty = self.pointers(base)?;
            let pos = self.pos();
            let name = self.name()?;
            if self.is("(") {
                return Err(Diag::unsupported(pos, "a member function"));
            }
            self.declarators(ty, name, pos, &specs, &mut fields)?;
            if fields.len() > 1000 {
                return Err(Diag::limit(pos, "a structure with more than 1000 fields"));
            }
        }
        Ok(fields)
    }

    fn function(&mut self, ret: Ty, name: Rc<str>, pos: Pos) -> Res<()> {
        let params = self.params()?;
        while self.eat_word("noexcept") || self.eat_word("const") {}
        self.attributes()?;
        if self.eat(";") {
            return Ok(());
        }
        let body = self.block()?;
        if self.unit.functions.iter().any(|f| f.name == name) {
            return Err(Diag::unsupported(
                pos,
                format_args!("a second function named {name}"),
            ));
        }
        if self.unit.functions.len() >= 10_000 {
            return Err(Diag::limit(pos, "more than 10000 functions"));
        }
        self.unit.functions.push(Rc::new(Function {
            name,
            ret,
            params,
            body,
            pos,
        }));
        Ok(())
    }

    fn params(&mut self) -> Res<Vec<Param>> {
        self.expect("(")?;
        let mut params = Vec::new();
        if self.eat(")") {
            return Ok(params);
        }
        if self.is_word("void") && self.is_at(1, ")") {
            self.at += 2;
            return Ok(params);
        }
        loop {
            self.attributes()?;
            let pos = self.pos();
            if self.is("...") {
                return Err(Diag::unsupported(pos, "a variable argument list"));
            }
            let mut specs = Specs::default();
            let Some(base) = self.base(&mut specs)? else {
                return Err(Diag::syntax(
                    pos,
                    format!("expected a parameter, found {}", self.shown()),
                ));
            };
            let mut ty = self.pointers(base)?;
            let mut name = None;
            let mut array = false;
            if self.is("(") && self.is_at(1, "*") {
                // A function pointer parameter.
                self.at += 2;
                name = Some(self.name()?);
                self.expect(")")?;
                self.skip_parens()?;
                ty = Ty {
                    base: Base::Fn,
                    pointers: 0,
                    reference: false,
                    is_const: false,
                };
            } else if self.is("(") && self.is_at(1, "&") {
                // A reference to an array.
                self.at += 2;
                name = Some(self.name()?);
                self.expect(")")?;
                array = true;
            } else if self.word(0).is_some() {
                name = Some(self.name()?);
            }
            while self.eat("[") {
                array = true;
                if !self.is("]") {
                    self.assignment()?;
                }
                self.expect("]")?;
            }
            if self.is("=") {
                return Err(Diag::unsupported(self.pos(), "a default argument"));
            }
            params.push(Param { ty, name, array });
            if params.len() > 256 {
                return Err(Diag::limit(pos, "more than 256 parameters"));
            }
            if self.eat(")") {
                return Ok(params);
            }
            self.expect(",")?;
        }
    }

    // ---- types ----

    fn starts_type(&self, n: &str) -> bool {
        if builtin(n).is_some()
            || self.types.contains(n)
            || self.aliases.iter().any(|(a, _)| **a == *n)
        {
            return true;
        }
        matches!(
            n,
            "const"
                | "constexpr"
                | "static"
                | "inline"
                | "extern"
                | "volatile"
                | "unsigned"
                | "signed"
                | "int"
                | "long"
                | "short"
                | "char"
                | "bool"
                | "void"
                | "auto"
                | "register"
                | "struct"
                | "constinit"
                | "thread_local"
                | "float"
                | "double"
                | "enum"
        )
    }

    /// Whether a declaration (or a type name) starts here.
    fn at_type(&self) -> bool {
        match self.word(0) {
            Some("std") if self.is_at(1, "::") => self
                .word(2)
                .is_some_and(|w| builtin(w).is_some() || w == "array"),
            Some(w) if self.starts_type(w) => {
                // Scoped enumerators such as Unit::Vector are values.
                !self.is_at(1, "::")
            }
            _ => false,
        }
    }

    /// Specifiers and base type, if a type starts here.
    fn base(&mut self, specs: &mut Specs) -> Res<Option<Base>> {
        let start = self.pos();
        let (mut base, mut unsigned, mut signed, mut longs, mut short, mut any) =
            (None, false, false, 0, false, false);
        loop {
            self.attributes()?;
            let Some(w) = self.word(0) else { break };
            match w {
                "const" | "constexpr" | "constinit" | "consteval" => specs.is_const = true,
                "static" => specs.is_static = true,
                "inline" | "extern" | "register" => {}
                "volatile" | "thread_local" | "mutable" => {
                    return Err(Diag::unsupported(self.pos(), format_args!("`{w}`")));
                }
                "float" | "double" => return Err(Diag::unsupported(self.pos(), "floating point")),
                "unsigned" => {
                    unsigned = true;
                    any = true;
                }
                "signed" => {
                    signed = true;
                    any = true;
                }
                "long" => {
                    longs += 1;
                    any = true;
                }
                "short" => {
                    short = true;
                    any = true;
                }
                "int" if base.is_none() => base = Some(Base::Int(IntTy::I32)),
                "char" if base.is_none() => base = Some(Base::Int(IntTy::I8)),
                "bool" | "_Bool" if base.is_none() => base = Some(Base::Int(IntTy::Bool)),
                "void" if base.is_none() => base = Some(Base::Void),
                "auto" if base.is_none() => base = Some(Base::Auto),
                "struct" | "enum" if base.is_none() && !any => {
                    self.at += 1;
                    if self.word(0).is_none() {
                        return Err(Diag::unsupported(self.pos(), "a type without a name here"));
                    }
                    continue;
                }
                "std" if base.is_none() && !any && self.is_at(1, "::") => {
                    if self.word(2) == Some("array") {
                        self.at += 3;
                        self.expect("<")?;
                        let mut inner = Specs::default();
                        let pos = self.pos();
                        self.enter()?;
                        let Some(of) = self.base(&mut inner)? else {
                            return Err(Diag::syntax(pos, "expected a type"));
                        };
                        self.leave();
                        self.expect(",")?;
                        let n = self.no_greater()?;
                        self.expect(">")?;
                        base = Some(Base::Array(Box::new(of), Rc::new(n)));
                        continue;
                    }
                    self.at += 2;
                    continue;
                }
                _ if base.is_none() && !any => {
                    if let Some(t) = builtin(w) {
                        base = Some(t);
                    } else if let Some((_, ty)) = self.aliases.iter().rev().find(|(a, _)| **a == *w)
                    {
                        if ty.pointers > 0 {
                            return Err(Diag::unsupported(self.pos(), "a type name for a pointer"));
                        }
                        specs.is_const |= ty.is_const;
                        base = Some(ty.base.clone());
                    } else if self.types.contains(w) {
                        base = Some(Base::Struct(w.into()));
                    } else {
                        break;
                    }
                }
                _ => break,
            }
            self.at += 1;
        }
        if any {
            let t = match base {
                None | Some(Base::Int(IntTy::I32)) if short => {
                    if unsigned {
                        IntTy::U16
                    } else {
                        IntTy::I16
                    }
                }
                None | Some(Base::Int(IntTy::I32)) if longs > 0 => {
                    if unsigned {
                        IntTy::U64
                    } else {
                        IntTy::I64
                    }
                }
                None | Some(Base::Int(IntTy::I32)) => {
                    if unsigned {
                        IntTy::U32
                    } else {
                        IntTy::I32
                    }
                }
                Some(Base::Int(IntTy::I8)) => {
                    if unsigned {
                        IntTy::U8
                    } else {
                        IntTy::I8
                    }
                }
                _ => return Err(Diag::unsupported(start, "this type")),
            };
            let _ = signed;
            base = Some(Base::Int(t));
        }
        Ok(base)
    }

    fn pointers(&mut self, base: Base) -> Res<Ty> {
        let mut ty = Ty {
            base,
            pointers: 0,
            reference: false,
            is_const: false,
        };
        loop {
            if self.eat("*") {
                ty.pointers = ty.pointers.saturating_add(1);
                if ty.pointers > 4 {
                    return Err(Diag::deep(self.pos(), "too many levels of pointers"));
                }
            } else if self.eat("&") || self.eat("&&") {
                ty.reference = true;
            } else if self.eat_word("const")
                || self.eat_word("__restrict__")
                || self.eat_word("__restrict")
            {
                // Constness of the pointer itself changes nothing here.
            } else {
                return Ok(ty);
            }
        }
    }

    /// A type name as in casts: base, pointers, and `[]`.
    fn type_name(&mut self) -> Res<(Ty, Option<Vec<Bound>>)> {
        let pos = self.pos();
        let mut specs = Specs::default();
        let Some(base) = self.base(&mut specs)? else {
            return Err(Diag::syntax(
                pos,
                format!("expected a type, found {}", self.shown()),
            ));
        };
        let mut ty = self.pointers(base)?;
        ty.is_const = specs.is_const;
        let mut dims = None;
        while self.eat("[") {
            let n = if self.is("]") {
                None
            } else {
                Some(Rc::new(self.assignment()?))
            };
            self.expect("]")?;
            let list: &mut Vec<Bound> = dims.get_or_insert_with(Vec::new);
            if list.len() >= 8 {
                return Err(Diag::deep(pos, "more than 8 array dimensions"));
            }
            list.push(n);
        }
        Ok((ty, dims))
    }

    fn declarators(
        &mut self,
        ty: Ty,
        name: Rc<str>,
        pos: Pos,
        specs: &Specs,
        out: &mut Vec<Decl>,
    ) -> Res<()> {
        let base = ty.base.clone();
        let (mut ty, mut name, mut pos) = (ty, name, pos);
        loop {
            ty.is_const = specs.is_const;
            let d = self.declarator(ty, name, pos, specs)?;
            out.push(d);
            if self.eat(";") {
                return Ok(());
            }
            self.expect(",")?;
            ty = self.pointers(base.clone())?;
            pos = self.pos();
            name = self.name()?;
        }
    }

    fn declarator(&mut self, mut ty: Ty, name: Rc<str>, pos: Pos, specs: &Specs) -> Res<Decl> {
        let mut dims = Vec::new();
        self.attributes()?;
        while self.is("[") {
            self.at += 1;
            let n = if self.is("]") {
                None
            } else {
                Some(Rc::new(self.assignment()?))
            };
            self.expect("]")?;
            if dims.len() >= 8 {
                return Err(Diag::deep(pos, "more than 8 array dimensions"));
            }
            dims.push(n);
        }
        while let Base::Array(of, n) = ty.base {
            // std::array<T, N> is T[N].
            dims.push(Some(n));
            ty.base = *of;
        }
        self.attributes()?;
        let init = if self.eat("=") {
            Some(self.initializer()?)
        } else if self.is("{") {
            Some(self.braces(None)?)
        } else if self.eat("(") {
            let e = self.assignment()?;
            self.expect(")")?;
            Some(e)
        } else {
            None
        };
        Ok(Decl {
            ty,
            name,
            dims,
            init,
            is_static: specs.is_static,
            pos,
        })
    }

    fn initializer(&mut self) -> Res<Expr> {
        if self.is("{") {
            self.braces(None)
        } else {
            self.assignment()
        }
    }

    fn braces(&mut self, ty: Option<(Ty, Vec<Bound>)>) -> Res<Expr> {
        let pos = self.pos();
        self.enter()?;
        self.expect("{")?;
        let mut list = Vec::new();
        let mut depth = 0;
        while !self.is("}") {
            let e = if self.is(".") && matches!(self.peek(1), Tok::Ident(_)) {
                let p = self.pos();
                self.at += 1;
                let field = self.name()?;
                if !self.is("{") {
                    self.expect("=")?;
                }
                let v = self.initializer()?;
                node(ExprKind::Designated(field, Box::new(v)), p, 0)?
            } else if self.is("[") {
                return Err(Diag::unsupported(
                    self.pos(),
                    "a designated array element or a lambda here",
                ));
            } else {
                self.initializer()?
            };
            depth = depth.max(e.depth);
            list.push(e);
            if !self.eat(",") {
                break;
            }
        }
        self.expect("}")?;
        self.leave();
        node(ExprKind::Braces(ty, list), pos, depth)
    }

    // ---- statements ----

    fn block(&mut self) -> Res<Vec<Stmt>> {
        self.enter()?;
        self.expect("{")?;
        let mut out = Vec::new();
        while !self.eat("}") {
            if *self.peek(0) == Tok::Eof {
                return Err(Diag::syntax(self.pos(), "the file ends inside a block"));
            }
            out.push(self.statement()?);
        }
        self.leave();
        Ok(out)
    }

    fn statement(&mut self) -> Res<Stmt> {
        self.enter()?;
        let s = self.statement_inner();
        self.leave();
        s
    }

    fn statement_inner(&mut self) -> Res<Stmt> {
        self.attributes()?;
        let pos = self.pos();
        let make = |kind| Ok(Stmt { kind, pos });
        if self.eat(";") {
            return make(StmtKind::Empty);
        }
        if self.is("{") {
            return make(StmtKind::Block(self.block()?));
        }
        match self.word(0) {
            Some("if") => {
                self.at += 1;
                self.eat_word("constexpr");
                self.expect("(")?;
                let c = self.expr()?;
                if self.is(";") {
                    return Err(Diag::unsupported(self.pos(), "an `if` with an initialiser"));
                }
                self.expect(")")?;
                let then = Box::new(self.statement()?);
                let otherwise = if self.eat_word("else") {
                    Some(Box::new(self.statement()?))
                } else {
                    None
                };
                return make(StmtKind::If(c, then, otherwise));
            }
            Some("for") => return self.for_statement(pos),
            Some("while") => {
                self.at += 1;
                self.expect("(")?;
                let c = self.expr()?;
                self.expect(")")?;
                let body = Box::new(self.statement()?);
                return make(StmtKind::While(c, body));
            }
            Some("do") => {
                self.at += 1;
                let body = Box::new(self.statement()?);
                if !self.eat_word("while") {
                    return Err(Diag::syntax(self.pos(), "expected `while`"));
                }
                self.expect("(")?;
                let c = self.expr()?;
                self.expect(")")?;
                self.expect(";")?;
                return make(StmtKind::DoWhile(body, c));
            }
            Some("return") => {
                self.at += 1;
                let e = if self.is(";") {
                    None
                } else {
                    Some(self.initializer()?)
                };
                self.expect(";")?;
                return make(StmtKind::Return(e));
            }
            Some("break") => {
                self.at += 1;
                self.expect(";")?;
                return make(StmtKind::Break);
            }
            Some("continue") => {
                self.at += 1;
                self.expect(";")?;
                return make(StmtKind::Continue);
            }
            Some("switch") => return self.switch_statement(pos),
            Some(
                w @ ("goto" | "asm" | "__asm__" | "try" | "throw" | "new" | "delete" | "case"
                | "default" | "class" | "union" | "template" | "co_await" | "co_return"
                | "co_yield"),
            ) => return Err(Diag::unsupported(pos, format_args!("`{w}`"))),
            Some("static_assert" | "_Static_assert") => {
                self.static_assert()?;
                return make(StmtKind::Empty);
            }
            Some("using") => {
                self.using()?;
                return make(StmtKind::Empty);
            }
            Some("typedef") => {
                self.typedef()?;
                return make(StmtKind::Empty);
            }
            Some("struct") if self.is_at(2, "{") => {
                self.structure()?;
                return make(StmtKind::Empty);
            }
            Some("enum") if self.is_at(1, "{") || self.is_at(2, "{") || self.is_at(2, ":") => {
                return Err(Diag::unsupported(pos, "an enumeration inside a function")
                    .hint("move it to the file"));
            }
            Some(_) if self.is_at(1, ":") && !self.is_at(1, "::") => {
                return Err(Diag::unsupported(pos, "a label"));
            }
            _ => {}
        }
        if self.at_type() && !self.functional_cast() {
            let list = self.local_declaration()?;
            return make(StmtKind::Decl(list));
        }
        let e = self.expr()?;
        self.expect(";")?;
        make(StmtKind::Expr(e))
    }

    /// Whether the type name here is used as a conversion: `int64_t(x) ...`.
    fn functional_cast(&self) -> bool {
        let skip = if self.is_word("std") { 2 } else { 0 };
        self.is_at(skip + 1, "(") || self.is_at(skip + 1, "{")
    }

    fn local_declaration(&mut self) -> Res<Vec<Decl>> {
        let mut specs = Specs::default();
        let pos = self.pos();
        let Some(base) = self.base(&mut specs)? else {
            return Err(Diag::syntax(
                pos,
                format!("expected a type, found {}", self.shown()),
            ));
        };
        let ty = self.pointers(base)?;
        let mut list = Vec::new();
        if self.is("[") {
            return Err(Diag::unsupported(self.pos(), "a structured binding"));
        }
        let npos = self.pos();
        if self.is("(") && self.is_at(1, "*") {
            // A pointer to a function: void (*f)(EmitCtx*, int64_t*, int32_t) = g;
            self.at += 2;
            let name = self.name()?;
            self.expect(")")?;
            self.skip_parens()?;
            let ty = Ty {
                base: Base::Fn,
                pointers: 0,
                reference: false,
                is_const: specs.is_const,
            };
            self.declarators(ty, name, npos, &specs, &mut list)?;
            return Ok(list);
        }
        let name = self.name()?;
        if self.is("(") && !self.is_initializer_paren() {
            return Err(Diag::unsupported(
                npos,
                "a function declared inside a function",
            ));
        }
        self.declarators(ty, name, npos, &specs, &mut list)?;
        Ok(list)
    }

    fn for_statement(&mut self, pos: Pos) -> Res<Stmt> {
        self.at += 1;
        self.expect("(")?;
        let ipos = self.pos();
        let init = if self.eat(";") {
            None
        } else if self.at_type() && !self.functional_cast() {
            // Look for `for (T x : list)`.
            let mark = self.at;
            let mut specs = Specs::default();
            if let Some(base) = self.base(&mut specs)? {
                let mut ty = self.pointers(base)?;
                if self.word(0).is_some() && self.is_at(1, ":") {
                    let npos = self.pos();
                    let name = self.name()?;
                    self.at += 1;
                    let list = self.initializer()?;
                    self.expect(")")?;
                    let body = Box::new(self.statement()?);
                    ty.is_const = specs.is_const;
                    let d = Decl {
                        ty,
                        name,
                        dims: Vec::new(),
                        init: None,
                        is_static: false,
                        pos: npos,
                    };
                    return Ok(Stmt {
                        kind: StmtKind::ForEach(Box::new(d), list, body),
                        pos,
                    });
                }
            }
            self.at = mark;
            let list = self.local_declaration()?;
            Some(Box::new(Stmt {
                kind: StmtKind::Decl(list),
                pos: ipos,
            }))
        } else {
            let e = self.expr()?;
            self.expect(";")?;
            Some(Box::new(Stmt {
                kind: StmtKind::Expr(e),
                pos: ipos,
            }))
        };
        let cond = if self.is(";") {
            None
        } else {
            Some(self.expr()?)
        };
        self.expect(";")?;
        let step = if self.is(")") {
            None
        } else {
            Some(self.expr()?)
        };
        self.expect(")")?;
        let body = Box::new(self.statement()?);
        Ok(Stmt {
            kind: StmtKind::For(init, cond, step, body),
            pos,
        })
    }

    fn switch_statement(&mut self, pos: Pos) -> Res<Stmt> {
        self.at += 1;
        self.expect("(")?;
        let on = self.expr()?;
        self.expect(")")?;
        self.expect("{")?;
        let mut cases: Vec<(Vec<Option<Expr>>, Vec<Stmt>)> = Vec::new();
        while !self.eat("}") {
            if self.is_word("case") || self.is_word("default") {
                let value = if self.eat_word("default") {
                    None
                } else {
                    self.at += 1;
                    Some(self.conditional()?)
                };
                self.expect(":")?;
                match cases.last_mut() {
                    Some((values, body)) if body.is_empty() => values.push(value),
                    _ => cases.push((vec![value], Vec::new())),
                }
                continue;
            }
            let s = self.statement()?;
            match cases.last_mut() {
                Some((_, body)) => body.push(s),
                None => {
                    return Err(Diag::unsupported(
                        s.pos,
                        "a statement before the first case",
                    ));
                }
            }
        }
        if cases.len() > 1024 {
            return Err(Diag::limit(pos, "more than 1024 cases"));
        }
        Ok(Stmt {
            kind: StmtKind::Switch(on, cases),
            pos,
        })
    }

    // ---- expressions ----

    pub(super) fn expr(&mut self) -> Res<Expr> {
        let mut a = self.assignment()?;
        while self.is(",") {
            let pos = self.pos();
            self.at += 1;
            let b = self.assignment()?;
            let d = a.depth.max(b.depth);
            a = node(ExprKind::Comma(Box::new(a), Box::new(b)), pos, d)?;
        }
        Ok(a)
    }

    fn assignment(&mut self) -> Res<Expr> {
        self.enter()?;
        let left = self.conditional()?;
        let pos = self.pos();
        let op = match self.peek(0) {
            Tok::Punct("=") => None,
            Tok::Punct("+=") => Some(BinOp::Add),
            Tok::Punct("-=") => Some(BinOp::Sub),
            Tok::Punct("*=") => Some(BinOp::Mul),
            Tok::Punct("/=") => Some(BinOp::Div),
            Tok::Punct("%=") => Some(BinOp::Rem),
            Tok::Punct("<<=") => Some(BinOp::Shl),
            Tok::Punct(">>=") => Some(BinOp::Shr),
            Tok::Punct("&=") => Some(BinOp::And),
            Tok::Punct("|=") => Some(BinOp::Or),
            Tok::Punct("^=") => Some(BinOp::Xor),
            _ => {
                self.leave();
                return Ok(left);
            }
        };
        self.at += 1;
        let right = self.initializer()?;
        self.leave();
        let d = left.depth.max(right.depth);
        node(
            ExprKind::Assign(op, Box::new(left), Box::new(right)),
            pos,
            d,
        )
    }

    fn conditional(&mut self) -> Res<Expr> {
        self.enter()?;
        let c = self.binary(0, false)?;
        if !self.is("?") {
            self.leave();
            return Ok(c);
        }
        let pos = self.pos();
        self.at += 1;
        let a = self.expr()?;
        self.expect(":")?;
        let b = self.assignment()?;
        self.leave();
        let d = c.depth.max(a.depth).max(b.depth);
        node(
            ExprKind::Cond(Box::new(c), Box::new(a), Box::new(b)),
            pos,
            d,
        )
    }

    fn no_greater(&mut self) -> Res<Expr> {
        self.binary(0, true)
    }

    fn binary(&mut self, min: u8, no_greater: bool) -> Res<Expr> {
        let mut a = self.unary()?;
        loop {
            let Tok::Punct(p) = self.peek(0) else {
                return Ok(a);
            };
            let (level, op) = match *p {
                "*" => (10, BinOp::Mul),
                "/" => (10, BinOp::Div),
                "%" => (10, BinOp::Rem),
                "+" => (9, BinOp::Add),
                "-" => (9, BinOp::Sub),
                "<<" => (8, BinOp::Shl),
                ">>" if !no_greater => (8, BinOp::Shr),
                "<" => (7, BinOp::Lt),
                "<=" => (7, BinOp::Le),
                ">" if !no_greater => (7, BinOp::Gt),
                ">=" => (7, BinOp::Ge),
                "==" => (6, BinOp::Eq),
                "!=" => (6, BinOp::Ne),
                "&" => (5, BinOp::And),
                "^" => (4, BinOp::Xor),
                "|" => (3, BinOp::Or),
                "&&" => (2, BinOp::LogAnd),
                "||" => (1, BinOp::LogOr),
                "<=>" | "->*" => return Err(Diag::unsupported(self.pos(), format_args!("`{p}`"))),
                _ => return Ok(a),
            };
            if level <= min {
                return Ok(a);
            }
            let pos = self.pos();
            self.at += 1;
            self.enter()?;
            let b = self.binary(level, no_greater)?;
            self.leave();
            let d = a.depth.max(b.depth);
            a = node(ExprKind::Binary(op, Box::new(a), Box::new(b)), pos, d)?;
        }
    }

    fn unary(&mut self) -> Res<Expr> {
        self.enter()?;
        let e = self.unary_inner();
        self.leave();
        e
    }

    fn unary_inner(&mut self) -> Res<Expr> {
        let pos = self.pos();
        let op = match self.peek(0) {
            Tok::Punct("+") => Some(UnOp::Plus),
            Tok::Punct("-") => Some(UnOp::Neg),
            Tok::Punct("!") => Some(UnOp::Not),
            Tok::Punct("~") => Some(UnOp::BitNot),
            Tok::Punct("*") => Some(UnOp::Deref),
            Tok::Punct("&") => Some(UnOp::AddrOf),
            Tok::Punct("++") => Some(UnOp::PreInc),
            Tok::Punct("--") => Some(UnOp::PreDec),
            _ => None,
        };
        if let Some(op) = op {
            self.at += 1;
            let e = self.unary()?;
            let d = e.depth;
            return node(ExprKind::Unary(op, Box::new(e)), pos, d);
        }
        if self.is_word("sizeof") {
            self.at += 1;
            if self.is("(") {
                self.at += 1;
                if self.at_type() {
                    let (ty, dims) = self.type_name()?;
                    if dims.is_some() {
                        return Err(Diag::unsupported(pos, "sizeof of an array type"));
                    }
                    self.expect(")")?;
                    return node(ExprKind::SizeofType(ty), pos, 0);
                }
                let e = self.expr()?;
                self.expect(")")?;
                let d = e.depth;
                return node(ExprKind::SizeofExpr(Box::new(e)), pos, d);
            }
            let e = self.unary()?;
            let d = e.depth;
            return node(ExprKind::SizeofExpr(Box::new(e)), pos, d);
        }
        if self.is("(") {
            self.at += 1;
            if self.at_type() && !self.functional_cast() {
                let (ty, dims) = self.type_name()?;
                self.expect(")")?;
                if self.is("{") {
                    let e = self.braces(Some((ty, dims.unwrap_or_default())))?;
                    return self.postfix(e);
                }
                if dims.is_some() {
                    return Err(Diag::syntax(pos, "a cast to an array"));
                }
                let e = self.unary()?;
                let d = e.depth;
                return node(ExprKind::Cast(ty, Box::new(e)), pos, d);
            }
            let e = self.expr()?;
            self.expect(")")?;
            return self.postfix(e);
        }
        let e = self.primary()?;
        self.postfix(e)
    }

    fn primary(&mut self) -> Res<Expr> {
        let pos = self.pos();
        match self.peek(0).clone() {
            Tok::Int(v, t) => {
                self.at += 1;
                node(ExprKind::Int(v, t), pos, 0)
            }
            Tok::Float => Err(Diag::unsupported(pos, "a floating-point number")),
            Tok::Str(_) => Err(Diag::unsupported(pos, "a string")),
            Tok::Punct("[") => self.lambda(pos),
            Tok::Punct("::") => {
                self.at += 1;
                self.primary()
            }
            Tok::Punct(_) | Tok::Eof => Err(Diag::syntax(
                pos,
                format!("expected an expression, found {}", self.shown()),
            )),
            Tok::Ident(n) => match &*n {
                "true" | "false" => {
                    self.at += 1;
                    node(ExprKind::Bool(&*n == "true"), pos, 0)
                }
                "nullptr" => {
                    self.at += 1;
                    node(ExprKind::Null, pos, 0)
                }
                "static_cast" | "const_cast" => {
                    self.at += 1;
                    self.expect("<")?;
                    let (ty, dims) = self.type_name()?;
                    if dims.is_some() {
                        return Err(Diag::syntax(pos, "a cast to an array"));
                    }
                    self.expect(">")?;
                    self.expect("(")?;
                    let e = self.expr()?;
                    self.expect(")")?;
                    let d = e.depth;
                    node(ExprKind::Cast(ty, Box::new(e)), pos, d)
                }
                "reinterpret_cast" | "dynamic_cast" | "new" | "delete" | "throw" | "typeid"
                | "this" | "co_await" | "alignof" | "decltype" | "noexcept" => {
                    Err(Diag::unsupported(pos, format_args!("`{n}`")))
                }
                _ if self.at_type() => {
                    let mut specs = Specs::default();
                    let Some(base) = self.base(&mut specs)? else {
                        return Err(Diag::syntax(
                            pos,
                            format!("expected an expression, found {}", self.shown()),
                        ));
                    };
                    let ty = Ty {
                        base,
                        pointers: 0,
                        reference: false,
                        is_const: false,
                    };
                    if self.is("{") {
                        return self.braces(Some((ty, Vec::new())));
                    }
                    self.expect("(")?;
                    let e = self.expr()?;
                    self.expect(")")?;
                    let d = e.depth;
                    node(ExprKind::Cast(ty, Box::new(e)), pos, d)
                }
                _ => {
                    self.at += 1;
                    let mut name = n;
                    while self.is("::") {
                        self.at += 1;
                        let next = self.name()?;
                        name = format!("{name}::{next}").into();
                    }
                    if matches!(&*name, "std::min" | "std::max" | "std::numeric_limits")
                        && self.is("<")
                    {
                        if &*name == "std::numeric_limits" {
                            return self.numeric_limits(pos);
                        }
                        // std::min<int64_t>(a, b): both are converted to the type.
                        self.at += 1;
                        let (ty, _) = self.type_name()?;
                        self.expect(">")?;
                        let args = self.arguments()?;
                        let mut cast = Vec::new();
                        let mut depth = 0;
                        for a in args {
                            let p = a.pos;
                            depth = depth.max(a.depth + 1);
                            cast.push(node(ExprKind::Cast(ty.clone(), Box::new(a)), p, depth)?);
                        }
                        let f = node(ExprKind::Name(name), pos, 0)?;
                        return node(ExprKind::Call(Box::new(f), cast), pos, depth);
                    }
                    node(ExprKind::Name(name), pos, 0)
                }
            },
        }
    }

    fn numeric_limits(&mut self, pos: Pos) -> Res<Expr> {
        self.expect("<")?;
        let (ty, _) = self.type_name()?;
        self.expect(">")?;
        self.expect("::")?;
        let which = self.name()?;
        self.expect("(")?;
        self.expect(")")?;
        let Base::Int(t) = ty.base else {
            return Err(Diag::unsupported(pos, "limits of this type"));
        };
        let bits = t.bits() - u32::from(t.signed());
        let max = if bits >= 64 {
            u64::MAX
        } else {
            (1u64 << bits) - 1
        };
        let v = match &*which {
            "max" => max,
            "min" | "lowest" if t.signed() => !max,
            "min" | "lowest" => 0,
            _ => {
                return Err(Diag::unsupported(
                    pos,
                    format_args!("numeric_limits::{which}"),
                ));
            }
        };
        node(ExprKind::Int(v, t), pos, 0)
    }

    fn lambda(&mut self, pos: Pos) -> Res<Expr> {
        self.enter()?;
        self.expect("[")?;
        let mut by_value = false;
        while !self.eat("]") {
            if self.eat("=") {
                by_value = true;
            } else if self.eat("&") {
                if self.word(0).is_some() && !self.is_word("this") {
                    self.at += 1;
                }
            } else if self.word(0).is_some() {
                by_value = true;
                self.at += 1;
                if self.is("=") {
                    return Err(Diag::unsupported(
                        self.pos(),
                        "a capture with an initialiser",
                    ));
                }
            } else {
                return Err(Diag::syntax(
                    self.pos(),
                    format!("unexpected {} in a capture list", self.shown()),
                ));
            }
            self.eat(",");
        }
        let params = if self.is("(") {
            self.params()?
        } else {
            Vec::new()
        };
        while self.eat_word("mutable") || self.eat_word("noexcept") || self.eat_word("constexpr") {}
        if self.eat("->") {
            self.type_name()?;
        }
        let body = self.block()?;
        self.leave();
        node(
            ExprKind::Lambda(Rc::new(Lambda {
                by_value,
                params,
                body,
            })),
            pos,
            0,
        )
    }

    fn arguments(&mut self) -> Res<Vec<Expr>> {
        self.expect("(")?;
        let mut args = Vec::new();
        if self.eat(")") {
            return Ok(args);
        }
        loop {
            args.push(self.initializer()?);
            if args.len() > 256 {
                return Err(Diag::limit(self.pos(), "more than 256 arguments"));
            }
            if self.eat(")") {
                return Ok(args);
            }
            self.expect(",")?;
        }
    }

    fn postfix(&mut self, mut e: Expr) -> Res<Expr> {
        loop {
            let pos = self.pos();
            if self.is("(") {
                let args = self.arguments()?;
                let d = args.iter().map(|a| a.depth).max().unwrap_or(0).max(e.depth);
                let at = e.pos;
                e = node(ExprKind::Call(Box::new(e), args), at, d)?;
            } else if self.eat("[") {
                let i = self.expr()?;
                self.expect("]")?;
                let d = e.depth.max(i.depth);
                e = node(ExprKind::Index(Box::new(e), Box::new(i)), pos, d)?;
            } else if self.is("++") || self.is("--") {
                let op = if self.is("--") {
                    UnOp::PostDec
                } else {
                    UnOp::PostInc
                };
                self.at += 1;
                let d = e.depth;
                e = node(ExprKind::Unary(op, Box::new(e)), pos, d)?;
            } else if self.is(".") || self.is("->") {
                let arrow = self.is("->");
                self.at += 1;
                if arrow {
                    let d = e.depth;
                    e = node(ExprKind::Unary(UnOp::Deref, Box::new(e)), pos, d)?;
                }
                let field = self.name()?;
                let d = e.depth;
                e = node(ExprKind::Member(Box::new(e), field), pos, d)?;
            } else {
                return Ok(e);
            }
        }
    }
}

fn node(kind: ExprKind, pos: Pos, below: u32) -> Res<Expr> {
    let depth = below + 1;
    if depth > MAX_CHAIN {
        return Err(Diag::deep(
            pos,
            format!("an expression of more than {MAX_CHAIN} operators in a row"),
        ));
    }
    Ok(Expr { kind, pos, depth })
}

/// Types that need no declaration.
fn builtin(n: &str) -> Option<Base> {
    Some(match n {
        "int8_t" | "int_least8_t" => Base::Int(IntTy::I8),
        "uint8_t" => Base::Int(IntTy::U8),
        "int16_t" => Base::Int(IntTy::I16),
        "uint16_t" => Base::Int(IntTy::U16),
        "int32_t" | "int_least32_t" => Base::Int(IntTy::I32),
        "uint32_t" => Base::Int(IntTy::U32),
        "int64_t" | "ptrdiff_t" | "ssize_t" | "intptr_t" | "intmax_t" | "int_fast32_t"
        | "int_fast64_t" => Base::Int(IntTy::I64),
        "uint64_t" | "size_t" | "uintptr_t" | "uintmax_t" | "uint_fast32_t" | "uint_fast64_t" => {
            Base::Int(IntTy::U64)
        }
        "EmitCtx" => Base::Ctx,
        "togsim_tile_fn" => Base::Fn,
        "togsim_dma_dir" => Base::Int(IntTy::U32),
        _ => return None,
    })
}
