//! A BERT sentence encoder as launches of kernels: tokens in, a vector of length 1 out.
//!
//! One launch a stage, one sentence at a time, so that every weight is used for all tokens of a sentence
//! before the next is touched, in about the order of the file. How a launch is split into items depends
//! on the shapes alone; the kernels promise that not even that can be seen in the result.

use anyhow::{Result, ensure};
use gmm_kernels::Word;
use gmm_kernels::linear::ROWS_AT_ONCE;

use super::accelerator::{Accelerator, Unified};
use super::config::Config;
use super::weights::Weights;

/// Addresses of a matrix and its bias, and its shape.
struct Linear {
    weight: u64,
    bias: u64,
    nr_in: usize,
    nr_out: usize,
}

/// Addresses of the scale and shift of a normalisation.
struct Norm {
    gamma: u64,
    beta: u64,
}

struct Layer {
    query: Linear,
    key: Linear,
    value: Linear,
    attention_out: Linear,
    attention_norm: Norm,
    up: Linear,
    down: Linear,
    out_norm: Norm,
}

/// The network, its weights in place.
pub struct Encoder<'a> {
    machine: &'a dyn Accelerator,
    config: Config,
    words: u64,
    positions: u64,
    kind: u64,
    norm: Norm,
    layers: Vec<Layer>,
    /// Owns what the addresses point at.
    _weights: Weights,
}

/// Where the activations of one sentence lie: one compact run of memory, used again for each sentence.
struct Activations {
    /// (tokens, hidden): what flows from layer to layer.
    x: u64,
    /// (tokens, hidden): what a half-layer adds to it.
    delta: u64,
    /// (tokens, hidden) each, or (tokens, intermediate) as one.
    query: u64,
    key: u64,
    value: u64,
}

impl<'a> Encoder<'a> {
    /// Finds the tensors and checks their shapes.
    ///
    /// # Errors
    /// If a tensor is missing or has another type or shape than `config` says.
    pub fn new(machine: &'a dyn Accelerator, config: Config, weights: Weights) -> Result<Self> {
        let bare = "embeddings.word_embeddings.weight";
        let prefix =
            if !weights.has(bare) && weights.has(&format!("bert.{bare}")) { "bert." } else { "" };
        let hidden = config.hidden_size;
        let find = |name: &str, shape: &[usize]| weights.find(&format!("{prefix}{name}"), shape);
        let table = |name: &str, rows| find(&format!("embeddings.{name}.weight"), &[rows, hidden]);
        let norm = |name: &str| -> Result<Norm> {
            Ok(Norm {
                gamma: find(&format!("{name}.weight"), &[hidden])?,
                beta: find(&format!("{name}.bias"), &[hidden])?,
            })
        };
        let linear = |name: &str, nr_out, nr_in| -> Result<Linear> {
            let weight = find(&format!("{name}.weight"), &[nr_out, nr_in])?;
            let bias = find(&format!("{name}.bias"), &[nr_out])?;
            Ok(Linear { weight, bias, nr_in, nr_out })
        };
        let layer = |number| -> Result<Layer> {
            let at = |name: &str| format!("encoder.layer.{number}.{name}");
            let square = |name: &str| linear(&at(name), hidden, hidden);
            Ok(Layer {
                query: square("attention.self.query")?,
                key: square("attention.self.key")?,
                value: square("attention.self.value")?,
                attention_out: square("attention.output.dense")?,
                attention_norm: norm(&at("attention.output.LayerNorm"))?,
                up: linear(&at("intermediate.dense"), config.intermediate_size, hidden)?,
                down: linear(&at("output.dense"), hidden, config.intermediate_size)?,
                out_norm: norm(&at("output.LayerNorm"))?,
            })
        };
        Ok(Self {
            machine,
            words: table("word_embeddings", config.vocab_size)?,
            positions: table("position_embeddings", config.max_position_embeddings)?,
            kind: table("token_type_embeddings", config.type_vocab_size)?,
            norm: norm("embeddings.LayerNorm")?,
            layers: (0..config.num_hidden_layers).map(layer).collect::<Result<_>>()?,
            _weights: weights,
            config,
        })
    }

    /// The vectors of `sentences`, each given as its tokens. `progress` is told how many launches of how
    /// many are done.
    ///
    /// # Errors
    /// If a sentence is empty, too long or has a token outside the vocabulary; if memory or a launch fails.
    pub fn encode(
        &self,
        sentences: &[Vec<u32>],
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<Vec<Vec<f32>>> {
        self.check(sentences)?;
        let Some(longest) = sentences.iter().map(Vec::len).max() else {
            return Ok(Vec::new());
        };
        let width = self.config.hidden_size;
        let (mut ids, starts) = self.place_tokens(sentences)?;
        let mut results = self.machine.alloc("results", sentences.len() * width * 4)?;
        let (mut scratch, offsets) = self.scratch(longest)?;
        let total = sentences.len() * (2 + 9 * self.layers.len());
        let mut done = 0;
        for (number, sentence) in sentences.iter().enumerate() {
            let at = offsets.map(|offset| scratch.address(offset));
            let run = Run {
                machine: self.machine,
                nr_tokens: sentence.len(),
                config: &self.config,
                at: Activations { x: at[0], delta: at[1], query: at[2], key: at[3], value: at[4] },
                done: &mut || {
                    done += 1;
                    progress(done, total);
                },
            };
            let (ids, result) = (ids.address(starts[number]), results.address(number * width * 4));
            // SAFETY: weights have the shapes that `new` checked, tokens were checked above, and the
            // activations and results are as large as the sentence needs.
            unsafe { run.sentence(self, ids, result)? };
        }
        Ok((0..sentences.len()).map(|number| results.f32s(number * width, width)).collect())
    }

    fn check(&self, sentences: &[Vec<u32>]) -> Result<()> {
        for (number, sentence) in sentences.iter().enumerate() {
            let (tokens, most) = (sentence.len(), self.config.max_tokens());
            ensure!(
                (1..=most).contains(&tokens),
                "sentence {number} has {tokens} tokens, not 1 to {most}"
            );
            let words = self.config.vocab_size;
            if let Some(id) = sentence.iter().find(|id| **id as usize >= words) {
                anyhow::bail!("sentence {number} has token {id}, the vocabulary {words} words");
            }
        }
        Ok(())
    }

    /// The tokens of all sentences in unified memory, and where each sentence's begin.
    fn place_tokens(&self, sentences: &[Vec<u32>]) -> Result<(Unified, Vec<usize>)> {
        let len_bytes = sentences.iter().map(|sentence| sentence.len() * 4).sum();
        let mut memory = self.machine.alloc("tokens", len_bytes)?;
        let mut starts = Vec::new();
        let mut start = 0;
        for sentence in sentences {
            starts.push(start);
            for id in sentence {
                memory[start..start + 4].copy_from_slice(&id.to_ne_bytes());
                start += 4;
            }
        }
        Ok((memory, starts))
    }

    /// Memory for the activations of up to `nr_tokens` tokens, and the offsets of their parts.
    fn scratch(&self, nr_tokens: usize) -> Result<(Unified, [usize; 5])> {
        // Parts begin on a cache line.
        let part = (nr_tokens * self.config.hidden_size * 4).next_multiple_of(64);
        let wide = nr_tokens * self.config.intermediate_size * 4;
        let memory = self.machine.alloc("activations", 2 * part + wide.max(3 * part))?;
        Ok((memory, [0, part, 2 * part, 3 * part, 4 * part]))
    }
}

/// One sentence on its way through the network.
struct Run<'a, F> {
    machine: &'a dyn Accelerator,
    config: &'a Config,
    nr_tokens: usize,
    at: Activations,
    done: F,
}

impl<F: FnMut()> Run<'_, F> {
    /// # Safety
    /// The encoder's weights have the shapes of `config`; `ids` are `nr_tokens` words of the vocabulary;
    /// the activations are large enough and used by nobody else, as are the `hidden_size` elements at
    /// `result`.
    unsafe fn sentence(mut self, encoder: &Encoder<'_>, ids: u64, result: u64) -> Result<()> {
        let Activations { x, delta, query, key, value } = self.at;
        let (tokens, hidden) = (self.nr_tokens.into_word(), self.config.hidden_size.into_word());
        let epsilon = self.config.layer_norm_eps.into_word();
        let heads = self.config.num_attention_heads;
        let head_width = self.config.head_width().into_word();
        let per_row = self.nr_tokens.div_ceil(4);
        let per_head = heads * self.nr_tokens.div_ceil(8);
        let heads = heads.into_word();
        // SAFETY: shapes promised by the caller. No stage's output overlaps its inputs, except that
        // attention's may be its query, and `add_norm` works in place.
        unsafe {
            let Encoder { words, positions, kind, norm: Norm { gamma, beta }, .. } = *encoder;
            let args = [ids, words, positions, kind, gamma, beta, epsilon, x, tokens, hidden];
            self.launch("embed", per_row, &args)?;
            for layer in &encoder.layers {
                self.linear("linear", &layer.query, x, query)?;
                self.linear("linear", &layer.key, x, key)?;
                self.linear("linear", &layer.value, x, value)?;
                let args = [query, key, value, query, tokens, heads, head_width];
                self.launch("attention", per_head, &args)?;
                self.linear("linear", &layer.attention_out, query, delta)?;
                let Norm { gamma, beta } = layer.attention_norm;
                let args = [x, delta, gamma, beta, epsilon, tokens, hidden];
                self.launch("add_norm", per_row, &args)?;
                self.linear("linear_gelu", &layer.up, x, query)?;
                self.linear("linear", &layer.down, query, delta)?;
                let Norm { gamma, beta } = layer.out_norm;
                let args = [x, delta, gamma, beta, epsilon, tokens, hidden];
                self.launch("add_norm", per_row, &args)?;
            }
            self.launch("mean_pool", 1, &[x, result, tokens, hidden])
        }
    }

    /// # Safety
    /// As the kernel: `x` and `y` have `nr_tokens` rows of the layer's widths and don't overlap.
    unsafe fn linear(&mut self, kernel: &str, layer: &Linear, x: u64, y: u64) -> Result<()> {
        let Linear { weight, bias, nr_in, nr_out } = *layer;
        let tokens = self.nr_tokens.into_word();
        let args = [weight, bias, x, y, tokens, nr_in.into_word(), nr_out.into_word()];
        // SAFETY: promised by the caller.
        unsafe { self.launch(kernel, nr_out.div_ceil(ROWS_AT_ONCE), &args) }
    }

    /// # Safety
    /// As [`Accelerator::launch`].
    unsafe fn launch(&mut self, kernel: &str, nr_items: usize, args: &[u64]) -> Result<()> {
        // SAFETY: promised by the caller.
        unsafe { self.machine.launch(kernel, nr_items as u64, args)? };
        (self.done)();
        Ok(())
    }
}

/// The names and shapes of the tensors that an encoder of this shape uses, in the order of use.
pub(crate) fn tensor_shapes(config: &Config) -> Vec<(String, Vec<usize>)> {
    let (hidden, wide) = (config.hidden_size, config.intermediate_size);
    let mut tensors = Vec::new();
    let mut add = |name: String, shape: &[usize]| tensors.push((name, shape.to_vec()));
    add("embeddings.LayerNorm.bias".to_owned(), &[hidden]);
    add("embeddings.LayerNorm.weight".to_owned(), &[hidden]);
    for (name, rows) in [
        ("position_embeddings", config.max_position_embeddings),
        ("token_type_embeddings", config.type_vocab_size),
        ("word_embeddings", config.vocab_size),
    ] {
        add(format!("embeddings.{name}.weight"), &[rows, hidden]);
    }
    for layer in 0..config.num_hidden_layers {
        for (name, nr_out, nr_in, norm) in [
            ("attention.self.query", hidden, hidden, None),
            ("attention.self.key", hidden, hidden, None),
            ("attention.self.value", hidden, hidden, None),
            ("attention.output.dense", hidden, hidden, Some("attention.output.LayerNorm")),
            ("intermediate.dense", wide, hidden, None),
            ("output.dense", hidden, wide, Some("output.LayerNorm")),
        ] {
            add(format!("encoder.layer.{layer}.{name}.bias"), &[nr_out]);
            add(format!("encoder.layer.{layer}.{name}.weight"), &[nr_out, nr_in]);
            if let Some(norm) = norm {
                add(format!("encoder.layer.{layer}.{norm}.bias"), &[hidden]);
                add(format!("encoder.layer.{layer}.{norm}.weight"), &[hidden]);
            }
        }
    }
    tensors
}
