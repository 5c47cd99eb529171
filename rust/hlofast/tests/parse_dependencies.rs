//! Dependencies that lead nowhere: cycles through control predecessors, names of instructions
//! that were dropped with their slot.

use hlofast::ir::{Opcode, Row};
use hlofast::parse::Options;
use hlofast::text::Source;
use hlofast::{ErrorKind, parse};

fn entry(body: &str) -> Source {
    let text = format!("HloModule m\n\nENTRY e {{\n  a = f32[2] parameter(0)\n{body}}}\n");
    Source::from_slice(text.as_bytes())
}

#[test]
fn control_predecessors_close_no_cycle() {
    for body in [
        "  x = f32[2] negate(a), control-predecessors={%y}\n  ROOT y = f32[2] negate(x)\n",
        "  ROOT x = f32[2] negate(a), control-predecessors={%x}\n",
        "  x = f32[2] negate(a), control-predecessors={%y}\n  y = f32[2] negate(a), \
         control-predecessors={%x}\n",
    ] {
        let error = parse(entry(body), &Options::default()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::UnknownInstruction, "{body}");
        let options = Options { collect_errors: true, ..Options::default() };
        let module = parse(entry(body), &options).unwrap();
        assert_eq!(module.errors().len(), 1, "{body}");
        let edges = module.control_predecessors().len();
        let operands: usize = module.rows().map(|row| module.operands(row).len()).sum();
        assert!(edges + operands <= 3, "{body}");
    }
}

#[test]
fn forward_control_predecessors_are_kept() {
    let body = "  x = f32[2] negate(a), control-predecessors={%y}\n  y = f32[2] negate(a)\n";
    let module = parse(entry(body), &Options::default()).unwrap();
    assert_eq!(module.control_predecessors(), [(Row(1), Row(2))]);
}

#[test]
fn complete_instructions_of_dropped_slots_stay() {
    for body in [
        "  x = f32[2] negate(a, negate(multiply(a,a), a))\n  y = f32[2] negate(multiply.anon)\n",
        "  x = f32[2] negate(a, negate(multiply(subtract(subtract(a,a),a),a), a))\n  \
         ROOT y = f32[2] negate(multiply.anon)\n",
    ] {
        let module = parse(entry(body), &Options::default()).unwrap();
        let row = module.find_in_computation(module.entry(), b"y").unwrap();
        let operand = Row(module.operands(row)[0]);
        assert_eq!(module.opcode(operand), Opcode::Multiply, "{body}");
    }
    let body = "  x = f32[2] add(multiply(subtract(subtract(a,a),a),a), foo(a))\n  \
                ROOT y = negate(multiply.anon)\n";
    let options = Options { collect_errors: true, ..Options::default() };
    let module = parse(entry(body), &options).unwrap();
    assert!(!module.errors().is_empty());
    for row in module.rows() {
        assert!(module.operands(row).iter().all(|operand| *operand < module.row_count() as u32));
    }
}
