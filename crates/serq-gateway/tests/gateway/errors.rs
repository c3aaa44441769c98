//! What is refused, and what is said of it.

use expect_test::expect;
use serde_json::{Value, json};
use serq_gateway::Options;
use tokio::io::AsyncWriteExt as _;

use crate::client::{Client, Response};
use crate::{start, start_with};

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";
const JSON: &[(&str, &str)] = &[("content-type", "application/json")];

/// Status, code, field and sentence. Asserts what all errors have.
fn told(response: &Response) -> String {
    let body = response.json();
    let error = &body["error"];
    let keys: Vec<_> = error.as_object().expect("an error").keys().collect();
    assert_eq!(keys, ["code", "message", "param", "type"]);
    let kind = match response.status {
        429 => "rate_limit_error",
        500.. => "server_error",
        _ => "invalid_request_error",
    };
    assert_eq!(error["type"], kind);
    assert_eq!(response.header("content-type"), Some("application/json"));
    let message = error["message"].as_str().expect("a sentence");
    assert!(!message.contains('\n'), "one line");
    let param = error["param"].as_str().map_or(String::new(), |param| format!(" {param}"));
    format!("{} {}{param}: {message}", response.status, error["code"].as_str().expect("a code"))
}

/// A body that is good, with these fields replaced or added.
async fn table(path: &str, good: Value, changes: &[&str]) -> String {
    let server = start().await;
    let mut client = Client::connect(server.address).await;
    let mut table = String::new();
    for change in changes {
        let mut body = good.clone();
        for (name, value) in serde_json::from_str::<Value>(change).expect("JSON").as_object().expect("an object") {
            body[name] = value.clone();
        }
        client.send_json(path, &body).await;
        let response = client.response().await;
        let told = if response.status == 200 { "200".to_owned() } else { told(&response) };
        table.push_str(&format!("{change}\n    {told}\n"));
    }
    table
}

#[tokio::test]
async fn a_wrong_chat_body_is_told_which_field() {
    let good = json!({"model": "echo", "messages": [{"role": "user", "content": "hi"}]});
    let table = table(
        CHAT,
        good,
        &[
            r#"{}"#,
            r#"{"model": null}"#,
            r#"{"model": 7}"#,
            r#"{"model": "gpt-5"}"#,
            r#"{"messages": null}"#,
            r#"{"messages": "hi"}"#,
            r#"{"messages": []}"#,
            r#"{"messages": ["hi"]}"#,
            r#"{"messages": [{"content": "hi"}]}"#,
            r#"{"messages": [{"role": "robot", "content": "hi"}]}"#,
            r#"{"messages": [{"role": "tool", "content": "4", "tool_call_id": "x"}]}"#,
            r#"{"messages": [{"role": "user"}]}"#,
            r#"{"messages": [{"role": "user", "content": 5}]}"#,
            r#"{"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]}"#,
            r#"{"messages": [{"role": "user", "content": ["hi"]}]}"#,
            r#"{"messages": [{"role": "user", "content": [{"text": "hi"}]}]}"#,
            r#"{"messages": [{"role": "user", "content": [{"type": "text"}]}]}"#,
            r#"{"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}"#,
            r#"{"messages": [{"role": "assistant", "content": null, "tool_calls": [{"id": "x"}]}]}"#,
            r#"{"max_tokens": 5, "max_completion_tokens": 5}"#,
            r#"{"max_completion_tokens": 0}"#,
            r#"{"max_completion_tokens": 5000}"#,
            r#"{"temperature": 2.5}"#,
            r#"{"temperature": "hot"}"#,
            r#"{"top_p": 0}"#,
            r#"{"top_p": 1.5}"#,
            r#"{"top_k": 1.5}"#,
            r#"{"top_k": -2}"#,
            r#"{"min_p": -0.5}"#,
            r#"{"presence_penalty": 3}"#,
            r#"{"frequency_penalty": -2.01}"#,
            r#"{"repetition_penalty": 0}"#,
            r#"{"seed": 1.5}"#,
            r#"{"seed": 18446744073709551615}"#,
            r#"{"logprobs": 3}"#,
            r#"{"top_logprobs": 3}"#,
            r#"{"logprobs": true, "top_logprobs": 21}"#,
            r#"{"n": 0}"#,
            r#"{"n": 129}"#,
            r#"{"stop": ""}"#,
            r#"{"stop": 5}"#,
            r#"{"stop": ["a", 5]}"#,
            r#"{"stop": ["1","2","3","4","5","6","7","8","9","10","11","12","13","14","15","16","17"]}"#,
            r#"{"stop_token_ids": [3, 257]}"#,
            r#"{"stop_token_ids": 3}"#,
            r#"{"min_tokens": 5, "max_tokens": 4}"#,
            r#"{"logit_bias": [1]}"#,
            r#"{"logit_bias": {"x": 1}}"#,
            r#"{"logit_bias": {"257": 1}}"#,
            r#"{"logit_bias": {"7": 101}}"#,
            r#"{"ignore_eos": "yes"}"#,
            r#"{"stream": 1}"#,
            r#"{"stream_options": {"include_usage": true}}"#,
            r#"{"stream": true, "stream_options": []}"#,
            r#"{"stream": true, "stream_options": {"include_usage": "yes"}}"#,
            r#"{"tools": [], "tool_choice": "none", "response_format": {"type": "text"}}"#,
            r#"{"tools": [{"type": "function"}]}"#,
            r#"{"tool_choice": "required"}"#,
            r#"{"response_format": {"type": "json_object"}}"#,
            r#"{"modalities": ["text", "audio"]}"#,
            r#"{"reasoning_effort": "high"}"#,
            r#"{"chat_template": "{{ x }}"}"#,
            r#"{"user": 7, "metadata": {}, "store": true, "something_new": 1}"#,
        ],
    )
    .await;
    expect![[r#"
        {}
            200
        {"model": null}
            400 missing_required_parameter model: `model` is missing
        {"model": 7}
            400 invalid_type model: `model` must be a string, not an integer
        {"model": "gpt-5"}
            404 model_not_found model: no model is named `gpt-5`
        {"messages": null}
            400 missing_required_parameter messages: `messages` is missing
        {"messages": "hi"}
            400 invalid_type messages: `messages` must be a list, not a string
        {"messages": []}
            400 invalid_value messages: `messages` must have at least one message
        {"messages": ["hi"]}
            400 invalid_type messages[0]: `messages[0]` must be an object, not a string
        {"messages": [{"content": "hi"}]}
            400 missing_required_parameter messages[0].role: `messages[0].role` is missing
        {"messages": [{"role": "robot", "content": "hi"}]}
            400 unsupported_value messages[0].role: `messages[0].role` must be `system`, `developer`, `user` or `assistant`
        {"messages": [{"role": "tool", "content": "4", "tool_call_id": "x"}]}
            400 unsupported_value messages[0].role: `messages[0].role` must be `system`, `developer`, `user` or `assistant`
        {"messages": [{"role": "user"}]}
            400 missing_required_parameter messages[0].content: `messages[0].content` is missing
        {"messages": [{"role": "user", "content": 5}]}
            400 invalid_type messages[0].content: `messages[0].content` must be a string or a list of text parts, not an integer
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]}
            200
        {"messages": [{"role": "user", "content": ["hi"]}]}
            400 invalid_type messages[0].content[0]: `messages[0].content[0]` must be an object, not a string
        {"messages": [{"role": "user", "content": [{"text": "hi"}]}]}
            400 missing_required_parameter messages[0].content[0].type: `messages[0].content[0].type` is missing
        {"messages": [{"role": "user", "content": [{"type": "text"}]}]}
            400 missing_required_parameter messages[0].content[0].text: `messages[0].content[0].text` is missing
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}
            400 unsupported_value messages[0].content[0].type: `messages[0].content[0]` is no text: this server reads text only
        {"messages": [{"role": "assistant", "content": null, "tool_calls": [{"id": "x"}]}]}
            400 unsupported_parameter messages[0].tool_calls: `messages[0].tool_calls` is not supported
        {"max_tokens": 5, "max_completion_tokens": 5}
            400 invalid_value max_tokens: `max_tokens` and `max_completion_tokens` are two names of one thing: give one of them
        {"max_completion_tokens": 0}
            400 invalid_value max_completion_tokens: `max_completion_tokens` is 0, but must be from 1 to 4294967295
        {"max_completion_tokens": 5000}
            400 context_length_exceeded max_completion_tokens: the messages of 8 tokens and an answer of 5000 are more than the model's context of 4096 tokens
        {"temperature": 2.5}
            400 invalid_value temperature: `temperature` is 2.5, but must be from 0 to 2
        {"temperature": "hot"}
            400 invalid_type temperature: `temperature` must be a number, not a string
        {"top_p": 0}
            400 invalid_value top_p: `top_p` is 0, but must be from 0.000001 to 1
        {"top_p": 1.5}
            400 invalid_value top_p: `top_p` is 1.5, but must be from 0.000001 to 1
        {"top_k": 1.5}
            400 invalid_type top_k: `top_k` must be an integer, not a decimal number
        {"top_k": -2}
            400 invalid_value top_k: `top_k` is -2, but must be from -1 to 4294967295
        {"min_p": -0.5}
            400 invalid_value min_p: `min_p` is -0.5, but must be from 0 to 1
        {"presence_penalty": 3}
            400 invalid_value presence_penalty: `presence_penalty` is 3, but must be from -2 to 2
        {"frequency_penalty": -2.01}
            400 invalid_value frequency_penalty: `frequency_penalty` is -2.01, but must be from -2 to 2
        {"repetition_penalty": 0}
            400 invalid_value repetition_penalty: `repetition_penalty` is 0, but must be from 0.000001 to 100
        {"seed": 1.5}
            400 invalid_type seed: `seed` must be an integer, not a decimal number
        {"seed": 18446744073709551615}
            400 invalid_value seed: `seed` is 18446744073709551615, but must be from -9223372036854775808 to 9223372036854775807
        {"logprobs": 3}
            400 invalid_type logprobs: `logprobs` must be true or false, not an integer
        {"top_logprobs": 3}
            400 invalid_value top_logprobs: `top_logprobs` needs `logprobs` to be true
        {"logprobs": true, "top_logprobs": 21}
            400 invalid_value top_logprobs: `top_logprobs` is 21, but must be from 0 to 20
        {"n": 0}
            400 invalid_value n: `n` is 0, but must be from 1 to 128
        {"n": 129}
            400 invalid_value n: `n` is 129, but must be from 1 to 128
        {"stop": ""}
            400 invalid_value stop: `stop` must have from 1 to 1024 bytes
        {"stop": 5}
            400 invalid_type stop: `stop` must be a string or a list of strings, not an integer
        {"stop": ["a", 5]}
            400 invalid_type stop[1]: `stop[1]` must be a string, not an integer
        {"stop": ["1","2","3","4","5","6","7","8","9","10","11","12","13","14","15","16","17"]}
            400 invalid_value stop: `stop` has 17 entries, but may have at most 16
        {"stop_token_ids": [3, 257]}
            400 invalid_value stop_token_ids[1]: `stop_token_ids[1]` is 257, but must be from 0 to 256
        {"stop_token_ids": 3}
            400 invalid_type stop_token_ids: `stop_token_ids` must be a list, not an integer
        {"min_tokens": 5, "max_tokens": 4}
            400 invalid_value min_tokens: `min_tokens` is 5, but must be from 0 to 4
        {"logit_bias": [1]}
            400 invalid_type logit_bias: `logit_bias` must be an object, not a list
        {"logit_bias": {"x": 1}}
            400 invalid_value logit_bias: the keys of `logit_bias` must be token ids from 0 to 256
        {"logit_bias": {"257": 1}}
            400 invalid_value logit_bias: the keys of `logit_bias` must be token ids from 0 to 256
        {"logit_bias": {"7": 101}}
            400 invalid_value logit_bias.7: `logit_bias.7` is 101, but must be from -100 to 100
        {"ignore_eos": "yes"}
            400 invalid_type ignore_eos: `ignore_eos` must be true or false, not a string
        {"stream": 1}
            400 invalid_type stream: `stream` must be true or false, not an integer
        {"stream_options": {"include_usage": true}}
            400 invalid_value stream_options: `stream_options` needs `stream` to be true
        {"stream": true, "stream_options": []}
            400 invalid_type stream_options: `stream_options` must be an object, not a list
        {"stream": true, "stream_options": {"include_usage": "yes"}}
            400 invalid_type stream_options.include_usage: `stream_options.include_usage` must be true or false, not a string
        {"tools": [], "tool_choice": "none", "response_format": {"type": "text"}}
            200
        {"tools": [{"type": "function"}]}
            400 unsupported_parameter tools: `tools` is supported as [] only
        {"tool_choice": "required"}
            400 unsupported_parameter tool_choice: `tool_choice` is supported as "none" or "auto" only
        {"response_format": {"type": "json_object"}}
            400 unsupported_parameter response_format: `response_format` is supported as {"type":"text"} only
        {"modalities": ["text", "audio"]}
            400 unsupported_parameter modalities: `modalities` is supported as ["text"] only
        {"reasoning_effort": "high"}
            400 unsupported_parameter reasoning_effort: `reasoning_effort` is supported as "none" only
        {"chat_template": "{{ x }}"}
            400 unsupported_parameter chat_template: `chat_template` is not supported
        {"user": 7, "metadata": {}, "store": true, "something_new": 1}
            200
    "#]]
    .assert_eq(&table);
}

#[tokio::test]
async fn a_wrong_completion_body_is_told_which_field() {
    let good = json!({"model": "echo", "prompt": "hi"});
    let table = table(
        COMPLETIONS,
        good,
        &[
            r#"{}"#,
            r#"{"prompt": null}"#,
            r#"{"prompt": 5}"#,
            r#"{"prompt": ""}"#,
            r#"{"prompt": []}"#,
            r#"{"prompt": [[]]}"#,
            r#"{"prompt": [1, "a"]}"#,
            r#"{"prompt": ["a", 1]}"#,
            r#"{"prompt": [[1], [2, 257]]}"#,
            r#"{"prompt": [-1]}"#,
            r#"{"prompt": [1.5]}"#,
            r#"{"prompt": [{}]}"#,
            r#"{"prompt": ["a", "b", "c"], "n": 43}"#,
            r#"{"max_tokens": 4095}"#,
            r#"{"max_tokens": 99999999999999}"#,
            r#"{"max_tokens": true}"#,
            r#"{"max_completion_tokens": "ignored here"}"#,
            r#"{"logprobs": true}"#,
            r#"{"logprobs": 21}"#,
            r#"{"best_of": 1}"#,
            r#"{"best_of": 2}"#,
            r#"{"n": 2, "best_of": 2}"#,
            r#"{"echo": true}"#,
            r#"{"suffix": "end"}"#,
            r#"{"suffix": ""}"#,
            r#"{"prompt_logprobs": 1}"#,
            r#"{"kv_transfer_params": {"do_remote_decode": true}}"#,
            r#"{"model": "full"}"#,
            r#"{"model": "picky"}"#,
            r#"{"model": "away"}"#,
            r#"{"model": "broken"}"#,
            r#"{"model": "panics"}"#,
            r#"{"model": "fails"}"#,
            r#"{"model": "breaks"}"#,
            r#"{"model": "babbles", "max_tokens": 1, "n": 2}"#,
        ],
    )
    .await;
    expect![[r#"
        {}
            200
        {"prompt": null}
            400 missing_required_parameter prompt: `prompt` is missing
        {"prompt": 5}
            400 invalid_type prompt: `prompt` must be a string or a list, not an integer
        {"prompt": ""}
            400 invalid_value prompt: the prompt must have at least one token
        {"prompt": []}
            400 invalid_value prompt: `prompt` must not be an empty list
        {"prompt": [[]]}
            400 invalid_value prompt: the prompt must have at least one token
        {"prompt": [1, "a"]}
            400 invalid_type prompt[1]: `prompt[1]` must be an integer, not a string
        {"prompt": ["a", 1]}
            400 invalid_type prompt[1]: `prompt[1]` must be a string or a list of token ids, not an integer
        {"prompt": [[1], [2, 257]]}
            400 invalid_value prompt[1][1]: `prompt[1][1]` is 257, but must be from 0 to 256
        {"prompt": [-1]}
            400 invalid_value prompt[0]: `prompt[0]` is -1, but must be from 0 to 256
        {"prompt": [1.5]}
            400 invalid_type prompt[0]: `prompt[0]` must be an integer, not a decimal number
        {"prompt": [{}]}
            400 invalid_type prompt[0]: `prompt[0]` must be an integer, not an object
        {"prompt": ["a", "b", "c"], "n": 43}
            400 invalid_value n: 3 prompts with `n` 43 are more than 128 answers
        {"max_tokens": 4095}
            400 context_length_exceeded max_tokens: the prompt of 2 tokens and an answer of 4095 are more than the model's context of 4096 tokens
        {"max_tokens": 99999999999999}
            400 invalid_value max_tokens: `max_tokens` is 99999999999999, but must be from 1 to 4294967295
        {"max_tokens": true}
            400 invalid_type max_tokens: `max_tokens` must be an integer, not true or false
        {"max_completion_tokens": "ignored here"}
            200
        {"logprobs": true}
            400 invalid_type logprobs: `logprobs` must be an integer, not true or false
        {"logprobs": 21}
            400 invalid_value logprobs: `logprobs` is 21, but must be from 0 to 20
        {"best_of": 1}
            200
        {"best_of": 2}
            400 unsupported_parameter best_of: `best_of` must be as `n`
        {"n": 2, "best_of": 2}
            200
        {"echo": true}
            400 unsupported_parameter echo: `echo` is supported as false only
        {"suffix": "end"}
            400 unsupported_parameter suffix: `suffix` is supported as "" only
        {"suffix": ""}
            200
        {"prompt_logprobs": 1}
            400 unsupported_parameter prompt_logprobs: `prompt_logprobs` is not supported
        {"kv_transfer_params": {"do_remote_decode": true}}
            400 unsupported_parameter kv_transfer_params: `kv_transfer_params` is supported as {} only
        {"model": "full"}
            429 queue_full: 32 requests wait, and no more may
        {"model": "picky"}
            400 invalid_value seed: `seed` is not to this backend's taste
        {"model": "away"}
            503 service_unavailable: no instance answers
        {"model": "broken"}
            500 internal_error: the weights are gone
        {"model": "panics"}
            500 internal_error: the prompt could not be tokenized
        {"model": "fails"}
            500 internal_error: instance 1 went away
        {"model": "breaks"}
            500 internal_error: the answer broke off
        {"model": "babbles", "max_tokens": 1, "n": 2}
            500 internal_error: the backend told something of choice 0, which it must not
    "#]]
    .assert_eq(&table);
}

#[tokio::test]
async fn a_prompt_that_fills_the_context_is_told_the_numbers() {
    let server = start().await;
    let chat = json!({"model": "echo", "messages": [{"role": "user", "content": "x".repeat(5000)}]});
    let ids = vec![1; 4096];
    let completion = json!({"model": "echo", "prompt": ids});
    let chat = told(&Client::post(server.address, CHAT, &chat).await);
    let completion = told(&Client::post(server.address, COMPLETIONS, &completion).await);
    expect![[r#"
        400 context_length_exceeded messages: the messages of 5006 tokens and an answer of 1 are more than the model's context of 4096 tokens
        400 context_length_exceeded prompt: the prompt of 4096 tokens and an answer of 1 are more than the model's context of 4096 tokens
    "#]]
    .assert_eq(&format!("{chat}\n{completion}\n"));
}

#[tokio::test]
async fn requests_that_are_none_of_ours() {
    let server = start_with(Options { body_bytes: 1000, ..Options::default() }).await;
    let mut table = String::new();
    let long_name = format!("/v1/models/{}", "x".repeat(1000));
    let large = format!(r#"{{"model": "echo", "prompt": "{}"}}"#, "x".repeat(2000));
    let deep = format!(r#"{{"model": {}"#, "[".repeat(900));
    let form = &[("content-type", "application/x-www-form-urlencoded")];
    let zipped = &[("content-type", "application/json"), ("content-encoding", "gzip")];
    let none: &[(&str, &str)] = &[];
    let empty: &[u8] = b"";
    let cases = [
        ("GET", "/", none, empty),
        ("POST", "/v1/embeddings", JSON, b"{}"),
        ("POST", "/v1/completions/", JSON, b"{}"),
        ("GET", "/v1/models/gpt%2D5", none, empty),
        ("GET", long_name.as_str(), none, empty),
        ("GET", COMPLETIONS, none, empty),
        ("PUT", CHAT, JSON, b"{}"),
        ("POST", "/v1/models", JSON, b"{}"),
        ("POST", COMPLETIONS, none, b"{}"),
        ("POST", COMPLETIONS, form, b"model=echo"),
        ("POST", COMPLETIONS, zipped, b"{}"),
        ("POST", COMPLETIONS, JSON, empty),
        ("POST", COMPLETIONS, JSON, b"{\"model\": \"echo\", }"),
        ("POST", COMPLETIONS, JSON, b"[1]"),
        ("POST", COMPLETIONS, JSON, b"{\"model\": \"\xff\"}"),
        ("POST", COMPLETIONS, JSON, b"{\"model\": \"\\ud800\"}"),
        ("POST", COMPLETIONS, JSON, b"{\"model\": \"echo\", \"temperature\": 1e999}"),
        ("POST", COMPLETIONS, JSON, deep.as_bytes()),
        ("POST", COMPLETIONS, JSON, large.as_bytes()),
    ];
    for (method, path, headers, body) in cases {
        let mut client = Client::connect(server.address).await;
        client.send(method, path, headers, body).await;
        let response = client.response().await;
        table.push_str(&format!("{method} {path:.40}\n    {}\n", told(&response)));
        if let Some(methods) = response.header("allow") {
            table.push_str(&format!("    allow: {methods}\n"));
        }
    }
    expect![[r#"
        GET /
            404 unknown_path: there is no `/` here
        POST /v1/embeddings
            404 unknown_path: there is no `/v1/embeddings` here
        POST /v1/completions/
            404 unknown_path: there is no `/v1/completions/` here
        GET /v1/models/gpt%2D5
            404 model_not_found: no model is named `gpt-5`
        GET /v1/models/xxxxxxxxxxxxxxxxxxxxxxxxxxxxx
            404 model_not_found: no model is named `xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx…`
        GET /v1/completions
            405 method_not_allowed: the method must be POST
            allow: POST
        PUT /v1/chat/completions
            405 method_not_allowed: the method must be POST
            allow: POST
        POST /v1/models
            405 method_not_allowed: the method must be GET or HEAD
            allow: GET, HEAD
        POST /v1/completions
            415 unsupported_media_type: the header `content-type` must be `application/json`
        POST /v1/completions
            415 unsupported_media_type: the header `content-type` must be `application/json`
        POST /v1/completions
            415 unsupported_media_type: the body must come without a `content-encoding`
        POST /v1/completions
            400 invalid_json: the body is not JSON: EOF while parsing a value at line 1 column 0
        POST /v1/completions
            400 invalid_json: the body is not JSON: trailing comma at line 1 column 19
        POST /v1/completions
            400 invalid_json: the body must be a JSON object, not a list
        POST /v1/completions
            400 invalid_json: the body is not JSON: invalid unicode code point at line 1 column 12
        POST /v1/completions
            400 invalid_json: the body is not JSON: unexpected end of hex escape at line 1 column 18
        POST /v1/completions
            400 invalid_json: the body is not JSON: number out of range at line 1 column 38
        POST /v1/completions
            400 invalid_json: the body is not JSON: recursion limit exceeded at line 1 column 137
        POST /v1/completions
            413 body_too_large: the body has more than 1000 bytes
    "#]]
    .assert_eq(&table);
}

#[tokio::test]
async fn an_error_has_openais_shape() {
    let server = start().await;
    let response = Client::post(server.address, COMPLETIONS, &json!({"model": "full", "prompt": "hi"})).await;
    assert_eq!(response.header("retry-after"), Some("2"), "whole seconds, rounded up");
    expect![[r#"{"error":{"message":"32 requests wait, and no more may","type":"rate_limit_error","param":null,"code":"queue_full"}}"#]].assert_eq(&response.body);
}

#[tokio::test]
async fn a_body_too_large_is_refused_before_all_of_it_came() {
    let server = start_with(Options { body_bytes: 1000, ..Options::default() }).await;
    let mut client = Client::connect(server.address).await;
    let headers = [("content-type", "application/json"), ("content-length", "1000000000")];
    client.send("POST", COMPLETIONS, &headers, &[b'x'; 9000]).await;
    let response = client.response().await;
    assert_eq!(response.status, 413);
}

#[tokio::test]
async fn a_body_that_does_not_come_is_not_waited_for() {
    let options = Options { read_time: std::time::Duration::from_millis(20), ..Options::default() };
    let server = start_with(options).await;
    let mut client = Client::connect(server.address).await;
    let headers = [("content-type", "application/json"), ("content-length", "10")];
    client.send("POST", COMPLETIONS, &headers, b"{").await;
    expect!["408 body_timeout: the body took longer than 0.02 s"].assert_eq(&told(&client.response().await));
}

#[tokio::test]
async fn a_failure_in_a_stream_is_its_last_event() {
    let server = start().await;
    let body = json!({"model": "fails", "prompt": "hello", "stream": true});
    let response = Client::post(server.address, COMPLETIONS, &body).await;
    assert_eq!(response.status, 200, "three tokens were on their way");
    let events = crate::client::data(&response.body);
    assert_eq!(events.len(), 4, "no [DONE]");
    expect![[
        r#"{"error":{"message":"instance 1 went away","type":"server_error","param":null,"code":"internal_error"}}"#
    ]]
    .assert_eq(&events[3]);
    server.fake.wait_for_live(0).await;
}

#[tokio::test]
async fn not_ready_is_told_to_clients_and_to_who_asks_for_health() {
    let server = start().await;
    let body = json!({"model": "echo", "prompt": "hi"});
    assert_eq!(Client::get(server.address, "/health").await.body, r#"{"status":"ok"}"#);
    *server.fake.not_ready.lock().unwrap() = Some("the model is being loaded".to_owned());
    let health = told(&Client::get(server.address, "/health").await);
    assert_eq!(health, "503 not_ready: the model is being loaded");
    assert_eq!(told(&Client::post(server.address, COMPLETIONS, &body).await), health);
}

#[tokio::test]
async fn what_is_not_http_gets_a_bare_status() {
    let server = start().await;
    let long = format!("GET /health HTTP/1.1\r\nx: {}\r\n\r\n", "x".repeat(70_000));
    for (text, status) in [("not http at all\r\n\r\n", 400), (long.as_str(), 431)] {
        let mut client = Client::connect(server.address).await;
        client.stream.write_all(text.as_bytes()).await.unwrap();
        client.stream.flush().await.unwrap();
        assert_eq!(client.head().await.status, status);
    }
}
