//! The shape of a BERT encoder, from the model's `config.json`.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use gmm_kernels::attention::{MAX_HEAD_WIDTH, MAX_TOKENS};
use serde::Deserialize;

/// Sentences are cut off after this many tokens, as the model's makers did.
pub const MAX_SENTENCE_TOKENS: usize = 256;

/// The numbers that say which encoder it is. The names are those of the file.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Config {
    /// Elements of a token's vector.
    pub hidden_size: usize,
    /// Elements between the two products of the feed-forward part.
    pub intermediate_size: usize,
    /// Heads of the attention; they share the hidden size.
    pub num_attention_heads: usize,
    /// Layers.
    pub num_hidden_layers: usize,
    /// Rows of the table of positions.
    pub max_position_embeddings: usize,
    /// Rows of the table of words.
    pub vocab_size: usize,
    /// Rows of the table of token types, of which the first is used.
    pub type_vocab_size: usize,
    /// What layer normalisation adds to the variance.
    pub layer_norm_eps: f32,
    /// The curve of the feed-forward part: `gelu` is the exact one, with the error function.
    pub hidden_act: String,
}

impl Config {
    /// The shape of all-MiniLM-L6-v2.
    pub fn minilm() -> Self {
        Self {
            hidden_size: 384,
            intermediate_size: 1536,
            num_attention_heads: 12,
            num_hidden_layers: 6,
            max_position_embeddings: 512,
            vocab_size: 30_522,
            type_vocab_size: 2,
            layer_norm_eps: 1e-12,
            hidden_act: "gelu".to_owned(),
        }
    }

    /// Reads and checks a `config.json`.
    ///
    /// # Errors
    /// If the file can't be read, lacks a field, or describes an encoder that the kernels can't run.
    pub fn read(path: &Path) -> Result<Self> {
        let text = std::fs::read(path).with_context(|| format!("can't read {}", path.display()))?;
        let config: Self = serde_json::from_slice(&text)
            .with_context(|| format!("{} does not describe a BERT encoder", path.display()))?;
        config.check().with_context(|| format!("can't run the model of {}", path.display()))?;
        Ok(config)
    }

    fn check(&self) -> Result<()> {
        let sizes = [
            ("hidden_size", self.hidden_size, 1..=65_536),
            ("intermediate_size", self.intermediate_size, 1..=262_144),
            ("num_attention_heads", self.num_attention_heads, 1..=self.hidden_size),
            ("num_hidden_layers", self.num_hidden_layers, 1..=1_024),
            ("max_position_embeddings", self.max_position_embeddings, 16..=1 << 20),
            ("vocab_size", self.vocab_size, 1..=1 << 24),
            ("type_vocab_size", self.type_vocab_size, 1..=1 << 16),
        ];
        for (name, size, range) in sizes {
            ensure!(
                range.contains(&size),
                "{name} is {size}, not within {} to {}",
                range.start(),
                range.end()
            );
        }
        ensure!(
            self.hidden_size.is_multiple_of(self.num_attention_heads),
            "hidden_size {} can't be split among {} heads",
            self.hidden_size,
            self.num_attention_heads
        );
        ensure!(
            self.head_width() <= MAX_HEAD_WIDTH,
            "heads are {} wide, more than the {MAX_HEAD_WIDTH} that the kernel takes",
            self.head_width()
        );
        ensure!(self.hidden_act == "gelu", "hidden_act is {:?}, not \"gelu\"", self.hidden_act);
        ensure!(
            self.layer_norm_eps.is_finite() && self.layer_norm_eps >= 0.0,
            "layer_norm_eps is {}",
            self.layer_norm_eps
        );
        Ok(())
    }

    /// Elements of a head.
    pub fn head_width(&self) -> usize {
        self.hidden_size / self.num_attention_heads
    }

    /// The longest sentence that is run, in tokens.
    pub fn max_tokens(&self) -> usize {
        MAX_SENTENCE_TOKENS.min(self.max_position_embeddings).min(MAX_TOKENS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_built_in_shape_is_one_that_runs() {
        let config = Config::minilm();
        config.check().unwrap();
        assert_eq!((config.head_width(), config.max_tokens()), (32, 256));
    }

    #[test]
    fn what_the_kernels_cannot_run_is_refused_by_name() {
        type Change = fn(&mut Config);
        let cases: [(&str, Change); 6] = [
            ("hidden_size is 0", |c| c.hidden_size = 0),
            ("among 7 heads", |c| c.num_attention_heads = 7),
            ("384 wide", |c| c.num_attention_heads = 1),
            ("\"relu\"", |c| c.hidden_act = "relu".to_owned()),
            ("layer_norm_eps", |c| c.layer_norm_eps = f32::NAN),
            ("max_position_embeddings is 3", |c| c.max_position_embeddings = 3),
        ];
        for (expected, change) in cases {
            let mut config = Config::minilm();
            change(&mut config);
            let message = config.check().unwrap_err().to_string();
            assert!(message.contains(expected), "{message:?} lacks {expected:?}");
        }
    }
}
