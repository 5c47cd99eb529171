//! Attribution: phase and scope of every instruction, in every context.

use super::clones::recompute_clones;
use super::contexts::{Contexts, NodeId};
use super::dataflow::Flow;
use super::markers::{Sections, section_phases, sections};
use super::model_code::mark_model_code;
use super::names::Names;
use super::phase::{NameClass, Phase, Rules};
use super::scope::ScopeTree;
use super::values::Values;
use super::whose::Whose;
use crate::ir::{CallRole, Module, Opcode, Row};
use std::sync::OnceLock;

/// Options of the attribution.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AttributionOptions {
    /// The user's rules, which take precedence over names.
    pub rules: Rules,
}

/// Phases and scopes. The columns have one entry per position (see `Contexts::position`): the first
/// `Module::row_count()` entries describe the rows in the first node of their computation.
#[derive(Clone, Debug, Default)]
pub struct Attribution {
    /// Computations in their contexts.
    pub contexts: Contexts,
    /// The scopes that `scope` refers to.
    pub scopes: ScopeTree,
    /// The phase of each position.
    pub phase: Vec<Phase>,
    /// The positions of nameless matmuls and convolutions, and of fusions around them, that took
    /// phase and scope from a user or an operand; ascending.
    pub inferred: Vec<u32>,
    /// Pipeline sections; if there are any, they determine the phases.
    pub sections: Sections,
    /// The scope of each position. The last component of a name is the operation itself.
    pub scope: Vec<u32>,
    whose: OnceLock<Whose>,
    phases: OnceLock<Vec<Phase>>,
}

impl Attribution {
    /// Bytes held on the heap.
    pub fn heap_bytes(&self) -> usize {
        self.contexts.heap_bytes()
            + self.scopes.heap_bytes()
            + self.phase.capacity()
            + 4 * self.scope.capacity()
            + self.whose.get().map_or(0, Whose::heap_bytes)
            + self.phases.get().map_or(0, Vec::capacity)
    }

    /// The phase of `row` at `position`. A row without a name has the phase that [`Whose`] finds, in
    /// the first context of its computation only. `module` must be the module of this attribution.
    pub fn phase_at(&self, module: &Module, position: usize, row: Row) -> Phase {
        match self.phase.get(position) {
            // Only rows without a name are looked up.
            Some(Phase::Unattributed)
                if position == row.0 as usize
                    && self.scope.get(position) == Some(&ScopeTree::ROOT) =>
            {
                self.phases(module).get(position).copied().unwrap_or_default()
            }
            Some(phase) => *phase,
            None => Phase::Unattributed,
        }
    }

    /// The phases of `module`'s rows in the first context of their computation: those of names, and
    /// of rows without a name those that [`Whose`] finds. A name that says nothing of a phase stands.
    pub fn phases(&self, module: &Module) -> &[Phase] {
        self.phases.get_or_init(|| {
            let found = self.whose(module).phase.iter();
            let known = found.zip(&self.phase).zip(&self.scope);
            known
                .map(|((found, own), scope)| match (own, *scope) {
                    (Phase::Unattributed, ScopeTree::ROOT) => *found,
                    _ => *own,
                })
                .collect()
        })
    }

    /// The phases of `module`'s rows, including rows without a name. `module` must be the module of
    /// this attribution.
    pub fn whose(&self, module: &Module) -> &Whose {
        self.whose.get_or_init(|| Whose::new(module, self))
    }
}

/// Phase and scope of every instruction of `module`, from its operation names.
///
/// A row without a name has scope 0 and no phase. A nameless fusion takes the phase and scope of
/// its root (if the root is a tuple, of its first named element). XLA may rewrite a matmul or
/// convolution and leave its name to the next instruction; such a row takes the earliest of its
/// users' phases in the order forward, recompute, backward, optimizer, or, if no user has a name,
/// the latest of its operands' phases. `Attribution::inferred` lists these rows. A copy called
/// `x.remat` has the operation name of its original; the copy is recompute if only backward work
/// uses it.
pub fn attribution(module: &Module, options: &AttributionOptions) -> Attribution {
    let mut scopes = ScopeTree::default();
    let mut names = Names::new(module, &mut scopes);
    let contexts = Contexts::named(module, &mut names, &mut scopes);
    let mut scope = vec![ScopeTree::ROOT; contexts.positions];
    for node in &contexts.nodes {
        let rows = module.computation(node.computation).rows();
        let places = scope[node.start as usize..].iter_mut();
        for (row, place) in rows.zip(places) {
            if let Some(id) = names.id(Row(row)) {
                *place = if node.is_applied {
                    names.applied_scope(&mut scopes, node.prefix, id)
                } else {
                    names.scope(&mut scopes, node.prefix, id)
                };
            }
        }
    }
    let classes: Vec<NameClass> =
        (0..scopes.len() as u32).map(|scope| NameClass::of(scopes.marks(scope))).collect();
    // A scope without rows of its own takes the marks of its children.
    let has_backward = classes.iter().any(|class| {
        matches!(class, NameClass::Backward | NameClass::Recompute | NameClass::Either)
    });
    let by_name = |class: NameClass| match class {
        NameClass::Forward | NameClass::Plain | NameClass::Model | NameClass::Line => {
            Phase::Forward
        }
        NameClass::Backward => Phase::Backward,
        NameClass::Recompute | NameClass::Either => Phase::Recompute,
        NameClass::Unknown => Phase::Unattributed,
    };
    let phases: Vec<Phase> = classes.iter().map(|class| by_name(*class)).collect();
    let mut phase: Vec<Phase> = scope.iter().map(|scope| phases[*scope as usize]).collect();
    if has_backward {
        let of_position = scope.iter().map(|scope| classes[*scope as usize]);
        let mut class: Vec<NameClass> = of_position.collect();
        mark_model_code(module, &contexts, &scopes, &scope, &mut class);
        follow_values(module, &contexts, &class, &mut phase);
    }
    name_fusions(module, &contexts, &mut scope, &mut phase);
    let inferred = infer_products(module, &contexts, &mut scope, &mut phase);
    if has_backward {
        recompute_clones(module, &contexts, &mut phase);
    }
    let sections = sections(module);
    if !sections.is_empty() {
        phase = section_phases(module, &contexts, &sections);
    }
    if !options.rules.is_empty() {
        // By scope: the phase that rules give, filled in when a row needs it.
        let mut ruled: Vec<Option<Option<Phase>>> = vec![None; scopes.len()];
        for (phase, scope) in phase.iter_mut().zip(&scope) {
            let rule = || options.rules.phase(module, &scopes, *scope);
            *phase = ruled[*scope as usize].get_or_insert_with(rule).unwrap_or(*phase);
        }
    }
    let (whose, phases) = (OnceLock::new(), OnceLock::new());
    Attribution { contexts, scopes, phase, scope, inferred, sections, whose, phases }
}

/// Decides by data flow the phases that names leave open.
fn follow_values(module: &Module, contexts: &Contexts, class: &[NameClass], phase: &mut [Phase]) {
    let values = Values::new(module, contexts);
    let mut flow = Flow::new(&values, class);
    flow.forwards();
    flow.backwards();
    for (id, node) in contexts.nodes.iter().enumerate().filter(|(id, _)| flow.is_open(*id as u32)) {
        for (at, row) in (node.start as usize..).zip(module.computation(node.computation).rows()) {
            match class[at] {
                NameClass::Either if flow.is_backward(id as u32, row) => {
                    phase[at] = Phase::Backward;
                }
                NameClass::Plain | NameClass::Line if flow.is_optimizer(id as u32, row) => {
                    phase[at] = Phase::Optimizer;
                }
                _ => {}
            }
        }
    }
}

/// Limit on the elements of a fusion's result that are searched for a name.
const MOST_ELEMENTS: usize = 256;

/// Gives nameless fusions the phase and scope of their roots.
fn name_fusions(module: &Module, contexts: &Contexts, scope: &mut [u32], phase: &mut [Phase]) {
    // Callees first, for fusions inside fusions.
    for index in (0..contexts.edges.len()).rev() {
        let edge = contexts.edges[index];
        let call = module.all_calls()[edge.call as usize];
        if call.role != CallRole::Calls || module.opcode(call.row) != Opcode::Fusion {
            continue;
        }
        let at = contexts.position(module, edge.caller, call.row);
        if scope[at] != ScopeTree::ROOT {
            continue;
        }
        let callee = module.computation(call.computation);
        if callee.rows().is_empty() {
            continue;
        }
        let elements = match module.opcode(Row(callee.root)) {
            Opcode::Tuple => module.operands(Row(callee.root)),
            _ => &[],
        };
        let mut named = std::iter::once(callee.root)
            .chain(elements.iter().copied().take(MOST_ELEMENTS))
            .filter(|row| callee.rows().contains(row))
            .map(|row| contexts.position(module, edge.callee, Row(row)))
            .filter(|position| scope[*position] != ScopeTree::ROOT);
        if let Some(position) = named.next() {
            scope[at] = scope[position];
            phase[at] = phase[position];
        }
    }
}

/// Gives nameless matmuls and convolutions, and fusions around them, the phase and scope of their
/// users or operands, looking through nameless rows; returns the positions.
fn infer_products(
    module: &Module,
    contexts: &Contexts,
    scope: &mut [u32],
    phase: &mut [Phase],
) -> Vec<u32> {
    let is_product =
        |row: u32| matches!(module.opcode(Row(row)), Opcode::Dot | Opcode::Convolution);
    let mut nameless = (0..module.row_count() as u32)
        .filter(|row| is_product(*row) && scope[*row as usize] == ScopeTree::ROOT);
    if nameless.next().is_none() || scope.iter().all(|scope| *scope == ScopeTree::ROOT) {
        return Vec::new();
    }
    // A user's phase bounds the phase of its operands: an operand of recompute work is not backward
    // work.
    let order = |phase: Phase| match phase {
        Phase::Forward => 0,
        Phase::Recompute => 1,
        Phase::Backward => 2,
        Phase::Optimizer | Phase::Unattributed => 3,
    };
    // By position: phase and scope from its users, once known.
    let mut heirs: Vec<Option<(u32, Phase)>> = vec![None; contexts.positions];
    // By node: the fusion that calls it.
    let mut fusions: Vec<Option<(NodeId, Row)>> = vec![None; contexts.nodes.len()];
    let mut is_shared = vec![false; contexts.nodes.len()];
    for edge in &contexts.edges {
        let row = module.all_calls()[edge.call as usize].row;
        let callee = edge.callee as usize;
        is_shared[callee] |= fusions[callee].is_some();
        if module.opcode(row) == Opcode::Fusion {
            fusions[callee] = Some((edge.caller, row));
        }
    }
    let mut inferred = Vec::new();
    for (id, node) in contexts.nodes.iter().enumerate() {
        let computation = module.computation(node.computation);
        let fusion = fusions[id].filter(|_| !is_shared[id]);
        let fusion = fusion.map(|(caller, row)| contexts.position(module, caller, row));
        let offset = node.start.wrapping_sub(computation.first_row);
        let position = |row: u32| row.wrapping_add(offset) as usize;
        for row in computation.rows().rev() {
            let at = position(row);
            if phase[at] != Phase::Unattributed {
                heirs[at] = Some((scope[at], phase[at]));
                continue;
            }
            if scope[at] != ScopeTree::ROOT {
                continue;
            }
            let said = module
                .users()
                .get(row)
                .iter()
                .filter_map(|user| heirs[position(*user)])
                .chain(fusion.filter(|_| row == computation.root).and_then(|at| heirs[at]));
            let heir = said.min_by_key(|(_, phase)| order(*phase));
            heirs[at] = heir;
            if let Some(heir) = heir.filter(|_| is_product(row)) {
                (scope[at], phase[at]) = heir;
                inferred.push(at as u32);
            }
        }
    }
    // Rows without a named user take the latest phase among their operands.
    let mut givers: Vec<Option<(u32, Phase)>> = vec![None; contexts.positions];
    for (id, node) in contexts.nodes.iter().enumerate() {
        let arguments = fusions[id].filter(|_| !is_shared[id]);
        let rows = module.computation(node.computation).rows();
        let offset = node.start.wrapping_sub(rows.start);
        let position = |row: u32| row.wrapping_add(offset) as usize;
        for row in rows {
            let at = position(row);
            if phase[at] != Phase::Unattributed {
                givers[at] = Some((scope[at], phase[at]));
                continue;
            }
            if scope[at] != ScopeTree::ROOT {
                continue;
            }
            let operands = module.operands(Row(row)).iter();
            let given = operands.filter_map(|row| givers[position(*row)]);
            givers[at] = given.max_by_key(|(_, phase)| order(*phase));
            if let Some((caller, fusion)) = arguments
                && let Ok(number) = usize::try_from(module.parameter_number_column()[row as usize])
                && let Some(operand) = module.operands(fusion).get(number)
            {
                givers[at] = givers[contexts.position(module, caller, Row(*operand))];
            }
            if let Some(giver) = givers[at].filter(|_| is_product(row)) {
                (scope[at], phase[at]) = giver;
                inferred.push(at as u32);
            }
        }
    }
    inferred.sort_unstable();
    let products = inferred.len();
    // Callees first, for fusions inside fusions.
    for (callee, fusion) in fusions.iter().enumerate().rev() {
        let Some((caller, row)) = *fusion else { continue };
        let fusion = contexts.position(module, caller, row);
        let computation = module.computation(contexts.nodes[callee].computation);
        if scope[fusion] != ScopeTree::ROOT || is_shared[callee] || computation.rows().is_empty() {
            continue;
        }
        let root = contexts.position(module, callee as u32, Row(computation.root));
        if inferred[..products].binary_search(&(root as u32)).is_ok() {
            (scope[fusion], phase[fusion]) = (scope[root], phase[root]);
            inferred.push(fusion as u32);
        }
    }
    inferred.sort_unstable();
    inferred
}
