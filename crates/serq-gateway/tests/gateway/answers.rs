//! What is answered, streamed and not.

use std::time::Duration;

use expect_test::expect;
use serde_json::{Value, json};
use serq_gateway::Options;
use serq_gateway::backend::{Message, Prompt, Role};

use crate::client::{Client, Response};
use crate::{start, start_with};

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

#[tokio::test]
async fn choices_of_a_stream_come_interleaved_under_their_number() {
    let server = start().await;
    let body = json!({"prompt": "ab", "model": "echo", "n": 2});
    let events = stream(server.address, COMPLETIONS, &body).await.events();
    let cached = &events.last().unwrap()["usage"]["prompt_tokens_details"]["cached_tokens"];
    assert_eq!(*cached, 1, "what the first choice found: the second finds what that one computed");
    let told: Vec<_> = events
        .iter()
        .flat_map(|event| event["choices"].as_array().unwrap())
        .map(|choice| format!("{} {} {}", choice["index"], choice["text"], choice["finish_reason"]))
        .collect();
    expect![[r#"
        0 "a" null
        1 "b" null
        0 "b" null
        1 "a" null
        0 "" null
        1 "" null
        0 "" "stop"
        1 "" "stop""#]]
    .assert_eq(&told.join("\n"));
}

/// The bodies as they are, but for what differs from run to run.
fn masked(body: &str) -> String {
    let mut text = body.to_owned();
    for (before, after) in [(r#""id":""#, r#"""#), (r#""created":"#, ",")] {
        let mut from = 0;
        while let Some(at) = text[from..].find(before) {
            let begin = from + at + before.len();
            let end = begin + text[begin..].find(after).expect("an end");
            text.replace_range(begin..end, "…");
            from = begin;
        }
    }
    text
}

#[tokio::test]
async fn bodies_and_events_are_openais() {
    let server = start().await;
    let chat = json!({
        "model": "echo", "messages": [{"role": "user", "content": "é"}], "logprobs": true, "top_logprobs": 1,
        "max_tokens": 1, "ignore_eos": true,
    });
    let completion = json!({"model": "echo", "prompt": "no", "logprobs": 1, "return_token_ids": true});
    let mut text = String::new();
    for (path, body) in [(CHAT, chat), (COMPLETIONS, completion)] {
        text += &masked(&Client::post(server.address, path, &body).await.body);
        text += "\n\n";
        text += &masked(&stream(server.address, path, &body).await.body);
        text += "\n";
    }
    expect![[r#"
        {"id":"…","object":"chat.completion","created":…,"model":"echo","choices":[{"index":0,"message":{"role":"assistant","content":"u"},"logprobs":{"content":[{"token":"u","logprob":-0.5,"bytes":[117],"top_logprobs":[{"token":"u","logprob":-0.5,"bytes":[117]}]}]},"finish_reason":"length"}],"usage":{"prompt_tokens":8,"completion_tokens":1,"total_tokens":9,"prompt_tokens_details":{"cached_tokens":4}}}

        data: {"id":"…","object":"chat.completion.chunk","created":…,"model":"echo","choices":[{"index":0,"delta":{"role":"assistant","content":"u"},"logprobs":{"content":[{"token":"u","logprob":-0.5,"bytes":[117],"top_logprobs":[{"token":"u","logprob":-0.5,"bytes":[117]}]}]},"finish_reason":null}]}

        data: {"id":"…","object":"chat.completion.chunk","created":…,"model":"echo","choices":[{"index":0,"delta":{},"logprobs":null,"finish_reason":"length"}]}

        data: {"id":"…","object":"chat.completion.chunk","created":…,"model":"echo","choices":[],"usage":{"prompt_tokens":8,"completion_tokens":1,"total_tokens":9,"prompt_tokens_details":{"cached_tokens":4}}}

        data: [DONE]


        {"id":"…","object":"text_completion","created":…,"model":"echo","choices":[{"index":0,"text":"no","logprobs":{"tokens":["n","o",""],"token_logprobs":[-0.5,-0.5,-0.5],"top_logprobs":[{"n":-0.5},{"o":-0.5},{"\u0000":-0.5}],"text_offset":[0,1,2]},"finish_reason":"stop","token_ids":[110,111,256]}],"usage":{"prompt_tokens":2,"completion_tokens":3,"total_tokens":5,"prompt_tokens_details":{"cached_tokens":1}}}

        data: {"id":"…","object":"text_completion","created":…,"model":"echo","choices":[{"index":0,"text":"n","logprobs":{"tokens":["n"],"token_logprobs":[-0.5],"top_logprobs":[{"n":-0.5}],"text_offset":[0]},"finish_reason":null,"token_ids":[110]}]}

        data: {"id":"…","object":"text_completion","created":…,"model":"echo","choices":[{"index":0,"text":"o","logprobs":{"tokens":["o"],"token_logprobs":[-0.5],"top_logprobs":[{"o":-0.5}],"text_offset":[1]},"finish_reason":null,"token_ids":[111]}]}

        data: {"id":"…","object":"text_completion","created":…,"model":"echo","choices":[{"index":0,"text":"","logprobs":{"tokens":[""],"token_logprobs":[-0.5],"top_logprobs":[{"\u0000":-0.5}],"text_offset":[2]},"finish_reason":null,"token_ids":[256]}]}

        data: {"id":"…","object":"text_completion","created":…,"model":"echo","choices":[{"index":0,"text":"","logprobs":null,"finish_reason":"stop"}]}

        data: {"id":"…","object":"text_completion","created":…,"model":"echo","choices":[],"usage":{"prompt_tokens":2,"completion_tokens":3,"total_tokens":5,"prompt_tokens_details":{"cached_tokens":1}}}

        data: [DONE]


    "#]].assert_eq(&text);
}

#[tokio::test]
async fn parameters_arrive_as_they_were_sent() {
    let server = start().await;
    let body = json!({
        "model": "echo",
        "messages": [
            {"role": "developer", "content": "be brief"},
            {"role": "assistant", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        ],
        "max_completion_tokens": 9, "min_tokens": 2, "temperature": 0.5, "top_p": 0.25, "top_k": 40, "min_p": 0.125,
        "presence_penalty": 1, "frequency_penalty": -1, "repetition_penalty": 1.5, "seed": -3, "logprobs": true,
        "top_logprobs": 2, "stop": ["x", "yz"], "stop_token_ids": [7], "ignore_eos": true, "n": 2, "best_of": 2,
        "logit_bias": {"9": -100, "10": 1.5}, "user": "somebody",
    });
    let mut client = Client::connect(server.address).await;
    let headers = [("content-type", "application/json; charset=utf-8"), ("x-request-id", "trace-7")];
    client.send("POST", CHAT, &headers, body.to_string().as_bytes()).await;
    let response = client.response().await;
    assert_eq!(response.header("x-request-id"), Some("trace-7"));
    assert_eq!(response.json()["id"], "chatcmpl-trace-7");
    let message = |role, content: &str| Message { role, content: content.to_owned() };
    let chat = vec![message(Role::Developer, "be brief"), message(Role::Assistant, "a\nb")];
    assert_eq!(*server.fake.prompts.lock().unwrap(), [Prompt::Chat(chat)]);
    let request = server.fake.last_request();
    assert_eq!(request.prompt.len(), "developer: be brief\nassistant: a\nb".len());
    expect![[r#"
        Request {
            id: "trace-7-0",
            model: "echo",
            prompt: [],
            choices: 2,
            max_tokens: 9,
            min_tokens: 2,
            stop_strings: [
                "x",
                "yz",
            ],
            stop_token_ids: [
                7,
            ],
            ignore_eos: true,
            sampling: Sampling {
                temperature: 0.5,
                top_p: 0.25,
                top_k: Some(
                    40,
                ),
                min_p: 0.125,
                presence_penalty: 1.0,
                frequency_penalty: -1.0,
                repetition_penalty: 1.5,
                seed: Some(
                    -3,
                ),
                logit_bias: [
                    (
                        9,
                        -100.0,
                    ),
                    (
                        10,
                        1.5,
                    ),
                ],
            },
            logprobs: Some(
                2,
            ),
        }
    "#]]
    .assert_debug_eq(&serq_gateway::backend::Request { prompt: Vec::new(), ..request });
}

#[tokio::test]
async fn what_a_body_leaves_out_has_openais_defaults() {
    let server = start().await;
    Client::post(server.address, COMPLETIONS, &json!({"model": "echo", "prompt": "hi", "stop": null})).await;
    let request = server.fake.last_request();
    assert_eq!((request.choices, request.max_tokens, request.min_tokens), (1, 16, 0));
    assert_eq!(request.sampling, serq_gateway::backend::Sampling::default());
    assert_eq!((request.logprobs, request.ignore_eos), (None, false));
    Client::post(server.address, CHAT, &json!({"model": "echo", "messages": [{"role": "user", "content": "hi"}]}))
        .await;
    assert_eq!(server.fake.last_request().max_tokens, 4096 - "user: hi".len() as u32, "all the context has room for");
}

#[tokio::test]
async fn figures_of_the_request_are_shown_to_who_asks() {
    let server = start().await;
    for (stream, prompt) in [(false, json!("hi")), (true, json!("hi")), (false, json!(["a", "b"]))] {
        let body = json!({"model": "echo", "prompt": prompt, "stream": stream}).to_string();
        let mut client = Client::connect(server.address).await;
        let headers = [("content-type", "application/json"), ("x-serq-observe", "1")];
        client.send("POST", COMPLETIONS, &headers, body.as_bytes()).await;
        let response = client.response().await;
        if prompt.is_array() {
            assert_eq!(response.status, 400, "whose figures?");
            continue;
        }
        let last = if stream { response.events().pop().unwrap() } else { response.json() };
        assert_eq!(last["serq"], json!({"ttft": 0.25, "remote": 1.0}));
        assert_eq!(last["usage"].is_null(), stream, "the stream didn't ask for usage");
    }
}

#[tokio::test]
async fn models_are_listed_and_looked_up() {
    let server = start().await;
    let list = Client::get(server.address, "/v1/models").await.json();
    assert_eq!(list["object"], "list");
    assert_eq!(list["data"].as_array().unwrap().len(), crate::fake::MODELS.len());
    let model = Client::get(server.address, "/v1/models/ec%68o").await;
    expect![[
        r#"{"created":1700000000,"id":"echo","max_model_len":4096,"object":"model","owned_by":"serq","vocab_size":257}"#
    ]]
    .assert_eq(&model.body);
}

#[tokio::test]
async fn a_stream_with_nothing_to_say_sends_comments() {
    let options = Options { comment_time: Duration::from_millis(5), ..Options::default() };
    let server = start_with(options).await;
    let mut client = Client::connect(server.address).await;
    let body = json!({"model": "gated", "prompt": "a", "stream": true});
    client.send_json(COMPLETIONS, &body).await;
    assert_eq!(client.head().await.status, 200);
    for _ in 0..3 {
        assert_eq!(client.chunk().await.unwrap().as_deref(), Some(": waiting\n\n"));
    }
    server.fake.permit(100);
    let mut text = String::new();
    while let Some(chunk) = client.chunk().await.unwrap() {
        text += &chunk;
    }
    assert_eq!(crate::client::data(&text).last().unwrap(), "[DONE]");
}

#[tokio::test]
async fn metrics_count_what_happened() {
    let server = start().await;
    Client::post(server.address, COMPLETIONS, &json!({"model": "echo", "prompt": "abc"})).await;
    Client::post(server.address, COMPLETIONS, &json!({"model": "echo", "prompt": "abc", "max_tokens": 2, "n": 2}))
        .await;
    Client::post(server.address, COMPLETIONS, &json!({"model": "fails", "prompt": "abc"})).await;
    Client::post(server.address, COMPLETIONS, &json!({"model": "full", "prompt": "abc"})).await;
    Client::post(server.address, COMPLETIONS, &json!({"model": "nobody"})).await;
    let page = Client::get(server.address, "/metrics").await;
    assert_eq!(page.header("content-type"), Some("text/plain; version=0.0.4; charset=utf-8"));
    // Not those of times, nor of connections, which close when they close.
    let varies = ["#", "_bucket", "seconds_sum", "serq_connections"];
    let told = |line: &&str| !varies.iter().any(|part| line.contains(part));
    expect![[r#"
        serq_http_responses_total{path="/v1/completions",status="200"} 2
        serq_http_responses_total{path="/v1/completions",status="404"} 1
        serq_http_responses_total{path="/v1/completions",status="429"} 1
        serq_http_responses_total{path="/v1/completions",status="500"} 1
        serq_errors_total{code="internal_error"} 1
        serq_errors_total{code="model_not_found"} 1
        serq_errors_total{code="queue_full"} 1
        serq_requests_in_flight{model_name="echo"} 0
        serq_requests_in_flight{model_name="fails"} 0
        serq_requests_in_flight{model_name="full"} 0
        serq_requests_total{model_name="echo",outcome="finished"} 2
        serq_requests_total{model_name="fails",outcome="failed"} 1
        serq_requests_total{model_name="full",outcome="refused"} 1
        vllm:request_success_total{model_name="echo",finished_reason="length"} 2
        vllm:request_success_total{model_name="echo",finished_reason="stop"} 1
        vllm:prompt_tokens_total{model_name="echo"} 6
        vllm:prompt_tokens_total{model_name="fails"} 3
        vllm:prompt_tokens_total{model_name="full"} 0
        vllm:generation_tokens_total{model_name="echo"} 8
        vllm:generation_tokens_total{model_name="fails"} 3
        vllm:generation_tokens_total{model_name="full"} 0
        vllm:time_to_first_token_seconds_count{model_name="echo"} 2
        vllm:time_to_first_token_seconds_count{model_name="fails"} 1
        vllm:time_to_first_token_seconds_count{model_name="full"} 0
        vllm:inter_token_latency_seconds_count{model_name="echo"} 5
        vllm:inter_token_latency_seconds_count{model_name="fails"} 2
        vllm:inter_token_latency_seconds_count{model_name="full"} 0
        vllm:request_time_per_output_token_seconds_count{model_name="echo"} 3
        vllm:request_time_per_output_token_seconds_count{model_name="fails"} 0
        vllm:request_time_per_output_token_seconds_count{model_name="full"} 0
        vllm:e2e_request_latency_seconds_count{model_name="echo"} 2
        vllm:e2e_request_latency_seconds_count{model_name="fails"} 0
        vllm:e2e_request_latency_seconds_count{model_name="full"} 0
        vllm:request_prompt_tokens_sum{model_name="echo"} 6
        vllm:request_prompt_tokens_count{model_name="echo"} 2
        vllm:request_prompt_tokens_sum{model_name="fails"} 3
        vllm:request_prompt_tokens_count{model_name="fails"} 1
        vllm:request_prompt_tokens_sum{model_name="full"} 0
        vllm:request_prompt_tokens_count{model_name="full"} 0
        vllm:request_generation_tokens_sum{model_name="echo"} 8
        vllm:request_generation_tokens_count{model_name="echo"} 3
        vllm:request_generation_tokens_sum{model_name="fails"} 0
        vllm:request_generation_tokens_count{model_name="fails"} 0
        vllm:request_generation_tokens_sum{model_name="full"} 0
        vllm:request_generation_tokens_count{model_name="full"} 0
        serq_kv_blocks_used{instance="decode/0"} 0"#]]
    .assert_eq(&page.body.lines().filter(told).collect::<Vec<_>>().join("\n"));
}
