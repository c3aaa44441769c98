//! Bodies that are almost right: whatever they are, they are answered, and never as our fault.

use serde_json::{Map, Value, json};

use crate::client::Client;
use crate::start;

const BODIES: usize = 1000;

/// Draws, from a seed (xorshift, Marsaglia 2003).
struct Draws(u64);

impl Draws {
    fn below(&mut self, count: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % count as u64) as usize
    }

    fn one<T: Clone>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())].clone()
    }
}

fn good(draws: &mut Draws) -> (&'static str, Value) {
    let common = json!({
        "model": "echo", "max_tokens": 3, "min_tokens": 1, "temperature": 0.7, "top_p": 0.9, "top_k": 5, "min_p": 0.1,
        "presence_penalty": 0.1, "frequency_penalty": 0.1, "repetition_penalty": 1.1, "seed": 1, "n": 2, "best_of": 2,
        "stop": ["x", "y"], "stop_token_ids": [1], "ignore_eos": false, "logit_bias": {"5": 1.0}, "user": "u",
        "stream": true, "stream_options": {"include_usage": true}, "return_token_ids": true,
    });
    let (path, own) = if draws.below(2) == 0 {
        let parts = json!([{"type": "text", "text": "hello"}]);
        let messages = json!([{"role": "system", "content": "s"}, {"role": "user", "content": parts}]);
        ("/v1/chat/completions", json!({"messages": messages, "logprobs": true, "top_logprobs": 2}))
    } else {
        let prompt = draws.one(&[json!("hello"), json!(["a", "b"]), json!([1, 2]), json!([[1], [2, 3]])]);
        ("/v1/completions", json!({"prompt": prompt, "logprobs": 2}))
    };
    let mut body = common;
    body.as_object_mut().unwrap().extend(own.as_object().unwrap().clone());
    (path, body)
}

/// Goes down to some place in the body and puts something else there.
fn mutate(value: &mut Value, draws: &mut Draws) {
    let deeper = match value {
        Value::Object(map) if !map.is_empty() && draws.below(8) > 0 => {
            let key = map.keys().nth(draws.below(map.len())).unwrap().clone();
            if draws.below(8) == 0 {
                map.remove(&key);
                return;
            }
            map.get_mut(&key)
        }
        Value::Array(list) if !list.is_empty() && draws.below(4) > 0 => {
            if draws.below(4) == 0 {
                let copy = draws.one(list);
                list.push(copy);
            }
            let index = draws.below(list.len());
            list.get_mut(index)
        }
        _ => None,
    };
    match deeper {
        Some(deeper) => mutate(deeper, draws),
        None => *value = strange(draws),
    }
}

fn strange(draws: &mut Draws) -> Value {
    draws.one(&[
        Value::Null,
        json!(true),
        json!(0),
        json!(-1),
        json!(1),
        json!(0.5),
        json!(1e300),
        json!(-1e-300),
        json!(u64::MAX),
        json!(i64::MIN),
        json!(4_294_967_296_u64),
        json!(""),
        json!("echo"),
        json!("\u{0}\u{fffd}𝄞"),
        json!("x".repeat(5000)),
        json!([]),
        json!([[]]),
        json!([null]),
        json!(vec![7; 300]),
        json!({}),
        json!({"": null}),
        json!({"type": "text"}),
        Value::Object((0..1100).map(|id| (id.to_string(), json!(1))).collect::<Map<_, _>>()),
        json!([{"role": "user", "content": "hi"}]),
    ])
}

/// As text: bytes changed, cut, doubled.
fn garble(bytes: &mut Vec<u8>, draws: &mut Draws) {
    match draws.below(4) {
        0 => bytes.truncate(draws.below(bytes.len())),
        1 => {
            let (from, to) = (draws.below(bytes.len()), draws.below(bytes.len()));
            let middle = bytes[from.min(to)..from.max(to)].to_vec();
            bytes.splice(from..from, middle);
        }
        _ => {
            for _ in 0..=draws.below(3) {
                let at = draws.below(bytes.len());
                bytes[at] = draws.one(b"{}[]\",:0\\\x00\xff e-.tn");
            }
        }
    }
}

#[tokio::test]
async fn no_body_makes_a_fault_of_ours() {
    let seed = std::env::var("SERQ_TEST_SEED").map_or(0x5eed_cafe, |seed| seed.parse().expect("a number above 0"));
    println!("SERQ_TEST_SEED={seed}");
    let mut draws = Draws(seed);
    let server = start().await;
    let mut client = Client::connect(server.address).await;
    let mut answered = 0;
    for _ in 0..BODIES {
        let (path, mut body) = good(&mut draws);
        for _ in 0..draws.below(4) {
            mutate(&mut body, &mut draws);
        }
        let mut bytes = body.to_string().into_bytes();
        if draws.below(4) == 0 {
            garble(&mut bytes, &mut draws);
        }
        client.send("POST", path, &[("content-type", "application/json")], &bytes).await;
        let response = client.response().await;
        let shown = String::from_utf8_lossy(&bytes);
        match response.status {
            200 => answered += 1,
            // A mutation may name one of the models that refuse or fail.
            400 | 404 => {
                let error = &response.json()["error"];
                assert!(error["message"].is_string() && error["code"].is_string(), "{shown}");
            }
            status => panic!("{status} {} for {shown}", response.body),
        }
    }
    assert!((BODIES / 5..BODIES * 4 / 5).contains(&answered), "{answered} of {BODIES} answered: too few or too many");
    server.fake.wait_for_live(0).await;
}
