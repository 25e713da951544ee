//! The whole encoder on the CPU alone: right answers, and the same bits whatever the cores.

use std::path::{Path, PathBuf};

use gmm_cli::demo::config::Config;
use gmm_cli::demo::cpu_only::CpuOnly;
use gmm_cli::demo::encoder::Encoder;
use gmm_cli::demo::model::{FOLDER_VARIABLE, Model, Source, search};
use gmm_cli::demo::random;
use gmm_cli::demo::reference::{Reference, TOLERANCE};

fn reference() -> Reference {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/minilm_reference.json");
    Reference::read(Path::new(path)).unwrap()
}

/// The model that `GMM_MODEL_DIR` names or `cargo xtask demo` left behind; without it the test says so
/// and is skipped.
fn model() -> Option<Model> {
    let folder = std::env::var_os(FOLDER_VARIABLE).map(PathBuf::from).or_else(|| {
        let target = concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/models");
        search(Path::new(target), 4)
    });
    if folder.is_none() {
        eprintln!("SKIPPED: no model in target/models and no {FOLDER_VARIABLE}");
    }
    folder.map(|folder| Model::open(Source::Folder(folder)).unwrap())
}

fn run(model: &Model, nr_cores: usize, sentences: &[Vec<u32>]) -> Vec<Vec<f32>> {
    let machine = CpuOnly::new(nr_cores);
    let weights = model.weights(&machine, &mut |_, _| {}).unwrap();
    let encoder = Encoder::new(&machine, model.config.clone(), weights).unwrap();
    encoder.encode(sentences, &mut |_, _| {}).unwrap()
}

#[test]
fn tokens_are_those_of_the_reference() {
    let Some(model) = model() else { return };
    for case in reference().cases {
        let tokens = model.tokens.encode(&case.text, model.config.vocab_size).unwrap();
        assert_eq!(Some(tokens), case.token_ids, "{:?}", case.text);
    }
}

#[test]
fn long_texts_are_cut_off_and_nothing_is_padded() {
    let Some(model) = model() else { return };
    let encode = |text: &str| model.tokens.encode(text, model.config.vocab_size).unwrap();
    assert_eq!(encode(&"memory ".repeat(1_000)).len(), 256);
    assert_eq!(encode("").len(), 2);
    assert_eq!(encode("memory").len(), 3);
}

#[test]
fn vectors_are_those_of_the_reference_on_any_number_of_cores() {
    let Some(model) = model() else { return };
    let cases = reference().cases;
    let sentences: Vec<Vec<u32>> = cases
        .iter()
        .map(|case| model.tokens.encode(&case.text, model.config.vocab_size).unwrap())
        .collect();
    let one = run(&model, 1, &sentences);
    for ((case, tokens), vector) in cases.iter().zip(&sentences).zip(&one) {
        let worst = case.compare(tokens, vector).unwrap();
        assert!(worst <= TOLERANCE, "{:?}: {worst:e}", case.text);
        // Far within what is allowed, or something is subtly wrong.
        assert!(worst <= 1e-6, "{:?}: {worst:e}", case.text);
    }
    assert!(run(&model, 5, &sentences) == one, "5 cores give other bits than 1");
}

/// A small encoder, so that this runs everywhere in no time.
fn small() -> Config {
    Config {
        hidden_size: 48,
        intermediate_size: 100,
        num_attention_heads: 4,
        num_hidden_layers: 2,
        max_position_embeddings: 64,
        vocab_size: 500,
        ..Config::minilm()
    }
}

#[test]
fn random_weights_give_the_same_bits_on_any_number_of_cores_and_in_any_company() {
    let sentences: Vec<Vec<u32>> =
        (1..=20).map(|len| (0..len).map(|i| (i * 37 + len) % 500).collect()).collect();
    let run = |nr_cores, sentences: &[Vec<u32>]| {
        let machine = CpuOnly::new(nr_cores);
        let weights = random::weights(&machine, &small(), 1).unwrap();
        let encoder = Encoder::new(&machine, small(), weights).unwrap();
        encoder.encode(sentences, &mut |_, _| {}).unwrap()
    };
    let one = run(1, &sentences);
    assert!(run(4, &sentences) == one);
    // Alone, a sentence's activations lie elsewhere in a smaller run of memory.
    assert_eq!(run(3, &sentences[6..7])[0], one[6]);
    for vector in &one {
        let length: f64 = vector.iter().map(|x| f64::from(*x) * f64::from(*x)).sum();
        assert!((length - 1.0).abs() < 1e-6, "length {length}");
    }
    assert_ne!(one[3], one[4]);
}

#[test]
fn sentences_that_do_not_fit_are_refused_before_anything_runs() {
    let machine = CpuOnly::new(1);
    let weights = random::weights(&machine, &small(), 1).unwrap();
    let encoder = Encoder::new(&machine, small(), weights).unwrap();
    let refuse = |sentence: Vec<u32>| {
        let mut launches = 0;
        let sentences = [vec![1], sentence];
        let error = encoder.encode(&sentences, &mut |_, _| launches += 1).unwrap_err();
        assert_eq!(launches, 0);
        error.to_string()
    };
    assert_eq!(refuse(vec![]), "sentence 1 has 0 tokens, not 1 to 64");
    assert_eq!(refuse(vec![1; 65]), "sentence 1 has 65 tokens, not 1 to 64");
    assert_eq!(refuse(vec![1, 500]), "sentence 1 has token 500, the vocabulary 500 words");
    assert!(encoder.encode(&[], &mut |_, _| {}).unwrap().is_empty());
}

#[test]
fn a_tensor_of_another_shape_is_named() {
    let machine = CpuOnly::new(1);
    let weights = random::weights(&machine, &small(), 1).unwrap();
    let config = Config { intermediate_size: 99, ..small() };
    let message = Encoder::new(&machine, config, weights).err().unwrap().to_string();
    assert_eq!(
        message,
        "tensor \"encoder.layer.0.intermediate.dense.weight\" has the shape [100, 48], \
         the configuration says [99, 48]"
    );
}
