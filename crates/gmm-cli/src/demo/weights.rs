//! A model's weights in unified memory, read from a `safetensors` file.
//!
//! The file is a length (8 bytes), a header of that length (JSON: name, type, shape and place of each
//! tensor), and the data. The header is read apart; the data is then read by `read` straight into
//! unified memory, its first byte on the start of a page. A tensor that is misaligned for its type there
//! is copied to an aligned place.

use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use safetensors::Dtype;
use safetensors::tensor::Metadata;

use super::accelerator::{Accelerator, Unified};
use super::size::MIB;

/// The longest header that is accepted, as in the `safetensors` library.
const MAX_HEADER_BYTES: u64 = 100_000_000;

/// Where copies of misaligned tensors begin: at multiples of a cache line.
const COPY_ALIGN: usize = 64;

/// Where a tensor lies.
#[derive(Clone, Debug)]
pub struct Tensor {
    /// The address of its first element, in unified memory, aligned for its type.
    pub address: u64,
    /// The type of its elements.
    pub dtype: Dtype,
    /// Its lengths, slowest first; row-major.
    pub shape: Vec<usize>,
}

/// A model's tensors and the memory they lie in.
pub struct Weights {
    tensors: HashMap<String, Tensor>,
    nr_bytes: u64,
    nr_copied: usize,
    /// Owns what the addresses point at.
    _memory: Vec<Unified>,
}

impl Weights {
    /// Reads a `safetensors` file. `progress` is told how many bytes of how many have been read.
    ///
    /// # Errors
    /// If the file can't be read, is shorter or longer than its header says, or its header is not valid.
    pub fn read(
        machine: &dyn Accelerator,
        path: &Path,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Self> {
        let file = File::open(path).with_context(|| format!("can't open {}", path.display()))?;
        let (metadata, data_start) =
            read_header(&file).with_context(|| format!("{} is no model", path.display()))?;
        let data_len = metadata.data_len();
        let mut memory = machine.alloc("weights", data_len)?;
        let mut done = 0;
        for chunk in memory[..data_len].chunks_mut(2 * MIB as usize) {
            // A store faults the page in even where the kernel may not do so within `read`.
            chunk[0] = 0;
            file.read_exact_at(chunk, data_start + done)
                .with_context(|| format!("can't read {} at byte {done}", path.display()))?;
            done += chunk.len() as u64;
            progress(done, data_len as u64);
        }
        Self::place(machine, &metadata, memory)
    }

    /// Weights that are already in memory, packed in the order given; `fill` has stored them.
    pub(crate) fn packed(
        machine: &dyn Accelerator,
        tensors: Vec<(String, Vec<usize>)>,
        mut fill: impl FnMut(&str, &mut [[u8; 4]]),
    ) -> Result<Self> {
        let nr_elements = |shape: &[usize]| shape.iter().product::<usize>();
        let data_len = 4 * tensors.iter().map(|(_, shape)| nr_elements(shape)).sum::<usize>();
        let mut memory = machine.alloc("weights", data_len)?;
        let mut places = HashMap::new();
        let mut start = 0;
        for (name, shape) in tensors {
            let end = start + 4 * nr_elements(&shape);
            fill(&name, memory[start..end].as_chunks_mut().0);
            let tensor = Tensor { address: memory.address(start), dtype: Dtype::F32, shape };
            places.insert(name, tensor);
            start = end;
        }
        let nr_bytes = data_len as u64;
        Ok(Self { tensors: places, nr_bytes, nr_copied: 0, _memory: vec![memory] })
    }

    fn place(machine: &dyn Accelerator, metadata: &Metadata, mut data: Unified) -> Result<Self> {
        let align = |dtype: Dtype| (dtype.bitsize() / 8).next_power_of_two();
        let infos = metadata.tensors();
        let misaligned = |info: &safetensors::tensor::TensorInfo| {
            !info.data_offsets.0.is_multiple_of(align(info.dtype))
        };
        let copied_len = infos
            .values()
            .filter(|info| misaligned(info))
            .map(|info| (info.data_offsets.1 - info.data_offsets.0).next_multiple_of(COPY_ALIGN))
            .sum::<usize>();
        let mut copies = match copied_len {
            0 => None,
            len => Some(machine.alloc("weights, aligned copies", len)?),
        };
        let (mut copied, mut nr_copied) = (0, 0);
        let mut tensors = HashMap::new();
        for (name, info) in infos {
            let (start, end) = info.data_offsets;
            let address = match &mut copies {
                Some(copies) if misaligned(info) && start < end => {
                    let place = copied;
                    copies[place..place + (end - start)].copy_from_slice(&data[start..end]);
                    copied += (end - start).next_multiple_of(COPY_ALIGN);
                    nr_copied += 1;
                    copies.address(place)
                }
                _ => data.address(start),
            };
            tensors.insert(name, Tensor { address, dtype: info.dtype, shape: info.shape.clone() });
        }
        let nr_bytes = metadata.data_len() as u64;
        let memory = std::iter::once(data).chain(copies).collect();
        Ok(Self { tensors, nr_bytes, nr_copied, _memory: memory })
    }

    /// Whether there is a tensor of that name.
    pub fn has(&self, name: &str) -> bool {
        self.tensors.contains_key(name)
    }

    /// The address of a tensor of `f32`.
    ///
    /// # Errors
    /// If there is none of that name, or its type or shape is another.
    pub fn find(&self, name: &str, shape: &[usize]) -> Result<u64> {
        let Some(tensor) = self.tensors.get(name) else {
            bail!("the model has no tensor {name:?}");
        };
        ensure!(
            tensor.dtype == Dtype::F32,
            "tensor {name:?} holds {:?}; only F32 can be run",
            tensor.dtype
        );
        ensure!(
            tensor.shape == shape,
            "tensor {name:?} has the shape {:?}, the configuration says {shape:?}",
            tensor.shape
        );
        Ok(tensor.address)
    }

    /// The bytes of all tensors.
    pub fn nr_bytes(&self) -> u64 {
        self.nr_bytes
    }

    /// How many tensors were misaligned and so copied.
    pub fn nr_copied(&self) -> usize {
        self.nr_copied
    }
}

/// The header, and where the data begins.
fn read_header(file: &File) -> Result<(Metadata, u64)> {
    let file_len = file.metadata()?.len();
    ensure!(file_len >= 8, "it has {file_len} bytes; a safetensors file begins with 8 of length");
    let mut length = [0; 8];
    file.read_exact_at(&mut length, 0)?;
    let header_len = u64::from_le_bytes(length);
    ensure!(
        header_len <= MAX_HEADER_BYTES,
        "its header claims {header_len} bytes, the limit is {MAX_HEADER_BYTES}"
    );
    ensure!(
        header_len <= file_len - 8,
        "its header claims {header_len} bytes, the whole file has {file_len}"
    );
    let mut header = vec![0; header_len as usize];
    file.read_exact_at(&mut header, 8).context("can't read its header")?;
    let metadata: Metadata =
        serde_json::from_slice(&header).context("its safetensors header is not valid")?;
    let data_len = metadata.data_len() as u64;
    let have = file_len - 8 - header_len;
    ensure!(data_len != 0, "it has no data");
    ensure!(
        data_len <= have,
        "it is truncated: its header describes {data_len} bytes of data, {have} are there"
    );
    ensure!(
        data_len == have,
        "it has {} bytes more than the {data_len} of data that its header describes",
        have - data_len
    );
    Ok((metadata, 8 + header_len))
}
