//! What is answered, streamed and not.

use serde_json::{Value, json};

use crate::client::{Client, Response};
use crate::start;

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";

/// The choices of a stream put together, as in a body.
fn joined(events: &[Value]) -> Vec<Value> {
    let mut choices: Vec<Value> = Vec::new();
    for choice in events.iter().flat_map(|event| event["choices"].as_array().unwrap()) {
        let index = choice["index"].as_u64().unwrap() as usize;
        if choices.len() <= index {
            choices.resize(index + 1, json!({"text": "", "ids": [], "logprobs": []}));
        }
        let whole = &mut choices[index];
        assert!(whole["finish_reason"].is_null(), "nothing follows the end");
        let text = choice["text"].as_str().or(choice["delta"]["content"].as_str()).unwrap_or("");
        whole["text"] = format!("{}{text}", whole["text"].as_str().unwrap()).into();
        for (from, to) in [(&choice["token_ids"], "ids"), (&choice["logprobs"]["content"], "logprobs")] {
            whole[to].as_array_mut().unwrap().extend(from.as_array().cloned().unwrap_or_default());
        }
        whole["finish_reason"] = choice["finish_reason"].clone();
    }
    choices
}

fn plain(body: &Value) -> Vec<Value> {
    let choices = body["choices"].as_array().unwrap().iter();
    choices
        .map(|choice| {
            json!({
                "text": choice["text"].as_str().or(choice["message"]["content"].as_str()).unwrap(),
                "ids": choice["token_ids"],
                "logprobs": choice["logprobs"]["content"].as_array().cloned().unwrap_or_default(),
                "finish_reason": choice["finish_reason"],
            })
        })
        .collect()
}

async fn stream(address: std::net::SocketAddr, path: &str, body: &Value) -> Response {
    let mut body = body.clone();
    body["stream"] = true.into();
    body["stream_options"] = json!({"include_usage": true});
    Client::post(address, path, &body).await
}

#[tokio::test]
async fn streamed_or_not_an_answer_is_the_same() {
    let server = start().await;
    let say = json!([{"role": "system", "content": "be brief"}, {"role": "user", "content": "größer → 𝄞?"}]);
    let bodies = [
        (CHAT, json!({"messages": say})),
        (CHAT, json!({"messages": say, "n": 3, "logprobs": true, "top_logprobs": 2})),
        (CHAT, json!({"messages": say, "max_tokens": 5, "n": 2})),
        (CHAT, json!({"messages": say, "stop": ["öße", "zz"], "max_completion_tokens": 30})),
        (COMPLETIONS, json!({"prompt": "one two three", "max_tokens": 100})),
        (COMPLETIONS, json!({"prompt": "one two three", "max_tokens": 100, "stop": " t"})),
        (COMPLETIONS, json!({"prompt": ["one", [116, 119, 111]], "n": 2, "max_tokens": 7, "ignore_eos": true})),
        (COMPLETIONS, json!({"prompt": [104, 105], "min_tokens": 6})),
    ];
    for (path, mut body) in bodies {
        body["model"] = "echo".into();
        body["return_token_ids"] = true.into();
        let whole = Client::post(server.address, path, &body).await;
        assert_eq!(whole.status, 200, "{}", whole.body);
        assert_eq!(whole.header("content-type"), Some("application/json"));
        let streamed = stream(server.address, path, &body).await;
        let events = streamed.events();
        assert_eq!(joined(&events), plain(&whole.json()), "{body}");
        assert_eq!(events.last().unwrap()["usage"], whole.json()["usage"]);
        for event in &events {
            assert_eq!(event["id"], events[0]["id"]);
        }
    }
    server.fake.wait_for_live(0).await;
}
