//! The layer rule: a crate may use only crates below it.
//!
//! The order is that of `ARCHITECTURE.md`. It is held by what cargo says of the manifests, so a
//! dependency that breaks it fails here, whatever the code does with it.

use anyhow::{Result, bail};
use serde_json::Value;

use super::{Context, Done};

/// The layers, lowest first. A package is found by its folder in the workspace; `drivers/*` is
/// each folder of drivers. Packages of one layer do not use each other.
const LAYERS: [&[&str]; 7] = [
    // The kernels are programs for an XPU: they stand beside the core and use nothing of ours.
    // Nor does what drivers need of the operating system, nor what reads recordings.
    &["crates/gmm-core", "crates/gmm-os", "crates/gmm-trace", "drivers/*/kernels"],
    &["crates/gmm-driver-tests"],
    &["crates/gmm-sim", "crates/gmm-alloc"],
    &["drivers/*"],
    &["crates/gmm"],
    &["crates/gmm-cli"],
    &["xtask"],
];

/// The conformance kit: for tests only, and then for everybody.
const KIT: &str = "gmm-driver-tests";

/// All that the core may take from outside, and under which condition.
const CORE_DEPENDENCIES: [(&str, Option<&str>); 4] = [
    ("bitflags", None),
    ("thiserror", None),
    ("crossbeam-utils", None),
    ("shuttle", Some("cfg(shuttle)")),
];

/// What cargo says of one package of the workspace.
struct Package {
    name: String,
    /// Relative to the workspace, such as `drivers/cpu`.
    folder: String,
    dependencies: Vec<Dependency>,
}

struct Dependency {
    name: String,
    dev: bool,
    target: Option<String>,
}

/// The step `layers`.
pub(super) fn step(context: &Context) -> Result<Done> {
    let packages = packages(&context.workspace.metadata)?;
    let broken = check(&packages);
    if !broken.is_empty() {
        bail!("{}", broken.join("\n"));
    }
    for (level, folders) in LAYERS.iter().enumerate().rev() {
        let of_level = |package: &&Package| level_of(&package.folder) == Some(level);
        let names: Vec<_> = packages.iter().filter(of_level).map(|p| p.name.as_str()).collect();
        println!("  {:<45} {}", folders.join(", "), names.join(", "));
    }
    Ok(Done::ok(format!("{} packages in order", packages.len())))
}

/// Reads the answer of `cargo metadata --no-deps`.
fn packages(metadata: &Value) -> Result<Vec<Package>> {
    let root = metadata["workspace_root"].as_str().unwrap_or_default();
    let mut packages = Vec::new();
    for package in metadata["packages"].as_array().into_iter().flatten() {
        let manifest = package["manifest_path"].as_str().unwrap_or_default();
        let folder = manifest.strip_prefix(root).and_then(|path| path.strip_suffix("/Cargo.toml"));
        let (Some(name), Some(folder)) = (package["name"].as_str(), folder) else {
            bail!("cargo metadata: a package without name or place: {manifest:?}");
        };
        let dependencies = package["dependencies"].as_array().into_iter().flatten();
        let dependencies = dependencies.map(|dependency| Dependency {
            name: dependency["name"].as_str().unwrap_or_default().to_owned(),
            dev: dependency["kind"] == "dev",
            target: dependency["target"].as_str().map(str::to_owned),
        });
        packages.push(Package {
            name: name.to_owned(),
            folder: folder.trim_start_matches('/').to_owned(),
            dependencies: dependencies.collect(),
        });
    }
    if packages.is_empty() {
        bail!("cargo metadata names no package");
    }
    Ok(packages)
}

/// What breaks the rule, a sentence each.
fn check(packages: &[Package]) -> Vec<String> {
    let mut broken = Vec::new();
    for package in packages {
        let name = &package.name;
        let Some(level) = level_of(&package.folder) else {
            broken.push(format!(
                "{name} ({}) has no layer: name it in LAYERS of xtask/src/test/layers.rs",
                package.folder
            ));
            continue;
        };
        for dependency in &package.dependencies {
            let used = &dependency.name;
            let Some(ours) = packages.iter().find(|other| other.name == *used) else {
                if name == "gmm-core" && !dependency.dev {
                    broken.extend(foreign_to_core(dependency));
                }
                continue;
            };
            if used == KIT && dependency.dev {
                continue;
            }
            if used == KIT {
                broken.push(format!("{name} uses {KIT}, which only dev-dependencies may"));
            } else if level_of(&ours.folder).is_some_and(|below| below >= level) {
                broken.push(format!(
                    "{name} ({}) uses {used} ({}), which is not below it",
                    package.folder, ours.folder
                ));
            }
        }
    }
    broken
}

fn foreign_to_core(dependency: &Dependency) -> Option<String> {
    let Dependency { name, target, .. } = dependency;
    match CORE_DEPENDENCIES.iter().find(|(allowed, _)| allowed == name) {
        None => Some(format!("gmm-core uses {name}: it takes nothing but {}", core_may_use())),
        Some((_, condition)) if condition.is_some() && *condition != target.as_deref() => {
            Some(format!("gmm-core uses {name} other than under {}", condition.unwrap_or_default()))
        }
        Some(_) => None,
    }
}

fn core_may_use() -> String {
    CORE_DEPENDENCIES.map(|(name, _)| name).join(", ")
}

fn level_of(folder: &str) -> Option<usize> {
    LAYERS.iter().position(|folders| folders.iter().any(|pattern| matches(pattern, folder)))
}

/// Does `folder` fit `pattern`, in which `*` is one folder's name?
fn matches(pattern: &str, folder: &str) -> bool {
    let (mut parts, mut names) = (pattern.split('/'), folder.split('/'));
    loop {
        match (parts.next(), names.next()) {
            (None, None) => return true,
            (Some(part), Some(name)) if part == "*" || part == name => {}
            _ => return false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// A graph in cargo's form: package, folder, and what it uses. `dev:` marks a dev-dependency.
    fn graph(list: &[(&str, &str, &[&str])]) -> Vec<Package> {
        let packages: Vec<Value> = list
            .iter()
            .map(|(name, folder, uses)| {
                let uses: Vec<Value> = uses
                    .iter()
                    .map(|used| match used.split_once(':') {
                        Some(("dev", used)) => json!({"name": used, "kind": "dev"}),
                        Some((target, used)) => json!({"name": used, "target": target}),
                        None => json!({"name": used, "kind": null, "target": null}),
                    })
                    .collect();
                json!({
                    "name": name,
                    "manifest_path": format!("/w/{folder}/Cargo.toml"),
                    "dependencies": uses,
                })
            })
            .collect();
        super::packages(&json!({"workspace_root": "/w", "packages": packages})).unwrap()
    }

    const CORE: (&str, &str, &[&str]) = ("gmm-core", "crates/gmm-core", &[]);
    const TESTS: (&str, &str, &[&str]) = (KIT, "crates/gmm-driver-tests", &["gmm-core"]);

    #[test]
    fn the_order_as_designed_passes() {
        let core = ("gmm-core", "crates/gmm-core", &["thiserror", "dev:proptest"] as &[&str]);
        let packages = graph(&[
            core,
            TESTS,
            ("gmm-sim", "crates/gmm-sim", &["dev:gmm-core", "dev:gmm-driver-tests"]),
            ("gmm-cpu", "drivers/cpu", &["gmm-core", "rustix", "dev:gmm-driver-tests"]),
            ("gmm-hostxpu", "drivers/hostxpu", &["gmm-core", "dev:gmm-kernels"]),
            ("gmm-kernels", "drivers/hostxpu/kernels", &[]),
            ("gmm-memory", "crates/gmm", &["gmm-core", "gmm-cpu", "gmm-hostxpu"]),
            ("gmm-cli", "crates/gmm-cli", &["gmm-memory"]),
            ("xtask", "xtask", &["anyhow"]),
        ]);
        assert_eq!(check(&packages), [""; 0]);
    }

    #[test]
    fn a_dependency_upwards_is_broken() {
        let core = ("gmm-core", "crates/gmm-core", &["gmm-cpu"] as &[&str]);
        let broken = check(&graph(&[core, ("gmm-cpu", "drivers/cpu", &["gmm-core"])]));
        assert_eq!(broken.len(), 1);
        assert!(broken[0].contains("gmm-core") && broken[0].contains("gmm-cpu"), "{broken:?}");
    }

    #[test]
    fn a_dev_dependency_upwards_is_broken_too() {
        let cpu = ("gmm-cpu", "drivers/cpu", &["dev:gmm-memory"] as &[&str]);
        assert_eq!(check(&graph(&[CORE, cpu, ("gmm-memory", "crates/gmm", &[])])).len(), 1);
    }

    #[test]
    fn drivers_do_not_use_each_other() {
        let broken = check(&graph(&[
            CORE,
            ("gmm-cpu", "drivers/cpu", &["gmm-core"]),
            ("gmm-hostxpu", "drivers/hostxpu", &["gmm-core", "gmm-cpu"]),
        ]));
        assert_eq!(broken.len(), 1);
        assert!(broken[0].contains("not below"), "{broken:?}");
    }

    /// How many rules break if a package in `folder` has the one dependency `used`.
    fn nr_broken(name: &str, folder: &str, used: &str) -> usize {
        check(&graph(&[(name, folder, &[used]), TESTS])).len()
    }

    #[test]
    fn the_kit_is_for_tests_only() {
        assert_eq!(nr_broken("gmm-cpu", "drivers/cpu", "dev:gmm-driver-tests"), 0);
        assert_eq!(nr_broken("gmm-cpu", "drivers/cpu", "gmm-driver-tests"), 1);
        assert_eq!(nr_broken("gmm-core", "crates/gmm-core", "dev:gmm-driver-tests"), 0);
    }

    #[test]
    fn the_core_takes_little_from_outside() {
        for (used, expected) in [
            ("bitflags", 0),
            ("libc", 1),
            ("dev:libc", 0),
            ("shuttle", 1),
            ("cfg(unix):shuttle", 1),
            ("cfg(shuttle):shuttle", 0),
        ] {
            assert_eq!(nr_broken("gmm-core", "crates/gmm-core", used), expected, "{used}");
        }
    }

    #[test]
    fn a_package_without_a_layer_is_named() {
        let broken = check(&graph(&[("gmm-new", "crates/gmm-new", &[])]));
        assert!(broken[0].contains("gmm-new") && broken[0].contains("no layer"), "{broken:?}");
    }
}
