//! The tree of a producer.

use std::rc::Rc;

use crate::import::pytorchsim::diag::Pos;

/// An integer type of C on a 64-bit target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum IntTy {
    Bool,
    I8,
    U8,
    I16,
    U16,
    I32,
    U32,
    I64,
    U64,
}

impl IntTy {
    pub(crate) fn bits(self) -> u32 {
        match self {
            IntTy::Bool => 1,
            IntTy::I8 | IntTy::U8 => 8,
            IntTy::I16 | IntTy::U16 => 16,
            IntTy::I32 | IntTy::U32 => 32,
            IntTy::I64 | IntTy::U64 => 64,
        }
    }

    pub(crate) fn signed(self) -> bool {
        matches!(self, IntTy::I8 | IntTy::I16 | IntTy::I32 | IntTy::I64)
    }

    /// Integer promotion.
    pub(crate) fn promoted(self) -> IntTy {
        if self.bits() < 32 { IntTy::I32 } else { self }
    }

    /// The type that the usual arithmetic conversions give two operands.
    pub(crate) fn common(a: IntTy, b: IntTy) -> IntTy {
        let (a, b) = (a.promoted(), b.promoted());
        if a.bits() != b.bits() {
            // A wider signed type holds every value of the narrower one, so the wider one wins.
            return if a.bits() > b.bits() { a } else { b };
        }
        if a.signed() { b } else { a }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            IntTy::Bool => "bool",
            IntTy::I8 => "int8_t",
            IntTy::U8 => "uint8_t",
            IntTy::I16 => "int16_t",
            IntTy::U16 => "uint16_t",
            IntTy::I32 => "int32_t",
            IntTy::U32 => "uint32_t",
            IntTy::I64 => "int64_t",
            IntTy::U64 => "uint64_t",
        }
    }

    pub(crate) fn bytes(self) -> u64 {
        u64::from(self.bits().div_ceil(8))
    }
}

/// A type name, without array bounds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Base {
    Void,
    Int(IntTy),
    /// `EmitCtx`.
    Ctx,
    /// `auto`.
    Auto,
    /// A pointer to a tile function.
    Fn,
    /// A structure, by name.
    Struct(Rc<str>),
    /// `std::array<T, N>`: the array bounds are put on the declarator.
    Array(Box<Base>, Rc<Expr>),
}

/// A type: base, levels of pointers, reference.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ty {
    pub base: Base,
    pub pointers: u8,
    pub reference: bool,
    pub is_const: bool,
}

/// An array bound, if it is stated.
pub(crate) type Bound = Option<Rc<Expr>>;

/// An expression with its place.
#[derive(Debug)]
pub(crate) struct Expr {
    pub kind: ExprKind,
    pub pos: Pos,
    /// Length of the longest path down, to bound recursion.
    pub depth: u32,
}

// Trees are compared by identity only where `Base::Array` needs it.
impl PartialEq for Expr {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self, other)
    }
}
impl Eq for Expr {}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BinOp {
    Add,
    Sub,
    Mul,
    Div,
    Rem,
    Shl,
    Shr,
    And,
    Or,
    Xor,
    Lt,
    Le,
    Gt,
    Ge,
    Eq,
    Ne,
    LogAnd,
    LogOr,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UnOp {
    Plus,
    Neg,
    Not,
    BitNot,
    Deref,
    AddrOf,
    PreInc,
    PreDec,
    PostInc,
    PostDec,
}

#[derive(Debug)]
pub(crate) enum ExprKind {
    Int(u64, IntTy),
    Bool(bool),
    Null,
    Name(Rc<str>),
    Unary(UnOp, Box<Expr>),
    Binary(BinOp, Box<Expr>, Box<Expr>),
    /// `a = b`, or `a op= b`.
    Assign(Option<BinOp>, Box<Expr>, Box<Expr>),
    Cond(Box<Expr>, Box<Expr>, Box<Expr>),
    Comma(Box<Expr>, Box<Expr>),
    Cast(Ty, Box<Expr>),
    Call(Box<Expr>, Vec<Expr>),
    Index(Box<Expr>, Box<Expr>),
    Member(Box<Expr>, Rc<str>),
    /// `(T[]){...}`, `T{...}` and braced initialisers (no type).
    Braces(Option<(Ty, Vec<Bound>)>, Vec<Expr>),
    /// `.name = value` inside braces.
    Designated(Rc<str>, Box<Expr>),
    Lambda(Rc<Lambda>),
    SizeofType(Ty),
    SizeofExpr(Box<Expr>),
}

#[derive(Debug)]
pub(crate) struct Lambda {
    /// `[=]`: names are copied when the lambda is made.
    pub by_value: bool,
    pub params: Vec<Param>,
    pub body: Vec<Stmt>,
}

#[derive(Clone, Debug)]
pub(crate) struct Param {
    pub ty: Ty,
    pub name: Option<Rc<str>>,
    pub array: bool,
}

#[derive(Debug)]
pub(crate) struct Decl {
    pub ty: Ty,
    pub name: Rc<str>,
    pub dims: Vec<Bound>,
    pub init: Option<Expr>,
    pub is_static: bool,
    pub pos: Pos,
}

#[derive(Debug)]
pub(crate) struct Stmt {
    pub kind: StmtKind,
    pub pos: Pos,
}

#[derive(Debug)]
pub(crate) enum StmtKind {
    Empty,
    Decl(Vec<Decl>),
    Expr(Expr),
    Block(Vec<Stmt>),
    If(Expr, Box<Stmt>, Option<Box<Stmt>>),
    /// `for (T x : array)`.
    ForEach(Box<Decl>, Expr, Box<Stmt>),
    For(Option<Box<Stmt>>, Option<Expr>, Option<Expr>, Box<Stmt>),
    While(Expr, Box<Stmt>),
    DoWhile(Box<Stmt>, Expr),
    /// Cases in order: values (`None` is `default`) and statements, falling through to the next.
    Switch(Expr, Vec<(Vec<Option<Expr>>, Vec<Stmt>)>),
    Return(Option<Expr>),
    Break,
    Continue,
}

#[derive(Debug)]
pub(crate) struct Function {
    pub name: Rc<str>,
    pub ret: Ty,
    pub params: Vec<Param>,
    pub body: Vec<Stmt>,
    pub pos: Pos,
}

#[derive(Debug)]
pub(crate) struct Struct {
    pub name: Rc<str>,
    pub fields: Vec<Decl>,
}

/// A whole translation unit.
#[derive(Debug, Default)]
pub(crate) struct Unit {
    pub functions: Vec<Rc<Function>>,
    pub globals: Vec<Decl>,
    pub enumerators: Vec<(Rc<str>, Option<Expr>, Pos)>,
    pub structs: Vec<Struct>,
    /// In which order globals and enumerators came.
    pub order: Vec<Item>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Item {
    Global(usize),
    /// First and one past the last enumerator of one `enum`.
    Enum(usize, usize),
}
