//! `serq plan` through the binary: the figures of the page it follows, identities of its formulas, refusals.

use std::process::Command;

use serde_json::Value;

struct Said {
    status: i32,
    out: String,
    err: String,
}

fn serq(line: &str) -> Said {
    let output = Command::new(env!("CARGO_BIN_EXE_serq")).args(line.split_whitespace()).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    let said = Said { status: output.status.code().unwrap(), out: text(output.stdout), err: text(output.stderr) };
    assert!(!said.err.contains("panicked"), "{line}: {}", said.err);
    said
}

/// The text, which fits a page and is all there is.
fn text(line: &str) -> String {
    let said = serq(line);
    assert_eq!((said.status, &said.err[..]), (0, ""), "{line}");
    for row in said.out.lines() {
        assert!(row.chars().count() <= 80, "{line}: {row}");
        assert_eq!(row, row.trim_end(), "{line}");
    }
    said.out
}

fn json(line: &str) -> Value {
    let said = serq(&format!("{line} --json"));
    assert_eq!((said.status, &said.err[..]), (0, ""), "{line}");
    serde_json::from_str(&said.out).unwrap()
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is no number"))
}

fn close(left: f64, right: f64) {
    assert!((left - right).abs() <= 1e-12 * left.abs().max(right.abs()), "{left} is not {right}");
}

#[test]
fn the_pages_figures() {
    let llama = text("plan transfer llama-3-70b --prompt 4096 --link 400Gb/s --on 8xh100-sxm --mfu 50%");
    assert!(llama.starts_with("llama-3-70b, 4096 tokens: 1.34 GB of KV, 27 ms over 400Gb/s; prefill 146 ms\n"));
    // 320 KB a token, and the terms it is made of.
    assert!(llama.contains("2 × 80 layers × 8 KV heads × 128 × 2 B = 327 680 B"), "{llama}");
    // A fifth of the prefill.
    assert!(llama.contains("18.4 %"), "{llama}");
    let deepseek = text("plan transfer deepseek-v3 --prompt 4096 --link 400Gb/s");
    assert!(deepseek.starts_with("deepseek-v3, 4096 tokens: 0.29 GB of KV, 6 ms over 400Gb/s\n"), "{deepseek}");
    assert!(deepseek.contains("61 layers × (512 + 64) × 2 B = 70 272 B"), "{deepseek}");
    let load = "plan ratio --rate 30 --prompt 2000,8000 --output 300 --prefill-rate 20000 --decode-rate 3000";
    assert!(text(load).starts_with("3P3D at 2000 prompt tokens, 12P3D at 8000 prompt tokens"));
    // The chapter's engine moved 70 tokens of Qwen3-0.6B: 7840 KB.
    let qwen = json("plan transfer qwen3-0.6b --prompt 70");
    assert_eq!(number(&qwen["kv_bytes"]), 7840.0 * 1024.0);
}

#[test]
fn transfer_figures_with_every_digit() {
    let answer = json("plan transfer llama-3-70b --link 400Gb/s --link 50GB/s --link 8x400Gb/s --on 8xh100-sxm");
    close(number(&answer["kv_bytes"]), 320.0 * 1024.0 * 4096.0);
    close(number(&answer["prefill_s"]), 2.0 * 70.55e9 * 4096.0 / (8.0 * 989e12 * 0.5));
    let links = answer["links"].as_array().unwrap();
    close(number(&links[0]["transfer_s"]), 320.0 * 1024.0 * 4096.0 / 50e9);
    // 400 Gb/s are 50 GB/s, and eight of them are eight times as fast.
    assert_eq!(links[0]["transfer_s"], links[1]["transfer_s"]);
    close(number(&links[2]["transfer_s"]) * 8.0, number(&links[0]["transfer_s"]));
}

#[test]
fn what_is_exposed_and_what_is_hidden_make_the_transfer() {
    // A slow link is the bottleneck, a fast one leaves one layer of 80.
    let answer = json("plan transfer llama-3-70b --link 10Gb/s --link 400Gb/s --on 8xh100-sxm");
    let prefill = number(&answer["prefill_s"]);
    for link in answer["links"].as_array().unwrap() {
        let [transfer, exposed, hidden] = ["transfer_s", "exposed_s", "hidden_s"].map(|name| number(&link[name]));
        close(exposed + hidden, transfer);
        close(exposed, (transfer - prefill).max(0.0) * 79.0 / 80.0 + transfer / 80.0);
        assert!(hidden <= prefill);
    }
    // Latency is paid once, overlapped or not.
    let late = json("plan transfer llama-3-70b --link 400Gb/s --on 8xh100-sxm --latency 10ms");
    let (late, fast) = (&late["links"][0], &answer["links"][1]);
    close(number(&late["exposed_s"]), number(&fast["exposed_s"]) + 0.01);
    close(number(&late["transfer_s"]), number(&fast["transfer_s"]) + 0.01);
}

#[test]
fn own_fields_are_the_catalogues() {
    let own =
        json("plan transfer --layers 80 --kv-heads 8 --head-dim 128 --heads 64 --params 70.55e9 --on 8x989TFLOP/s");
    let row = json("plan transfer llama-3-70b --on 8xH100-SXM");
    for figure in ["kv_bytes", "prefill_s", "attention_s", "links"] {
        assert_eq!(own[figure], row[figure], "{figure}");
    }
    let latent = json("plan transfer --layers 61 --latent 512 --rope-dim 64");
    assert_eq!(latent["kv_bytes"], json("plan transfer deepseek-ai/DeepSeek-V3")["kv_bytes"]);
    let fp8 = json("plan transfer llama-3-70b --bytes 1");
    close(2.0 * number(&fp8["kv_bytes"]), number(&row["kv_bytes"]));
}

#[test]
fn a_window_is_a_fixed_part() {
    let kv = |tokens: u32| number(&json(&format!("plan transfer gpt-oss-120b --prompt {tokens}"))["kv_bytes"]);
    // Below the window every layer grows, above it half of them.
    assert_eq!(kv(100), 100.0 * 2.0 * 36_864.0);
    assert_eq!(kv(10_000), 10_000.0 * 36_864.0 + 4_718_592.0);
    assert_eq!(kv(10_001) - kv(10_000), 36_864.0);
    let printed = text("plan transfer gpt-oss-120b --prompt 10000");
    assert!(printed.contains("min(10 000, 128) tokens × 2 × 18 layers"), "{printed}");
}

#[test]
fn whole_blocks_past_what_is_cached_move() {
    let answer = json("plan transfer llama-3-70b --prompt 4097 --cached 31 --block 16");
    assert_eq!(answer["tokens_moved"], 4112 - 16);
    let all = json("plan transfer llama-3-70b --prompt 4096 --cached 5000 --block 16");
    assert_eq!((number(&all["kv_bytes"]), number(&all["links"][0]["transfer_s"])), (0.0, 0.0));
}

#[test]
fn ranks_fan_out_into_lcm_pieces() {
    for (ranks, pieces, copies) in [("4:8", 8, 1), ("8:4", 8, 1), ("1:1", 1, 1), ("4:16", 16, 2), ("16:8", 8, 1)] {
        let answer = json(&format!("plan transfer llama-3-70b --link 400Gb/s --tp {ranks}"));
        let out = &answer["fan_out"];
        assert_eq!((&out["pieces"], &out["copies"]), (&Value::from(pieces), &Value::from(copies)), "{ranks}");
        close(number(&out["bytes_a_piece"]) * f64::from(pieces), number(&out["bytes_moved"]));
        close(number(&out["bytes_moved"]), number(&answer["kv_bytes"]) * f64::from(copies));
        let (prefill, decode) = ranks.split_once(':').unwrap();
        let links = prefill.parse::<f64>().unwrap().min(decode.parse().unwrap());
        close(number(&answer["links"][0]["transfer_s"]), number(&out["bytes_moved"]) / (links * 50e9));
    }
    // A latent is whole on every rank.
    let latent = json("plan transfer deepseek-v3 --tp 8:8");
    close(number(&latent["fan_out"]["bytes_moved"]), 8.0 * number(&latent["kv_bytes"]));
}

#[test]
fn ratios_round_up_and_headroom_asks_for_more() {
    let load = "plan ratio --rate 30 --prompt 2000 --output 300 --decode-rate 3000";
    assert!(text(&format!("{load} --prefill-rate 20001")).starts_with("3P3D"));
    assert!(text(&format!("{load} --prefill-rate 19999")).starts_with("4P3D"));
    let spare = text(&format!("{load} --prefill-rate 20000 --headroom 20%"));
    assert!(spare.starts_with("4P4D") && spare.contains("(20 000 tokens/s × 80 %) = 3.750 → 4, 75 %"), "{spare}");
    let memory = text(&format!("{load} --prefill-rate 20000 --tpot 50ms --decode-pool 160000"));
    assert!(memory.starts_with("3P7D") && memory.contains("= 6.047 → 7"), "{memory}");
    // A prefill rate from the model: 4096 tokens in 146 ms are 28 037 a second.
    let computed = text(&format!("{load} --model llama-3-70b --on 8xh100-sxm"));
    assert!(computed.contains("(8 × 989 TFLOP/s × 50 %) / (2 × 70.55e9) = 28 037 tokens/s"), "{computed}");
}

#[test]
fn the_lists_are_whole_and_say_what_is_checked() {
    let models = json("plan models");
    let printed = text("plan models");
    for model in models.as_array().unwrap() {
        let name = model["name"].as_str().unwrap();
        assert!(printed.contains(&format!("  {name} ")), "{name}");
        assert!(["seed", "repo", "copy", "no"].contains(&model["checked"].as_str().unwrap()), "{name}");
        assert!(!model["source"].as_str().unwrap().is_empty(), "{name}");
        let alone = text(&format!("plan transfer {name} --on 8xb200 --attention --prompt 100000 --tp 1:1"));
        // The sentence may go on in the next line.
        let alone = alone.split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(alone.contains("(not verified here)"), model["checked"] == "no", "{alone}");
    }
    let accelerators = json("plan accelerators");
    let printed = text("plan accelerators");
    for accelerator in accelerators.as_array().unwrap() {
        let name = accelerator["name"].as_str().unwrap();
        assert!(printed.contains(&format!("  {name} ")), "{name}");
        text(&format!("plan transfer llama-3-70b --on 4x{name}"));
    }
}

#[test]
fn mistakes_are_told_with_what_to_write() {
    let transfer = "plan transfer llama-3-70b";
    let ratio = "plan ratio --rate 30 --prompt 2000 --output 300 --decode-rate 3000";
    for (line, sentence) in [
        ("plan transfer lama-3-70b", "is it `llama-3-70b`? `serq plan models` lists them"),
        ("plan transfer gpt5", "no model is named `gpt5`: `serq plan models` lists them"),
        ("plan transfer", "<MODEL>"),
        ("plan transfer llama-3-70b --layers 80", "cannot be used with"),
        ("plan transfer --layers 80", "write --kv-heads 8 --head-dim 128, or --latent 512 --rope-dim 64"),
        ("plan transfer --layers 80 --kv-heads 8", "--head-dim"),
        ("plan transfer --layers 0 --kv-heads 8 --head-dim 128", "0 is not in 1..=65536"),
        (
            "plan transfer --layers 8 --kv-heads 8 --head-dim 64 --window-layers 9 --window 10",
            "--window-layers 9 is more",
        ),
        ("plan transfer --layers 8 --kv-heads 8 --head-dim 64 --on l4", "write --params 70.55e9"),
        (
            "plan transfer --layers 8 --latent 8 --rope-dim 64 --params 1e9 --on l4 --attention",
            "--attention needs --heads",
        ),
        (&format!("{transfer} --on h100"), "is it `h100-sxm` or `h100-pcie`? `serq plan accelerators` lists them"),
        (&format!("{transfer} --on 0xl4"), "`0` is no count"),
        (&format!("{transfer} --mfu 50%"), "--on"),
        (&format!("{transfer} --on l4 --mfu 0"), "is no share: write 85% or 0.85"),
        (&format!("{transfer} --attention"), "--on"),
        (&format!("{transfer} --link 400"), "is no link: write 400Gb/s, 50GB/s or 8x400Gb/s"),
        (&format!("{transfer} --link -4Gb/s"), "is no link"),
        (&format!("{transfer} --efficiency 120%"), "is no share"),
        (&format!("{transfer} --latency 5"), "is no time: write 10.5ms"),
        (&format!("{transfer} --prompt 0"), "a whole number from 1"),
        (&format!("{transfer} --prompt -1"), "a whole number from 1"),
        (&format!("{transfer} --prompt 99999999999999999999"), "a whole number from 1"),
        (&format!("{transfer} --block 0"), "a whole number from 1"),
        (&format!("{transfer} --bytes nan"), "a number above 0"),
        (&format!("{transfer} --tp 8"), "write PREFILL:DECODE, as in 4:8"),
        (&format!("{transfer} --tp 3:8"), "8 KV heads do not split over 3 ranks"),
        (&format!("{transfer} --tp 8:12"), "8 KV heads do not split over 12 ranks"),
        (ratio, "--prefill-rate"),
        (&format!("{ratio} --on l4"), "--on needs --model, or --params 70.55e9"),
        (&format!("{ratio} --on l4 --model lama-3-70b"), "is it `llama-3-70b`?"),
        (&format!("{ratio} --prefill-rate 2 --on l4"), "cannot be used with"),
        (&format!("{ratio} --prefill-rate 2 --tpot 5ms"), "--decode-pool"),
        (&format!("{ratio} --prefill-rate 2 --headroom 100%"), "is no part below the whole"),
        ("plan", "Usage"),
    ] {
        let said = serq(line);
        assert_eq!((said.status, &said.out[..]), (2, ""), "{line}: {}", said.err);
        assert!(said.err.contains(sentence), "{line} says:\n{}\nand not: {sentence}", said.err);
    }
}
