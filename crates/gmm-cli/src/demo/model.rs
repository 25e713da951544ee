//! Which model to run, and getting it into unified memory.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};

use super::accelerator::Accelerator;
use super::config::Config;
use super::random;
use super::tokens::Tokens;
use super::weights::Weights;

/// The file that makes a folder a model.
const WEIGHTS_FILE: &str = "model.safetensors";

/// The environment variable that names the folder of the model.
pub const FOLDER_VARIABLE: &str = "GMM_MODEL_DIR";

/// Where a model comes from.
#[derive(Clone, Debug, PartialEq)]
pub enum Source {
    /// A folder with `model.safetensors`, `config.json` and `tokenizer.json`.
    Folder(PathBuf),
    /// The shape of all-MiniLM-L6-v2 with weights from a seed.
    Random,
}

/// All that is known of a model apart from its weights.
pub struct Model {
    /// Its shape.
    pub config: Config,
    /// Its tokenizer.
    pub tokens: Tokens,
    /// Where it comes from, for people.
    pub origin: String,
    source: Source,
}

impl Model {
    /// Reads the small files of a model.
    ///
    /// # Errors
    /// If there is no such folder, or one of its files is missing or not valid.
    pub fn open(source: Source) -> Result<Self> {
        let folder = match &source {
            Source::Random => {
                let config = Config::minilm();
                let max_tokens = config.max_tokens();
                let tokens = Tokens::Hashed { vocab_size: config.vocab_size, max_tokens };
                let origin = format!("random, seed {:#x}", random::SEED);
                return Ok(Self { config, tokens, origin, source });
            }
            Source::Folder(folder) => folder,
        };
        let about = std::fs::metadata(folder)
            .with_context(|| format!("there is no model folder {}", folder.display()))?;
        ensure!(about.is_dir(), "{} is no folder", folder.display());
        for file in [WEIGHTS_FILE, "config.json", "tokenizer.json"] {
            if !folder.join(file).is_file() {
                bail!("the model folder {} has no file {file}", folder.display());
            }
        }
        let config = Config::read(&folder.join("config.json"))?;
        let tokens = Tokens::read(&folder.join("tokenizer.json"), config.max_tokens())?;
        let origin = folder.display().to_string();
        Ok(Self { config, tokens, origin, source })
    }

    /// Gets the weights into unified memory. `progress` is told how many bytes of how many are there.
    ///
    /// # Errors
    /// If the file is not valid or there is no memory.
    pub fn weights(
        &self,
        machine: &dyn Accelerator,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Weights> {
        match &self.source {
            Source::Folder(folder) => Weights::read(machine, &folder.join(WEIGHTS_FILE), progress),
            Source::Random => random::weights(machine, &self.config, random::SEED),
        }
    }
}

/// A model that an earlier run left on this machine: the folder that `GMM_MODEL_DIR` names, or one in
/// `target/models`, below the current folder or beside this program's own.
pub fn find_cached() -> Option<PathBuf> {
    if let Some(folder) = std::env::var_os(FOLDER_VARIABLE) {
        return Some(folder.into());
    }
    let program = std::env::current_exe().ok();
    let beside = program.iter().flat_map(|path| path.ancestors().skip(2).take(2));
    let targets = std::iter::once(Path::new("target")).chain(beside);
    targets.map(|target| target.join("models")).find_map(|models| search(&models, 4))
}

/// The first folder, by name, at most `depth` levels below `folder` that holds weights.
pub fn search(folder: &Path, depth: usize) -> Option<PathBuf> {
    if folder.join(WEIGHTS_FILE).is_file() {
        return Some(folder.to_owned());
    }
    let deeper = depth.checked_sub(1)?;
    let entries = std::fs::read_dir(folder).ok()?;
    let mut folders: Vec<PathBuf> =
        entries.flatten().map(|entry| entry.path()).filter(|path| path.is_dir()).collect();
    folders.sort();
    folders.iter().find_map(|folder| search(folder, deeper))
}
