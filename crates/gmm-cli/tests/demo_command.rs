//! `gmm demo` from the outside.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use gmm_cli::demo::model::{FOLDER_VARIABLE, search};

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

/// The model that `GMM_MODEL_DIR` names or `cargo xtask demo` left behind; without it the test says so
/// and is skipped.
fn model() -> Option<String> {
    let folder = std::env::var_os(FOLDER_VARIABLE).map(PathBuf::from).or_else(|| {
        search(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/models")), 4)
    });
    if folder.is_none() {
        eprintln!("SKIPPED: no model in target/models and no {FOLDER_VARIABLE}");
    }
    folder.map(|folder| folder.to_str().unwrap().to_owned())
}

#[test]
fn an_answer_beyond_the_tolerance_is_a_failure_and_still_printed() {
    let Some(model) = model() else { return };
    let known = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/minilm_reference.json");
    let mut reference: serde_json::Value =
        serde_json::from_slice(&fs::read(known).unwrap()).unwrap();
    reference["cases"].as_array_mut().unwrap().truncate(2);
    let dir = TempDir::new("reference");
    let good = dir.file("good", reference.to_string());
    let component = &mut reference["cases"][1]["embedding"][383];
    *component = (component.as_f64().unwrap() + 2e-4).into();
    let wrong = dir.file("wrong", reference.to_string());

    let output = demo(&["--model", &model, "--json", "--reference", &good]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let output = demo(&["--model", &model, "--json", "--reference", &wrong]);
    assert!(!output.status.success());
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(message.contains("beyond the 1e-4 allowed"), "{message}");
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let errors: Vec<f64> =
        (0..2).map(|n| json["cases"][n]["max_abs_error"].as_f64().unwrap()).collect();
    assert!(errors[0] < 1e-6 && (errors[1] - 2e-4).abs() < 1e-6, "{errors:?}");
    assert_eq!(json["max_abs_error"], errors[1]);

    let output =
        demo(&["--model", &model, "--json", "--reference", &good, "GPU out of memory", "new"]);
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(json["cases"][0]["max_abs_error"].is_number());
    assert!(json["cases"][1].get("max_abs_error").is_none());
    let message = refused(&["--model", &model, "--reference", &good, "unknown"]);
    assert!(message.contains("knows none of the 1 texts"), "{message}");
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
