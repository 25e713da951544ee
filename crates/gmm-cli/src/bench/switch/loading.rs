//! The baselines: how a model is switched without unified memory. One of two models is in the XPU's
//! memory; the other comes from a file, or from host memory.

use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use gmm::Unified;
use rustix::fs::{Advice, fadvise};

use super::SwitchArgs;
use super::machine::Machine;
use super::model::Shape;

/// How much of a file is read, and then copied to the XPU, at a time.
const CHUNK_WEIGHTS: usize = 1 << 20;

/// How the other model's weights get to the XPU.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Way {
    /// Freed, and loaded from a file that the page cache does not have.
    ColdFile,
    /// Freed, and loaded from a file that it has.
    PageCache,
    /// Asleep: all of the one is copied out to host memory, and all of the other in.
    Sleep,
}

impl Way {
    pub(super) const ALL: [Self; 3] = [Self::ColdFile, Self::PageCache, Self::Sleep];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::ColdFile => "free and load from a file, cold",
            Self::PageCache => "free and load from the page cache",
            Self::Sleep => "sleep: all out, all in",
        }
    }

    pub(super) fn case(self) -> &'static str {
        match self {
            Self::ColdFile => "against-cold-file",
            Self::PageCache => "against-page-cache",
            Self::Sleep => "against-sleep",
        }
    }
}

/// An XPU whose memory holds one model at a time.
pub(super) struct Loader {
    machine: Machine,
    resident: Unified<f32>,
    files: [TemporaryFile; 2],
    /// What sleeps in host memory, and what was last copied out.
    asleep: [Vec<f32>; 2],
    buffer: Vec<f32>,
}

impl Loader {
    pub(super) fn new(
        shape: Shape,
        memory_bytes: u64,
        models: &[Vec<f32>; 2],
        args: &SwitchArgs,
    ) -> anyhow::Result<Self> {
        let machine = Machine::new(shape, memory_bytes, false, args)?;
        let folder = args.folder.clone().unwrap_or_else(std::env::temp_dir);
        let file = |nr: usize| TemporaryFile::new(&folder, nr, &models[nr]);
        Ok(Self {
            resident: machine.weights("bench weights")?,
            machine,
            files: [file(0)?, file(1)?],
            asleep: models.clone(),
            buffer: vec![0.0; CHUNK_WEIGHTS],
        })
    }

    /// From a request to the output: brings model `to` while the other is there, and runs it.
    pub(super) fn switch(
        &mut self,
        way: Way,
        to: usize,
        token: u32,
        wanted: &[f32],
    ) -> anyhow::Result<Duration> {
        if way == Way::ColdFile {
            self.files[to].drop_from_page_cache()?;
        }
        let start = Instant::now();
        match way {
            Way::ColdFile | Way::PageCache => {
                self.resident.discard()?;
                self.load(to)?;
            }
            Way::Sleep => {
                self.resident.copy_to(0, &mut self.asleep[1 - to], 1)?;
                self.resident.copy_from(0, &self.asleep[to], 1)?;
            }
        }
        self.machine.serve(&self.resident, token, wanted)?;
        Ok(start.elapsed())
    }

    fn load(&mut self, nr: usize) -> anyhow::Result<()> {
        let TemporaryFile { file, path } = &mut self.files[nr];
        let failed = |path: &Path| format!("can't read {}", path.display());
        file.seek(SeekFrom::Start(0)).with_context(|| failed(path))?;
        let mut done = 0;
        while done < self.resident.len() {
            let len = (self.resident.len() - done).min(CHUNK_WEIGHTS);
            let chunk = &mut self.buffer[..len];
            file.read_exact(as_bytes(chunk)).with_context(|| failed(path))?;
            self.resident.copy_from(done, chunk, 1)?;
            done += len;
        }
        Ok(())
    }
}

/// The bytes of numbers.
#[expect(unsafe_code, reason = "numbers as bytes")]
fn as_bytes(numbers: &mut [f32]) -> &mut [u8] {
    // SAFETY: so many bytes, borrowed exclusively; any bytes are numbers.
    unsafe { std::slice::from_raw_parts_mut(numbers.as_mut_ptr().cast(), size_of_val(numbers)) }
}

/// A file without a name, that goes with its handle, however this process ends.
struct TemporaryFile {
    file: File,
    /// Where it was, for errors.
    path: PathBuf,
}

impl TemporaryFile {
    fn new(folder: &Path, nr: usize, weights: &[f32]) -> anyhow::Result<Self> {
        let path = folder.join(format!("gmm-bench-switch-{}-{nr}", std::process::id()));
        let failed = || format!("can't write {}", path.display());
        let options = &mut File::options();
        let file = options.read(true).write(true).create_new(true).open(&path);
        let mut this = Self { file: file.with_context(failed)?, path: path.clone() };
        std::fs::remove_file(&path).with_context(failed)?;
        for chunk in weights.chunks(CHUNK_WEIGHTS) {
            let bytes: Vec<u8> = chunk.iter().flat_map(|weight| weight.to_ne_bytes()).collect();
            this.file.write_all(&bytes).with_context(failed)?;
        }
        // What is not on the disk yet stays in the page cache.
        this.file.sync_all().with_context(failed)?;
        Ok(this)
    }

    fn drop_from_page_cache(&self) -> anyhow::Result<()> {
        fadvise(&self.file, 0, None, Advice::DontNeed)
            .with_context(|| format!("posix_fadvise of {}", self.path.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_has_no_name_and_reads_back() {
        let folder = std::env::temp_dir().join(format!("gmm-bench-files-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let mut written = TemporaryFile::new(&folder, 0, &[1.0, 2.0]).unwrap();
        assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 0);
        let mut read = [0.0f32; 2];
        written.file.seek(SeekFrom::Start(0)).unwrap();
        written.file.read_exact(as_bytes(&mut read)).unwrap();
        assert_eq!(read, [1.0, 2.0]);
        std::fs::remove_dir_all(folder).unwrap();
    }
}
