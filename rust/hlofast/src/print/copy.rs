//! Prints copies of instructions and computations under new names.

use super::{PrintOptions, Printer};
use crate::ir::{ComputationId, Module, Row, ShapeId};
use std::collections::HashMap;

/// How copies differ from their originals.
#[derive(Clone, Debug, Default)]
pub(crate) struct Renaming {
    /// Names of rows: of the copies and of the rows that they use.
    pub rows: HashMap<u32, Vec<u8>>,
    /// Names of computations.
    pub computations: HashMap<u32, Vec<u8>>,
    /// Channels of collectives.
    pub channels: HashMap<u32, i64>,
    /// Shapes of results. `backend_config` and `frontend_attributes` describe the original shape
    /// and place, so they are left out.
    pub shapes: HashMap<u32, ShapeId>,
    /// Memory spaces of results that are arrays.
    pub spaces: HashMap<u32, i64>,
}

const OPTIONS: PrintOptions = PrintOptions {
    form: super::Form::Long,
    operand_shapes: false,
    layouts: true,
    metadata: true,
    backend_config: true,
    // Copies are inserted into the original text and may use only names that the text contains.
    fold: true,
};

/// Prints copies of parts of one module.
pub(crate) struct CopyPrinter<'a>(Printer<'a>);

impl<'a> CopyPrinter<'a> {
    pub(crate) fn new(module: &'a Module) -> Self {
        Self(Printer { keeps_signs: true, ..Printer::new(module, &OPTIONS) })
    }

    /// A copy of `row`, never a root and without control predecessors.
    pub(crate) fn instruction(&mut self, row: Row, renaming: Renaming) -> (Vec<u8>, Renaming) {
        self.0.is_copy = true;
        let printed = self.print(renaming, |printer| printer.instruction(row));
        self.0.is_copy = false;
        printed
    }

    /// A copy of a computation.
    pub(crate) fn computation(
        &mut self,
        id: ComputationId,
        renaming: Renaming,
    ) -> (Vec<u8>, Renaming) {
        self.print(renaming, |printer| printer.computation(id))
    }

    /// Lends `renaming` to the printer, which would otherwise copy it each time.
    fn print(
        &mut self,
        renaming: Renaming,
        write: impl FnOnce(&mut Printer<'a>),
    ) -> (Vec<u8>, Renaming) {
        self.0.names.renaming = renaming;
        write(&mut self.0);
        (std::mem::take(&mut self.0.out), std::mem::take(&mut self.0.names.renaming))
    }
}
