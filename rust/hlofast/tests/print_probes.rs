//! Printing every probe that XLA accepts (`tests/probes/verdicts.jsonl.gz`): what is read again is
//! the same module, and strict mode, which mirrors XLA's parser, reads it too.

use crate::support::reading::{Probe, probes};
use hlofast::ir::Module;
use hlofast::parse::Strictness;
use hlofast::print::{Form, PrintOptions, structurally_equal, to_text};
use hlofast::text::Source;

fn read(text: &[u8], strictness: Strictness) -> hlofast::Result<Module> {
    let options = hlofast::Options { strictness, ..hlofast::Options::default() };
    hlofast::parse(Source::from_slice(text), &options)
}

#[test]
fn printed_probes_are_read_as_the_same_modules_by_both_modes() {
    let (mut count, mut faults) = (0, Vec::new());
    for Probe { id, text, .. } in probes().into_iter().filter(|probe| probe.is_accepted) {
        let Ok(module) = read(text.as_bytes(), Strictness::Tolerant) else { continue };
        // XLA drops nested operands it cannot read; tolerant reading keeps them as instructions.
        let was_strict =
            !id.starts_with("dropped/") && read(text.as_bytes(), Strictness::Jaxlib).is_ok();
        for form in [Form::Long, Form::Short] {
            for (fold, operand_shapes) in [(false, false), (true, false), (false, true)] {
                let options =
                    PrintOptions { form, fold, operand_shapes, ..PrintOptions::default() };
                let printed = to_text(&module, &options);
                let again = match read(&printed, Strictness::Tolerant) {
                    Ok(again) => again,
                    Err(error) => {
                        faults.push(format!("{id}: {error}"));
                        continue;
                    }
                };
                if let Err(difference) = structurally_equal(&module, &again) {
                    faults.push(format!("{id}: {difference}"));
                }
                if was_strict
                    && !fold
                    && let Err(error) = read(&printed, Strictness::Jaxlib)
                {
                    faults.push(format!("{id}: strict mode: {error}"));
                }
                count += 1;
            }
        }
    }
    assert!(count > 10_000, "only {count} prints");
    assert!(faults.is_empty(), "{} faults\n{}", faults.len(), faults.join("\n"));
}
