//! Known answers to compare with.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

/// How far a component may be from its reference.
pub const TOLERANCE: f64 = 1e-4;

/// A file of known answers.
#[derive(Debug, Deserialize)]
pub struct Reference {
    /// Texts and their vectors.
    pub cases: Vec<ReferenceCase>,
}

/// One text and its vector.
#[derive(Debug, Deserialize)]
pub struct ReferenceCase {
    /// The text.
    pub text: String,
    /// Its tokens, if the file tells.
    pub token_ids: Option<Vec<u32>>,
    /// Its vector.
    pub embedding: Vec<f64>,
}

impl Reference {
    /// Reads a file of known answers.
    ///
    /// # Errors
    /// If it can't be read or has no case.
    pub fn read(path: &Path) -> Result<Self> {
        let bytes =
            std::fs::read(path).with_context(|| format!("can't read {}", path.display()))?;
        let reference: Self = serde_json::from_slice(&bytes)
            .with_context(|| format!("{} is no reference file", path.display()))?;
        ensure!(!reference.cases.is_empty(), "{} has no cases", path.display());
        Ok(reference)
    }

    /// The case of this text.
    pub fn find(&self, text: &str) -> Option<&ReferenceCase> {
        self.cases.iter().find(|case| case.text == text)
    }
}

impl ReferenceCase {
    /// The largest difference of a component; infinite if one is not a number.
    ///
    /// # Errors
    /// If the tokens or the number of components differ: then there is nothing to compare.
    pub fn compare(&self, tokens: &[u32], embedding: &[f32]) -> Result<f64> {
        if let Some(expected) = &self.token_ids {
            let same = expected.iter().zip(tokens).take_while(|(a, b)| a == b).count();
            ensure!(
                same == expected.len() && same == tokens.len(),
                "the tokens of {:?} differ from the reference from token {same} on ({} and {} tokens)",
                self.text,
                tokens.len(),
                expected.len()
            );
        }
        ensure!(
            self.embedding.len() == embedding.len(),
            "the reference of {:?} has {} components, the model {}",
            self.text,
            self.embedding.len(),
            embedding.len()
        );
        let differences =
            self.embedding.iter().zip(embedding).map(|(a, b)| (a - f64::from(*b)).abs());
        Ok(differences.fold(0.0, |most, x| if x.is_nan() { f64::INFINITY } else { most.max(x) }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn case(token_ids: Option<Vec<u32>>) -> ReferenceCase {
        ReferenceCase { text: "x".to_owned(), token_ids, embedding: vec![0.0, 0.5] }
    }

    #[test]
    fn the_largest_difference_counts() {
        assert_eq!(case(None).compare(&[1], &[0.25, 0.5]).unwrap(), 0.25);
        assert_eq!(case(Some(vec![1])).compare(&[1], &[0.0, -0.5]).unwrap(), 1.0);
        assert_eq!(case(None).compare(&[], &[f32::NAN, 0.5]).unwrap(), f64::INFINITY);
        assert_eq!(case(None).compare(&[], &[0.0, f32::INFINITY]).unwrap(), f64::INFINITY);
    }

    #[test]
    fn other_tokens_or_another_width_cannot_be_compared() {
        for tokens in [&[1, 3][..], &[1], &[1, 2, 3]] {
            let message = case(Some(vec![1, 2])).compare(tokens, &[0.0, 0.5]).unwrap_err();
            assert!(message.to_string().contains("from token 1") || tokens.len() == 3);
        }
        assert!(case(None).compare(&[], &[0.0]).is_err());
    }
}
