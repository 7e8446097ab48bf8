//! The readable form of a trace; `GRAMMAR.md` beside this crate describes it.
//!
//! For every valid trace, parsing what [`print()`] writes gives the trace back, exactly. Comments are
//! for people: they do not survive.

use crate::model::Unit;

mod parse;
mod print;

pub use parse::{parse, parse_valid};
pub use print::print;

/// The format version that is written and read.
pub const TEXT_VERSION: u64 = 1;

/// The first words of every text.
pub const TEXT_MAGIC: &str = "tilesim trace";
const UNITS: &[(Unit, &str)] = &[
    (Unit::Vector, "vector"),
    (Unit::Matmul, "matmul"),
    (Unit::Preload, "preload"),
    (Unit::CrossLane, "cross_lane"),
];

/// The word of a unit in the text form.
pub fn unit_word(unit: Unit) -> &'static str {
    match unit {
        Unit::Vector => "vector",
        Unit::Matmul => "matmul",
        Unit::Preload => "preload",
        Unit::CrossLane => "cross_lane",
    }
}
#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::error::{ErrorCode, TraceError};
    use crate::generate::{self, Choices};
    use crate::limits::MAX_EXPR_DEPTH;
    use crate::model::*;
    use crate::validate::ValidTrace;

    fn round_trip(trace: Trace) {
        let trace = ValidTrace::try_from(trace).unwrap();
        let text = print(&trace);
        let back = parse(&text).unwrap_or_else(|e| panic!("{}\n{text}", e.render(&text)));
        assert_eq!(back, *trace, "{text}");
        let back = ValidTrace::try_from(back).unwrap();
        assert_eq!(print(&back), text);
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 3000, ..ProptestConfig::default() })]

        #[test]
        fn printed_traces_read_back(bytes in proptest::collection::vec(any::<u8>(), 0..800)) {
            round_trip(generate::trace(&mut Choices::new(&bytes)));
        }

        #[test]
        fn any_text_is_read_or_refused(text in "\\PC{0,200}") {
            let _ = parse(&text);
            let _ = parse(&format!("tilesim trace 1 axes 1 body {{ {text} }}"));
        }
    }

    fn wait(expected: Expr) -> Trace {
        let mut trace = parse("tilesim trace 1 axes 1 param K body { wait 0 for 1 }").unwrap();
        trace.body = vec![Stmt::Wait(Wait {
            semaphore: SemId(0),
            expected,
        })];
        trace
    }

    #[test]
    fn deep_expressions_read_back() {
        let k = || Expr::Param(ParamId(0));
        let ops = [BinaryOp::Sub, BinaryOp::Shl, BinaryOp::CDiv, BinaryOp::Or];
        for op in ops {
            for left in [true, false] {
                let mut e = k();
                for _ in 1..MAX_EXPR_DEPTH {
                    e = if left {
                        Expr::Binary(op, Box::new(e), Box::new(k()))
                    } else {
                        Expr::Binary(op, Box::new(k()), Box::new(e))
                    };
                }
                round_trip(wait(e));
            }
        }
        let mut e = k();
        for i in 1..MAX_EXPR_DEPTH {
            e = match i % 3 {
                0 => Expr::Unary(UnaryOp::Neg, Box::new(e)),
                1 => Expr::Unary(UnaryOp::TruncI32, Box::new(e)),
                _ => Expr::Select(Box::new(k()), Box::new(k()), Box::new(e)),
            };
        }
        round_trip(wait(e));
    }

    #[test]
    fn hostile_nesting_is_refused() {
        for (open, close) in [
            ("(", ")"),
            ("-", ""),
            ("!", ""),
            ("min(1,", ")"),
            ("1+(", ")"),
            ("1?", ":1"),
            ("~(", ")"),
        ] {
            let text = format!(
                "tilesim trace 1 axes 1 body {{ wait 0 for {}1{} }}",
                open.repeat(100_000),
                close.repeat(100_000)
            );
            assert_eq!(parse(&text).unwrap_err().code, ErrorCode::TooDeep, "{open}");
        }
        let text = format!(
            "tilesim trace 1 axes 1 body {{ wait 0 for 1{} }}",
            "+1".repeat(100_000)
        );
        assert_eq!(parse(&text).unwrap_err().code, ErrorCode::TooDeep);
        for head in ["if 1 {", "for k in 0..1 {"] {
            let text = format!("tilesim trace 1 axes 1 body {{ {}", head.repeat(100_000));
            assert_eq!(parse(&text).unwrap_err().code, ErrorCode::TooDeep);
        }
    }

    fn expect_error(text: &str, code: ErrorCode, line: u32, column: u32) -> TraceError {
        let e = parse_valid(text).unwrap_err();
        let at = e.at.unwrap_or_else(|| panic!("no place: {e}"));
        assert_eq!(
            (e.code, at.line, at.column),
            (code, line, column),
            "{}",
            e.render(text)
        );
        e
    }

    #[test]
    fn errors_point_at_the_mistake() {
        let head = "tilesim trace 1\naxes 1\ntensor A: 32 bit in [64]\nbuffer acc 64\nbody {\n";
        let e = expect_error(
            &format!("{head}  load B[0]\n}}"),
            ErrorCode::UnknownTensor,
            6,
            8,
        );
        assert!(e.render(head).contains("no tensor \"B\""));
        let e = expect_error(
            &format!("{head}  load A[0] writes [ac]\n}}"),
            ErrorCode::UnknownBuffer,
            6,
            21,
        );
        assert_eq!(e.hint.as_deref(), Some("did you mean \"acc\""));
        expect_error(
            &format!("{head}  load A[p0 + q]\n}}"),
            ErrorCode::UnknownName,
            6,
            15,
        );
        expect_error(
            &format!("{head}  load A[p1]\n}}"),
            ErrorCode::UnknownAxis,
            6,
            3,
        );
        expect_error(
            &format!("{head}  for k in 0..4 step 0 {{\n wait 0 for 1 }}\n}}"),
            ErrorCode::ZeroStep,
            6,
            3,
        );
        expect_error(
            &format!("{head}  for k in 0..4 {{\n wait 0 for p2 }}\n}}"),
            ErrorCode::UnknownAxis,
            7,
            2,
        );
        expect_error(&format!("{head}  lode A[0]\n}}"), ErrorCode::Syntax, 6, 3);
        expect_error(&format!("{head}  load A[0"), ErrorCode::Syntax, 6, 11);
        expect_error(&format!("{head}  load A[0] // x"), ErrorCode::Syntax, 6, 13);
        expect_error(
            &format!(
                "{head} if 1 {{ wait 0 for 1 wait 0 for 2 }} else {{ wait 0 for 3\n  wait 0 for p2 }}\n}}"
            ),
            ErrorCode::UnknownAxis,
            7,
            3,
        );
        expect_error(head, ErrorCode::Syntax, 5, 6);
        expect_error("tilesim trace 2", ErrorCode::Version, 1, 15);
        expect_error("tilesim trace 1\naxes 1\naxes 1", ErrorCode::Syntax, 3, 1);
        expect_error(
            "tilesim trace 1\nbuffer a 1\nbuffer a 2\n",
            ErrorCode::BadName,
            3,
            8,
        );
        expect_error("tilesim trace 1\nkernel \"x\n", ErrorCode::Syntax, 2, 8);
    }

    #[test]
    fn bindings() {
        let body = |text: &str| {
            parse(&format!("tilesim trace 1 axes 1 body {{ {text} }}"))
                .unwrap()
                .body
        };
        let long =
            body("for x in p0..p0 + 1 { for y in x * 2..x * 2 + 1 { wait 0 for y } wait 1 for x }");
        assert_eq!(
            body("let x = p0 let y = x * 2 { wait 0 for y } wait 1 for x"),
            long
        );
        assert_eq!(
            body("let x = p0 { let y = x * 2 { wait 0 for y } wait 1 for x }"),
            long
        );
        let trace = parse(
            "tilesim trace 1 axes 1 body { let x = p0 let y = x { wait 0 for y } wait 1 for x }",
        );
        let text = print(&ValidTrace::try_from(trace.unwrap()).unwrap());
        assert!(
            text.ends_with(
                "  let x = p0\n  let y = x {\n    wait 0 for y\n  }\n  wait 1 for x\n}\n"
            ),
            "{text}"
        );
        let deep = format!(
            "tilesim trace 1 axes 1 body {{ {} }}",
            "let x = 1 ".repeat(100_000)
        );
        assert_eq!(parse(&deep).unwrap_err().code, ErrorCode::TooDeep);
    }

    #[test]
    fn sugar() {
        let one = |text: &str| {
            let trace = parse(&format!(
                "tilesim trace 1 axes 2 param K # a comment\nbody {{ for i in 0..2 {{ wait 0 for {text} }} }}"
            ));
            let Stmt::For(f) = &trace.unwrap().body[0] else {
                panic!()
            };
            let Stmt::Wait(w) = &f.body[0] else { panic!() };
            w.expected.clone()
        };
        struct Zero;
        impl crate::expr::Env for Zero {
            fn pid(&self, axis: u8) -> i64 {
                7 + i64::from(axis)
            }
            fn grid(&self, _: u8) -> i64 {
                3
            }
            fn param(&self, _: usize) -> i64 {
                100
            }
            fn var(&self, _: usize) -> i64 {
                -5
            }
        }
        let eval = |text: &str| crate::expr::eval(&one(text), &Zero);
        for (text, value) in [
            ("1 + 2 * 3 - 4", 3),
            ("(1 + 2) * 3", 9),
            ("10 - 3 - 2", 5),
            ("1 << 2 + 1", 8),
            ("7 & 3 == 3", 1),
            ("p0 * g0 + K", 121),
            ("p1", 8),
            ("-i", 5),
            ("i / 2", -3),
            ("c_div(i, 2)", -2),
            ("ceil_div(K, 64)", 2),
            ("K > 5 && i < 0", 1),
            ("K > 500 || i > 0", 0),
            ("K > 5 ? 1 : 2", 1),
            ("K < 5 ? 1 : i ? 3 : 4", 3),
            ("0xff_00 + 1_000", 0xff00 + 1000),
            ("-9223372036854775808", i64::MIN),
            ("trunc_u8(-1)", 255),
            ("!K + ~0", -1),
            ("var(0)", -5),
            ("param(0)", 100),
            ("\"K\"", 100),
            ("min(3, max(1, 2))", 2),
        ] {
            assert_eq!(eval(text), Ok(value), "{text}");
        }
    }
}
