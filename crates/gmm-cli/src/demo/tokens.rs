//! From text to token numbers.

use std::path::Path;

use anyhow::{Result, anyhow, ensure};
use tokenizers::{Tokenizer, TruncationParams};

/// A tokenizer, without padding, that cuts sentences off after a number of tokens.
pub enum Tokens {
    /// The model's own.
    Model(Box<Tokenizer>),
    /// For random weights, which have no vocabulary: a number from the letters of each word.
    Hashed {
        /// How many words the table has.
        vocab_size: usize,
        /// The longest sentence.
        max_tokens: usize,
    },
}

/// Begins each sentence.
const BEGIN: u32 = 101;
/// Ends each sentence.
const END: u32 = 102;

impl Tokens {
    /// Reads a model's `tokenizer.json`.
    ///
    /// # Errors
    /// If it can't be read, is not valid, or can't cut off at `max_tokens`.
    pub fn read(path: &Path, max_tokens: usize) -> Result<Self> {
        let failed = |error| anyhow!("can't use the tokenizer {}: {error}", path.display());
        let mut tokenizer = Tokenizer::from_file(path).map_err(failed)?;
        tokenizer.with_padding(None);
        let truncation = TruncationParams { max_length: max_tokens, ..TruncationParams::default() };
        tokenizer.with_truncation(Some(truncation)).map_err(failed)?;
        Ok(Self::Model(Box::new(tokenizer)))
    }

    /// The tokens of `text`, with those that begin and end a sentence.
    ///
    /// # Errors
    /// If the text can't be encoded, or has a token that the model's table of `vocab_size` words lacks.
    pub fn encode(&self, text: &str, vocab_size: usize) -> Result<Vec<u32>> {
        let ids = match self {
            Self::Model(tokenizer) => tokenizer
                .encode(text, true)
                .map_err(|error| anyhow!("can't make tokens of {text:?}: {error}"))?
                .get_ids()
                .to_vec(),
            Self::Hashed { vocab_size, max_tokens } => hashed(text, *vocab_size, *max_tokens),
        };
        ensure!(!ids.is_empty(), "the tokenizer makes no tokens of {text:?}");
        if let Some(id) = ids.iter().find(|id| **id as usize >= vocab_size) {
            return Err(anyhow!(
                "token {id} of {text:?} is outside the vocabulary of {vocab_size}"
            ));
        }
        Ok(ids)
    }
}

fn hashed(text: &str, vocab_size: usize, max_tokens: usize) -> Vec<u32> {
    let limit = |id: u64| (id % vocab_size as u64) as u32;
    let word = |word: &str| {
        // FNV-1a; ids from 1,000 on are whole words in the vocabulary of BERT.
        let hash = word.to_lowercase().bytes().fold(0xCBF2_9CE4_8422_2325, |hash: u64, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01B3)
        });
        let first = 1_000.min(vocab_size as u64 - 1);
        (first + hash % (vocab_size as u64 - first)) as u32
    };
    std::iter::once(limit(BEGIN.into()))
        .chain(text.split_whitespace().map(word).take(max_tokens - 2))
        .chain([limit(END.into())])
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashed_tokens_are_framed_cut_off_and_within_the_table() {
        let tokens = Tokens::Hashed { vocab_size: 30_522, max_tokens: 256 };
        let ids = tokens.encode("One pointer, one POINTER,", 30_522).unwrap();
        assert_eq!((ids.len(), ids[0], ids[5]), (6, BEGIN, END));
        assert_eq!((ids[1], ids[2]), (ids[3], ids[4]));
        assert!(ids[1..5].iter().all(|id| *id >= 1_000));
        let long = tokens.encode(&"word ".repeat(1_000), 30_522).unwrap();
        assert_eq!((long.len(), long[255]), (256, END));
        let tiny = Tokens::Hashed { vocab_size: 1, max_tokens: 16 };
        assert_eq!(tiny.encode("a b", 1).unwrap(), [0; 4]);
    }

    #[test]
    fn a_token_outside_the_table_is_named() {
        let tokens = Tokens::Hashed { vocab_size: 30_522, max_tokens: 256 };
        let message = tokens.encode("x", 50).unwrap_err().to_string();
        assert!(
            message.contains("token 101 of \"x\" is outside the vocabulary of 50"),
            "{message}"
        );
    }

    #[test]
    fn a_missing_tokenizer_is_named() {
        let error = Tokens::read(Path::new("/nonexistent/tokenizer.json"), 256).err().unwrap();
        assert!(error.to_string().contains("/nonexistent/tokenizer.json"), "{error}");
    }
}
