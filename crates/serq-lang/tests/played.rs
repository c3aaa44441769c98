//! Programs as their clients see them.

use std::fs;
use std::path::{Path, PathBuf};

use expect_test::expect;
use serq_lang::diagnostic::{Severity, Style, render};
use serq_lang::played::{ANSWER, FIRST_TOKEN};
use serq_lang::{Settings, compile, load, unsugar};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// A program as it is played, or what is wrong.
fn play(path: Option<&str>, text: &str) -> Result<serq_ir::Program, String> {
    let mut read = |path: &str| fs::read_to_string(path).map_err(|error| error.to_string());
    let (mut sources, mut found) = load(path, text, &mut read);
    let settings = Settings { horizon: Some(1e6), played: true, ..Settings::default() };
    let (program, more) = compile(&mut sources, &settings);
    found.extend(more);
    found.retain(|one| one.severity == Severity::Error);
    program.ok_or_else(|| render(&sources, &found, Style::Plain))
}

#[test]
fn every_example_with_decode_entries_can_be_played() {
    let mut played = 0;
    for folder in ["local", "pd-disaggregation", "routing", "trace", "cache", "engine"] {
        for file in fs::read_dir(root().join("examples").join(folder)).unwrap() {
            let path = file.unwrap().path();
            let Some(name) = path.to_str().filter(|name| name.ends_with(".sq")) else { continue };
            let text = fs::read_to_string(&path).unwrap();
            match play(Some(name), &text) {
                Ok(program) => {
                    played += 1;
                    let stages: Vec<&str> = program.stages.iter().map(|stage| &stage.name[..]).collect();
                    assert_eq!(stages[..2], [FIRST_TOKEN, ANSWER], "{name}");
                }
                // Nobody calls an entry there.
                Err(told) => {
                    assert!(told.starts_with("error[not-played]: no queue has a `decode` entry"), "{name}:\n{told}");
                }
            }
        }
    }
    assert!(played >= 9, "{played} are played");
}

/// The session of a program whose route does everything that is not a client's.
#[test]
fn what_the_server_does_is_left_out() {
    let text = "
        queue router : gateway {
          route {
            set asked = now;
            run hop (0.1);
            P.prefill (prompt);
            set remote = free(D.kv) < prompt;
            branch (remote) { D.decode (prompt) from P; observe lease = D.read_done - asked; }
            else { D.decode (prompt + 1); }
            observe ttft = D.first_token - asked;
            observe all = D.done - asked;
            observe found = D.found;
          }
        }
        stage hop : delay;
        stage pause : delay;
        queue P : prefill {
          pool kv { cap 100; block 10; admit via P; }
          serve step { budget 10; cost 1; memory kv; }
          nic ps(1);
          prefill (x) { hold kv (x) { prefill x; } lease kv (inf) }
        }
        queue D : decode {
          pool kv { cap 100; block 10; admit via D; }
          serve step { budget 10; cost 1; memory kv; }
          nic ps(1);
          decode (x) {
            hold kv (x + answer) {
              set found = cached;
              prefill x;
              mark first_token;
              decode (answer - 1);
              mark done;
            } cache (x)
          }
          decode (x) from src {
            hold kv (x + answer) { transfer x from src to kv (x - 1); mark read_done; prefill 1; mark first_token; decode (answer - 1); }
          }
        }
        D pull P share maxmin;
        workload {
          arrive batch(1);
          hidden answer;
          turn { set prompt = 10; set answer = 5; }
          session { turn; request router; run pause (2); end; }
        }";
    let program = play(None, text).unwrap_or_else(|told| panic!("{told}"));
    let text = unsugar(&program);
    let session = text.split("session {").nth(1).unwrap();
    expect![[r#"

        turn;
        set asked = now;
        set left out = 0 / 0;
        set P_left out = 0 / 0;
        set remote = free(D_kv) < prompt;
        branch (remote) {
        set D_found = 0 / 0;
        set D_read_done = 0 / 0;
        run first token (max(prompt, 1));
        set D_first_token = now;
        run rest of the answer (max(answer, 1));
        set D_done = now;
        observe lease = D_read_done - asked;
        }
        else {
        set D_found = 0 / 0;
        set D_read_done = 0 / 0;
        run first token (max(prompt + 1, 1));
        set D_first_token = now;
        run rest of the answer (max(answer, 1));
        set D_done = now;
        }
        observe ttft = D_first_token - asked;
        observe all = D_done - asked;
        observe found = D_found;
        run pause (2);
        end;
        }


        run { horizon 1000000; warmup 0; seed 1; }
    "#]]
    .assert_eq(session);
}

#[test]
fn the_length_of_an_answer_is_what_the_request_block_says() {
    let program = |hidden: &str, request: &str| {
        let text = format!(
            "queue D : decode {{ pool kv {{ cap 9; admit via D; }} serve step {{ budget 9; cost 1; memory kv; }}
               decode (x) {{ hold kv (x) {{ prefill x; decode a; }} }} }}
             queue router : gateway {{ route {{ D.decode (1); }} }}
             workload {{ arrive batch(1); {hidden} turn {{ set a = 5; set b = 6; }} {request} session {{ turn; request router; end; }} }}"
        );
        let told = |told: String| told.lines().next().unwrap_or_default().to_owned();
        play(None, &text).map(|_| ()).map_err(told)
    };
    assert_eq!(program("hidden a;", ""), Ok(()));
    assert_eq!(program("hidden a, b;", "request { set a = max_tokens; set b = 2 * max_tokens; }"), Ok(()));
    let asked = "error[not-played]: which attribute is an answer's length?";
    assert_eq!(program("hidden a, b;", ""), Err(asked.into()));
    assert_eq!(program("hidden a, b;", "request { set b = 2 * max_tokens; }"), Err(asked.into()));
    let several = "error[not-played]: several attributes are an answer's length";
    assert_eq!(program("hidden a, b;", "request { set a = max_tokens; set b = (max_tokens); }"), Err(several.into()));
}

/// A leg that asks for nothing is the server's, which serves it; one that asks is nothing a client does.
#[test]
fn what_asks_in_a_leg_is_not_played_and_a_server_s_leg_is_served() {
    let text = |route: &str, session: &str| {
        format!(
            "queue P : prefill {{ pool kv {{ cap 9; }} serve fifo; prefill (x) {{ hold kv (x) {{ run (x); }} lease kv (inf) }} }}
             queue D : decode {{ pool kv {{ cap 9; }} serve step {{ budget 9; cost 1; memory kv; }}
               decode (x) {{ hold kv (x) {{ prefill x; decode a; }} }} }}
             queue router : gateway {{ route {{ {route} }} }}
             workload {{ arrive batch(1); hidden a; turn {{ set a = 5; }} session {{ turn; {session} end; }} }}"
        )
    };
    let first = |told: String| told.lines().next().unwrap_or_default().to_owned();
    let played = |route: &str, session: &str| play(None, &text(route, session)).map(|_| ()).map_err(first);
    assert_eq!(played("fork { P.prefill (1); } D.decode (1); join;", "request router;"), Ok(()));
    let asks =
        "error[not-played]: a client's session does one thing after another: it asks for nothing in a `fork`'s leg";
    assert_eq!(played("fork { D.decode (1); } P.prefill (1); join;", "request router;"), Err(asks.into()));
    assert_eq!(played("D.decode (1);", "fork { request router; } join;"), Err(asks.into()));

    let (mut sources, _) =
        load(None, &text("fork { P.prefill (1); } D.decode (1); join;", "request router;"), &mut |_| unreachable!());
    let settings = Settings { served: true, horizon: Some(1.0), warmup: Some(0.0), ..Settings::default() };
    let (program, found) = compile(&mut sources, &settings);
    assert!(program.is_some(), "{}", render(&sources, &found, Style::Plain));
}
