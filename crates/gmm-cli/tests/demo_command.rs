//! `gmm demo` from the outside.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output};

/// A folder that is gone afterwards.
struct TempDir(PathBuf);

impl TempDir {
    fn new(name: &str) -> Self {
        let path =
            std::env::temp_dir().join(format!("gmm-demo-command-{}-{name}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn file(&self, name: &str, contents: impl AsRef<[u8]>) -> String {
        let path = self.0.join(name);
        fs::write(&path, contents).unwrap();
        path.to_str().unwrap().to_owned()
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn demo(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_gmm"))
        .args(["demo", "--cpu-only"])
        .args(args)
        .env_remove("GMM_MODEL_DIR")
        .current_dir(std::env::temp_dir())
        .output()
        .unwrap()
}

/// The error message of a run that must fail, and must not have printed a result.
fn refused(args: &[&str]) -> String {
    let output = demo(args);
    assert!(!output.status.success(), "{args:?} was taken");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "", "{args:?}");
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn json_is_one_object_on_the_standard_output() {
    let output = demo(&["--random-weights", "--json", "one text", "another text"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(String::from_utf8_lossy(&output.stderr).contains("Random weights"));
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json["cases"].as_array().unwrap().len(), 2);
    assert_eq!(json["cases"][1]["text"], "another text");
    assert_eq!(json["cases"][0]["embedding"].as_array().unwrap().len(), 384);
    assert!(json["max_abs_error"].is_null());
    assert!(json["weights_bytes"].as_u64().unwrap() > 80_000_000);
    assert!(json["seconds"].as_f64().unwrap() > 0.0);
}

#[test]
fn texts_come_from_a_file_without_its_blank_lines() {
    let dir = TempDir::new("texts");
    let file = dir.file("texts", "\u{feff}erste Zeile\r\n\n   \nnaïve line");
    let output = demo(&["--random-weights", "--json", "--texts", &file]);
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json["cases"].as_array().unwrap().len(), 2);
    assert_eq!(json["cases"][0]["text"], "erste Zeile");
    assert_eq!(json["cases"][1]["text"], "naïve line");
}

#[test]
fn bad_input_is_named() {
    let dir = TempDir::new("bad");
    let empty = dir.file("empty", "\n \n");
    let latin = dir.file("latin", b"good\ncaf\xe9\n");
    let bare = dir.0.to_str().unwrap();
    let cases: [(&[&str], &[&str]); 9] = [
        (&["--texts", "/nonexistent/texts"], &["/nonexistent/texts"]),
        (&["--texts", &empty], &[&empty, "has no texts"]),
        (&["--texts", &latin], &[&latin, "not UTF-8", "line 2", "byte 8"]),
        (&["--model", "/nonexistent/model"], &["no model folder /nonexistent/model"]),
        (&["--model", &empty], &[&empty, "is no folder"]),
        (&["--model", bare], &[bare, "has no file model.safetensors"]),
        (&["--reference", &empty], &[&empty, "is no reference file"]),
        (&["--xpu-memory", "24MB"], &["24MB", "none of B, KiB, MiB, GiB"]),
        (&["--xpu-cores", "0"], &["--xpu-cores", "0"]),
    ];
    for (args, expected) in cases {
        let message = refused(args);
        for part in expected {
            assert!(message.contains(part), "{args:?}: {message:?} lacks {part:?}");
        }
    }
}

#[test]
fn a_model_that_is_broken_is_refused_before_it_runs() {
    let dir = TempDir::new("model");
    let folder = dir.0.to_str().unwrap();
    dir.file("model.safetensors", [0xFF; 8]);
    dir.file("tokenizer.json", "{}");
    dir.file("config.json", "{\"hidden_size\": 384}");
    let message = refused(&["--model", folder]);
    assert!(message.contains("config.json does not describe a BERT encoder"), "{message}");
    assert!(message.contains("intermediate_size"), "{message}");
    let config = r#"{"hidden_size": 384, "intermediate_size": 1536, "num_attention_heads": 12,
        "num_hidden_layers": 6, "max_position_embeddings": 512, "vocab_size": 30522,
        "type_vocab_size": 2, "layer_norm_eps": 1e-12, "hidden_act": "gelu"}"#;
    dir.file("config.json", config);
    let message = refused(&["--model", folder]);
    assert!(message.contains("can't use the tokenizer"), "{message}");
}
