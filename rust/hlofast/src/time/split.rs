//! Seconds by the resource that is used or waited for.

/// Seconds by resource; the parts add up to `seconds`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Split {
    /// Total seconds.
    pub seconds: f64,
    /// Rows bound by compute.
    pub compute: f64,
    /// Rows bound by memory, and waiting for copies.
    pub memory: f64,
    /// Launches, and rows whose bound is unknown.
    pub other: f64,
    /// Waiting for collectives, by axes (index into `Simulation::axes`).
    pub exposed: Vec<f64>,
}

impl Split {
    pub(super) fn add(&mut self, other: &Split, times: f64) {
        // Avoids 0 times infinity.
        if times == 0.0 {
            return;
        }
        self.seconds += other.seconds * times;
        self.compute += other.compute * times;
        self.memory += other.memory * times;
        self.other += other.other * times;
        if self.exposed.len() < other.exposed.len() {
            self.exposed.resize(other.exposed.len(), 0.0);
        }
        for (sum, more) in self.exposed.iter_mut().zip(&other.exposed) {
            *sum += more * times;
        }
    }

    pub(super) fn wait(&mut self, axis: usize, seconds: f64) {
        if self.exposed.len() <= axis {
            self.exposed.resize(axis + 1, 0.0);
        }
        if let Some(sum) = self.exposed.get_mut(axis) {
            *sum += seconds;
        }
        self.seconds += seconds;
    }
}
