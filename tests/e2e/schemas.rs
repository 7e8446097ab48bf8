//! The published JSON schemas.

use serde_json::Value;

use crate::daemon::{repository, sample};

fn schema(name: &str) -> Value {
    let path = repository("docs/schemas").join(format!("{name}.schema.json"));
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    serde_json::from_str(&text).unwrap()
}

/// Holds a value against a published schema.
pub fn check(name: &str, value: &Value) {
    let validator = jsonschema::validator_for(&schema(name)).unwrap();
    let errors: Vec<String> = validator
        .iter_errors(value)
        .map(|e| format!("{}: {e}", e.instance_path()))
        .collect();
    assert!(
        errors.is_empty(),
        "{name}: {}\n{value:#}",
        errors.join("\n")
    );
}

#[test]
fn every_schema_is_one() {
    let mut count = 0;
    for entry in std::fs::read_dir(repository("docs/schemas")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|e| e == "json") {
            let schema = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
            assert!(jsonschema::meta::is_valid(&schema), "{}", path.display());
            count += 1;
        }
    }
    assert!(count >= 12);
}

#[test]
fn the_samples_are_work_item_programs() {
    for entry in std::fs::read_dir(sample("")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|e| e == "json") {
            let text = std::fs::read_to_string(&path).unwrap();
            check("work-item", &serde_json::from_str(&text).unwrap());
        }
    }
}
