//! The random machines that sequences of operations run on: eight processors on five nodes, each
//! device with capabilities, completions and frames of its own.

use core::time::Duration;

use gmm_core::driver::Capabilities;
use gmm_driver_tests::World;
use gmm_driver_tests::array::{Completion, DeviceOptions};
use proptest::prelude::*;

use super::policy::Policies;

/// The most pages that a sequence maps, and host memory for more than those.
pub(crate) const MAX_PAGES: usize = 9;
const HOST_FRAMES: u32 = 13;

/// How the XPUs' accesses come by absent pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Faults {
    /// Each context waits for its faults to be served.
    Replayed,
    /// No context can: launches name their ranges, which are held.
    Held,
    /// Some can.
    Mixed,
}

/// What the machine of one sequence is like.
#[derive(Clone, Debug)]
pub(crate) struct Machine {
    completion: Completion,
    host_read_only: bool,
    peer_copy: bool,
    /// Whether the CPU can map replicas.
    replicas: bool,
    /// Whether each device's contexts can map frames of others: the host's, the XPUs'.
    coherent: [bool; 5],
    /// Of each XPU: whether it maps read-only, whether its faults are replayed.
    xpus: [(bool, bool); 4],
    /// Of the nodes 1 to 4.
    frames: [u32; 4],
    /// What imports hand over: how many frames at most, and whether in a run.
    imports: (u32, bool),
    /// How many pages are evicted, and frames imported, at a time at most.
    batches: (u32, u32),
    policies: Policies,
    /// Look-ahead, and for how many milliseconds pages stay.
    look_ahead: u32,
    minimum_residency_ms: u64,
}

pub(crate) fn machine(faults: Faults) -> impl Strategy<Value = Machine> {
    let completion =
        prop_oneof![Just(Completion::Inline), Just(Completion::AtWait), Just(Completion::Halves)];
    let replays = move |drawn: bool| match faults {
        Faults::Replayed => true,
        Faults::Held => false,
        Faults::Mixed => drawn,
    };
    let xpus = prop::array::uniform4((any::<bool>(), any::<bool>().prop_map(replays)));
    let frames = (3..9u32, 3..6u32, 1..4u32, 3..6u32);
    let counts = ((1..17u32, any::<bool>()), (1..17u32, 1..17u32));
    let flags = (any::<bool>(), any::<bool>(), any::<bool>());
    let coherent = prop::array::uniform5(any::<bool>());
    let xpus = (xpus, coherent);
    let guards = (prop_oneof![Just(0), 1..9u32], prop_oneof![Just(0), 1..4u64]);
    (completion, flags, xpus, frames, counts, (Policies::any(), guards)).prop_map(
        |(
            completion,
            (host_read_only, peer_copy, replicas),
            (xpus, coherent),
            frames,
            (imports, batches),
            (policies, (look_ahead, minimum_residency_ms)),
        )| {
            let frames = [frames.0, frames.1, frames.2, frames.3];
            Machine {
                completion,
                host_read_only,
                peer_copy,
                replicas,
                coherent,
                xpus,
                frames,
                imports,
                batches,
                policies,
                look_ahead,
                minimum_residency_ms,
            }
        },
    )
}

impl Machine {
    /// The CPU; two contexts on the first XPU; one on each of the two nodes of the second; two on
    /// the third; one on a device without memory, beside the CPU.
    pub(crate) fn build(&self) -> World {
        let nodes = self.frames;
        let (evict_batch, import_batch) = self.batches;
        let mut world = World::builder(HOST_FRAMES)
            .host(|h| pick(h, Capabilities::READ_ONLY_MAPPINGS, self.host_read_only))
            .host(|h| pick(h, Capabilities::READ_ONLY_REPLICAS, self.replicas))
            .host(|h| pick(h, Capabilities::COHERENT_LINK, self.coherent[4]))
            .host(|h| self.common(h))
            .xpu(self.xpu(0, "one", &nodes[..1]), 2)
            .xpu(self.xpu(1, "two", &nodes[1..3]), 1)
            .xpu(self.xpu(2, "three", &nodes[3..]), 2)
            .xpu(self.xpu(3, "guest", &[]), 1)
            .config(|c| {
                c.look_ahead = self.look_ahead;
                c.minimum_residency = Duration::from_millis(self.minimum_residency_ms);
                (c.evict_batch, c.import_batch) = (evict_batch, import_batch);
                // On nodes of so few frames.
                (c.low_watermark, c.high_watermark, c.launder_share) = (1, Some(2), 1);
            })
            .build();
        world.attach(1, 1).expect("few contexts");
        assert_eq!(world.processors.len(), 8);
        self.policies.give_to(&world.space);
        world
    }

    fn xpu(&self, index: usize, name: &str, nodes: &[u32]) -> DeviceOptions {
        let (read_only, replays) = self.xpus[index];
        let options = DeviceOptions { node_frames: nodes.to_vec(), ..DeviceOptions::xpu(name, 0) };
        let options = pick(self.common(options), Capabilities::PEER_COPY, self.peer_copy);
        let options = pick(options, Capabilities::READ_ONLY_MAPPINGS, read_only);
        let options = pick(options, Capabilities::COHERENT_LINK, self.coherent[index]);
        pick(options, Capabilities::REPLAYABLE_FAULTS, replays)
    }

    fn common(&self, options: DeviceOptions) -> DeviceOptions {
        let (import_limit, scattered) = self.imports;
        DeviceOptions { import_limit, scattered, ..options.completing(self.completion) }
    }
}

fn pick(options: DeviceOptions, capability: Capabilities, yes: bool) -> DeviceOptions {
    if yes { options.with(capability) } else { options.without(capability) }
}
