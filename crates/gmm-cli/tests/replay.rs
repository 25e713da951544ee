//! `gmm replay` from the outside: what it says of recordings, of our own making and real ones.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use gmm_trace::{
    BlockState, Event, Format, Frame, OutOfMemory, RecordingBuilder, Segment, SegmentBlock,
    SegmentChange, SegmentKind, Sites, Stamp, Trace,
};
use serde_json::Value;

const MIB: u64 = 1 << 20;

fn gmm(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_gmm")).arg("replay").args(args).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// The objects of a run that must work.
fn json(args: &[&str]) -> Vec<Value> {
    let output = gmm(&[args, &["--json"]].concat());
    assert!(output.status.success(), "{args:?}: {}", text(&output.stderr));
    text(&output.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// A folder that is gone when the test is.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("gmm-replay-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn file(&self, name: &str, contents: impl AsRef<[u8]>) -> String {
        let path = self.0.join(name);
        fs::write(&path, contents).unwrap();
        path.to_str().unwrap().to_owned()
    }

    fn path(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().to_owned()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Six blocks of 30 MiB of which every other one is freed; then 90 MiB, which fit in none of the
/// holes. 180 MiB live at most; a segment a block, and nothing to give back to its stream, make 270.
fn fragmented_list() -> String {
    let size = 30 * MIB;
    let mut list: String = (0..6).map(|id| format!("a {id} {size} 0\n")).collect();
    list += "f 0\nf 2\nf 4\n";
    list += &format!("a 6 {} 0\n", 90 * MIB);
    list + "f 1\nf 3\nf 5\nf 6\n"
}

#[test]
fn each_allocator_has_an_object() {
    let folder = Folder::new("objects");
    let file = folder.file("list.txt", fragmented_list());
    let objects = json(&[&file, "--find-capacity", "--remaps"]);
    let of = |name: &str| {
        objects
            .iter()
            .find(|object| object["allocator"] == name)
            .unwrap_or_else(|| panic!("no {name} in {objects:?}"))
    };
    for name in ["pytorch", "pytorch-expandable", "bfc", "jemalloc", "best-fit", "stitching"] {
        let object = of(name);
        assert_eq!(object["file"], file.as_str());
        assert_eq!(object["device"], 0);
        assert_eq!(object["operations"], 14);
        assert_eq!(object["peak_live_bytes"], 180 * MIB);
        assert_eq!(object["out_of_memory_at"], Value::Null);
        assert!(object["ns_per_op"].as_f64().unwrap() > 0.0);
        let number = |key: &str| object[key].as_u64().unwrap_or_else(|| panic!("{name}: {key}"));
        let (reserved, least) = (number("peak_reserved_bytes"), number("min_capacity_bytes"));
        assert!(180 * MIB <= least && least <= reserved.max(180 * MIB), "{object}");
        assert!(number("frames_mapped") >= 90);
        let share = |key: &str| object[key].as_f64().unwrap();
        assert!((share("utilisation") - (180 * MIB) as f64 / reserved as f64).abs() < 1e-9);
        assert!((share("capacity_utilisation") - (180 * MIB) as f64 / least as f64).abs() < 1e-9);
        let timeline = object["timeline"].as_array().unwrap();
        assert_eq!(timeline.len(), 14);
        let most = timeline.iter().map(|point| point[1].as_u64().unwrap()).max();
        assert_eq!(most, Some(180 * MIB));
    }
    // PyTorch's segments of 30 MiB can be given back, but not joined, while memory is plenty.
    assert_eq!(of("pytorch")["peak_reserved_bytes"], 270 * MIB);
    assert_eq!(of("stitching")["min_capacity_bytes"], 180 * MIB);
    let remaps = of("stitching")["remaps"].as_array().unwrap();
    assert_eq!(remaps.len(), 4);
    // Room for 90 frames at 1.005 times the peak: those of the freed blocks are mapped again.
    assert_eq!(remaps[0]["capacity_bytes"], 180 * MIB);
    let count = |key: &str| remaps[0][key].as_u64().unwrap();
    assert_eq!(count("frames_mapped") - count("frames_unmapped"), 90);
    assert!((30..=45).contains(&count("frames_unmapped")), "{}", remaps[0]);
    assert_eq!(of("pytorch")["remaps"], Value::Null);
}

#[test]
fn what_would_have_run_out_is_said_with_the_line_and_the_cause() {
    let folder = Folder::new("capacity");
    // Six segments of 32 MiB, in each of which a small block keeps it from being given back.
    let mut list = String::new();
    for id in 0..6 {
        list += &format!("a {} {} 0\nf {0}\n", 20 + id, 32 * MIB);
        list += &format!("a {id} {} 0\na {} {} 0\n", 30 * MIB, 10 + id, 2 * MIB);
    }
    list += "f 0\nf 2\nf 4\n";
    list += &format!("a 6 {} 0\n", 80 * MIB);
    let file = folder.file("list.txt", list);
    let objects = json(&[&file, "--allocator", "best-fit,stitching", "--capacity", "200MiB"]);
    assert_eq!(objects[0]["capacity_bytes"], 200 * MIB);
    assert_eq!(objects[0]["out_of_memory_at"], 28, "the last line");
    assert_eq!(objects[0]["out_of_memory"]["cause"], "fragmented");
    assert_eq!(objects[0]["out_of_memory"]["requested_bytes"], 80 * MIB);
    assert_eq!(objects[1]["out_of_memory_at"], Value::Null);

    let output = gmm(&[&file, "--capacity", "200MiB", "-a", "best-fit"]);
    assert!(output.status.success(), "that it runs out is an answer, no failure");
    let lines = text(&output.stdout);
    let wanted = "best-fit runs out of 200.0 MiB at operation 28 of 28: 80.0 MiB on stream 0";
    assert!(lines.contains(wanted), "{lines}");
}

#[test]
fn a_person_sees_a_plot_and_a_table() {
    let folder = Folder::new("text");
    let file = folder.file("list.txt", fragmented_list());
    let output = gmm(&[&file, "--allocator", "pytorch,stitching", "--find-capacity", "--remaps"]);
    let lines = text(&output.stdout);
    for wanted in ["14 operations, 180.0 MiB live", "\u{2588} live", "reserved by pytorch"] {
        assert!(lines.contains(wanted), "{wanted}:\n{lines}");
    }
    let row = lines.lines().find(|line| line.trim_start().starts_with("stitching  ")).unwrap();
    assert!(row.contains("1.0000"), "the smallest card is what lives: {row}");
    assert!(lines.contains("1.005 x peak live"), "{lines}");
    assert!(lines.lines().all(|line| line.chars().count() <= 120), "{lines}");
}

#[test]
fn mistakes_are_named() {
    let folder = Folder::new("mistakes");
    let file = folder.file("list.txt", "a 1 4096 0\n");
    for args in [
        &[][..],
        &[file.as_str(), "--allocator", "malloc"],
        &[&file, "--capacity", "24GB"],
        &[&file, "--capacity", "1MiB"],
    ] {
        let output = gmm(args);
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(output.stdout.is_empty() && !output.stderr.is_empty(), "{args:?}");
    }
    let error = text(&gmm(&[&file, "--allocator", "malloc"]).stderr);
    assert!(error.contains("malloc") && error.contains("stitching"), "{error}");

    let missing = folder.path("missing.pickle");
    let hostile = folder.file("hostile.pickle", b"\x80\x04cos\nsystem\nX\x02\0\0\0id\x85R.");
    let cut = folder.file("cut.pickle", b"\x80\x04}q\0(X\x08");
    let bad = folder.file("bad.txt", "a 1 4096 0\na 2 x 0\n");
    let folder_itself = folder.path("");
    // The good one among them is replayed all the same.
    let output = gmm(&[&missing, &hostile, &file, &cut, &bad, &folder_itself, "--json"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stdout).lines().count() >= 4);
    let errors = text(&output.stderr);
    for wanted in [
        "missing.pickle: No such file or directory",
        "hostile.pickle: byte 2 of the pickle is GLOBAL",
        "cut.pickle: ",
        "bad.txt: line 2",
        "is a folder",
    ] {
        assert!(errors.contains(wanted), "{wanted}:\n{errors}");
    }
    assert!(errors.lines().all(|line| line.starts_with("gmm: ")), "{errors}");
}

#[test]
fn a_recording_is_not_written_over() {
    let folder = Folder::new("over");
    let file = folder.file("list.txt", fragmented_list());
    for option in ["--html", "--export"] {
        let output = gmm(&[&file, "-a", "stitching", option, &file]);
        assert_eq!(output.status.code(), Some(2));
        assert!(text(&output.stderr).contains("another file"), "{output:?}");
    }
    assert_eq!(fs::read_to_string(&file).unwrap(), fragmented_list());
}

#[test]
fn what_does_not_fit_together_is_said() {
    let folder = Folder::new("gaps");
    let log = "Thread,Time,Action,Pointer,Size,Stream\n\
               1,00:00:00:000000,allocate,0x1000,1000,0x0\n\
               1,00:00:00:000001,wibble,0x1000,1000,0x0\n\
               1,00:00:00:000002,allocate,0x1000,1000,0x0\n";
    let file = folder.file("log.csv", log);
    let told = text(&gmm(&[&file]).stdout);
    assert!(told.contains("does not fit together: 1 allocations"), "{told}");
    assert!(told.contains("1 events of kinds that are not known"), "{told}");
    assert!(json(&[&file]).iter().all(|record| record["gaps"] == 2));
}

#[test]
fn more_than_any_device_has_is_refused() {
    let folder = Folder::new("huge");
    let list: String = (0..40).map(|id| format!("a {id} {} 0\n", 1u64 << 40)).collect();
    let file = folder.file("huge.txt", list);
    let output = gmm(&[&file]);
    assert_eq!(output.status.code(), Some(1));
    let error = text(&output.stderr);
    assert!(error.contains("huge.txt") && error.contains("43980465111040"), "{error}");
}

/// A snapshot of a program that ran out: 200 MiB of a card, a 20 MiB block at each end of it and in
/// the middle, and a request for 100 MiB which the holes of 70 MiB do not serve.
fn snapshot_of_a_failure() -> Vec<u8> {
    let mut sites = Sites::default();
    let frame = |name, file| Frame { name, file, line: 12 };
    let kept = sites.add([frame("malloc", "alloc.cpp"), frame("make_cache", "model.py")]);
    let lost = sites.add([frame("malloc", "alloc.cpp"), frame("forward", "layers.py")]);
    let mut builder = RecordingBuilder::new(2, true);
    let stamp = |site| Stamp { time_us: Some(7), site };
    let base = 1 << 32;
    let segment = SegmentChange { address: base, size_bytes: 200 * MIB, stream: 0 };
    builder.change_segment(Event::SegmentAlloc, segment, stamp(None));
    for (at, size, site) in
        [(0, 20, kept), (20, 70, lost), (90, 20, kept), (110, 70, lost), (180, 20, kept)]
    {
        builder.allocate(base + at * MIB, size * MIB, 0, stamp(site));
    }
    for at in [20, 110] {
        builder.free(base + at * MIB, 70 * MIB, 0, stamp(None));
    }
    let request = OutOfMemory { size_bytes: 100 * MIB, device_free_bytes: Some(0), stream: 0 };
    builder.run_out(request, stamp(None));
    let block = |at: u64, size: u64, state| SegmentBlock {
        address: base + at * MIB,
        size_bytes: size * MIB,
        requested_bytes: size * MIB,
        state,
        site: None,
    };
    use BlockState::{Active, Inactive};
    let blocks = vec![
        block(0, 20, Active),
        block(20, 70, Inactive),
        block(90, 20, Active),
        block(110, 70, Inactive),
        block(180, 20, Active),
    ];
    let segment = Segment {
        address: base,
        size_bytes: 200 * MIB,
        stream: 0,
        kind: SegmentKind::Large,
        pool: (0, 0),
        is_expandable: false,
        site: None,
        blocks,
    };
    let recordings = vec![builder.finish(vec![segment])];
    let trace = Trace { format: Format::Snapshot, recordings, sites, settings: None };
    let mut bytes = Vec::new();
    gmm_trace::write_snapshot(&trace, &mut bytes).unwrap();
    bytes
}

#[test]
fn a_failure_is_explained_and_the_advice_was_tried() {
    let folder = Folder::new("advice");
    let file = folder.file("failure.pickle", snapshot_of_a_failure());
    let lines = text(&gmm(&[&file]).stdout);
    let told = lines.replace('\n', " ");
    for wanted in [
        "ran out of memory at event 11 of 11: a request for 100.0 MiB on stream 0 failed",
        "Memory was fragmented, not full: 140.0 MiB were free in all",
        "the largest hole had 70.0 MiB",
        "60.0 MiB in     3: make_cache (model.py:12)",
        "stitching allocator needs 200.0 MiB",
    ] {
        assert!(told.contains(wanted), "{wanted}:\n{lines}");
    }
    let objects = json(&[&file, "-a", "stitching,pytorch"]);
    assert_eq!(objects[0]["advice"], Value::Null, "it stands with pytorch");
    let advice = &objects[1]["advice"];
    assert_eq!(advice["capacity_bytes"], 200 * MIB, "what was reserved and what was free");
    assert_eq!(advice["needed_bytes"], 200 * MIB, "the peak before; at the failure less live");
    let tried = advice["tried"].as_array().unwrap();
    let of = |setting: &str| tried.iter().find(|tried| tried["setting"] == setting).unwrap();
    assert!(tried.iter().any(|tried| tried["setting"] == "max_split_size_mb:128"));
    // Each in a segment of its own: those of 70 MiB can be given back for 100 MiB.
    assert_eq!(of("")["fits"], true);
    let stitching = tried.iter().find(|tried| tried["allocator"] == "stitching").unwrap();
    assert_eq!(stitching["fits"], true);
    assert_eq!(stitching["min_capacity_bytes"], 200 * MIB);
}

#[test]
fn the_page_needs_nothing_else_and_says_what_happened() {
    let folder = Folder::new("page");
    let failure = folder.file("failure.pickle", snapshot_of_a_failure());
    let list = folder.file("a<b>.txt", fragmented_list());
    let page = folder.path("page.html");
    let output = gmm(&[&failure, &list, "--html", &page, "--find-capacity"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let page = fs::read_to_string(page).unwrap();
    for wanted in [
        "failure.pickle, device 2",
        "Memory was fragmented, not full",
        "make_cache (model.py:12)",
        "PYTORCH_CUDA_ALLOC_CONF=max_split_size_mb:128",
        "as recorded",
        "a&lt;b&gt;.txt, device 0",
        "blocks of 30.0 MiB on stream 0",
    ] {
        assert!(page.contains(wanted), "{wanted}");
    }
    assert!(!page.contains("http") && !page.contains("src=") && !page.contains("a<b>"));
    // Of each device: memory over time, and the maps of two allocators.
    assert_eq!(page.matches("<svg").count(), 6);
    assert_eq!(page.matches("<section").count(), page.matches("</section>").count());
}

#[test]
fn a_replay_is_exported_as_a_snapshot_that_replays_the_same() {
    let folder = Folder::new("export");
    let list = folder.file("list.txt", fragmented_list());
    let exported = folder.path("exported.pickle");
    for allocator in ["pytorch", "stitching"] {
        let before = json(&[&list, "-a", allocator, "--export", &exported, "--find-capacity"]);
        let after = json(&[&exported, "-a", allocator, "--find-capacity"]);
        for key in ["peak_live_bytes", "peak_reserved_bytes", "min_capacity_bytes", "timeline"] {
            assert_eq!(before[0][key], after[0][key], "{allocator} {key}");
        }
    }
    let output = gmm(&[&list, "--export", &exported]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("one allocator"));
}

/// 240 blocks of up to 3 MiB on two streams, each of which uses some of the other's; 100 of them live
/// at once, with 150 MiB.
fn two_streams_list() -> String {
    let mut list = String::new();
    for id in 0..240_u64 {
        let size_bytes = id * 1_234_577 % (3 * MIB);
        list += &format!("a {id} {size_bytes} {}\n", id % 2);
        if id % 5 == 0 {
            list += &format!("u {id} {}\n", 1 - id % 2);
        }
        if id >= 100 {
            list += &format!("f {}\n", id - 100);
        }
    }
    list
}

#[test]
fn a_recording_is_executed_on_memory_that_is_looked_at() {
    let folder = Folder::new("execute");
    let list = two_streams_list();
    let file = folder.file("list.txt", &list);
    let whole = ["--execute"];
    let scaled = ["--execute", "--execute-memory", "64MiB"];
    for (options, scale, memory) in [(&whole[..], 1, 1024 * MIB), (&scaled[..], 3, 64 * MIB)] {
        let objects = json(&[&[file.as_str(), "-a", "stitching"], options].concat());
        assert_eq!(objects.len(), 2);
        assert_eq!(objects[0]["execute"], Value::Null);
        let (line, execute) = (&objects[1], &objects[1]["execute"]);
        assert_eq!((&line["file"], &line["device"]), (&file.as_str().into(), &0.into()));
        let number =
            |key: &str| execute[key].as_u64().unwrap_or_else(|| panic!("{key}: {execute}"));
        assert_eq!(number("scale"), scale);
        let recorded = objects[0]["peak_live_bytes"].as_u64().unwrap();
        let live = number("peak_live_bytes");
        assert!((recorded / scale..=memory).contains(&live), "{execute}");
        assert!(number("xpu_memory_bytes") > live);
        assert_eq!(number("operations") as usize, list.lines().count());
        assert!(execute["seconds"].as_f64().unwrap() > 0.0);
        assert!(number("frames_mapped") * 2 * MIB >= live, "{execute}");
        assert!(number("frames_unmapped") <= number("frames_mapped"));
        // Each block has two words at least, and is looked at once at least.
        assert!(number("checked_words") >= 2 * 240 + 2 * 48, "{execute}");
        assert_eq!(number("wrong_words"), 0);
        assert_eq!(
            (&execute["first_wrong"], &execute["out_of_memory_at"]),
            (&Value::Null, &Value::Null)
        );
    }
    let output = gmm(&[&[file.as_str(), "-a", "stitching"], &scaled[..]].concat());
    assert!(output.status.success(), "{}", text(&output.stderr));
    let told = text(&output.stdout).replace('\n', " ");
    let wanted = format!("Executed on a host XPU: all {} operations in ", list.lines().count());
    assert!(told.contains(&wanted) && told.contains("none was wrong"), "{told}");
}

#[test]
fn too_little_memory_to_execute_in_is_said() {
    let folder = Folder::new("execute-little");
    // 68.4 MiB, whatever sizes are divided by.
    let list: String = (0..140_000).map(|id| format!("a {id} {} 0\n", 4 * MIB)).collect();
    let file = folder.file("list.txt", list);
    let of = |memory| gmm(&[&file, "-a", "stitching", "--execute", "--execute-memory", memory]);
    let output = of("1MiB");
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("from 64MiB"), "{}", text(&output.stderr));
    let output = of("64MiB");
    assert_eq!(output.status.code(), Some(1));
    let error = text(&output.stderr);
    assert!(error.contains("68.4 MiB") && error.contains("--execute-memory 69MiB"), "{error}");
    let output = gmm(&[&file, "--execute-memory", "128MiB"]);
    assert_eq!(output.status.code(), Some(2), "it is of no use without --execute");
}

/// Real recordings in a folder of `GMM_TRACES`, or of `../shared/traces` beside the checkout. None,
/// said aloud, if it is not there.
fn real(folder: &str) -> Vec<PathBuf> {
    let beside = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/traces");
    let traces = std::env::var_os("GMM_TRACES").map_or(beside, PathBuf::from).join(folder);
    let entries = fs::read_dir(&traces).into_iter().flatten();
    let mut paths: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    if paths.is_empty() {
        eprintln!("SKIPPED: no recordings in {}; GMM_TRACES names a folder", traces.display());
    }
    paths
}

#[test]
fn real_runs_fit_on_hardly_more_than_what_lives() {
    let paths = real("events");
    let small = ["octree-nca-small", "octree-nca-train", "finetune-oom", "lm-small-forward"];
    for path in paths {
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        if !small.contains(&name.as_str()) {
            continue;
        }
        let objects = json(&[path.to_str().unwrap(), "-a", "stitching", "--find-capacity"]);
        let number = |key: &str| objects[0][key].as_u64().unwrap() as f64;
        let goal = number("peak_live_bytes") * 1.005 + (4 * MIB) as f64;
        assert!(number("min_capacity_bytes") <= goal, "{name}: {}", objects[0]);
    }
}

#[test]
fn a_real_failure_is_told_from_its_snapshot() {
    let paths = real("snapshots");
    let name = "finetune-3-gpus-expandable-oom.pickle";
    let Some(path) = paths.iter().find(|path| path.ends_with(name)) else { return };
    let output = gmm(&[path.to_str().unwrap(), "-a", "pytorch,stitching"]);
    let told = text(&output.stdout).replace('\n', " ");
    let wanted = "ran out of memory at event 422 of 596: a request for 4.9 GiB on stream 0 failed";
    assert!(told.contains(wanted), "{told}");
    assert!(told.contains("The stitching allocator needs"), "{told}");
}
