//! Chat templates, against transformers.

use std::time::{Duration, UNIX_EPOCH};

use serde::Deserialize;
use serde_json::json;
use serq_engine::chat::{ChatOptions, ChatTemplate, Message, Value};
use serq_engine::weights::{Architecture, Checkpoint};

use super::folder_writer::Folder;
use super::{real_model, recorded, small};

#[derive(Deserialize)]
struct Recorded {
    chats: Vec<Chat>,
}

#[derive(Deserialize)]
struct Chat {
    messages: Vec<Message>,
    prompt: String,
    record: String,
}

fn without_prompt() -> ChatOptions {
    ChatOptions { add_generation_prompt: false, ..ChatOptions::default() }
}

fn says(role: &str, content: &str) -> Message {
    Message { role: role.into(), content: content.into() }
}

fn template(source: &str) -> ChatTemplate {
    ChatTemplate::new(source, "<s>", "</s>").unwrap()
}

/// One remark through a template, or the sentence of the failure.
fn written(source: &str, options: &ChatOptions) -> String {
    template(source).render(&[says("user", "Hi")], options).unwrap_or_else(|error| error.to_string())
}

#[test]
fn smollm2_writes_conversations_as_recorded() {
    let Some(model) = real_model::smollm2() else { return };
    let template = ChatTemplate::of(&model).unwrap().expect("the file has one");
    let chats = recorded::json::<Recorded>("smollm2_tokenizer.json.gz").chats;
    assert!(chats.len() > 3, "something was recorded");
    for Chat { messages, prompt, record } in chats {
        assert_eq!(template.render(&messages, &ChatOptions::default()).unwrap(), prompt);
        assert_eq!(template.render(&messages, &without_prompt()).unwrap(), record);
    }
}

#[test]
fn the_built_in_model_talks_in_chat_ml() {
    let template = ChatTemplate::of(&Checkpoint::tiny(1)).unwrap().expect("built in");
    let text = template.render(&[says("system", "Be brief."), says("user", "Hi")], &ChatOptions::default());
    let expected = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n";
    assert_eq!(text.unwrap(), expected);
}

/// The file of its own first; else the configuration's, by name where there are several.
#[test]
fn a_folders_template_is_found() {
    let folder = Folder::of(&small(Architecture::Llama), 1, "template");
    folder.change("config.json", |config| config["rope_scaling"] = serde_json::Value::Null);
    let said = || {
        let model = Checkpoint::open(folder.path()).unwrap();
        let template = ChatTemplate::of(&model).unwrap()?;
        Some(template.render(&[says("user", "Hi")], &ChatOptions::default()).unwrap())
    };
    assert_eq!(said(), None);
    let token = json!({ "content": "<s>", "special": true });
    let config = |template: serde_json::Value| json!({ "bos_token": token, "chat_template": template }).to_string();
    folder.write("tokenizer_config.json", config("{{ bos_token }}one".into()));
    assert_eq!(said().as_deref(), Some("<s>one"));
    let named = json!([{ "name": "tool_use", "template": "two" }, { "name": "default", "template": "three" }]);
    folder.write("tokenizer_config.json", config(named));
    assert_eq!(said().as_deref(), Some("three"));
    folder.write("chat_template.jinja", "{{ bos_token }}four\n");
    assert_eq!(said().as_deref(), Some("<s>four"));
}

#[test]
fn what_templates_call_is_there() {
    let date = ChatOptions { now: UNIX_EPOCH + Duration::from_secs(1_722_006_123), ..ChatOptions::default() };
    assert_eq!(written("{{ strftime_now('%d %b %Y') }}", &date), "26 Jul 2024");
    let tool: Value =
        serde_json::from_str(r#"{ "type": "function", "function": { "name": "é<" }, "a": [1, 2.5, null] }"#).unwrap();
    let tools = ChatOptions { variables: [("tools".to_owned(), tool)].into(), ..ChatOptions::default() };
    assert_eq!(
        written("{{ tools | tojson }}", &tools),
        r#"{"type": "function", "function": {"name": "é<"}, "a": [1, 2.5, null]}"#
    );
    assert_eq!(written("{{ tools['function'] | tojson(indent=2) }}", &tools), "{\n  \"name\": \"é<\"\n}");
    let plain = &ChatOptions::default();
    assert_eq!(written("{{ 'a.b'.split('.')[-1].strip() + messages[0].content.upper() }}", plain), "bHI");
    assert_eq!(written("{% if tools is iterable and tools | length > 0 %}a{% else %}b{% endif %}", plain), "b");
    assert_eq!(written("{% for m in messages %}\n  {% if true %}\nx\n  {% endif %}\n{% endfor %}\n", plain), "x\n");
}

/// What somebody says is never run.
#[test]
fn a_remark_that_looks_like_a_template_is_text() {
    let remark = "{{ 7 * 7 }}{% raw %}{{ bos_token }}";
    let text = template("{{ messages[0].content }}").render(&[says("user", remark)], &ChatOptions::default());
    assert_eq!(text.unwrap(), remark);
}

#[test]
fn what_goes_wrong_is_told_in_a_sentence() {
    let plain = &ChatOptions::default();
    assert_eq!(
        written("{{ raise_exception('roles must alternate') }}", plain),
        "the model's chat template refuses the conversation: roles must alternate"
    );
    assert_eq!(
        written("a\n{{ messages.b.c }}", plain),
        "the model's chat template failed: undefined value: `messages.b` is undefined, in line 2"
    );
    assert!(
        written("{% for a in range(90000) %}{% for b in range(90000) %}{% endfor %}{% endfor %}", plain)
            .starts_with("the model's chat template failed: engine ran out of fuel")
    );
    let error = template("x").render(&[says("wizard", "Hi")], plain).unwrap_err();
    assert_eq!(error.to_string(), "no role is called `wizard`: there are system, user, assistant, tool, developer");
    let error = ChatTemplate::new("{% for %}", "", "").err().expect("refused");
    assert!(error.to_string().starts_with("damaged: its chat template: syntax error: "), "{error}");
    assert!(error.to_string().ends_with(", in line 1"), "{error}");
}
