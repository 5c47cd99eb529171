//! The report and the plan of a module, with everything they rest on.

use hlofast::comms::{Collectives, collectives};
use hlofast::cost::{self, Cost, Facts};
use hlofast::flow::{Attribution, AttributionOptions, attribution};
use hlofast::ir::{Module, Row};
use hlofast::memory::{MemoryError, Options, Rule};
use hlofast::remat::{Analysed, Counting, Plan, PlanOptions, Report, plan, report};

/// A module and its report.
pub struct Reported {
    pub module: Module,
    pub cost: Cost,
    pub attribution: Attribution,
    pub collectives: Collectives,
    pub report: Report,
}

impl Reported {
    pub fn new(module: Module) -> Self {
        let cost = cost::cost(&module, &Facts::of_module(&module), &cost::Options::default());
        let attribution = attribution(&module, &AttributionOptions::default());
        let collectives = collectives(&module, &cost, &attribution);
        let report = report(&module, &cost, &attribution, &collectives);
        Self { module, cost, attribution, collectives, report }
    }

    pub fn try_plan(&self, options: &PlanOptions) -> Result<Plan, MemoryError> {
        let analysed = Analysed {
            module: &self.module,
            cost: &self.cost,
            attribution: &self.attribution,
            collectives: &self.collectives,
            residuals: &self.report.residuals,
            seconds: None,
        };
        plan(&analysed, options)
    }

    pub fn plan(&self, options: &PlanOptions) -> Plan {
        self.try_plan(options).expect("a plan")
    }

    pub fn name(&self, row: Row) -> String {
        String::from_utf8_lossy(self.module.instruction_name(row)).into_owned()
    }

    pub fn row(&self, name: &str) -> Row {
        Row(*self.module.find_instructions(name.as_bytes()).first().expect(name))
    }
}

/// To plan by `rule`.
pub fn by(rule: Rule) -> PlanOptions {
    let memory = Options { rule, ..Options::default() };
    PlanOptions { counting: Counting { memory, tables: None }, ..PlanOptions::default() }
}
