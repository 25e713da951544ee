//! Reading `safetensors` files: good ones, broken ones, hostile ones.

use std::fs;
use std::path::PathBuf;

use gmm_cli::demo::cpu_only::CpuOnly;
use gmm_cli::demo::weights::Weights;

/// A file that is gone afterwards.
struct TempFile(PathBuf);

impl TempFile {
    fn new(name: &str, contents: &[u8]) -> Self {
        let name = format!("gmm-demo-weights-{}-{name}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::write(&path, contents).unwrap();
        Self(path)
    }
}

impl Drop for TempFile {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

fn file(header: &str, data: &[u8]) -> Vec<u8> {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(header.as_bytes());
    bytes.extend_from_slice(data);
    bytes
}

fn read(name: &str, contents: &[u8]) -> anyhow::Result<Weights> {
    let file = TempFile::new(name, contents);
    Weights::read(&CpuOnly::new(1), &file.0, &mut |_, _| {})
}

/// The elements of a tensor, read through its address as a kernel does.
fn elements(weights: &Weights, name: &str, len: usize) -> Vec<f32> {
    let address = weights.find(name, &[len]).unwrap();
    assert_eq!(address % 4, 0, "{name} is misaligned");
    let start: *const f32 = gmm_kernels::Word::from_word(address);
    // SAFETY: `find` checked that the tensor has `len` elements; the weights are alive.
    unsafe { std::slice::from_raw_parts(start, len) }.to_vec()
}

#[test]
fn data_begins_on_a_page_and_misaligned_tensors_are_copied() {
    let header = r#"{"__metadata__":{"format":"pt"},
        "first":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},
        "odd":{"dtype":"U8","shape":[3],"data_offsets":[8,11]},
        "late":{"dtype":"F32","shape":[3],"data_offsets":[11,23]},
        "none":{"dtype":"F32","shape":[0],"data_offsets":[23,23]},
        "last":{"dtype":"F32","shape":[1],"data_offsets":[23,27]}}"#;
    let mut data = Vec::new();
    let mut push = |numbers: &[f32]| numbers.iter().for_each(|x| data.extend(x.to_le_bytes()));
    push(&[1.5, -2.0]);
    data.extend([1, 2, 3]);
    let mut push = |numbers: &[f32]| numbers.iter().for_each(|x| data.extend(x.to_le_bytes()));
    push(&[3.0, 4.0, 5.0, 6.0]);
    let weights = read("good", &file(header, &data)).unwrap();
    assert_eq!(elements(&weights, "first", 2), [1.5, -2.0]);
    assert_eq!(elements(&weights, "late", 3), [3.0, 4.0, 5.0]);
    assert_eq!(elements(&weights, "last", 1), [6.0]);
    assert_eq!(weights.find("first", &[2]).unwrap() % (2 << 20), 0);
    assert_eq!((weights.nr_bytes(), weights.nr_copied()), (27, 2));

    let message = weights.find("absent", &[1]).unwrap_err().to_string();
    assert_eq!(message, "the model has no tensor \"absent\"");
    let message = weights.find("odd", &[3]).unwrap_err().to_string();
    assert_eq!(message, "tensor \"odd\" holds U8; only F32 can be run");
    let message = weights.find("first", &[1, 2]).unwrap_err().to_string();
    assert!(message.contains("[2]") && message.contains("[1, 2]"), "{message}");
}

#[test]
fn data_longer_than_a_page_arrives_whole_and_progress_ends_at_the_end() {
    let len = (2 << 20) / 4 + 1000;
    let header =
        format!(r#"{{"x":{{"dtype":"F32","shape":[{len}],"data_offsets":[0,{}]}}}}"#, len * 4);
    let numbers: Vec<f32> = (0..len).map(|i| i as f32).collect();
    let data: Vec<u8> = numbers.iter().flat_map(|x| x.to_le_bytes()).collect();
    let file = TempFile::new("long", &file(&header, &data));
    let mut told = Vec::new();
    let weights =
        Weights::read(&CpuOnly::new(1), &file.0, &mut |done, of| told.push((done, of))).unwrap();
    assert!(elements(&weights, "x", len) == numbers);
    let all = data.len() as u64;
    assert_eq!(told, [(2 << 20, all), (all, all)]);
}

#[test]
fn broken_and_hostile_files_are_refused_with_the_reason() {
    let two = r#"{"x":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}"#;
    let length = |n: u64| n.to_le_bytes().to_vec();
    let cases: [(&str, Vec<u8>, &str); 13] = [
        ("empty", vec![], "has 0 bytes"),
        ("stub", vec![1, 2, 3], "has 3 bytes"),
        ("huge", length(u64::MAX), "claims 18446744073709551615 bytes"),
        ("big", length(50_000_000), "claims 50000000 bytes, the whole file has 8"),
        ("truncated", file(two, &[0; 7]), "describes 8 bytes of data, 7 are there"),
        ("surplus", file(two, &[0; 9]), "1 bytes more than the 8"),
        ("no json", file("hello", &[0; 8]), "header is not valid"),
        ("not utf-8", [&length(2)[..], &[0xFF, 0xFE]].concat(), "header is not valid"),
        ("no tensors", file("{}", &[]), "has no data"),
        (
            "gap",
            file(r#"{"x":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}"#, &[0; 8]),
            "header is not valid",
        ),
        (
            "size",
            file(r#"{"x":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}}"#, &[0; 8]),
            "header is not valid",
        ),
        (
            "overflow",
            file(
                r#"{"x":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,8]}}"#,
                &[0; 8],
            ),
            "header is not valid",
        ),
        (
            "backwards",
            file(r#"{"x":{"dtype":"F32","shape":[2],"data_offsets":[8,0]}}"#, &[0; 8]),
            "header is not valid",
        ),
    ];
    for (name, contents, expected) in cases {
        let error = read(name, &contents).err().unwrap_or_else(|| panic!("{name} was taken"));
        let message = format!("{error:#}");
        assert!(message.contains(expected), "{name}: {message:?} lacks {expected:?}");
        assert!(message.contains("gmm-demo-weights"), "{name}: {message:?} names no file");
    }
}
