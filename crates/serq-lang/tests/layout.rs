//! Programs and their canonical layout. `UPDATE_EXPECT=1` writes the layout anew.

mod tree;

use std::path::Path;

use expect_test::{expect, expect_file};
use serq_lang::format;

const CHAT: &str = include_str!("../../../tests/format/chat.sq");
const PAIR: &str = include_str!("../../../tests/format/pair.sq");
const UNTIDY: &str = include_str!("../../../tests/format/untidy.sq");

fn laid_out(text: &str) -> String {
    let once = format(text).unwrap();
    assert_eq!(format(&once).unwrap(), once, "a second time changes something");
    assert_eq!(tree::without_places(text), tree::without_places(&once));
    once
}

#[test]
fn a_program_that_is_laid_out_stays_as_it_is() {
    for text in [CHAT, PAIR] {
        assert_eq!(laid_out(text), text);
    }
}

#[test]
fn an_untidy_program_is_laid_out() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/format/untidy.out");
    expect_file![path].assert_eq(&laid_out(UNTIDY));
}

#[test]
fn arrival_laws_stand_close_to_their_parentheses() {
    let text = laid_out("workload{arrive poisson (2)for 600,(8) for 2*150 , repeat;}");
    expect!["workload { arrive poisson(2) for 600, (8) for 2 * 150, repeat; }\n"].assert_eq(&text);
    let text = laid_out("workload { arrive bursts( 8 ) for(10), (0.5)for 50; hidden for, repeat, trace; }");
    expect!["workload { arrive bursts(8) for (10), (0.5) for 50; hidden for, repeat, trace; }\n"].assert_eq(&text);
    let text = laid_out("workload { arrive trace (2); trace \"a.csv\" ; }");
    expect!["workload { arrive trace(2); trace \"a.csv\"; }\n"].assert_eq(&text);
    let text = laid_out("workload { arrive trace ; trace \"a.csv\" ; }");
    expect!["workload { arrive trace; trace \"a.csv\"; }\n"].assert_eq(&text);
}

#[test]
fn legs_and_the_terms_of_a_lease_are_laid_out() {
    let text = laid_out(
        "P   push D latency(1)share maxmin ;\nsession{fork{hold m(1){}lease m(30)renewed(20)every 2*3 abandoned(1)}join ;}",
    );
    expect![[r#"
        P push D latency (1) share maxmin;
        session { fork { hold m (1) { } lease m (30) renewed (20) every 2 * 3 abandoned (1) } join; }
    "#]]
    .assert_eq(&text);
}

#[test]
fn a_list_stands_by_itself_and_an_index_at_its_name() {
    let text = "let a=[1,  2 ,3] ;\nlet b = a [ 1 ] ;\n";
    assert_eq!(laid_out(text), "let a = [1, 2, 3];\nlet b = a[1];\n");
    let long = format!("let many = [{}];\n", vec!["1000"; 60].join(", "));
    let laid = laid_out(&long);
    assert!(laid.lines().all(|line| line.len() <= 100) && laid.lines().count() > 3, "{laid}");
    assert_eq!(laid_out(&laid), laid);
}

#[test]
fn no_comment_is_lost() {
    let count = |text: &str| text.matches("//").count() + text.matches("/*").count();
    for text in [CHAT, PAIR, UNTIDY] {
        assert_eq!(count(&laid_out(text)), count(text));
    }
}

#[test]
fn line_ends_become_the_usual_ones() {
    let text = laid_out("/* a\r\n   b */\r\nlet x = 1;// c\r\nlet y = 2;\r\n");
    expect![[r#"
        /* a
           b */
        let x = 1;  // c
        let y = 2;
    "#]]
    .assert_eq(&text);
}

#[test]
fn a_long_line_is_broken_where_least_belongs_together() {
    let term = "used(kv) * weight / total";
    let text = laid_out(&format!("gauge load = {};", [term; 6].join(" + ")));
    expect![[r#"
        gauge load = used(kv) * weight / total + used(kv) * weight / total + used(kv) * weight / total
                   + used(kv) * weight / total + used(kv) * weight / total + used(kv) * weight / total;
    "#]]
    .assert_eq(&text);
}

#[test]
fn a_block_on_one_line_stays_there_while_it_fits() {
    let short = "session { loop { turn; } }\n";
    assert_eq!(laid_out(short), short);
    let long = format!("session {{ {} }}\n", "run engine (1); ".repeat(7).trim_end());
    assert_eq!(laid_out(&long).lines().count(), 9);
}

#[test]
fn a_text_with_mistakes_is_not_touched() {
    let errors = format("let x = ;").unwrap_err();
    assert_eq!(errors[0].code, "unexpected-token");
}

#[test]
fn an_empty_text_stays_empty() {
    assert_eq!(laid_out(""), "");
    assert_eq!(laid_out("\n\n // only this\n\n"), "// only this\n");
}
