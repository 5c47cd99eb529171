//! Random modules: what is read is what was generated, and printing changes nothing.

use crate::support::generate::generate;
use crate::support::round_trip::{all_print_options, check_round_trip, parse};
use hlofast::ir::Row;
use hlofast::print::{FingerprintOptions, fingerprint, shape_to_text};
use proptest::prelude::*;

fn name_of(module: &hlofast::ir::Module, row: Row) -> String {
    String::from_utf8_lossy(module.instruction_name(row)).into_owned()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn reading_finds_what_was_generated(seed in any::<u64>(), size in 1usize..30) {
        let generated = generate(seed, size);
        let module = parse(generated.text.as_bytes());
        let mut count = 0;
        for (name, rows) in &generated.computations {
            let id = module.find_computation(name.as_bytes()).expect("the computation is there");
            for expected in rows {
                count += 1;
                let row = module.find_in_computation(id, expected.name.as_bytes());
                let row = row.expect("the instruction is there");
                prop_assert_eq!(module.opcode(row).as_str(), &expected.opcode);
                let shape = shape_to_text(&module, module.shape(row), true);
                prop_assert_eq!(String::from_utf8_lossy(&shape), expected.shape.as_str());
                let operands = module.operands(row);
                prop_assert_eq!(operands.len(), expected.operands.len());
                for (operand, wanted) in operands.iter().zip(&expected.operands) {
                    let operand = Row(*operand);
                    prop_assert_eq!(module.is_implicit(operand), wanted.is_none());
                    if let Some(wanted) = wanted {
                        prop_assert_eq!(&name_of(&module, operand), wanted);
                    }
                }
                prop_assert_eq!(module.computation(id).root == row.0, expected.is_root);
            }
        }
        // Inline computations have three instructions each; nothing else was written.
        let inline = module.computations().iter().filter(|c| c.is_inline).count();
        prop_assert_eq!(module.instruction_count(), count + 3 * inline);
    }

    #[test]
    fn every_printed_form_reads_as_the_same_module(seed in any::<u64>(), size in 1usize..30) {
        let module = parse(generate(seed, size).text.as_bytes());
        for options in all_print_options() {
            let text = check_round_trip(&module, &options);
            // Canonical text does not depend on how the original was written.
            let again = check_round_trip(&parse(&text), &options);
            prop_assert!(text == again, "{}", String::from_utf8_lossy(&text));
        }
    }

    #[test]
    fn fingerprints_do_not_depend_on_the_form_of_text(seed in any::<u64>(), size in 1usize..30) {
        let module = parse(generate(seed, size).text.as_bytes());
        for bits in 0..64u32 {
            let bit = |n: u32| bits & (1 << n) != 0;
            let options = FingerprintOptions {
                names: false,
                channel_ids: bit(0),
                metadata: bit(1),
                layouts: bit(2),
                backend_config: bit(3),
                schedule: bit(4),
            };
            let mut print = hlofast::print::PrintOptions { fold: bit(5), ..Default::default() };
            print.metadata = options.metadata;
            print.layouts = options.layouts;
            print.backend_config = options.backend_config;
            let again = parse(&hlofast::print::to_text(&module, &print));
            prop_assert_eq!(fingerprint(&module, &options), fingerprint(&again, &options));
        }
    }
}
