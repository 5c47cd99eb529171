//! `low-precision-in-f32`: f32 matmuls of 16-bit parameters.
//!
//! A matmul counts if both sides are f32 and one is converted from a 16-bit floating-point
//! parameter. So do the matmuls that compute the gradients of these parameters: their results have
//! as many elements and are only used after a convert back to 16 bits.
//!
//! TPU compilers round f32 operands to bf16 unless the program asks for more precision, so there the
//! matmuls take as long and only the operands are larger. After optimisation for TPUs nothing is
//! found: the convert is part of the matmul.

use super::finding::Measure;
use super::program::{Program, counted, element_type, form, grouped, is_narrow, percent};
use super::site::{Rule, Site};
use crate::cost::Backend;
use crate::flow::walk::{Trail, Use, conversions, converts, uses};
use crate::ir::{ElementType, Module, Opcode, Row};

pub(super) const RULE: Rule = Rule {
    code: "low-precision-in-f32",
    what: "f32 matmuls of 16-bit parameters",
    measure: Measure::None,
    find,
    message,
    remedy: "multiply in the type of the parameters: cast activations down instead of weights up, \
             and request f32 accumulation with preferred_element_type=jnp.float32 (in Flax, \
             dtype=jnp.bfloat16 on the layer); activations are then rounded to 16 bits",
};

fn keeps(opcode: Opcode) -> bool {
    use Opcode::*;
    converts(opcode)
        || matches!(opcode, Slice | DynamicSlice | AllGather | AllGatherStart | AllGatherDone)
}

/// The 16-bit entry parameter of which the f32 array `row` is a copy.
fn widened(module: &Module, row: Row) -> Option<Row> {
    let mut trail = Trail::new(row);
    let mut is_widened = false;
    loop {
        is_widened |= module.opcode(trail.row) == Opcode::Convert
            && element_type(module, trail.row) == Some(ElementType::F32)
            && module
                .operands(trail.row)
                .first()
                .and_then(|from| element_type(module, Row(*from)))
                .is_some_and(is_narrow);
        if !trail.step(module, keeps) {
            break;
        }
    }
    let row = trail.row;
    let is_parameter = module.opcode(row) == Opcode::Parameter
        && module.callers(module.computation_of(row)).is_empty();
    (is_widened && is_parameter).then_some(row)
}

/// Whether XLA:CPU compiled the program: it has no 16-bit matmuls and widens them itself.
pub(super) fn is_widened_by_compiler(program: &Program<'_>) -> bool {
    program.cost.backend == Backend::Cpu && program.module.is_scheduled()
}

fn find(program: &Program<'_>, sites: &mut Vec<Site>) {
    let module = program.module;
    if is_widened_by_compiler(program) {
        return;
    }
    let mut others = Vec::new();
    let mut weights: Vec<(u64, ElementType)> = Vec::new();
    for row in program.products() {
        let [lhs, rhs, ..] = *module.operands(row) else { continue };
        let is_f32 = |row| element_type(module, Row(row)) == Some(ElementType::F32);
        if !is_f32(lhs) || !is_f32(rhs) {
            continue;
        }
        match widened(module, Row(lhs)).or_else(|| widened(module, Row(rhs))) {
            Some(parameter) => {
                if let (Some(elements), Some(weight_type)) =
                    (program.elements(parameter), element_type(module, parameter))
                {
                    weights.push((elements, weight_type));
                }
                sites.extend(site(program, row, Some(parameter)));
            }
            None => others.push(row),
        }
    }
    let key = |(elements, weight_type): &(u64, ElementType)| (*elements, weight_type.as_str());
    weights.sort_unstable_by_key(key);
    weights.dedup();
    for row in others {
        let Some(elements) = program.elements(row) else { continue };
        let is_weight = |weight_type: ElementType| {
            weights.binary_search_by_key(&(elements, weight_type.as_str()), key).is_ok()
        };
        let is_gradient = |used: &Use| {
            module.opcode(used.row) == Opcode::Convert
                && element_type(module, used.row).is_some_and(is_weight)
        };
        let passes = |module: &Module, row: Row, operand: usize| {
            conversions(module, row, operand) && module.opcode(row) != Opcode::Convert
        };
        if !weights.is_empty()
            && uses(&program.walk, row, passes, is_gradient).is_some_and(|uses| !uses.is_empty())
        {
            sites.extend(site(program, row, None));
        }
    }
}

fn site(program: &Program<'_>, row: Row, parameter: Option<Row>) -> Option<Site> {
    let runs = program.runs(row);
    let flops = program.product_flops(row)?;
    let mut site = Site::new(row).runs(&runs).common("matmul_flops", program.matmul_flops());
    site.flops = runs.times(flops);
    site.evidence.extend(parameter);
    site.provenance = program.cost.provenance.get(row.0 as usize).copied().unwrap_or_default();
    Some(site)
}

fn message(program: &Program<'_>, site: &Site) -> String {
    let flops = site.flops.unwrap_or(0);
    let together = program.together();
    format!(
        "{} in f32 although {} 16-bit: {} FLOPs per step{together}, {} of all matmul FLOPs, with operands \
         twice as large, and at the f32 rate on GPUs and where more than the default precision is \
         requested",
        counted(site.places, "matmul runs", "matmuls run"),
        form(site.places, "its parameter is", "their parameters are"),
        grouped(flops),
        percent(flops, program.matmul_flops()),
    )
}
