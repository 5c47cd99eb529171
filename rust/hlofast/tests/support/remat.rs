//! What tests of reports and plans ask of a module.

use hlofast::Analyses;
use hlofast::ir::{Module, Row};
use hlofast::memory::{Options, Rule};
use hlofast::remat::{Counting, Plan, PlanOptions};

/// A module and its report.
pub type Reported = Analyses<Module>;

/// Instructions by name, and plans that there are.
pub trait Asked {
    fn planned(&self, options: &PlanOptions) -> Plan;
    fn name(&self, row: Row) -> String;
    fn row(&self, name: &str) -> Row;
}

impl Asked for Reported {
    fn planned(&self, options: &PlanOptions) -> Plan {
        self.plan(None, options).expect("a plan")
    }

    fn name(&self, row: Row) -> String {
        String::from_utf8_lossy(self.module().instruction_name(row)).into_owned()
    }

    fn row(&self, name: &str) -> Row {
        Row(*self.module().find_instructions(name.as_bytes()).first().expect(name))
    }
}

/// To plan by `rule`.
pub fn by(rule: Rule) -> PlanOptions {
    let memory = Options { rule, ..Options::default() };
    PlanOptions { counting: Counting { memory, tables: None }, ..PlanOptions::default() }
}
