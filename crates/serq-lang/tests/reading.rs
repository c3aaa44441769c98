//! What a text is read as: precedence, numbers, words that are keywords only by place.

use serq_ir::{Binary, Unary};
use serq_lang::ast::{Expr, ExprKind, Item, Ref, StmtKind};
use serq_lang::{parse, parse_expr};

/// An expression with all its parentheses.
fn shape(expr: &Expr) -> String {
    let all = |list: &[Expr]| list.iter().map(shape).collect::<Vec<_>>().join(", ");
    match &expr.kind {
        ExprKind::Number(value) => format!("{value}"),
        ExprKind::Ref(reference) => reference_shape(reference),
        ExprKind::Unary(Unary::Negate, x) => format!("(-{})", shape(x)),
        ExprKind::Unary(Unary::Not, x) => format!("(!{})", shape(x)),
        ExprKind::Binary(operator, x, y) => {
            let operator = match operator {
                Binary::Add => "+",
                Binary::Subtract => "-",
                Binary::Multiply => "*",
                Binary::Divide => "/",
                Binary::Power => "^",
                Binary::Less => "<",
                Binary::Equal => "==",
                Binary::And => "&&",
                Binary::Or => "||",
                other => panic!("{other:?} is in no case"),
            };
            format!("({} {operator} {})", shape(x), shape(y))
        }
        ExprKind::If(c, x, y) => format!("({} ? {} : {})", shape(c), shape(x), shape(y)),
        ExprKind::Call(name, arguments) => format!("{}({})", name.text, all(arguments)),
        ExprKind::List(elements) => format!("[{}]", all(elements)),
        ExprKind::Draw(name, arguments) => format!("~{}({})", name.text, all(arguments)),
        ExprKind::Aggregate(fold, name, count, body) => {
            format!("{fold:?} {} in {} ({})", name.text, shape(count), shape(body))
        }
        ExprKind::Paren(x) => shape(x),
        ExprKind::Error => "?".to_owned(),
    }
}

fn reference_shape(reference: &Ref) -> String {
    let index = reference.index.as_ref().map_or(String::new(), |index| format!("[{}]", shape(index)));
    let field = reference.field.as_ref().map_or(String::new(), |field| format!(".{}", field.text));
    format!("{}{index}{field}", reference.name.text)
}

fn check(text: &str, expected: &str) {
    let (expr, diagnostics) = parse_expr(0, text);
    assert_eq!(diagnostics, [], "{text}");
    assert_eq!(shape(&expr), expected, "{text}");
}

#[test]
fn operators_bind_as_the_table_says() {
    check("1 - 2 - 3", "((1 - 2) - 3)");
    check("1 + 2 * 3 / 4", "(1 + ((2 * 3) / 4))");
    check("-2^2", "(-(2 ^ 2))");
    check("2^3^2", "(2 ^ (3 ^ 2))");
    check("2^-1^2", "(2 ^ (-(1 ^ 2)))");
    check("!1^2", "(!(1 ^ 2))");
    check("--1", "(-(-1))");
    check("-a * b", "((-a) * b)");
    check("!a && b || c", "(((!a) && b) || c)");
    check("a < b && c == d", "((a < b) && (c == d))");
    check("(a < b) == c", "((a < b) == c)");
    check("a ? b : c ? d : e", "(a ? b : (c ? d : e))");
    check("a ? b ? c : d : e", "(a ? (b ? c : d) : e)");
    check("a || b ? 1 : 2", "((a || b) ? 1 : 2)");
}

#[test]
fn numbers_are_read_as_written() {
    for (text, value) in [
        ("1.", 1.0),
        (".5", 0.5),
        ("1_000", 1000.0),
        ("1_", 1.0),
        ("1_000._5", 1000.5),
        ("1e3", 1e3),
        ("1.e3", 1e3),
        ("1_e3", 1e3),
        ("1E+5", 1e5),
        ("2e-5", 2e-5),
        ("1e400", f64::INFINITY),
        ("inf", f64::INFINITY),
        ("0.1", 0.1),
    ] {
        let (expr, diagnostics) = parse_expr(0, text);
        assert_eq!(diagnostics, [], "{text}");
        assert_eq!(expr.kind, ExprKind::Number(value), "{text}");
    }
}

#[test]
fn aggregates_and_functions_share_their_names() {
    check("max(a, b)", "max(a, b)");
    check("max k in 3 (k) + 1", "(Max k in 3 (k) + 1)");
    check("sum k in (n + 1) (a[k].b)", "Sum k in (n + 1) (a[k].b)");
    check("min k in n (k) ^ 2", "(Min k in n (k) ^ 2)");
    check("max", "max");
    check("~exp(~det(1))", "~exp(~det(1))");
}

#[test]
fn a_word_is_a_keyword_only_in_its_place() {
    let text = "
        let growing = 1; stage turn : delay; queue pool { } queue share : prefill { }
        pool pull { cap queue; queue by (lru); }
        session {
          set hold = 2; set set = run; observe end = latency; set λ = on;
          run turn (hold); tool (on) * 2; prefill on kv 3; prefill (x) growing growing;
          prefill.decode (1); prefill[0].decode (1) from transfer; end.end (1);
          decode[0] (1); choose in in in by (by);
        }";
    let (file, diagnostics) = parse(0, text);
    assert_eq!(diagnostics, []);
    let Some(Item::Session(session)) = file.items.last() else { panic!("the session comes last") };
    assert_eq!(session.body.stmts.len(), 13);
    let calls = session.body.stmts.iter().filter(|stmt| matches!(stmt.kind, StmtKind::Call { .. }));
    assert_eq!(calls.count(), 3);
}

#[test]
fn a_relation_is_known_by_its_second_word() {
    let (file, diagnostics) = parse(0, "pool pull queue share maxmin; D push P latency 1 share bottleneck;");
    assert_eq!(diagnostics, []);
    let pushes: Vec<bool> = file
        .items
        .iter()
        .map(|item| match item {
            Item::Relation(relation) => relation.push,
            other => panic!("{other:?} is no relation"),
        })
        .collect();
    assert_eq!(pushes, [false, true]);
}

#[test]
fn a_semicolon_behind_a_hold_or_a_step_is_ignored() {
    let text = "
        stage a : step { cost 1; }
        stage b : step { cost 1; };
        queue q { serve step { cost 1; }; }
        session { hold kv (1) { end; }; hold kv (1) { end; } cache (1); hold kv (1) { end; } }";
    assert_eq!(parse(0, text).1, []);
}
