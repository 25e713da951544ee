//! Switching between two models that together exceed the XPU: from a request to its first output. In
//! unified memory the request just runs, and faults bring what is missing. That is compared with the
//! time that the bytes which must move take on the link, and with three ways to switch without unified
//! memory. Every output is compared with the CPU's.

mod loading;
mod machine;
mod model;

use std::path::PathBuf;
use std::time::Instant;

use anyhow::ensure;
use clap::Args;
use gmm::hostxpu::HostXpuConfig;
use gmm::{MIB, PAGE_SIZE, Unified, display_bytes};

use super::distribution::{Distribution, Pairs};
use super::options::{Kernels, Link, Output, Repeats};
use super::raw::RawCopies;
use super::record::Record;
use super::room;
use super::session::Session;
use loading::{Loader, Way};
use machine::{Machine, Switch};
use model::Shape;

/// What `gmm bench switch` takes.
#[derive(Debug, Args)]
pub(super) struct SwitchArgs {
    /// How much memory the XPU has, at least 16MiB; two models of three quarters of that are served
    #[arg(long, default_value = "128MiB", value_parser = crate::demo::size::parse)]
    xpu_memory: u64,
    /// The longest window of look-ahead in unified memory, in pages; 0 is none [default: the
    /// manager's own]
    #[arg(long)]
    look_ahead: Option<u32>,
    /// Where the weights are written to and loaded from, for two of the baselines. In memory (as a
    /// tmpfs is) no load is cold [default: the folder for temporary files]
    #[arg(long, value_name = "DIR")]
    folder: Option<PathBuf>,
    #[command(flatten)]
    link: Link,
    #[command(flatten)]
    repeats: Repeats,
    #[command(flatten)]
    kernels: Kernels,
    #[command(flatten)]
    pub(super) output: Output,
}

/// What the target allows beyond 1.1 times the bound, in seconds.
const ALLOWED_S: f64 = 0.020;

pub(super) fn run(args: &SwitchArgs, session: &mut Session) -> anyhow::Result<()> {
    let least = 16 * MIB;
    ensure!(
        args.xpu_memory >= least,
        "--xpu-memory is {}; it must be at least {least}",
        args.xpu_memory
    );
    // Two models of three quarters each: in plain memory, unified, in files and asleep; what the loader
    // holds of one; two XPUs; host frames and XPU frames of the raw copies.
    room::check(args.xpu_memory.saturating_mul(11), "--xpu-memory")?;
    let rounds = args.repeats.repeats + 1;
    session.begin("switch", u64::from(rounds));
    session.doing("making two models");
    let nr_frames = args.xpu_memory / PAGE_SIZE;
    let shape = Shape::within(args.xpu_memory / 4 * 3);
    let models = [shape.weights(1), shape.weights(2)];
    let outputs = [shape.reference(&models[0], 3)?, shape.reference(&models[1], 3)?];
    // One frame more, for what is computed.
    let memory = (nr_frames + 1) * PAGE_SIZE;
    let mut machine = Machine::new(shape, memory, true, args)?;
    let mut weights = [machine.weights("bench model 1")?, machine.weights("bench model 2")?];
    for (weights, model) in weights.iter_mut().zip(&models) {
        weights.copy_from_slice(model);
    }
    let mut loader = Loader::new(shape, memory, &models, args)?;
    let raw_config = HostXpuConfig::new(args.xpu_memory).cores(1).copy_engines(1);
    let raw = RawCopies::new(nr_frames, args.link.configure(raw_config))?;

    // What of the one does not fit beside the other, whatever the policy.
    let model_pages = shape.weight_bytes().div_ceil(PAGE_SIZE);
    let must_move = (2 * model_pages).saturating_sub(nr_frames);
    let mut samples = Samples::default();
    for round in 0..rounds {
        session.doing(if round == 0 { "warming up" } else { "switches and loads in turn" });
        // Each model is switched to in turn, and both were served before the first that counts.
        for to in [0, 1] {
            let bound = raw.to_xpu()?.as_secs_f64() * must_move as f64 / nr_frames as f64;
            let switch = switch(&mut machine, &weights[to], &outputs[to])?;
            let start = Instant::now();
            machine.serve(&weights[to], 3, &outputs[to])?;
            let resident = start.elapsed().as_secs_f64();
            let mut loads = [0.0; 3];
            for (way, took) in Way::ALL.into_iter().zip(&mut loads) {
                // The other model first, so that this one has to come.
                loader.switch(Way::PageCache, 1 - to, 3, &outputs[1 - to])?;
                *took = loader.switch(way, to, 3, &outputs[to])?.as_secs_f64();
            }
            if round > 0 {
                samples.push(switch, bound, resident, loads);
            }
        }
        session.step();
    }
    let copied_out: u64 =
        weights.iter().map(|weights| machine.copied_out(weights)).sum::<anyhow::Result<_>>()?;
    for record in samples.records(shape, args) {
        let record = record.with("must_move_bytes", must_move * PAGE_SIZE);
        session.put(match record.case.as_str() {
            // Of both models, in all switches together. What else is copied out is what is computed.
            "first-output" => record.with("weights_copied_out_bytes", copied_out),
            _ => record,
        })?;
    }
    Ok(())
}

fn switch(machine: &mut Machine, weights: &Unified<f32>, wanted: &[f32]) -> anyhow::Result<Switch> {
    let before = machine.copied();
    let start = Instant::now();
    machine.serve(weights, 3, wanted)?;
    let took = start.elapsed();
    let after = machine.copied();
    Ok(Switch { took, copied_in: after.0 - before.0, copied_out: after.1 - before.1 })
}

/// The measurements of all switches.
#[derive(Default)]
struct Samples {
    against_bound: Pairs,
    /// The time of a pass over weights that are there.
    resident_s: Vec<f64>,
    copied_in: Vec<f64>,
    copied_out: Vec<f64>,
    against_loads: [Pairs; 3],
}

impl Samples {
    fn push(&mut self, switch: Switch, bound_s: f64, resident_s: f64, loads_s: [f64; 3]) {
        let took = switch.took.as_secs_f64();
        self.against_bound.push_seconds(took, bound_s);
        self.resident_s.push(resident_s);
        self.copied_in.push(switch.copied_in as f64);
        self.copied_out.push(switch.copied_out as f64);
        for (pairs, load_s) in self.against_loads.iter_mut().zip(loads_s) {
            pairs.push_seconds(took, load_s);
        }
    }

    fn records(self, shape: Shape, args: &SwitchArgs) -> Vec<Record> {
        let parameter = display_bytes(args.xpu_memory);
        let parameter = match args.look_ahead {
            None => parameter,
            Some(pages) => format!("{parameter} look-ahead={pages}"),
        };
        let parameter = args.link.name(parameter);
        let median = |values: Vec<f64>| Distribution::new(values).median();
        let (_, bound_s) = self.against_bound.seconds();
        let mut records = vec![
            self.against_bound
                .record("switch", "first-output", &parameter, "what must move, at link speed")
                .with("target_seconds", 1.1 * bound_s + ALLOWED_S)
                .with("pass_when_resident_seconds", median(self.resident_s))
                .with("copied_in_bytes", median(self.copied_in))
                .with("copied_out_bytes", median(self.copied_out)),
        ];
        for (way, pairs) in Way::ALL.into_iter().zip(self.against_loads) {
            records.push(pairs.record("switch", way.case(), &parameter, way.name()));
        }
        let describe = |record: Record| {
            record
                .with("model_bytes", shape.weight_bytes())
                .with("layers", shape.nr_layers)
                .with("width", shape.width)
                .with("xpu_memory_bytes", args.xpu_memory)
        };
        records.into_iter().map(describe).collect()
    }
}
