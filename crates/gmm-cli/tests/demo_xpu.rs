//! The encoder on a host XPU: what the CPU alone computes, bit for bit, whatever the XPU's memory and
//! cores.

use gmm_cli::demo::accelerator::Accelerator;
use gmm_cli::demo::config::Config;
use gmm_cli::demo::cpu_only::CpuOnly;
use gmm_cli::demo::encoder::Encoder;
use gmm_cli::demo::host_xpu::HostXpu;
use gmm_cli::demo::memory::MemoryUse;
use gmm_cli::demo::random;
use gmm_cli::demo::size::MIB;

/// 26 MiB of weights, so that 16 MiB of memory is too little and the run is short.
fn config() -> Config {
    Config { num_hidden_layers: 3, vocab_size: 3_000, ..Config::minilm() }
}

fn sentences() -> Vec<Vec<u32>> {
    [3, 11, 30].map(|len| (0..len).map(|i| (i * 97 + len * 31) % 3_000).collect()).into()
}

fn run(machine: &dyn Accelerator) -> (Vec<Vec<f32>>, MemoryUse) {
    let weights = random::weights(machine, &config(), 7).unwrap();
    let weights_bytes = weights.nr_bytes();
    assert!((25 * MIB..28 * MIB).contains(&weights_bytes), "{weights_bytes} bytes of weights");
    let encoder = Encoder::new(machine, config(), weights).unwrap();
    let vectors = encoder.encode(&sentences(), &mut |_, _| {}).unwrap();
    (vectors, machine.memory().unwrap())
}

#[test]
fn the_bits_are_those_of_the_cpu_at_every_size_and_number_of_cores() {
    let (expected, _) = run(&CpuOnly::new(2));
    for (memory_bytes, nr_cores) in
        [(16 * MIB, 1), (16 * MIB, 8), (24 * MIB, 3), (64 * MIB, 2), (1024 * MIB, 8)]
    {
        let (vectors, _) = run(&HostXpu::new(memory_bytes, nr_cores).unwrap());
        assert!(vectors == expected, "other bits with {memory_bytes} bytes, {nr_cores} cores");
    }
}

#[test]
fn an_xpu_smaller_than_the_weights_evicts_and_the_numbers_add_up() {
    let (_, memory) = run(&HostXpu::new(16 * MIB, 1).unwrap());
    assert_eq!(memory.xpu_memory_bytes, 16 * MIB);
    let peak = memory.peak_resident_bytes["1"];
    assert!((14 * MIB..=16 * MIB).contains(&peak), "peak {peak}");
    let touched = memory.touched_bytes["1"];
    assert!(touched > 16 * MIB, "touched {touched}");
    assert!(memory.touched_bytes["0"] >= 26 * MIB);
    let moved_in = memory.migrated_bytes["0->1"];
    assert!(moved_in > touched, "{moved_in} bytes moved in, {touched} touched");
    // A fault brings its page, and look-ahead at most a window of 16 after it.
    assert!(memory.faults.xpu * 17 * 2 * MIB >= moved_in);
    assert!(memory.faults.cpu >= 13);
    assert!(memory.evicted_pages > memory.evicted_clean_pages);
    // Weights are only read, so they leave without a copy.
    assert!(memory.evicted_clean_pages > 0);
    assert!(!memory.frame_backing.is_empty());
}

#[test]
fn an_xpu_smaller_than_a_page_is_refused_with_its_size() {
    let error = format!("{:#}", HostXpu::new(MIB, 1).err().unwrap());
    assert!(error.contains("1048576"), "{error}");
}

#[test]
fn an_xpu_larger_than_the_weights_copies_each_page_once() {
    let (_, memory) = run(&HostXpu::new(64 * MIB, 1).unwrap());
    assert_eq!(memory.evicted_pages, 0);
    assert!(memory.migrated_bytes["0->1"] <= memory.touched_bytes["1"]);
    assert!(memory.peak_resident_bytes["1"] <= memory.touched_bytes["1"]);
}
