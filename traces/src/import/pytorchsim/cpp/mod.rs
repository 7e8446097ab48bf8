//! The C++ subset that trace producers are written in, read as data and never compiled or run.
//!
//! [`lex`] makes tokens, [`pp`] runs the preprocessor, [`parse`] builds the tree of [`ast`].

pub(crate) mod ast;
pub(crate) mod lex;
pub(crate) mod parse;
pub(crate) mod pp;
