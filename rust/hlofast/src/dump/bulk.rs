//! Runs many jobs on several threads: results come in the order of the jobs, within a memory
//! budget, and a failing job does not affect other jobs.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// How many jobs may run ahead of the oldest unfinished job.
const WINDOW: usize = 256;

/// Stack size of a worker; the parser takes more for deeply nested texts.
const STACK: usize = 8 << 20;

/// Jobs and their cost.
pub trait Work: Send + Sync + 'static {
    /// The result of a job.
    type Result: Send;

    /// The number of jobs.
    fn len(&self) -> usize;

    /// Whether there are no jobs.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Approximate bytes of memory of a running job.
    fn cost(&self, job: usize) -> u64;

    /// Approximate bytes of memory of a result.
    fn weight(&self, result: &Self::Result) -> u64;

    /// How many jobs, starting with this one, one thread should run in succession, because a job
    /// may reuse results of the previous job.
    fn together(&self, _job: usize) -> usize {
        1
    }

    /// Runs a job.
    fn run(&self, job: usize) -> Self::Result;

    /// The result of a job that panicked.
    fn panicked(&self, job: usize, message: &str) -> Self::Result;

    /// The result of a job that was abandoned because it exceeded `limit`.
    fn timed_out(&self, job: usize, limit: Duration) -> Self::Result;
}

/// Limits on threads, memory and time per job.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Number of threads; at least one.
    pub threads: usize,
    /// Bytes of memory for running jobs and results not yet [released](Bulk::release). A job that
    /// needs more memory runs alone.
    pub memory: u64,
    /// Bytes of results that the caller collects before it works on them and releases them. Beside
    /// more, no job starts that exceeds the memory.
    pub collected: u64,
    /// Jobs are abandoned after this time; their thread is detached and replaced.
    pub time: Option<Duration>,
}

/// The answer of [`Bulk::next`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next<T> {
    /// The result of the next job.
    Result(T),
    /// The next result is not ready.
    Pending,
    /// All results have been taken.
    End,
}

/// Running jobs. Dropping it cancels jobs that have not started.
pub struct Bulk<W: Work> {
    shared: Arc<Shared<W>>,
    threads: Vec<thread::JoinHandle<()>>,
}

struct Shared<W: Work> {
    work: Arc<W>,
    limits: Limits,
    state: Mutex<State<W::Result>>,
    changed: Condvar,
}

struct State<R> {
    /// The next job to start.
    next: usize,
    /// The next result to take.
    taken: usize,
    /// Bytes of running jobs and of results.
    memory: u64,
    /// Bytes of the results that were taken and not released; part of `memory`.
    held: u64,
    running: BTreeMap<usize, Running>,
    ready: BTreeMap<usize, (R, u64)>,
    /// Jobs that were queued on a thread behind an abandoned job.
    left: BTreeSet<usize>,
    is_cancelled: bool,
}

struct Running {
    began: Instant,
    /// End of the group of jobs that the thread runs in succession.
    end: usize,
}

impl<W: Work> Shared<W> {
    fn state(&self) -> MutexGuard<'_, State<W::Result>> {
        // No code panics while holding the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a job that may start, the first of a group.
    fn take(&self) -> Option<Range<usize>> {
        let mut state = self.state();
        loop {
            let left = state.left.first().copied();
            if state.is_cancelled || left.is_none() && state.next >= self.work.len() {
                return None;
            }
            let job = left.unwrap_or(state.next);
            if self.may_begin(&state, job) {
                let end = match left {
                    Some(_) => job + 1,
                    None => self.work.len().min(job + self.work.together(job).max(1)),
                };
                match left {
                    Some(_) => drop(state.left.remove(&job)),
                    None => state.next = end,
                }
                self.begin(&mut state, job, end);
                return Some(job..end);
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Waits until the next job of the group may start; false if there is nothing more to do.
    fn follow(&self, job: usize, end: usize) -> bool {
        let mut state = self.state();
        while !state.is_cancelled {
            if self.may_begin(&state, job) {
                self.begin(&mut state, job, end);
                return true;
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        false
    }

    fn may_begin(&self, state: &State<W::Result>, job: usize) -> bool {
        let memory = state.memory.saturating_add(self.work.cost(job));
        let fits = state.memory == 0 || memory <= self.limits.memory;
        // All results wait for the oldest job. It need not fit, unless the caller works on results
        // and will release them.
        let may_exceed = job == state.taken && state.held < self.limits.collected.max(1);
        job < state.taken + WINDOW && (fits || may_exceed)
    }

    fn begin(&self, state: &mut State<W::Result>, job: usize, end: usize) {
        state.memory = state.memory.saturating_add(self.work.cost(job));
        state.running.insert(job, Running { began: Instant::now(), end });
    }

    /// Stores a result; false if the job was abandoned in the meantime. Other threads then run the
    /// rest of its group.
    fn put(&self, job: usize, result: W::Result, is_given_up: bool) -> bool {
        let weight = self.work.weight(&result);
        let mut state = self.state();
        let Some(Running { end, .. }) = state.running.remove(&job) else { return false };
        if is_given_up {
            state.left.extend(job + 1..end);
        }
        state.memory = state.memory.saturating_sub(self.work.cost(job)).saturating_add(weight);
        state.ready.insert(job, (result, weight));
        self.changed.notify_all();
        true
    }

    fn run_worker(&self) {
        while let Some(jobs) = self.take() {
            let (first, end) = (jobs.start, jobs.end);
            for job in jobs {
                if job > first && !self.follow(job, end) {
                    return;
                }
                let done = catch_unwind(AssertUnwindSafe(|| self.work.run(job)));
                let result = done.unwrap_or_else(|panic| {
                    let text = panic.downcast_ref::<String>().map(String::as_str);
                    let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
                    self.work.panicked(job, text.unwrap_or("unknown"))
                });
                if !self.put(job, result, false) {
                    return;
                }
            }
        }
    }
}

impl<W: Work> Bulk<W> {
    /// Starts the jobs.
    pub fn new(work: Arc<W>, limits: Limits) -> Self {
        let state = State {
            next: 0,
            taken: 0,
            memory: 0,
            held: 0,
            running: BTreeMap::new(),
            ready: BTreeMap::new(),
            left: BTreeSet::new(),
            is_cancelled: false,
        };
        let count = limits.threads.clamp(1, work.len().max(1));
        let (state, changed) = (Mutex::new(state), Condvar::new());
        let shared = Arc::new(Shared { work, limits, state, changed });
        let mut bulk = Self { shared, threads: Vec::new() };
        for _ in 0..count {
            bulk.spawn_worker();
        }
        bulk
    }

    fn spawn_worker(&mut self) {
        let shared = Arc::clone(&self.shared);
        let builder = thread::Builder::new().name("hlofast".to_owned()).stack_size(STACK);
        // If a thread cannot be started, the existing threads do the work.
        self.threads.extend(builder.spawn(move || shared.run_worker()));
    }

    /// The result of the next job, in the order of the jobs; waits at most `timeout`. A result
    /// counts as memory until it is released.
    pub fn next(&mut self, timeout: Duration) -> Next<W::Result> {
        let until = Instant::now() + timeout;
        loop {
            let shared = Arc::clone(&self.shared);
            let mut state = shared.state();
            let taken = state.taken;
            if let Some((result, weight)) = state.ready.remove(&taken) {
                state.taken += 1;
                state.held = state.held.saturating_add(weight);
                shared.changed.notify_all();
                return Next::Result(result);
            }
            if taken >= shared.work.len() {
                return Next::End;
            }
            let now = Instant::now();
            let timed_out = shared.limits.time.and_then(|limit| {
                let late = |(_, job): &(&usize, &Running)| now.duration_since(job.began) > limit;
                Some((*state.running.iter().find(late)?.0, limit))
            });
            if let Some((job, limit)) = timed_out {
                drop(state);
                // Called outside the lock. If the job finishes at this moment, its result is kept.
                if shared.put(job, shared.work.timed_out(job, limit), true) {
                    self.spawn_worker();
                }
                continue;
            }
            let Some(rest) = until.checked_duration_since(now).filter(|rest| !rest.is_zero())
            else {
                return Next::Pending;
            };
            let rest = shared.limits.time.map_or(rest, |_| rest.min(Duration::from_millis(20)));
            let waited = shared.changed.wait_timeout(state, rest);
            drop(waited.unwrap_or_else(PoisonError::into_inner));
        }
    }

    /// Tells that the memory of all results taken so far is free again.
    pub fn release(&self) {
        let mut state = self.shared.state();
        state.memory = state.memory.saturating_sub(state.held);
        state.held = 0;
        self.shared.changed.notify_all();
    }

    /// Starts no further jobs.
    pub fn cancel(&self) {
        self.shared.state().is_cancelled = true;
        self.shared.changed.notify_all();
    }
}

impl<W: Work> Bulk<W> {
    /// Starts no further jobs and waits for running jobs, unless a job was abandoned.
    pub fn end(&mut self) {
        self.cancel();
        let is_running = |thread: &thread::JoinHandle<()>| !thread.is_finished();
        if self.shared.limits.time.is_none() {
            for thread in self.threads.drain(..).filter(is_running) {
                // Panics have been caught in the worker.
                drop(thread.join());
            }
        }
    }
}

impl<W: Work> Drop for Bulk<W> {
    fn drop(&mut self) {
        self.end();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

    struct Numbers {
        count: usize,
        cost: u64,
        run: fn(usize) -> usize,
    }

    impl Work for Numbers {
        type Result = Result<usize, String>;

        fn len(&self) -> usize {
            self.count
        }

        fn cost(&self, _job: usize) -> u64 {
            self.cost
        }

        fn weight(&self, _result: &Self::Result) -> u64 {
            1
        }

        fn run(&self, job: usize) -> Self::Result {
            Ok((self.run)(job))
        }

        fn panicked(&self, job: usize, message: &str) -> Self::Result {
            Err(format!("{job} broken: {message}"))
        }

        fn timed_out(&self, job: usize, _limit: Duration) -> Self::Result {
            Err(format!("{job} timed_out"))
        }
    }

    fn all(work: Numbers, limits: Limits) -> Vec<Result<usize, String>> {
        let mut bulk = Bulk::new(Arc::new(work), limits);
        let mut results = Vec::new();
        loop {
            match bulk.next(Duration::from_millis(5)) {
                Next::Result(result) => results.push(result),
                Next::Pending => {}
                Next::End => return results,
            }
        }
    }

    const LIMITS: Limits = Limits { threads: 4, memory: 1 << 20, collected: 1 << 10, time: None };

    #[test]
    fn results_come_in_the_order_of_the_jobs() {
        let run = |job: usize| {
            thread::sleep(Duration::from_micros(if job.is_multiple_of(7) { 300 } else { 10 }));
            job
        };
        for (threads, cost) in [(1, 1), (4, 1), (4, 1 << 19), (4, 1 << 30)] {
            let limits = Limits { threads, ..LIMITS };
            let results = all(Numbers { count: 600, cost, run }, limits);
            assert_eq!(results, (0..600).map(Ok).collect::<Vec<_>>(), "{threads} threads, {cost}");
        }
        assert_eq!(all(Numbers { count: 0, cost: 1, run }, LIMITS), []);
    }

    #[test]
    fn a_panic_is_a_result() {
        let run = |job: usize| if job == 3 { panic!("no {job}") } else { job };
        let results = all(Numbers { count: 6, cost: 1, run }, LIMITS);
        assert_eq!(results[3], Err("3 broken: no 3".to_owned()));
        assert_eq!(results.iter().filter(|result| result.is_ok()).count(), 5);
    }

    #[test]
    fn a_job_that_hangs_is_given_up_and_its_thread_replaced() {
        let run = |job: usize| {
            if job % 4 == 1 {
                thread::sleep(Duration::from_millis(1500));
            }
            job
        };
        let limits = Limits { threads: 2, time: Some(Duration::from_millis(100)), ..LIMITS };
        let results = all(Numbers { count: 8, cost: 1, run }, limits);
        for (job, result) in results.into_iter().enumerate() {
            let expected = if job % 4 == 1 { Err(format!("{job} timed_out")) } else { Ok(job) };
            assert_eq!(result, expected);
        }
    }

    /// Jobs in groups of up to five.
    struct Batches {
        by: Mutex<Vec<(usize, thread::ThreadId)>>,
        hangs: bool,
    }

    impl Work for Batches {
        type Result = &'static str;

        fn len(&self) -> usize {
            103
        }

        fn cost(&self, _job: usize) -> u64 {
            1 << 10
        }

        fn weight(&self, _result: &Self::Result) -> u64 {
            1 << 10
        }

        fn together(&self, job: usize) -> usize {
            5 - job % 5
        }

        fn run(&self, job: usize) -> Self::Result {
            self.by.lock().unwrap().push((job, thread::current().id()));
            thread::sleep(Duration::from_micros(200));
            match job {
                _ if job % 10 == 7 => panic!("seven"),
                1 | 41 | 100 if self.hangs => thread::sleep(Duration::from_secs(3)),
                _ => {}
            }
            "done"
        }

        fn panicked(&self, _job: usize, _message: &str) -> Self::Result {
            "broken"
        }

        fn timed_out(&self, _job: usize, _limit: Duration) -> Self::Result {
            "timed_out"
        }
    }

    #[test]
    fn jobs_that_go_together_are_done_by_one_thread() {
        for (threads, memory, hangs) in [
            (1, 1 << 20, false),
            (4, 1 << 20, false),
            (4, 1 << 11, false),
            (1, 1 << 20, true),
            (4, 1 << 11, true),
        ] {
            let time = hangs.then_some(Duration::from_millis(700));
            let work = Arc::new(Batches { by: Mutex::default(), hangs });
            let limits = Limits { threads, memory, collected: 1, time };
            let mut bulk = Bulk::new(Arc::clone(&work), limits);
            for job in 0..103 {
                let result = loop {
                    match bulk.next(Duration::from_secs(10)) {
                        Next::Result(result) => {
                            bulk.release();
                            break result;
                        }
                        other => assert_eq!(other, Next::Pending),
                    }
                };
                let expected = match job {
                    _ if job % 10 == 7 => "broken",
                    1 | 41 | 100 if hangs => "timed_out",
                    _ => "done",
                };
                assert_eq!(result, expected, "{job}, {threads} threads");
            }
            assert_eq!(bulk.next(Duration::ZERO), Next::End);
            let mut by = work.by.lock().unwrap().clone();
            by.sort_by_key(|(job, _)| *job);
            assert_eq!(by.iter().map(|(job, _)| *job).collect::<Vec<_>>(), Vec::from_iter(0..103));
            let is_one =
                |five: &[(usize, thread::ThreadId)]| five.iter().all(|(_, id)| *id == five[0].1);
            assert!(hangs || by.chunks(5).all(is_one));
        }
    }

    #[test]
    fn memory_is_bounded() {
        static UNDER_WAY: AtomicUsize = AtomicUsize::new(0);
        static MOST: AtomicUsize = AtomicUsize::new(0);
        let run = |job: usize| {
            MOST.fetch_max(UNDER_WAY.fetch_add(1, SeqCst) + 1, SeqCst);
            thread::sleep(Duration::from_millis(1));
            UNDER_WAY.fetch_sub(1, SeqCst);
            job
        };
        let limits = Limits { threads: 8, memory: 3 << 10, ..LIMITS };
        assert_eq!(all(Numbers { count: 40, cost: 1 << 10, run }, limits).len(), 40);
        assert!(MOST.load(SeqCst) <= 3, "{MOST:?}");
    }

    #[test]
    fn a_large_job_waits_until_results_are_released() {
        static BEGUN: AtomicUsize = AtomicUsize::new(0);
        let run = |job: usize| BEGUN.fetch_max(job, SeqCst).max(job);
        // The jobs exceed the memory, and every result the limit of what is collected.
        let limits = Limits { threads: 2, memory: 8, collected: 1, time: None };
        let mut bulk = Bulk::new(Arc::new(Numbers { count: 4, cost: 16, run }), limits);
        for job in 0..4 {
            assert_eq!(bulk.next(Duration::from_secs(10)), Next::Result(Ok(job)));
            assert_eq!(bulk.next(Duration::from_millis(50)), [Next::Pending, Next::End][job / 3]);
            assert_eq!(BEGUN.load(SeqCst), job);
            bulk.release();
        }
        assert_eq!(bulk.next(Duration::ZERO), Next::End);
    }
}
